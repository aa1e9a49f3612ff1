//! Latency distributions: how long a simulated command takes.

use forebay_device::Operation;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::Rng;

/// A distribution of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Latency {
    /// Always the same.
    Constant {
        /// The duration.
        ns: u64,
    },
    /// Uniform between two bounds.
    Uniform {
        /// Shortest.
        min_ns: u64,
        /// Longest.
        max_ns: u64,
    },
    /// Mostly short, sometimes far longer: each doubling of the base is half as likely as the one
    /// before, up to a maximum.
    HeavyTail {
        /// The duration of most commands.
        base_ns: u64,
        /// The longest.
        max_ns: u64,
    },
}

impl Latency {
    /// Draws a duration.
    pub fn sample(self, rng: &mut Rng) -> Nanos {
        Nanos(match self {
            Latency::Constant { ns } => ns,
            Latency::Uniform { min_ns, max_ns } => rng.between(min_ns.min(max_ns), max_ns),
            Latency::HeavyTail { base_ns, max_ns } => {
                let doublings = rng.u64().trailing_ones().min(40);
                let span = base_ns.max(1).saturating_mul(1 << doublings).min(max_ns.max(1));
                rng.between(span / 2, span)
            }
        })
    }
}

/// Latency by kind of command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyModel {
    /// Reads.
    pub read: Latency,
    /// Writes and write-zeroes, to the cache or, with FUA, to the media.
    pub write: Latency,
    /// Flushes.
    pub flush: Latency,
    /// Discards.
    pub discard: Latency,
    /// Added for each KiB transferred.
    pub ns_per_kib: u64,
}

impl LatencyModel {
    /// A flash drive: tens of microseconds, with a tail.
    #[must_use]
    pub fn flash() -> Self {
        Self {
            read: Latency::HeavyTail { base_ns: 60_000, max_ns: 4_000_000 },
            write: Latency::HeavyTail { base_ns: 20_000, max_ns: 8_000_000 },
            flush: Latency::HeavyTail { base_ns: 300_000, max_ns: 20_000_000 },
            discard: Latency::Uniform { min_ns: 10_000, max_ns: 2_000_000 },
            ns_per_kib: 400,
        }
    }

    /// A log device: short and nearly flat.
    #[must_use]
    pub fn log() -> Self {
        Self {
            read: Latency::Uniform { min_ns: 5_000, max_ns: 9_000 },
            write: Latency::Uniform { min_ns: 8_000, max_ns: 14_000 },
            flush: Latency::Uniform { min_ns: 8_000, max_ns: 20_000 },
            discard: Latency::Uniform { min_ns: 8_000, max_ns: 30_000 },
            ns_per_kib: 300,
        }
    }

    /// Draws the latency of one command.
    pub fn sample(&self, operation: Operation, len_bytes: u64, rng: &mut Rng) -> Nanos {
        let kind = match operation {
            Operation::Read
            | Operation::Allocation
            | Operation::Open
            | Operation::Check
            | Operation::Reservation => self.read,
            Operation::Write | Operation::WriteZeroes => self.write,
            Operation::Flush => self.flush,
            Operation::Discard => self.discard,
        };
        let moved_bytes = match operation {
            Operation::Read | Operation::Write => len_bytes,
            _ => 0,
        };
        kind.sample(rng) + Nanos(moved_bytes / 1024 * self.ns_per_kib)
    }
}
