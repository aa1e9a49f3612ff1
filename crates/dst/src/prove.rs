//! The search: runs scenarios of one root seed and sums up what it found.
//!
//! Who calls: `forebay-prove`, once for each thread.

use std::rc::Rc;

use forebay_sim::Seed;

use crate::generate::{Constraints, generate};
use crate::run::run;
use crate::scenario::Scenario;
use crate::subject::Subject;
use crate::verdict::{Failure, Kind, Outcome, Tally};

/// Events that a search of any level should see; refusals are not among them.
const COVERAGE: &[&str] = &[
    "admin: copy attached",
    "admin: copy detached",
    "admin: group added",
    "admin: sync=always",
    "admin: sync=disabled",
    "admin: volume created, while the cleaner is at work",
    "admin: volume destroyed, while the cleaner is at work",
    "admin: volume resized, while the cleaner is at work",
    "NBD connections",
    "admin: commit",
    "admin: device offline",
    "admin: device online",
    "admin: device replaced",
    "admin: log added",
    "admin: log removed",
    "admin: scrub",
    "admin: side attached",
    "admin: side detached",
    "admin: volume created",
    "admin: volume destroyed",
    "admin: volume resized",
    "blocks moved by the cleaner",
    "log records replayed",
    "power cut after the work",
    "power cut during clear",
    "power cut during import",
    "power cut during judgement",
    "power cut during work",
    "power cut with commands in flight",
    "power cut with unflushed writes",
    "suspension: clears refused",
    "suspension: pools cleared",
    "suspension: pools suspended",
];

/// Faults that a search should see when it sees any.
const FAULTS: &[&str] = &[
    "error",
    "flush error",
    "gone",
    "hung",
    "lost",
    "lying flush",
    "misdirected",
    "no space",
    "read-only",
    "rot (reads that saw it)",
    "slow",
    "torn",
];

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Number of scenarios run.
    pub runs: u64,
    /// Sums over all runs.
    pub tally: Tally,
    /// Runs that failed: number, scenario, failure.
    pub failures: Vec<(u64, Scenario, Failure)>,
}

impl Findings {
    /// Adds another thread's findings.
    pub fn add(&mut self, other: Findings) {
        self.runs += other.runs;
        self.tally.add(&other.tally);
        self.failures.extend(other.failures);
    }

    /// The summary as text. `cpu_secs` is the processor time that the search took.
    #[must_use]
    pub fn summary(&self, wall_secs: f64, cpu_secs: f64) -> String {
        let t = &self.tally;
        let simulated_secs = t.simulated_ns as f64 / 1e9;
        let mut out = String::new();
        let mut line = |name: &str, text: String| out.push_str(&format!("{name:59} {text}\n"));
        line("scenarios", format!("{} ({:.1}/s)", self.runs, self.runs as f64 / wall_secs));
        let per_core = t.acts as f64 / cpu_secs.max(0.01);
        line(
            "client operations",
            format!(
                "{} ({:.0}/s; {per_core:.0} per second of a core)",
                t.acts,
                t.acts as f64 / wall_secs
            ),
        );
        line("device commands", format!("{} ({:.0}/s)", t.commands, t.commands as f64 / wall_secs));
        line(
            "simulated time",
            format!("{simulated_secs:.0} s ({:.0} times wall time)", simulated_secs / wall_secs),
        );
        line("power cuts", t.crashes.to_string());
        line("unflushed writes at cuts", t.unflushed.to_string());
        line("sectors judged after cuts", t.judged_sectors.to_string());
        for (name, count) in &t.faults {
            line(&format!("fault: {name}"), count.to_string());
        }
        for (name, count) in &t.events {
            line(&format!("event: {name}"), count.to_string());
        }
        let mut never: Vec<_> =
            COVERAGE.iter().filter(|name| !t.events.contains_key(**name)).copied().collect();
        if !t.faults.is_empty() {
            never.extend(FAULTS.iter().filter(|name| !t.faults.contains_key(**name)));
        }
        line("events never seen", if never.is_empty() { "none".into() } else { never.join(", ") });
        line("failures", self.failures.len().to_string());
        if self.failures.is_empty() && self.runs > 0 {
            let bound = 3.0 / self.runs as f64;
            line("failure rate", format!("below {bound:.2e} per scenario (95 %, drawn alike)"));
        }
        out
    }
}

/// The scenario of the search's `number`-th run.
#[must_use]
pub fn scenario_of(root: u64, number: u64, constraints: &Constraints) -> Scenario {
    generate(Seed(root).derive("run").derive(&number.to_string()), constraints)
}

/// Runs scenario `number` of the search from `root`. With `twice` it runs it again and compares.
pub fn run_number<S: Subject>(
    subject: &Rc<S>,
    root: u64,
    number: u64,
    constraints: &Constraints,
    twice: bool,
    findings: &mut Findings,
) -> Outcome {
    let scenario = scenario_of(root, number, constraints);
    let mut outcome = run(subject, &scenario);
    if twice && outcome.failure.is_none() {
        let again = run(subject, &scenario);
        if (again.digest, &again.tally) != (outcome.digest, &outcome.tally) {
            let message = format!(
                "digest {:#x} the first time, {:#x} the second",
                outcome.digest, again.digest
            );
            outcome.failure = Some(Failure { kind: Kind::Nondeterminism, message });
        }
    }
    findings.runs += 1;
    findings.tally.add(&outcome.tally);
    if let Some(failure) = &outcome.failure {
        findings.failures.push((number, scenario, failure.clone()));
    }
    outcome
}
