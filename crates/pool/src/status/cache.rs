//! Status of the read cache and of cache devices.

use serde::{Deserialize, Serialize};

/// The read cache in memory: its size, and counts of blocks of 4 KiB since import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheStats {
    /// What leaves when it is full.
    pub policy: String,
    /// Bytes of blocks that it may take by the property `cache_size`.
    pub size_bytes: u64,
    /// Bytes of blocks that it may take now; fewer than `size_bytes` while memory is short.
    pub limit_bytes: u64,
    /// Bytes of blocks that it has.
    pub used_bytes: u64,
    /// Bytes of blocks and index.
    pub memory_bytes: u64,
    /// Blocks that were found.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Misses that a cache of up to twice the size would have had.
    pub ghost_hits: u64,
    /// Blocks that were put into it.
    #[serde(default)]
    pub kept: u64,
    /// Blocks that left because it was full.
    pub evictions: u64,
    /// Blocks that were read ahead of a sequential reader.
    pub read_ahead: u64,
    /// Of those, blocks that left before a client asked for them.
    pub read_ahead_unused: u64,
}

/// A cache device. Counts of blocks of 4 KiB are since import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheDeviceStats {
    /// Its path.
    pub name: String,
    /// Its size when it was added.
    pub size_bytes: u64,
    /// Bytes of blocks that it has. Some may no longer be part of a volume.
    pub used_bytes: u64,
    /// Bytes of memory that its index takes when it is full.
    pub memory_bytes: u64,
    /// Blocks that were read from it.
    pub hits: u64,
    /// Reads that took so long that the main store was asked.
    pub slow_reads: u64,
    /// Blocks that were put on it.
    pub admitted: u64,
    /// Blocks that were not, because the device is slower than they come.
    pub refused_busy: u64,
    /// Blocks that were not, because of `cache_dwpd`.
    pub refused_budget: u64,
    /// Blocks that were on it at the import.
    pub loaded: u64,
    /// Bytes written to it since it was added.
    pub written_bytes: u64,
    /// The same in drive writes.
    pub drive_writes: f64,
    /// The same a day.
    pub drive_writes_per_day: f64,
}
