//! Polls that kept all other tasks of the thread waiting for long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;

use forebay_units::Nanos;

use crate::executor;

/// Shorter polls are not counted.
const LONG: Nanos = Nanos::from_micros(500);

/// The long polls of the tasks that were started at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongPolls {
    /// File and line where the tasks were started.
    pub place: String,
    /// Polls of 500 µs or more.
    pub count: u64,
    /// Their sum.
    pub total: Nanos,
    /// The longest.
    pub longest: Nanos,
    /// When the longest ended.
    pub longest_at: Nanos,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    count: u64,
    total: Nanos,
    longest: Nanos,
    longest_at: Nanos,
}

/// Long polls by the place where their tasks were started.
#[derive(Default)]
pub(crate) struct PollRecord {
    sums: RefCell<BTreeMap<(&'static str, u32), Sum>>,
}

impl PollRecord {
    #[inline]
    pub(crate) fn note(&self, place: &'static Location<'static>, begun: Nanos, ended: Nanos) {
        let span = ended.since(begun);
        if span >= LONG {
            self.add(place, span, ended);
        }
    }

    #[cold]
    fn add(&self, place: &'static Location<'static>, span: Nanos, ended: Nanos) {
        let mut sums = self.sums.borrow_mut();
        let sum = sums.entry((place.file(), place.line())).or_default();
        sum.count += 1;
        sum.total = sum.total + span;
        if span > sum.longest {
            (sum.longest, sum.longest_at) = (span, ended);
        }
    }
}

/// Long polls of the current runtime since its start, the longest first. Under simulation a poll
/// takes what [`crate::model_work`] says of it. In production the figures include time in which the
/// kernel gave the processor to others.
#[must_use]
pub fn long_polls() -> Vec<LongPolls> {
    let mut found: Vec<LongPolls> = executor::with(|inner| {
        let sums = inner.polls.sums.borrow();
        let each = sums.iter().map(|((file, line), sum)| LongPolls {
            place: format!("{file}:{line}"),
            count: sum.count,
            total: sum.total,
            longest: sum.longest,
            longest_at: sum.longest_at,
        });
        each.collect()
    });
    found.sort_by_key(|polls| std::cmp::Reverse(polls.longest));
    found
}
