//! Features, and the configuration space that a guest reads.

use forebay_device::Geometry;

use crate::limits::{QUEUES_MAX, RANGE_MAX_SECTORS, RANGES_MAX, SEGMENT_MAX_BYTES, SEGMENTS_MAX};

/// What the format calls a sector, whatever the block size is.
pub(crate) const SECTOR_BYTES: u64 = 512;
/// Larger than what any front end reads; the rest is zeros.
pub(crate) const CONFIG_BYTES: usize = 256;
/// The byte that switches the write cache.
pub(crate) const WRITEBACK_OFFSET: usize = 32;

/// Bits of the features of a virtio block device.
pub(crate) mod feature {
    pub(crate) const SIZE_MAX: u64 = 1 << 1;
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WRITEBACK: u64 = 1 << 11;
    pub(crate) const MULTI_QUEUE: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_INDEX: u64 = 1 << 29;
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// What is offered to a guest.
pub(crate) fn features(read_only: bool) -> u64 {
    let common = feature::SIZE_MAX
        | feature::SEG_MAX
        | feature::BLOCK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::CONFIG_WRITEBACK
        | feature::MULTI_QUEUE
        | feature::INDIRECT
        | feature::EVENT_INDEX
        | feature::PROTOCOL
        | feature::VERSION_1;
    if read_only {
        common | feature::READ_ONLY
    } else {
        common | feature::DISCARD | feature::WRITE_ZEROES
    }
}

/// The configuration space.
pub(crate) fn config_space(geometry: &Geometry, has_write_cache: bool) -> [u8; CONFIG_BYTES] {
    let block = geometry.block_bytes.max(SECTOR_BYTES as u32);
    let usable = geometry.size_bytes - geometry.size_bytes % u64::from(block);
    let physical = block.max(4096);
    let align_sectors = geometry.discard_bytes.max(block) / SECTOR_BYTES as u32;
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(usable / SECTOR_BYTES).to_le_bytes());
    put(8, &SEGMENT_MAX_BYTES.to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &block.to_le_bytes());
    put(24, &[(physical / block).trailing_zeros() as u8]);
    put(26, &((physical / block) as u16).to_le_bytes());
    put(WRITEBACK_OFFSET, &[u8::from(has_write_cache)]);
    put(34, &QUEUES_MAX.to_le_bytes());
    put(36, &RANGE_MAX_SECTORS.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &align_sectors.to_le_bytes());
    put(48, &RANGE_MAX_SECTORS.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[1]);
    space
}
