//! The footer of a filled segment: volume, address and checksum of each block, for the cleaner and
//! for reads of sequential data.
//!
//! Each block of it is a page with a checksum that binds it to its place, and one page is enough to
//! check a data block. Pages are counted from the segment's end, because their number varies.

use forebay_units::{BLOCK_LEN, Lba, SegmentId, VolumeId};

use crate::checksum::crc64_of_parts;
use crate::{Decoder, Encoder, FooterFlaw, FormatError, FormatFlaw, varint};

const MAGIC: u64 = u64::from_le_bytes(*b"FBAYFOOT");
const VERSION: u32 = 3;
/// Bytes before the first sum, in the first page.
const HEADER_BYTES: usize = 48;
/// Bytes of a sum.
const SUM_BYTES: usize = 5;
/// A run whose fields have their full width.
const WIDE_RUN_BYTES: usize = 11;
/// Most bytes of a run in the short form: tag, length, volume, block.
const SHORT_RUN_BYTES_MAX: usize = 1 + 3 + 5 + 6;
/// Bytes of a page before its checksum.
const PAGE_BYTES: usize = BLOCK_LEN - 8;
/// Sums in the first page, and in each after it.
const FIRST_SUMS: u32 = ((PAGE_BYTES - HEADER_BYTES) / SUM_BYTES) as u32;
const PAGE_SUMS: u32 = (PAGE_BYTES / SUM_BYTES) as u32;

/// Consecutive blocks of a segment that belong to consecutive blocks of a volume. Blocks of a run
/// of [`Run::PADDING`] belong to no volume.
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

/// How runs are encoded: wide (all fields), or short (the difference from the run before). The wide
/// form bounds the length of a footer; most footers are in the short form.
const WIDE: u32 = 0;
const SHORT: u32 = 1;

/// Tags of the short form: one block of the same volume; a longer run of it; a run of another
/// volume; padding.
const TAG_BLOCK: u64 = 0;
const TAG_RUN: u64 = 1;
const TAG_VOLUME: u64 = 2;
const TAG_PADDING: u64 = 3;
const TAG_BITS: u32 = 2;

/// Volume, address and checksum of each block of a segment, from the first block on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The pool.
    pub pool: u64,
    /// The segment.
    pub segment: SegmentId,
    /// The group in which it was opened.
    pub birth: u64,
    /// The volumes and addresses of its blocks, in order.
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

fn pages_for(blocks: u32, run_bytes: usize) -> u32 {
    (runs_start(blocks) + run_bytes).div_ceil(PAGE_BYTES) as u32
}

/// Upper bound of a footer's blocks in a segment of `segment_blocks`, for any contents. The rest is
/// the segment's guaranteed capacity.
#[must_use]
pub fn footer_blocks(segment_blocks: u32) -> u32 {
    pages_for(segment_blocks, segment_blocks as usize * WIDE_RUN_BYTES)
}

/// Blocks of a typical footer in a segment of `segment_blocks`: single blocks of one volume, in the
/// order of transaction groups.
#[must_use]
pub fn usual_footer_blocks(segment_blocks: u32) -> u32 {
    pages_for(segment_blocks, segment_blocks as usize * 3)
}

/// The place that the pages of a footer are bound to.
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

/// The sum of block `block`, from the page that [`FooterPlace::page_of`] names. For a block past
/// the footer's last one the result is arbitrary.
#[must_use]
pub fn sum_in_page(page: &[u8], block: u32) -> u64 {
    let (_, at) = place_of_sum(block);
    let mut wide = [0; 8];
    wide[..SUM_BYTES].copy_from_slice(&page[at..at + SUM_BYTES]);
    u64::from_le_bytes(wide)
}

/// Encoder of a footer's runs in the short form.
#[derive(Clone, Debug, Default)]
struct ShortRuns {
    out: Encoder,
    last: Option<Run>,
}

impl ShortRuns {
    fn put(&mut self, run: &Run) {
        let more = u64::from(run.blocks) - 1;
        if run.volume == Run::PADDING {
            return varint::put(&mut self.out, more << TAG_BITS | TAG_PADDING);
        }
        match self.last {
            Some(last) if last.volume == run.volume => {
                let end = last.lba.0 + u64::from(last.blocks);
                let step = varint::zigzag(run.lba.0 as i64 - end as i64) << TAG_BITS;
                if run.blocks == 1 {
                    varint::put(&mut self.out, step | TAG_BLOCK);
                } else {
                    varint::put(&mut self.out, step | TAG_RUN);
                    varint::put(&mut self.out, more);
                }
            }
            _ => {
                varint::put(&mut self.out, more << TAG_BITS | TAG_VOLUME);
                varint::put(&mut self.out, u64::from(run.volume.0));
                varint::put(&mut self.out, run.lba.0);
            }
        }
        self.last = Some(*run);
    }
}

/// Decodes a run in the short form; `last` is the last run that was not padding.
fn take_short(input: &mut Decoder<'_>, last: &mut Option<Run>) -> Result<Run, FormatError> {
    let head = varint::take(input)?;
    let (value, tag) = (head >> TAG_BITS, head & ((1 << TAG_BITS) - 1));
    let (volume, lba, more) = match (tag, *last) {
        (TAG_PADDING, _) => (u64::from(Run::PADDING.0), 0, value),
        (TAG_VOLUME, _) => (varint::take(input)?, varint::take(input)?, value),
        (_, Some(last)) => {
            let end = last.lba.0 + u64::from(last.blocks);
            let lba = end.checked_add_signed(varint::unzigzag(value));
            let lba = lba.ok_or_else(|| input.error(FooterFlaw::RunBelowZero))?;
            (u64::from(last.volume.0), lba, if tag == TAG_RUN { varint::take(input)? } else { 0 })
        }
        (_, None) => return Err(input.error(FooterFlaw::RunFollowsNone)),
    };
    let narrow = lba < 1 << 40 && more < u64::from(u16::MAX);
    let found = u32::try_from(volume).ok().filter(|_| narrow);
    let volume = found.ok_or_else(|| input.error(FooterFlaw::RunRange { volume, lba }))?;
    let run = Run { volume: VolumeId(volume), lba: Lba(lba), blocks: more as u32 + 1 };
    if tag != TAG_PADDING {
        if run.volume == Run::PADDING {
            return Err(input.error(FooterFlaw::RunOfPadding));
        }
        *last = Some(run);
    }
    Ok(run)
}

fn take_wide(input: &mut Decoder<'_>) -> Result<Run, FormatError> {
    let (volume, lba) = (VolumeId(input.u32()?), Lba(input.u40()?));
    let blocks = u32::from(input.u16()?);
    // No encoder writes an empty run, and any number of them would pass the check of the sums.
    match blocks {
        0 => Err(input.error(FooterFlaw::EmptyRun)),
        _ => Ok(Run { volume, lba, blocks }),
    }
}

/// The header in a footer's first page.
struct Header {
    place: FooterPlace,
    blocks: u32,
    runs: usize,
    form: u32,
    run_bytes: usize,
}

impl Header {
    fn decode(page: &[u8]) -> Result<Self, FormatError> {
        let mut input = Decoder::new("segment footer", page);
        if input.u64()? != MAGIC {
            return Err(input.error(FormatFlaw::NoMagic));
        }
        let version = input.u32()?;
        input.check_version(version, VERSION)?;
        let segment = SegmentId(input.u32()?);
        let (pool, birth) = (input.u64()?, input.u64()?);
        let (blocks, runs) = (input.u32()?, input.u32()? as usize);
        let (form, run_bytes) = (input.u32()?, input.u32()? as usize);
        if form > SHORT || runs > blocks as usize || run_bytes > runs * SHORT_RUN_BYTES_MAX {
            return Err(input.error(FooterFlaw::Header { form, blocks, runs, run_bytes }));
        }
        Ok(Self { place: FooterPlace { pool, segment, birth }, blocks, runs, form, run_bytes })
    }

    fn pages(&self) -> u32 {
        pages_for(self.blocks, self.run_bytes)
    }
}

/// Pages of the footer of which `page` is the first.
pub fn pages_of(page: &[u8]) -> Result<u32, FormatError> {
    Ok(Header::decode(page)?.pages())
}

/// The length of a footer that is still growing.
#[derive(Clone, Debug, Default)]
pub struct FooterLength {
    blocks: u32,
    runs: usize,
    /// All runs but the last one, which may still grow.
    short: ShortRuns,
    open: Option<Run>,
}

impl FooterLength {
    /// Counts a block that [`Footer::push`] was given.
    pub fn push(&mut self, volume: VolumeId, lba: Lba) {
        self.blocks += 1;
        if let Some(open) = &mut self.open {
            if open.takes(volume, lba) {
                open.blocks += 1;
                return;
            }
            self.short.put(open);
        }
        self.open = Some(Run { volume, lba, blocks: 1 });
        self.runs += 1;
    }

    /// Upper bound of the footer's blocks after `more` blocks of any kind are added.
    #[must_use]
    pub fn blocks_with(&self, more: u32) -> u32 {
        let others = more as usize + usize::from(self.open.is_some());
        let short = self.short.out.len() + others * SHORT_RUN_BYTES_MAX;
        let wide = (self.runs + more as usize) * WIDE_RUN_BYTES;
        pages_for(self.blocks + more, short.min(wide))
    }

    /// Data blocks that certainly fit when `left` blocks are left for them and the footer.
    #[must_use]
    pub fn certain(&self, left: u32) -> u32 {
        // Each takes its place, its sum and its run; sums leave three bytes of each page.
        let page = PAGE_BYTES as u64 - 8;
        let wide = (runs_start(self.blocks) + self.runs * WIDE_RUN_BYTES) as u64 + page;
        let room = (u64::from(left) * page).saturating_sub(wide);
        (room / (page + (SUM_BYTES + WIDE_RUN_BYTES) as u64)) as u32
    }
}

impl Run {
    /// Whether a block continues the run.
    fn takes(&self, volume: VolumeId, lba: Lba) -> bool {
        let follows = volume == Run::PADDING || self.lba.0 + u64::from(self.blocks) == lba.0;
        self.volume == volume && follows && self.blocks < u32::from(u16::MAX)
    }
}

impl Footer {
    /// The blocks that belong to a volume, by their place in the segment.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, VolumeId, Lba)> {
        let placed = self.runs.iter().scan(0, |next, run| {
            let first = *next;
            *next += run.blocks;
            Some((first, run))
        });
        let owned = placed.filter(|(_, run)| run.volume != Run::PADDING);
        owned.flat_map(|(first, run)| {
            (0..run.blocks).map(move |i| (first + i, run.volume, Lba(run.lba.0 + u64::from(i))))
        })
    }

    /// Adds a block, joining it to the last run when it continues it.
    pub fn push(&mut self, volume: VolumeId, lba: Lba, sum: u64) {
        self.sums.push(sum);
        match self.runs.last_mut() {
            Some(last) if last.takes(volume, lba) => last.blocks += 1,
            _ => self.runs.push(Run { volume, lba, blocks: 1 }),
        }
    }

    /// The footer as whole blocks, in the order of the segment: the first page is the last block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut short = ShortRuns::default();
        self.runs.iter().for_each(|run| short.put(run));
        let (form, runs) = match short.out.len() < self.runs.len() * WIDE_RUN_BYTES {
            true => (SHORT, short.out.finish()),
            false => {
                let mut wide = Encoder::new();
                for run in &self.runs {
                    wide.u32(run.volume.0).u40(run.lba.0);
                    wide.u16(u16::try_from(run.blocks).expect("push keeps runs short"));
                }
                (WIDE, wide.finish())
            }
        };
        let mut flat = Encoder::new();
        flat.u64(MAGIC).u32(VERSION).u32(self.segment.0).u64(self.pool).u64(self.birth);
        flat.u32(self.sums.len() as u32).u32(self.runs.len() as u32);
        flat.u32(form).u32(runs.len() as u32);
        for (block, sum) in self.sums.iter().enumerate() {
            let start = runs_start(block as u32);
            // A sum does not cross the end of a page.
            flat.bytes(&[0; SUM_BYTES][..start - flat.len()]).u40(*sum);
        }
        flat.bytes(&[0; SUM_BYTES][..runs_start(self.sums.len() as u32) - flat.len()]);
        flat.bytes(&runs);
        let mut flat = flat.finish();
        let pages = pages_for(self.sums.len() as u32, runs.len()) as usize;
        flat.resize(pages * PAGE_BYTES, 0);
        let place = FooterPlace { pool: self.pool, segment: self.segment, birth: self.birth };
        let mut out = vec![0; pages * BLOCK_LEN];
        let blocks = out.rchunks_mut(BLOCK_LEN);
        for ((page, bytes), block) in (0..).zip(flat.chunks(PAGE_BYTES)).zip(blocks) {
            block[..PAGE_BYTES].copy_from_slice(bytes);
            place.seal(page, block);
        }
        out
    }

    /// From the footer's bytes: the last blocks of a segment, no fewer than it has pages.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let error = |flaw: FormatFlaw| FormatError::new("segment footer", flaw);
        let last = bytes.rchunks(BLOCK_LEN).next().unwrap_or(&[]);
        let Header { place, blocks, runs, form, run_bytes } = Header::decode(last)?;
        let pages = pages_for(blocks, run_bytes) as usize;
        if pages * BLOCK_LEN > bytes.len() {
            return Err(error(FooterFlaw::Pages { pages, found_bytes: bytes.len() }.into()));
        }
        let mut flat = Vec::with_capacity(pages * PAGE_BYTES);
        for (page, bytes) in (0..).zip(bytes.rchunks(BLOCK_LEN).take(pages)) {
            if !place.owns(page, bytes) {
                return Err(error(FormatFlaw::PageChecksum { page }));
            }
            flat.extend_from_slice(&bytes[..PAGE_BYTES]);
        }
        let sum = |block| {
            let (page, _) = place_of_sum(block);
            sum_in_page(&flat[page as usize * PAGE_BYTES..], block)
        };
        let sums = (0..blocks).map(sum).collect();
        let start = runs_start(blocks);
        let mut input = Decoder::new("segment footer", &flat[start..start + run_bytes]);
        let mut out = Vec::with_capacity(runs);
        let (mut covered, mut before) = (0usize, None);
        for _ in 0..runs {
            let run = match form {
                WIDE => take_wide(&mut input)?,
                _ => take_short(&mut input, &mut before)?,
            };
            covered += run.blocks as usize;
            out.push(run);
        }
        if covered != blocks as usize || !input.rest().is_empty() {
            return Err(input.error(FooterFlaw::Coverage { covered, blocks }));
        }
        let FooterPlace { pool, segment, birth } = place;
        Ok(Self { pool, segment, birth, runs: out, sums })
    }
}
