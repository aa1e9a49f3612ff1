//! Records of the map, as payloads of [`crate::journal`] frames: deltas (what changed) and images
//! (what a leaf holds).
//!
//! Both are absolute: they hold where blocks point to, never a difference. Replaying them in order,
//! from any point that is early enough and any number of times, gives the same map.

use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

use crate::{Decoder, FormatError, MapFlaw};

mod delta;
mod leaf;

pub use delta::{Change, Delta, VolumeDelta};
pub use leaf::{LeafImage, LeafRun, RESERVED_ADDR, decode_leaves, encode_leaves};

/// Blocks in a leaf: 2 MiB of a volume.
pub const LEAF_BLOCKS: u32 = 512;
/// Blocks a volume can have: as many as 32-bit leaf numbers reach (8 PiB).
pub const MAX_VOLUME_BLOCKS: u64 = (LEAF_BLOCKS as u64) << 32;

/// An address in this segment says that a block is a hole, in a map that would otherwise take it
/// from another version of its volume. The blocks of a run of holes have consecutive addresses.
pub const HOLE_SEGMENT: SegmentId = SegmentId(0xf_fffe);
/// An address in this segment says that a block is as in the snapshot that its volume was cloned
/// from.
pub const ORIGIN_SEGMENT: SegmentId = SegmentId(0xf_fffd);

/// The hidden volume that holds each de-duplicated block once. Its block numbers are virtual block
/// numbers: given once and never again, so a number always means the same content. Since version 7
/// of the superblock.
pub const DEDUP_VOLUME: VolumeId = VolumeId(u32::MAX - 1);
/// Addresses in segments from this one up to [`DEDUP_REF_END`] are references to blocks of
/// [`DEDUP_VOLUME`], and no places on media.
pub const DEDUP_REF_SEGMENT: SegmentId = SegmentId(0xc_0000);
/// The first segment after those of references.
pub const DEDUP_REF_END: SegmentId = SegmentId(0xe_0000);
/// Virtual block numbers that a pool can give in its life.
pub const MAX_DEDUP_BLOCKS: u64 =
    ((DEDUP_REF_END.0 - DEDUP_REF_SEGMENT.0) as u64) * BlockAddr::MAX_BLOCKS as u64;

/// The reference to a block of [`DEDUP_VOLUME`]. Panics from [`MAX_DEDUP_BLOCKS`] on.
#[must_use]
pub fn dedup_ref(block: Lba) -> BlockAddr {
    assert!(block.0 < MAX_DEDUP_BLOCKS, "virtual block number {block} is out of range");
    BlockAddr::from_raw(BlockAddr::new(DEDUP_REF_SEGMENT, 0).raw() + block.0)
}

/// The block of [`DEDUP_VOLUME`] that an address refers to, if it is a reference.
#[must_use]
pub fn dedup_block(addr: BlockAddr) -> Option<Lba> {
    let is_ref = (DEDUP_REF_SEGMENT..DEDUP_REF_END).contains(&addr.segment());
    is_ref.then(|| Lba(addr.raw() - BlockAddr::new(DEDUP_REF_SEGMENT, 0).raw()))
}

const WHAT: &str = "map record";
/// First byte of every payload.
const VERSION: u8 = 2;

fn decode_version<'a>(payload: &'a [u8]) -> Result<Decoder<'a>, FormatError> {
    let mut from = Decoder::new(WHAT, payload);
    let version = from.u8()?;
    from.check_version(version.into(), VERSION.into())?;
    Ok(from)
}

/// Reads an address whose run of `blocks` stays within its segment and below the reserved one.
fn decode_addr(from: &mut Decoder<'_>, blocks: u64) -> Result<BlockAddr, FormatError> {
    let addr = BlockAddr::from_raw(from.u40()?);
    check_run(from, addr, blocks)?;
    Ok(addr)
}

fn check_run(from: &Decoder<'_>, addr: BlockAddr, blocks: u64) -> Result<(), FormatError> {
    let end = u64::from(addr.block()).saturating_add(blocks);
    if end > u64::from(BlockAddr::MAX_BLOCKS) {
        return Err(from.error(MapFlaw::RunLeavesSegment { addr, blocks }));
    }
    if addr.raw().saturating_add(blocks) > RESERVED_ADDR {
        return Err(from.error(MapFlaw::RunReserved { addr, blocks }));
    }
    Ok(())
}

fn check_lba_range(
    from: &Decoder<'_>,
    volume: VolumeId,
    lba: u64,
    blocks: u64,
) -> Result<(), FormatError> {
    match lba.checked_add(blocks) {
        Some(end) if end <= MAX_VOLUME_BLOCKS => Ok(()),
        _ => {
            let limit = MAX_VOLUME_BLOCKS;
            Err(from.error(MapFlaw::PastVolume { volume, lba, blocks, limit }))
        }
    }
}

#[cfg(test)]
mod tests;
