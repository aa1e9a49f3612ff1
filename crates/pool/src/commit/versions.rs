//! What a group does to the versions of volumes: old blocks go to snapshots, snapshots are taken at
//! the group's end, clones are promoted then, and snapshots that are destroyed let go of their
//! blocks, a part with each group.

use std::cell::RefCell;

use forebay_format::map_record::{Delta, LEAF_BLOCKS};
use forebay_map::Kept;
use forebay_rt as rt;
use forebay_units::{BlockAddr, CommitId, Lba, VolumeId};

use crate::Pool;
use crate::commit::error::CommitError;
use crate::commit::work;
use crate::snapshots::AtGroupEnd;

/// Leaves of snapshots being destroyed that one group lets go of: at most so many times 9 KiB in
/// the journal.
const LEAVES_LET_GO: usize = 256;
/// Leaves in which one group takes hidden volumes back: each is noted in the volume and in the
/// snapshot.
const LEAVES_GONE_BACK: usize = LEAVES_LET_GO / 2;

impl Pool {
    /// Reserved journal bytes for snapshots being destroyed, in a group that lets go of them, and
    /// for volumes that it takes back in part.
    pub(crate) fn let_go_bytes(&self) -> u64 {
        const LEAF_BYTES: u64 = 9 << 10;
        let [wanted, syncing] = [&self.snapshots.wanted, &self.snapshots.syncing];
        let goes_back = |end: &RefCell<AtGroupEnd>| !end.borrow().partly_rolled_back.is_empty();
        let parts = u64::from(self.snapshots.has_dying())
            + u64::from(goes_back(wanted) || goes_back(syncing));
        parts * LEAVES_LET_GO as u64 * LEAF_BYTES
    }

    /// Clears a range of a volume, a leaf at a time; versions that share its blocks keep them.
    pub(crate) async fn clear_versions(
        &self,
        (volume, lba, blocks): (VolumeId, Lba, u64),
        delta: &mut Delta,
        freed: &mut impl FnMut(BlockAddr, u32),
        slices: &mut rt::Slices,
    ) -> Result<(), CommitError> {
        const LEAF: u64 = LEAF_BLOCKS as u64;
        delta.clear(volume, lba, blocks);
        let (mut at, end) = (lba.0, lba.0 + blocks);
        while at < end {
            let Some(Lba(leaf)) = self.store.map.borrow().next_entry(volume, Lba(at)) else {
                break;
            };
            let (from, to) = (leaf.max(at), (leaf + LEAF).min(end));
            if from < to {
                let map = &mut *self.store.map.borrow_mut();
                let (from, blocks) = (Lba(from), to - from);
                map.keep_before_clear(volume, from, blocks, &mut |kept| kept.note_in(delta));
                map.clear(volume, from, blocks, freed)?;
                map.hide_origin(volume, from, blocks, &mut |kept| kept.note_in(delta));
                rt::model_work(work::LEAF);
            }
            slices.step().await;
            at = leaf + LEAF;
        }
        Ok(())
    }

    /// The group that was just closed ends with what was wanted of it.
    pub(crate) fn close_versions(&self) {
        let mut end = self.snapshots.wanted.take();
        if end.grown_blocks > 0 && self.overdrawn_blocks() > 0 {
            // Volumes that are not sparse wrote more since the snapshots were wanted than there is
            // room for. Their callers find that they were not taken.
            self.promise_blocks(-(end.promised_blocks + end.grown_blocks));
            end.taken.clear();
        }
        for snapshot in &end.taken {
            // Until the snapshot is in the map, an overwrite may need space for what it will hold.
            if let Some(volume) = self.volumes.borrow().get(&snapshot.volume) {
                volume.is_being_shared.set(true);
            }
        }
        *self.snapshots.syncing.borrow_mut() = end;
    }

    /// The end of a group that is in the map: volumes go back to snapshots, new snapshots are
    /// taken, and those being destroyed let go of blocks.
    pub(crate) async fn end_versions(
        &self,
        delta: &mut Delta,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        let end = self.snapshots.syncing.take();
        let mut all = usize::MAX;
        for volume in end.rolled_back {
            self.roll_back(volume, delta, &mut all).await;
        }
        let mut left = LEAVES_GONE_BACK;
        for volume in end.partly_rolled_back {
            self.roll_back(volume, delta, &mut left).await;
        }
        for mut snapshot in end.taken {
            snapshot.commit = commit.0;
            let volume = snapshot.volume;
            snapshot.referenced_blocks = self.count_visible(volume).await;
            self.store.map.borrow_mut().add_snapshot(volume, snapshot.id);
            self.snapshots.insert(snapshot);
        }
        if let Some(clone) = end.promoted {
            self.promote(clone, delta).await;
        }
        let mut left = LEAVES_LET_GO;
        while left > 0 && self.snapshots.has_dying() {
            for snapshot in self.snapshots.dying() {
                self.let_go_of(snapshot.id, delta, &mut left).await;
            }
        }
        Ok(())
    }

    /// Blocks of a volume that are no holes. Those of a clone are counted a leaf at a time.
    async fn count_visible(&self, volume: VolumeId) -> u64 {
        const LEAF: u64 = LEAF_BLOCKS as u64;
        if !self.store.map.borrow().is_clone(volume) {
            return self.store.map.borrow().visible_blocks(volume);
        }
        let mut slices = rt::Slices::new();
        let (mut visible, mut at) = (0, Lba(0));
        loop {
            let leaf = self.store.map.borrow().next_entry(volume, at);
            let Some(leaf) = leaf else { return visible };
            visible += self.store.map.borrow().visible_within(volume, leaf, LEAF);
            rt::model_work(work::LEAF);
            slices.step().await;
            at = Lba(leaf.0 + LEAF);
        }
    }

    /// Space is accounted by the map again: the root is written.
    pub(crate) fn versions_are_rooted(&self) {
        self.volumes.borrow().values().for_each(|volume| volume.is_being_shared.set(false));
    }

    fn freed(&self) -> impl FnMut(BlockAddr, u32) + '_ {
        |addr, blocks| self.free_run(addr, blocks)
    }

    /// Lets go of at most `left` leaves of a snapshot, and forgets it after the last.
    async fn let_go_of(&self, snapshot: VolumeId, delta: &mut Delta, left: &mut usize) {
        let mut slices = rt::Slices::new();
        while *left > 0 {
            *left -= 1;
            if !self.let_go_of_leaf(snapshot, delta) {
                return self.forget_snapshot(snapshot, delta);
            }
            slices.step().await;
        }
    }

    /// Lets go of what a snapshot has in its first leaf. Returns whether there was one.
    fn let_go_of_leaf(&self, snapshot: VolumeId, delta: &mut Delta) -> bool {
        let mut map = self.store.map.borrow_mut();
        let kept = &mut |kept: Kept<'_>| kept.note_in(delta);
        let gone = map.let_go(snapshot, &mut self.freed(), kept);
        let Some((lba, blocks)) = gone else { return false };
        delta.clear(snapshot, lba, blocks);
        rt::model_work(work::LEAF);
        true
    }

    /// Forgets a snapshot that has no entries of its own any more.
    fn forget_snapshot(&self, snapshot: VolumeId, delta: &mut Delta) {
        // Other versions are found without it from here on.
        self.store.map.borrow_mut().drop_empty(snapshot);
        delta.drop_volume(snapshot);
        self.snapshots.remove(snapshot);
        self.health.lost.borrow_mut().forget(snapshot);
    }

    /// Promotes a clone. Nothing else changes the map meanwhile, and readers see it as it was until
    /// the last step.
    async fn promote(&self, clone: VolumeId, delta: &mut Delta) {
        let begun = self.store.map.borrow().begin_promotion(clone);
        let Some(mut promotion) = begun else { return };
        let mut slices = rt::Slices::new();
        let kept = &mut |kept: Kept<'_>| kept.note_in(delta);
        while self.store.map.borrow().promote_leaf(&mut promotion, kept) {
            rt::model_work(work::LEAF);
            slices.step().await;
        }
        // No await in here: what readers find follows from all of it.
        let parent = promotion.parent();
        self.store.map.borrow_mut().finish_promotion(promotion);
        self.exchange_roles(parent, clone);
        self.link_versions(parent);
        self.link_versions(clone);
    }

    /// Gives a volume back what its newest living snapshot has, in at most `left` leaves.
    async fn roll_back(&self, volume: VolumeId, delta: &mut Delta, left: &mut usize) {
        let mut slices = rt::Slices::new();
        let newest = self.snapshots.of(volume).into_iter().rfind(|s| !s.is_dying);
        let Some(newest) = newest else { return };
        // What newer snapshots hold must be the newest living one's first.
        for dying in self.snapshots.of(volume).into_iter().filter(|s| s.id > newest.id) {
            while *left > 0 && self.let_go_of_leaf(dying.id, delta) {
                *left -= 1;
                slices.step().await;
            }
            if *left == 0 {
                return;
            }
            self.forget_snapshot(dying.id, delta);
        }
        while *left > 0 && self.roll_back_leaf(volume, newest.id, delta) {
            *left -= 1;
            slices.step().await;
        }
    }

    /// Gives a volume back the next leaf of what its newest snapshot has. Returns whether there was
    /// one.
    fn roll_back_leaf(&self, volume: VolumeId, snapshot: VolumeId, delta: &mut Delta) -> bool {
        let mut map = self.store.map.borrow_mut();
        let kept = &mut |kept: Kept<'_>| kept.note_in(delta);
        let Some((lba, blocks)) = map.roll_back(volume, &mut self.freed(), kept) else {
            return false;
        };
        delta.clear(snapshot, lba, blocks);
        rt::model_work(work::LEAF);
        true
    }
}
