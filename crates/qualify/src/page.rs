//! Qualifications as results for a report: charts, tables, checks.
//!
//! What enters: one qualification or several, to be shown side by side. What leaves: results that
//! the report crate renders, and nothing that is not in the logs. Who calls: `forebay report`.

mod charts;
mod endurance;
mod engines;
mod health;
mod procedures;
mod pts;
mod tables;

use forebay_report::{Basis, Chart, Check, Experiment, Finding, Results, SCHEMA};

use crate::{Answer, Figure, Qualification, Reason, StepKind, TargetKind, Verdict};

pub use tables::comparison;

/// A qualification and the name that tells it from the others on the page.
struct Shown<'a> {
    name: String,
    run: &'a Qualification,
}

/// Results of these qualifications. `generator`: program and version.
#[must_use]
pub fn results(runs: &[Qualification], generator: &str) -> Results {
    let shown = named(runs);
    let mut experiments = vec![verdicts(&shown)];
    experiments.push(procedures::stages(&shown));
    experiments.extend(pts::experiments(&shown));
    experiments.push(engines::engines(&shown));
    experiments.extend(charts::experiments(&shown));
    experiments.push(endurance::endurance(&shown));
    experiments.push(health::health(&shown));
    experiments.push(tables::conditions(&shown));
    if let [before, after] = &shown[..] {
        experiments.insert(1, tables::difference(before, after));
    }
    experiments.iter_mut().for_each(|e| e.tables.retain(|table| !table.rows.is_empty()));
    experiments.retain(|e| !e.charts.is_empty() || !e.tables.is_empty() || !e.findings.is_empty());
    let names: Vec<&str> = shown.iter().map(|s| s.name.as_str()).collect();
    Results {
        schema: SCHEMA.to_owned(),
        title: format!("Log device: {}", names.join(", ")),
        generator: generator.to_owned(),
        seed: runs.first().map_or(0, |run| run.plan.seed),
        experiments,
    }
}

/// Names by model; where two are alike, with a number.
fn named(runs: &[Qualification]) -> Vec<Shown<'_>> {
    let labels: Vec<String> = runs.iter().map(|run| run.conditions.label()).collect();
    let name = |at: usize| {
        let is_alone = labels.iter().filter(|label| **label == labels[at]).count() == 1;
        let before = labels[..at].iter().filter(|label| **label == labels[at]).count();
        if is_alone { labels[at].clone() } else { format!("{} #{}", labels[at], before + 1) }
    };
    runs.iter().enumerate().map(|(at, run)| Shown { name: name(at), run }).collect()
}

impl Shown<'_> {
    /// A hash over plan and conditions.
    fn hash(&self) -> String {
        let text = serde_json::to_string(&(&self.run.conditions, &self.run.plan));
        let text = text.expect("plain data");
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, text.as_bytes());
        format!("{sum:08x}")
    }
}

/// An experiment that stands on all runs.
fn experiment(shown: &[Shown<'_>], id: &str, title: &str, question: &str) -> Experiment {
    let hashes: Vec<String> = shown.iter().map(Shown::hash).collect();
    Experiment {
        id: id.to_owned(),
        title: title.to_owned(),
        question: question.to_owned(),
        seed: shown.first().map_or(0, |s| s.run.plan.seed),
        config_hash: hashes.join("-"),
        ..Experiment::default()
    }
}

/// A chart of an experiment, without series.
fn chart(of: &Experiment, id: &str, title: &str, caption: &str) -> Chart {
    Chart {
        id: id.to_owned(),
        title: title.to_owned(),
        caption: caption.to_owned(),
        seed: of.seed,
        config_hash: of.config_hash.clone(),
        ..Chart::default()
    }
}

impl Shown<'_> {
    fn is_model(&self) -> bool {
        self.run.conditions.kind == TargetKind::Simulated
    }

    /// What its figures rest on.
    fn basis(&self) -> Basis {
        if self.is_model() { Basis::Predicted } else { Basis::Measured }
    }

    fn finding(&self, text: impl Into<String>) -> Finding {
        Finding { text: text.into(), basis: self.basis() }
    }
}

/// `name: text` when several runs are shown.
fn said(shown: &[Shown<'_>], of: &Shown<'_>, text: &str) -> String {
    if shown.len() == 1 { text.to_owned() } else { format!("{}: {text}", of.name) }
}

fn verdicts(shown: &[Shown<'_>]) -> Experiment {
    // A procedure measures, and does not judge.
    let is_judged = shown.iter().any(|of| of.run.plan.procedure.is_none());
    let (title, question) = match is_judged {
        true => ("Verdict", "Is this device fit to hold the log, and why?"),
        false => ("Summary", "What was measured?"),
    };
    let mut e = experiment(shown, "verdict", title, question);
    e.method = "A plan of timed steps on the device itself; docs/qualify.md describes each step, \
                each detector and each limit."
        .to_owned();
    for of in shown {
        let (plan, verdict) = (&of.run.plan, of.run.judge());
        let (answer, purpose) = (verdict.answer.name(), plan.purpose.name());
        let answer = match plan.procedure {
            Some(procedure) => format!("measured by the procedure {}", procedure.name()),
            None => {
                format!("{answer} as a log device for {purpose} ({} profile)", plan.profile.name())
            }
        };
        if plan.procedure.is_some() {
            e.findings.push(of.finding(said(shown, of, &answer)));
        } else {
            let text = format!("{answer}: {}", deciding(&verdict));
            e.advice.push(of.finding(said(shown, of, &text)));
        }
        for reason in &verdict.reasons {
            let text = match reason {
                Reason::Against(text) => format!("against: {text}"),
                Reason::Open(text) => format!("open: {text}"),
                Reason::Note(text) => format!("note: {text}"),
                // The checks below show what speaks for it.
                Reason::For(_) => continue,
            };
            e.findings.push(of.finding(said(shown, of, &text)));
        }
        e.checks.extend(checks(shown, of));
    }
    // A procedure takes none of the steps that detectors look at.
    if is_judged {
        e.tables.push(tables::detectors(shown));
    }
    e.tables.push(tables::latencies(shown));
    e
}

/// The reasons that decide, in one sentence.
fn deciding(verdict: &Verdict) -> String {
    let text = |reason: &Reason| match (reason, verdict.answer) {
        (Reason::Against(text), Answer::Unfit) => Some(text.clone()),
        (Reason::Open(text), Answer::Undecided) => Some(text.clone()),
        _ => None,
    };
    let all: Vec<String> = verdict.reasons.iter().filter_map(text).collect();
    match all.is_empty() {
        true => "every limit is kept, and nothing speaks against it".to_owned(),
        false => all.join("; "),
    }
}

/// The limits of the purpose, each with its figure.
fn checks(shown: &[Shown<'_>], of: &Shown<'_>) -> Vec<Check> {
    let plan = &of.run.plan;
    let mut checks = Vec::new();
    for threshold in plan.purpose.thresholds() {
        let (sync, queue_depth) = (plan.purpose.sync(), threshold.queue_depth);
        let kind = StepKind::SyncWrites { sync, queue_depth };
        let Some(outcome) = crate::detect::whole(&of.run.outcomes, kind) else { continue };
        let latency = &outcome.measured.latency;
        let got = match threshold.figure {
            Figure::P50Us => latency.p50_ns.map(|ns| ns as f64 / 1e3),
            Figure::P99Us => latency.p99_ns.map(|ns| ns as f64 / 1e3),
            Figure::P999Us => latency.p999_ns.map(|ns| ns as f64 / 1e3),
            Figure::Iops => Some(outcome.measured.iops()),
        };
        let Some(got) = got else { continue };
        let name = said(shown, of, &format!("{}, QD{queue_depth}", threshold.figure.name()));
        let make = if threshold.figure.wants_more() { Check::at_least } else { Check::at_most };
        let figures = (threshold.limit, got);
        let unit = threshold.figure.unit().to_owned();
        checks.push(make(name, unit, figures, of.basis(), threshold.source.to_owned()));
    }
    checks
}
