//! The footer of a filled segment: what each of its blocks is.
//!
//! It lies in the segment's last data blocks. The cleaner judges liveness with it, and reads of
//! sequential data find their checksums in it: the sum of block `b` is at byte
//! `HEADER_BYTES + 5 b`, whatever else the footer holds.

use forebay_units::{BLOCK_BYTES, Lba, SegmentId, VolumeId};

use crate::checksum::crc64;
use crate::{Decoder, Encoder, FormatError};

const MAGIC: u64 = u64::from_le_bytes(*b"FBAYFOOT");
const VERSION: u32 = 1;
/// Bytes before the first sum.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a sum.
pub const SUM_BYTES: usize = 5;
const RUN_BYTES: usize = 11;

/// Blocks of a segment that follow each other and belong to consecutive blocks of a volume. A run
/// of [`Run::PADDING`] belongs to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The volume.
    pub volume: VolumeId,
    /// The first block's place in it.
    pub lba: Lba,
    /// How many blocks.
    pub blocks: u32,
}

impl Run {
    /// The volume id of blocks that fill a stripe.
    pub const PADDING: VolumeId = VolumeId(u32::MAX);
}

/// What a segment holds, block by block from its first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The pool.
    pub pool: u64,
    /// The segment.
    pub segment: SegmentId,
    /// The group in which it was opened.
    pub birth: u64,
    /// Its blocks' owners, in order.
    pub runs: Vec<Run>,
    /// Its blocks' checksums, in order.
    pub sums: Vec<u64>,
}

/// Blocks that the footer takes in a segment of `segment_blocks`: room for the worst case, so that
/// its place is known before it is written.
#[must_use]
pub fn footer_blocks(segment_blocks: u32) -> u32 {
    let worst = HEADER_BYTES as u64 + u64::from(segment_blocks) * (SUM_BYTES + RUN_BYTES) as u64;
    worst.div_ceil(BLOCK_BYTES) as u32
}

impl Footer {
    /// Adds a block, joining it to the last run when it continues it.
    pub fn push(&mut self, volume: VolumeId, lba: Lba, sum: u64) {
        self.sums.push(sum);
        if let Some(last) = self.runs.last_mut() {
            let follows = volume == Run::PADDING || last.lba.0 + u64::from(last.blocks) == lba.0;
            if last.volume == volume && follows && last.blocks < u32::from(u16::MAX) {
                last.blocks += 1;
                return;
            }
        }
        self.runs.push(Run { volume, lba, blocks: 1 });
    }

    /// The footer's bytes, `footer_blocks(segment_blocks)` blocks long.
    #[must_use]
    pub fn encode(&self, segment_blocks: u32) -> Vec<u8> {
        let total = footer_blocks(segment_blocks) as usize * BLOCK_BYTES as usize;
        let mut out = Encoder::new();
        out.u64(MAGIC).u32(VERSION).u32(self.segment.0).u64(self.pool).u64(self.birth);
        out.u32(self.sums.len() as u32).u32(self.runs.len() as u32);
        out.bytes(&[0; 16]).u64(0);
        for sum in &self.sums {
            out.u40(*sum);
        }
        for run in &self.runs {
            out.u32(run.volume.0).u40(run.lba.0);
            out.u16(u16::try_from(run.blocks).expect("push keeps runs short"));
        }
        let mut bytes = out.finish();
        assert!(bytes.len() <= total, "a footer outgrew its room");
        bytes.resize(total, 0);
        let sum = crc64(&bytes);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// From the footer's bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("segment footer", bytes);
        if input.u64()? != MAGIC {
            return Err(input.error("no magic"));
        }
        let version = input.u32()?;
        if version != VERSION {
            return Err(input.error(format!("version {version}, this program knows {VERSION}")));
        }
        let segment = SegmentId(input.u32()?);
        let (pool, birth) = (input.u64()?, input.u64()?);
        let (blocks, runs) = (input.u32()? as usize, input.u32()? as usize);
        let _ = input.bytes(16)?;
        let sum = input.u64()?;
        let mut check = bytes.to_vec();
        check[56..64].fill(0);
        if crc64(&check) != sum {
            return Err(input.error("checksum mismatch"));
        }
        if blocks.saturating_mul(SUM_BYTES) + runs.saturating_mul(RUN_BYTES) > input.rest().len() {
            return Err(input.error("more entries than fit"));
        }
        let sums = (0..blocks).map(|_| input.u40()).collect::<Result<Vec<_>, _>>()?;
        let mut out = Vec::with_capacity(runs);
        let mut covered = 0usize;
        for _ in 0..runs {
            let (volume, lba) = (VolumeId(input.u32()?), Lba(input.u40()?));
            let len = u32::from(input.u16()?);
            // Nobody writes one, and any number of them would fit where only blocks have room.
            if len == 0 {
                return Err(input.error("a run of no blocks"));
            }
            covered += len as usize;
            out.push(Run { volume, lba, blocks: len });
        }
        if covered != blocks {
            return Err(input.error("runs and sums disagree"));
        }
        Ok(Self { pool, segment, birth, runs: out, sums })
    }
}
