//! Holders: which process has locked the devices at some paths.
//!
//! What enters: paths of devices. What leaves: the processes that have them locked, by the
//! kernel's list of locks. What always holds: nothing is opened, and no lock is taken.
//! Who calls: commands that wait for a pool that another process has open.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::files;
use crate::path_probe::probe;

/// Bytes of a command line that are shown.
const COMMAND_MAX_BYTES: u64 = 200;

/// A process that has a device locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    pid: u32,
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
        .filter_map(lock_of)
        .filter(|(file, pid)| wanted.contains(file) && *pid != std::process::id())
        .map(|(_, pid)| pid)
        .collect();
    pids.into_iter().map(|pid| Holder { pid, command: command_of(pid) }).collect()
}

/// Device (major, minor) and inode of a locked file.
type LockedFile = (u32, u32, u64);

/// The file and the process of a line of /proc/locks, when it is a whole-file lock that is held:
/// `1: FLOCK  ADVISORY  WRITE 708 fe:01:13 0 EOF`.
fn lock_of(line: &str) -> Option<(LockedFile, u32)> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok()?;
    let mut file = words.next()?.split(':');
    let major = u32::from_str_radix(file.next()?, 16).ok()?;
    let minor = u32::from_str_radix(file.next()?, 16).ok()?;
    Some(((major, minor, file.next()?.parse().ok()?), pid))
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
