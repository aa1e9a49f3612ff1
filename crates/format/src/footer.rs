//! The footer of a filled segment: what each of its blocks is.
//!
//! It lies in the segment's last data blocks. The cleaner judges liveness with it, and reads of
//! sequential data find their checksums in it. Each block of it is a page with a checksum of its
//! own that binds it to its place, and the sum of a block is at a fixed place of a page: one page
//! is enough to check a block, however long the segment is.

use forebay_units::{BLOCK_LEN, Lba, SegmentId, VolumeId};

use crate::checksum::crc64_of_parts;
use crate::{Decoder, Encoder, FormatError};

const MAGIC: u64 = u64::from_le_bytes(*b"FBAYFOOT");
const VERSION: u32 = 2;
/// Bytes before the first sum, in the first page.
const HEADER_BYTES: usize = 48;
/// Bytes of a sum.
const SUM_BYTES: usize = 5;
const RUN_BYTES: usize = 11;
/// Bytes of a page before its checksum.
const PAGE_BYTES: usize = BLOCK_LEN - 8;
/// Sums in the first page, and in each after it.
const FIRST_SUMS: u32 = ((PAGE_BYTES - HEADER_BYTES) / SUM_BYTES) as u32;
const PAGE_SUMS: u32 = (PAGE_BYTES / SUM_BYTES) as u32;

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

/// Where the sum of block `block` is: the page, and the byte in it.
fn place_of_sum(block: u32) -> (u32, usize) {
    match block.checked_sub(FIRST_SUMS) {
        None => (0, HEADER_BYTES + SUM_BYTES * block as usize),
        Some(later) => (1 + later / PAGE_SUMS, SUM_BYTES * (later % PAGE_SUMS) as usize),
    }
}

/// Bytes of the pages, checksums left out, before the runs of a footer over `blocks` blocks.
fn runs_start(blocks: u32) -> usize {
    let (page, at) = place_of_sum(blocks);
    page as usize * PAGE_BYTES + at
}

/// Blocks that the footer takes in a segment of `segment_blocks`: room for the worst case, so that
/// its place is known before it is written.
#[must_use]
pub fn footer_blocks(segment_blocks: u32) -> u32 {
    let worst = runs_start(segment_blocks) + segment_blocks as usize * RUN_BYTES;
    worst.div_ceil(PAGE_BYTES) as u32
}

/// What the pages of a footer are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterPlace {
    /// The pool.
    pub pool: u64,
    /// The segment.
    pub segment: SegmentId,
    /// The commit in which it was opened.
    pub birth: u64,
}

impl FooterPlace {
    /// The page that holds the sum of block `block`.
    #[must_use]
    pub fn page_of(block: u32) -> u32 {
        place_of_sum(block).0
    }

    fn sum(&self, page: u32, bytes: &[u8]) -> u64 {
        let mut place = [0; 24];
        place[..8].copy_from_slice(&self.pool.to_le_bytes());
        place[8..12].copy_from_slice(&self.segment.0.to_le_bytes());
        place[12..20].copy_from_slice(&self.birth.to_le_bytes());
        place[20..].copy_from_slice(&page.to_le_bytes());
        crc64_of_parts(&[&place, &bytes[..PAGE_BYTES]])
    }

    /// Puts the checksum of page `page` behind its other bytes; `bytes` are 4096.
    pub fn seal(&self, page: u32, bytes: &mut [u8]) {
        let sum = self.sum(page, bytes);
        bytes[PAGE_BYTES..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Whether `bytes` (4096 of them) are page `page` of the footer that belongs here.
    #[must_use]
    pub fn owns(&self, page: u32, bytes: &[u8]) -> bool {
        bytes.len() == BLOCK_LEN && bytes[PAGE_BYTES..] == self.sum(page, bytes).to_le_bytes()
    }
}

/// The sum of block `block`, from the page that [`FooterPlace::page_of`] names. Of a block that
/// the footer does not reach it is some number.
#[must_use]
pub fn sum_in_page(page: &[u8], block: u32) -> u64 {
    let (_, at) = place_of_sum(block);
    let mut wide = [0; 8];
    wide[..SUM_BYTES].copy_from_slice(&page[at..at + SUM_BYTES]);
    u64::from_le_bytes(wide)
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
        let pages = footer_blocks(segment_blocks) as usize;
        let mut flat = Encoder::new();
        flat.u64(MAGIC).u32(VERSION).u32(self.segment.0).u64(self.pool).u64(self.birth);
        flat.u32(self.sums.len() as u32).u32(self.runs.len() as u32).u64(0);
        for (block, sum) in self.sums.iter().enumerate() {
            let start = runs_start(block as u32);
            // A sum does not go over the end of a page.
            flat.bytes(&[0; SUM_BYTES][..start - flat.len()]).u40(*sum);
        }
        flat.bytes(&[0; SUM_BYTES][..runs_start(self.sums.len() as u32) - flat.len()]);
        for run in &self.runs {
            flat.u32(run.volume.0).u40(run.lba.0);
            flat.u16(u16::try_from(run.blocks).expect("push keeps runs short"));
        }
        let mut flat = flat.finish();
        assert!(flat.len() <= pages * PAGE_BYTES, "a footer outgrew its room");
        flat.resize(pages * PAGE_BYTES, 0);
        let place = FooterPlace { pool: self.pool, segment: self.segment, birth: self.birth };
        let mut out = Vec::with_capacity(pages * BLOCK_LEN);
        for (page, bytes) in (0..).zip(flat.chunks(PAGE_BYTES)) {
            let start = out.len();
            out.extend_from_slice(bytes);
            out.resize(start + BLOCK_LEN, 0);
            place.seal(page, &mut out[start..]);
        }
        out
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
        let (blocks, runs) = (input.u32()?, input.u32()? as usize);
        let place = FooterPlace { pool, segment, birth };
        let mut flat = Vec::with_capacity(bytes.len());
        for (page, bytes) in bytes.chunks(BLOCK_LEN).enumerate() {
            if !place.owns(page as u32, bytes) {
                return Err(input.error(format!("checksum mismatch in block {page} of it")));
            }
            flat.extend_from_slice(&bytes[..PAGE_BYTES]);
        }
        let room = flat.len().checked_sub(runs_start(blocks));
        if room.is_none_or(|room| runs.saturating_mul(RUN_BYTES) > room) {
            return Err(input.error("more entries than fit"));
        }
        let sum = |block| {
            let (page, _) = place_of_sum(block);
            sum_in_page(&flat[page as usize * PAGE_BYTES..], block)
        };
        let sums = (0..blocks).map(sum).collect();
        let mut input = Decoder::new("segment footer", &flat[runs_start(blocks)..]);
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
        if covered != blocks as usize {
            return Err(input.error("runs and sums disagree"));
        }
        Ok(Self { pool, segment, birth, runs: out, sums })
    }
}
