//! Status: what a pool shows of itself. Every listing of the command line consists of these types.

mod cache;
mod condition;
pub(crate) mod events;
mod log_memory;
pub(crate) mod objects;
mod pulse;
pub(crate) mod report;
mod services;
mod space;
pub(crate) mod stats;
mod volume;
pub(crate) mod volume_times;

use std::collections::BTreeMap;

pub use forebay_format::config::{ScanKind, ScanPhase};
use forebay_units::Layout;
use serde::{Deserialize, Serialize};

use crate::import::error::ImportErrorKind;

pub use cache::{CacheDeviceStats, CacheStats};
pub use condition::PoolCondition;
pub use events::{EventKind, EventRecord, ImportRemark, PoolEvent};
pub use log_memory::{LogMemory, Survives};
pub use objects::{
    FailingRequestStatus, ObjectsStatus, OutageReserve, ReserveLimit, StoreCost, StoreSummary,
};
pub use pulse::{Pulse, Timings};
pub use services::{CompressionStats, DedupStats};
pub use space::VdevSpace;
pub use volume::{SnapshotStatus, VolumeStatus};

/// Version of the JSON of these types. It is raised when a field changes its meaning.
pub const STATUS_VERSION: u32 = 1;

/// Health of a pool, a group or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Health {
    /// Everything works.
    Online,
    /// Works, with less redundancy than it was made with.
    Degraded,
    /// Taken offline by the operator.
    Offline,
    /// Taken out of use after errors.
    Faulted,
    /// Could not be opened.
    Unavail,
    /// Refuses writes: too many devices are gone.
    Suspended,
}

impl Health {
    /// As zpool prints it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Health::Online => "ONLINE",
            Health::Degraded => "DEGRADED",
            Health::Offline => "OFFLINE",
            Health::Faulted => "FAULTED",
            Health::Unavail => "UNAVAIL",
            Health::Suspended => "SUSPENDED",
        }
    }
}

/// What keeps other machines from writing to a device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// The heartbeat: an owner that was replaced reads it and stops.
    Heartbeat,
    /// A persistent reservation as well: the device refuses the writes of other machines.
    Reservation,
}

/// What a node of the device tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VdevKind {
    /// A device and its replacement.
    Replacing,
    /// A device.
    Device,
    /// A group of data devices, or a mirror of log devices.
    #[serde(untagged)]
    Group(Layout),
}

impl VdevKind {
    /// The word in listings and in the names of groups.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replacing => "replacing",
            Self::Device => "device",
            Self::Group(layout) => layout.as_str(),
        }
    }
}

/// What the operator should know of a device. The pool gives the first three. The others say why a
/// device is FAULTED or UNAVAIL; the program that shows the status finds them out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VdevNote {
    /// It is being rebuilt.
    Resilvering,
    /// It has to be rebuilt.
    AwaitingResilver,
    /// Too many of its operations failed or gave wrong data.
    TooManyErrors,
    /// Nothing is at its path.
    Missing,
    /// The user may not open it.
    NoPermission,
    /// It cannot be opened.
    NotOpened {
        /// Why, in the system's words.
        error: String,
    },
    /// Its file system or the device does not answer.
    NoAnswer,
    /// Another process has it.
    InUse,
    /// It has no label of a pool.
    NoLabel,
    /// It has the label of another pool.
    OtherPool {
        /// That pool's name.
        name: String,
    },
    /// It failed earlier, and nothing is wrong with it now.
    FailedEarlier,
    /// It was away, and is there again.
    Returned,
}

/// A node of the device tree of `pool status`, with its children.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VdevStatus {
    /// `raidz1-0`, `mirror-1`, `replacing-0`, or a device's path.
    pub name: String,
    /// What it is.
    pub kind: VdevKind,
    /// Its health.
    pub state: Health,
    /// Read errors that reached this level since import.
    pub read_errors: u64,
    /// Write errors that reached this level since import.
    pub write_errors: u64,
    /// Checksum errors that reached this level since import.
    pub checksum_errors: u64,
    /// What the operator should know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<VdevNote>,
    /// What keeps other machines from writing to it. Only of devices that a running pool has open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Protection>,
    /// Of a log device in memory that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<LogMemory>,
    /// Of a device in an object store that is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsStatus>,
    /// Usable bytes (devices: their size).
    pub size_bytes: u64,
    /// Space used, of groups and log devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<VdevSpace>,
    /// Its I/O counts.
    pub io: IoCounts,
    /// Its members.
    pub children: Vec<VdevStatus>,
}

/// Reads, writes, flushes and discards of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Writes that began where the last ended.
    pub sequential_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
}

/// A scrub or resilver, running or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanStatus {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanPhase,
    /// Seconds since 1970 when it began.
    pub started_at: u64,
    /// Seconds that it took or has taken.
    pub elapsed_secs: u64,
    /// Bytes looked at.
    pub done_bytes: u64,
    /// Bytes to look at in all.
    pub total_bytes: u64,
    /// Bytes repaired.
    pub repaired_bytes: u64,
    /// Blocks that could not be repaired.
    pub errors: u64,
}

/// `pool status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// The pool's id, for good.
    pub guid: u64,
    /// Overall health.
    pub state: Health,
    /// The last or running scan.
    pub scan: Option<ScanStatus>,
    /// Seconds since 1970 when the last scrub began; 0 if none has.
    #[serde(default)]
    pub scrubbed_at: u64,
    /// Data groups.
    pub groups: Vec<VdevStatus>,
    /// Log devices; empty when the log is in the pool.
    pub logs: Vec<VdevStatus>,
    /// Cache devices. Their health is not the pool's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<VdevStatus>,
    /// Hot spares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<SpareStatus>,
    /// Blocks known lost: `POOL/VOL` and byte offset, at most 100.
    pub lost: Vec<String>,
    /// Count of blocks known lost.
    pub lost_count: u64,
    /// The last committed transaction group.
    pub txg: u64,
    /// Of a pool in an object store: how long durable writes go on without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage_reserve: Option<OutageReserve>,
    /// Of a pool in an object store: what it has there, and what that costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSummary>,
}

/// Whether a spare can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SpareState {
    /// It is there, empty, and held by the pool.
    Avail,
    /// It is missing, in use elsewhere, or not empty.
    Unavail,
}

impl SpareState {
    /// The word in listings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Avail => "AVAIL",
            Self::Unavail => "UNAVAIL",
        }
    }
}

/// A hot spare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareStatus {
    /// Its path.
    pub name: String,
    /// Its size when it was added.
    pub size_bytes: u64,
    /// Whether it can be taken.
    pub state: SpareState,
}

/// `pool list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolSummary {
    /// Name.
    pub name: String,
    /// The pool's id.
    pub guid: u64,
    /// Version of its format.
    #[serde(default)]
    pub format_version: u32,
    /// Bytes that volumes can use, parity and reserve taken off.
    pub size_bytes: u64,
    /// Bytes in use by volumes.
    pub alloc_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Those of them that no volume has set aside.
    #[serde(default)]
    pub available_bytes: u64,
    /// What volumes and snapshots hold, or were promised, beyond `size_bytes`; 0 in a sound pool.
    #[serde(default)]
    pub overdrawn_bytes: u64,
    /// Bytes of the data devices, parity and reserve included, and a mirror as one of its sides:
    /// what `zpool list` calls SIZE.
    #[serde(default)]
    pub raw_size_bytes: u64,
    /// What `alloc_bytes` takes of them, parity included.
    #[serde(default)]
    pub raw_alloc_bytes: u64,
    /// The rest of them.
    #[serde(default)]
    pub raw_free_bytes: u64,
    /// Bytes of volumes and snapshots that refer to de-duplicated contents.
    #[serde(default)]
    pub dedup_referenced_bytes: u64,
    /// Bytes that these contents take, each stored once.
    #[serde(default)]
    pub dedup_stored_bytes: u64,
    /// Bytes of volumes, snapshots and contents that are compressed.
    #[serde(default)]
    pub compressed_referenced_bytes: u64,
    /// Bytes of the packed blocks that hold them.
    #[serde(default)]
    pub compressed_stored_bytes: u64,
    /// Overall health.
    pub health: Health,
    /// Of a pool in an object store: what it has there, and what that costs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreSummary>,
}

/// A count of operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCount {
    /// Operations.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes that went to the media, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaBytes {
    /// Host data, once.
    pub data: u64,
    /// Parity and mirror copies of everything.
    pub parity: u64,
    /// Map journal, footers, superblocks and labels.
    pub metadata: u64,
    /// Live blocks moved by the cleaner.
    pub cleaning: u64,
    /// Zeros that fill a stripe.
    pub padding: u64,
    /// Repairs by reads, scrubs and resilvers.
    pub repair: u64,
    /// Written to log devices, or to the log in the pool.
    pub log: u64,
}

/// Latency of one kind of operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations measured.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90 % were faster.
    pub p90_us: f64,
    /// 99 % were faster.
    pub p99_us: f64,
    /// 99.9 % were faster.
    pub p999_us: f64,
    /// 99.99 % were faster.
    pub p9999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// Host operations and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Reads.
    pub reads: OpCount,
    /// Writes, FUA or not.
    pub writes: OpCount,
    /// Trims and zeroes.
    pub trims: OpCount,
    /// Flushes (no bytes).
    pub flushes: OpCount,
    /// Writes with FUA.
    pub fuas: OpCount,
    /// Writes to the log's devices.
    pub log_writes: OpCount,
    /// Of those, how many began where the last one ended.
    pub log_sequential_writes: u64,
    /// Bytes to the media by cause.
    pub media: MediaBytes,
    /// Segments that the cleaner freed.
    pub segments_cleaned: u64,
}

/// Segments by state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SegmentCounts {
    /// Empty and ready.
    pub free: u64,
    /// Being filled.
    pub open: u64,
    /// Filled.
    pub full: u64,
    /// Those of the open and the filled that are the map journal's.
    #[serde(default)]
    pub journal: u64,
    /// Emptied by the cleaner since import.
    pub cleaned: u64,
    /// Live share of the full ones, 0 to 1.
    pub live_share: f64,
    /// Bytes of data that one segment holds.
    pub segment_bytes: u64,
    /// Those of the free that were emptied and are free with a later root.
    #[serde(default)]
    pub emptied: u64,
    /// Bytes of the full data segments, without their footers.
    #[serde(default)]
    pub held_bytes: u64,
}

/// `pool stats`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolStats {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// Name.
    pub name: String,
    /// Seconds since import.
    pub uptime_secs: f64,
    /// Since import.
    pub since_import: Traffic,
    /// Since the pool was created (as of the last committed group for earlier imports).
    pub since_creation: Traffic,
    /// Media bytes (log left out) divided by host bytes written, since import.
    pub write_amplification: f64,
    /// The same with the log.
    pub write_amplification_with_log: f64,
    /// Segments.
    pub segments: SegmentCounts,
    /// Bytes that the map takes in memory.
    pub map_memory_bytes: u64,
    /// De-duplication.
    #[serde(default)]
    pub dedup: DedupStats,
    /// Compression.
    #[serde(default)]
    pub compression: CompressionStats,
    /// The read cache.
    #[serde(default)]
    pub cache: CacheStats,
    /// The cache devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_devices: Vec<CacheDeviceStats>,
    /// Bytes of footers that are kept in memory, for the checksums of sequential data.
    #[serde(default)]
    pub footer_cache_bytes: u64,
    /// Bytes of data not yet in the main store.
    pub dirty_bytes: u64,
    /// Limit of the former.
    pub dirty_limit_bytes: u64,
    /// Log space in use and in all.
    pub log_used_bytes: u64,
    /// Log space in all.
    pub log_capacity_bytes: u64,
    /// FUA writes.
    pub fua_latency: Latency,
    /// Flushes.
    pub flush_latency: Latency,
    /// Reads.
    pub read_latency: Latency,
    /// FUA writes since the pool was created, to about 6 %. All counts since creation lack the last
    /// ten minutes before each crash, and the last minute before each export.
    #[serde(default)]
    pub fua_latency_since_creation: Latency,
    /// Flushes since the pool was created.
    #[serde(default)]
    pub flush_latency_since_creation: Latency,
    /// Reads since the pool was created.
    #[serde(default)]
    pub read_latency_since_creation: Latency,
    /// Every device by name.
    pub devices: BTreeMap<String, IoCounts>,
    /// Every device by name, since it joined the pool.
    #[serde(default)]
    pub devices_since_creation: BTreeMap<String, IoCounts>,
    /// Seconds that the last import took, and what it replayed.
    pub last_import: ImportReport,
    /// What kept all other work of the server waiting for 500 µs or more since its start, the
    /// longest first.
    #[serde(default)]
    pub long_polls: Vec<LongPoll>,
}

/// Long polls of the tasks that were started at one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LongPoll {
    /// File and line of the source.
    pub place: String,
    /// Polls of 500 µs or more.
    pub count: u64,
    /// Their mean, in microseconds.
    pub mean_us: f64,
    /// The longest, in microseconds.
    pub longest_us: f64,
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Seconds in all.
    pub seconds: f64,
    /// Seconds of log replay.
    pub replay_seconds: f64,
    /// Bytes of map journal read.
    pub map_bytes: u64,
    /// Bytes of log frames read.
    pub log_bytes: u64,
    /// Records replayed.
    pub log_records: u64,
    /// A torn tail, repaired sides, or accepted losses.
    pub remarks: Vec<ImportRemark>,
}

/// Whether and how a pool can be imported, as far as its devices tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Importable {
    /// It was exported, and nothing is missing that an import needs.
    Exported,
    /// It was not exported. An import replays its log, unless another process has the pool.
    NotExported,
    /// A log device is missing, and the import must be told to do without it.
    WithoutLog {
        /// Acknowledged writes are on that device alone.
        loses_writes: bool,
    },
    /// It cannot be imported as it is.
    Refused(ImportErrorKind),
}

/// A pool found on devices, before it is imported.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundPool {
    /// Name.
    pub name: String,
    /// The pool's id.
    pub guid: u64,
    /// What it could be imported as.
    pub state: Health,
    /// Groups, logs and what is missing.
    pub groups: Vec<VdevStatus>,
    /// Log devices.
    pub logs: Vec<VdevStatus>,
    /// Whether and how it can be imported.
    pub importable: Importable,
    /// Paths of the devices that were found.
    pub paths: Vec<String>,
}
