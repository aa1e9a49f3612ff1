//! Attached devices, as `/sys/block` shows them.

use std::io;
use std::path::{Path, PathBuf};

use crate::identity::Identity;

/// Bytes of a sector in `/sys`.
const SECTOR_BYTES: u64 = 512;

/// Where the kernel shows its devices and processes.
#[derive(Clone, Debug)]
pub struct System {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/dev`.
    pub dev: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), dev: "/dev".into() }
    }
}

/// A device that a volume is attached as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its path, such as `/dev/nbd0`.
    pub path: PathBuf,
    /// Its number.
    pub index: u32,
    /// Its volume.
    pub identity: Identity,
    /// Its size as the kernel has it.
    pub size_bytes: u64,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
}

impl System {
    /// The devices that volumes are attached as, by their numbers. None when there is no module.
    pub fn attached(&self) -> io::Result<Vec<Attached>> {
        let mut all = Vec::new();
        if !self.has_client() {
            return Ok(all);
        }
        for entry in std::fs::read_dir(self.sys.join("block"))? {
            let folder = entry?.path();
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(index) = name.strip_prefix("nbd").and_then(|n| n.parse().ok()) else {
                continue;
            };
            // The kernel removes the file when the device is taken away.
            let Some(text) = text(&folder.join("backend")) else { continue };
            let Some(identity) = Identity::decode(&text) else { continue };
            let sectors: u64 = number(&folder.join("size")).unwrap_or(0);
            all.push(Attached {
                path: self.dev.join(name),
                index,
                identity,
                size_bytes: sectors * SECTOR_BYTES,
                read_only: number(&folder.join("ro")) == Some(1u8),
            });
        }
        all.sort_by_key(|device| device.index);
        Ok(all)
    }

    /// Whether the kernel's NBD client is loaded.
    #[must_use]
    pub fn has_client(&self) -> bool {
        self.sys.join("module/nbd").exists()
    }

    /// Whether the device with this number is attached, to whatever.
    #[must_use]
    pub fn is_attached(&self, index: u32) -> bool {
        self.sys.join(format!("block/nbd{index}/pid")).exists()
    }
}

pub(crate) fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.trim().parse().ok()
}
