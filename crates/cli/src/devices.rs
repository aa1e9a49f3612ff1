//! Devices by name: files and disks that a pool may take.
//!
//! What enters: words of the command line, folders to search. What leaves: absolute paths, opened
//! devices. What always holds: a search opens nothing that cannot be a device.
//! Who calls: commands that name devices, and everything that opens pools.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::{DeviceError, FileDevice, OpenOptions, probe_size_bytes};
use forebay_pool::spec::PoolSpec;
use forebay_pool::{Answering, Counting, Opener, Opening};
use forebay_rt::{self as rt, sys};
use forebay_units::Nanos;

use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::free_memory::{self, free_memory_bytes, memory_bytes};
use crate::log;
use crate::log_memory;
use crate::object_stores;
use crate::path_probe::{NoAnswer, probe, probe_each};
use crate::remote_log;
use crate::vdevs::{devices_of, devices_of_mut};

/// The smallest device that a pool takes.
pub const DEVICE_MIN_BYTES: u64 = 64 << 20;
/// Entries of a folder that is searched for pools: a larger folder is not a folder of devices.
const SEARCH_MAX_ENTRIES: usize = 10_000;
/// How long a look at a device waits that cannot be opened, for the reason.
pub const LOOK_TIMEOUT: Nanos = Nanos::from_secs(3);

/// Opens files and disks, and locks each for this process; and log devices on other hosts.
pub struct FileOpener;

impl Opener for FileOpener {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        if object_stores::is_name(path) {
            return Box::pin(object_stores::open(path, self.host(), true));
        }
        match remote_log::is_name(path) {
            true => Box::pin(remote_log::open(path)),
            false => Box::pin(log_memory::open(path)),
        }
    }

    fn open_to_look<'a>(&'a self, path: &'a str) -> Opening<'a> {
        if object_stores::is_name(path) {
            return Box::pin(object_stores::open(path, self.host(), false));
        }
        if is_elsewhere(path) {
            return self.open(path);
        }
        let options = OpenOptions { read_only: true, exclusive: false };
        Box::pin(async move { Ok(Rc::new(FileDevice::open(Path::new(path), options).await?) as _) })
    }

    fn answers<'a>(&'a self, path: &'a str) -> Option<Answering<'a>> {
        match remote_log::is_name(path) {
            true => Some(Box::pin(remote_log::answers(path))),
            false => None,
        }
    }

    fn host(&self) -> u64 {
        // Systems without such an id are containers, mostly. Without a name all of them look alike;
        // the locks remain.
        let name = machine_id().unwrap_or_else(sys::host_name);
        let fold = |id: u64, byte: &u8| (id ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        name.iter().fold(0xcbf2_9ce4_8422_2325, fold)
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        free_memory_bytes()
    }

    fn memory_bytes(&self) -> Option<u64> {
        memory_bytes()
    }

    fn count_memory(&self) -> Counting<'_> {
        Box::pin(free_memory::count())
    }
}

/// The id that this installation keeps over restarts: after a power cut its pools are still its
/// own.
fn machine_id() -> Option<Vec<u8>> {
    let mut text = String::new();
    let file = files::open_to_read("/etc/machine-id").ok()?;
    file.take(64).read_to_string(&mut text).ok()?;
    let id = text.trim();
    (id.len() >= 32).then(|| id.as_bytes().to_vec())
}

/// Waits until no other process has locked `paths`, for two seconds at most: the kernel drops the
/// locks of a killed server a little after the end of the process. The caller's open finds out
/// whether they are free.
pub async fn wait_until_free(paths: &[String]) {
    const UNLOCK_TIMEOUT: Nanos = Nanos::from_secs(2);
    wait_until_free_for(paths, UNLOCK_TIMEOUT).await;
}

/// The same for `span` at most; whether they are free.
pub async fn wait_until_free_for(paths: &[String], span: Nanos) -> bool {
    const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
    let deadline = forebay_rt::now() + span;
    while any_is_locked(paths).await {
        if forebay_rt::now() >= deadline {
            return false;
        }
        forebay_rt::sleep(POLL_INTERVAL).await;
    }
    true
}

/// Whether another process has locked one of the devices at `paths`.
pub async fn any_is_locked(paths: &[String]) -> bool {
    for path in paths {
        if is_locked(path).await {
            return true;
        }
    }
    false
}

/// Whether another process has locked the device at `path`. `false` when that is unknown.
pub async fn is_locked(path: &str) -> bool {
    let locked = probe(path, |path| {
        let Ok(file) = files::open_to_read(path) else { return false };
        matches!(sys::try_lock(&file), Ok(false))
    });
    locked.await.unwrap_or(false)
}

/// The absolute path of a device that a pool is to take. Fails when there is no such file or
/// block device, or when it is too small.
pub fn resolve_new(word: &str) -> Result<String, Failure> {
    let path = absolute(&named(word))?;
    let shown = path.display();
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            Failure::io(&shown, &e).with_hint("the server must be able to read and write a device")
        }
        _ => Failure::io(&shown, &e),
    };
    let meta = std::fs::metadata(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => {
            Failure::new(ErrorCode::DeviceNotFound, format!("{shown}: no such device"))
                .with_hint(format!("name a disk, or make a file with 'truncate -s 4G {shown}'"))
        }
        _ => failed(e),
    })?;
    if !meta.is_file() && !meta.file_type().is_block_device() {
        let message = format!("{shown} is neither a file nor a block device");
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    // The pool opens it too; its error says less.
    files::open_to_read_and_write(&path).map_err(failed)?;
    let size_bytes = probe_size_bytes(&path).map_err(failed)?;
    if size_bytes < DEVICE_MIN_BYTES {
        let size = forebay_units::format_bytes(size_bytes);
        let message = format!("{shown} has {size}; a device needs 64M at least");
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    utf8(path)
}

/// Makes every device of `spec` a name that a pool may take: an absolute path, or the URI of a log
/// device on another host. Log devices in memory are not made yet. Fails when two names are of one
/// device.
pub async fn resolve_spec(spec: &mut PoolSpec) -> Result<(), Failure> {
    log_memory::check_names(spec)?;
    remote_log::check_places(spec)?;
    object_stores::check_places(spec)?;
    for device in devices_of_mut(spec).filter(|device| is_path(device)) {
        *device = resolve_new(device)?;
    }
    for device in devices_of_mut(spec).filter(|device| object_stores::is_name(device)) {
        *device = object_stores::resolve_new(device)?;
    }
    for device in devices_of_mut(spec).filter(|device| remote_log::is_name(device)) {
        *device = remote_log::resolve(device).await?;
    }
    let mut seen: BTreeMap<(u64, u64), &String> = BTreeMap::new();
    for device in devices_of(spec).filter(|device| is_path(device)) {
        let meta = std::fs::metadata(device).map_err(|e| Failure::io(&*device, &e))?;
        let key = if meta.is_file() { (meta.dev(), meta.ino()) } else { (u64::MAX, meta.rdev()) };
        if let Some(other) = seen.insert(key, device) {
            let message = format!("{other} and {device} are the same device");
            return Err(Failure::new(ErrorCode::DeviceNamedTwice, message)
                .with_hint("name each device once"));
        }
    }
    Ok(())
}

fn is_path(device: &str) -> bool {
    !log_memory::is_name(device) && !is_elsewhere(device)
}

/// Whether the name is one of a device that is not on this machine.
#[must_use]
pub fn is_elsewhere(device: &str) -> bool {
    remote_log::is_name(device) || object_stores::is_name(device)
}

/// The name of a device of an existing pool: a path becomes absolute, a name from `pool status`
/// such as `mirror-1` stays.
pub fn resolve_member(word: &str) -> Result<String, Failure> {
    if is_elsewhere(word) {
        return Ok(word.to_owned());
    }
    let path = named(word);
    if word.contains('/') || path.is_absolute() || path.exists() {
        return utf8(absolute(&path)?);
    }
    Ok(word.to_owned())
}

/// A bare name that is no file here may be a device in /dev, as in zpool.
fn named(word: &str) -> PathBuf {
    let here = PathBuf::from(word);
    let in_dev = Path::new("/dev").join(word);
    if !word.contains('/') && !here.exists() && in_dev.exists() { in_dev } else { here }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(path.display(), &e))
}

fn utf8(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|p| {
        let message = format!("{}: the path is not UTF-8", p.to_string_lossy());
        Failure::new(ErrorCode::DeviceUnusable, message)
    })
}

/// Paths of possible devices of pools: the devices among `places`, and the files and block devices
/// that are large enough in its folders. Without places, the block devices of /dev. A path that
/// does not answer is left out, with a warning.
pub async fn search(places: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    if places.is_empty() {
        search_folder(Path::new("/dev"), false, &mut paths).await?;
    }
    for place in places {
        if let Some(name) = place.to_str().filter(|place| is_elsewhere(place)) {
            paths.push(name.to_owned());
            continue;
        }
        let place = absolute(place)?;
        let is_folder = probe(&place, |place| place.metadata().map(|meta| meta.is_dir())).await;
        let is_folder = is_folder.map_err(|NoAnswer| no_answer(&place))?;
        if is_folder.map_err(|e| Failure::io(place.display(), &e))? {
            search_folder(&place, true, &mut paths).await?;
        } else {
            paths.push(utf8(place)?);
        }
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

async fn search_folder(folder: &Path, files: bool, paths: &mut Vec<String>) -> Result<(), Failure> {
    let entries = probe(folder, entries_of).await;
    let entries = entries.map_err(|NoAnswer| no_answer(folder))?;
    let entries = entries.map_err(|e| Failure::io(folder.display(), &e))?;
    if entries.len() > SEARCH_MAX_ENTRIES {
        let shown = folder.display();
        let message = format!("{shown} has more than {SEARCH_MAX_ENTRIES} entries");
        return Err(
            Failure::new(ErrorCode::TooManyDevices, message).with_hint("name the devices with -d")
        );
    }
    let may_be_device = move |path: &Path| {
        // Entries that vanish, or that this process may not look at, are skipped.
        let Ok(meta) = path.metadata() else { return false };
        let candidate = meta.file_type().is_block_device() || (files && meta.is_file());
        candidate && probe_size_bytes(path).is_ok_and(|size| size >= DEVICE_MIN_BYTES)
    };
    for (path, outcome) in probe_each(entries, may_be_device).await {
        match outcome {
            Ok(true) => match utf8(path) {
                Ok(path) => paths.push(path),
                // It has not become a device of a pool under this name.
                Err(failure) => log::warning(&format!("{} and is left out", failure.message)),
            },
            Ok(false) => {}
            Err(NoAnswer) => {
                log::warning(&format!("{} does not answer and is left out", path.display()));
            }
        }
    }
    Ok(())
}

/// Entries of a folder: one more than [`SEARCH_MAX_ENTRIES`] at most.
fn entries_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)?.take(SEARCH_MAX_ENTRIES + 1);
    entries.map(|entry| entry.map(|entry| entry.path())).collect()
}

fn no_answer(path: &Path) -> Failure {
    let message = format!("{} does not answer", path.display());
    Failure::new(ErrorCode::DeviceUnusable, message).with_hint("see its file system")
}

/// Why a device was not opened, without its name.
#[must_use]
pub fn why_not_opened(error: &DeviceError) -> String {
    let text = error.to_string();
    let of_which = format!("{}: {}: ", error.device, error.operation);
    text.strip_prefix(&of_which).unwrap_or(&text).to_owned()
}

/// Why the device `name`, which is not on this machine, cannot be opened; `None` if it can.
async fn refusal_elsewhere(name: &str) -> Option<String> {
    match rt::timeout(LOOK_TIMEOUT, FileOpener.open_to_look(name)).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(why_not_opened(&error)),
        Err(rt::Elapsed) => Some("it does not answer".to_owned()),
    }
}

/// Those of `paths` at which a look is worth while: paths of this machine, and devices elsewhere
/// that answer soon.
pub async fn answering(paths: &[String]) -> Vec<String> {
    let looks = paths.iter().map(async |path| {
        let is_worth = !is_elsewhere(path) || refusal_elsewhere(path).await.is_none();
        is_worth.then(|| path.clone())
    });
    rt::join_all(looks).await.into_iter().flatten().collect()
}

/// The devices in `places` that this process may not open, and why, as the end of a sentence; empty
/// when there are none. A pool on them cannot be found.
pub async fn out_of_reach(places: &[PathBuf]) -> String {
    let (mut paths, mut refused) = (Vec::new(), Vec::new());
    for place in places {
        if let Some(name) = place.to_str().filter(|name| is_elsewhere(name)) {
            refused.extend(refusal_elsewhere(name).await.map(|why| (place.clone(), why)));
            continue;
        }
        match probe(place, entries_of).await {
            Ok(Ok(entries)) => paths.extend(entries),
            _ => paths.push(place.clone()),
        }
    }
    let refusal = |path: &Path| {
        let meta = path.metadata().ok()?;
        let large = meta.is_file() && meta.len() >= DEVICE_MIN_BYTES;
        // Nothing else is opened: opening /dev/watchdog, for one, starts a countdown.
        if !large && !meta.file_type().is_block_device() {
            return None;
        }
        files::open_to_read_and_write(path).err().map(|e| e.to_string())
    };
    for (path, outcome) in probe_each(paths, refusal).await {
        match outcome {
            Ok(None) => {}
            Ok(Some(why)) => refused.push((path, why)),
            Err(NoAnswer) => refused.push((path, "it does not answer".to_owned())),
        }
    }
    refused.sort();
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
