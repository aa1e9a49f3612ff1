//! Procedures of published measurements, step by step.
//!
//! What enters: a procedure and a maker of loads. What leaves: its steps. What always holds: load,
//! order and times are those of the publication; where it could do what this program cannot, the
//! difference is named here. Who calls: `plan`.

use serde::{Deserialize, Serialize};

use crate::matrix::{MAX_ROUNDS, PtsTest};
use crate::plan::{Maker, READ_PERCENTS};
use crate::{Job, Pattern, Purge, Step, StepKind};

/// A published procedure.
///
/// The talks erased the device first. Here it is discarded unless the operator names another way;
/// flash that ignores discards begins in the state that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Procedure {
    /// The talk of 2010: an hour of writes, an hour of rest, an hour of writes; 64 in flight; 4 KiB
    /// sequential, half random and random, each on the 4 KiB grid and 512 bytes beside it.
    Ddrdrive2010,
    /// The talk of 2012: 80 minutes of random 4 KiB writes, 32 in flight.
    Ddrdrive2012,
    /// The review of 2015: reads and writes mixed, on a drive that was filled before.
    Review2015,
    /// SNIA's performance test specification: write saturation, IOPS and latency.
    SniaPts,
    /// The comparison of engines of 2013: fill, random reads and writes by queue depth, and what
    /// the devices below do meanwhile.
    Ess2013,
}

/// A part of a sustained load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The first second, whose rate the talks print as the sample at time 0.
    FirstSecond,
    /// The hour behind it.
    Fresh,
    /// The hour after the rest.
    Rested,
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

impl Procedure {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Ddrdrive2010, Self::Ddrdrive2012, Self::Review2015, Self::SniaPts, Self::Ess2013];

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ddrdrive2010 => "ddrdrive-2010",
            Self::Ddrdrive2012 => "ddrdrive-2012",
            Self::Review2015 => "review-2015",
            Self::SniaPts => "snia-pts",
            Self::Ess2013 => "ess-2013",
        }
    }

    /// Its steps. A device with blocks of 4 KiB cannot take requests beside the grid.
    pub(crate) fn steps(self, maker: &Maker, block_bytes: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        match self {
            Self::Ddrdrive2010 => {
                for is_aligned in [true, false] {
                    if !is_aligned && block_bytes > 512 {
                        continue;
                    }
                    for pattern in [Pattern::Sequential, Pattern::Mixed, Pattern::Random] {
                        let load = |millis| load(maker, pattern, is_aligned, 64, millis);
                        let kind = |stage| StepKind::Procedure { pattern, is_aligned, stage };
                        steps.push(purge(maker));
                        steps.push(Step { kind: kind(Stage::FirstSecond), job: load(SECOND) });
                        steps.push(Step { kind: kind(Stage::Fresh), job: load(60 * MINUTE) });
                        let job = Job { max_bytes: 0, ..load(60 * MINUTE) };
                        steps.push(Step { kind: StepKind::Idle, job });
                        steps.push(Step { kind: kind(Stage::Rested), job: load(60 * MINUTE) });
                    }
                }
            }
            Self::Ddrdrive2012 => {
                let (pattern, is_aligned) = (Pattern::Random, true);
                let kind = |stage| StepKind::Procedure { pattern, is_aligned, stage };
                let load = |millis| load(maker, pattern, is_aligned, 32, millis);
                steps.push(purge(maker));
                steps.push(Step { kind: kind(Stage::FirstSecond), job: load(SECOND) });
                steps.push(Step { kind: kind(Stage::Fresh), job: load(80 * MINUTE) });
            }
            Self::Review2015 => review(maker, &mut steps),
            Self::SniaPts => snia(maker, block_bytes, &mut steps),
            Self::Ess2013 => engines(maker, block_bytes, &mut steps),
        }
        steps
    }
}

fn purge(maker: &Maker) -> Step {
    maker.purging(Purge::Discard)
}

fn load(maker: &Maker, pattern: Pattern, is_aligned: bool, queue_depth: u32, millis: u64) -> Job {
    let random_percent = match pattern {
        Pattern::Sequential => 0,
        Pattern::Mixed => 50,
        Pattern::Random => 100,
    };
    let offset_bytes = if is_aligned { 0 } else { 512 };
    let sample_ns = maker.shrunk_ns(MINUTE);
    Job { random_percent, offset_bytes, queue_depth, sample_ns, ..maker.job(millis) }
}

/// The drive is filled with 128 KiB writes in order; then 4 KiB at random places over 16 GB with 3
/// in flight, and 128 KiB in order over the whole drive with 1. A minute each: the review does not
/// say how long.
fn review(maker: &Maker, steps: &mut Vec<Step>) {
    const RANDOM_SPAN_BYTES: u64 = 16_000_000_000 >> 20 << 20;
    let fill = Job { random_percent: 0, block_bytes: 128 << 10, ..maker.job(240 * MINUTE) };
    let job = Job { queue_depth: 1, max_bytes: maker.span_bytes, ..fill };
    steps.push(Step { kind: StepKind::Fill, job });
    for (block_bytes, random_percent, queue_depth) in [(4096, 100, 3), (128 << 10, 0, 1)] {
        for read_percent in READ_PERCENTS {
            let job = maker.job(MINUTE);
            let span_bytes = if random_percent == 100 {
                job.span_bytes.min(RANDOM_SPAN_BYTES)
            } else {
                job.span_bytes
            };
            let job =
                Job { random_percent, read_percent, block_bytes, queue_depth, span_bytes, ..job };
            steps.push(Step { kind: StepKind::MixedReads { block_bytes, read_percent }, job });
        }
    }
}

/// Three tests, each on a discarded device. The specification's client load: 32 in flight in all.
fn snia(maker: &Maker, block_bytes: u32, steps: &mut Vec<Step>) {
    const DAY: u64 = 24 * 60 * MINUTE;
    let sample_ns = maker.shrunk_ns(MINUTE);
    steps.push(purge(maker));
    let load = Job { sample_ns, ..maker.job(DAY) };
    let max_bytes = maker.span_bytes.saturating_mul(4);
    steps.push(Step { kind: StepKind::Saturation, job: Job { max_bytes, ..load } });
    for test in [PtsTest::Iops, PtsTest::Latency] {
        steps.push(purge(maker));
        let job = Job {
            random_percent: 0,
            block_bytes: 128 << 10,
            max_bytes: maker.span_bytes.saturating_mul(2),
            ..load
        };
        steps.push(Step { kind: StepKind::Precondition, job });
        for round in 0..MAX_ROUNDS {
            let kind = StepKind::PtsRound { test, round, least_bytes: block_bytes };
            let job = Job { queue_depth: test.queue_depth(), ..maker.job(MINUTE) };
            steps.push(Step { kind, job });
        }
    }
}

/// Queue depths of the comparison.
pub(crate) const ENGINE_DEPTHS: [u32; 4] = [1, 10, 100, 1000];
/// Bytes of the writes whose wear is compared.
pub(crate) const ENGINE_SIZES: [u32; 8] =
    [512, 1024, 2048, 4096, 8192, 16 << 10, 32 << 10, 64 << 10];
/// Requests in flight of those writes.
pub(crate) const ENGINE_WEAR_DEPTH: u32 = 10;

/// The paper does not say for how long: a minute each.
fn engines(maker: &Maker, block_bytes: u32, steps: &mut Vec<Step>) {
    let fill = Job { random_percent: 0, block_bytes: 1 << 20, ..maker.job(24 * 60 * MINUTE) };
    let sample_ns = maker.shrunk_ns(10 * SECOND);
    let fill = Job { queue_depth: 8, max_bytes: maker.span_bytes, sample_ns, ..fill };
    steps.push(Step { kind: StepKind::Fill, job: fill });
    let load = Job { sample_ns: maker.shrunk_ns(SECOND), ..maker.job(MINUTE) };
    for queue_depth in ENGINE_DEPTHS {
        let job = Job { queue_depth, read_percent: 100, max_bytes: 0, ..load };
        steps.push(Step { kind: StepKind::Reads { queue_depth }, job });
    }
    let mut write = |block_bytes, queue_depth| {
        let kind = StepKind::Writes { block_bytes, queue_depth };
        steps.push(Step { kind, job: Job { block_bytes, queue_depth, ..load } });
    };
    ENGINE_DEPTHS.into_iter().for_each(|queue_depth| write(4096, queue_depth));
    for size in ENGINE_SIZES.into_iter().filter(|size| *size >= block_bytes && *size != 4096) {
        write(size, ENGINE_WEAR_DEPTH);
    }
}
