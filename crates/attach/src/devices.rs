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

/// The part of the kernel that a volume is attached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Driver {
    /// The NBD client.
    Nbd,
    /// The ublk driver.
    Ublk,
}

impl Driver {
    /// The name of a device of this driver.
    #[must_use]
    pub fn device_name(self, index: u32) -> String {
        match self {
            Self::Nbd => format!("nbd{index}"),
            Self::Ublk => format!("ublkb{index}"),
        }
    }
}

/// A device that a volume is attached as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its path, such as `/dev/nbd0`.
    pub path: PathBuf,
    /// What it is attached by.
    pub driver: Driver,
    /// Its number at the driver.
    pub index: u32,
    /// Its volume.
    pub identity: Identity,
    /// Its size as the kernel has it.
    pub size_bytes: u64,
    /// Whether the kernel refuses writes.
    pub read_only: bool,
}

impl System {
    /// The devices that volumes are attached as by NBD, by their numbers. None when there is no
    /// module.
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
            all.extend(self.shown(Driver::Nbd, index, identity));
        }
        all.sort_by_key(|device| device.index);
        Ok(all)
    }

    /// A device as `/sys/block` shows it.
    pub(crate) fn shown(&self, driver: Driver, index: u32, identity: Identity) -> Option<Attached> {
        let name = driver.device_name(index);
        let folder = self.sys.join("block").join(&name);
        let sectors: u64 = number(&folder.join("size"))?;
        let read_only = number(&folder.join("ro")) == Some(1u8);
        let (path, size_bytes) = (self.dev.join(name), sectors * SECTOR_BYTES);
        Some(Attached { path, driver, index, identity, size_bytes, read_only })
    }

    /// Whether the kernel's NBD client is loaded.
    #[must_use]
    pub fn has_client(&self) -> bool {
        self.sys.join("module/nbd").exists()
    }

    /// Whether the kernel's ublk driver is loaded.
    #[must_use]
    pub fn has_ublk(&self) -> bool {
        self.dev.join("ublk-control").exists()
    }

    /// Whether the NBD device with this number is attached, to whatever.
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
