//! The timeline of one die: host reads go first, other work is done in order.

use std::collections::VecDeque;

use crate::spec::Suspend;

/// What a die does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Reads a page for the host.
    HostRead,
    /// Reads a page that cleaning moves.
    CleanRead,
    /// Programs a page of every plane.
    Program,
    /// Erases a block of every plane.
    Erase,
}

/// One operation, planned or in progress.
#[derive(Clone, Copy, Debug)]
struct Operation {
    start: u64,
    end: u64,
    work: Work,
}

/// Whether a host read may interrupt an operation, and what that costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendRule {
    pub suspend: Suspend,
    pub cost_ns: u64,
}

impl SuspendRule {
    fn covers(&self, work: Work) -> bool {
        match (self.suspend, work) {
            (Suspend::None, _) | (_, Work::HostRead | Work::CleanRead) => false,
            (Suspend::Erase, work) => work == Work::Erase,
            (Suspend::ProgramAndErase, Work::Program | Work::Erase) => true,
        }
    }
}

/// Busy time by kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyTimes {
    pub read_ns: u128,
    pub program_ns: u128,
    pub erase_ns: u128,
}

impl BusyTimes {
    fn of(&mut self, work: Work) -> &mut u128 {
        match work {
            Work::HostRead | Work::CleanRead => &mut self.read_ns,
            Work::Program => &mut self.program_ns,
            Work::Erase => &mut self.erase_ns,
        }
    }
}

/// The timeline of a die. Operations are in order and do not overlap.
#[derive(Clone, Debug)]
pub(super) struct Die {
    operations: VecDeque<Operation>,
    /// When the last host read ends.
    reads_done: u64,
    /// When a die without operations became idle.
    idle_from: u64,
    /// Time of all operations, those that are still planned included.
    busy: BusyTimes,
}

impl Die {
    /// A die without work from `now` on.
    pub(super) fn idle(now: u64) -> Self {
        let busy = BusyTimes::default();
        Self { operations: VecDeque::new(), reads_done: now, idle_from: now, busy }
    }

    /// When all work is done.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.operations.back().map_or(self.idle_from, |last| last.end)
    }

    /// When the last operation starts.
    #[inline]
    pub(super) fn last_start(&self) -> u64 {
        self.operations.back().map_or(self.idle_from, |last| last.start)
    }

    /// When the last host read ends.
    #[inline]
    pub(super) fn reads_done(&self) -> u64 {
        self.reads_done
    }

    /// Forgets operations that ended by `now`: no call will ask for a time before it.
    #[inline]
    pub(super) fn forget_before(&mut self, now: u64) {
        while let Some(done) = self.operations.front().filter(|first| first.end <= now) {
            self.idle_from = done.end;
            self.operations.pop_front();
        }
    }

    /// Appends work that can start at `ready`. Returns when it ends.
    #[inline]
    pub(super) fn append(&mut self, work: Work, ready: u64, len_ns: u64) -> u64 {
        let start = self.free().max(ready);
        let end = start + len_ns;
        self.operations.push_back(Operation { start, end, work });
        *self.busy.of(work) += u128::from(len_ns);
        end
    }

    /// Reads a page for the host from `ready` on: after earlier host reads and the operation in
    /// progress, which it may suspend, and before everything that has not started. Returns when
    /// the page is read. Work behind it is done later; an end that was returned stays as it was.
    pub(super) fn read(&mut self, ready: u64, len_ns: u64, rule: SuspendRule) -> u64 {
        let mut start = ready.max(self.reads_done);
        let mut at = self.operations.partition_point(|o| o.end <= start);
        if let Some(current) = self.operations.get_mut(at).filter(|o| o.start < start) {
            let left = current.end - start;
            at += 1;
            if rule.covers(current.work) && rule.cost_ns < left {
                let work = current.work;
                current.end = start;
                start += rule.cost_ns;
                let rest = Operation { start, end: start + left, work };
                self.operations.insert(at, rest);
            } else {
                start = current.end;
            }
        }
        let end = start + len_ns;
        self.operations.insert(at, Operation { start, end, work: Work::HostRead });
        self.busy.read_ns += u128::from(len_ns);
        self.reads_done = end;
        let mut free = end;
        for later in self.operations.range_mut(at + 1..) {
            if later.start >= free {
                break;
            }
            let delay = free - later.start;
            later.start += delay;
            later.end += delay;
            free = later.end;
        }
        end
    }

    /// Busy time up to `now`.
    pub(super) fn busy_until(&self, now: u64) -> BusyTimes {
        let mut busy = self.busy;
        for planned in self.operations.iter().filter(|o| o.end > now) {
            *busy.of(planned.work) -= u128::from(planned.end - planned.start.max(now));
        }
        busy
    }

    /// Ends all work at `now`: power is gone. The die is idle from `idle_from` on.
    pub(super) fn cut(&mut self, now: u64, idle_from: u64) {
        let busy = self.busy_until(now);
        *self = Self { busy, ..Self::idle(idle_from) };
    }
}

#[cfg(test)]
mod tests;
