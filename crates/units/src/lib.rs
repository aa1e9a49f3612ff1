#![doc = include_str!("../README.md")]

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

mod layout;
mod size;

pub use layout::Layout;
pub use size::{ParseSizeError, SizeFlaw, format_bytes, parse_bytes};

/// Bytes in a logical block: the unit of mapping, checksums and allocation.
pub const BLOCK_BYTES: u64 = 4096;
/// [`BLOCK_BYTES`] as a `usize`, for slices.
pub const BLOCK_LEN: usize = 4096;
/// The smallest unit a client may address.
pub const SECTOR_BYTES: u64 = 512;

macro_rules! newtype {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        newtype!($(#[$doc])* $name($inner));

        impl $name {
            /// The value after this one. Panics on overflow: an id space that wraps is a bug.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.checked_add(1).expect(concat!(stringify!($name), " overflow")))
            }
        }
    };
}

id!(
    /// A 4 KiB block number within a volume.
    Lba(u64)
);
newtype!(
    /// A pool's id, drawn when it is created.
    PoolGuid(u64)
);
newtype!(
    /// One owner of a pool: drawn anew at each import.
    OwnerNonce(u64)
);
id!(
    /// A transaction group. Group 0 never existed; the first open group is 1.
    TxgId(u64)
);
id!(
    /// A committed root. Every transaction group is committed by one; roots that only move blocks
    /// lie between.
    CommitId(u64)
);
id!(
    /// Position of a frame in the intent log's one sequence, counted from 1 for the pool's life.
    FrameSeq(u64)
);
id!(
    /// A segment of the main store, counted over all groups of the pool.
    SegmentId(u32)
);
id!(
    /// A volume of a pool; never reused within the pool.
    VolumeId(u32)
);
id!(
    /// A device of a pool (data or log); never reused within the pool.
    DeviceId(u32)
);

/// Where a block lies in the main store: 20 bits of segment, 20 bits of block within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockAddr(u64);

impl BlockAddr {
    /// Bits of an address on disk.
    pub const BITS: u32 = 40;
    /// Segments a pool can have.
    pub const MAX_SEGMENTS: u32 = 1 << 20;
    /// Blocks a segment can have.
    pub const MAX_BLOCKS: u32 = 1 << 20;

    /// The address of block `block` of `segment`. Panics when either is out of range.
    #[must_use]
    pub fn new(segment: SegmentId, block: u32) -> Self {
        assert!(segment.0 < Self::MAX_SEGMENTS && block < Self::MAX_BLOCKS, "address out of range");
        Self(u64::from(segment.0) << 20 | u64::from(block))
    }

    /// From the 40-bit on-disk value. Higher bits must be zero.
    #[must_use]
    pub fn from_raw(raw: u64) -> Self {
        assert!(raw >> Self::BITS == 0, "address out of range");
        Self(raw)
    }

    /// The 40-bit on-disk value.
    #[must_use]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The segment.
    #[must_use]
    pub fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 20) as u32)
    }

    /// The block within the segment.
    #[must_use]
    pub fn block(self) -> u32 {
        (self.0 & 0xf_ffff) as u32
    }

    /// The address `blocks` further in the same segment.
    #[must_use]
    pub fn plus(self, blocks: u32) -> Self {
        Self::new(self.segment(), self.block() + blocks)
    }
}

impl fmt::Display for BlockAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} block {}", self.segment(), self.block())
    }
}

/// A span of time or an instant of the runtime's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time.
    pub const ZERO: Nanos = Nanos(0);
    /// From microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Nanos(us * 1_000)
    }
    /// From milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }
    /// From seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Nanos(s * 1_000_000_000)
    }
    /// In seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The span from `earlier` to `self`, zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

/// A hash map whose order depends on its contents alone.
#[allow(clippy::disallowed_types)]
pub type FixedMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FixedHasher>>;
/// A hash set whose order depends on its contents alone.
#[allow(clippy::disallowed_types)]
pub type FixedSet<K> = std::collections::HashSet<K, BuildHasherDefault<FixedHasher>>;

/// A multiply-and-rotate hasher with no random state; for in-memory tables of trusted keys only.
#[derive(Clone, Copy, Default)]
pub struct FixedHasher(u64);

impl Hasher for FixedHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, v: u32) {
        self.write_u64(u64::from(v));
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(23) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

#[cfg(test)]
mod tests;
