//! Snapshots: which there are, and what the journal does not say of them yet.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_format::config::VolumeConfig;
use forebay_format::snapshot::{Snapshot, SnapshotRecord};
use forebay_units::{Lba, VolumeId};

use crate::Pool;
use crate::volume::VolumeState;

/// The snapshots of a pool.
#[derive(Default)]
pub(crate) struct Snapshots {
    /// By volume, and by id: later ones have higher ids.
    by_volume: RefCell<BTreeMap<VolumeId, BTreeMap<VolumeId, Snapshot>>>,
    /// The living ones by volume and name.
    by_name: RefCell<BTreeMap<(VolumeId, String), VolumeId>>,
    /// The volume of each snapshot.
    volume_of: RefCell<BTreeMap<VolumeId, VolumeId>>,
    /// What the next group ends with.
    pub wanted: RefCell<AtGroupEnd>,
    /// What the syncing group ends with.
    pub syncing: RefCell<AtGroupEnd>,
    /// Snapshots whose records must be written with the next root.
    changed: RefCell<BTreeSet<VolumeId>>,
    /// Snapshots that clients have opened.
    opened: RefCell<BTreeMap<VolumeId, Rc<VolumeState>>>,
    /// The highest id that a snapshot has had, also one that is gone.
    last_id: Cell<Option<VolumeId>>,
    /// Bytes that records of all snapshots take in the journal.
    record_bytes: Cell<u64>,
    /// How many are being destroyed.
    dying: Cell<usize>,
}

/// What happens between the last change of a group and the first of the next.
#[derive(Default)]
pub(crate) struct AtGroupEnd {
    /// Snapshots that are taken.
    pub taken: Vec<Snapshot>,
    /// Volumes that go back to their newest living snapshot.
    pub rolled_back: Vec<VolumeId>,
    /// Volumes that go back to it with several groups, of which this is one.
    pub partly_rolled_back: Vec<VolumeId>,
    /// The clone that is promoted.
    pub promoted: Option<VolumeId>,
    /// Blocks that were promised to the snapshots of volumes that are not sparse.
    pub promised_blocks: i64,
    /// Blocks more that such snapshots will hold, because of writes since they were wanted.
    pub grown_blocks: i64,
}

impl AtGroupEnd {
    /// Whether nothing happens then.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
            && self.rolled_back.is_empty()
            && self.partly_rolled_back.is_empty()
            && self.promoted.is_none()
    }
}

impl Snapshots {
    /// From the last record of each id in a journal.
    pub fn restored(records: impl IntoIterator<Item = SnapshotRecord>) -> Self {
        let snapshots = Self::default();
        for record in records {
            match record {
                SnapshotRecord::Present(snapshot) => snapshots.insert(snapshot),
                SnapshotRecord::Gone(id) => snapshots.take_id(id),
            }
        }
        snapshots.changed.take();
        snapshots
    }

    /// No other snapshot or volume gets this id any more.
    fn take_id(&self, id: VolumeId) {
        self.last_id.set(self.last_id.get().max(Some(id)));
    }

    /// Adds a snapshot, or changes it.
    pub fn insert(&self, snapshot: Snapshot) {
        self.take_id(snapshot.id);
        self.changed.borrow_mut().insert(snapshot.id);
        self.volume_of.borrow_mut().insert(snapshot.id, snapshot.volume);
        let len = SnapshotRecord::Present(snapshot.clone()).encoded_len() as u64;
        self.dying.set(self.dying.get() + usize::from(snapshot.is_dying));
        self.record_bytes.set(self.record_bytes.get() + len);
        let name = (!snapshot.is_dying).then(|| (snapshot.volume, snapshot.name.clone()));
        let id = snapshot.id;
        let mut by_volume = self.by_volume.borrow_mut();
        let before = by_volume.entry(snapshot.volume).or_default().insert(id, snapshot);
        before.into_iter().for_each(|before| self.uncount(before));
        self.by_name.borrow_mut().extend(name.map(|name| (name, id)));
    }

    /// Removes a snapshot. The journal gets a record of it.
    pub fn remove(&self, id: VolumeId) {
        let Some(volume) = self.volume_of.borrow_mut().remove(&id) else { return };
        let mut by_volume = self.by_volume.borrow_mut();
        let Some(mine) = by_volume.get_mut(&volume) else { return };
        mine.remove(&id).into_iter().for_each(|gone| self.uncount(gone));
        if mine.is_empty() {
            by_volume.remove(&volume);
        }
        self.changed.borrow_mut().insert(id);
        if let Some(state) = self.opened.borrow_mut().remove(&id) {
            state.end();
        }
    }

    /// Gives a snapshot to another volume.
    pub fn hand_over(&self, id: VolumeId, volume: VolumeId) {
        let Some(snapshot) = self.get(id) else { return };
        self.remove(id);
        self.insert(Snapshot { volume, ..snapshot });
    }

    fn uncount(&self, gone: Snapshot) {
        self.dying.set(self.dying.get() - usize::from(gone.is_dying));
        if !gone.is_dying {
            self.by_name.borrow_mut().remove(&(gone.volume, gone.name.clone()));
        }
        let len = SnapshotRecord::Present(gone).encoded_len() as u64;
        self.record_bytes.set(self.record_bytes.get() - len);
    }

    /// Whether some snapshot is being destroyed.
    pub fn has_dying(&self) -> bool {
        self.dying.get() > 0
    }

    /// Clients of a snapshot lose it.
    pub fn close(&self, id: VolumeId) {
        if let Some(state) = self.opened.borrow_mut().remove(&id) {
            state.end();
        }
    }

    /// The snapshots that clients have opened.
    pub fn opened(&self) -> Vec<Rc<VolumeState>> {
        self.opened.borrow().values().cloned().collect()
    }

    /// Whether clients have a snapshot open, or it is being sent.
    pub fn is_used(&self, id: VolumeId) -> bool {
        self.opened.borrow().get(&id).is_some_and(|state| Rc::strong_count(state) > 1)
    }

    /// Number of snapshots.
    pub fn len(&self) -> usize {
        self.volume_of.borrow().len()
    }

    /// Whether there is none, and none is about to be taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.wanted.borrow().taken.is_empty()
    }

    /// Whether the open group ends with a snapshot of the volume.
    pub fn is_wanted_of(&self, volume: VolumeId) -> bool {
        self.wanted.borrow().taken.iter().any(|snapshot| snapshot.volume == volume)
    }

    /// Bytes that records of all snapshots take in the journal.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes.get()
    }

    /// A snapshot by its id.
    pub fn get(&self, id: VolumeId) -> Option<Snapshot> {
        let volume = *self.volume_of.borrow().get(&id)?;
        self.by_volume.borrow().get(&volume)?.get(&id).cloned()
    }

    /// Whether a map of this id is a snapshot's.
    pub fn contains(&self, id: VolumeId) -> bool {
        self.volume_of.borrow().contains_key(&id)
    }

    /// The snapshots of a volume, oldest first; those that are being destroyed included.
    pub fn of(&self, volume: VolumeId) -> Vec<Snapshot> {
        let by_volume = self.by_volume.borrow();
        by_volume.get(&volume).map_or(Vec::new(), |mine| mine.values().cloned().collect())
    }

    /// The living snapshot of this name.
    pub fn named(&self, volume: VolumeId, name: &str) -> Option<Snapshot> {
        let id = *self.by_name.borrow().get(&(volume, name.to_owned()))?;
        self.by_volume.borrow().get(&volume)?.get(&id).cloned()
    }

    /// The volumes with snapshots.
    pub fn volumes(&self) -> Vec<VolumeId> {
        self.by_volume.borrow().keys().copied().collect()
    }

    /// The snapshots that are being destroyed: of each volume the oldest.
    pub fn dying(&self) -> Vec<Snapshot> {
        let by_volume = self.by_volume.borrow();
        let oldest = |mine: &BTreeMap<_, Snapshot>| mine.values().find(|s| s.is_dying).cloned();
        by_volume.values().filter_map(oldest).collect()
    }

    /// The lowest id that is above those of all snapshots that there have been.
    pub fn next_id(&self) -> u32 {
        let wanted = self.wanted.borrow();
        let queued = wanted.taken.iter().map(|snapshot| snapshot.id);
        queued.chain(self.last_id.get()).max().map_or(0, |id| id.0 + 1)
    }

    /// Records of the snapshots that changed since the last call; with `all`, of every one, and of
    /// the one with the highest id even if it is gone.
    pub fn take_records(&self, all: bool) -> Vec<SnapshotRecord> {
        let mut changed = self.changed.take();
        changed.extend(self.last_id.get().filter(|_| all));
        let gone = changed.iter().filter(|id| !self.contains(**id));
        let mut records: Vec<_> = gone.map(|id| SnapshotRecord::Gone(*id)).collect();
        let by_volume = self.by_volume.borrow();
        let present = by_volume.values().flat_map(BTreeMap::values);
        let wanted = present.filter(|snapshot| all || changed.contains(&snapshot.id));
        records.extend(wanted.cloned().map(SnapshotRecord::Present));
        records
    }
}

impl Pool {
    /// The running state of a volume, or of a snapshot that a client has opened.
    pub(crate) fn state_of(&self, id: VolumeId) -> Option<Rc<VolumeState>> {
        let volume = self.volumes.borrow().get(&id).cloned();
        volume.or_else(|| self.snapshot_state(id))
    }

    /// The running state of a living snapshot.
    pub(crate) fn snapshot_state(&self, id: VolumeId) -> Option<Rc<VolumeState>> {
        let snapshot = self.snapshots.get(id).filter(|snapshot| !snapshot.is_dying)?;
        if let Some(state) = self.snapshots.opened.borrow().get(&id) {
            return Some(state.clone());
        }
        let volume = self.volumes.borrow().get(&snapshot.volume).cloned()?;
        let config = VolumeConfig {
            id: id.0,
            name: format!("{}@{}", volume.name.borrow(), snapshot.name),
            size_bytes: snapshot.size_bytes,
            sparse: true,
            origin: None,
            writers: Vec::new(),
            properties: volume.properties.borrow().clone(),
        };
        let state = VolumeState::of_snapshot(&config);
        self.snapshots.opened.borrow_mut().insert(id, state.clone());
        Some(state)
    }

    /// `VOL` or `VOL@SNAP` of a part of the map.
    pub(crate) fn name_of(&self, id: VolumeId) -> Option<String> {
        if let Some(volume) = self.volumes.borrow().get(&id) {
            return Some(volume.name.borrow().clone());
        }
        let snapshot = self.snapshots.get(id)?;
        let volume = self.volumes.borrow().get(&snapshot.volume).cloned()?;
        Some(format!("{}@{}", volume.name.borrow(), snapshot.name))
    }

    /// The snapshot that a volume is a clone of.
    pub(crate) fn origin_of(&self, volume: VolumeId) -> Option<VolumeId> {
        let config = self.config.borrow();
        let volume = config.volumes.iter().find(|config| config.id == volume.0)?;
        volume.origin.map(VolumeId)
    }

    /// Names of the clones of a snapshot.
    pub(crate) fn clones_of(&self, snapshot: VolumeId) -> Vec<String> {
        let config = self.config.borrow();
        let clones = config.volumes.iter().filter(|volume| volume.origin == Some(snapshot.0));
        clones.map(|volume| format!("{}/{}", config.name, volume.name)).collect()
    }

    /// Tells the map which versions a volume has.
    pub(crate) fn link_versions(&self, volume: VolumeId) {
        let snapshots: Vec<(VolumeId, bool)> =
            self.snapshots.of(volume).iter().map(|s| (s.id, s.is_dying)).collect();
        let origin = self.origin_of(volume);
        let writers = self.writers_of(volume);
        let mut map = self.store.map.borrow_mut();
        map.set_versions(volume, &snapshots, origin);
        map.set_writers(volume, &writers);
        self.store.reader.set_writers(volume, &writers);
    }

    /// Other volumes that wrote blocks which versions of a volume may have.
    fn writers_of(&self, volume: VolumeId) -> Vec<VolumeId> {
        let config = self.config.borrow();
        let volume = config.volumes.iter().find(|config| config.id == volume.0);
        volume.map_or(Vec::new(), |volume| volume.writers.iter().copied().map(VolumeId).collect())
    }

    /// Whether a volume shares blocks with a snapshot, its own or the one that it was cloned from.
    pub(crate) fn has_versions(&self, volume: VolumeId) -> bool {
        let by_volume = self.snapshots.by_volume.borrow();
        by_volume.contains_key(&volume) || self.store.map.borrow().is_clone(volume)
    }

    /// Notes the block of some version of `home` as lost.
    pub(crate) fn note_lost_at(&self, home: VolumeId, lba: Lba, addr: forebay_units::BlockAddr) {
        let owner = self.store.map.borrow().owner(home, lba, addr);
        self.note_lost_block(owner.map_or(home, |(owner, _)| owner), lba);
    }
}
