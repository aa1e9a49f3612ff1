//! A leaf as a list of runs: the form for every less common change.

use forebay_format::map_record::{LEAF_BLOCKS, LeafRun};
use forebay_units::SegmentId;

use crate::change::{Freed, NewRun};
use crate::memory::heap_bytes;
use crate::sums::{SumBytes, sum_bytes, wide};

/// Shorter runs keep their sums: reading a footer for them costs more than it saves.
const MIN_SEALED_BLOCKS: u32 = 32;

/// Runs in order, and the sums of the unsealed runs.
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

    /// Appends a run. `sums` of a sealed run are empty.
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

    /// Visits each block, with its address and its sum unless that is sealed.
    pub(crate) fn each_block(&self, mut visit: impl FnMut(u32, u64, Option<u64>)) {
        let mut sums = self.sums.iter();
        for run in self.iter() {
            for i in 0..run.blocks {
                let sum = if run.sealed { None } else { sums.next().map(|sum| wide(*sum)) };
                visit(run.start + i, run.addr.raw() + u64::from(i), sum);
            }
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        heap_bytes(self.runs.capacity() * 8) + heap_bytes(self.sums.capacity() * 5)
    }

    /// Replaces the blocks from `start` to `end` by `new`, or by holes. Reports to `freed` the
    /// addresses that are no longer used.
    pub(crate) fn replace(
        &mut self,
        (start, end): (u32, u32),
        new: Option<NewRun<'_>>,
        freed: &mut Freed<'_>,
    ) {
        let first = self.runs.partition_point(|word| LeafRun::unpack(*word).end() <= start);
        let hit =
            self.runs[first..].partition_point(|word| LeafRun::unpack(*word).start < end) + first;
        let count_summed = |words: &[u64]| {
            words.iter().map(|word| LeafRun::packed_summed(*word)).sum::<u32>() as usize
        };
        let sums_from = count_summed(&self.runs[..first]);
        let sums_to = sums_from + count_summed(&self.runs[first..hit]);

        let (mut left, mut right) = (None, None);
        for word in &self.runs[first..hit] {
            let old = LeafRun::unpack(*word);
            let (from, to) = (old.start.max(start), old.end().min(end));
            let old_addr = old.addr.plus(from - old.start);
            let keeps_addr =
                new.is_some_and(|n| n.addr.raw() + u64::from(from - n.start) == old_addr.raw());
            if !keeps_addr {
                freed.add(old_addr, to - from);
            }
            if old.start < start {
                left = Some(LeafRun { blocks: start - old.start, ..old });
            }
            if old.end() > end {
                let addr = old.addr.plus(end - old.start);
                right = Some(LeafRun { start: end, blocks: old.end() - end, addr, ..old });
            }
        }
        let summed = |run: Option<LeafRun>| {
            run.map_or(0, |run| if run.sealed { 0 } else { run.blocks as usize })
        };
        let sums = new.map_or(&[][..], |new| new.sums);
        self.sums.splice(
            sums_from + summed(left)..sums_to - summed(right),
            sums.iter().map(|sum| sum_bytes(*sum)),
        );
        let middle = new.map(|new| {
            let sealed = new.sums.is_empty();
            LeafRun { start, blocks: end - start, addr: new.addr, sealed }
        });
        self.splice_joined((first, hit), [left, middle, right]);
    }

    /// Replaces the runs from index `first` to `hit` by `new`, and joins runs that continue each
    /// other. The two neighboring runs take part.
    fn splice_joined(&mut self, (first, hit): (usize, usize), new: [Option<LeafRun>; 3]) {
        let from = first.saturating_sub(1);
        let to = (hit + 1).min(self.runs.len());
        let before = self.runs[from..first].first().map(|word| LeafRun::unpack(*word));
        let after = self.runs[hit..to].first().map(|word| LeafRun::unpack(*word));
        let [left, middle, right] = new;
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

    /// Seals the runs whose sums are on media and that are long enough.
    pub(crate) fn seal(&mut self, on_media: &mut dyn FnMut(SegmentId) -> bool) {
        let mut joined_runs = 0;
        let mut last: Option<LeafRun> = None;
        for run in self.iter() {
            let joins = last.is_some_and(|last| LeafRun { sealed: run.sealed, ..last }.joins(run));
            joined_runs += u32::from(!joins);
            last = Some(run);
        }
        let is_whole = self.mapped() == LEAF_BLOCKS && joined_runs <= 2;
        let runs = std::mem::take(&mut self.runs);
        let (mut from, mut to) = (0, 0);
        for word in runs {
            let mut run = LeafRun::unpack(word);
            if !run.sealed {
                let blocks = run.blocks as usize;
                if (is_whole || run.blocks >= MIN_SEALED_BLOCKS) && on_media(run.addr.segment()) {
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
