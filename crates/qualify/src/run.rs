//! One step of a plan on a device.
//!
//! What enters: a device, a step, an observer. What leaves: the step's outcome. What always holds:
//! an operator who asks to stop gets the outcome of what was done, marked as stopped. Who calls:
//! the command, step by step, so that each outcome is in the log before the next step begins.

use std::cell::Cell;

use forebay_device::{Device, DeviceError};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::content::{Data, Numbers};
use crate::job::{self, Now, failed};
use crate::latency::Times;
use crate::matrix::{self, MixCell};
use crate::steady::{Round, Steadiness, WINDOW_ROUNDS, steadiness};
use crate::{Ended, Job, Latency, Measured, Step, StepKind};

/// What a step left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its kind.
    pub kind: StepKind,
    /// Its load.
    pub job: Job,
    /// Seconds since 1970 at its start.
    pub started_s: u64,
    /// What was measured; of a flush step, its flushes.
    pub measured: Measured,
    /// Rounds of the steady-state test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// What they show; nothing when there were too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steadiness: Option<Steadiness>,
    /// Cells of a round of SNIA's tests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<MixCell>,
    /// What the devices under the target did meanwhile, where their counters are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Traffic>,
    /// Temperature at the end, in degrees Celsius, where there is a sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<f64>,
    /// Mean power while it ran, by sensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power: Vec<Power>,
}

/// What a sensor of power measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Power {
    /// What it measures.
    pub sensor: String,
    /// Its mean.
    pub watts: f64,
}

/// Bytes that devices moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl Traffic {
    fn since(self, before: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

impl Outcome {
    /// Whether the step was done as planned, or passed over as planned.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.measured.ended, Ended::Time | Ended::Bytes | Ended::Needless)
    }

    /// The outcome of a step that the ones before made needless.
    #[must_use]
    pub fn needless(step: &Step) -> Self {
        Self {
            kind: step.kind,
            job: step.job,
            started_s: rt::wall_clock(),
            measured: Measured { ended: Ended::Needless, ..Measured::default() },
            rounds: Vec::new(),
            steadiness: None,
            cells: Vec::new(),
            below: None,
            temperature_c: None,
            power: Vec::new(),
        }
    }
}

/// How far a step is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Time since its start.
    pub elapsed: Nanos,
    /// Requests a second just now.
    pub iops: f64,
    /// Response times of the load so far.
    pub latency: Latency,
}

/// The side of the caller: progress, the wish to stop, sensors.
pub trait Observer {
    /// Told four times a second; `false` ends the step.
    fn goes_on(&self, progress: Progress) -> bool;

    /// Told of the rates of the rounds of a steady-state test, after each round.
    fn rounds(&self, rates: &[f64]) {
        let _ = rates;
    }

    /// What the devices under the target have moved so far.
    fn below(&self) -> Option<Traffic> {
        None
    }

    /// The device's temperature in degrees Celsius.
    fn temperature_c(&self) -> Option<f64> {
        None
    }
}

/// Runs `step` on `device`.
pub async fn run_step(device: &Device, step: &Step, seed: u64, observer: &dyn Observer) -> Outcome {
    let (started_s, below_before) = (rt::wall_clock(), observer.below());
    let (mut rounds, mut steadiness, mut cells) = (Vec::new(), None, Vec::new());
    let measured = match step.kind {
        StepKind::Discard => discard(device, step.job, observer).await,
        // Its caller has the tools for it.
        StepKind::Purge { .. } => Measured { ended: Ended::Needless, ..Measured::default() },
        StepKind::Idle => idle(Nanos(step.job.limit_ns), observer).await,
        StepKind::FlushCost { dirty_blocks } => {
            flushes(device, step.job, dirty_blocks, seed, observer).await
        }
        StepKind::PtsRound { test, round, least_bytes } => {
            let watch = |now: Now| observer.goes_on(progress(now, Nanos::ZERO));
            let (job, of) = (step.job, (least_bytes, seed, round));
            let whole;
            (whole, cells) = matrix::round(device, job, test, of, &watch).await;
            whole
        }
        StepKind::SteadyState { max_rounds } => {
            let whole;
            (whole, rounds, steadiness) =
                steady_rounds(device, step.job, max_rounds, seed, observer).await;
            whole
        }
        _ => {
            let watch = |now: Now| observer.goes_on(progress(now, Nanos::ZERO));
            job::run(device, step.job, (seed, 0), &watch).await
        }
    };
    Outcome {
        kind: step.kind,
        job: step.job,
        started_s,
        measured,
        rounds,
        steadiness,
        cells,
        below: observer.below().zip(below_before).map(|(now, before)| now.since(before)),
        temperature_c: observer.temperature_c(),
        power: Vec::new(),
    }
}

fn progress(now: Now, before: Nanos) -> Progress {
    Progress { elapsed: before + now.elapsed, iops: now.iops, latency: now.latency }
}

/// Discards the span in pieces.
async fn discard(device: &Device, job: Job, observer: &dyn Observer) -> Measured {
    const PIECE_BYTES: u64 = 64 << 20;
    let (begun, mut done_bytes, mut requests) = (rt::now(), 0, 0);
    let ended = loop {
        let elapsed = rt::now().since(begun);
        if done_bytes >= job.span_bytes {
            break Ended::Time;
        }
        if !observer.goes_on(Progress { elapsed, ..Progress::default() }) {
            break Ended::Stopped;
        }
        let len_bytes = PIECE_BYTES.min(job.span_bytes - done_bytes);
        if let Err(error) = device.discard(done_bytes, len_bytes, false).await {
            break failed(&error);
        }
        done_bytes += len_bytes;
        requests += 1;
        rt::yield_now().await;
    };
    let seconds = rt::now().since(begun).as_secs_f64();
    Measured { seconds, requests, ended, ..Measured::default() }
}

async fn idle(limit: Nanos, observer: &dyn Observer) -> Measured {
    const LOOK: Nanos = Nanos::from_millis(250);
    let begun = rt::now();
    let mut ended = Ended::Time;
    while rt::now() < begun + limit {
        rt::sleep_until((begun + limit).min(rt::now() + LOOK)).await;
        let elapsed = rt::now().since(begun);
        if !observer.goes_on(Progress { elapsed, ..Progress::default() }) {
            ended = Ended::Stopped;
            break;
        }
    }
    Measured { seconds: rt::now().since(begun).as_secs_f64(), ended, ..Measured::default() }
}

/// Flushes, each behind `dirty_blocks` random writes that have completed. Only the flushes are
/// timed.
async fn flushes(
    device: &Device,
    job: Job,
    dirty_blocks: u32,
    seed: u64,
    observer: &dyn Observer,
) -> Measured {
    const LOOK: Nanos = Nanos::from_millis(250);
    let (begun, mut times) = (rt::now(), Times::new());
    let (data, mut numbers) = (Data::new(job.content, seed), Numbers::new(seed));
    let written_bytes = Cell::new(0);
    let mut cycle = async || -> Result<Nanos, DeviceError> {
        for _ in 0..dirty_blocks {
            let block = u64::from(job.block_bytes);
            let place = numbers.below(job.span_bytes / block) * block;
            let payload = data.get(numbers.next(), job.block_bytes as usize);
            device.write(place, payload, false).await?;
            written_bytes.set(written_bytes.get() + block);
        }
        let begun = rt::now();
        device.flush().await?;
        Ok(rt::now().since(begun))
    };
    let mut look_at = begun + LOOK;
    let ended = loop {
        let now = rt::now();
        if now >= begun + Nanos(job.limit_ns) {
            break Ended::Time;
        }
        if now >= look_at {
            look_at = now + LOOK;
            let iops = times.count() as f64 / now.since(begun).as_secs_f64();
            let (elapsed, latency) = (now.since(begun), times.latency());
            if !observer.goes_on(Progress { elapsed, iops, latency }) {
                break Ended::Stopped;
            }
        }
        let cycle_bytes = u64::from(dirty_blocks) * u64::from(job.block_bytes);
        if written_bytes.get() + cycle_bytes > job.max_bytes {
            break Ended::Bytes;
        }
        match cycle().await {
            Ok(span) => times.add(span),
            Err(error) => break failed(&error),
        }
        // A device that answers at once must not keep the other tasks out.
        rt::yield_now().await;
    };
    Measured {
        seconds: rt::now().since(begun).as_secs_f64(),
        requests: times.count(),
        written_bytes: written_bytes.get(),
        latency: times.latency(),
        ended,
        ..Measured::default()
    }
}

/// Rounds until the last five are steady, or there have been `max_rounds`.
async fn steady_rounds(
    device: &Device,
    job: Job,
    max_rounds: u32,
    seed: u64,
    observer: &dyn Observer,
) -> (Measured, Vec<Round>, Option<Steadiness>) {
    let mut whole = Measured::default();
    let (mut rounds, mut values) = (Vec::new(), Vec::new());
    for number in 0..max_rounds {
        let before = Nanos((whole.seconds * 1e9) as u64);
        let watch = |now: Now| observer.goes_on(progress(now, before));
        let round = job::run(device, job, (seed, u64::from(number)), &watch).await;
        let from_s = whole.seconds;
        let iops = round.iops();
        whole.seconds += round.seconds;
        whole.requests += round.requests;
        whole.written_bytes += round.written_bytes;
        whole.latency = round.latency;
        let later = round.samples.iter().map(|s| job::Sample { at_s: s.at_s + from_s, ..*s });
        whole.samples.extend(later);
        let is_whole = matches!(round.ended, Ended::Time | Ended::Bytes);
        whole.ended = round.ended;
        if !is_whole {
            break;
        }
        rounds.push(Round { iops, latency: round.latency });
        values.push(iops);
        observer.rounds(&values);
        if values.len() >= WINDOW_ROUNDS && steadiness(&values).is_some_and(|s| s.is_reached) {
            break;
        }
    }
    let steadiness = steadiness(&values);
    (whole, rounds, steadiness)
}
