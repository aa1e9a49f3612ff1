//! Sending and receiving: identities of snapshots, and volumes that are not whole yet
//! (`docs/rfcs/0013-send-and-receive.md`). No client sees a volume that is not whole, and only the
//! commands of this module change it. What a stream that ends early has brought is undone, at the
//! latest after the next import, unless it was to be kept.

pub(crate) mod error;
pub(crate) mod receive;
pub(crate) mod send;
mod stored;
mod undo;

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::checksum::crc64_of_parts;
use forebay_format::receiving::{RECEIVED, RECEIVING, ReceivedGuids, Receiving};
use forebay_format::snapshot::Snapshot;
use forebay_format::stream::ResumeToken;
use forebay_rt as rt;
use forebay_rt::sync::MutexGuard;
use forebay_units::{BLOCK_BYTES, Lba, Nanos, VolumeId};

use crate::Pool;
use crate::admin::error::VolumeError;
use crate::volume::{Arrival, VolumeState};

/// How often a task looks whether a command has ended.
const TURN_INTERVAL: Nanos = Nanos::from_millis(100);

impl Pool {
    /// The snapshots of a volume, oldest first, with the identities that they have in all pools: of
    /// a received one that of its original, otherwise one that follows from where and when it was
    /// taken.
    fn identities(&self, volume: VolumeId) -> Vec<(Snapshot, u64)> {
        let volumes = self.volumes.borrow();
        let received = volumes.get(&volume).and_then(|v| v.property(RECEIVED));
        let received = ReceivedGuids::parse(&received.unwrap_or_default()).0;
        let living = self.snapshots.of(volume).into_iter().filter(|s| !s.is_dying);
        let with_guid = |snapshot: Snapshot| {
            let original = || original_guid(self.guid, &snapshot);
            let guid = received.get(&snapshot.id).copied().unwrap_or_else(original);
            (snapshot, guid)
        };
        living.map(with_guid).collect()
    }

    /// Up to where, from a place on, none of some versions has anything but holes, in bytes. A
    /// petabyte of holes would have millions of steps.
    fn end_of_holes(&self, versions: &[VolumeId], from_bytes: u64, size_bytes: u64) -> u64 {
        let map = self.store.map.borrow();
        let from = Lba(from_bytes / BLOCK_BYTES);
        let entries = versions.iter().filter_map(|id| map.next_entry(*id, from));
        let first = entries.min().map_or(u64::MAX, |lba| lba.0 * BLOCK_BYTES);
        first.clamp(from_bytes, size_bytes)
    }

    /// Refuses a volume that is not whole.
    pub(crate) fn check_whole(&self, volume: &VolumeState) -> Result<(), VolumeError> {
        let is_underway = match volume.arrival.get() {
            Arrival::Whole => return Ok(()),
            Arrival::Underway => true,
            Arrival::Interrupted => false,
        };
        let name = format!("{}/{}", self.name(), volume.name.borrow());
        Err(VolumeError::Receiving { name, is_underway })
    }

    /// Refuses a snapshot that a volume goes back to when its stream is not to be had.
    pub(crate) fn check_is_no_base(
        &self,
        volume: &VolumeState,
        snapshot: &Snapshot,
    ) -> Result<(), VolumeError> {
        match volume.receiving().and_then(|receiving| receiving.base) {
            Some(base) if base == snapshot.id.0 => self.check_whole(volume),
            _ => Ok(()),
        }
    }

    /// Refuses the name `name` (without the volume's) for a snapshot of a volume when its stream
    /// brings one of that name.
    pub(crate) fn check_is_not_coming(
        &self,
        volume: &VolumeState,
        name: &str,
    ) -> Result<(), VolumeError> {
        match volume.receiving() {
            Some(receiving) if receiving.snapshot == name => self.check_whole(volume),
            _ => Ok(()),
        }
    }

    /// Where the interrupted stream of a volume goes on.
    pub(crate) fn resume_token(&self, volume: &VolumeState) -> Option<ResumeToken> {
        let receiving = volume.receiving().filter(|receiving| {
            // A part of nothing is undone, not gone on with.
            let is_kept = receiving.is_resumable && receiving.done_bytes > 0;
            is_kept && volume.arrival.get() == Arrival::Interrupted
        })?;
        Some(ResumeToken {
            guid: receiving.guid,
            base_guid: receiving.base_guid,
            start_bytes: receiving.done_bytes,
            source: format!("{}@{}", receiving.source, receiving.snapshot),
        })
    }

    /// Sets what the configuration keeps of a volume that is received. The next root has it.
    fn keep_receiving(&self, volume: &VolumeState, receiving: Option<&Receiving>) {
        let text = receiving.map(Receiving::to_text);
        self.keep_hidden(volume, RECEIVING, text);
    }

    pub(crate) fn keep_hidden(&self, volume: &VolumeState, name: &str, value: Option<String>) {
        let set = |properties: &mut BTreeMap<String, String>| match &value {
            Some(value) => {
                properties.insert(name.to_owned(), value.clone());
            }
            None => {
                properties.remove(name);
            }
        };
        set(&mut volume.properties.borrow_mut());
        let mut config = self.config.borrow_mut();
        let kept = config.volumes.iter_mut().find(|v| v.id == volume.id.0);
        kept.into_iter().for_each(|kept| set(&mut kept.properties));
        drop(config);
        self.sync.config_dirty.set(true);
    }

    /// The turn of a task that changes what the pool is made of; `None` when the pool ends first.
    /// The pool's end holds the turn while it waits for its tasks, so no task waits for it.
    pub(crate) async fn turn_of_task(&self) -> Option<MutexGuard<'_, ()>> {
        let is_over = || self.lifecycle.closing.get() || self.is_stopped();
        while !is_over() {
            if let Some(turn) = self.admin.try_lock() {
                return Some(turn);
            }
            let _ = rt::timeout(TURN_INTERVAL, Box::pin(self.sync.done.until(is_over))).await;
        }
        None
    }
}

impl VolumeState {
    pub(crate) fn property(&self, name: &str) -> Option<String> {
        self.properties.borrow().get(name).cloned()
    }

    /// What the configuration keeps while it is received.
    fn receiving(&self) -> Option<Receiving> {
        Receiving::parse(&self.property(RECEIVING)?)
    }
}

/// The identity of a snapshot that was taken in pool `pool`: never 0.
fn original_guid(pool: u64, snapshot: &Snapshot) -> u64 {
    let (id, volume) = (u64::from(snapshot.id.0), u64::from(snapshot.taken_of.0));
    let facts = [pool, id, volume, snapshot.commit, snapshot.created_at].map(u64::to_le_bytes);
    crc64_of_parts(&facts.each_ref().map(|fact| &fact[..])).max(1)
}

/// `POOL/VOL`.
fn full_name(pool: &Rc<Pool>, volume: &str) -> String {
    format!("{}/{volume}", pool.name())
}
