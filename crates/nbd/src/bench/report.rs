//! Report of a run, as text and as JSON.

use std::fmt;

use forebay_units::{Nanos, format_bytes};
use serde::{Deserialize, Serialize};

use super::args::{BenchArgs, Pattern};
use crate::latency::Latencies;

/// Version of the JSON of a report.
pub const RESULT_FORMAT: &str = "forebay-bench-nbd/1";

/// Latencies of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the percentiles")]
pub struct LatencyReport {
    pub count: u64,
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    #[serde(rename = "p99.9_us")]
    pub p999_us: f64,
    #[serde(rename = "p99.99_us")]
    pub p9999_us: f64,
    pub max_us: f64,
}

impl From<&Latencies> for LatencyReport {
    fn from(all: &Latencies) -> Self {
        let us = |ns: Nanos| ns.0 as f64 / 1e3;
        Self {
            count: all.count(),
            mean_us: us(all.mean()),
            min_us: us(all.min()),
            p50_us: us(all.percentile(50.0)),
            p90_us: us(all.percentile(90.0)),
            p99_us: us(all.percentile(99.0)),
            p999_us: us(all.percentile(99.9)),
            p9999_us: us(all.percentile(99.99)),
            max_us: us(all.max()),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchReport {
    /// [`RESULT_FORMAT`].
    pub format: String,
    /// The arguments of the run.
    pub arguments: BenchArgs,
    /// Size of the export in bytes.
    pub export_bytes: u64,
    /// Measured time in seconds.
    pub seconds: f64,
    /// The run was stopped before its end.
    pub interrupted: bool,
    /// Reads and writes completed; flushes are not counted.
    pub requests: u64,
    /// Reads and writes per second.
    pub iops: f64,
    /// Data read and written, in millions of bytes per second.
    pub mb_per_second: f64,
    /// Reads; `None` for a run without reads.
    pub reads: Option<LatencyReport>,
    /// Writes, with the flush of `flush_each`; `None` for a run without writes.
    pub writes: Option<LatencyReport>,
    /// The flushes alone; `None` for a run without flushes.
    pub flushes: Option<LatencyReport>,
}

impl BenchReport {
    /// The report as one JSON document.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data")
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = &self.arguments;
        let pattern = match args.pattern {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        };
        writeln!(
            f,
            "{} {pattern}, {} % reads, {} connection(s) x {} in flight{}{}, {:.1} s{}",
            format_bytes(args.block_size),
            args.read_percent,
            args.connections,
            args.queue_depth,
            if args.fua { ", FUA" } else { "" },
            if args.flush_each { ", flush after each write" } else { "" },
            self.seconds,
            if self.interrupted { " (interrupted)" } else { "" },
        )?;
        writeln!(f, "{:>12.0} requests/s   {:.1} MB/s", self.iops, self.mb_per_second)?;
        let kinds = [("reads", self.reads), ("writes", self.writes), ("flushes", self.flushes)];
        for (name, report) in kinds {
            let Some(r) = report else { continue };
            writeln!(
                f,
                "{name:>8}: {} | latency in us: mean {:.1}  min {:.1}  p50 {:.1}  p90 {:.1}  \
                 p99 {:.1}  p99.9 {:.1}  p99.99 {:.1}  max {:.1}",
                r.count,
                r.mean_us,
                r.min_us,
                r.p50_us,
                r.p90_us,
                r.p99_us,
                r.p999_us,
                r.p9999_us,
                r.max_us
            )?;
        }
        Ok(())
    }
}
