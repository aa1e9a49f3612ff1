//! Submission: whether the kernel may block a thread that submits an operation on a file.
//!
//! io_uring asks a file not to block the submitting thread. FUSE and network file systems ignore
//! that: with a full queue the submission sleeps, and the thread with it. Files that are not known
//! to obey are submitted by a worker of the kernel ([`forebay_rt::uring::submit_aside`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use forebay_rt::sys;

/// File systems whose O_DIRECT reads and writes do not block a submission, as `statfs` has their
/// numbers. Each lies on a block device or in memory.
const DIRECT_FILE_SYSTEMS: [libc::__fsword_t; 5] = [
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
    libc::F2FS_SUPER_MAGIC,
    libc::TMPFS_MAGIC,
];

/// Names of block devices, without their numbers, whose drivers queue an operation without
/// blocking. Missing are drivers that talk to a server on the submitting thread, such as nbd and
/// rbd.
const DIRECT_DRIVERS: [&str; 11] =
    ["nvme", "sd", "vd", "xvd", "md", "dm-", "loop", "ram", "zram", "pmem", "ublkb"];

/// Whether a submission on `file` may block. `true` when that is unknown.
pub(crate) fn may_block(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    if meta.file_type().is_block_device() {
        return Ok(!is_direct_device(meta.rdev()));
    }
    let magic = sys::file_system_magic(file)?;
    // Btrfs and tmpfs have numbers of their own there, which name no block device.
    let lies_on_bad_device = block_device_name(meta.dev()).is_some_and(|name| !is_direct(&name));
    Ok(!DIRECT_FILE_SYSTEMS.contains(&magic) || lies_on_bad_device)
}

fn is_direct_device(number: u64) -> bool {
    block_device_name(number).is_some_and(|name| is_direct(&name))
}

/// The kernel's name of a block device, such as `nvme0n1p2`; `None` when there is no such device.
fn block_device_name(number: u64) -> Option<String> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let target = std::fs::read_link(link).ok()?;
    target.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Whether the driver of the device with this name is among [`DIRECT_DRIVERS`]: one of the names
/// there, with a number or a letter behind it.
fn is_direct(name: &str) -> bool {
    DIRECT_DRIVERS.iter().any(|driver| name.strip_prefix(driver).is_some_and(is_device_suffix))
}

/// `0n1p2`, `a1`, `aa`: what follows the driver in the name of a device.
fn is_device_suffix(rest: &str) -> bool {
    let letters = rest.chars().take_while(char::is_ascii_lowercase).count();
    let rest = &rest[letters..];
    let numbered = rest.chars().all(|c| c.is_ascii_digit() || c == 'n' || c == 'p' || c == 'c');
    let starts = rest.chars().next().is_none_or(|c| c.is_ascii_digit());
    letters <= 3 && numbered && starts && (letters > 0 || !rest.is_empty())
}

#[cfg(test)]
mod tests;
