//! A whole leaf: what each of its 512 blocks points at.

use forebay_units::{BlockAddr, SegmentId, VolumeId};

use super::{LEAF_BLOCKS, VERSION, check_run, decode_version};
use crate::{Decoder, Encoder, FormatError, FormatFlaw, MapFlaw};

/// The one address that no block has: maps use it for "nothing here".
pub const RESERVED_ADDR: u64 = (1 << BlockAddr::BITS) - 1;

const KIND_RUNS: u8 = 0;
/// Flags over one address per mapped block and one sum per unsealed one.
const KIND_BLOCKS: u8 = 1;
const FLAG_HOLES: u8 = 2;
const FLAG_SEALED: u8 = 4;
/// Addresses in fewer than five bytes: see [`Narrow`].
const FLAG_NARROW: u8 = 8;
/// All that the kind of blocks may have.
const KINDS: u8 = KIND_BLOCKS | FLAG_HOLES | FLAG_SEALED | FLAG_NARROW;
const BITMAP_LEN: usize = LEAF_BLOCKS as usize / 8;
const RUN_LEN: usize = 8;
const ADDR_LEN: usize = 5;

const START_SHIFT: u32 = 55;
const BLOCKS_SHIFT: u32 = 46;
const SEALED_BIT: u32 = 45;
const FIELD_MASK: u64 = LEAF_BLOCKS as u64 - 1;

/// Consecutive blocks of a leaf at consecutive addresses of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRun {
    /// The first block, counted within the leaf.
    pub start: u32,
    /// Blocks, 1 to 512.
    pub blocks: u32,
    /// Where the first one lies.
    pub addr: BlockAddr,
    /// The sums are not here: they are in the footer of the segment.
    pub sealed: bool,
}

impl LeafRun {
    /// All of it in one word, ordered by `start`.
    #[inline]
    #[must_use]
    pub fn pack(self) -> u64 {
        u64::from(self.start) << START_SHIFT
            | u64::from(self.blocks - 1) << BLOCKS_SHIFT
            | u64::from(self.sealed) << SEALED_BIT
            | self.addr.raw()
    }

    /// What a word of [`LeafRun::pack`] says.
    #[inline]
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            start: (word >> START_SHIFT) as u32,
            blocks: Self::packed_blocks(word),
            addr: BlockAddr::from_raw(word & RESERVED_ADDR),
            sealed: word >> SEALED_BIT & 1 == 1,
        }
    }

    /// The blocks of a packed run.
    #[inline]
    #[must_use]
    pub fn packed_blocks(word: u64) -> u32 {
        (word >> BLOCKS_SHIFT & FIELD_MASK) as u32 + 1
    }

    /// The sums that come with a packed run: none when it is sealed.
    #[inline]
    #[must_use]
    pub fn packed_summed(word: u64) -> u32 {
        // All ones or none: lists of runs are summed up often enough to do it without branches.
        let keep = ((word >> SEALED_BIT & 1) as u32).wrapping_sub(1);
        Self::packed_blocks(word) & keep
    }

    /// The block after its last one.
    #[inline]
    #[must_use]
    pub fn end(self) -> u32 {
        self.start + self.blocks
    }

    /// Whether `next` carries this run on, in the leaf, in the segment, and in where its sums are.
    #[inline]
    #[must_use]
    pub fn joins(self, next: LeafRun) -> bool {
        self.end() == next.start
            && self.sealed == next.sealed
            && self.addr.raw() + u64::from(self.blocks) == next.addr.raw()
            && self.addr.segment() == next.addr.segment()
    }
}

/// Addresses whose segments and blocks are small, as numbers of `bytes` bytes: the segment above
/// the lowest `block_bits` bits, the block in them.
#[derive(Clone, Copy)]
struct Narrow {
    block_bits: u32,
    bytes: usize,
}

impl Narrow {
    /// What the addresses of `runs` need, if that is less than [`ADDR_LEN`].
    fn of(runs: &[LeafRun]) -> Option<Self> {
        let bits = |number: u32| u32::BITS - number.leading_zeros();
        let block = runs.iter().map(|r| bits(r.addr.block() + r.blocks - 1)).max()?;
        let segment = runs.iter().map(|r| bits(r.addr.segment().0)).max()?;
        let bytes = (block + segment).div_ceil(8).max(1) as usize;
        (bytes < ADDR_LEN).then_some(Self { block_bits: block, bytes })
    }

    fn put(self, out: &mut Encoder, addr: BlockAddr) {
        let number = u64::from(addr.segment().0) << self.block_bits | u64::from(addr.block());
        out.bytes(&number.to_le_bytes()[..self.bytes]);
    }

    fn take(self, from: &mut Decoder<'_>) -> Result<BlockAddr, FormatError> {
        let mut wide = [0; 8];
        wide[..self.bytes].copy_from_slice(from.bytes(self.bytes)?);
        let number = u64::from_le_bytes(wide);
        let (segment, block) = (number >> self.block_bits, number & ((1 << self.block_bits) - 1));
        if segment >= u64::from(BlockAddr::MAX_SEGMENTS) {
            return Err(from.error(FormatFlaw::NoSegment { segment }));
        }
        Ok(BlockAddr::new(SegmentId(segment as u32), block as u32))
    }
}

/// The whole content of one leaf; without runs, the leaf is a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafImage {
    /// The volume.
    pub volume: VolumeId,
    /// The leaf: the blocks from 512 times this on.
    pub leaf: u32,
    /// What is mapped, in order, not overlapping.
    pub runs: Vec<LeafRun>,
    /// Sums of the blocks of the runs that are not sealed, in order.
    pub sums: Vec<u64>,
}

/// `images` as payloads of at most `payload_bytes_max` each. Panics when the limit is below what
/// one image may take, [`LeafImage::ENCODED_LEN_MAX`] and one byte.
#[must_use]
pub fn encode_leaves(images: &[LeafImage], payload_bytes_max: usize) -> Vec<Vec<u8>> {
    assert!(payload_bytes_max > LeafImage::ENCODED_LEN_MAX, "payloads too small for a leaf");
    let mut payloads: Vec<Encoder> = Vec::new();
    for image in images {
        let fits = |out: &Encoder| out.len() + image.encoded_len() <= payload_bytes_max;
        if !payloads.last().is_some_and(fits) {
            let mut out = Encoder::new();
            out.u8(VERSION);
            payloads.push(out);
        }
        image.encode_into(payloads.last_mut().expect("pushed above"));
    }
    payloads.into_iter().map(Encoder::finish).collect()
}

/// The images in one payload.
pub fn decode_leaves(payload: &[u8]) -> Result<Vec<LeafImage>, FormatError> {
    let mut from = decode_version(payload)?;
    let mut images = Vec::new();
    while !from.rest().is_empty() {
        images.push(LeafImage::decode_from(&mut from)?);
    }
    Ok(images)
}

impl LeafImage {
    /// Most bytes an image takes in a payload.
    pub const ENCODED_LEN_MAX: usize = 9 + 2 * BITMAP_LEN + 10 * LEAF_BLOCKS as usize;

    fn mapped(&self) -> usize {
        self.runs.iter().map(|run| run.blocks as usize).sum()
    }

    /// Flags and bytes of the part between the leaf's name and the sums, in the shorter encoding.
    fn shape(&self) -> (u8, usize) {
        let mapped = self.mapped();
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let flags = flag(mapped < LEAF_BLOCKS as usize, FLAG_HOLES)
            | flag(self.sums.len() < mapped, FLAG_SEALED);
        let runs_len = 2 + self.runs.len() * RUN_LEN;
        let bitmaps_len = flags.count_ones() as usize * BITMAP_LEN;
        // Not worth a look when the list of runs is short.
        let narrow = Some(()).filter(|()| runs_len > bitmaps_len + mapped);
        let narrow = narrow.and_then(|()| Narrow::of(&self.runs));
        let flags = flags | flag(narrow.is_some(), FLAG_NARROW);
        let blocks_len =
            bitmaps_len + narrow.map_or(mapped * ADDR_LEN, |narrow| 2 + mapped * narrow.bytes);
        if runs_len <= blocks_len {
            (KIND_RUNS, runs_len)
        } else {
            (KIND_BLOCKS | flags, blocks_len)
        }
    }

    /// Bytes the image takes in a payload.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        9 + self.shape().1 + self.sums.len() * ADDR_LEN
    }

    fn encode_into(&self, out: &mut Encoder) {
        let (kind, _) = self.shape();
        out.u32(self.volume.0).u32(self.leaf).u8(kind);
        if kind == KIND_RUNS {
            out.u16(self.runs.len() as u16);
            for run in &self.runs {
                out.u64(run.pack());
            }
        } else {
            let bitmap = |chosen: &dyn Fn(&LeafRun) -> bool| {
                let mut bits = [0u8; BITMAP_LEN];
                for run in self.runs.iter().filter(|run| chosen(run)) {
                    for block in run.start as usize..run.end() as usize {
                        bits[block / 8] |= 1 << (block % 8);
                    }
                }
                bits
            };
            if kind & FLAG_HOLES != 0 {
                out.bytes(&bitmap(&|_| true));
            }
            if kind & FLAG_SEALED != 0 {
                out.bytes(&bitmap(&|run| run.sealed));
            }
            let narrow = Narrow::of(&self.runs).filter(|_| kind & FLAG_NARROW != 0);
            if let Some(Narrow { block_bits, bytes }) = narrow {
                out.u8(block_bits as u8).u8(bytes as u8);
            }
            for run in &self.runs {
                for block in 0..run.blocks {
                    let addr = run.addr.plus(block);
                    match narrow {
                        Some(narrow) => narrow.put(out, addr),
                        None => _ = out.u40(addr.raw()),
                    }
                }
            }
        }
        for sum in &self.sums {
            out.u40(*sum);
        }
    }

    fn decode_from(from: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let volume = VolumeId(from.u32()?);
        let leaf = from.u32()?;
        let mut image = Self { volume, leaf, runs: Vec::new(), sums: Vec::new() };
        let kind = from.u8()?;
        if kind == KIND_RUNS {
            image.decode_runs(from)?;
        } else if kind & KIND_BLOCKS != 0 && kind & !KINDS == 0 {
            image.decode_blocks(from, kind)?;
        } else {
            return Err(from.error(MapFlaw::UnknownLeaf { volume, leaf, kind }));
        }
        let sums: u32 = image.runs.iter().filter(|run| !run.sealed).map(|run| run.blocks).sum();
        image.sums.reserve(sums as usize);
        for _ in 0..sums {
            image.sums.push(from.u40()?);
        }
        Ok(image)
    }

    fn decode_runs(&mut self, from: &mut Decoder<'_>) -> Result<(), FormatError> {
        let count = from.u16()?;
        let mut end = 0;
        for _ in 0..count {
            let word = from.u64()?;
            let run = LeafRun::unpack(word);
            if run.pack() != word || run.start < end || run.end() > LEAF_BLOCKS {
                let Self { volume, leaf, .. } = *self;
                return Err(from.error(MapFlaw::LeafRun { volume, leaf, word }));
            }
            check_run(from, run.addr, u64::from(run.blocks))?;
            end = run.end();
            self.runs.push(run);
        }
        Ok(())
    }

    fn decode_blocks(&mut self, from: &mut Decoder<'_>, kind: u8) -> Result<(), FormatError> {
        let mapped =
            if kind & FLAG_HOLES != 0 { from.bytes(BITMAP_LEN)? } else { &[0xff; BITMAP_LEN] };
        let sealed =
            if kind & FLAG_SEALED != 0 { from.bytes(BITMAP_LEN)? } else { &[0; BITMAP_LEN] };
        let narrow = match kind & FLAG_NARROW {
            0 => None,
            _ => Some(Narrow { block_bits: u32::from(from.u8()?), bytes: from.u8()?.into() }),
        };
        if let Some(Narrow { block_bits, bytes: len_bytes }) = narrow {
            if block_bits > 20 || !(1..ADDR_LEN).contains(&len_bytes) {
                return Err(from.error(MapFlaw::AddressWidth { block_bits, len_bytes }));
            }
        }
        let bit = |bits: &[u8], block: usize| bits[block / 8] >> (block % 8) & 1 == 1;
        for block in 0..LEAF_BLOCKS as usize {
            let sealed = bit(sealed, block);
            if !bit(mapped, block) {
                if sealed {
                    return Err(from.error(MapFlaw::SealedHole { block }));
                }
                continue;
            }
            let addr = match narrow {
                Some(narrow) => narrow.take(from)?,
                None => BlockAddr::from_raw(from.u40()?),
            };
            check_run(from, addr, 1)?;
            let run = LeafRun { start: block as u32, blocks: 1, addr, sealed };
            match self.runs.last_mut() {
                Some(last) if last.joins(run) => last.blocks += 1,
                _ => self.runs.push(run),
            }
        }
        Ok(())
    }
}
