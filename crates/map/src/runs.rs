//! A leaf as a list of runs: the form in which every less common change is made.

use forebay_format::map_record::{LEAF_BLOCKS, LeafRun};
use forebay_units::{BlockAddr, SegmentId};

use crate::leaf::SumBytes;
use crate::memory::heap_bytes;

/// Shorter runs keep their sums: reading a footer for them costs more than it saves.
const SEAL_BLOCKS: u32 = 32;

/// Tells of freed addresses, consecutive ones joined.
pub(crate) struct Freed<'f> {
    pending: Option<(BlockAddr, u32)>,
    tell: &'f mut dyn FnMut(BlockAddr, u32),
}

impl<'f> Freed<'f> {
    pub(crate) fn new(tell: &'f mut dyn FnMut(BlockAddr, u32)) -> Self {
        Self { pending: None, tell }
    }

    pub(crate) fn add(&mut self, addr: BlockAddr, blocks: u32) {
        match &mut self.pending {
            Some((first, count)) if continues(*first, *count, addr) => *count += blocks,
            pending => {
                if let Some((first, count)) = pending.replace((addr, blocks)) {
                    (self.tell)(first, count);
                }
            }
        }
    }

    pub(crate) fn finish(mut self) {
        if let Some((first, count)) = self.pending.take() {
            (self.tell)(first, count);
        }
    }
}

/// Whether `next` is the address after `blocks` from `first` on, in the same segment.
#[inline]
pub(crate) fn continues(first: BlockAddr, blocks: u32, next: BlockAddr) -> bool {
    first.raw() + u64::from(blocks) == next.raw() && first.segment() == next.segment()
}

/// What a range of a leaf is to hold.
#[derive(Clone, Copy)]
pub(crate) struct NewRun<'a> {
    pub(crate) start: u32,
    pub(crate) addr: BlockAddr,
    /// One per block.
    pub(crate) sums: &'a [u64],
}

/// Runs in order, and the sums of those that are not sealed.
#[derive(Default)]
pub(crate) struct RunList {
    pub(crate) runs: Vec<u64>,
    pub(crate) sums: Vec<[u8; 5]>,
}

impl RunList {
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.sums.clear();
    }

    /// Adds a run behind all others; `sums` of a sealed one are not there.
    pub(crate) fn push(&mut self, run: LeafRun, sums: SumBytes<'_>) {
        if !run.sealed {
            self.sums.extend(sums.iter(run.blocks));
        }
        self.push_run(run);
    }

    pub(crate) fn push_run(&mut self, run: LeafRun) {
        if let Some(last) = self.runs.last_mut() {
            let before = LeafRun::unpack(*last);
            if before.joins(run) {
                *last = LeafRun { blocks: before.blocks + run.blocks, ..before }.pack();
                return;
            }
        }
        self.runs.push(run.pack());
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = LeafRun> {
        self.runs.iter().map(|word| LeafRun::unpack(*word))
    }

    pub(crate) fn mapped(&self) -> u32 {
        self.runs.iter().map(|word| LeafRun::packed_blocks(*word)).sum()
    }

    /// Tells of each block, with its address and its sum unless that is sealed.
    pub(crate) fn each_block(&self, mut tell: impl FnMut(u32, u64, Option<u64>)) {
        let mut sums = self.sums.iter();
        for run in self.iter() {
            for i in 0..run.blocks {
                let sum = if run.sealed { None } else { sums.next().map(|sum| wide(*sum)) };
                tell(run.start + i, run.addr.raw() + u64::from(i), sum);
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        heap_bytes(self.runs.capacity() * 8) + heap_bytes(self.sums.capacity() * 5)
    }

    /// Makes the blocks from `start` to `end` what `new` says, or holes. `freed` hears of the
    /// addresses that they had and have no more.
    pub(crate) fn replace(
        &mut self,
        (start, end): (u32, u32),
        new: Option<NewRun<'_>>,
        freed: &mut Freed<'_>,
    ) {
        let first = self.runs.partition_point(|word| LeafRun::unpack(*word).end() <= start);
        let hit =
            self.runs[first..].partition_point(|word| LeafRun::unpack(*word).start < end) + first;
        let summed = |words: &[u64]| {
            words.iter().map(|word| LeafRun::packed_summed(*word)).sum::<u32>() as usize
        };
        let sums_from = summed(&self.runs[..first]);
        let sums_to = sums_from + summed(&self.runs[first..hit]);

        let mut left = None;
        let mut right = None;
        let (mut left_sums, mut right_sums) = (0, 0);
        for word in &self.runs[first..hit] {
            let old = LeafRun::unpack(*word);
            let (from, to) = (old.start.max(start), old.end().min(end));
            let freed_addr = old.addr.plus(from - old.start);
            if new
                .is_none_or(|new| new.addr.raw() + u64::from(from - new.start) != freed_addr.raw())
            {
                freed.add(freed_addr, to - from);
            }
            if old.start < start {
                let blocks = start - old.start;
                left = Some(LeafRun { blocks, ..old });
                left_sums = if old.sealed { 0 } else { blocks as usize };
            }
            if old.end() > end {
                let blocks = old.end() - end;
                right = Some(LeafRun {
                    start: end,
                    blocks,
                    addr: old.addr.plus(end - old.start),
                    sealed: old.sealed,
                });
                right_sums = if old.sealed { 0 } else { blocks as usize };
            }
        }
        let sums = new.map_or(&[][..], |new| new.sums);
        self.sums.splice(
            sums_from + left_sums..sums_to - right_sums,
            sums.iter().map(|sum| sum_bytes(*sum)),
        );
        let middle =
            new.map(|new| LeafRun { start, blocks: end - start, addr: new.addr, sealed: false });
        // The neighbours take part, as the new run may carry one on and be carried on by another.
        let from = first.saturating_sub(1);
        let to = (hit + 1).min(self.runs.len());
        let before = self.runs[from..first].first().map(|word| LeafRun::unpack(*word));
        let after = self.runs[hit..to].first().map(|word| LeafRun::unpack(*word));
        let mut joined = [0u64; 5];
        let mut count = 0;
        let mut last: Option<LeafRun> = None;
        for run in [before, left, middle, right, after].into_iter().flatten() {
            match &mut last {
                Some(last) if last.joins(run) => {
                    last.blocks += run.blocks;
                    joined[count - 1] = last.pack();
                }
                _ => {
                    joined[count] = run.pack();
                    count += 1;
                    last = Some(run);
                }
            }
        }
        self.runs.splice(from..to, joined[..count].iter().copied());
    }

    /// Seals what is worth it and has its sums on media.
    pub(crate) fn seal(&mut self, on_media: &mut dyn FnMut(SegmentId) -> bool) {
        let mut places = 0;
        let mut last: Option<LeafRun> = None;
        for run in self.iter() {
            let joins = last.is_some_and(|last| LeafRun { sealed: run.sealed, ..last }.joins(run));
            places += u32::from(!joins);
            last = Some(run);
        }
        let whole = self.mapped() == LEAF_BLOCKS && places <= 2;
        let runs = std::mem::take(&mut self.runs);
        let (mut from, mut to) = (0, 0);
        for word in runs {
            let mut run = LeafRun::unpack(word);
            if !run.sealed {
                let blocks = run.blocks as usize;
                if (whole || run.blocks >= SEAL_BLOCKS) && on_media(run.addr.segment()) {
                    run.sealed = true;
                } else {
                    self.sums.copy_within(from..from + blocks, to);
                    to += blocks;
                }
                from += blocks;
            }
            self.push_run(run);
        }
        self.sums.truncate(to);
    }
}

/// The five bytes that a sum is kept in.
#[inline]
pub(crate) fn sum_bytes(sum: u64) -> [u8; 5] {
    assert!(sum >> 40 == 0, "a block sum has 40 bits");
    let [a, b, c, d, e, ..] = sum.to_le_bytes();
    [a, b, c, d, e]
}

/// The number in five bytes.
#[inline]
pub(crate) fn wide(bytes: [u8; 5]) -> u64 {
    let [a, b, c, d, e] = bytes;
    u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
}
