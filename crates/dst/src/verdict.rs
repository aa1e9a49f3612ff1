//! The result of a run: the first violation, and counts of what happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::coverage::States;

/// Which promise was violated. Shrinking keeps the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// After a crash a volume is not a prefix with everything durable (I1, I2).
    Prefix,
    /// A read returned what it must not (I2, I4).
    Read,
    /// A hole was reported over data (I6).
    Hole,
    /// An error where everything must work.
    Error,
    /// An import that failed, or a refusal that does not name the cause.
    Import,
    /// A volume is missing, unexpected, or of the wrong size.
    Volumes,
    /// A disk was put out of use without a reason.
    Disks,
    /// A scrub is not clean after a repair (I5).
    Scrub,
    /// Memory or space is held that nothing uses.
    Leak,
    /// After an export and an import a pool says something else of itself.
    Figures,
    /// More space was promised than there is.
    Promise,
    /// Two machines have the pool, or the one that lost it goes on.
    Owners,
    /// A panic.
    Panic,
    /// The run does not end (I7).
    Hang,
    /// The same scenario gave different runs.
    Nondeterminism,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which promise was violated.
    pub kind: Kind,
    /// What happened, in one line.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Operations of clients and the administrator.
    pub acts: u64,
    /// Device commands.
    pub commands: u64,
    /// Virtual time of all boots.
    pub simulated_ns: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Sectors judged after crashes.
    pub judged_sectors: u64,
    /// Unflushed writes at power cuts.
    pub unflushed: u64,
    /// Fault strikes by kind.
    pub faults: BTreeMap<String, u64>,
    /// Events by name.
    pub events: BTreeMap<String, u64>,
    /// What the machine did when faults struck.
    #[serde(skip)]
    pub states: States,
}

impl Tally {
    /// Counts an event.
    pub fn event(&mut self, name: &str) {
        self.event_n(name, 1);
    }

    /// Counts an event that happened `count` times.
    pub fn event_n(&mut self, name: &str, count: u64) {
        if count > 0 {
            *self.events.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Tally) {
        self.acts += other.acts;
        self.commands += other.commands;
        self.simulated_ns += other.simulated_ns;
        self.crashes += other.crashes;
        self.judged_sectors += other.judged_sectors;
        self.unflushed += other.unflushed;
        for (name, count) in &other.faults {
            *self.faults.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.events {
            *self.events.entry(name.clone()).or_default() += count;
        }
        for (state, count) in &other.states {
            *self.states.entry(state.clone()).or_default() += count;
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first violation, if any.
    pub failure: Option<Failure>,
    /// A hash over all events in order; equal for equal scenarios.
    pub digest: u64,
    /// What happened.
    pub tally: Tally,
    /// Commands submitted in each boot; the epilogue's are last.
    pub boot_commands: Vec<u64>,
}
