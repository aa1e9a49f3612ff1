//! Plan of a qualification: its steps, how long they take, how much they write.
//!
//! What enters: a profile, a purpose, the device's size. What leaves: steps in order. What always
//! holds: a plan is a value that depends on what enters alone, so that a run can be taken up again.
//! Who calls: the command, before anything is written; `run`.

use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::content::CONTENT_TURNS;
use crate::matrix::{self, PtsTest};
use crate::procedure::{Procedure, Stage};
use crate::{Content, Job, Outcome, Part, Purge, Purpose, Sync};

/// How thorough a qualification is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// About two minutes.
    #[default]
    Quick,
    /// About an hour.
    Standard,
    /// About a day.
    Full,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Quick, Self::Standard, Self::Full];

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }

    fn lengths(self) -> &'static Lengths {
        match self {
            Self::Quick => &QUICK,
            Self::Standard => &STANDARD,
            Self::Full => &FULL,
        }
    }
}

/// Milliseconds of the steps of a profile.
struct Lengths {
    /// Filling, at most.
    fill: u64,
    flush: u64,
    content_turn: u64,
    alignment_turn: u64,
    sustained: [u64; 3],
    round: u64,
    max_rounds: u32,
    idle: u64,
    recovery: u64,
    latency: u64,
    mixed: u64,
    sample: u64,
    /// Bytes of the device that are used, at most.
    max_span_bytes: u64,
}

const QUICK: Lengths = Lengths {
    fill: 15_000,
    flush: 1_000,
    content_turn: 1_000,
    alignment_turn: 1_000,
    sustained: [8_000, 8_000, 8_000],
    round: 3_000,
    max_rounds: 8,
    idle: 5_000,
    recovery: 3_000,
    latency: 1_500,
    mixed: 750,
    sample: 250,
    max_span_bytes: 1 << 30,
};
const STANDARD: Lengths = Lengths {
    fill: 600_000,
    flush: 10_000,
    content_turn: 20_000,
    alignment_turn: 20_000,
    sustained: [240_000, 240_000, 240_000],
    round: 60_000,
    max_rounds: 25,
    idle: 60_000,
    recovery: 30_000,
    latency: 20_000,
    mixed: 10_000,
    sample: 1_000,
    max_span_bytes: 64 << 30,
};
const FULL: Lengths = Lengths {
    fill: 14_400_000,
    flush: 60_000,
    content_turn: 60_000,
    alignment_turn: 60_000,
    sustained: [3_600_000, 3_600_000, 43_200_000],
    round: 60_000,
    max_rounds: 25,
    idle: 3_600_000,
    recovery: 600_000,
    latency: 600_000,
    mixed: 300_000,
    sample: 10_000,
    max_span_bytes: u64::MAX,
};

/// Queue depths of the latency sweep.
pub(crate) const QUEUE_DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Percent of reads of the mixed sweeps.
pub(crate) const READ_PERCENTS: [u8; 6] = [100, 80, 60, 40, 20, 0];
/// Turns of two loads that are compared: they alternate, so that a drift of the device hits both.
pub(crate) const TURNS: u32 = 5;
/// Writes before a flush that is measured.
pub(crate) const DIRTY_BLOCKS: [u32; 3] = [0, 1, 64];
/// Requests in flight of the loads for throughput.
const THROUGHPUT_DEPTH: u32 = 32;
/// What a step may write a second, for the promise that a plan makes.
const MAX_BYTES_PER_S: u64 = 1 << 30;
/// The smallest span in which the loads make sense.
pub const MIN_SPAN_BYTES: u64 = 16 << 20;

/// Where the writes of a sustained load go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// One behind the other.
    Sequential,
    /// Half of them at random places.
    Mixed,
    /// At random places.
    Random,
}

impl Pattern {
    /// As pages print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Mixed => "half random",
            Self::Random => "random",
        }
    }
}

/// What a step measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Writes the span once in order.
    Fill,
    /// 4 KiB writes that are not made durable, one at a time.
    PlainWrites,
    /// Flushes, each behind so many 4 KiB writes.
    FlushCost {
        /// The writes.
        dirty_blocks: u32,
    },
    /// Random 4 KiB writes of one content, in turn with the other.
    Content {
        /// What is written.
        content: Content,
        /// Which turn.
        turn: u32,
    },
    /// Random 4 KiB writes on the 4 KiB grid or 512 bytes beside it, in turn.
    Alignment {
        /// On the grid.
        is_aligned: bool,
        /// Which turn.
        turn: u32,
    },
    /// 4 KiB writes for long.
    Sustained {
        /// Where.
        pattern: Pattern,
    },
    /// Rounds of random 4 KiB writes until they are steady.
    SteadyState {
        /// Rounds at most.
        max_rounds: u32,
    },
    /// Nothing.
    Idle,
    /// Random 4 KiB writes after idling.
    Recovery,
    /// Durable writes as the purpose needs them.
    SyncWrites {
        /// How they are made durable.
        sync: Sync,
        /// Requests in flight.
        queue_depth: u32,
    },
    /// Reads and writes mixed.
    MixedReads {
        /// Bytes of a request: 4 KiB at random places, or 128 KiB in order.
        block_bytes: u32,
        /// Percent of reads.
        read_percent: u8,
    },
    /// Discards the span.
    Discard,
    /// Purges the device in a way that takes more than a discard.
    Purge {
        /// The way.
        way: Purge,
    },
    /// A stage of a published procedure.
    Procedure {
        /// Where.
        pattern: Pattern,
        /// On the 4 KiB grid.
        is_aligned: bool,
        /// Which part.
        stage: Stage,
    },
    /// Writes of 128 KiB in order, over the span twice.
    Precondition,
    /// Random 4 KiB writes until the span was written four times, or a day is over.
    Saturation,
    /// A round of one of SNIA's tests: each size and mix.
    PtsRound {
        /// Which test.
        test: PtsTest,
        /// Counted from 0.
        round: u32,
        /// Smaller requests are left out.
        least_bytes: u32,
    },
    /// Writes at random places.
    Writes {
        /// Bytes of a request.
        block_bytes: u32,
        /// Requests in flight.
        queue_depth: u32,
    },
    /// 4 KiB reads at random places.
    Reads {
        /// Requests in flight.
        queue_depth: u32,
    },
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What it measures.
    pub kind: StepKind,
    /// Its load; of rounds, the load of one round.
    pub job: Job,
}

impl Step {
    /// How often its load is run, at most.
    fn loads(&self) -> u64 {
        match self.kind {
            StepKind::SteadyState { max_rounds } => u64::from(max_rounds),
            StepKind::PtsRound { test, least_bytes, .. } => test.cells(least_bytes).count() as u64,
            _ => 1,
        }
    }

    /// How long it takes, at most.
    #[must_use]
    pub fn limit(&self) -> Nanos {
        Nanos(self.job.limit_ns * self.loads())
    }

    /// Bytes that it may write.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.job.max_bytes.saturating_mul(self.loads())
    }

    /// A line for people.
    #[must_use]
    pub fn title(&self) -> String {
        match self.kind {
            StepKind::Fill => "fill".to_owned(),
            StepKind::PlainWrites => "plain writes, QD1".to_owned(),
            StepKind::FlushCost { dirty_blocks: 0 } => "flushes of nothing".to_owned(),
            StepKind::FlushCost { dirty_blocks: 1 } => "flushes after one write".to_owned(),
            StepKind::FlushCost { dirty_blocks } => format!("flushes after {dirty_blocks} writes"),
            StepKind::Content { content, .. } => format!("content: {}", content.name()),
            StepKind::Alignment { is_aligned: true, .. } => "alignment: 4 KiB".to_owned(),
            StepKind::Alignment { is_aligned: false, .. } => "alignment: 512 B beside".to_owned(),
            StepKind::Sustained { pattern } => format!("sustained {} writes", pattern.name()),
            StepKind::SteadyState { .. } => "rounds to steady state".to_owned(),
            StepKind::Idle => "idle".to_owned(),
            StepKind::Recovery => "random writes after idling".to_owned(),
            StepKind::SyncWrites { sync: Sync::Fua, queue_depth } => {
                format!("FUA writes, QD{queue_depth}")
            }
            StepKind::SyncWrites { queue_depth, .. } => format!("write + flush, QD{queue_depth}"),
            StepKind::MixedReads { block_bytes, read_percent } => {
                format!("{} KiB, {read_percent} % reads", block_bytes >> 10)
            }
            StepKind::Discard => "discard".to_owned(),
            StepKind::Purge { way } => format!("purge: {}", way.name()),
            StepKind::Procedure { pattern, is_aligned, stage } => {
                let grid = if is_aligned { "aligned" } else { "512 B beside" };
                let stage = match stage {
                    Stage::FirstSecond => "first second",
                    Stage::Fresh => "fresh",
                    Stage::Rested => "after rest",
                };
                format!("{} writes, {grid}, {stage}", pattern.name())
            }
            StepKind::Precondition => "precondition: written twice".to_owned(),
            StepKind::Saturation => "write saturation".to_owned(),
            StepKind::PtsRound { test: PtsTest::Iops, round, .. } => {
                format!("IOPS, round {}", round + 1)
            }
            StepKind::PtsRound { test: PtsTest::Latency, round, .. } => {
                format!("latency, round {}", round + 1)
            }
            StepKind::Writes { block_bytes, queue_depth } => {
                let size = forebay_units::format_bytes(u64::from(block_bytes));
                format!("random writes of {size}, QD{queue_depth}")
            }
            StepKind::Reads { queue_depth } => format!("random reads, QD{queue_depth}"),
        }
    }
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// The device is too small for the loads.
    TooSmall {
        /// Its size.
        size_bytes: u64,
        /// The least size.
        least_bytes: u64,
    },
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::TooSmall { size_bytes, least_bytes } = self;
        write!(f, "{size_bytes} bytes are too few; a qualification needs {least_bytes}")
    }
}

impl std::error::Error for PlanError {}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct PlanFor {
    /// How thorough.
    pub profile: Profile,
    /// What for.
    pub purpose: Purpose,
    /// A published procedure instead of the profile's steps.
    pub procedure: Option<Procedure>,
    /// One part of the profile's steps alone.
    pub only: Option<Part>,
    /// Purges the device first.
    pub purge: Option<Purge>,
    /// Size of the device.
    pub size_bytes: u64,
    /// Its block size.
    pub block_bytes: u32,
    /// Only read.
    pub read_only: bool,
    /// Sleeps until a request completes, and never polls for it.
    pub sleeps: bool,
    /// Divides the times of all steps.
    pub shrink: u32,
    /// Seed of places and data.
    pub seed: u64,
}

/// Steps in order, and what they add up to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How thorough.
    pub profile: Profile,
    /// What for.
    pub purpose: Purpose,
    /// A published procedure, which measures and does not judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procedure: Option<Procedure>,
    /// One part of the profile's steps alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Part>,
    /// Only reads.
    pub read_only: bool,
    /// Sleeps until a request completes, and never polls for it.
    #[serde(default)]
    pub sleeps: bool,
    /// Times are divided by this; 1 is the profile as it is meant.
    pub shrink: u32,
    /// Seed of places and data.
    pub seed: u64,
    /// Bytes from the start of the device that are used.
    pub span_bytes: u64,
    /// In order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plan for a device.
    ///
    /// # Errors
    /// The device is too small.
    pub fn new(wanted: PlanFor) -> Result<Self, PlanError> {
        let lengths = wanted.profile.lengths();
        let least_bytes = MIN_SPAN_BYTES;
        let most_bytes = if wanted.procedure.is_some() { u64::MAX } else { lengths.max_span_bytes };
        let span_bytes = wanted.size_bytes.min(most_bytes) >> 20 << 20;
        if span_bytes < least_bytes {
            return Err(PlanError::TooSmall { size_bytes: wanted.size_bytes, least_bytes });
        }
        let shrink = u64::from(wanted.shrink.max(1));
        let maker = Maker { lengths, span_bytes, shrink, purge: wanted.purge };
        let mut steps = match wanted.procedure {
            _ if wanted.read_only => maker.reading_steps(),
            Some(procedure) => procedure.steps(&maker, wanted.block_bytes),
            None => maker.writing_steps(wanted.purpose, wanted.block_bytes),
        };
        steps.retain(|step| wanted.only.is_none_or(|part| part.has(step.kind)));
        Ok(Self {
            profile: wanted.profile,
            purpose: wanted.purpose,
            procedure: wanted.procedure,
            only: wanted.only,
            read_only: wanted.read_only,
            sleeps: wanted.sleeps,
            shrink: wanted.shrink,
            seed: wanted.seed,
            span_bytes,
            steps,
        })
    }

    /// Whether a step is still needed behind these outcomes: rounds end when they are steady.
    #[must_use]
    pub fn needs(&self, step: &Step, outcomes: &[Outcome]) -> bool {
        match step.kind {
            StepKind::PtsRound { test, .. } => {
                !matrix::pts_steadiness(outcomes, test).is_some_and(|steady| steady.is_reached)
            }
            _ => true,
        }
    }

    /// How long all steps take, at most.
    #[must_use]
    pub fn limit(&self) -> Nanos {
        Nanos(self.steps.iter().map(|step| step.limit().0).sum())
    }

    /// Bytes that all steps may write.
    #[must_use]
    pub fn max_bytes(&self) -> u64 {
        self.steps.iter().map(Step::max_bytes).fold(0, u64::saturating_add)
    }
}

/// Makes steps.
pub(crate) struct Maker {
    lengths: &'static Lengths,
    pub(crate) span_bytes: u64,
    shrink: u64,
    purge: Option<Purge>,
}

impl Maker {
    /// The step that purges; without a wish of the operator, in this way.
    pub(crate) fn purging(&self, usual: Purge) -> Step {
        let way = self.purge.unwrap_or(usual);
        let kind = match way {
            Purge::Discard => StepKind::Discard,
            way => StepKind::Purge { way },
        };
        let limit_ns = Nanos::from_millis(way.limit_millis()).0;
        Step { kind, job: Job { max_bytes: 0, limit_ns, ..self.job(0) } }
    }

    pub(crate) fn shrunk_ns(&self, millis: u64) -> u64 {
        Nanos::from_millis(millis).0 / self.shrink
    }

    /// Random 4 KiB writes at full depth for so many milliseconds.
    pub(crate) fn job(&self, millis: u64) -> Job {
        let limit_ns = self.shrunk_ns(millis);
        let max_bytes = (u128::from(limit_ns) * u128::from(MAX_BYTES_PER_S) / 1_000_000_000) as u64;
        Job {
            random_percent: 100,
            read_percent: 0,
            block_bytes: 4096,
            offset_bytes: 0,
            span_bytes: self.span_bytes,
            queue_depth: THROUGHPUT_DEPTH,
            sync: Sync::None,
            content: Content::PseudoRandom,
            limit_ns,
            max_bytes,
            sample_ns: self.shrunk_ns(self.lengths.sample),
        }
    }

    fn reading_steps(&self) -> Vec<Step> {
        let reads = QUEUE_DEPTHS.map(|queue_depth| Step {
            kind: StepKind::Reads { queue_depth },
            job: Job {
                queue_depth,
                read_percent: 100,
                max_bytes: 0,
                ..self.job(self.lengths.latency)
            },
        });
        reads.to_vec()
    }

    fn writing_steps(&self, purpose: Purpose, block_bytes: u32) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut add = |kind, job| steps.push(Step { kind, job });
        let lengths = self.lengths;
        if let Some(way) = self.purge {
            let Step { kind, job } = self.purging(way);
            add(kind, job);
        }
        let fill = Job { random_percent: 0, block_bytes: 1 << 20, queue_depth: 8, ..self.job(0) };
        let limit_ns = self.shrunk_ns(lengths.fill);
        add(StepKind::Fill, Job { limit_ns, max_bytes: self.span_bytes, ..fill });
        let one = Job { queue_depth: 1, ..self.job(lengths.flush) };
        add(StepKind::PlainWrites, one);
        for dirty_blocks in DIRTY_BLOCKS {
            add(StepKind::FlushCost { dirty_blocks }, one);
        }
        for turn in 0..CONTENT_TURNS {
            let content = Content::of_turn(turn);
            let job = Job { content, ..self.job(lengths.content_turn) };
            add(StepKind::Content { content, turn }, job);
        }
        // A device with blocks of 4 KiB refuses misaligned requests.
        for turn in (0..TURNS).filter(|_| block_bytes == 512) {
            let is_aligned = turn % 2 == 0;
            let offset_bytes = if is_aligned { 0 } else { 512 };
            let job = Job { offset_bytes, ..self.job(lengths.alignment_turn) };
            add(StepKind::Alignment { is_aligned, turn }, job);
        }
        let patterns = [(Pattern::Sequential, 0), (Pattern::Mixed, 50), (Pattern::Random, 100)];
        for ((pattern, random_percent), millis) in patterns.into_iter().zip(lengths.sustained) {
            add(StepKind::Sustained { pattern }, Job { random_percent, ..self.job(millis) });
        }
        let max_rounds = lengths.max_rounds;
        add(StepKind::SteadyState { max_rounds }, self.job(lengths.round));
        add(StepKind::Idle, Job { max_bytes: 0, ..self.job(lengths.idle) });
        add(StepKind::Recovery, self.job(lengths.recovery));
        self.add_latency(purpose, &mut steps);
        self.add_mixed(&mut steps);
        steps
    }

    /// Durable writes of the purpose at all depths, by both methods.
    fn add_latency(&self, purpose: Purpose, steps: &mut Vec<Step>) {
        for sync in [Sync::Flush, Sync::Fua] {
            for queue_depth in QUEUE_DEPTHS {
                let job = Job {
                    random_percent: purpose.random_percent(),
                    block_bytes: purpose.block_bytes(),
                    queue_depth,
                    sync,
                    ..self.job(self.lengths.latency)
                };
                steps.push(Step { kind: StepKind::SyncWrites { sync, queue_depth }, job });
            }
        }
    }

    /// The two sweeps of the 2015 review: 4 KiB random at QD 3, 128 KiB in order at QD 1.
    fn add_mixed(&self, steps: &mut Vec<Step>) {
        for (block_bytes, random_percent, queue_depth) in [(4096, 100, 3), (128 << 10, 0, 1)] {
            for read_percent in READ_PERCENTS {
                let job = Job {
                    random_percent,
                    read_percent,
                    block_bytes,
                    queue_depth,
                    ..self.job(self.lengths.mixed)
                };
                steps.push(Step { kind: StepKind::MixedReads { block_bytes, read_percent }, job });
            }
        }
    }
}
