#![doc = include_str!("../README.md")]

mod admin;
mod commit;
mod device_errors;
mod diagnosis;
mod error;
mod health;
mod heartbeat;
mod holes;
mod import;
mod labels;
mod layout;
mod merge;
mod opener;
mod read_path;
mod scrub;
pub mod spec;
pub mod status;
mod volume;
mod write_path;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_array::Array;
use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_format::config::PoolConfig;
use forebay_format::superblock::JournalPosition;
use forebay_intent_log::IntentLog;
use forebay_map::{LeafId, Map};
use forebay_rt as rt;
use forebay_rt::sync::{Mutex, Notify};
use forebay_segment::{Classes, DataWriter, InFlight, JournalWriter, Reader, SegmentTable};
use forebay_txg::{Content, Groups, Throttle};
use forebay_units::{BLOCK_BYTES, BlockAddr, CommitId, DeviceId, Lba, TxgId, VolumeId};

use crate::commit::Trims;
use crate::health::HealthState;
use crate::layout::Limits;
use crate::opener::{FencedOpener, OpenDevice};
use crate::scrub::ScanState;
use crate::status::stats::Stats;
use crate::volume::VolumeState;

// Types that occur in errors of this crate.
pub use forebay_array::ArrayError;
pub use forebay_intent_log::LogError;
pub use forebay_segment::SegmentError;

pub use admin::error::{
    AdminError, CandidateError, CloseError, ConfigTooLarge, NameError, PropertyError, VolumeError,
};
pub use commit::error::{CommitError, LabelPart, SuspendReason};
pub use error::PoolError;
pub use import::error::{
    ImportError, ImportErrorKind, Lacking, LogLoss, MapLoadError, RecoveryError, Witness,
};
pub use labels::LabelError;
pub use layout::LayoutError;
pub use opener::Opener;
pub use scrub::error::ScrubError;
pub use volume::{SyncMode, Volume};

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
    /// Volumes to drop from the map with the next root.
    pub dropped: Vec<VolumeId>,
    /// Volumes to cut, with their new sizes in blocks.
    pub truncated: Vec<(VolumeId, u64)>,
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
    /// A root is wanted even if nothing is dirty.
    pub root_wanted: Cell<bool>,
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
    /// The journal is too long or damaged, so the checkpoint does not wait for room in rows.
    pub urgent: bool,
}

/// An imported pool.
pub struct Pool {
    pub(crate) guid: u64,
    pub(crate) opener: Rc<FencedOpener>,
    pub(crate) config: RefCell<PoolConfig>,
    pub(crate) devices: RefCell<BTreeMap<DeviceId, OpenDevice>>,
    pub(crate) array: Rc<Array>,
    pub(crate) table: Rc<SegmentTable>,
    pub(crate) reader: Rc<Reader>,
    pub(crate) in_flight: Rc<InFlight>,
    pub(crate) classes: Classes,
    pub(crate) map: RefCell<Map>,
    pub(crate) groups: RefCell<Groups>,
    pub(crate) throttle: Throttle,
    pub(crate) log: IntentLog,
    pub(crate) volumes: RefCell<BTreeMap<VolumeId, Rc<VolumeState>>>,
    pub(crate) writers: Mutex<Writers>,
    pub(crate) sync: SyncControl,
    pub(crate) limits: Cell<Limits>,
    pub(crate) stopped: RefCell<Option<SuspendReason>>,
    pub(crate) closing: Cell<bool>,
    pub(crate) stats: Stats,
    pub(crate) space: Space,
    pub(crate) health: HealthState,
    pub(crate) scan: ScanState,
    pub(crate) trims: Trims,
    pub(crate) nonce: u64,
    /// Serializes commands that change what the pool is made of.
    pub(crate) admin: Mutex<()>,
    /// Background tasks, which an export waits for.
    pub(crate) tasks: RefCell<Vec<rt::JoinHandle<()>>>,
    /// The heartbeat task. It ends after the last root is written.
    pub(crate) heartbeat_task: RefCell<Option<rt::JoinHandle<()>>>,
    pub(crate) closed: Cell<bool>,
}

/// Space accounts of sparse volumes. Other volumes own what they reserved.
#[derive(Default)]
pub(crate) struct Space {
    /// Blocks that volumes may take in all.
    pub usable_blocks: Cell<u64>,
    /// Blocks reserved for volumes that are not sparse.
    pub reserved_blocks: Cell<u64>,
    /// Mapped blocks of sparse volumes, as of the last root.
    pub sparse_blocks: Cell<u64>,
    /// Blocks that sparse volumes will gain or lose when all absorbed changes are under a root.
    pub promised_blocks: Cell<i64>,
    /// The part of `promised_blocks` that the syncing group brings.
    pub syncing_blocks: Cell<i64>,
}

impl Pool {
    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.config.borrow().name.clone()
    }

    /// The pool's id.
    #[must_use]
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// The newest configuration on the devices, for a list of known pools ([`Opener::witness`]).
    #[must_use]
    pub fn told(&self) -> spec::Told {
        spec::Told { generation: self.sync.config_written.get().0, owner: self.nonce }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.borrow().is_some()
    }

    /// Why nothing can be committed: the pool is suspended, or closing.
    pub(crate) fn why_ended(&self) -> CommitError {
        match self.stopped.borrow().clone() {
            Some(reason) => CommitError::Suspended(reason),
            None => CommitError::Closing,
        }
    }

    /// Suspends the pool for good: memory and media may disagree, and only the media count. An
    /// import continues from the last root and the log.
    pub(crate) fn stop(&self, why: SuspendReason) {
        self.stopped.borrow_mut().get_or_insert(why);
        self.log.close();
        // The heartbeat ends, and with it the right to write, so reads repair nothing any more.
        self.array.freeze();
        // Writers that wait for room are refused.
        self.throttle.close();
        self.health.log_changed.notify_all();
        self.sync.done.notify_all();
        self.sync.wake.notify_all();
        for volume in self.volumes.borrow().values() {
            volume.appended.notify_all();
        }
    }

    pub(crate) fn check_running(
        &self,
        name: &str,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        if !self.is_stopped() && !self.closing.get() {
            return Ok(());
        }
        let kind = ErrorKind::PoolSuspended { reason: self.why_ended().to_string() };
        Err(DeviceError::new(name, operation, offset_bytes, len_bytes, kind))
    }

    /// Pending bytes from which a flush commits the group instead of writing to the log.
    pub(crate) fn direct_limit_bytes(&self) -> u64 {
        const MOST: u64 = 32 << 20;
        MOST.min(self.log.capacity_bytes() / 4).min(self.throttle.limit_bytes() / 2)
    }

    /// Wakes the sync task when there is enough work.
    pub(crate) fn note_dirty(&self, first: bool) {
        if first
            || self.throttle.dirty_bytes() >= self.limits.get().txg_bytes
            || self.throttle.is_full()
        {
            self.sync.wake.notify_all();
        }
    }

    /// Reserves the space that a change of a sparse volume needs, or notes what it gives back.
    /// Returns whether there is enough.
    pub(crate) fn reserve_space(
        &self,
        volume: &VolumeState,
        lba: Lba,
        blocks: u64,
        content: &Content,
    ) -> bool {
        if !volume.sparse {
            return true;
        }
        let map = self.map.borrow();
        let pieces = self.groups.borrow().lookup(volume.id, lba, blocks);
        let held = |piece: &forebay_txg::OverlayExtent| match piece.content {
            Some(Content::Data(_)) => piece.blocks,
            Some(Content::Zero) => 0,
            None => map.mapped_within(volume.id, piece.lba, piece.blocks),
        };
        let held: u64 = pieces.iter().map(held).sum();
        let more = match content {
            Content::Data(_) => (blocks - held) as i64,
            Content::Zero => -(held as i64),
        };
        if more > 0 && more as u64 > self.free_blocks() {
            return false;
        }
        let promised = &self.space.promised_blocks;
        promised.set(promised.get() + more);
        true
    }

    /// Waits until group `txg` is committed.
    pub(crate) async fn commit(&self, txg: TxgId) -> Result<(), CommitError> {
        if self.sync.wanted.get() < txg {
            self.sync.wanted.set(txg);
        }
        self.sync.wake.notify_all();
        let over = || self.is_stopped() || self.sync.ended.get();
        self.sync.done.until(|| self.sync.committed.get() >= txg || over()).await;
        if self.sync.committed.get() >= txg {
            return Ok(());
        }
        Err(self.why_ended())
    }

    /// Commits everything absorbed so far, and the configuration as it is now.
    pub(crate) async fn commit_all(&self) -> Result<(), CommitError> {
        let before = self.sync.commit.get();
        self.sync.root_wanted.set(true);
        let txg = self.groups.borrow().open_txg();
        self.commit(txg).await?;
        debug_assert!(self.sync.commit.get() > before);
        Ok(())
    }

    /// Blocks of `bytes`, rounded up.
    pub(crate) fn blocks_of(bytes: u64) -> u64 {
        bytes.div_ceil(BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests;
