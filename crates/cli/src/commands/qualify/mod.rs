//! `forebay qualify`: a plan of loads on a device, each outcome in a log, a verdict.
//!
//! What enters: arguments. What leaves: the result log, a summary or JSON. What always holds:
//! nothing is written to a device whose name the operator did not repeat, and each step is in the
//! log before the next one begins. Who calls: `crate::run`.

mod counters;
mod facts;
mod log_file;
mod power_cut;
mod purge;
mod sensors;
mod target;
mod tools;
mod view;

pub use counters::drive_health;
pub use facts::disk_folder;
pub use log_file::read as read_result;

use std::cell::Cell;
use std::rc::Rc;

use forebay_qualify::{
    Ended, Finding, Observer, Plan, PlanFor, Progress, Purpose, Qualification, Reading, Record,
    StepKind, Traffic, Verdict, findings, run_step,
};
use forebay_rt::Runtime;
use forebay_units::Nanos;
use serde::Serialize;

use self::log_file::LogFile;
use self::target::Target;
use self::view::View;
use super::outcome::Outcome;
use crate::args::{QualifyArgs, QualifyCommand, QualifyVerb, Wait};
use crate::clock;
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::render::{document, plan_json, plan_text, qualification_text};
use crate::signals::{Signals, Stop};
use crate::terminal::Screen;

/// Runs the command. `runtime` is for devices that exist; simulated ones have a time of their own.
pub fn qualify(
    command: QualifyCommand,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    match (command.verb, command.device) {
        (Some(QualifyVerb::PowerCut(command)), _) => power_cut::power_cut(command, runtime),
        (None, Some(args)) => of_device(args, runtime),
        (None, None) => unreachable!("TARGET is required without a verb"),
    }
}

fn of_device(
    args: QualifyArgs,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    if let Some(name) = args.target.strip_prefix("sim:") {
        if args.resume {
            let message = "a simulated device forgets its state when the command ends";
            return Err(Failure::usage(message).with_hint("run it again with --force"));
        }
        let scale = args.scale.unwrap_or(0);
        let simulated = forebay_lab::catalogue::simulated(name, scale, args.seed)?;
        let target = target::of_simulated(&args, simulated);
        // Ctrl-C ends the process: virtual time leaves no room for signals.
        let work = async move { on_target(&args, target, None).await };
        return Runtime::simulated(1).block_on(work);
    }
    if args.scale.is_some() {
        return Err(super::scale_refusal(&args.target));
    }
    // Before the runtime has threads: they inherit the signal mask.
    let signals = Signals::take()?;
    let runtime = runtime()?;
    let runtime = if sleeps(&args) { runtime.sleeping() } else { runtime };
    runtime.block_on(async move {
        let stop = signals.watch();
        let target = target::open(&args).await?;
        on_target(&args, target, Some(stop)).await
    })
}

/// Whether the run waits as most programs do. Forebay's own server polls.
fn sleeps(args: &QualifyArgs) -> bool {
    let usual = args.procedure.is_some() || args.purpose != Purpose::Forebay;
    args.wait.map_or(usual, |wait| wait == Wait::Sleep)
}

async fn on_target(
    args: &QualifyArgs,
    mut target: Target,
    stop: Option<Rc<Stop>>,
) -> Result<Outcome, Failure> {
    let begun = begin(args, &mut target).await;
    let (run, log, purge) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            target.remove_created();
            return Err(failure);
        }
    };
    let Some(mut log) = log else {
        target.remove_created();
        let rated_bytes = run.conditions.rated_bytes;
        return Ok(Outcome::text(match args.json {
            true => plan_json(&args.target, &run.plan, rated_bytes),
            false => plan_text(&run.plan, rated_bytes),
        }));
    };
    let with = With { target: &target, purge, stop: stop.as_deref() };
    let run = run_plan(args, &with, run, &mut log).await?;
    let is_complete = run.verdict.is_some();
    if is_complete {
        target.remove_created();
    } else {
        let again = "the same command with --resume goes on with it";
        log::warning(&format!("interrupted: {} has what was done; {again}", log.name()));
    }
    Ok(Outcome { text: report(args, &run, &log.name()), complete: is_complete })
}

/// The plan and, unless only that is wanted, the log: new, or of the run that is taken up again.
async fn begin(
    args: &QualifyArgs,
    target: &mut Target,
) -> Result<(Qualification, Option<LogFile>, Option<purge::Job>), Failure> {
    let geometry = target.device.geometry();
    let plan = Plan::new(PlanFor {
        profile: args.profile,
        purpose: args.purpose,
        procedure: args.procedure,
        only: args.only,
        purge: args.purge,
        size_bytes: geometry.size_bytes,
        block_bytes: geometry.block_bytes,
        read_only: args.read_only,
        sleeps: sleeps(args),
        shrink: args.shrink,
        seed: args.seed,
    });
    let plan =
        plan.map_err(|e| Failure::new(ErrorCode::DeviceUnusable, format!("{}: {e}", args.target)))?;
    let mut run = Qualification {
        conditions: target.conditions.clone(),
        plan,
        outcomes: Vec::new(),
        health: Vec::new(),
        resumed_s: Vec::new(),
        verdict: None,
        records: 0,
    };
    if args.plan {
        return Ok((run, None, None));
    }
    let purge = match args.purge {
        Some(way) => Some(purge::prepare(way, &args.target, run.conditions.kind).await?),
        None => None,
    };
    let path = log_file::path(args);
    if args.resume {
        let (mut log, mut run) = LogFile::resume(&path, &run)?;
        target.adopt_created(&run);
        target.may_write(args).await?;
        let reading = target.look_at_sensors().await;
        keep(&mut run.health, run.outcomes.len(), &mut log, reading)?;
        return Ok((run, Some(log), purge));
    }
    target.may_write(args).await?;
    let reading = target.look_at_sensors().await;
    run.conditions.clone_from(&target.conditions);
    let mut log = LogFile::create(&path, args.force)?;
    log.append(&Record::Begin {
        conditions: Box::new(run.conditions.clone()),
        plan: Box::new(run.plan.clone()),
    })?;
    keep(&mut run.health, run.outcomes.len(), &mut log, reading)?;
    Ok((run, Some(log), purge))
}

/// Keeps a reading of the drive's counters behind so many steps, if there is one.
fn keep(
    health: &mut Vec<Reading>,
    steps: usize,
    log: &mut LogFile,
    reading: Option<Reading>,
) -> Result<(), Failure> {
    let Some(mut reading) = reading else { return Ok(()) };
    reading.steps = steps;
    log.append(&Record::Health(Box::new(reading.clone())))?;
    health.push(reading);
    Ok(())
}

/// What a plan is run with.
struct With<'a> {
    target: &'a Target,
    purge: Option<purge::Job>,
    stop: Option<&'a Stop>,
}

/// Runs the steps that are missing. Without a verdict, the run was interrupted.
async fn run_plan(
    args: &QualifyArgs,
    with: &With<'_>,
    mut run: Qualification,
    log: &mut LogFile,
) -> Result<Qualification, Failure> {
    let With { target, stop, .. } = *with;
    let screen = Screen::stderr();
    for line in plan_text(&run.plan, run.conditions.rated_bytes).lines() {
        screen.say(line);
    }
    for key in ["counters", "sensors"] {
        if let Some(what) = run.conditions.details.get(key) {
            screen.say(&format!("{key:<13}{what}"));
        }
    }
    // Ctrl-C ends the run of a model at once, and would leave the terminal on its other page.
    let wants_view = screen.is_terminal() && !args.plain && stop.is_some();
    let view = wants_view.then(|| View::open(&run.conditions.label(), &run.plan)).flatten();
    let watch = Watch { target, plan: &run.plan, stop, screen: &screen, step: Cell::new(0), view };
    let done = run.outcomes.len();
    for (number, step) in run.plan.steps.clone().iter().enumerate().skip(done) {
        watch.begin(number);
        if !run.plan.needs(step, &run.outcomes) {
            let outcome = forebay_qualify::Outcome::needless(step);
            log.append(&Record::Step(Box::new(outcome.clone())))?;
            run.outcomes.push(outcome);
            continue;
        }
        let mut outcome = match (step.kind, &with.purge) {
            (StepKind::Purge { .. }, Some(job)) => job.run(step, &watch).await,
            _ => run_step(&target.device, step, run.plan.seed, &watch).await,
        };
        outcome.power = target.sensors.borrow().power();
        let ended = outcome.measured.ended.clone();
        if ended == Ended::Stopped {
            break;
        }
        log.append(&Record::Step(Box::new(outcome.clone())))?;
        run.outcomes.push(outcome);
        let is_last = number + 1 == run.plan.steps.len();
        let reading = target.counters.read(number + 1, is_last).await;
        keep(&mut run.health, number + 1, log, reading)?;
        if let Ended::Failed { is_unsupported: false, .. } = ended {
            break;
        }
        if stop.is_some_and(Stop::is_asked) {
            break;
        }
    }
    drop(watch);
    screen.clear();
    if run.is_over() {
        let verdict = run.judge();
        log.append(&Record::End(Box::new(verdict.clone())))?;
        run.verdict = Some(verdict);
    }
    Ok(run)
}

/// The operator's side of a running plan.
struct Watch<'a> {
    target: &'a Target,
    plan: &'a Plan,
    stop: Option<&'a Stop>,
    screen: &'a Screen,
    step: Cell<usize>,
    /// The full screen, where there is one.
    view: Option<View>,
}

impl Watch<'_> {
    fn begin(&self, step: usize) {
        self.step.set(step);
        self.target.sensors.borrow_mut().begin();
        if let Some(view) = &self.view {
            view.begin(step + 1, self.plan.steps[step].title());
        }
    }
}

impl Observer for Watch<'_> {
    fn goes_on(&self, progress: Progress) -> bool {
        let (number, steps) = (self.step.get(), &self.plan.steps);
        let later: u64 = steps[number..].iter().map(|step| step.limit().0).sum();
        let left = Nanos(later.saturating_sub(progress.elapsed.0));
        self.target.sensors.borrow_mut().sample();
        let go = !self.stop.is_some_and(Stop::is_asked);
        if let Some(view) = &self.view {
            view.show(&progress, left);
            return go;
        }
        self.screen.show(&format!(
            "step {} of {}: {}, {:.0}/s, {} left",
            number + 1,
            steps.len(),
            steps[number].title(),
            progress.iops,
            clock::duration(left.as_secs_f64().ceil() as u64)
        ));
        go
    }

    fn rounds(&self, rates: &[f64]) {
        if let Some(view) = &self.view {
            view.rounds(rates);
        }
    }

    fn below(&self) -> Option<Traffic> {
        facts::traffic(&self.target.below)
    }

    fn temperature_c(&self) -> Option<f64> {
        self.target.sensors.borrow().temperature_c()
    }
}

/// The result, for `--json`.
#[derive(Serialize)]
struct Body<'a> {
    result: &'a str,
    complete: bool,
    verdict: &'a Verdict,
    findings: &'a [Finding],
    qualification: &'a Qualification,
}

fn report(args: &QualifyArgs, run: &Qualification, log: &str) -> String {
    let (verdict, found) = (run.judge(), findings(&run.conditions, &run.outcomes));
    if args.json {
        let complete = run.verdict.is_some();
        let (verdict, findings) = (&verdict, &found[..]);
        let body = Body { result: log, complete, verdict, findings, qualification: run };
        return document("qualify", body);
    }
    let mut text = qualification_text(run, &verdict, &found);
    text.push_str(&format!("\nresult       {log}; 'forebay report {log}' makes a page of it\n"));
    text
}
