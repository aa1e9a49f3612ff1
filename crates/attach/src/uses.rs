//! Uses of an attached device: what would break if it were taken away.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::devices::{Attached, System, text};

/// One use of a device or of one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// A file system is mounted.
    Mounted {
        /// Where.
        at: String,
    },
    /// Pages of memory are swapped to it.
    Swap,
    /// Another device lies on it, such as a logical volume.
    Device {
        /// Its name.
        name: String,
    },
    /// A process has it open.
    Open {
        /// The process.
        pid: u32,
        /// Its program.
        program: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { at } => write!(f, "it is mounted at {at}"),
            Self::Swap => f.write_str("it is swap space"),
            Self::Device { name } => write!(f, "the device {name} lies on it"),
            Self::Open { pid, program } => write!(f, "process {pid} ({program}) has it open"),
        }
    }
}

/// The device and its partitions, by path and by number (`MAJOR:MINOR`).
struct Parts {
    paths: Vec<PathBuf>,
    numbers: Vec<String>,
    folders: Vec<PathBuf>,
}

impl System {
    /// The first use of `device` that is found: mounts, swap, devices on it, and then processes
    /// (of this user alone, unless it is root).
    #[must_use]
    pub fn use_of(&self, device: &Attached) -> Option<Use> {
        let parts = self.parts(device);
        self.mount_of(&parts)
            .or_else(|| self.swap_of(&parts))
            .or_else(|| device_on(&parts))
            .or_else(|| self.process_with(&parts))
    }

    fn parts(&self, device: &Attached) -> Parts {
        let name = device.driver.device_name(device.index);
        let folder = self.sys.join("block").join(&name);
        let mut parts =
            Parts { paths: vec![device.path.clone()], numbers: Vec::new(), folders: Vec::new() };
        parts.folders.push(folder.clone());
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let partition = entry.file_name().to_string_lossy().into_owned();
            if partition.starts_with(&format!("{name}p")) {
                parts.paths.push(self.dev.join(&partition));
                parts.folders.push(entry.path());
            }
        }
        let numbers = parts.folders.iter().filter_map(|folder| text(&folder.join("dev")));
        parts.numbers = numbers.map(|number| number.trim().to_owned()).collect();
        parts
    }

    /// A line of mountinfo: `36 35 98:0 /root /at OPTIONS [FIELDS] - TYPE SOURCE OPTIONS`.
    fn mount_of(&self, parts: &Parts) -> Option<Use> {
        let table = text(&self.proc.join("self/mountinfo"))?;
        let line = table.lines().find(|line| {
            let source = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').nth(1));
            let number = line.split(' ').nth(2).unwrap_or_default();
            parts.numbers.iter().any(|known| known == number)
                || source.is_some_and(|source| parts.paths.iter().any(|p| p == Path::new(source)))
        })?;
        Some(Use::Mounted { at: line.split(' ').nth(4)?.replace("\\040", " ") })
    }

    fn swap_of(&self, parts: &Parts) -> Option<Use> {
        let table = text(&self.proc.join("swaps"))?;
        let mut files = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        files.any(|file| parts.paths.iter().any(|p| p == Path::new(file))).then_some(Use::Swap)
    }

    fn process_with(&self, parts: &Parts) -> Option<Use> {
        for entry in std::fs::read_dir(&self.proc).ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let files = std::fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
            let mut open = files.filter_map(|file| std::fs::read_link(file.path()).ok());
            if open.any(|path| parts.paths.contains(&path)) {
                let program = text(&entry.path().join("comm")).unwrap_or_default();
                return Some(Use::Open { pid, program: program.trim().to_owned() });
            }
        }
        None
    }
}

fn device_on(parts: &Parts) -> Option<Use> {
    let holders = |folder: &PathBuf| std::fs::read_dir(folder.join("holders")).ok()?.next();
    let holder = parts.folders.iter().find_map(holders)?.ok()?;
    Some(Use::Device { name: holder.file_name().to_string_lossy().into_owned() })
}
