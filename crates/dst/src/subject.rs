//! The subject of the proof: a system that makes volumes out of disks and can import them again.
//!
//! What enters: disks, a pool shape, jobs. What leaves: volumes as block devices, and refusals.
//! Who implements: `pool.rs` for the product, `reference_pool.rs` to check the harness.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use serde::{Deserialize, Serialize};

use crate::coverage::Activity;
use crate::remote_log::RemoteLog;
use crate::scenario::Copying;

pub use services::{DEDUP_ON, DEDUP_VERIFY, LZ4, SERVICES};
pub use shape::{LogShape, PoolSpec, Raid};

mod services;
mod shape;

/// The `sync` property of a volume: when its writes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Sync {
    /// When a flush or FUA asks for it.
    Standard,
    /// Every write when it is answered.
    Always,
    /// When their transaction group commits, whatever the client asks for.
    Disabled,
}

/// Why a subject did not perform something.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// The message to the operator.
    pub message: String,
    /// The cause, as far as the proof tells causes apart.
    pub cause: Cause,
    /// Devices that are missing, behind, out of use or unreadable, according to the subject.
    pub blamed: Vec<String>,
    /// Devices that the subject names otherwise.
    pub named: Vec<String>,
}

/// Causes of refusals that the proof tells apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Any other cause.
    #[default]
    Other,
    /// The pool has too little space.
    NoSpace,
    /// Another machine has the pool, or had it last.
    OtherMachine,
    /// A device is reserved under a key that no owner of the pool has.
    UnknownReservation,
    /// Half of the devices in use or more are missing, and nothing tells that they are not newer.
    HalfMissing,
    /// The devices were written apart from each other.
    Diverged,
}

impl Cause {
    /// True when the pool may have another owner.
    #[must_use]
    pub fn is_other_machine(self) -> bool {
        matches!(self, Self::OtherMachine | Self::UnknownReservation)
    }
}

impl Refusal {
    /// A refusal that names no device.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let message = error.to_string();
        Self { message, blamed: vec![error.device], ..Self::default() }
    }
}

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbed {
    /// Errors found and repaired.
    pub repaired: u64,
    /// Errors found that could not be repaired.
    pub unrepaired: u64,
}

/// What an administrator may do to a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanJob {
    /// Begins one, or continues a paused one.
    Begin,
    /// Pauses it.
    Pause,
    /// Ends it.
    Stop,
}

/// What a pool says of its last scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubPhase {
    /// There was none, or a resilver.
    Other,
    /// A resilver runs.
    Resilver,
    /// A scrub runs.
    Running,
    /// A scrub waits to be continued.
    Paused,
    /// A scrub was stopped.
    Stopped,
    /// A scrub has ended.
    Completed,
}

/// What an administrator may do to a running pool. Disks are numbers, as in [`PoolSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manage {
    /// Takes a disk out of service for a while.
    Offline(usize),
    /// Brings a disk back and resilvers it.
    Online(usize),
    /// Replaces the first disk by the second and resilvers it.
    Replace(usize, usize),
    /// Removes a log disk.
    RemoveLog(usize),
    /// Adds a log disk.
    AddLog(usize),
    /// Adds a group of data disks: one disk, or a mirror.
    AddGroup(Vec<usize>),
    /// Attaches the second disk as a mirror side of the first log disk.
    Attach(usize, usize),
    /// Detaches a side of a log mirror.
    Detach(usize),
    /// Attaches the second disk as a copy of the first data disk.
    AttachCopy(usize, usize),
    /// Detaches a copy from a mirror of data disks.
    DetachCopy(usize),
    /// Takes a cache device out of use.
    CacheOffline(usize),
    /// Brings it back.
    CacheOnline(usize),
    /// Removes a cache device.
    CacheRemove(usize),
    /// Adds one.
    CacheAdd(usize),
    /// Takes in what is at the place of a log disk that is out of use.
    Renew(usize),
    /// Commits the open transaction group.
    Commit,
    /// Cleans segments.
    Clean,
}

/// The machines that take pools from their owners: the next owner, and one that wants them too.
pub const OTHER_HOSTS: [u64; 2] = [2, 3];

/// How a pool is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportMode {
    /// As it is.
    Plain,
    /// Although log records are lost.
    AcceptLoss,
    /// From a root before the newest: so many before it.
    Rewind(u64),
    /// From the newest root, although the log proves a newer one.
    Force,
    /// With the half of the devices that this disk belongs to, where they were written apart.
    Keep(usize),
    /// Whatever is lost with it: log records, newer roots, and what other devices were filled from.
    GiveUp,
}

/// A system that makes pools.
#[allow(async_fn_in_trait)] // everything runs on one thread, so no future is sent
pub trait Subject: 'static {
    /// A running pool.
    type Pool: Pool;

    /// Creates a pool. `disks` has every disk of the spec.
    async fn create(&self, disks: &[Device], spec: &PoolSpec) -> Result<Self::Pool, Refusal>;

    /// Imports the pool.
    async fn import(
        &self,
        disks: &[Device],
        spec: &PoolSpec,
        mode: ImportMode,
    ) -> Result<Self::Pool, Refusal>;

    /// Before a boot's pool is opened: the log disks that other hosts serve.
    fn connect(&self, remote: Vec<Rc<RemoteLog>>) {
        let _ = remote;
    }

    /// Another machine that reaches the same disks, one of [`OTHER_HOSTS`]. `None` when the subject
    /// does not protect pools from a second owner.
    fn other_machine(&self, host: u64) -> Option<Rc<Self>>
    where
        Self: Sized,
    {
        let _ = host;
        None
    }

    /// Longer writes may be found in part after a crash; shorter ones never.
    fn atomic_bytes(&self) -> u64;

    /// What the machine remembers beside the disks: three numbers that survive power cuts.
    fn memory(&self) -> [u64; 3] {
        [0; 3]
    }

    /// Restores a memory. A forked run has a memory of its own.
    fn remember(&self, memory: [u64; 3]) {
        let _ = memory;
    }
}

/// A pool that runs.
#[allow(async_fn_in_trait)]
pub trait Pool: 'static {
    /// Names of the volumes that exist.
    fn volumes(&self) -> Vec<String>;

    /// Names of volumes that are not to be had yet, because a stream to them has not ended.
    fn receiving(&self) -> Vec<String> {
        Vec::new()
    }

    /// Opens a volume.
    fn volume(&self, name: &str) -> Option<Device>;

    /// Creates a volume of zeros, durable on return. A `sparse` volume reserves no space.
    async fn create_volume(&self, name: &str, size_bytes: u64, sparse: bool)
    -> Result<(), Refusal>;

    /// Destroys a volume. The destruction is durable on return.
    async fn destroy_volume(&self, name: &str) -> Result<(), Refusal>;

    /// Gives up a stream of which a part came. Durable on return.
    async fn abandon_receive(&self, volume: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{volume} is not being received")))
    }

    /// Changes the size of a volume. New space reads as zeros.
    async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), Refusal>;

    /// Gives a volume another name, durable on return.
    async fn rename_volume(&self, name: &str, new: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{name} cannot become {new}")))
    }

    /// Names of the snapshots that exist, `VOLUME@SNAPSHOT`.
    fn snapshots(&self) -> Vec<String> {
        Vec::new()
    }

    /// Opens a snapshot, read-only.
    fn snapshot(&self, name: &str) -> Option<Device> {
        let _ = name;
        None
    }

    /// Takes snapshots at one instant, durable on return.
    async fn take_snapshots(&self, names: &[String]) -> Result<(), Refusal> {
        Err(Refusal::new(format!("no snapshots {names:?} can be taken")))
    }

    /// Destroys snapshots, all or none, durable on return.
    async fn destroy_snapshots(&self, names: &[String]) -> Result<(), Refusal> {
        Err(Refusal::new(format!("there are no snapshots {names:?}")))
    }

    /// The tags of each snapshot that is held.
    async fn holds(&self) -> BTreeMap<String, Vec<String>> {
        BTreeMap::new()
    }

    /// Adds a tag to a snapshot, or takes it away: durable on return.
    async fn hold_snapshot(&self, name: &str, tag: &str, release: bool) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{name} takes no tag {tag}: {release}")))
    }

    /// Gives a snapshot the name `new`, without its volume's, durable on return.
    async fn rename_snapshot(&self, name: &str, new: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{name} cannot be renamed {new}")))
    }

    /// Takes a volume back to a snapshot of it, and destroys the newer ones. Durable on return.
    async fn roll_back(&self, snapshot: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("there is no snapshot {snapshot}")))
    }

    /// Turns a clone and the volume that it was cloned from around, durable on return.
    async fn promote(&self, clone: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{clone} is no clone")))
    }

    /// Makes a volume out of a snapshot, durable on return.
    async fn clone_snapshot(&self, snapshot: &str, volume: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("there is no snapshot {snapshot} for {volume}")))
    }

    /// Sends a snapshot, or what changed since an older one that is called `base` without its
    /// volume's name, and receives it as volume `copy`. True when all of it came.
    async fn copy_snapshot(
        &self,
        snapshot: &str,
        base: Option<&str>,
        copy: &str,
        how: &Copying,
    ) -> Result<bool, Refusal> {
        Err(Refusal::new(format!("{snapshot} since {base:?} cannot be sent to {copy}: {how:?}")))
    }

    /// Changes the `sync` property; it holds for writes that are issued after the return.
    async fn set_sync(&self, name: &str, sync: Sync) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{name} cannot be {sync:?}")))
    }

    /// The `sync` property. `None` when the subject does not tell.
    fn sync_of(&self, volume: &str) -> Option<Sync> {
        let _ = volume;
        None
    }

    /// Changes how blocks of a sparse volume are stored from now on.
    async fn set_service(&self, volume: &str, name: &str, value: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{name} of {volume} cannot be {value}")))
    }

    /// Changes a property of the pool.
    async fn set(&self, property: &str, value: &str) -> Result<(), Refusal> {
        Err(Refusal::new(format!("{property} cannot be {value}")))
    }

    /// Longer writes may be found in part after a crash, until the next import; `None` when the
    /// subject's own limit holds.
    fn atomic_bytes(&self) -> Option<u64> {
        None
    }

    /// Checks every copy and parity column and repairs damage.
    async fn scrub(&self) -> Result<Scrubbed, Refusal>;

    /// Begins, pauses or stops a scrub, and does not wait.
    async fn scan(&self, job: ScanJob) -> Result<(), Refusal> {
        Err(Refusal::new(format!("there is no scrub: {job:?}")))
    }

    /// What the pool says of its last scan; `None` when the subject does not tell.
    fn scrub_phase(&self) -> Option<ScrubPhase> {
        None
    }

    /// Performs an administrator's job.
    async fn manage(&self, disks: &[Device], what: &Manage) -> Result<(), Refusal>;

    /// Exports the pool. Everything is durable on return.
    async fn export(self) -> Result<(), Refusal>;

    /// True while the pool takes no writes, until it is cleared.
    fn is_suspended(&self) -> bool {
        false
    }

    /// Lets a suspended pool go on with these disks. Requests that wait go on with it. Refused
    /// while the disks do not allow that; it may be repeated.
    async fn clear(&self, disks: &[Device]) -> Result<(), Refusal> {
        let _ = disks;
        Err(Refusal::new("the pool is not suspended"))
    }

    /// Lets requests fail that wait for a suspended pool.
    fn give_up(&self) {}

    /// Disks of the pool that do not hold everything that they should, by number. `None` when the
    /// subject cannot tell.
    fn lacking(&self, disks: &[Device]) -> Option<Vec<usize>> {
        let _ = disks;
        None
    }

    /// Disks that the pool has put out of use, or calls degraded, and why.
    fn blamed(&self, disks: &[Device]) -> Vec<String> {
        let _ = disks;
        Vec::new()
    }

    /// Disks of which the pool says that they returned wrong blocks without an error, and how many.
    fn wrong_blocks(&self, disks: &[Device]) -> Vec<(usize, u64)> {
        let _ = disks;
        Vec::new()
    }

    /// What the pool does beside its clients' requests.
    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// What requests and volumes hold now; `None` when the subject has no figures.
    fn held(&self) -> Option<Held> {
        None
    }

    /// What the pool says of itself while no request is in flight, once groups change it no more.
    /// `None` when the subject has no figures, or they change on.
    async fn figures(&self) -> Result<Option<Figures>, Refusal> {
        Ok(None)
    }

    /// What the pool has promised to volumes and snapshots beyond its size, in bytes.
    fn overdrawn_bytes(&self) -> u64 {
        0
    }

    /// Counts of named events for the summary.
    fn events(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}

/// What a pool says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// A line for the pool and each of its parts. After an export an import finds them again.
    pub lines: Vec<String>,
    /// What is taken of the pool, by name: nothing once all volumes are gone.
    pub taken: Vec<(String, u64)>,
}

/// What requests and volumes hold of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Bytes of memory that no committed group has given back.
    pub dirty_bytes: u64,
    /// Bytes that new volumes may still take.
    pub available_bytes: u64,
}

/// The event that counts segments cleaned since the import.
pub const CLEANER_EVENT: &str = "segments cleaned";
