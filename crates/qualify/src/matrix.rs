//! Rounds of SNIA's tests: every mix of reads and writes at every size, one after the other.
//!
//! What enters: a device, the load of one cell, the tests' sizes and mixes. What leaves: a figure
//! for each cell. What always holds: a round is a step of its own, so that a crash costs one round;
//! rounds behind a steady state are passed over. Who calls: `run`, `plan`.

use forebay_device::Device;
use serde::{Deserialize, Serialize};

use crate::job::{self, Now, Sample};
use crate::steady::{Steadiness, steadiness};
use crate::{Ended, Job, Latency, Measured, Outcome, StepKind};

/// A test of SNIA's performance test specification that goes in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PtsTest {
    /// IOPS: seven mixes of eight sizes, 32 in flight.
    Iops,
    /// Latency: three mixes of three sizes, one in flight.
    Latency,
}

/// Rounds at most: a device that is not steady by then is called so.
pub(crate) const MAX_ROUNDS: u32 = 25;
/// The mix that tells whether the device is steady.
const TRACKED: (u8, u32) = (0, 4096);

impl PtsTest {
    /// Percent of reads, in order.
    #[must_use]
    pub fn read_percents(self) -> &'static [u8] {
        match self {
            Self::Iops => &[100, 95, 65, 50, 35, 5, 0],
            Self::Latency => &[100, 65, 0],
        }
    }

    /// Bytes of a request, in order.
    #[must_use]
    pub fn sizes(self) -> &'static [u32] {
        match self {
            Self::Iops => &[1 << 20, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8192, 4096, 512],
            Self::Latency => &[8192, 4096, 512],
        }
    }

    /// Requests in flight.
    pub(crate) fn queue_depth(self) -> u32 {
        match self {
            Self::Iops => 32,
            Self::Latency => 1,
        }
    }

    /// Mix and size of each cell of a round, in order, on a device of these blocks.
    pub(crate) fn cells(self, least_bytes: u32) -> impl Iterator<Item = (u8, u32)> {
        let sizes = move || self.sizes().iter().filter(move |size| **size >= least_bytes);
        self.read_percents().iter().flat_map(move |percent| sizes().map(|size| (*percent, *size)))
    }
}

/// What a cell of a round measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixCell {
    /// Percent of reads.
    pub read_percent: u8,
    /// Bytes of a request.
    pub block_bytes: u32,
    /// Requests a second.
    pub iops: f64,
    /// Response times.
    pub latency: Latency,
}

/// Runs a round: each cell for the time of `job`.
pub(crate) async fn round(
    device: &Device,
    job: Job,
    test: PtsTest,
    (least_bytes, seed, number): (u32, u64, u32),
    watch: &dyn Fn(Now) -> bool,
) -> (Measured, Vec<MixCell>) {
    let (mut whole, mut cells) = (Measured::default(), Vec::new());
    for (turn, (read_percent, block_bytes)) in test.cells(least_bytes).enumerate() {
        let cell = Job { read_percent, block_bytes, ..job };
        let turn = u64::from(number) << 8 | turn as u64;
        let measured = job::run(device, cell, (seed, turn), watch).await;
        let from_s = whole.seconds;
        whole.seconds += measured.seconds;
        whole.requests += measured.requests;
        whole.written_bytes += measured.written_bytes;
        whole.read_bytes += measured.read_bytes;
        whole.samples.push(Sample {
            at_s: from_s + measured.seconds,
            iops: measured.iops(),
            p50_ns: measured.latency.p50_ns,
            p99_ns: measured.latency.p99_ns,
            max_ns: measured.latency.max_ns,
        });
        let (iops, latency) = (measured.iops(), measured.latency);
        let is_whole = matches!(measured.ended, Ended::Time | Ended::Bytes);
        whole.ended = measured.ended;
        if !is_whole {
            break;
        }
        cells.push(MixCell { read_percent, block_bytes, iops, latency });
    }
    (whole, cells)
}

/// Rounds of a test that were run, in order.
pub(crate) fn rounds(outcomes: &[Outcome], test: PtsTest) -> impl Iterator<Item = &Outcome> {
    outcomes.iter().filter(move |outcome| {
        let is_of = matches!(outcome.kind, StepKind::PtsRound { test: of, .. } if of == test);
        is_of && !outcome.cells.is_empty() && outcome.is_whole()
    })
}

/// What the rounds so far show: of writes of 4 KiB a second, or of their mean response.
#[must_use]
pub fn pts_steadiness(outcomes: &[Outcome], test: PtsTest) -> Option<Steadiness> {
    let tracked = |outcome: &Outcome| {
        let cell = outcome.cells.iter().find(|c| (c.read_percent, c.block_bytes) == TRACKED)?;
        Some(match test {
            PtsTest::Iops => cell.iops,
            PtsTest::Latency => cell.latency.mean_ns,
        })
    };
    let values: Vec<f64> = rounds(outcomes, test).filter_map(tracked).collect();
    steadiness(&values)
}
