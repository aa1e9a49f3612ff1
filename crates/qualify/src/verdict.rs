//! Verdict: whether the device is fit for its purpose, with the reasons.

use serde::{Deserialize, Serialize};

use crate::detect::whole;
use crate::{
    Conditions, Detector, Ended, Figure, Finding, Outcome, Plan, Protection, PtsTest,
    Qualification, Sign, StepKind, Threshold, findings, pts_steadiness,
};

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Every limit is kept, and nothing speaks against it.
    Fit,
    /// At least one reason speaks against it.
    Unfit,
    /// Something that must be known is not.
    Undecided,
}

impl Answer {
    /// As pages print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Unfit => "not fit",
            Self::Undecided => "undecided",
        }
    }
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "speaks", content = "text")]
pub enum Reason {
    /// For the device.
    For(String),
    /// Against it: decides.
    Against(String),
    /// Must be known, and is not.
    Open(String),
    /// The operator should know; does not decide.
    Note(String),
}

/// Answer and reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The answer.
    pub answer: Answer,
    /// Those that decide come first.
    pub reasons: Vec<Reason>,
}

/// The figure of a threshold; `None` when it was not measured, or from too few requests.
fn measured(plan: &Plan, outcomes: &[Outcome], threshold: &Threshold) -> Option<f64> {
    let (sync, queue_depth) = (plan.purpose.sync(), threshold.queue_depth);
    let outcome = whole(outcomes, StepKind::SyncWrites { sync, queue_depth })?;
    let latency = &outcome.measured.latency;
    let micros = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    match threshold.figure {
        Figure::P50Us => micros(latency.p50_ns),
        Figure::P99Us => micros(latency.p99_ns),
        Figure::P999Us => micros(latency.p999_ns),
        Figure::Iops => Some(outcome.measured.iops()),
    }
}

fn of_threshold(plan: &Plan, outcomes: &[Outcome], threshold: &Threshold) -> Reason {
    let Threshold { figure, queue_depth, limit, source } = *threshold;
    let (name, unit) = (figure.name(), figure.unit());
    let wanted = if figure.wants_more() { "at least" } else { "at most" };
    let wanted = format!("{wanted} {limit:.0} {unit} is wanted ({source})");
    let Some(got) = measured(plan, outcomes, threshold) else {
        return Reason::Open(format!("{name} at QD{queue_depth} was not measured; {wanted}"));
    };
    let is_kept = if figure.wants_more() { got >= limit } else { got <= limit };
    let text = format!("{name} at QD{queue_depth}: {got:.0} {unit}; {wanted}");
    if is_kept { Reason::For(text) } else { Reason::Against(text) }
}

fn of_finding(conditions: &Conditions, found: &Finding) -> Option<Reason> {
    let text = found.text.clone();
    Some(match (found.detector, found.sign) {
        (Detector::IgnoredFlush, Sign::Clear) => Reason::For(text),
        (Detector::IgnoredFlush, Sign::Open) => Reason::Open(text),
        (Detector::IgnoredFlush, Sign::Hit) => match conditions.protection {
            None => Reason::Open(text),
            Some(Protection::UserData | Protection::MapOnly | Protection::No) => {
                Reason::Against(text)
            }
        },
        (_, Sign::Hit) => Reason::Note(format!("{}: {text}", found.detector.name())),
        (Detector::Degradation, Sign::Open) => Reason::Note(text),
        _ => return None,
    })
}

fn of_steady_state(outcomes: &[Outcome]) -> Option<Reason> {
    let is_steps = |o: &&Outcome| matches!(o.kind, StepKind::SteadyState { .. });
    let outcome = outcomes.iter().find(is_steps)?;
    Some(match &outcome.steadiness {
        Some(steady) if steady.is_reached => Reason::Note(format!(
            "steady state after {} rounds: {:.0} random 4 KiB writes a second",
            steady.rounds, steady.mean_iops
        )),
        Some(steady) => Reason::Note(format!(
            "steady state was not reached in {} rounds: range {:.0} % (20 % allowed), slope \
             {:.0} % (10 % allowed)",
            steady.rounds,
            steady.range * 100.0,
            steady.slope.abs() * 100.0
        )),
        None => Reason::Note("steady state was not looked for: too few rounds".to_owned()),
    })
}

/// What the rounds of SNIA's tests came to.
fn of_rounds(outcomes: &[Outcome]) -> Vec<Reason> {
    let of_test = |test: PtsTest| {
        let steady = pts_steadiness(outcomes, test)?;
        let word = if steady.is_reached { "reached" } else { "not reached" };
        let (name, figure) = match test {
            PtsTest::Iops => ("IOPS", format!("{:.0} a second", steady.mean_iops)),
            PtsTest::Latency => ("latency", format!("{:.1} µs on average", steady.mean_iops / 1e3)),
        };
        Some(Reason::Note(format!(
            "{name} test: steady state {word} after {} rounds; 4 KiB writes: {figure}",
            steady.rounds
        )))
    };
    [PtsTest::Iops, PtsTest::Latency].into_iter().filter_map(of_test).collect()
}

/// Requests that failed, and steps that are missing.
fn of_steps(plan: &Plan, outcomes: &[Outcome]) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for outcome in outcomes {
        if let Ended::Failed { error, is_unsupported: false } = &outcome.measured.ended {
            reasons.push(Reason::Against(format!("the device failed a request: {error}")));
        }
    }
    let discards = outcomes.iter().filter(|o| o.kind == StepKind::Discard);
    let mut discards = discards.map(|o| &o.measured.ended);
    if discards.any(|ended| matches!(ended, Ended::Failed { is_unsupported: true, .. })) {
        let text = "the device takes no discards: it was measured in the state that it was in";
        reasons.push(Reason::Note(text.to_owned()));
    }
    let done = outcomes.iter().filter(|o| o.measured.ended != Ended::Stopped).count();
    if done < plan.steps.len() {
        let text = format!("{done} of {} steps were done", plan.steps.len());
        reasons.push(Reason::Open(text));
    }
    reasons
}

/// The one warning of NVMe drives that passes.
const TEMPERATURE: u64 = 1 << 1;

/// What the drive says of itself.
fn of_health(run: &Qualification) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let warnings = run.health.iter().filter_map(|reading| reading.health.critical_warning);
    let warning = warnings.fold(0, |all, warning| all | warning);
    let text = format!("the drive warns of itself: critical warning {warning:#04x}");
    match warning {
        0 => {}
        TEMPERATURE => reasons.push(Reason::Note(format!("{text}, its temperature"))),
        _ => reasons.push(Reason::Against(text)),
    }
    reasons.extend(run.wear_text().map(Reason::Note));
    reasons
}

/// The verdict on this run.
#[must_use]
pub fn verdict(run: &Qualification) -> Verdict {
    let Qualification { conditions, plan, outcomes, .. } = run;
    let mut reasons = of_steps(plan, outcomes);
    reasons.extend(of_health(run));
    if let Some(procedure) = plan.procedure {
        let text = format!("{} measures and has no limits; a profile judges", procedure.name());
        reasons.push(Reason::Open(text));
        reasons.extend(of_rounds(outcomes));
    } else if plan.read_only {
        let text = "a device that is only read cannot be judged as a log device";
        reasons.push(Reason::Open(text.to_owned()));
    } else {
        let thresholds = plan.purpose.thresholds().iter();
        reasons.extend(thresholds.map(|t| of_threshold(plan, outcomes, t)));
        let found = findings(conditions, outcomes);
        reasons.extend(found.iter().filter_map(|f| of_finding(conditions, f)));
        reasons.extend(of_steady_state(outcomes));
    }
    if let Some(part) = plan.only {
        reasons.push(Reason::Open(format!("only a part was measured: {}", part.name())));
    }
    if plan.shrink > 1 {
        let text = format!("all times were divided by {}: a trial", plan.shrink);
        reasons.push(Reason::Note(text));
    }
    let rank = |reason: &Reason| match reason {
        Reason::Against(_) => 0,
        Reason::Open(_) => 1,
        Reason::For(_) => 2,
        Reason::Note(_) => 3,
    };
    reasons.sort_by_key(rank);
    let answer = match reasons.first() {
        Some(Reason::Against(_)) => Answer::Unfit,
        Some(Reason::Open(_)) => Answer::Undecided,
        _ => Answer::Fit,
    };
    Verdict { answer, reasons }
}
