//! Busy time of one server, up to any instant: planned operations count when their time comes.

use std::collections::VecDeque;

/// Operations of a server that does one thing at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct BusyTime {
    /// Time of all operations, those that are still planned included.
    read_ns: u128,
    write_ns: u128,
    /// Start, end, and whether it is a write, in order; what is over goes with the next operation.
    recent: VecDeque<(u64, u64, bool)>,
}

impl BusyTime {
    /// Notes an operation, while the clock stands at `now`.
    #[inline]
    pub(crate) fn note(&mut self, now: u64, start: u64, end: u64, is_write: bool) {
        while self.recent.front().is_some_and(|&(_, end, _)| end <= now) {
            self.recent.pop_front();
        }
        self.recent.push_back((start, end, is_write));
        let sum = if is_write { &mut self.write_ns } else { &mut self.read_ns };
        *sum += u128::from(end - start);
    }

    /// Time spent reading and writing up to `now`.
    pub(crate) fn until(&self, now: u64) -> (u128, u128) {
        let planned = |of_writes: bool| -> u128 {
            let later = self.recent.iter().filter(|o| o.1 > now && o.2 == of_writes);
            later.map(|&(start, end, _)| u128::from(end - start.max(now))).sum()
        };
        (self.read_ns - planned(false), self.write_ns - planned(true))
    }

    /// Ends all operations at `now`: power is gone.
    pub(crate) fn cut(&mut self, now: u64) {
        (self.read_ns, self.write_ns) = self.until(now);
        self.recent.clear();
    }
}
