//! A takeover in a scenario: when the pool's owner stands still, and what another machine does.

use serde::{Deserialize, Serialize};

use super::{Act, Boot};

/// Another machine takes the pool over while its owner stands still, or tries to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takeover {
    /// The command of the owner at which the other machine appears, counted from the start of the
    /// clients. Without so many, it appears when the clients' work ends.
    pub at_command: u64,
    /// When the owner stands still, in order. Afterwards it runs.
    pub stands: Vec<Stand>,
    /// The owner's machine is suspended when it stands still: its deadlines do not go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_suspended: bool,
    /// What disks have of the owner's commands takes effect at once, or so long after it stood
    /// still.
    pub lands_after_ns: u64,
    /// Disks that the owner does not reach any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    /// Disks that the other machine does not reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misses: Vec<usize>,
    /// The imports that the other machine tries, until one succeeds.
    pub attempts: Vec<Attempt>,
    /// The imports that a third machine tries beside it, with all disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rival: Vec<Attempt>,
    /// Seed of the order among the other machine's tasks, and between the machines.
    pub seed: u64,
    /// The acts of the other machine's clients.
    pub clients: Vec<Vec<Act>>,
}

/// The owner loses its link to some of its disks for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// The disks, by number.
    pub disks: Vec<usize>,
    /// What becomes of its commands to them. A change that hangs never reaches its disk.
    pub how: CutOff,
    /// From the other machine's appearance.
    pub after_ns: u64,
}

/// A time for which the owner stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// From the end of the stand before, or from the other machine's appearance.
    pub after_ns: u64,
    /// When it ends.
    pub end: StandEnd,
    /// The owner runs on, and reaches none of its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<CutOff>,
    /// It is cut off from object stores alone, and reaches its log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_log: bool,
}

/// What becomes of commands of a machine whose link to its disks is cut. Requests to a store fail
/// then: soon, or when a while has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CutOff {
    /// They are answered when the link is back. Changes may reach their disks before.
    Hangs,
    /// They fail, without effect.
    Fails,
}

/// True when another machine wants the pool in one of the boots.
#[must_use]
pub fn has_takeovers(boots: &[Boot]) -> bool {
    boots.iter().any(|boot| boot.takeover.is_some())
}

/// True when an owner is cut off from its disks in one of the boots, and may give them up.
#[must_use]
pub fn cuts_off(boots: &[Boot]) -> bool {
    let takeovers = boots.iter().filter_map(|boot| boot.takeover.as_ref());
    takeovers.flat_map(|takeover| &takeover.stands).any(Stand::is_blind)
}

impl Stand {
    /// True when the owner runs on and reaches none of its disks.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.cut_off.is_some() && !self.has_log
    }
}

/// When the owner goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandEnd {
    /// After so long.
    AfterNs(u64),
    /// At this command from the begin of an import by the other machine on, at the latest when the
    /// pool is taken.
    InImport(u64),
    /// At this command of the next owner, counted from the start of its clients; at the latest when
    /// they have ended.
    AtCommand(u64),
}

/// An import that another machine tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The pause before it.
    pub pause_ns: u64,
    /// The operator takes a silent owner's pool (`-f`).
    pub forces: bool,
}
