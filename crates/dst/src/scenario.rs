//! A run, written down: nothing in it is left to chance, so that it replays as long as it reads.

use forebay_sim::faults::Fault;
use forebay_sim::{CrashPoint, Fate, Rng, Unflushed, random_fates};
use serde::{Deserialize, Serialize};

use crate::stamp::Fill;
use crate::subject::{Manage, PoolSpec, Sync};

/// The version of the file format.
pub const VERSION: u32 = 1;

/// What the oracle may demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// No more is broken than the pool promises to survive: all data, no error, a clean scrub.
    AllData,
    /// More is broken: errors and refusals are right, but what an import without complaint gives
    /// must be a prefix with everything durable.
    Detected,
    /// Disks lie: only data that was never written there is wrong.
    NeverWrong,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// [`VERSION`].
    pub version: u32,
    /// Why it is kept: a sentence for people.
    #[serde(default)]
    pub story: String,
    /// Seed of the disks' latencies and discards.
    pub seed: u64,
    /// The pool.
    pub spec: PoolSpec,
    /// What is demanded.
    pub demand: Demand,
    /// Sizes of the volumes that exist from the start, in sectors.
    pub volumes: Vec<u64>,
    /// Those of them, by number, that set no space aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse: Vec<u32>,
    /// Those of them whose writes are not durable just when that is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sync: Vec<(u32, Sync)>,
    /// One after the other, each a new runtime on the same disks.
    pub boots: Vec<Boot>,
}

/// From power-on to power-off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Seed of the order among ready tasks.
    pub seed: u64,
    /// What each client does, one thing after the other; clients run side by side.
    pub clients: Vec<Vec<Act>>,
    /// Clients, by number, that come through the NBD server. All others call volumes directly.
    #[serde(default)]
    pub remote: Vec<usize>,
    /// What the administrator does, one thing after the other.
    #[serde(default)]
    pub admin: Vec<Admin>,
    /// What breaks.
    #[serde(default)]
    pub faults: Vec<TimedFault>,
    /// Rot in the pool's own map, before anything else: what no pool may be lost by.
    #[serde(default)]
    pub map_rot: Option<MapRot>,
    /// Disks that lose each write over a frame of the map journal which they hold as the boot begins:
    /// what a run that was cut has left there, and no root knows, goes on to be there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_map: Vec<usize>,
    /// How it ends; without one the pool is exported.
    pub crash: Option<Crash>,
}

/// What a client does. Numbers are sectors of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // volume, first sector, count of sectors, durable on reply
pub enum Act {
    Write { volume: u32, first: u64, count: u64, fua: bool, fill: Fill },
    Read { volume: u32, first: u64, count: u64 },
    Flush { volume: u32 },
    Trim { volume: u32, first: u64, count: u64, fua: bool },
    Zero { volume: u32, first: u64, count: u64, fua: bool, no_hole: bool },
    Status { volume: u32, first: u64, count: u64 },
    Pause { ns: u64 },
}

impl Act {
    /// The volume that it is about.
    #[must_use]
    pub fn volume(&self) -> Option<u32> {
        match *self {
            Act::Write { volume, .. }
            | Act::Read { volume, .. }
            | Act::Flush { volume }
            | Act::Trim { volume, .. }
            | Act::Zero { volume, .. }
            | Act::Status { volume, .. } => Some(volume),
            Act::Pause { .. } => None,
        }
    }
}

/// What the administrator does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Admin {
    Pause { ns: u64 },
    Create { volume: u32, sectors: u64 },
    Destroy { volume: u32 },
    Resize { volume: u32, sectors: u64 },
    Sync { volume: u32, sync: Sync },
    Scrub,
    Manage(Manage),
}

impl Admin {
    /// A word or two for counts.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Admin::Pause { .. } => "pause",
            Admin::Create { .. } => "volume created",
            Admin::Destroy { .. } => "volume destroyed",
            Admin::Resize { .. } => "volume resized",
            Admin::Sync { sync: Sync::Standard, .. } => "sync=standard",
            Admin::Sync { sync: Sync::Always, .. } => "sync=always",
            Admin::Sync { sync: Sync::Disabled, .. } => "sync=disabled",
            Admin::Scrub => "scrub",
            Admin::Manage(Manage::Offline(_)) => "device offline",
            Admin::Manage(Manage::Online(_)) => "device online",
            Admin::Manage(Manage::Replace(..)) => "device replaced",
            Admin::Manage(Manage::RemoveLog(_)) => "log removed",
            Admin::Manage(Manage::AddLog(_)) => "log added",
            Admin::Manage(Manage::AddGroup(_)) => "group added",
            Admin::Manage(Manage::Attach(..)) => "side attached",
            Admin::Manage(Manage::Detach(_)) => "side detached",
            Admin::Manage(Manage::AttachCopy(..)) => "copy attached",
            Admin::Manage(Manage::DetachCopy(_)) => "copy detached",
            Admin::Manage(Manage::Commit) => "commit",
            Admin::Manage(Manage::Clean) => "clean",
        }
    }

    /// Disks that are not what they should be while it is done, or after it.
    #[must_use]
    pub fn taken(&self) -> Vec<usize> {
        match self {
            Admin::Manage(Manage::Offline(disk)) => vec![*disk],
            Admin::Manage(Manage::Replace(old, new)) => vec![*old, *new],
            Admin::Manage(Manage::Attach(_, new) | Manage::AttachCopy(_, new)) => vec![*new],
            _ => Vec::new(),
        }
    }

    /// Whether the pool may say no although nothing is broken: what is known here of its devices is
    /// a guess.
    #[must_use]
    pub fn may_be_refused(&self) -> bool {
        matches!(self, Admin::Manage(what) if !matches!(what, Manage::Commit | Manage::Clean))
    }
}

/// A fault, and when it strikes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedFault {
    /// At the submission of this command of the boot, counted over all disks from 1; 0 is before
    /// anything else.
    pub at_command: u64,
    /// Which disk.
    pub disk: usize,
    /// What.
    pub fault: Fault,
}

/// Rot in one of the places where a data disk holds a frame of the map journal, known by its first
/// bytes: it need not be one that still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRot {
    /// Which of the places, over all disks, counted from the newest frame and round again.
    pub pick: u64,
    /// Blocks that are struck from there on; not past the end of 16 KiB.
    pub blocks: u64,
    /// The byte of each that is struck.
    pub at_byte: u64,
    /// Its bits that are flipped.
    pub mask: u8,
}

/// A power cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Where. When the boot's work ends before that, the power fails at its end.
    pub point: CrashPoint,
    /// What becomes of unflushed writes.
    pub fates: Fates,
    /// Commands are counted from where clients begin, not from power-on: import and judgement are
    /// never cut.
    #[serde(default)]
    pub in_work: bool,
}

impl Crash {
    /// A cut at `point`, counted from power-on.
    #[must_use]
    pub fn at(point: CrashPoint, fates: Fates) -> Self {
        Self { point, fates, in_work: false }
    }
}

/// How the fates of unflushed writes are chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fates {
    /// All lost.
    Lost,
    /// All kept.
    Kept,
    /// Write i is kept when bit i is set.
    Subset(u64),
    /// At random from this seed.
    Random(u64),
    /// One by one; those beyond the list are lost.
    Each(Vec<Fate>),
}

impl Fates {
    /// Decides for every write of `writes`.
    #[must_use]
    pub fn decide(&self, writes: &[Unflushed]) -> Vec<Fate> {
        let each = |choose: &mut dyn FnMut(usize, &Unflushed) -> Fate| {
            writes.iter().enumerate().map(|(index, write)| choose(index, write)).collect()
        };
        match self {
            Fates::Lost => each(&mut |_, _| Fate::Lost),
            Fates::Kept => each(&mut |_, _| Fate::Kept),
            Fates::Subset(bits) => each(&mut |index, _| {
                if index < 64 && bits >> index & 1 == 1 { Fate::Kept } else { Fate::Lost }
            }),
            Fates::Random(seed) => {
                let mut rng: Rng = forebay_sim::Seed(*seed).rng();
                let mut choose = random_fates(&mut rng);
                each(&mut choose)
            }
            Fates::Each(list) => {
                each(&mut |index, _| list.get(index).copied().unwrap_or(Fate::Lost))
            }
        }
    }
}

impl Scenario {
    /// How many things clients and the administrator do.
    #[must_use]
    pub fn acts(&self) -> usize {
        let boots = self.boots.iter();
        boots.map(|b| b.clients.iter().map(Vec::len).sum::<usize>() + b.admin.len()).sum()
    }
}
