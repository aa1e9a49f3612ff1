//! Facts of a disk and of the machine, as the kernel tells them.
//!
//! What enters: a path. What leaves: fields of the conditions; what the kernel does not tell stays
//! unknown. What always holds: nothing is sent to the device.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_qualify::{Conditions, Traffic, WriteCache};

use crate::files;

/// The first line of a small file of the kernel; `None` when it is missing or empty.
pub fn line(path: &Path) -> Option<String> {
    let mut text = String::new();
    files::open_to_read(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The folder in /sys of a block device, or of the one that a file lies on.
fn device_folder(path: &Path) -> Option<PathBuf> {
    let meta = std::fs::metadata(path).ok()?;
    let number = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    let name = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    std::fs::canonicalize(name).ok()
}

/// The number of the partition that `folder` is of, if it is of one.
fn partition(folder: &Path) -> Option<String> {
    line(&folder.join("partition"))
}

/// The folder of the whole disk in /sys: of a block device, or of the one that a file lies on.
pub fn disk_folder(path: &Path) -> Option<PathBuf> {
    let folder = device_folder(path)?;
    match partition(&folder) {
        Some(_) => folder.parent().map(Path::to_owned),
        None => Some(folder),
    }
}

/// Adds what is known of the disk at `path`, or under that file.
pub fn of_disk(path: &Path, conditions: &mut Conditions) {
    let Some(folder) = disk_folder(path) else { return };
    let get = |name: &str| line(&folder.join(name));
    let maker = get("device/vendor").filter(|vendor| !vendor.starts_with("0x"));
    let model = [maker, get("device/model")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    conditions.model = (!model.is_empty()).then_some(model);
    conditions.serial = get("device/serial").or_else(|| get("serial"));
    conditions.firmware = get("device/firmware_rev").or_else(|| get("device/rev"));
    conditions.write_cache = match get("queue/write_cache").as_deref() {
        Some("write back") => Some(WriteCache::Volatile),
        Some("write through") => Some(WriteCache::Durable),
        _ => None,
    };
    conditions.takes_fua = get("queue/fua").map(|fua| fua == "1");
    let details = [
        ("disk", folder.file_name().map(|name| name.to_string_lossy().into_owned())),
        ("scheduler", get("queue/scheduler").map(|all| chosen(&all))),
        ("rotating", get("queue/rotational").map(|r| if r == "1" { "yes" } else { "no" }.into())),
        ("logical block", get("queue/logical_block_size")),
        ("physical block", get("queue/physical_block_size")),
        ("discards of, at most", get("queue/discard_max_bytes")),
        (Conditions::PARTITION, device_folder(path).and_then(|folder| partition(&folder))),
    ];
    for (key, value) in details {
        conditions.details.extend(value.map(|value| (key.to_owned(), value)));
    }
}

/// Maker, model and serial number of the disk at `path`, where the kernel knows a serial number.
pub fn identity(path: &Path) -> Option<String> {
    if !std::fs::metadata(path).ok()?.file_type().is_block_device() {
        return None;
    }
    let folder = disk_folder(path)?;
    let get = |name: &str| line(&folder.join(name));
    let serial = get("device/serial").or_else(|| get("serial"))?;
    let model = get("device/model").unwrap_or_default();
    Some(format!("{model} {serial}").trim().to_owned())
}

/// The word in brackets of a list such as `none [mq-deadline] kyber`.
fn chosen(all: &str) -> String {
    let inner = all.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(all, |(chosen, _)| chosen).to_owned()
}

/// The folder in /sys of the disk at `path`, or under that file, if it counts its traffic.
pub fn counted(path: &Path) -> Option<PathBuf> {
    disk_folder(path).filter(|folder| folder.join("stat").exists())
}

/// What the disks of these folders have moved since the machine started; `None` without a disk.
pub fn traffic(folders: &[PathBuf]) -> Option<Traffic> {
    /// Fields of the kernel's `stat`, in sectors of 512 bytes whatever the disk's are.
    const READ_SECTORS: usize = 2;
    const WRITTEN_SECTORS: usize = 6;
    let mut sum = Traffic::default();
    for folder in folders {
        let text = line(&folder.join("stat"))?;
        let fields: Vec<u64> =
            text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        sum.read_bytes += fields.get(READ_SECTORS)? * 512;
        sum.written_bytes += fields.get(WRITTEN_SECTORS)? * 512;
    }
    (!folders.is_empty()).then_some(sum)
}

/// Adds what is known of the machine.
pub fn of_machine(details: &mut BTreeMap<String, String>) {
    let mut add = |key: &str, value: Option<String>| {
        details.extend(value.map(|value| (key.to_owned(), value)));
    };
    add("kernel", line(Path::new("/proc/sys/kernel/osrelease")));
    add("processors", std::thread::available_parallelism().ok().map(|n| n.to_string()));
    let mut text = String::new();
    if let Ok(file) = files::open_to_read("/proc/cpuinfo") {
        let _ = file.take(1 << 16).read_to_string(&mut text);
    }
    let model = text.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    add("processor", model.map(|(_, name)| name.trim().to_owned()));
}

#[cfg(test)]
mod tests;
