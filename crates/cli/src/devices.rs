//! Files and disks by name: how a word becomes a device that a pool may take.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::{Device, DeviceError, FileDevice, OpenOptions, probe_size_bytes};
use forebay_pool::Opener;
use forebay_pool::spec::PoolSpec;
use forebay_units::Nanos;

use crate::failure::Failure;
use crate::vdevs::{devices_of, devices_of_mut};

/// The smallest device that a pool takes.
pub const DEVICE_MIN_BYTES: u64 = 64 << 20;
/// Folders with more entries than this are not searched for pools: they are not device folders.
const SEARCH_MAX_ENTRIES: usize = 10_000;

/// Opens files and disks, each for this process alone.
pub struct FileOpener;

impl Opener for FileOpener {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        let options = OpenOptions { read_only: false, exclusive: true };
        Ok(Rc::new(FileDevice::open(Path::new(path), options)?))
    }

    fn host(&self) -> u64 {
        let name = machine_id().unwrap_or_else(host_name);
        let fold = |id: u64, byte: &u8| (id ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        name.iter().fold(0xcbf2_9ce4_8422_2325, fold)
    }
}

/// The id that this installation keeps over restarts: after a power cut the pool is still its own.
fn machine_id() -> Option<Vec<u8>> {
    let mut text = String::new();
    let file = std::fs::File::options().read(true).open("/etc/machine-id").ok()?;
    file.take(64).read_to_string(&mut text).ok()?;
    let id = text.trim();
    (id.len() >= 32).then(|| id.as_bytes().to_vec())
}

/// For systems without such an id, containers mostly.
fn host_name() -> Vec<u8> {
    let mut name = vec![0u8; 256];
    // When even the name is not to be had, all such machines look alike, and the locks remain.
    let _ = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    name.into_iter().take_while(|byte| *byte != 0).collect()
}

/// Waits until no other process has `paths` open, for a moment at most: the kernel lets go of the
/// files of a killed server a little after the process is gone. Whoever opens them next finds out
/// whether they are free.
pub async fn wait_until_free(paths: &[String]) {
    const PATIENCE: Nanos = Nanos::from_secs(2);
    const LOOK_EVERY: Nanos = Nanos::from_millis(20);
    let deadline = forebay_rt::now() + PATIENCE;
    while paths.iter().any(|path| is_locked(path)) && forebay_rt::now() < deadline {
        forebay_rt::sleep(LOOK_EVERY).await;
    }
}

/// Whether another process has the device at `path` for itself. `false` when it cannot be told.
#[must_use]
pub fn is_locked(path: &str) -> bool {
    let Ok(file) = std::fs::File::options().read(true).open(path) else { return false };
    let outcome = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    outcome != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EWOULDBLOCK)
}

/// The absolute path of a device that a pool is to take. Fails when there is no such file or
/// block device, or when it is too small.
pub fn resolve_new(word: &str) -> Result<String, Failure> {
    let path = absolute(&named(word))?;
    let shown = path.display();
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Failure::new(format!(
                "{shown}: {e}; a device must be readable and writable for whoever serves the pool"
            ))
        }
        _ => Failure::new(format!("{shown}: {e}")),
    };
    let meta = std::fs::metadata(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format!(
            "{shown}: no such device; name a disk, or make a file with 'truncate -s 4G {shown}'"
        )),
        _ => failed(e),
    })?;
    if !meta.is_file() && !meta.file_type().is_block_device() {
        return Err(Failure::new(format!("{shown} is neither a file nor a block device")));
    }
    // The pool would say the same, in fewer words.
    std::fs::File::options().read(true).write(true).open(&path).map_err(failed)?;
    let size_bytes = probe_size_bytes(&path).map_err(failed)?;
    if size_bytes < DEVICE_MIN_BYTES {
        return Err(Failure::new(format!(
            "{shown} has {}; a device needs 64M at least",
            forebay_units::format_bytes(size_bytes)
        )));
    }
    utf8(path)
}

/// Makes every device of `spec` an absolute path that a pool may take. Fails when two names lead
/// to one device.
pub fn resolve_spec(spec: &mut PoolSpec) -> Result<(), Failure> {
    for device in devices_of_mut(spec) {
        *device = resolve_new(device)?;
    }
    let mut seen: BTreeMap<(u64, u64), &String> = BTreeMap::new();
    for device in devices_of(spec) {
        let meta = std::fs::metadata(device).map_err(|e| Failure::new(format!("{device}: {e}")))?;
        let key = if meta.is_file() { (meta.dev(), meta.ino()) } else { (u64::MAX, meta.rdev()) };
        if let Some(other) = seen.insert(key, device) {
            return Err(Failure::new(format!(
                "{other} and {device} are the same device; name each device once"
            )));
        }
    }
    Ok(())
}

/// How a device of an existing pool is named to the pool: a path becomes absolute, a name from
/// `pool status` such as `mirror-1` stays.
pub fn resolve_member(word: &str) -> Result<String, Failure> {
    let path = named(word);
    if word.contains('/') || path.is_absolute() || path.exists() {
        return utf8(absolute(&path)?);
    }
    Ok(word.to_owned())
}

/// A bare name that is no file here may be one of /dev, as zpool has it.
fn named(word: &str) -> PathBuf {
    let here = PathBuf::from(word);
    let in_dev = Path::new("/dev").join(word);
    if !word.contains('/') && !here.exists() && in_dev.exists() { in_dev } else { here }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::new(format!("{}: {e}", path.display())))
}

fn utf8(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string()
        .into_string()
        .map_err(|p| Failure::new(format!("{}: the path is not UTF-8", p.to_string_lossy())))
}

/// Paths that may hold a pool: what is named, and what lies in folders that are named (files and
/// block devices large enough). Without names, the block devices of /dev.
pub fn search(places: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    if places.is_empty() {
        search_folder(Path::new("/dev"), false, &mut paths)?;
    }
    for place in places {
        let place = absolute(place)?;
        let shown = place.display();
        let meta = std::fs::metadata(&place).map_err(|e| Failure::new(format!("{shown}: {e}")))?;
        if meta.is_dir() {
            search_folder(&place, true, &mut paths)?;
        } else {
            paths.push(utf8(place)?);
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn search_folder(folder: &Path, files: bool, paths: &mut Vec<String>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("{}: {e}", folder.display()));
    for (at, entry) in std::fs::read_dir(folder).map_err(failed)?.enumerate() {
        if at == SEARCH_MAX_ENTRIES {
            return Err(Failure::new(format!(
                "{} has more than {SEARCH_MAX_ENTRIES} entries; name the devices with -d",
                folder.display()
            )));
        }
        let path = entry.map_err(failed)?.path();
        // Entries that vanish, or that we may not look at, hold no pool for us.
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        let candidate = meta.file_type().is_block_device() || (files && meta.is_file());
        let large = || probe_size_bytes(&path).is_ok_and(|size| size >= DEVICE_MIN_BYTES);
        if candidate && large() {
            paths.push(utf8(path)?);
        }
    }
    Ok(())
}

/// Of the files and disks in `places` those that may not be opened for writing here, and why, in words
/// that go on a sentence; empty when there are none. A pool on them cannot be found.
pub fn out_of_reach(places: &[PathBuf]) -> String {
    let entries = |place: &PathBuf| match std::fs::read_dir(place) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(_) => vec![place.clone()],
    };
    let refused = |path: PathBuf| {
        let meta = std::fs::metadata(&path).ok()?;
        let large = meta.is_file() && meta.len() >= DEVICE_MIN_BYTES;
        // Nothing else is opened: it may do something by that, as /dev/watchdog does.
        if !large && !meta.file_type().is_block_device() {
            return None;
        }
        let opened = std::fs::File::options().read(true).write(true).open(&path);
        Some((path, opened.err()?))
    };
    let mut refused: Vec<_> = places.iter().flat_map(entries).filter_map(refused).collect();
    refused.sort_by(|a, b| a.0.cmp(&b.0));
    match &refused[..] {
        [] => String::new(),
        [(path, why)] => format!("; {}: {why}", path.display()),
        [(path, why), others @ ..] => {
            format!("; {}: {why} (and {} more like it)", path.display(), others.len())
        }
    }
}

#[cfg(test)]
mod tests;
