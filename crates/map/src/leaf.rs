//! A leaf: the map of 512 blocks, in the form that is smallest for its content.

use forebay_format::map_record::{LEAF_BLOCKS, LeafRun};
use forebay_units::{BlockAddr, SegmentId};

use crate::array::{
    BITMAP_LEN, ENTRY_LEN, PLAIN_LEN, Shape, assign_packed, assign_plain, bit, clear_packed,
    clear_plain, entry, put_entry, rank, set_bit,
};
use crate::change::{Freed, NewRun, continues};
use crate::entry::Mapped;
use crate::memory::heap_bytes;
use crate::pair::{MAX_PAIR_BLOCKS, Pair};
use crate::runs::RunList;
use crate::sums::{SUM_LEN, SumBytes, sum_bytes, wide};

/// A change of this many blocks or more also chooses a new form.
const MIN_RESHAPE_BLOCKS: u32 = 32;
/// A longer list of runs is slow to search, so it must save half of the memory.
const MAX_FAST_RUNS: usize = 128;
const RUN_LEN: usize = 8;

#[derive(Default)]
pub(crate) enum Leaf {
    /// All holes.
    #[default]
    Empty,
    /// One or two blocks.
    Pair(Pair),
    /// All mapped and sealed, in one or two runs: `first` up to block `split`, `second` from there.
    Sealed { split: u16, first: [u8; 5], second: [u8; 5] },
    /// A list of packed runs, then the sums of the unsealed runs.
    Runs { buf: Box<[u8]>, runs: u16, mapped: u16, summed: u16 },
    /// A bitmap of the mapped blocks, then their entries.
    Packed { buf: Box<[u8]>, mapped: u16 },
    /// An entry per block.
    Plain { buf: Box<[u8]>, mapped: u16, shape: Shape },
}

const _: () = assert!(size_of::<Leaf>() == 24, "a TiB has half a million leaves");

fn list(buf: &[u8], runs: u16) -> (&[[u8; RUN_LEN]], &[u8]) {
    let (words, sums) = buf.split_at(usize::from(runs) * RUN_LEN);
    (arrays(words), sums)
}

/// `bytes` as arrays. A rest that fills none is left out.
#[inline]
pub(crate) fn arrays<const LEN: usize>(bytes: &[u8]) -> &[[u8; LEN]] {
    // SAFETY: an array of bytes needs no alignment, and the slice has at least so many of them.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / LEN) }
}

impl Leaf {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Leaf::Empty)
    }

    pub(crate) fn mapped(&self) -> u32 {
        match self {
            Leaf::Empty => 0,
            Leaf::Pair(pair) => pair.len() as u32,
            Leaf::Sealed { .. } => LEAF_BLOCKS,
            Leaf::Runs { mapped, .. }
            | Leaf::Packed { mapped, .. }
            | Leaf::Plain { mapped, .. } => u32::from(*mapped),
        }
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        match self {
            Leaf::Empty | Leaf::Pair(_) | Leaf::Sealed { .. } => 0,
            Leaf::Runs { buf, .. } | Leaf::Packed { buf, .. } | Leaf::Plain { buf, .. } => {
                heap_bytes(buf.len())
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<Mapped> {
        let found = |addr: u64, sum| Some(Mapped { addr: BlockAddr::from_raw(addr), sum });
        match self {
            Leaf::Empty => None,
            Leaf::Pair(pair) => {
                let (addr, sum) = pair.get(block)?;
                found(addr, sum)
            }
            Leaf::Sealed { split, first, second } => match block.checked_sub(u32::from(*split)) {
                None => found(wide(*first) + u64::from(block), None),
                Some(past) => found(wide(*second) + u64::from(past), None),
            },
            Leaf::Runs { buf, runs, .. } => {
                let (words, sums) = list(buf, *runs);
                let mut summed = 0;
                for word in words {
                    let run = LeafRun::unpack(u64::from_le_bytes(*word));
                    if run.end() > block {
                        let past = block.checked_sub(run.start)?;
                        let at = (summed + past) as usize * SUM_LEN;
                        let sum = (!run.sealed)
                            .then(|| wide(sums[at..][..SUM_LEN].try_into().expect("five bytes")));
                        return found(run.addr.raw() + u64::from(past), sum);
                    }
                    summed += if run.sealed { 0 } else { run.blocks };
                }
                None
            }
            Leaf::Packed { buf, .. } => {
                let (bitmap, entries) = buf.split_at(BITMAP_LEN);
                let index = bit(bitmap, block).then(|| rank(bitmap, block))?;
                let (addr, sum) = entry(entries, index)?;
                found(addr, sum)
            }
            Leaf::Plain { buf, shape, .. } => {
                let (addr, sum) = shape.entry(buf, block as usize)?;
                found(addr, sum)
            }
        }
    }

    /// Calls `run` for each mapped run from block `start` up to `end`.
    #[inline]
    pub(crate) fn visit<'a>(
        &'a self,
        (start, end): (u32, u32),
        mut run: impl FnMut(LeafRun, SumBytes<'a>),
    ) {
        let mut clipped = |whole: LeafRun, sums: SumBytes<'a>| {
            let (from, to) = (whole.start.max(start), whole.end().min(end));
            if from < to {
                let past = from - whole.start;
                let addr = whole.addr.plus(past);
                run(LeafRun { start: from, blocks: to - from, addr, ..whole }, sums.skip(past));
            }
        };
        match self {
            Leaf::Empty => {}
            Leaf::Pair(pair) => pair.visit(clipped),
            Leaf::Sealed { split, first, second } => {
                let split = u32::from(*split);
                // With one run the second is empty, and is clipped away.
                for (start, end, addr) in [(0, split, first), (split, LEAF_BLOCKS, second)] {
                    let addr = BlockAddr::from_raw(wide(*addr));
                    let whole = LeafRun { start, blocks: end - start, addr, sealed: true };
                    clipped(whole, SumBytes::SEALED);
                }
            }
            Leaf::Runs { buf, runs, .. } => {
                let (words, mut sums) = list(buf, *runs);
                for word in words {
                    let whole = LeafRun::unpack(u64::from_le_bytes(*word));
                    if whole.sealed {
                        clipped(whole, SumBytes::SEALED);
                    } else {
                        clipped(whole, SumBytes { bytes: sums, stride: SUM_LEN });
                        sums = &sums[whole.blocks as usize * SUM_LEN..];
                    }
                }
            }
            Leaf::Packed { buf, .. } => {
                let (bitmap, entries) = buf.split_at(BITMAP_LEN);
                let mut at = rank(bitmap, start);
                visit_entries((start, end), run, Shape::WIDE, |block| {
                    let mapped = bit(bitmap, block);
                    let index = at;
                    at += usize::from(mapped);
                    mapped.then_some((entries, index))
                });
            }
            Leaf::Plain { buf, shape, .. } => {
                let at = |block| Some((&buf[..], block as usize));
                visit_entries((start, end), run, *shape, at);
            }
        }
    }

    /// Sets the blocks of `new`. With `sealed`, a run over the whole leaf keeps no sums.
    pub(crate) fn assign(
        &mut self,
        new: NewRun<'_>,
        sealed: bool,
        freed: &mut Freed<'_>,
        scratch: &mut RunList,
    ) {
        let before = self.mapped();
        let short = new.blocks < MIN_RESHAPE_BLOCKS && !self.prolongs_sealed(new);
        match self {
            Leaf::Plain { buf, mapped, shape } if short && shape.takes(new.addr, new.blocks) => {
                *mapped += assign_plain((buf, *shape), new, freed);
            }
            Leaf::Packed { .. } if short => {
                let last = new.addr.plus(new.blocks - 1);
                for i in 0..new.blocks {
                    let to = (new.addr.plus(i), new.sums.get(i as usize).copied());
                    self.assign_one(new.start + i, to, last, freed);
                }
            }
            _ => {
                self.load(scratch);
                let end = new.start + new.blocks;
                scratch.replace((new.start, end), Some(new), freed);
                self.store(scratch);
            }
        }
        if sealed && self.mapped() == LEAF_BLOCKS && (before < LEAF_BLOCKS || !short) {
            let segment = new.addr.segment();
            self.seal(&mut |other| other == segment, scratch);
        }
    }

    /// Whether a sealed run goes on where the block before it ends: in a list of runs the two may
    /// take less memory.
    fn prolongs_sealed(&self, new: NewRun<'_>) -> bool {
        let before = new.start.checked_sub(1).filter(|_| new.sums.is_empty());
        let before = before.and_then(|block| self.get(block));
        before.is_some_and(|before| continues(before.addr, 1, new.addr))
    }

    /// Sets a block of a packed leaf, which an earlier call of the same run may have made plain.
    /// `last` is the last address of the run.
    fn assign_one(
        &mut self,
        block: u32,
        to: (BlockAddr, Option<u64>),
        last: BlockAddr,
        freed: &mut Freed<'_>,
    ) {
        if let Leaf::Packed { buf, mapped } = self {
            let count = usize::from(*mapped);
            if BITMAP_LEN + (count + 1) * ENTRY_LEN > buf.len() {
                let wanted = BITMAP_LEN + (count + 1 + count / 16) * ENTRY_LEN;
                let (bitmap, entries) = buf.split_at(BITMAP_LEN);
                let blocks = (0..LEAF_BLOCKS).filter(|block| bit(bitmap, *block));
                let found = blocks.enumerate().filter_map(|(index, block)| {
                    let (addr, sum) = entry(entries, index)?;
                    Some((block, addr, sum))
                });
                // The new addresses must fit as well.
                let new = [to.0.raw(), last.raw()];
                let addrs = found.clone().map(|(_, addr, _)| addr).chain(new);
                let shape = Shape::of(addrs);
                if wanted < shape.array_len() {
                    let mut wider = vec![0; wanted].into_boxed_slice();
                    wider[..buf.len()].copy_from_slice(buf);
                    *buf = wider;
                } else {
                    *self = Leaf::Plain { buf: plain(found, shape), mapped: *mapped, shape };
                }
            }
        }
        match self {
            Leaf::Packed { buf, mapped } => {
                *mapped += u16::from(assign_packed(buf, usize::from(*mapped), block, to, freed));
            }
            Leaf::Plain { buf, mapped, shape } => {
                assert!(shape.takes(to.0, 1), "a leaf that has just become plain takes it");
                let new = NewRun { start: block, blocks: 1, addr: to.0, sums: to.1.as_slice() };
                *mapped += assign_plain((buf, *shape), new, freed);
            }
            _ => unreachable!("a packed leaf becomes plain and nothing else"),
        }
    }

    /// Makes holes of the blocks from `start` up to `end`. A few blocks of an array leave it in its
    /// form, at most a third larger than need be: a snapshot takes block after block out of it
    /// just before each is assigned again.
    pub(crate) fn clear(
        &mut self,
        range: (u32, u32),
        freed: &mut Freed<'_>,
        scratch: &mut RunList,
    ) {
        let keeps_form = |buf: &[u8], mapped: u16| {
            let blocks = range.1 - range.0;
            let left = u32::from(mapped).saturating_sub(blocks) as usize;
            blocks < MIN_RESHAPE_BLOCKS
                && left > MAX_PAIR_BLOCKS
                && (BITMAP_LEN + left * ENTRY_LEN) * 4 > buf.len() * 3
        };
        match self {
            Leaf::Plain { buf, mapped, shape } if keeps_form(buf, *mapped) => {
                *mapped -= clear_plain((buf, *shape), range, freed);
            }
            Leaf::Packed { buf, mapped } if keeps_form(buf, *mapped) => {
                *mapped -= clear_packed(buf, usize::from(*mapped), range, freed);
            }
            _ => {
                self.load(scratch);
                scratch.replace(range, None, freed);
                self.store(scratch);
            }
        }
    }

    /// Seals long runs whose sums are on media. Returns whether any run is sealed now.
    pub(crate) fn seal(
        &mut self,
        on_media: &mut dyn FnMut(SegmentId) -> bool,
        scratch: &mut RunList,
    ) -> bool {
        if matches!(self, Leaf::Empty | Leaf::Sealed { .. }) {
            return !self.is_empty();
        }
        self.load(scratch);
        scratch.seal(on_media);
        self.store(scratch);
        scratch.iter().any(|run| run.sealed)
    }

    /// Fills `into` with the leaf's content.
    pub(crate) fn load(&self, into: &mut RunList) {
        into.clear();
        if let Leaf::Runs { buf, runs, summed, .. } = self {
            let (words, sums) = list(buf, *runs);
            into.runs.extend(words.iter().map(|word| u64::from_le_bytes(*word)));
            into.sums.extend_from_slice(&arrays(sums)[..usize::from(*summed)]);
        } else {
            self.visit((0, LEAF_BLOCKS), |run, sums| into.push(run, sums));
        }
    }

    /// Takes the content of `from`, in the smallest form.
    pub(crate) fn store(&mut self, from: &RunList) {
        let mapped = from.mapped();
        let summed = from.sums.len();
        let runs_len = from.runs.len() * RUN_LEN + summed * SUM_LEN;
        let packed_len = BITMAP_LEN + mapped as usize * ENTRY_LEN;
        let most_len = packed_len.min(PLAIN_LEN);
        if mapped == 0 {
            *self = Leaf::Empty;
        } else if mapped as usize <= MAX_PAIR_BLOCKS {
            *self = Leaf::Pair(Pair::of(from));
        } else if mapped == LEAF_BLOCKS && summed == 0 && from.runs.len() <= 2 {
            let first = LeafRun::unpack(from.runs[0]);
            let second = from.runs.get(1).map_or(first, |word| LeafRun::unpack(*word));
            *self = Leaf::Sealed {
                split: first.end() as u16,
                first: sum_bytes(first.addr.raw()),
                second: sum_bytes(second.addr.raw()),
            };
        } else if runs_len <= most_len
            && (from.runs.len() <= MAX_FAST_RUNS || runs_len <= most_len / 2)
        {
            self.store_runs(from, runs_len, mapped as u16);
        } else {
            let ends = |run: LeafRun| [run.addr.raw(), run.addr.plus(run.blocks - 1).raw()];
            let shape = Shape::of(from.iter().flat_map(ends));
            let mapped = mapped as u16;
            *self = if packed_len < shape.array_len() {
                Leaf::Packed { buf: packed(from, packed_len), mapped }
            } else {
                let mut found = Vec::with_capacity(usize::from(mapped));
                from.each_block(|block, addr, sum| found.push((block, addr, sum)));
                Leaf::Plain { buf: plain(found.into_iter(), shape), mapped, shape }
            };
        }
    }

    fn store_runs(&mut self, from: &RunList, len: usize, mapped: u16) {
        let (runs, summed) = (from.runs.len() as u16, from.sums.len() as u16);
        let mut buf = match std::mem::take(self) {
            Leaf::Runs { buf, .. } if buf.len() >= len && buf.len() - len <= spare(len) => buf,
            // A growing list is likely to grow again.
            Leaf::Runs { buf, .. } if buf.len() < len => vec![0; len + growth(len)].into(),
            _ => vec![0; len].into(),
        };
        let (words, sums) = buf.split_at_mut(from.runs.len() * RUN_LEN);
        for (to, word) in words.chunks_exact_mut(RUN_LEN).zip(&from.runs) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        sums[..from.sums.len() * SUM_LEN].copy_from_slice(from.sums.as_flattened());
        *self = Leaf::Runs { buf, runs, mapped, summed };
    }
}

/// Most unused bytes of a list of runs of `len` bytes: few for the shortest, of which a sparse
/// volume has many.
fn spare(len: usize) -> usize {
    (len / 3).min(64 + len / 8)
}

/// Unused bytes of a list of runs that has just grown to `len` bytes.
fn growth(len: usize) -> usize {
    (len / 6).min(16 + len / 16)
}

fn packed(from: &RunList, len: usize) -> Box<[u8]> {
    let mut buf = vec![0; len].into_boxed_slice();
    let (bitmap, entries) = buf.split_at_mut(BITMAP_LEN);
    let mut at = 0;
    from.each_block(|block, addr, sum| {
        set_bit(bitmap, block);
        put_entry(entries, at, addr, sum);
        at += 1;
    });
    buf
}

fn plain(blocks: impl Iterator<Item = (u32, u64, Option<u64>)>, shape: Shape) -> Box<[u8]> {
    let mut buf = vec![0xff; shape.array_len()].into_boxed_slice();
    blocks.for_each(|(block, addr, sum)| shape.put(&mut buf, block as usize, addr, sum));
    buf
}

/// Joins the entries that `at` returns for each block into runs.
#[inline]
fn visit_entries<'a>(
    (start, end): (u32, u32),
    mut run: impl FnMut(LeafRun, SumBytes<'a>),
    shape: Shape,
    mut at: impl FnMut(u32) -> Option<(&'a [u8], usize)>,
) {
    let mut open: Option<(LeafRun, SumBytes<'a>)> = None;
    for block in start..end {
        let next = at(block).and_then(|(entries, index)| {
            let (addr, sum) = shape.entry(entries, index)?;
            let bytes = &entries[shape.sum_at(index)..];
            let addr = BlockAddr::from_raw(addr);
            let one = LeafRun { start: block, blocks: 1, addr, sealed: sum.is_none() };
            Some((one, SumBytes { bytes, stride: shape.entry_len() }))
        });
        match (&mut open, next) {
            (Some((before, _)), Some((one, _))) if before.joins(one) => before.blocks += 1,
            (open, next) => {
                if let Some((before, sums)) = std::mem::replace(open, next) {
                    run(before, sums);
                }
            }
        }
    }
    if let Some((before, sums)) = open {
        run(before, sums);
    }
}

#[cfg(test)]
mod tests;
