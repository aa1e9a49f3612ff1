//! Holders: what has locked the devices at some paths, or uses a file as a disk.
//!
//! What enters: paths of devices. What leaves: the processes that have them locked, by the
//! kernel's list of locks, and loop devices. What always holds: no device is opened or locked.
//! Who calls: commands that wait for a pool that another process has, or are to overwrite a file.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::path_probe::probe;

/// Bytes of a command line that are shown.
const COMMAND_MAX_BYTES: u64 = 200;

/// A process that has a device locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its command line; empty when it has ended, or is hidden from this user.
    command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "process {}", self.pid),
            command => write!(f, "process {} ({command})", self.pid),
        }
    }
}

/// The other processes that have a device at `paths` locked. Empty when the kernel does not tell.
pub async fn holders(paths: &[String]) -> Vec<Holder> {
    let mut wanted = BTreeSet::new();
    for path in paths {
        if let Ok(Ok(meta)) = probe(path, |path| path.metadata()).await {
            wanted.insert((libc::major(meta.dev()), libc::minor(meta.dev()), meta.ino()));
        }
    }
    let pids: BTreeSet<u32> = read("/proc/locks", 1 << 20)
        .lines()
        .filter_map(|line| lock_of(line, &["FLOCK"]))
        .filter(|(file, pid)| wanted.contains(file) && *pid != std::process::id())
        .map(|(_, pid)| pid)
        .collect();
    pids.into_iter().map(|pid| Holder { pid, command: command_of(pid) }).collect()
}

/// Device (major, minor) and inode of a locked file.
type LockedFile = (u32, u32, u64);

/// The file and the process of a line of /proc/locks, when it is a lock of one of these kinds that
/// is held: `1: FLOCK  ADVISORY  WRITE 708 fe:01:13 0 EOF`. Process 0: the kernel names none.
fn lock_of(line: &str, kinds: &[&str]) -> Option<(LockedFile, u32)> {
    let mut words = line.split_whitespace().skip(1);
    if !kinds.contains(&words.next()?) {
        return None;
    }
    let pid: i64 = words.nth(2)?.parse().ok()?;
    let pid = u32::try_from(pid).unwrap_or(0);
    let mut file = words.next()?.split(':');
    let major = u32::from_str_radix(file.next()?, 16).ok()?;
    let minor = u32::from_str_radix(file.next()?, 16).ok()?;
    Some(((major, minor, file.next()?.parse().ok()?), pid))
}

/// Refuses to overwrite the file at `path` when it is the disk of a loop device, or when a program
/// has parts of it locked, as QEMU has. The kernel guards block devices, but not files.
pub fn refuse_used_file(path: &Path) -> Result<(), Failure> {
    let Ok(meta) = path.metadata() else { return Ok(()) };
    if !meta.is_file() {
        return Ok(());
    }
    let file = (meta.dev(), meta.ino());
    let user = loop_device_of(Path::new("/sys/block"), file).or_else(|| locker_of(file));
    let Some(user) = user else { return Ok(()) };
    let message = format!("{}: the file is in use: {user}", path.display());
    Err(Failure::new(ErrorCode::DeviceInUse, message))
}

/// The loop device whose disk this file (device, inode) is.
fn loop_device_of(folder: &Path, file: (u64, u64)) -> Option<String> {
    let names = std::fs::read_dir(folder).ok()?;
    let is_of_file = |name: &str| {
        let backing = read(&folder.join(name).join("loop/backing_file").to_string_lossy(), 4096);
        let backing = Path::new(backing.trim_end_matches('\n')).metadata();
        backing.is_ok_and(|meta| (meta.dev(), meta.ino()) == file)
    };
    let names = names.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut loops = names.filter(|name| name.starts_with("loop"));
    loops.find(|name| is_of_file(name)).map(|name| format!("/dev/{name} is attached to it"))
}

/// Another process that has a part of this file (device, inode) locked.
fn locker_of((device, inode): (u64, u64)) -> Option<String> {
    const LOCKS_OF_RANGES: [&str; 2] = ["POSIX", "OFDLCK"];
    let wanted = (libc::major(device), libc::minor(device), inode);
    let locks = read("/proc/locks", 1 << 20);
    let mut locks = locks.lines().filter_map(|line| lock_of(line, &LOCKS_OF_RANGES));
    let (_, pid) = locks.find(|(file, pid)| *file == wanted && *pid != std::process::id())?;
    Some(match pid {
        0 => "a program has locked it".to_owned(),
        pid => format!("{} has locked it", Holder { pid, command: command_of(pid) }),
    })
}

fn command_of(pid: u32) -> String {
    let words = read(&format!("/proc/{pid}/cmdline"), COMMAND_MAX_BYTES);
    let mut words: Vec<&str> = words.split('\0').filter(|word| !word.is_empty()).collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or(program);
    }
    words.join(" ")
}

/// At most `max_bytes` of a file of the kernel; nothing when it cannot be read.
fn read(path: &str, max_bytes: u64) -> String {
    let mut bytes = Vec::new();
    let file = files::open_to_read(path);
    let _ = file.and_then(|file| file.take(max_bytes).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
