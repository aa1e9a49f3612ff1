//! A scenario: a whole run, written down as data.
//!
//! What always holds: a scenario leaves nothing to chance, so equal scenarios give equal runs. The
//! JSON form is the format of the corpus.
//! Who calls: the generator makes scenarios, `run.rs` runs them, `shrink.rs` cuts them down.

use forebay_sim::faults::Fault;
use forebay_sim::{CrashPoint, Fate, Rng, Unflushed, random_fates};
use serde::{Deserialize, Serialize};

use crate::stamp::Fill;
use crate::subject::{Manage, PoolSpec, ScanJob, Sync};

pub use apart::{Apart, Half};
pub use snapshot_job::{Copying, SnapshotJob};
pub use takeover::{Attempt, CutOff, Loss, Stand, StandEnd, Takeover, cuts_off, has_takeovers};

mod apart;
mod snapshot_job;
mod takeover;

/// The version of the file format.
pub const VERSION: u32 = 1;

/// What the oracle demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// No more is broken than the pool must survive: all data, no error, a clean scrub.
    AllData,
    /// More is broken: errors and refusals are allowed. After an import without complaint each
    /// volume must be a prefix with everything durable.
    Detected,
    /// Disks lie: a sector may hold anything that was once written there.
    NeverWrong,
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// [`VERSION`].
    pub version: u32,
    /// The defect that the scenario shows.
    #[serde(default)]
    pub description: String,
    /// Seed of the disks' latencies and discards.
    pub seed: u64,
    /// The shape of the pool.
    pub spec: PoolSpec,
    /// What the oracle demands.
    pub demand: Demand,
    /// Sizes of the volumes that exist from the start, in sectors.
    pub volumes: Vec<u64>,
    /// Volumes without reserved space, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse: Vec<u32>,
    /// Volumes whose `sync` property is not the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sync: Vec<(u32, Sync)>,
    /// Volumes whose upper half lies so many sectors higher than their sectors say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<(u32, u64)>,
    /// No disk damages data without an error, so no scrub has anything to repair.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_loud: bool,
    /// After the work of a boot, no request may hold memory. At the end volumes are trimmed, and
    /// the pool has as much space as at first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_leaks: bool,
    /// Nothing that happens is a reason to put a disk out of use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_disks: bool,
    /// Boots in order, each with a new runtime on the same disks.
    pub boots: Vec<Boot>,
}

/// From power-on to power-off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Seed of the order among ready tasks.
    pub seed: u64,
    /// The acts of each client. A client acts in order; clients run concurrently.
    pub clients: Vec<Vec<Act>>,
    /// Clients, by number, that connect through NBD. The others call volumes directly.
    #[serde(default)]
    pub remote: Vec<usize>,
    /// The jobs of the administrator, in order.
    #[serde(default)]
    pub admin: Vec<Admin>,
    /// Faults and their times.
    #[serde(default)]
    pub faults: Vec<TimedFault>,
    /// Rot in the map journal before the boot begins. Every pool must survive it.
    #[serde(default)]
    pub map_rot: Option<MapRot>,
    /// Disks that lose the first write over each map journal frame that they hold when the boot
    /// begins. Frames that no root names, left by a run that was cut, stay in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stale_map: Vec<usize>,
    /// Rot in the map journal while the pool runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_map: Option<TimedMapLoss>,
    /// Without a power cut the boot ends with an export, whatever scrub runs or is paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaves_scrub: bool,
    /// What happens between the import and the start of the clients. The boot's faults are counted
    /// from its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succession: Option<Succession>,
    /// The boot's faults may suspend the pool. They are counted from the end of the import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// Another machine takes the pool over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// The import goes back to the root before the newest, if the boot before committed a group.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rewinds: bool,
    /// That import goes back so many roots more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub further_roots: u64,
    /// Before the boot, a copy of the disks is imported from each of so many roots before the
    /// newest, as far as the boot before committed groups.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub looks_back: u64,
    /// Before the boot, copies of the disks are imported as halves, apart from each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apart: Option<Box<Apart>>,
    /// Volumes are resized and destroyed while requests are in flight, and used while their
    /// creation is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_beside: bool,
    /// Changes of the power, for log devices in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub power: Vec<TimedPower>,
    /// Changes of the networks to log devices on other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<TimedNetwork>,
    /// Objects that the store of the data disk loses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_objects: Vec<TimedLoss>,
    /// Before the boot, memory is lost that only the other side of a log mirror protects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_lost: bool,
    /// The power cut; without one the boot ends with an export.
    pub crash: Option<Crash>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One operation of a client. Numbers are sectors of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // volume, first sector, count of sectors, durable on reply
pub enum Act {
    Write {
        volume: u32,
        first: u64,
        count: u64,
        fua: bool,
        fill: Fill,
    },
    Read {
        volume: u32,
        first: u64,
        count: u64,
    },
    Flush {
        volume: u32,
    },
    Trim {
        volume: u32,
        first: u64,
        count: u64,
        fua: bool,
    },
    Zero {
        volume: u32,
        first: u64,
        count: u64,
        fua: bool,
        no_hole: bool,
    },
    Status {
        volume: u32,
        first: u64,
        count: u64,
    },
    Pause {
        ns: u64,
    },
    /// The client makes its next requests together, and goes away when they have had to wait so
    /// often, and a span later; then another one goes on. A remote client disconnects, or closes
    /// its connections in the middle of what they carry.
    GiveUp {
        requests: u64,
        waits: u64,
        after_ns: u64,
        is_abrupt: bool,
    },
    /// A request that must be refused and change nothing.
    Improper {
        volume: u32,
        what: Improper,
        first: u64,
        count: u64,
    },
}

/// Requests that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Improper {
    /// A write that begins in the volume or past its end, and ends past its end.
    Write,
    /// A read of such a range.
    Read,
    /// A trim of such a range.
    Trim,
    /// A zeroing of such a range.
    Zero,
    /// A block status of such a range.
    Status,
    /// A read of a part of a sector.
    Misaligned,
    /// Through NBD, a write that is longer than the server's longest request.
    TooLong,
    /// Through NBD, a connection to an export that does not exist.
    NoExport,
}

impl Act {
    /// The volume of the operation.
    #[must_use]
    pub fn volume(&self) -> Option<u32> {
        match *self {
            Act::Write { volume, .. }
            | Act::Read { volume, .. }
            | Act::Flush { volume }
            | Act::Trim { volume, .. }
            | Act::Zero { volume, .. }
            | Act::Status { volume, .. }
            | Act::Improper { volume, .. } => Some(volume),
            Act::Pause { .. } | Act::GiveUp { .. } => None,
        }
    }
}

/// One job of the administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Admin {
    Pause {
        ns: u64,
    },
    Create {
        volume: u32,
        sectors: u64,
    },
    Destroy {
        volume: u32,
    },
    Resize {
        volume: u32,
        sectors: u64,
    },
    Sync {
        volume: u32,
        sync: Sync,
    },
    /// Gives a volume another of its names: the one of its creation (0), or a further one.
    Rename {
        volume: u32,
        to: u32,
    },
    Set {
        property: String,
        value: String,
    },
    /// Sets a property of a volume: how the blocks of a sparse one are stored, or a limit.
    Service {
        volume: u32,
        name: String,
        value: String,
    },
    /// Makes a volume reserve all of its space, or none.
    Reserve {
        volume: u32,
        is_thick: bool,
    },
    Scrub,
    /// Does not wait for the end of the scrub.
    Scan(ScanJob),
    /// A job that must be refused and change nothing.
    Improper {
        volume: u32,
        what: ImproperJob,
    },
    Manage(Manage),
    Snapshot(SnapshotJob),
}

/// Jobs that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImproperJob {
    /// The creation of a volume whose name is taken.
    CreateTwice,
    /// The creation of a volume that is larger than the pool.
    CreateLarge,
    /// The creation of a volume whose size is no multiple of the block size.
    CreateUneven,
    /// The growth of a volume that is not sparse beyond the pool.
    Grow,
    /// The destruction of a volume that does not exist.
    DestroyNone,
}

impl Admin {
    /// The name under which the job is counted.
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
            Admin::Rename { .. } => "volume renamed",
            Admin::Set { .. } => "property set",
            Admin::Service { .. } => "service set",
            Admin::Reserve { is_thick: true, .. } => "space reserved",
            Admin::Reserve { is_thick: false, .. } => "space released",
            Admin::Scrub => "scrub",
            Admin::Scan(ScanJob::Begin) => "scrub begun",
            Admin::Scan(ScanJob::Pause) => "scrub paused",
            Admin::Scan(ScanJob::Stop) => "scrub stopped",
            Admin::Improper { .. } => "improper job",
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
            Admin::Manage(Manage::CacheOffline(_)) => "cache device offline",
            Admin::Manage(Manage::CacheOnline(_)) => "cache device online",
            Admin::Manage(Manage::CacheRemove(_)) => "cache device removed",
            Admin::Manage(Manage::CacheAdd(_)) => "cache device added",
            Admin::Manage(Manage::Renew(_)) => "log device renewed",
            Admin::Manage(Manage::Commit) => "commit",
            Admin::Manage(Manage::Clean) => "clean",
            Admin::Snapshot(job) => job.name(),
        }
    }

    /// Disks that may be incomplete or out of the pool during or after the job.
    #[must_use]
    pub fn taken(&self) -> Vec<usize> {
        match self {
            Admin::Manage(
                Manage::Offline(disk) | Manage::Detach(disk) | Manage::DetachCopy(disk),
            ) => {
                vec![*disk]
            }
            Admin::Manage(Manage::Replace(old, new)) => vec![*old, *new],
            Admin::Manage(Manage::Attach(_, new) | Manage::AttachCopy(_, new)) => vec![*new],
            _ => Vec::new(),
        }
    }

    /// True when the pool may refuse the job although nothing is broken. The generator only guesses
    /// the state of devices.
    #[must_use]
    pub fn may_be_refused(&self) -> bool {
        matches!(self, Admin::Manage(what) if !matches!(what, Manage::Commit | Manage::Clean))
    }
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedFault {
    /// The fault strikes at the submission of this command of the boot, counted over all disks from
    /// 1; 0 is before the first command.
    pub at_command: u64,
    /// The disk's number.
    pub disk: usize,
    /// The fault.
    pub fault: Fault,
}

/// All faults end, the pool is made whole, and other disks fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// The pool is scrubbed once it is whole.
    pub scrubs: bool,
    /// The disks that fail once the pool is whole.
    pub fails: Vec<usize>,
}

/// What an operator does about a suspended pool: repairs the disks, and clears it until it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// From the suspension to the repair of all disks.
    pub lasts_ns: u64,
    /// Pauses before each `clear`, from the suspension on. The last one repeats.
    pub pauses_ns: Vec<u64>,
    /// Disks that are out of use are brought online once the pool goes on.
    pub brings_online: bool,
    /// The number of a `clear`, from 0, and when the power fails, counted from its begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<(u64, CrashPoint)>,
}

/// Rot in a frame of the map journal. A frame is found by its magic, so it may be obsolete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRot {
    /// Index of the frame over all disks, newest first, modulo their number.
    pub pick: u64,
    /// Number of blocks to strike from there, up to the next 16 KiB boundary.
    pub blocks: u64,
    /// The byte within each block.
    pub at_byte: u64,
    /// The bits to flip.
    pub mask: u8,
}

/// Rot in frames of the map journal, in every copy and on every disk. A pool that runs has the map
/// in memory, and a scrub writes it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedMapLoss {
    /// The command, counted from the start of the clients.
    pub at_command: u64,
    /// Index of the frame, newest first, modulo their number. `None`: every frame.
    pub pick: Option<u64>,
}

/// A power cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// The crash point. When the boot's work ends earlier, the power fails at its end.
    pub point: CrashPoint,
    /// The fates of unflushed writes.
    pub fates: Fates,
    /// Commands are counted from the start of the clients instead of from power-on, so import and
    /// judgement are never cut.
    #[serde(default)]
    pub in_work: bool,
}

/// What the power supply does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Power {
    /// The line is back.
    Line,
    /// The line is gone, and the supply says so. When the battery is empty, the power fails.
    Battery,
    /// The same, and the supply cannot be asked.
    SilentBattery,
}

/// What happens to the network between the pool's machine and another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// What is sent waits, also the end of a connection.
    Down,
    /// It arrives.
    Up,
    /// The other host's server is killed and started again: all connections end there.
    Restart,
    /// Everything takes up to so long.
    Slow {
        /// Milliseconds.
        ms: u64,
    },
}

/// A change of a network at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedNetwork {
    /// The command, counted as [`TimedFault::at_command`].
    pub at_command: u64,
    /// The number of the log disk behind it.
    pub disk: usize,
    /// The change.
    pub network: Network,
}

/// The loss of an object at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedLoss {
    /// The command, counted as [`TimedFault::at_command`].
    pub at_command: u64,
    /// Index of the object among those with blocks, by name, modulo their number.
    pub pick: u64,
}

/// A change of the power at a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedPower {
    /// The command, counted as [`TimedFault::at_command`].
    pub at_command: u64,
    /// The change.
    pub power: Power,
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
    /// All writes are lost.
    Lost,
    /// All writes are kept.
    Kept,
    /// Write i is kept when bit i is set.
    Subset(u64),
    /// Drawn from this seed.
    Random(u64),
    /// Of each write a random subset of its sectors is kept, drawn from this seed.
    Torn(u64),
    /// One fate for each write; writes beyond the list are lost.
    Each(Vec<Fate>),
}

impl Fates {
    /// The fate of each write.
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
            Fates::Torn(seed) => {
                let mut rng = forebay_sim::Seed(*seed).rng();
                each(&mut |_, _| Fate::Scatter { seed: rng.u64() })
            }
            Fates::Each(list) => {
                each(&mut |index, _| list.get(index).copied().unwrap_or(Fate::Lost))
            }
        }
    }
}

impl Scenario {
    /// Number of acts and jobs.
    #[must_use]
    pub fn acts(&self) -> usize {
        let boots = self.boots.iter();
        boots.map(|b| b.clients.iter().map(Vec::len).sum::<usize>() + b.admin.len()).sum()
    }
}
