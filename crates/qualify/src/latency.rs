//! Response times: a histogram while a load runs, and what is kept of it.

use forebay_units::Nanos;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Times below this have no finer steps.
const LEAST_NS: u64 = 64;
/// Longer times count as this: an hour.
const MOST_NS: u64 = 3_600_000_000_000;
/// Digits that a time keeps: percentiles are within 0.1 % of the exact ones.
const DIGITS: u8 = 3;

/// How long requests took, in nanoseconds. A percentile beyond which not one request lies is
/// `None`: it would be a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Shortest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 90 % took no longer.
    pub p90_ns: Option<u64>,
    /// 99 %.
    pub p99_ns: Option<u64>,
    /// 99.9 %.
    pub p999_ns: Option<u64>,
    /// 99.99 %.
    pub p9999_ns: Option<u64>,
    /// 99.999 %.
    pub p99999_ns: Option<u64>,
    /// Longest, exact.
    pub max_ns: u64,
}

impl Latency {
    /// Names, shares and values of the percentiles.
    #[must_use]
    pub fn percentiles(&self) -> [(&'static str, f64, Option<u64>); 6] {
        [
            ("p50", 0.5, self.p50_ns),
            ("p90", 0.9, self.p90_ns),
            ("p99", 0.99, self.p99_ns),
            ("p99.9", 0.999, self.p999_ns),
            ("p99.99", 0.999_9, self.p9999_ns),
            ("p99.999", 0.999_99, self.p99999_ns),
        ]
    }
}

/// Times while a load runs.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Times {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_bounds(LEAST_NS, MOST_NS, DIGITS);
        let histogram = histogram.expect("constant bounds are in order");
        Self { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }

    pub(crate) fn add(&mut self, span: Nanos) {
        self.histogram.saturating_record(span.0);
        self.sum_ns += u128::from(span.0);
        self.min_ns = self.min_ns.min(span.0);
        self.max_ns = self.max_ns.max(span.0);
    }

    pub(crate) fn clear(&mut self) {
        self.histogram.reset();
        (self.sum_ns, self.min_ns, self.max_ns) = (0, u64::MAX, 0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn latency(&self) -> Latency {
        let count = self.histogram.len();
        if count == 0 {
            return Latency::default();
        }
        let at = |share: f64| {
            let beyond = count as f64 * (1.0 - share);
            // A bucket's upper end may lie above the longest time in it.
            let at_ns = self.histogram.value_at_quantile(share).clamp(self.min_ns, self.max_ns);
            (beyond >= 1.0 - 1e-9).then_some(at_ns)
        };
        Latency {
            count,
            mean_ns: self.sum_ns as f64 / count as f64,
            min_ns: self.min_ns,
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.999_9),
            p99999_ns: at(0.999_99),
            max_ns: self.max_ns,
        }
    }
}
