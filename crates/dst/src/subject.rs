//! What is put to the proof: anything that makes volumes out of disks and can find them again.

use forebay_device::{Device, DeviceError};
use serde::{Deserialize, Serialize};

/// How data is spread over the data disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Raid {
    /// No redundancy.
    Raid0,
    /// Every disk the same.
    Mirror,
    /// One parity column.
    Z1,
    /// Two.
    Z2,
    /// Three.
    Z3,
}

impl Raid {
    /// How many of `disks` data disks may fail.
    #[must_use]
    pub fn parity(self, disks: usize) -> usize {
        match self {
            Raid::Raid0 => 0,
            Raid::Mirror => disks - 1,
            Raid::Z1 => 1,
            Raid::Z2 => 2,
            Raid::Z3 => 3,
        }
    }
}

/// Where the intent log lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LogShape {
    /// On the data disks.
    None,
    /// On one disk of its own.
    One,
    /// On two, mirrored.
    Mirror,
    /// On two in turn: two rings.
    Two,
    /// On two mirrors in turn.
    TwoMirrors,
}

impl LogShape {
    /// How many log disks it takes.
    #[must_use]
    pub fn disks(self) -> usize {
        match self {
            LogShape::None => 0,
            LogShape::One => 1,
            LogShape::Mirror | LogShape::Two => 2,
            LogShape::TwoMirrors => 4,
        }
    }

    /// How many of them hold the same.
    #[must_use]
    pub fn sides(self) -> usize {
        match self {
            LogShape::Mirror | LogShape::TwoMirrors => 2,
            LogShape::None | LogShape::One | LogShape::Two => 1,
        }
    }
}

/// When a volume's writes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sync {
    /// When that is asked for.
    Standard,
    /// All, when they are answered.
    Always,
    /// When their group is committed, whatever is asked for.
    Disabled,
}

/// The shape of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// How data is spread.
    pub raid: Raid,
    /// Where the log is.
    pub log: LogShape,
    /// Data disks.
    pub data_disks: usize,
    /// Groups that they are divided into, all alike.
    #[serde(default = "one")]
    pub groups: usize,
    /// Disks that are not in the pool at first.
    pub spare_disks: usize,
    /// Size of a data disk or spare.
    pub data_bytes: u64,
    /// Size of a log disk.
    pub log_bytes: u64,
    /// Size of a segment, a hint.
    pub segment_bytes: u64,
    /// Seed of whatever the subject makes up when it creates a pool (its id, for instance).
    pub seed: u64,
}

fn one() -> usize {
    1
}

impl PoolSpec {
    /// How many disks of each group may fail.
    #[must_use]
    pub fn parity(&self) -> usize {
        self.raid.parity(self.data_disks / self.groups)
    }

    /// Numbers of the disks of each group.
    pub fn group_ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let width = self.data_disks / self.groups;
        (0..self.groups).map(move |group| group * width..(group + 1) * width)
    }

    /// Numbers of the disks of each ring of the log: they hold the same.
    pub fn ring_ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (log, sides) = (self.log_range(), self.log.sides());
        log.step_by(sides).map(move |first| first..first + sides)
    }

    /// All disks: data, then log, then spares.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.data_disks + self.log.disks() + self.spare_disks
    }

    /// Numbers of the log disks.
    #[must_use]
    pub fn log_range(&self) -> std::ops::Range<usize> {
        self.data_disks..self.data_disks + self.log.disks()
    }
}

/// Why a subject did not do something.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What it told the operator. Of an import: judged by [`crate::refusal`].
    pub message: String,
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        Self { message: error.to_string() }
    }
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbed {
    /// Errors found and repaired.
    pub repaired: u64,
    /// Errors found that could not be repaired.
    pub unrepaired: u64,
}

/// What an administrator may do to a running subject. Disks are numbers, as in [`PoolSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manage {
    /// Take a disk out of service; it will come back.
    Offline(usize),
    /// Put it back, and catch up.
    Online(usize),
    /// Put the second disk in the place of the first, and fill it.
    Replace(usize, usize),
    /// Remove a log disk for good.
    RemoveLog(usize),
    /// Add a disk as log.
    AddLog(usize),
    /// Add a group of data disks: one disk, or a mirror.
    AddGroup(Vec<usize>),
    /// Make the second disk a side of the first one's mirror (which it may become by that).
    Attach(usize, usize),
    /// Take a side off its mirror.
    Detach(usize),
    /// Make the second disk one more copy of the first, a data disk by itself or of a mirror.
    AttachCopy(usize, usize),
    /// Take a data disk off its mirror.
    DetachCopy(usize),
    /// Write everything down now, without a client asking.
    Commit,
    /// Clean up segments now, as much as there is.
    Clean,
}

/// A system that makes pools.
#[allow(async_fn_in_trait)] // everything runs on one thread; no future is ever sent
pub trait Subject: 'static {
    /// A running pool.
    type Pool: Pool;

    /// Makes a pool of the disks. `disks` has every disk of the spec.
    async fn create(&self, disks: &[Device], spec: &PoolSpec) -> Result<Self::Pool, Refusal>;

    /// Finds the pool again. With `accept_loss` it goes on without what is missing.
    async fn import(
        &self,
        disks: &[Device],
        spec: &PoolSpec,
        accept_loss: bool,
    ) -> Result<Self::Pool, Refusal>;

    /// Writes longer than this may be found in part after a crash, in order of their pieces or
    /// not; shorter ones never.
    fn atomic_bytes(&self) -> u64;

    /// What the machine remembers beside the disks, power cuts or not: three numbers of its own.
    fn memory(&self) -> [u64; 3] {
        [0; 3]
    }

    /// Makes it remember that instead: each way that a run may go has a memory of its own.
    fn remember(&self, memory: [u64; 3]) {
        let _ = memory;
    }

    /// Whether it can do this at all.
    fn can(&self, manage: &Manage) -> bool {
        let _ = manage;
        false
    }
}

/// A pool that runs.
#[allow(async_fn_in_trait)]
pub trait Pool: 'static {
    /// The volumes that exist, by name.
    fn volumes(&self) -> Vec<String>;

    /// A volume to read and write.
    fn volume(&self, name: &str) -> Option<Device>;

    /// Makes a volume of zeros, with no space set aside when it is `sparse`. It exists for good when
    /// this returns.
    async fn create_volume(&self, name: &str, size_bytes: u64, sparse: bool)
    -> Result<(), Refusal>;

    /// Destroys a volume. It is gone for good when this returns.
    async fn destroy_volume(&self, name: &str) -> Result<(), Refusal>;

    /// Changes the size of a volume. New space reads as zeros.
    async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), Refusal>;

    /// Changes when a volume's writes are durable, for those that are issued from its return on.
    async fn set_sync(&self, name: &str, sync: Sync) -> Result<(), Refusal> {
        let message = format!("{name} cannot be {sync:?}");
        Err(Refusal { message })
    }

    /// Checks every copy and parity, and repairs what can be.
    async fn scrub(&self) -> Result<Scrubbed, Refusal>;

    /// Does something to the pool.
    async fn manage(&self, disks: &[Device], what: &Manage) -> Result<(), Refusal>;

    /// Stops it in order; everything is durable when this returns.
    async fn export(self) -> Result<(), Refusal>;

    /// Named things that have happened so far and how often, for the summary.
    fn events(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
