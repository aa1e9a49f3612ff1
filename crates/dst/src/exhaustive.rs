//! Every crash point of a small scenario, and every crash point of each recovery.
//!
//! The first boot runs once for each instant at which a power cut can leave something else behind
//! than at the one before: a write that was submitted, a write that has completed, a flush that
//! has. From there the run forks: for every subset of
//! the unflushed writes that may have survived (a sample when there are many) the next boot
//! imports, is judged, and (a sample) is itself cut at each of its commands. Work is divided into
//! shards, which need nothing of each other.

use std::rc::Rc;

use forebay_sim::{CrashPoint, Seed, Step};

use crate::run::Run;
use crate::scenario::{Boot, Crash, Fates, Scenario};
use crate::subject::Subject;
use crate::verdict::{Failure, Tally};

/// How far to go.
#[derive(Clone, Debug)]
pub struct Depth {
    /// All subsets are tried up to this many unflushed writes.
    pub subsets_up_to: usize,
    /// How many samples are tried beyond; half of them tear writes.
    pub samples: u64,
    /// Every how many crash points of the first boot the recovery is cut too; 0 never.
    pub second_every: u64,
    /// Every how many commands of the recovery it is cut.
    pub second_stride: u64,
}

impl Default for Depth {
    fn default() -> Self {
        Self { subsets_up_to: 4, samples: 8, second_every: 25, second_stride: 1 }
    }
}

/// What was visited.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Device commands of the first boot, uncut.
    pub commands: u64,
    /// Places of the first boot where the power failed.
    pub points: u64,
    /// Crash states of the first boot: each point with each subset tried.
    pub first: u64,
    /// Of the points, those where every subset was tried.
    pub complete: u64,
    /// Crash states of recoveries.
    pub second: u64,
    /// Sums over all runs.
    pub tally: Tally,
    /// The first violation, with the scenario that replays it.
    pub failure: Option<(Scenario, Failure)>,
}

impl Report {
    /// Adds what another shard visited. The first failure stays.
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

/// Explores a scenario of one boot.
pub fn explore<S: Subject>(subject: &Rc<S>, scenario: &Scenario, depth: &Depth) -> Report {
    explore_shard(subject, scenario, depth, (0, 1))
}

/// Explores one of `shards` equal parts of the crash points: those whose number leaves `shard`.
pub fn explore_shard<S: Subject>(
    subject: &Rc<S>,
    scenario: &Scenario,
    depth: &Depth,
    (shard, shards): (u64, u64),
) -> Report {
    let mut report = Report::default();
    let mut plain = scenario.clone();
    plain.boots.truncate(1);
    plain.boots[0].crash = None;
    let mut whole = Run::new(subject.clone(), plain.clone());
    let steps = whole.steps(&plain.boots[0]);
    let whole = whole.outcome();
    if shard == 0 {
        report.tally.add(&whole.tally);
        report.commands = whole.boot_commands[0];
    }
    if let Some(failure) = whole.failure {
        report.failure = Some((plain, failure));
        return report;
    }
    for (number, point) in (0..).zip(points(&steps)) {
        if number % shards != shard {
            continue;
        }
        let again = depth.second_every > 0 && number % depth.second_every == 0;
        crash_at(subject, &plain, point, again, depth, &mut report);
        if report.failure.is_some() {
            return report;
        }
    }
    report
}

/// The last instant before each step that can change what a power cut leaves behind, and the end.
/// At an instant before that the disks hold the same and clients know less: all that could be
/// found there is found here.
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

fn crash_at<S: Subject>(
    subject: &Rc<S>,
    plain: &Scenario,
    point: CrashPoint,
    again: bool,
    depth: &Depth,
    report: &mut Report,
) {
    let with = |fates| {
        let mut scenario = plain.clone();
        scenario.boots[0].crash = Some(Crash::at(point, fates));
        scenario
    };
    let first = with(Fates::Lost);
    let mut base = Run::new(subject.clone(), first.clone());
    base.boot(&first.boots[0]);
    report.points += 1;
    let unflushed = base.unflushed();
    report.complete += u64::from(unflushed <= depth.subsets_up_to);
    let over = base.over();
    for (index, fates) in choices(unflushed, point, depth).into_iter().enumerate() {
        let scenario = with(fates);
        report.first += 1;
        let mut way = base.fork();
        let mut recovery = None;
        if !over {
            way.power_off(scenario.boots[0].crash.as_ref());
            // One of the ways is enough for the second cut: it has fates of its own.
            recovery = (again && index == 0).then(|| way.fork());
            // And for the second import after an export.
            way.epilogue(if index == 0 { 2 } else { 1 });
        }
        let outcome = way.outcome();
        report.tally.add(&outcome.tally);
        if let Some(failure) = outcome.failure {
            report.failure = Some((scenario, failure));
            return;
        }
        let Some(recovery) = recovery else { continue };
        // The boot after the crash: cut at each of its commands.
        let boot = Boot { seed: 1, ..Boot::default() };
        let steps = recovery.fork().steps(&boot);
        for point in points(&steps).into_iter().step_by(depth.second_stride.max(1) as usize) {
            let seed = Seed(1).derive(&format!("second {point:?}")).0;
            let crash = Crash::at(point, Fates::Random(seed));
            let boot = Boot { crash: Some(crash), ..boot.clone() };
            report.second += 1;
            let mut way = recovery.fork();
            way.boot(&boot);
            if !way.over() {
                way.power_off(boot.crash.as_ref());
                way.epilogue(1);
            }
            let outcome = way.outcome();
            report.tally.add(&outcome.tally);
            if let Some(failure) = outcome.failure {
                let mut twice = scenario.clone();
                twice.boots.push(boot);
                report.failure = Some((twice, failure));
                return;
            }
        }
    }
}

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
