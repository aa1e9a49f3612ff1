//! The parts of a pool that change together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_array::Array;
use forebay_format::packed::{PackedBlock, Packer};
use forebay_format::superblock::{JournalPosition, Superblock};
use forebay_map::{LeafId, Map};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_segment::{Classes, DataWriter, InFlight, JournalWriter, Reader, SegmentTable};
use forebay_txg::{Groups, Throttle};
use forebay_units::{BlockAddr, CommitId, DeviceId, Lba, TxgId, VolumeId};

use crate::commit::Repacked;
use crate::commit::error::SuspendReason;
use crate::space::Space;

/// The main store: segments on the array, and the map of what lies in them.
pub(crate) struct Store {
    pub array: Rc<Array>,
    pub table: Rc<SegmentTable>,
    pub reader: Rc<Reader>,
    pub in_flight: Rc<InFlight>,
    pub classes: Classes,
    pub map: RefCell<Map>,
}

/// Data in memory that no root has yet, and the room that it may take.
pub(crate) struct DirtyData {
    pub groups: RefCell<Groups>,
    pub throttle: Rc<Throttle>,
    pub space: Space,
}

/// How far a pool is from its import to its end.
#[derive(Default)]
pub(crate) struct Lifecycle {
    /// Why the pool is suspended, if it is.
    pub stopped: RefCell<Option<SuspendReason>>,
    /// The pool that goes on where this one was suspended.
    pub successor: RefCell<Option<Rc<crate::Pool>>>,
    /// Nonces of the owners that attempts to resume this pool have made, each with the last group
    /// of this pool that the root has from which it went on.
    pub heirs: RefCell<Vec<(u64, TxgId)>>,
    /// The newest root that these attempts have written.
    pub heirs_root: Cell<CommitId>,
    /// The highest number of a root that these attempts may have begun to write.
    pub heirs_tried: Cell<CommitId>,
    /// The pool is open for one command: what is due by the clock is left to a server.
    pub for_command: Cell<bool>,
    /// The process is about to end, and no successor will come.
    pub given_up: Cell<bool>,
    /// Suspended, with its devices closed.
    pub devices_closed: Cell<bool>,
    /// An export or a destruction has begun.
    pub closing: Cell<bool>,
    /// The last root is written, or never will be.
    pub closed: Cell<bool>,
    /// Background tasks, which an export waits for.
    pub tasks: RefCell<Vec<rt::JoinHandle<()>>>,
    /// The heartbeat task. It ends after the last root is written.
    pub heartbeat_task: RefCell<Option<rt::JoinHandle<()>>>,
}

/// A block that the cleaner has moved. The next root applies it, if the map still points at the old
/// place.
pub(crate) struct Relocation {
    pub volume: VolumeId,
    pub lba: Lba,
    pub old: BlockAddr,
    pub new: BlockAddr,
    pub sum: u64,
}

/// State that only the holder of the sync lock changes.
pub(crate) struct Writers {
    pub data: Vec<DataWriter>,
    pub journal: JournalWriter,
    /// First frame of the journal that the next root needs.
    pub journal_start: Option<JournalPosition>,
    /// The checkpoint in progress.
    pub checkpoint: Option<Checkpoint>,
    pub relocations: Vec<Relocation>,
    /// The packed block that is being filled; none between two groups.
    pub packer: Packer,
    /// Packed blocks that are complete and not yet in a segment.
    pub full: Vec<PackedBlock>,
    /// What was repacked since the last root.
    pub repacked: Repacked,
    /// Volumes to drop from the map with the next root.
    pub dropped: Vec<VolumeId>,
    /// Volumes to cut, with their new sizes in blocks.
    pub truncated: Vec<(VolumeId, u64)>,
}

impl Writers {
    /// The writers of a pool that was just assembled.
    pub fn new(
        data: Vec<DataWriter>,
        journal: JournalWriter,
        journal_start: Option<JournalPosition>,
        packer: Packer,
    ) -> Self {
        Self {
            data,
            journal,
            journal_start,
            checkpoint: None,
            relocations: Vec::new(),
            packer,
            full: Vec::new(),
            repacked: Repacked::default(),
            dropped: Vec::new(),
            truncated: Vec::new(),
        }
    }
}

/// What was last written to labels, and the devices that took it.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenLabels {
    /// The newest root.
    pub root: Option<(Superblock, BTreeSet<DeviceId>)>,
    /// Generation and checksum of the newest configuration.
    pub config: Option<((u64, u64), BTreeSet<DeviceId>)>,
}

/// State that the sync task shares with tasks that wait for it.
pub(crate) struct SyncControl {
    pub wake: Rc<Notify>,
    /// The newest group that a task waits for.
    pub wanted: Cell<TxgId>,
    pub committed: Cell<TxgId>,
    /// Number of the last commit; the next root's is one more.
    pub commit: Cell<CommitId>,
    /// The last root on the devices. Older than `commit` between an import and its first root.
    pub rooted: Cell<CommitId>,
    pub done: Rc<Notify>,
    /// The configuration changed and is written with the next root.
    pub config_dirty: Cell<bool>,
    /// Generation and checksum of the configuration as last written, which a root names.
    pub config_written: Cell<(u64, u64)>,
    /// The next root overwrites the newest one, which a rewind leaves behind. Until then that root
    /// counts after a crash, and its configuration stays in the second label areas.
    pub overtakes: Cell<bool>,
    /// What the labels of the devices hold.
    pub written: RefCell<WrittenLabels>,
    /// A root is wanted even if nothing is dirty.
    pub root_wanted: Cell<bool>,
    /// Version of the format that roots have.
    pub version: Cell<u32>,
    /// The sync task has ended; there are no more commits.
    pub ended: Cell<bool>,
}

/// A checkpoint: the map on its way into the journal again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    /// Position of its first frame.
    pub start: JournalPosition,
    /// The next leaf.
    pub cursor: LeafId,
    /// All leaves are written: the next part of the index of fingerprints.
    pub index_part: Option<usize>,
    /// The journal is too long or damaged, so the checkpoint does not wait for room in rows.
    pub urgent: bool,
}
