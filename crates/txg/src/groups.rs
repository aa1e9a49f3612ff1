//! The open and the syncing transaction group.

use std::collections::BTreeMap;

use forebay_units::{Lba, TxgId, VolumeId};

use crate::{Content, ExtentMap, Held, OverlayExtent};

/// The changes of one group.
#[derive(Default)]
pub struct DirtySet {
    /// Dirty extents by volume.
    pub volumes: BTreeMap<VolumeId, ExtentMap>,
    /// The room in memory that the group's writes take, overwritten ones included.
    pub held: Held,
}

impl DirtySet {
    /// Blocks of data in the group.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.volumes.values().map(ExtentMap::data_blocks).sum()
    }

    /// The extents after the one at `taken`, in order of volume and address; all without it.
    pub fn extents_after(
        &self,
        taken: Option<(VolumeId, Lba)>,
    ) -> impl Iterator<Item = (VolumeId, Lba, u64, Content)> + '_ {
        let first = taken.map_or(VolumeId(0), |(volume, _)| volume);
        self.volumes.range(first..).flat_map(move |(volume, extents)| {
            let after = taken.filter(|(taken, _)| taken == volume).map(|(_, lba)| lba);
            let rest = extents.iter_from(after.map_or(Lba(0), |lba| Lba(lba.0 + 1)));
            rest.map(|(lba, blocks, content)| (*volume, lba, blocks, content.clone()))
        })
    }

    /// Lets go of the memory of at most `extents` extents. Returns whether some are left.
    pub fn let_go(&mut self, extents: usize) -> bool {
        let mut left = extents;
        while left > 0 {
            let Some(mut volume) = self.volumes.first_entry() else { break };
            left -= volume.get_mut().remove_first(left);
            if volume.get().is_empty() {
                volume.remove();
            }
        }
        !self.volumes.is_empty()
    }

    /// Whether the group changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.values().all(ExtentMap::is_empty)
    }
}

/// The groups that are not committed.
pub struct Groups {
    open_txg: TxgId,
    open: DirtySet,
    syncing: Option<(TxgId, DirtySet)>,
    /// In the map, and not under a root yet: what would be written again if the root failed.
    retired: Option<DirtySet>,
}

impl Groups {
    /// Starts with an empty open group `first`.
    #[must_use]
    pub fn new(first: TxgId) -> Self {
        Self { open_txg: first, open: DirtySet::default(), syncing: None, retired: None }
    }

    /// The id of the open group, which takes writes.
    #[must_use]
    pub fn open_txg(&self) -> TxgId {
        self.open_txg
    }

    /// The open group.
    #[must_use]
    pub fn open(&self) -> &DirtySet {
        &self.open
    }

    /// The syncing group, if any.
    #[must_use]
    pub fn syncing(&self) -> Option<&DirtySet> {
        self.syncing.as_ref().map(|(_, set)| set)
    }

    /// Adds a write to the open group and returns the group's id. `held` is the room that
    /// it takes.
    pub fn absorb(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        content: Content,
        held: Held,
    ) -> TxgId {
        self.open.volumes.entry(volume).or_default().insert(lba, blocks, content);
        self.open.held += held;
        self.open_txg
    }

    /// Removes a deleted volume from every group.
    pub fn forget_volume(&mut self, volume: VolumeId) {
        self.open.volumes.remove(&volume);
        if let Some((_, set)) = &mut self.syncing {
            set.volumes.remove(&volume);
        }
        if let Some(set) = &mut self.retired {
            set.volumes.remove(&volume);
        }
    }

    /// Closes the open group and makes it the syncing one. Panics when one is syncing already.
    pub fn quiesce(&mut self) -> TxgId {
        assert!(self.syncing.is_none(), "a group is syncing");
        let txg = self.open_txg;
        self.syncing = Some((txg, std::mem::take(&mut self.open)));
        self.open_txg = txg.next();
        txg
    }

    /// Takes the syncing group, whose contents are in the map by now, out of lookups. It is kept
    /// until [`Groups::rooted`].
    pub fn retire(&mut self) -> Option<&DirtySet> {
        let (_, set) = self.syncing.take()?;
        Some(self.retired.insert(set))
    }

    /// Takes the retired group out: a root has it. To free the memory of a large one takes long, so
    /// the caller does it in parts ([`DirtySet::let_go`]).
    #[must_use]
    pub fn rooted(&mut self) -> Option<DirtySet> {
        self.retired.take()
    }

    /// The groups after `rooted`, whose content no root has, oldest first. The retired group may
    /// be under a root that was not answered.
    pub fn uncommitted(&self, rooted: TxgId) -> impl Iterator<Item = &DirtySet> {
        let syncing_txg = self.syncing.as_ref().map_or(self.open_txg, |(txg, _)| *txg);
        let retired = self.retired.iter().filter(move |_| rooted.next() < syncing_txg);
        let syncing = self.syncing().filter(|_| rooted < syncing_txg);
        retired.chain(syncing).chain([&self.open])
    }

    /// Whether some group has content for block `lba`.
    #[must_use]
    pub fn covers(&self, volume: VolumeId, lba: Lba) -> bool {
        let covers = |set: &DirtySet| set.volumes.get(&volume).is_some_and(|map| map.covers(lba));
        covers(&self.open) || self.syncing().is_some_and(covers)
    }

    /// The newest dirty content of a range, in order, with gaps.
    #[must_use]
    pub fn lookup(&self, volume: VolumeId, lba: Lba, blocks: u64) -> Vec<OverlayExtent> {
        let open = match self.open.volumes.get(&volume) {
            Some(map) => map.lookup(lba, blocks),
            None => vec![OverlayExtent { lba, blocks, content: None }],
        };
        let Some(older) = self.syncing().and_then(|set| set.volumes.get(&volume)) else {
            return open;
        };
        let mut newest = Vec::with_capacity(open.len());
        for extent in open {
            if extent.content.is_some() {
                newest.push(extent);
            } else {
                newest.extend(older.lookup(extent.lba, extent.blocks));
            }
        }
        newest
    }
}
