//! Memory that this process may still take.
//!
//! Enters: what the kernel says of the machine, of the process's control group and of its limits,
//! as text. Leaves: one number of bytes. Always holds: a limit that cannot be read does not count.
//! Called by: the opener of pools, so that an import refuses a map that does not fit.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_pool::Memory;
use forebay_rt::Worker;

use crate::files;

/// The smallest of what the machine, the control groups and the process's limits leave; `None` when
/// nothing is known.
#[must_use]
pub fn free_memory_bytes() -> Option<u64> {
    let process = Process::of(&text("/proc/self/status"));
    let machine = field(&text("/proc/meminfo"), "MemAvailable:");
    let limits = process.left_of(&text("/proc/self/limits"));
    let groups = groups_of(&text("/proc/self/cgroup"));
    let groups = groups.iter().filter_map(|group| group.left_bytes(&|path| text(path)));
    machine.into_iter().chain(limits).chain(groups).min()
}

/// Bytes that this process may take in all: what the machine has, or the smallest limit of the
/// control groups and of the process. `None` when nothing is known.
#[must_use]
pub fn memory_bytes() -> Option<u64> {
    let machine = field(&text("/proc/meminfo"), "MemTotal:");
    let limits = limits_of(&text("/proc/self/limits"));
    let groups = groups_of(&text("/proc/self/cgroup"));
    let groups = groups.iter().filter_map(|group| group.limit_bytes(&|path| text(path)));
    machine.into_iter().chain(limits.into_iter().flatten()).chain(groups).min()
}

/// Both, counted on a thread of its own: control groups make the kernel sum up for milliseconds.
/// The thread stays, because a process near its limit gets no new one.
pub async fn count() -> Memory {
    static COUNTER: OnceLock<Option<Worker>> = OnceLock::new();
    let count = || Memory { free_bytes: free_memory_bytes(), all_bytes: memory_bytes() };
    let counted = match COUNTER.get_or_init(|| Worker::start("memory-count")) {
        Some(worker) => worker.run(count).await,
        None => None,
    };
    counted.unwrap_or_else(count)
}

/// The text of a file, empty if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    let mut text = String::new();
    let read = files::open_to_read(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_or(String::new(), |_| text)
}

/// Bytes of a line such as `MemAvailable:  1024 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The number after a word of a line such as `total_rss 4096`.
fn counter(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(|line| line.split_once(' '));
    lines.find_map(|line| line.filter(|(word, _)| *word == name))?.1.trim().parse().ok()
}

/// What the process has taken.
#[derive(Default)]
struct Process {
    anonymous_bytes: u64,
    data_bytes: u64,
    size_bytes: u64,
}

impl Process {
    fn of(status: &str) -> Self {
        let get = |name| field(status, name).unwrap_or(0);
        Self {
            anonymous_bytes: get("RssAnon:"),
            data_bytes: get("VmData:"),
            size_bytes: get("VmSize:"),
        }
    }

    /// What its limits leave. The allocator takes address space from the kernel long before it is
    /// used, so pages in use count, and not all of `VmData`.
    fn left_of(&self, limits: &str) -> Vec<u64> {
        let [data, space] = limits_of(limits);
        let unused = self.data_bytes.saturating_sub(self.anonymous_bytes);
        let data = data.map(|limit| limit.saturating_sub(self.anonymous_bytes));
        let used = self.size_bytes.saturating_sub(unused);
        let space = space.map(|limit| limit.saturating_sub(used));
        data.into_iter().chain(space).collect()
    }
}

/// The limits of a process on its data and on its address space.
fn limits_of(limits: &str) -> [Option<u64>; 2] {
    ["Max data size", "Max address space"].map(|name| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    })
}

/// A control group that may have a limit.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    folder: PathBuf,
    /// Names of the files of limit and of counters, and the counter of memory that cannot be
    /// reclaimed.
    files: [&'static str; 3],
}

const VERSION_1: [&str; 3] = ["memory.limit_in_bytes", "memory.stat", "total_rss"];
const VERSION_2: [&str; 3] = ["memory.max", "memory.stat", "anon"];

/// The groups of `/proc/self/cgroup` that count memory, from the innermost outwards.
fn groups_of(list: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in list.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, files) = match kinds {
            "" => ("/sys/fs/cgroup", VERSION_2),
            kinds if kinds.split(',').any(|kind| kind == "memory") => {
                ("/sys/fs/cgroup/memory", VERSION_1)
            }
            _ => continue,
        };
        let inner = Path::new(path.trim_start_matches('/'));
        groups
            .extend(inner.ancestors().map(|at| Group { folder: Path::new(root).join(at), files }));
    }
    groups
}

impl Group {
    fn limit_bytes(&self, read: &dyn Fn(&Path) -> String) -> Option<u64> {
        // "max" is no number, and is no limit.
        read(&self.folder.join(self.files[0])).trim().parse().ok()
    }

    fn left_bytes(&self, read: &dyn Fn(&Path) -> String) -> Option<u64> {
        let [_, counters, used] = self.files;
        let limit = self.limit_bytes(read)?;
        let used = counter(&read(&self.folder.join(counters)), used)?;
        Some(limit.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests;
