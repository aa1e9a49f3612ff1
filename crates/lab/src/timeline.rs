//! One device through a sequence of phases: secure erase, fill, load, idle.

use crate::bench::{Bench, Ended, Limit, LoadRun, Sample};
use crate::load::Load;
use crate::operations::OperationLog;
use crate::queues::{QueueOutcome, Queues};
use crate::recorded::{LeftOut, Recorded};
use crate::responses::{ResponseCounts, Responses};
use crate::{LabError, shrink};
use forebay_flash::DeviceSpec;
use serde::{Deserialize, Serialize};

/// One phase. Minutes are those of the full-size device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// Erase everything; takes no counted time.
    SecureErase,
    /// Write the whole device once in order.
    Fill {
        /// Bytes of a request.
        block_bytes: u32,
    },
    /// A load.
    Load {
        /// How long.
        minutes: f64,
        /// What.
        pattern: Load,
    },
    /// A load until it has moved as many bytes as so many times the device's capacity.
    Passes {
        /// How many times.
        passes: f64,
        /// What.
        pattern: Load,
    },
    /// Several queues, from which the device takes commands by arbitration.
    Queues(Queues),
    /// The requests of a recorded trace. The device then has its full size.
    Trace(Recorded),
    /// Nothing.
    Idle {
        /// How long.
        minutes: f64,
    },
}

fn default_sample() -> f64 {
    1.0
}

/// One device, one seed, some phases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeline {
    /// The device at full size.
    pub device: DeviceSpec,
    /// How many times smaller its model is; 0: as small as stays faithful.
    #[serde(default)]
    pub scale: u32,
    /// Seed of device and load.
    #[serde(default)]
    pub seed: u64,
    /// Time between samples.
    #[serde(default = "default_sample")]
    pub sample_minutes: f64,
    /// In order.
    pub phases: Vec<Phase>,
}

/// One phase's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseOutcome {
    /// Start, in minutes from the start of the first counted phase.
    pub from_minute: f64,
    /// End.
    pub to_minute: f64,
    /// Samples in order.
    pub samples: Vec<Sample>,
    /// How many requests of each sample took how long; nothing for phases without load.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histograms: Vec<ResponseCounts>,
    /// The phase as one sample; nothing for phases without load.
    pub whole: Option<Sample>,
    /// Requests outstanding, integrated by the device over time; and rate times mean response,
    /// counted by the host. By Little's law they are the same. What waits in one of several queues
    /// is not in the device.
    pub little: Option<(f64, f64)>,
    /// Requests outstanding while the load lasts, integrated by the device; and those that the
    /// load keeps outstanding.
    #[serde(default)]
    pub outstanding: Option<(f64, u32)>,
    /// How long requests took in the last sixth of it.
    #[serde(default)]
    pub tail: Responses,
    /// The flash wore out in it.
    #[serde(default)]
    pub worn_out: bool,
    /// Requests of a trace that did not go to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// Of several queues, each one's results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueOutcome>,
}

/// All phases' results and the device's state at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimelineOutcome {
    /// Exact scale that was used.
    pub scale: f64,
    /// In order; phases without samples included.
    pub phases: Vec<PhaseOutcome>,
    /// Host bytes written at full size.
    pub written_bytes: f64,
    /// Media bytes per host byte over the whole run.
    pub amplification: f64,
    /// Share of the medium's servers busy, over the whole run.
    pub utilization: f64,
    /// Mean erase count, and its deviation, over blocks.
    pub erase_mean: f64,
    /// Standard deviation of erase counts.
    pub erase_deviation: f64,
    /// Bytes the link repeated because of bit errors, in transfers.
    pub link_retries: u64,
    /// A number that follows from the model's whole state.
    pub digest: String,
}

impl TimelineOutcome {
    /// The last phase under load.
    #[must_use]
    pub fn last_load(&self) -> Option<&PhaseOutcome> {
        self.phases.iter().rev().find(|p| p.whole.is_some())
    }

    /// All samples in order.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.phases.iter().flat_map(|p| &p.samples)
    }

    /// The mean over the last `minutes` of the last load.
    #[must_use]
    pub fn sustained(&self, minutes: f64) -> Sample {
        let Some(phase) = self.last_load() else { return Sample::default() };
        let from = phase.to_minute - minutes;
        let tail: Vec<&Sample> = phase.samples.iter().filter(|s| s.minute > from + 1e-6).collect();
        mean(&tail)
    }

    /// How long requests took in the last sixth of the last load.
    #[must_use]
    pub fn tail(&self) -> Responses {
        self.last_load().map(|p| p.tail).unwrap_or_default()
    }

    /// The first sample of the first load: what a fresh device does.
    #[must_use]
    pub fn fresh(&self) -> Sample {
        let load = self.phases.iter().find(|p| p.whole.is_some());
        load.and_then(|p| p.samples.first().copied()).unwrap_or_default()
    }
}

/// The mean of samples of equal length.
#[must_use]
pub(crate) fn mean(samples: &[&Sample]) -> Sample {
    let n = samples.len().max(1) as f64;
    let sum = |f: fn(&Sample) -> f64| samples.iter().map(|s| f(s)).sum::<f64>();
    let done = sum(|s| s.iops).max(f64::MIN_POSITIVE);
    Sample {
        minute: samples.last().map_or(0.0, |s| s.minute),
        iops: sum(|s| s.iops) / n,
        mib_s: sum(|s| s.mib_s) / n,
        // Weighted by requests: the mean response of the whole stretch.
        mean_ms: sum(|s| s.mean_ms * s.iops) / done,
        max_ms: samples.iter().map(|s| s.max_ms).fold(0.0, f64::max),
        power_w: sum(|s| s.power_w) / n,
        amplification: sum(|s| s.amplification * s.iops) / done,
        // Percentiles of stretches cannot be put together: `PhaseOutcome::tail` has those.
        responses: Responses::default(),
    }
}

/// Minutes that a phase may last: a year. A longer phase is a mistake in a unit.
const MAX_PHASE_MINUTES: f64 = 366.0 * 24.0 * 60.0;
/// Samples that a phase may have.
const MAX_SAMPLES: f64 = 1e6;

fn check_minutes(field: &'static str, minutes: f64) -> Result<(), LabError> {
    if minutes > 0.0 && minutes <= MAX_PHASE_MINUTES {
        return Ok(());
    }
    Err(LabError::field("timeline", field, minutes, "above 0 and at most 527,040 (a year)"))
}

impl Phase {
    fn check(&self, sample_minutes: f64) -> Result<(), LabError> {
        let samples = |field, minutes: f64| {
            check_minutes(field, minutes)?;
            if minutes / sample_minutes > MAX_SAMPLES {
                let allowed = "at most a million samples long";
                return Err(LabError::field("timeline", field, minutes, allowed));
            }
            Ok(())
        };
        match self {
            Self::SecureErase => Ok(()),
            Self::Fill { block_bytes } => {
                if *block_bytes == 0 || block_bytes % 512 != 0 {
                    let allowed = "a multiple of 512 above 0";
                    return Err(LabError::field("fill", "block_bytes", block_bytes, allowed));
                }
                Ok(())
            }
            Self::Load { minutes, pattern } => {
                samples("load.minutes", *minutes)?;
                pattern.check()
            }
            Self::Passes { passes, pattern } => {
                if !(*passes > 0.0 && *passes <= 1e4) {
                    let allowed = "above 0 and at most 10,000";
                    return Err(LabError::field("timeline", "passes.passes", passes, allowed));
                }
                pattern.check()
            }
            Self::Queues(queues) => {
                samples("queues.minutes", queues.minutes)?;
                queues.check()
            }
            Self::Trace(recorded) => recorded.check(),
            Self::Idle { minutes } => samples("idle.minutes", *minutes),
        }
    }
}

impl Timeline {
    /// Checks that this timeline can run.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), LabError> {
        self.device.check()?;
        check_minutes("sample_minutes", self.sample_minutes)?;
        if self.phases.is_empty() {
            return Err(LabError::field("timeline", "phases", "empty", "a list of phases"));
        }
        if self.has_trace() && self.scale > 1 {
            let allowed = "1 or left out: a trace has places and times of the full size";
            return Err(LabError::field("timeline", "scale", self.scale, allowed));
        }
        self.phases.iter().try_for_each(|phase| phase.check(self.sample_minutes))
    }

    /// Notes what the traces hold now, so that a task with other ones is another task.
    pub(crate) fn note_digests(&mut self) -> Result<(), LabError> {
        self.phases.iter_mut().try_for_each(|phase| match phase {
            Phase::Trace(recorded) => recorded.note_digest(),
            _ => Ok(()),
        })
    }

    fn has_trace(&self) -> bool {
        self.phases.iter().any(|phase| matches!(phase, Phase::Trace(_)))
    }

    /// Runs all phases on one device.
    pub fn run(&self) -> Result<TimelineOutcome, LabError> {
        self.run_noting(None).map(|(outcome, _)| outcome)
    }

    /// Runs all phases on one device, and notes each request in `log`.
    pub(crate) fn run_noting(
        &self,
        log: Option<OperationLog>,
    ) -> Result<(TimelineOutcome, Option<OperationLog>), LabError> {
        self.check()?;
        let scale = if self.has_trace() { 1 } else { self.scale };
        let (device, scale) = shrink::shrink(&self.device, scale)?;
        let mut bench = Bench::new(&device, scale, self.seed)?;
        bench.log = log;
        let mut counting = false;
        let mut phases = Vec::new();
        for (i, phase) in self.phases.iter().enumerate() {
            let counts = !matches!(phase, Phase::SecureErase | Phase::Fill { .. });
            if !counting && counts {
                counting = true;
                bench.start_counting();
            }
            if let Some(log) = &mut bench.log {
                log.phase = i;
            }
            let from_minute = if counting { bench.minute_at(bench.now) } else { 0.0 };
            let outcome = self.run_phase(&mut bench, i, from_minute)?;
            let worn_out = outcome.worn_out;
            phases.push(outcome);
            if worn_out {
                break;
            }
        }
        let stats = bench.stats();
        let outcome = TimelineOutcome {
            scale,
            phases,
            written_bytes: stats.written_bytes as f64 * scale,
            amplification: stats.write_amplification(),
            utilization: stats.media_utilization(),
            erase_mean: stats.wear.mean,
            erase_deviation: stats.wear.deviation,
            link_retries: stats.link_retries,
            digest: format!("{:016x}", bench.digest()),
        };
        Ok((outcome, bench.log))
    }

    fn run_phase(
        &self,
        bench: &mut Bench,
        phase: usize,
        from_minute: f64,
    ) -> Result<PhaseOutcome, LabError> {
        let mut outcome = PhaseOutcome::starting(from_minute);
        match &self.phases[phase] {
            Phase::SecureErase => bench.secure_erase()?,
            Phase::Fill { block_bytes } => bench.fill(*block_bytes, FILL_DEPTH)?,
            Phase::Idle { minutes } => {
                outcome.samples = bench.idle(*minutes, self.sample_minutes);
                outcome.to_minute = bench.minute_at(bench.now);
            }
            Phase::Load { minutes, pattern } => {
                let run = self.load(bench, phase, pattern, *minutes, u64::MAX)?;
                outcome.take(run, pattern.depth(), bench.minute_at(bench.now));
                outcome.to_minute = from_minute + minutes;
            }
            Phase::Passes { passes, pattern } => {
                let bytes = bench.capacity_bytes() as f64 * passes;
                let requests = (bytes / f64::from(pattern.block_bytes)).ceil() as u64;
                let run = self.load(bench, phase, pattern, MAX_PHASE_MINUTES, requests)?;
                outcome.take(run, pattern.depth(), bench.minute_at(bench.now));
            }
            Phase::Queues(queues) => {
                let (run, each) = self.queues(bench, phase, queues)?;
                outcome.take(run, 0, bench.minute_at(bench.now));
                (outcome.to_minute, outcome.queues) = (from_minute + queues.minutes, each);
            }
            Phase::Trace(recorded) => {
                let (run, left_out) = bench.replay(recorded, self.sample_minutes)?;
                outcome.take(run, recorded.outstanding, bench.minute_at(bench.now));
                outcome.left_out = Some(left_out);
            }
        }
        Ok(outcome)
    }

    fn load(
        &self,
        bench: &mut Bench,
        phase: usize,
        pattern: &Load,
        minutes: f64,
        max_requests: u64,
    ) -> Result<LoadRun, LabError> {
        let load = scaled(pattern, bench.scale);
        let limit = Limit { minutes, requests: max_requests };
        bench.run(&load, limit, self.sample_minutes, self.seed_of(phase))
    }

    fn queues(
        &self,
        bench: &mut Bench,
        phase: usize,
        queues: &Queues,
    ) -> Result<(LoadRun, Vec<QueueOutcome>), LabError> {
        let mut queues = queues.clone();
        for queue in &mut queues.queues {
            queue.pattern = scaled(&queue.pattern, bench.scale);
        }
        bench.run_queues(&queues, self.sample_minutes, self.seed_of(phase))
    }

    fn seed_of(&self, phase: usize) -> u64 {
        crate::hash::mix(self.seed.wrapping_add(phase as u64))
    }
}

/// The load on a model `scale` times smaller: a span is given at full size, as capacities are.
fn scaled(pattern: &Load, scale: f64) -> Load {
    Load { span_bytes: (pattern.span_bytes as f64 / scale) as u64, ..pattern.clone() }
}

impl PhaseOutcome {
    fn starting(from_minute: f64) -> Self {
        Self {
            from_minute,
            to_minute: from_minute,
            samples: Vec::new(),
            histograms: Vec::new(),
            whole: None,
            little: None,
            outstanding: None,
            tail: Responses::default(),
            worn_out: false,
            left_out: None,
            queues: Vec::new(),
        }
    }

    fn take(&mut self, run: LoadRun, depth: u32, to_minute: f64) {
        self.to_minute = to_minute;
        (self.samples, self.histograms) = (run.samples, run.histograms);
        self.whole = Some(run.whole);
        self.tail = run.tail;
        self.little = Some(run.little);
        self.outstanding = run.outstanding.map(|kept| (kept, depth));
        self.worn_out = run.ended == Ended::WornOut;
    }
}

/// Requests outstanding while a device is filled.
const FILL_DEPTH: u32 = 8;

#[cfg(test)]
mod tests;
