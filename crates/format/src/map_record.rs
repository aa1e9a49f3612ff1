//! Records of the map, as payloads of [`crate::journal`] frames: deltas (what changed) and images
//! (what a leaf holds).
//!
//! Both are absolute: they hold where blocks point to, never a difference. Replaying them in order,
//! from any point that is early enough and any number of times, gives the same map.

use forebay_units::{BlockAddr, SegmentId, VolumeId};

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
