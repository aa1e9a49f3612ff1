//! The busy times of a channel or a link, with room left between reservations.
//!
//! A transfer takes the first free time after its data is ready, also in several pieces. So a
//! transfer whose data is ready late does not hold up one that is reserved after it and ready
//! before, and no free time is lost while data waits. A reservation never moves.

use std::collections::VecDeque;

/// Reserved times, in order; they neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar {
    busy: VecDeque<(u64, u64)>,
}

impl Calendar {
    /// Reserves the first `len_ns` free nanoseconds from `earliest` on. Returns when they are over.
    #[inline]
    pub(crate) fn reserve(&mut self, earliest: u64, len_ns: u64) -> u64 {
        if len_ns == 0 {
            return earliest;
        }
        let first = match self.busy.back_mut() {
            // Mostly the data is ready while the last transfer goes on.
            Some((start, end)) if *start <= earliest && earliest <= *end => {
                *end += len_ns;
                return *end;
            }
            Some((_, end)) if *end >= earliest => self.busy.partition_point(|b| b.1 < earliest),
            _ => {
                self.busy.push_back((earliest, earliest + len_ns));
                return earliest + len_ns;
            }
        };
        let (mut from, mut at, mut left) = (earliest, earliest, len_ns);
        let mut next = first;
        // All free time up to the end is taken: the reservations in between become one.
        let done = loop {
            let Some(&(start, end)) = self.busy.get(next).filter(|b| b.0 <= at + left) else {
                at += left;
                break at;
            };
            from = from.min(start);
            left -= start.saturating_sub(at);
            next += 1;
            if left == 0 {
                at = end;
                break start;
            }
            at = end;
        };
        if first == next {
            self.busy.insert(first, (from, at));
        } else {
            self.busy[first] = (from, at);
            self.busy.drain(first + 1..next);
        }
        done
    }

    /// Forgets what is over: no reservation will ask for a time before `now`.
    #[inline]
    pub(crate) fn forget_before(&mut self, now: u64) {
        while self.busy.front().is_some_and(|b| b.1 < now) {
            self.busy.pop_front();
        }
    }

    /// Forgets all reservations.
    pub(crate) fn clear(&mut self) {
        self.busy.clear();
    }
}

#[cfg(test)]
mod tests;
