#![doc = include_str!("../README.md")]

mod admin;
mod cache_devices;
mod changes;
mod commit;
mod dedup;
mod device_errors;
mod diagnosis;
mod error;
mod health;
mod heartbeat;
mod holes;
mod import;
mod label_check;
mod labels;
mod layout;
mod log_mark;
mod log_memory;
mod merge;
mod opener;
mod packed;
mod rate_limit;
mod read_ahead;
mod read_cache;
mod read_path;
mod remote_log;
mod resume;
mod runs;
mod schedule;
mod scrub;
mod settings;
mod snapshots;
mod space;
mod spares;
pub mod spec;
mod state;
pub mod status;
mod store_prices;
mod store_watch;
mod transfer;
mod volume;
mod widens;
mod write_path;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Cause, DeviceError, ErrorKind, Operation};
use forebay_format::config::PoolConfig;
use forebay_intent_log::IntentLog;
use forebay_rt::sync::Mutex;
use forebay_units::{BLOCK_BYTES, DeviceId, VolumeId};

use crate::cache_devices::CacheDevices;
use crate::commit::Trims;
use crate::dedup::Dedup;
use crate::health::HealthState;
use crate::layout::Limits;
use crate::opener::{FencedOpener, OpenDevice};
use crate::packed::Packed;
use crate::read_ahead::ReadAhead;
use crate::read_cache::ReadCache;
use crate::scrub::ScanState;
use crate::settings::Settings;
use crate::snapshots::Snapshots;
use crate::spares::Spares;
use crate::state::{DirtyData, Lifecycle, Store, SyncControl, Writers};
use crate::status::PoolEvent;
use crate::status::stats::Stats;
use crate::volume::VolumeState;

// Types that occur in errors of this crate.
pub use forebay_array::ArrayError;
pub use forebay_intent_log::LogError;
pub use forebay_segment::SegmentError;

pub use admin::candidate::describe_content;
pub use admin::error::{
    AdminError, CandidateError, CloseError, ConfigTooLarge, NameError, PropertyError, SpaceFor,
    UsableChange, VolumeError,
};
pub use admin::properties;
pub use admin::volumes::MAX_VOLUME_BYTES;
pub use cache_devices::CacheFault;
pub use changes::ChangedRun;
pub use commit::error::{CommitError, LabelPart, SuspendReason};
pub use dedup::DedupMode;
pub use error::PoolError;
pub use forebay_compress::Compression;
pub use import::error::{
    ImportError, ImportErrorKind, Lacking, LogLoss, MapLoadError, MapTooLarge, RecoveryError,
    Witness,
};
pub use label_check::LabelFault;
pub use labels::LabelError;
pub use layout::LayoutError;
pub use opener::{Answering, Counting, Memory, OpenWith, Opener, Opening};
pub use resume::ResumeError;
pub use scrub::error::ScrubError;
pub use transfer::error::TransferError;
pub use transfer::receive::{LeftBy, ReceiveOptions, Received, Receiver};
pub use transfer::send::{SendOptions, Sender, source_of_token};
pub use volume::{SyncMode, Volume};

/// An imported pool.
pub struct Pool {
    pub(crate) guid: u64,
    pub(crate) nonce: u64,
    pub(crate) opener: Rc<FencedOpener>,
    pub(crate) config: RefCell<PoolConfig>,
    pub(crate) devices: RefCell<BTreeMap<DeviceId, OpenDevice>>,
    pub(crate) volumes: RefCell<BTreeMap<VolumeId, Rc<VolumeState>>>,
    pub(crate) snapshots: Snapshots,
    pub(crate) dirty: DirtyData,
    pub(crate) log: IntentLog,
    pub(crate) store: Store,
    pub(crate) dedup: Dedup,
    pub(crate) packed: Packed,
    pub(crate) cache: ReadCache,
    pub(crate) cache_devices: CacheDevices,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) writers: Mutex<Writers>,
    pub(crate) sync: SyncControl,
    pub(crate) limits: Cell<Limits>,
    pub(crate) settings: Cell<Settings>,
    pub(crate) trims: Trims,
    pub(crate) scan: ScanState,
    pub(crate) health: HealthState,
    pub(crate) spares: Spares,
    pub(crate) stats: Stats,
    pub(crate) lifecycle: Lifecycle,
    /// Serializes commands that change what the pool is made of.
    pub(crate) admin: Mutex<()>,
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
        self.lifecycle.stopped.borrow().is_some()
    }

    /// Why nothing can be committed: the pool is suspended, or closing.
    pub(crate) fn why_ended(&self) -> CommitError {
        match self.lifecycle.stopped.borrow().clone() {
            Some(reason) => CommitError::Suspended(reason),
            None => CommitError::Closing,
        }
    }

    /// Suspends the pool: memory and media may disagree, and only the media count. What follows it
    /// is another import, by [`Pool::resume`] or by another process.
    pub(crate) fn stop(&self, why: SuspendReason) {
        if self.lifecycle.stopped.borrow().is_none() {
            self.health.events.push(PoolEvent::Suspended(why.clone()));
            *self.lifecycle.stopped.borrow_mut() = Some(why);
        }
        self.log.close();
        // The heartbeat ends, and with it the right to write, so reads repair nothing any more.
        self.store.array.freeze();
        // Writers that wait for room are refused.
        self.dirty.throttle.close();
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
        if !self.is_stopped() && !self.lifecycle.closing.get() {
            return Ok(());
        }
        let kind = ErrorKind::Layer(Cause::new(self.why_ended()));
        Err(DeviceError::new(name, operation, offset_bytes, len_bytes, kind))
    }

    /// Blocks of `bytes`, rounded up.
    pub(crate) fn blocks_of(bytes: u64) -> u64 {
        bytes.div_ceil(BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests;
