//! The exhaustive visit: every crash point of a small scenario and of its recoveries.
//!
//! The last boot is cut at each instant at which a cut can leave other contents than an instant
//! before. For each subset of the unflushed writes the next boot imports and is judged; in a sample
//! it is cut at each of its commands too. Where writes are many, subsets are sampled.

use std::rc::Rc;

use forebay_sim::faults::Fault;
use forebay_sim::{CrashPoint, Seed, Step};

use crate::run::Run;
use crate::scenario::{Boot, Crash, Fates, Scenario, TimedFault};
use crate::subject::Subject;
use crate::verdict::{Failure, Tally};

/// How much to visit.
#[derive(Clone, Debug)]
pub struct Depth {
    /// Try all subsets of up to this many unflushed writes.
    pub subsets_up_to: usize,
    /// How many samples to try of more writes; half of them tear writes.
    pub samples: u64,
    /// Visit every n-th crash point.
    pub stride: u64,
    /// Cut the recovery from every n-th crash point; 0 is never.
    pub second_every: u64,
    /// Cut the recovery at every n-th of its crash points.
    pub second_stride: u64,
}

impl Default for Depth {
    fn default() -> Self {
        Self { subsets_up_to: 4, samples: 8, stride: 1, second_every: 25, second_stride: 1 }
    }
}

/// What was visited.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Device commands of the last boot without a cut.
    pub commands: u64,
    /// Crash points of the last boot.
    pub points: u64,
    /// Crash states of the last boot: each point with each tried subset.
    pub first: u64,
    /// Crash points where every subset was tried.
    pub complete: u64,
    /// Crash states of recoveries.
    pub second: u64,
    /// Sums over all runs.
    pub tally: Tally,
    /// The first violation, with the scenario that replays it.
    pub failure: Option<(Scenario, Failure)>,
}

impl Report {
    /// Adds the outcome of a run; `scenario` replays it.
    fn note<S: Subject>(&mut self, run: Run<S>, scenario: impl FnOnce() -> Scenario) {
        let outcome = run.outcome();
        self.tally.add(&outcome.tally);
        if let Some(failure) = outcome.failure {
            self.failure = Some((scenario(), failure));
        }
    }

    /// Adds another shard's report. The first failure stays.
    pub fn add(&mut self, other: Report) {
        self.commands += other.commands;
        self.points += other.points;
        self.first += other.first;
        self.complete += other.complete;
        self.second += other.second;
        self.tally.add(&other.tally);
        self.failure = self.failure.take().or(other.failure);
    }
}

/// Explores the last boot of a scenario; the boots before it run as they are. It visits one of
/// `shards` equal parts of the crash points: those whose number modulo `shards` is `shard`.
pub fn explore_shard<S: Subject>(
    subject: &Rc<S>,
    scenario: &Scenario,
    depth: &Depth,
    (shard, shards): (u64, u64),
) -> Report {
    let mut report = Report::default();
    let mut plain = scenario.clone();
    let Some(last) = plain.boots.last_mut() else { return report };
    last.crash = None;
    let last = last.clone();
    let start = start(subject, &plain);
    let mut whole = start.fork();
    let steps = if whole.is_over() { Vec::new() } else { whole.steps(&last) };
    let whole = whole.outcome();
    if shard == 0 {
        report.tally.add(&whole.tally);
        report.commands = whole.boot_commands.last().copied().unwrap_or(0);
    }
    if let Some(failure) = whole.failure {
        report.failure = Some((plain, failure));
        return report;
    }
    let points = points(&steps).into_iter().step_by(depth.stride.max(1) as usize);
    for (number, point) in (0..).zip(points) {
        if number % shards != shard {
            continue;
        }
        let cuts_recovery = depth.second_every > 0 && number % depth.second_every == 0;
        crash_at(&start, &plain, point, cuts_recovery, depth, &mut report);
        if report.failure.is_some() {
            return report;
        }
    }
    report
}

/// The run before its last boot.
fn start<S: Subject>(subject: &Rc<S>, plain: &Scenario) -> Run<S> {
    let mut run = Run::new(subject.clone(), plain.clone());
    for boot in &plain.boots[..plain.boots.len() - 1] {
        if !run.is_over() {
            run.boot(boot);
            run.power_off(boot.crash.as_ref());
        }
    }
    run
}

/// The last instant before each step that can change the disks' contents, and the end. At an
/// earlier instant the contents are the same and clients know less, so it shows nothing more.
fn points(steps: &[Step]) -> Vec<CrashPoint> {
    let after = |step: &Step| match step.completed {
        true => CrashPoint::AfterComplete(step.number),
        false => CrashPoint::AfterSubmit(step.number),
    };
    let mut out = Vec::new();
    for (index, step) in steps.iter().enumerate().filter(|(_, step)| step.changes()) {
        if !step.completed {
            out.push(CrashPoint::BeforeSubmit(step.number));
        } else if let Some(before) = index.checked_sub(1) {
            out.push(after(&steps[before]));
        }
    }
    out.extend(steps.last().map(after));
    out
}

/// Cuts the last boot at `point` and continues from each tried crash state.
fn crash_at<S: Subject>(
    start: &Run<S>,
    plain: &Scenario,
    point: CrashPoint,
    cuts_recovery: bool,
    depth: &Depth,
    report: &mut Report,
) {
    let last = plain.boots.len() - 1;
    let with = |fates| {
        let mut scenario = plain.clone();
        scenario.boots[last].crash = Some(Crash::at(point, fates));
        scenario
    };
    let mut base = start.fork();
    base.boot(&with(Fates::Lost).boots[last]);
    report.points += 1;
    let unflushed = base.unflushed();
    report.complete += u64::from(unflushed <= depth.subsets_up_to);
    let is_over = base.is_over();
    for (index, fates) in choices(unflushed, point, depth).into_iter().enumerate() {
        let scenario = with(fates);
        report.first += 1;
        let mut run = base.fork();
        let mut recovery = None;
        if !is_over {
            run.power_off(scenario.boots[last].crash.as_ref());
            // One crash state is enough for cuts of the recovery and for the second import.
            recovery = (cuts_recovery && index == 0).then(|| run.fork());
            run.epilogue(if index == 0 { 2 } else { 1 });
        }
        report.note(run, || scenario.clone());
        if let (None, Some(recovery)) = (&report.failure, recovery) {
            cut_recovery(&recovery, &scenario, depth, report);
        }
        if report.failure.is_some() {
            return;
        }
    }
}

/// Cuts the boot after a crash at each of its crash points.
fn cut_recovery<S: Subject>(
    recovery: &Run<S>,
    scenario: &Scenario,
    depth: &Depth,
    report: &mut Report,
) {
    let struck = scenario.boots.last().map_or(&[][..], |boot| &boot.faults);
    let heal = |timed: &TimedFault| TimedFault { at_command: 0, fault: Fault::Heal, ..*timed };
    let faults = struck.iter().map(heal).collect();
    let boot = Boot { seed: 1, faults, ..Boot::default() };
    let steps = recovery.fork().steps(&boot);
    for point in points(&steps).into_iter().step_by(depth.second_stride.max(1) as usize) {
        let seed = Seed(1).derive(&format!("second {point:?}")).0;
        let crash = Crash::at(point, Fates::Random(seed));
        let boot = Boot { crash: Some(crash), ..boot.clone() };
        report.second += 1;
        let mut run = recovery.fork();
        run.boot(&boot);
        if !run.is_over() {
            run.power_off(boot.crash.as_ref());
            run.epilogue(1);
        }
        report.note(run, || {
            let mut both = scenario.clone();
            both.boots.push(boot.clone());
            both
        });
        if report.failure.is_some() {
            return;
        }
    }
}

/// The fates to try at a crash point.
fn choices(unflushed: usize, point: CrashPoint, depth: &Depth) -> Vec<Fates> {
    let seed = Seed(unflushed as u64).derive(&format!("{point:?}"));
    let mut out: Vec<Fates> = if unflushed <= depth.subsets_up_to {
        (0..1u64 << unflushed).map(Fates::Subset).collect()
    } else {
        let mut rng = seed.derive("subsets").rng();
        let mut out = vec![Fates::Lost, Fates::Kept];
        out.extend((0..depth.samples / 2).map(|_| Fates::Subset(rng.u64())));
        out
    };
    if unflushed > 0 {
        let samples = (depth.samples / 2).max(1);
        out.extend((0..samples).map(|i| Fates::Random(seed.derive(&format!("torn {i}")).0)));
    }
    out
}
