//! Latency histogram.
//!
//! Latencies enter; count, mean, extremes and percentiles leave. Memory is constant, and a
//! percentile is at most 1/128 above the true value. The load generator calls it.

use forebay_units::Nanos;

/// Buckets per doubling of the latency, as a power of two.
const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;
/// Values of 2^44 ns (almost five hours) and more share the last bucket.
const MAX_BITS: u32 = 44;
const BUCKETS: usize = STEPS * (MAX_BITS - STEP_BITS + 1) as usize;

/// Counts of latencies by length.
#[derive(Clone)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let octave = ns.ilog2() - STEP_BITS;
    let step = (ns >> octave) as usize - STEPS;
    (STEPS * (octave as usize + 1) + step).min(BUCKETS - 1)
}

/// The largest value that falls into the bucket.
fn top_of(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let octave = (bucket / STEPS - 1) as u32;
    let step = (bucket % STEPS + STEPS) as u64;
    ((step + 1) << octave) - 1
}

impl Latencies {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one latency.
    #[inline]
    pub fn add(&mut self, latency: Nanos) {
        self.buckets[bucket_of(latency.0)] += 1;
        self.count += 1;
        self.sum_ns += u128::from(latency.0);
        self.min_ns = self.min_ns.min(latency.0);
        self.max_ns = self.max_ns.max(latency.0);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; zero when the histogram is empty.
    #[must_use]
    pub fn mean(&self) -> Nanos {
        if self.count == 0 {
            return Nanos::ZERO;
        }
        Nanos((self.sum_ns / u128::from(self.count)) as u64)
    }

    /// The shortest latency, exactly; zero when the histogram is empty.
    #[must_use]
    pub fn min(&self) -> Nanos {
        if self.count == 0 { Nanos::ZERO } else { Nanos(self.min_ns) }
    }

    /// The longest latency, exactly.
    #[must_use]
    pub fn max(&self) -> Nanos {
        Nanos(self.max_ns)
    }

    /// The latency that `percent` of all do not exceed: never below the true value, and at most
    /// 1/128 above it. Zero when the histogram is empty.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Nanos {
        let rank = (percent / 100.0 * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                // The last bucket has no upper bound.
                let top = if bucket == BUCKETS - 1 { u64::MAX } else { top_of(bucket) };
                return Nanos(top.min(self.max_ns));
            }
        }
        Nanos(self.max_ns)
    }
}
