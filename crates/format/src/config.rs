//! The configuration of a pool: its devices, groups, log, volumes and properties.
//!
//! Commands change it; writes of clients do not. It is JSON inside a
//! [`crate::label::ConfigEnvelope`], so that a person can read it off a device, and a newer program
//! can add fields.

use std::collections::BTreeMap;

use forebay_units::Layout;
use serde::{Deserialize, Serialize};

use crate::{FormatError, FormatFlaw};

/// How a member is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberUse {
    /// In use.
    #[default]
    Online,
    /// Taken out by the operator.
    Offline,
    /// Taken out after errors.
    Faulted,
}

/// A device of a group or of a log mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberConfig {
    /// Id within the pool, never reused.
    pub device: u32,
    /// The path where it was last found. The label identifies a device, not this path.
    pub path: String,
    /// Its size when it joined.
    pub size_bytes: u64,
    /// How it is used.
    #[serde(default)]
    pub state: MemberUse,
    /// Segments that were last written in this transaction group or later are missing on it.
    #[serde(default)]
    pub stale_since: Option<u64>,
    /// Ranges of segments (first, one past the last) that are missing on it in any case.
    #[serde(default, with = "crate::ranges")]
    pub stale: Vec<(u32, u32)>,
    /// The device that replaces it, while the replacement runs.
    #[serde(default)]
    pub replacement: Option<Box<MemberConfig>>,
}

/// A group of data devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// How it distributes its data.
    pub layout: Layout,
    /// Bytes of a column in a row.
    pub unit_bytes: u64,
    /// Bytes of a segment on one device.
    pub column_bytes: u64,
    /// Where the segments begin on each device.
    pub data_start_bytes: u64,
    /// The first segment's id.
    pub first_segment: u32,
    /// How many segments.
    pub segments: u32,
    /// The devices, in column order.
    pub members: Vec<MemberConfig>,
}

/// A ring of the log: a region on one device, or the same on the sides of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingConfig {
    /// Index of the ring in the log, never reused within an epoch.
    pub ring: u32,
    /// Bytes of the ring.
    pub len_bytes: u64,
    /// Its offset on each side.
    pub start_bytes: u64,
    /// The sides. For a log in the pool: data devices.
    pub sides: Vec<MemberConfig>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeConfig {
    /// Id within the pool, never reused.
    pub id: u32,
    /// Name without the pool's.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Whether the volume is thin: no space is reserved for it.
    pub sparse: bool,
    /// The snapshot that the volume is a clone of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u32>,
    /// Other volumes that wrote blocks which it may have since a promotion: checksums bind these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writers: Vec<u32>,
    /// Properties that were set.
    pub properties: BTreeMap<String, String>,
}

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScanKind {
    /// Reads and checks everything.
    Scrub,
    /// Rebuilds what members miss.
    Resilver,
}

impl ScanKind {
    /// The word in listings and on media.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
        }
    }
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanPhase {
    /// It runs.
    #[serde(rename = "in progress")]
    InProgress,
    /// The operator paused it; it can continue.
    #[serde(rename = "paused")]
    Paused,
    /// It has read everything.
    #[serde(rename = "completed")]
    Completed,
    /// It ended early.
    #[serde(rename = "stopped")]
    Stopped,
}

/// The progress of a scrub or resilver when the configuration was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanConfig {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanPhase,
    /// Seconds since 1970 when it began.
    pub started_at: u64,
    /// Seconds that it took.
    pub elapsed_secs: u64,
    /// Bytes scanned.
    pub done_bytes: u64,
    /// Bytes to scan in all.
    pub total_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
    /// The segment at which a scrub continues.
    pub next_segment: u32,
}

/// An import of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerConfig {
    /// The nonce of its roots.
    pub nonce: u64,
    /// The last root before the import's own roots.
    pub after: u64,
}

/// The imports of the pool, one after the other. They tell devices that were absent from devices
/// that another process went on writing (split-brain).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The last imports, oldest first.
    pub owners: Vec<OwnerConfig>,
    /// Nonces of imports that the operator abandoned: devices with their roots do not count.
    pub apart: Vec<u64>,
}

impl Lineage {
    fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.apart.is_empty()
    }
}

/// The error log: blocks whose data is known to be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostConfig {
    /// Volume, first block, how many.
    pub runs: Vec<(u32, u64, u64)>,
    /// How many more blocks there are beyond `runs`.
    pub more: u64,
}

impl LostConfig {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.more == 0
    }
}

/// I/O statistics of a pool when the configuration was written, beyond the counters of its roots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiguresConfig {
    /// By device: reads, bytes read, writes, bytes written, writes that began where the one before
    /// ended, flushes, discards, bytes discarded.
    pub devices: BTreeMap<u32, [u64; 8]>,
    /// Latencies of FUA writes: nanoseconds, and how many writes took about that long.
    pub fua: Vec<(u64, u64)>,
    /// The same for flushes.
    pub flush: Vec<(u64, u64)>,
    /// The same for reads.
    pub read: Vec<(u64, u64)>,
}

impl FiguresConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A hot spare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareConfig {
    /// Its path.
    pub path: String,
    /// Its size when it was added.
    pub size_bytes: u64,
}

/// A cache device. Its header says which pool it belongs to, not a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// Id within the pool, never reused.
    pub device: u32,
    /// The path where it was last found.
    pub path: String,
    /// Its size when it was added.
    pub size_bytes: u64,
    /// How it is used.
    #[serde(default)]
    pub state: MemberUse,
    /// The nonce in its header.
    pub nonce: u64,
    /// Seconds since 1970 when it was added.
    pub added_at: u64,
}

/// The configuration of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// The pool's name.
    pub name: String,
    /// The pool's id.
    pub guid: u64,
    /// Counts up with each change.
    pub generation: u64,
    /// Seconds since 1970 when it was made.
    pub created_at: u64,
    /// Data groups.
    pub groups: Vec<GroupConfig>,
    /// Bytes on each data device that are reserved for a log in the pool, right after the label.
    pub reserve_bytes: u64,
    /// Log devices; empty when the log is in the pool.
    pub logs: Vec<RingConfig>,
    /// The rings that the log is on now, on log devices or in the pool. They change only together
    /// with the root that starts the log on them.
    #[serde(default)]
    pub log_rings: Vec<RingConfig>,
    /// Devices that take the place of members that fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<SpareConfig>,
    /// Devices that hold blocks which are read often.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheConfig>,
    /// Properties that were set.
    pub properties: BTreeMap<String, String>,
    /// Volumes by id.
    pub volumes: Vec<VolumeConfig>,
    /// The id that the next device gets.
    pub next_device: u32,
    /// The id that the next volume gets.
    pub next_volume: u32,
    /// The last commands, oldest first.
    pub history: Vec<String>,
    /// The running scan, or the last one.
    #[serde(default)]
    pub scan: Option<ScanConfig>,
    /// Seconds since 1970 when the last scrub began; 0 if none has.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub scrubbed_at: u64,
    /// Its imports.
    #[serde(default, skip_serializing_if = "Lineage::is_empty")]
    pub lineage: Lineage,
    /// Its error log.
    #[serde(default, skip_serializing_if = "LostConfig::is_empty")]
    pub lost: LostConfig,
    /// Its I/O statistics.
    #[serde(default, skip_serializing_if = "FiguresConfig::is_empty")]
    pub figures: FiguresConfig,
    /// Set when the pool was destroyed: its devices are free for another.
    #[serde(default)]
    pub destroyed: bool,
}

impl PoolConfig {
    /// As JSON.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data becomes JSON")
    }

    /// From JSON.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        serde_json::from_slice(bytes).map_err(|e| {
            FormatError::new("configuration", FormatFlaw::Json { text: e.to_string() })
        })
    }

    /// Every data member with its replacement, and the replacements of that.
    pub fn data_members(&self) -> impl Iterator<Item = &MemberConfig> {
        self.groups
            .iter()
            .flat_map(|g| &g.members)
            .flat_map(|m| std::iter::successors(Some(m), |m| m.replacement.as_deref()))
    }
}
