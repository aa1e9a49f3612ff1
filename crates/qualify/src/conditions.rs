//! Conditions of a qualification: what is known of the device and of the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What kind of thing the device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// A block device.
    BlockDevice,
    /// A file.
    File,
    /// An NBD export.
    Nbd,
    /// A device of the catalogue, in virtual time.
    Simulated,
}

/// What the device says of its write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteCache {
    /// Completed writes may be lost before a flush.
    Volatile,
    /// Completed writes are durable; a flush has nothing to do.
    Durable,
}

/// Whether completed writes outlive a power cut without a flush, as documents have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// User data in flight is protected.
    UserData,
    /// Only the mapping table is.
    MapOnly,
    /// Nothing is.
    No,
}

/// What is known before anything is measured. `None` means unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// The name that the operator gave.
    pub target: String,
    /// What it is.
    pub kind: TargetKind,
    /// Its size.
    pub size_bytes: u64,
    /// Smallest unit of a command.
    pub block_bytes: u32,
    /// Maker and model.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// Firmware.
    pub firmware: Option<String>,
    /// Write cache, as the device says.
    pub write_cache: Option<WriteCache>,
    /// Whether the kernel sends FUA to it.
    pub takes_fua: Option<bool>,
    /// Power-loss protection, and who says so.
    pub protection: Option<Protection>,
    /// Who says so.
    pub protection_source: Option<String>,
    /// Host bytes that it is rated for.
    pub rated_bytes: Option<f64>,
    /// Its price in dollars.
    pub price_usd: Option<f64>,
    /// Of a simulated device: how many times smaller its model is.
    pub scale: Option<f64>,
    /// Everything else: kernel, scheduler, cores, program.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

impl Conditions {
    /// Which of the details is the number of a partition; a whole disk has none.
    pub const PARTITION: &str = "partition";

    /// Whether `other` is of the same device, as far as both can tell. A disk with a serial number
    /// may have another name: Linux gives names in the order in which it finds disks, anew at
    /// each start.
    #[must_use]
    pub fn is_same_device(&self, other: &Self) -> bool {
        let identity = |c: &Self| {
            let is_known = c.kind == TargetKind::BlockDevice && c.serial.is_some();
            (
                (!is_known).then(|| c.target.clone()),
                c.kind,
                c.size_bytes,
                c.block_bytes,
                c.model.clone(),
                c.serial.clone(),
                c.details.get(Self::PARTITION).cloned(),
            )
        };
        identity(self) == identity(other)
    }

    /// The name for headings: the model, else the target.
    #[must_use]
    pub fn label(&self) -> String {
        self.model.clone().unwrap_or_else(|| self.target.clone())
    }
}
