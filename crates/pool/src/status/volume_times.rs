//! How long the operations of one volume took, since import: buckets whose bounds grow by 9 %.

use std::cell::RefCell;

use forebay_units::Nanos;

use super::Timings;
use crate::Pool;

/// Bounds are powers of two to the eighths of a second: 2^(index / 8).
const PER_OCTAVE: f64 = 8.0;
/// From 100 ns to 1024 s.
const FIRST: i32 = -186;
const LAST: i32 = 80;
const BUCKETS: usize = (LAST - FIRST + 1) as usize;

/// What is measured of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measured {
    DurableWrite,
    Flush,
    Read,
}

/// Durable writes, flushes and reads of a volume. Nothing is allocated before the first of each.
#[derive(Default)]
pub(crate) struct VolumeTimes([RefCell<Vec<u64>>; 3]);

impl VolumeTimes {
    pub fn note(&self, what: Measured, took: Nanos) {
        let mut counts = self.0[what as usize].borrow_mut();
        if counts.is_empty() {
            counts.resize(BUCKETS, 0);
        }
        counts[bucket(took)] += 1;
    }

    fn timings(&self) -> [Timings; 3] {
        self.0.each_ref().map(|counts| {
            let counts = counts.borrow();
            let some = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            Timings(some.map(|(at, count)| (bound(at).0, *count)).collect())
        })
    }
}

fn bucket(took: Nanos) -> usize {
    let index = (took.as_secs_f64().max(1e-9).log2() * PER_OCTAVE).ceil() as i32;
    (index.clamp(FIRST, LAST) - FIRST) as usize
}

/// The longest time that falls into a bucket.
fn bound(at: usize) -> Nanos {
    let index = at as i32 + FIRST;
    Nanos(((f64::from(index) / PER_OCTAVE).exp2() * 1e9).round() as u64)
}

impl Pool {
    /// How long durable writes, flushes and reads of each volume took, in this order, to 9 %.
    /// Volumes by name, without the pool's.
    #[must_use]
    pub fn volume_timings(&self) -> Vec<(String, [Timings; 3])> {
        let volumes = self.volumes.borrow();
        let timings = volumes.values().map(|v| (v.name.borrow().clone(), v.times.timings()));
        let mut all: Vec<(String, [Timings; 3])> = timings.collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_bucket_whose_bound_it_does_not_exceed() {
        for nanos in [1, 100, 12_345, 1_000_000, 999_999_999, 1_000_000_001, 60_000_000_000] {
            let at = bucket(Nanos(nanos));
            assert!(nanos <= bound(at).0, "{nanos} {}", bound(at).0);
            assert!(at == 0 || nanos as f64 > bound(at - 1).0 as f64 * 0.999, "{nanos}");
        }
        assert_eq!(bucket(Nanos(u64::MAX)), BUCKETS - 1);
        assert_eq!(bound(bucket(Nanos::from_secs(1))), Nanos::from_secs(1));
    }

    #[test]
    fn each_kind_is_counted_by_itself() {
        let times = VolumeTimes::default();
        times.note(Measured::Read, Nanos::from_secs(1));
        times.note(Measured::Read, Nanos::from_secs(1));
        times.note(Measured::Flush, Nanos::from_secs(4));
        let [durable, flush, read] = times.timings();
        assert_eq!(durable, Timings::default());
        assert_eq!(flush, Timings(vec![(4_000_000_000, 1)]));
        assert_eq!(read, Timings(vec![(1_000_000_000, 2)]));
    }
}
