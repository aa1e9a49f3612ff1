//! Cache devices: the header, the footer of a region, and the snapshot of the index.
//!
//! After the header come regions that are written one after the other, in a ring. A region has
//! blocks of the main store and, in its last blocks, a footer that says which. At the end of the
//! device is room for all footers at once: the snapshot that an export leaves.

use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr};

use crate::checksum::crc64;
use crate::label::LABEL_BYTES;
use crate::{Decoder, Encoder, FormatError, FormatFlaw};

const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"FBAYCACH");
const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"FBAYCREG");
const SNAPSHOT_MAGIC: u64 = u64::from_le_bytes(*b"FBAYCSNP");
const VERSION: u32 = 1;

/// Bytes of an entry on media.
pub const CACHE_ENTRY_BYTES: usize = 24;
const FOOTER_HEAD_BYTES: usize = 64;
/// Devices from this size on have large regions.
const LARGE_DEVICE_BYTES: u64 = 1 << 30;
/// Blocks of a region on a large device: as flash likes it, and 0.6 % footer.
const LARGE_REGION_BLOCKS: u32 = 512;
/// The same on a small device, so that it has many.
const SMALL_REGION_BLOCKS: u32 = 16;

/// A block on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Where the block is in the main store.
    pub addr: BlockAddr,
    /// The birth of the segment there.
    pub birth: u64,
    /// The pool's checksum of the block ([`crate::checksum::block_sum`]).
    pub sum: u64,
}

impl CacheEntry {
    fn encode(&self, out: &mut Encoder) {
        out.u64(self.addr.raw()).u64(self.birth).u64(self.sum);
    }

    fn decode(input: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let addr = input.u64()?;
        if addr >> BlockAddr::BITS != 0 {
            return Err(
                input.error(FormatFlaw::Reserved { found: (addr >> BlockAddr::BITS) as u32 })
            );
        }
        Ok(Self { addr: BlockAddr::from_raw(addr), birth: input.u64()?, sum: input.u64()? })
    }
}

/// The header of a cache device, at its begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheHeader {
    /// The pool.
    pub pool: u64,
    /// The pool's name when the device was added.
    pub pool_name: String,
    /// The device's id within the pool.
    pub device: u32,
    /// Chosen when the device was added. Regions of an earlier use have another.
    pub nonce: u64,
    /// Where regions and snapshot lie.
    pub shape: CacheShape,
}

impl CacheHeader {
    /// A block of 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(HEADER_MAGIC).u32(VERSION).u32(self.device).u64(self.pool).u64(self.nonce);
        out.u32(self.shape.region_blocks).u32(self.shape.regions).string(&self.pool_name);
        let mut bytes = out.finish();
        bytes.resize(BLOCK_LEN - 8, 0);
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From a block of 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("header of a cache device", bytes);
        if input.u64()? != HEADER_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        check_version(&mut input)?;
        check_last_sum(&input, bytes)?;
        let (device, pool, nonce) = (input.u32()?, input.u64()?, input.u64()?);
        let shape = CacheShape { region_blocks: input.u32()?, regions: input.u32()? };
        if ![LARGE_REGION_BLOCKS, SMALL_REGION_BLOCKS].contains(&shape.region_blocks) {
            return Err(input.error(FormatFlaw::Reserved { found: shape.region_blocks }));
        }
        Ok(Self { pool, pool_name: input.string()?, device, nonce, shape })
    }
}

fn check_version(input: &mut Decoder<'_>) -> Result<(), FormatError> {
    let found = input.u32()?;
    if found != VERSION {
        return Err(input.error(FormatFlaw::Version { expected: VERSION, found }));
    }
    Ok(())
}

/// Checks the sum in the last eight bytes of a block.
fn check_last_sum(input: &Decoder<'_>, bytes: &[u8]) -> Result<(), FormatError> {
    if bytes.len() != BLOCK_LEN {
        let (expected_bytes, found_bytes) = (BLOCK_LEN, bytes.len());
        return Err(input.error(FormatFlaw::Length { expected_bytes, found_bytes }));
    }
    let (body, sum) = bytes.split_at(BLOCK_LEN - 8);
    let stored = u64::from_le_bytes(sum.try_into().expect("eight bytes"));
    input.check_sum(stored, crc64(body))
}

/// Where regions and snapshot of a cache device lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Blocks of a region, its footer included.
    pub region_blocks: u32,
    /// How many regions.
    pub regions: u32,
}

impl CacheShape {
    /// The shape of a device of `size_bytes`.
    #[must_use]
    pub fn of(size_bytes: u64) -> Self {
        let large = size_bytes >= LARGE_DEVICE_BYTES;
        let region_blocks = if large { LARGE_REGION_BLOCKS } else { SMALL_REGION_BLOCKS };
        let mut shape = Self { region_blocks, regions: 0 };
        let room_bytes = size_bytes.saturating_sub(LABEL_BYTES + BLOCK_BYTES);
        // Positions of blocks have 32 bits.
        let most = u64::from(u32::MAX / region_blocks);
        shape.regions =
            (room_bytes / (shape.region_bytes() + shape.footer_bytes())).min(most) as u32;
        shape
    }

    /// Bytes of a region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.region_blocks) * BLOCK_BYTES
    }

    /// Blocks of the main store in a region.
    #[must_use]
    pub fn data_blocks(&self) -> u32 {
        self.region_blocks - self.footer_blocks()
    }

    fn footer_blocks(&self) -> u32 {
        let of_all = FOOTER_HEAD_BYTES + self.region_blocks as usize * CACHE_ENTRY_BYTES;
        let blocks = of_all.div_ceil(BLOCK_LEN) as u32;
        // Blocks of the footer need no entry, which may save one.
        let data = (self.region_blocks - blocks + 1) as usize;
        match FOOTER_HEAD_BYTES + data * CACHE_ENTRY_BYTES <= (blocks as usize - 1) * BLOCK_LEN {
            true => blocks - 1,
            false => blocks,
        }
    }

    /// Bytes of a footer, whole blocks.
    #[must_use]
    pub fn footer_bytes(&self) -> u64 {
        u64::from(self.footer_blocks()) * BLOCK_BYTES
    }

    /// Blocks of the main store that the device can have.
    #[must_use]
    pub fn capacity_blocks(&self) -> u32 {
        self.regions * self.data_blocks()
    }

    /// Where a region begins.
    #[must_use]
    pub fn region_offset_bytes(&self, region: u32) -> u64 {
        LABEL_BYTES + u64::from(region) * self.region_bytes()
    }

    /// Where the footer of a region begins.
    #[must_use]
    pub fn footer_offset_bytes(&self, region: u32) -> u64 {
        self.region_offset_bytes(region) + u64::from(self.data_blocks()) * BLOCK_BYTES
    }

    /// Where the block with position `position` begins. Positions count blocks, and leave out
    /// footers.
    #[must_use]
    pub fn block_offset_bytes(&self, position: u32) -> u64 {
        let (region, block) = (position / self.data_blocks(), position % self.data_blocks());
        self.region_offset_bytes(region) + u64::from(block) * BLOCK_BYTES
    }

    /// Where the header of the snapshot lies; the footers follow it.
    #[must_use]
    pub fn snapshot_offset_bytes(&self) -> u64 {
        self.region_offset_bytes(self.regions)
    }
}

/// The footer of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionFooter {
    /// The device's nonce.
    pub nonce: u64,
    /// Counts up with each region written.
    pub sequence: u64,
    /// The blocks of the region, from its first on.
    pub entries: Vec<Option<CacheEntry>>,
}

impl RegionFooter {
    /// Bytes for the end of a region.
    #[must_use]
    pub fn encode(&self, shape: CacheShape) -> Vec<u8> {
        let mut out = Encoder::new();
        for entry in &self.entries {
            // A block that is no longer known by its entry keeps its place.
            let none = CacheEntry { addr: BlockAddr::from_raw(0), birth: 0, sum: u64::MAX };
            entry.unwrap_or(none).encode(&mut out);
        }
        let body = out.finish();
        let mut head = Encoder::new();
        head.u64(FOOTER_MAGIC).u32(VERSION).u32(self.entries.len() as u32);
        head.u64(self.nonce).u64(self.sequence).u64(crc64(&body));
        let mut bytes = head.finish();
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(FOOTER_HEAD_BYTES, 0);
        bytes.extend_from_slice(&body);
        bytes.resize(shape.footer_bytes() as usize, 0);
        bytes
    }

    /// From the bytes of a footer.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("footer of a cache region", bytes);
        if input.u64()? != FOOTER_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        check_version(&mut input)?;
        let count = input.u32()? as usize;
        let (nonce, sequence, body_sum) = (input.u64()?, input.u64()?, input.u64()?);
        let sum = input.u64()?;
        input.check_sum(sum, crc64(&bytes[..40]))?;
        input.bytes(FOOTER_HEAD_BYTES - 48)?;
        let body = input.bytes(count.saturating_mul(CACHE_ENTRY_BYTES))?;
        input.check_sum(body_sum, crc64(body))?;
        let mut input = Decoder::new("footer of a cache region", body);
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = CacheEntry::decode(&mut input)?;
            entries.push((entry.sum != u64::MAX).then_some(entry));
        }
        Ok(Self { nonce, sequence, entries })
    }
}

/// The header of a snapshot of the index. The footers of all regions follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// The device's nonce.
    pub nonce: u64,
    /// The number that the next region would have got.
    pub next_sequence: u64,
}

impl SnapshotHeader {
    /// A block of 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u64(SNAPSHOT_MAGIC).u32(VERSION).u32(0).u64(self.nonce).u64(self.next_sequence);
        let mut bytes = out.finish();
        bytes.resize(BLOCK_LEN - 8, 0);
        let sum = crc64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From a block of 4096 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("snapshot of a cache index", bytes);
        if input.u64()? != SNAPSHOT_MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        check_version(&mut input)?;
        check_last_sum(&input, bytes)?;
        input.u32()?;
        Ok(Self { nonce: input.u64()?, next_sequence: input.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn regions_footers_and_snapshot_fit_the_device_and_do_not_overlap() {
        for size_bytes in [64 << 20, 100_000_000, 1 << 30, 400 << 30, 20 << 40] {
            let shape = CacheShape::of(size_bytes);
            let last = shape.regions - 1;
            assert!(shape.regions > 0 && shape.region_offset_bytes(0) == LABEL_BYTES);
            let footer_end = shape.footer_offset_bytes(last) + shape.footer_bytes();
            assert_eq!(footer_end, shape.snapshot_offset_bytes());
            let footers = u64::from(shape.regions) * shape.footer_bytes();
            assert!(shape.snapshot_offset_bytes() + BLOCK_BYTES + footers <= size_bytes);
            let full = vec![None; shape.data_blocks() as usize];
            let footer = RegionFooter { nonce: 1, sequence: 2, entries: full };
            assert_eq!(footer.encode(shape).len() as u64, shape.footer_bytes());
        }
        // 509 entries and a head of 64 bytes need three blocks; 15 entries need one.
        assert_eq!(CacheShape::of(1 << 30).data_blocks(), 509);
        assert_eq!(CacheShape::of(64 << 20).data_blocks(), 15);
        let shape = CacheShape::of(64 << 20);
        assert_eq!(shape.block_offset_bytes(15), shape.region_offset_bytes(1));
        assert_eq!(shape.block_offset_bytes(14) + BLOCK_BYTES, shape.footer_offset_bytes(0));
    }

    fn header() -> CacheHeader {
        let shape = CacheShape::of(256 << 20);
        CacheHeader { pool: 7, pool_name: "tank".into(), device: 3, nonce: 99, shape }
    }

    #[test]
    fn headers_round_trip() {
        assert_eq!(CacheHeader::decode(&header().encode()), Ok(header()));
        let snapshot = SnapshotHeader { nonce: 3, next_sequence: 1 << 40 };
        assert_eq!(SnapshotHeader::decode(&snapshot.encode()), Ok(snapshot));
    }

    proptest! {
        #[test]
        fn footers_round_trip(
            entries in prop::collection::vec(
                prop::option::of((0u64..1 << 40, any::<u64>(), 0u64..1 << 40)), 0..=15),
            nonce: u64,
            sequence: u64,
        ) {
            let entry = |(addr, birth, sum)| {
                CacheEntry { addr: BlockAddr::from_raw(addr), birth, sum }
            };
            let entries = entries.into_iter().map(|found| found.map(entry)).collect();
            let footer = RegionFooter { nonce, sequence, entries };
            let bytes = footer.encode(CacheShape::of(64 << 20));
            prop_assert_eq!(RegionFooter::decode(&bytes), Ok(footer));
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0usize..4096, flip in 1u8..=255) {
            let mut bytes = header().encode();
            bytes[at] ^= flip;
            prop_assert!(CacheHeader::decode(&bytes).is_err());
            let snapshot = SnapshotHeader { nonce: 3, next_sequence: 9 };
            let mut bytes = snapshot.encode();
            bytes[at] ^= flip;
            prop_assert!(SnapshotHeader::decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_make_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            count: u32,
        ) {
            let _ = CacheHeader::decode(&bytes);
            let _ = SnapshotHeader::decode(&bytes);
            let _ = RegionFooter::decode(&bytes);
            let footer = RegionFooter { nonce: 1, sequence: 2, entries: Vec::new() };
            let mut whole = footer.encode(CacheShape::of(64 << 20));
            whole[12..16].copy_from_slice(&count.to_le_bytes());
            let head_sum = crc64(&whole[..40]);
            whole[40..48].copy_from_slice(&head_sum.to_le_bytes());
            prop_assert_eq!(RegionFooter::decode(&whole).is_ok(), count == 0);
        }
    }
}
