//! Response times: histograms while a load runs, and the percentiles that are kept of them.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The shares of [`Percentiles::at_ms`].
pub const SHARES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.999_9, 0.999_99];
/// Their names.
pub const SHARE_NAMES: [&str; SHARES.len()] = ["p50", "p90", "p99", "p99.9", "p99.99", "p99.999"];

/// How long requests of one kind took. Percentiles are within 1 % of the exact ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Requests that completed.
    pub requests: u64,
    /// Milliseconds within which the share of [`SHARES`] completed; none where not even one
    /// request lies beyond the share, so that no percentile is a guess.
    pub at_ms: [Option<f64>; SHARES.len()],
    /// The longest, exact, in milliseconds.
    pub max_ms: f64,
}

/// Reads and writes apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Responses {
    /// Of reads.
    pub reads: Percentiles,
    /// Of writes, and of whatever else is promised durable.
    pub writes: Percentiles,
}

/// Ranges of response times in a tenfold.
const RANGES_IN_A_DECADE: u32 = 10;
/// Lower edge of the first range.
const FIRST_EDGE_NS: f64 = 100.0;
/// Ranges up to the longest time that counts: an hour.
const RANGES: u32 = 106;

/// Lower edge of a range, in milliseconds. Ten ranges are a tenfold.
#[must_use]
pub fn range_edge_ms(range: u32) -> f64 {
    edge_ns(range) / 1e6
}

fn edge_ns(range: u32) -> f64 {
    // Whole nanoseconds, so that mathematical libraries cannot differ about what lies at an edge.
    (FIRST_EDGE_NS * 10f64.powf(f64::from(range) / f64::from(RANGES_IN_A_DECADE))).round()
}

/// How many requests took how long: ranges with at least one request, each with its count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseCounts {
    /// Of reads.
    pub reads: Vec<(u32, u64)>,
    /// Of writes, and of whatever else is promised durable.
    pub writes: Vec<(u32, u64)>,
}

/// Times of one kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    histogram: Histogram<u64>,
    max_ns: u64,
}

/// Times below this have no finer steps.
const LEAST_NS: u64 = 16;
/// Times above this count as this: an hour.
const MOST_NS: u64 = 3_600_000_000_000;
/// Digits that a time keeps.
const DIGITS: u8 = 2;

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS);
        Self { histogram: histogram.expect("constant bounds are in order"), max_ns: 0 }
    }
}

impl Times {
    #[inline]
    pub(crate) fn note(&mut self, response_ns: u64) {
        self.histogram.saturating_record(response_ns);
        self.max_ns = self.max_ns.max(response_ns);
    }

    fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("the bounds are the same");
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    fn clear(&mut self) {
        self.histogram.reset();
        self.max_ns = 0;
    }

    /// Counts by range; what lies before the first range is in it, and beyond the last in that.
    fn counts(&self, edges_ns: &[u64]) -> Vec<(u32, u64)> {
        let mut counts: Vec<(u32, u64)> = Vec::new();
        for step in self.histogram.iter_recorded() {
            let above = edges_ns.partition_point(|edge| *edge <= step.value_iterated_to());
            let range = above.saturating_sub(1) as u32;
            let count = step.count_since_last_iteration();
            match counts.last_mut() {
                Some((last, sum)) if *last == range => *sum += count,
                _ => counts.push((range, count)),
            }
        }
        counts
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        let requests = self.histogram.len();
        let at = |share: f64| {
            let beyond = requests as f64 * (1.0 - share);
            // A bucket's upper end may lie above the longest time in it.
            let at_ns = self.histogram.value_at_quantile(share).min(self.max_ns);
            (beyond >= 1.0 - 1e-9).then(|| at_ns as f64 / 1e6)
        };
        Percentiles { requests, at_ms: SHARES.map(at), max_ms: self.max_ns as f64 / 1e6 }
    }
}

/// Lower edges of all ranges.
fn edges_ns() -> Vec<u64> {
    (0..RANGES).map(|range| edge_ns(range) as u64).collect()
}

/// Times of reads and of writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct BothTimes {
    reads: Times,
    writes: Times,
}

impl BothTimes {
    #[inline]
    pub(crate) fn note(&mut self, read: bool, response_ns: u64) {
        if read { self.reads.note(response_ns) } else { self.writes.note(response_ns) }
    }

    /// Adds `other` and empties it.
    pub(crate) fn take(&mut self, other: &mut Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        other.reads.clear();
        other.writes.clear();
    }

    pub(crate) fn counts(&self) -> ResponseCounts {
        let edges_ns = edges_ns();
        ResponseCounts {
            reads: self.reads.counts(&edges_ns),
            writes: self.writes.counts(&edges_ns),
        }
    }

    pub(crate) fn responses(&self) -> Responses {
        Responses { reads: self.reads.percentiles(), writes: self.writes.percentiles() }
    }
}

#[cfg(test)]
mod tests;
