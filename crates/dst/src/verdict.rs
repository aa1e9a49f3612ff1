//! What a run ends with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What was violated. Shrinking keeps the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// After a crash a volume is not a prefix with everything durable (I1, I2).
    Prefix,
    /// A read returned what it must not (I2, I4).
    Read,
    /// A hole was reported over data (I6).
    Hole,
    /// An error where everything should have worked.
    Error,
    /// An import that failed, or said too little.
    Import,
    /// A volume missing, too much, or of a wrong size.
    Volumes,
    /// A scrub that is not clean after repair (I5).
    Scrub,
    /// A panic.
    Panic,
    /// No end in sight (I7).
    Hang,
    /// The same scenario did something else the second time.
    Chance,
}

/// A violation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which.
    pub kind: Kind,
    /// In words.
    pub message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Things that clients did.
    pub acts: u64,
    /// Device commands.
    pub commands: u64,
    /// Virtual time, over all boots.
    pub simulated_ns: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Sectors judged after crashes.
    pub judged_sectors: u64,
    /// Unflushed writes at power cuts.
    pub unflushed: u64,
    /// Faults that struck, by kind.
    pub faults: BTreeMap<String, u64>,
    /// Named events, by name.
    pub events: BTreeMap<String, u64>,
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

    /// Adds another run's.
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
    }
}

/// A run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The first violation, if any.
    pub failure: Option<Failure>,
    /// Depends on every event in its order; equal for equal scenarios.
    pub digest: u64,
    /// What was done.
    pub tally: Tally,
    /// Commands submitted in each boot, the epilogue's last.
    pub boot_commands: Vec<u64>,
}
