//! The command that turns a clone and the volume that it was cloned from around.

use std::rc::Rc;

use forebay_format::config::PoolConfig;
use forebay_format::receiving::{RECEIVED, ReceivedGuids};
use forebay_format::snapshot::Snapshot;
use forebay_units::{BLOCK_BYTES, VolumeId};

use crate::Pool;
use crate::admin::error::{SpaceFor, VolumeError};
use crate::admin::volumes::check_fits;
use crate::volume::VolumeState;

/// The version of pools from which on clones are promoted.
const WITH_PROMOTION: u32 = 9;

/// A clone that may be promoted.
pub(crate) struct Promotion {
    clone: Rc<VolumeState>,
    /// The snapshots that become the clone's.
    moving: Vec<Snapshot>,
    /// Blocks that must be free for it.
    room: u64,
}

impl Pool {
    /// Makes the origin of a clone, and the snapshots that are older, the clone's own. The volume
    /// that they were of becomes a clone of the origin. No version's content changes.
    pub async fn promote_volume(&self, name: &str) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let promotion = self.promotion_of(name)?;
        promotion.moving.iter().for_each(|snapshot| self.snapshots.close(snapshot.id));
        // Clients write until the group is closed, and must not take this.
        self.reserve_for_map(promotion.room);
        self.snapshots.wanted.borrow_mut().promoted = Some(promotion.clone.id);
        self.commit_all().await?;
        self.refresh_space();
        Ok(())
    }

    /// What a command promotes, or why it refuses to.
    pub(crate) fn promotion_of(&self, name: &str) -> Result<Promotion, VolumeError> {
        self.check_format(WITH_PROMOTION, "a promotion")?;
        let clone = self.volume_named(name)?;
        self.check_whole(&clone)?;
        let (parent, origin) = self.origin_and_parent(&clone)?;
        self.check_whole(&parent)?;
        let moving = self.snapshots_up_to(&origin);
        let living = moving.iter().filter(|snapshot| !snapshot.is_dying);
        let names = living.map(|snapshot| snapshot.name.clone());
        let taken = names.filter(|name| self.snapshots.named(clone.id, name).is_some());
        let snapshots: Vec<String> = taken.collect();
        if !snapshots.is_empty() {
            let name = format!("{}/{name}", self.name());
            return Err(VolumeError::SnapshotsExist { name, snapshots });
        }
        let mut config = self.config.borrow().clone();
        exchange_origins(&mut config, parent.id, clone.id);
        check_fits(&config)?;
        let room = self.room_to_promote(&clone, &parent)?;
        Ok(Promotion { clone, moving, room })
    }

    /// Names (without the pool's) of the snapshots that get other names when clone `name` is
    /// promoted.
    pub fn snapshots_to_promote(&self, name: &str) -> Result<Vec<String>, VolumeError> {
        let (_, origin) = self.origin_and_parent(&*self.volume_named(name)?)?;
        let living = self.snapshots_up_to(&origin).into_iter().filter(|s| !s.is_dying);
        Ok(living.filter_map(|snapshot| self.name_of(snapshot.id)).collect())
    }

    /// The volume that a clone was cloned from, and the snapshot.
    fn origin_and_parent(
        &self,
        clone: &VolumeState,
    ) -> Result<(Rc<VolumeState>, Snapshot), VolumeError> {
        let origin = self.origin_of(clone.id).and_then(|origin| self.snapshots.get(origin));
        let parent = origin.as_ref().and_then(|origin| {
            let volumes = self.volumes.borrow();
            volumes.get(&origin.volume).cloned()
        });
        let no_clone =
            || VolumeError::NotAClone { name: format!("{}/{}", self.name(), clone.name.borrow()) };
        parent.zip(origin).ok_or_else(no_clone)
    }

    /// A snapshot and the older ones of its volume, oldest first.
    fn snapshots_up_to(&self, newest: &Snapshot) -> Vec<Snapshot> {
        let all = self.snapshots.of(newest.volume).into_iter();
        all.take_while(|snapshot| snapshot.id <= newest.id).collect()
    }

    /// Blocks that must be free for a promotion: one group writes all that moves into the map
    /// journal.
    fn room_to_promote(
        &self,
        clone: &VolumeState,
        parent: &VolumeState,
    ) -> Result<u64, VolumeError> {
        const ENTRY_BYTES: u64 = 24;
        let snapshots = [clone.id, parent.id].into_iter().flat_map(|id| self.snapshots.of(id));
        let versions = snapshots.map(|snapshot| snapshot.id).chain([clone.id, parent.id]);
        let map = self.store.map.borrow();
        let needed_bytes = versions.map(|id| map.entries(id)).sum::<u64>() * ENTRY_BYTES;
        if needed_bytes / BLOCK_BYTES > self.free_blocks() {
            return Err(self.no_space(needed_bytes, SpaceFor::Promotion));
        }
        Ok(needed_bytes / BLOCK_BYTES)
    }

    /// The clone gets the origin and the older snapshots of its parent, in the configuration and in
    /// the list of snapshots. The map has what belongs to that already.
    pub(crate) fn exchange_roles(&self, parent: VolumeId, clone: VolumeId) {
        let origin = self.origin_of(clone).and_then(|origin| self.snapshots.get(origin));
        let Some(origin) = origin else { return };
        for snapshot in self.snapshots_up_to(&origin) {
            self.snapshots.hand_over(snapshot.id, clone);
        }
        exchange_origins(&mut self.config.borrow_mut(), parent, clone);
        self.sync.config_dirty.set(true);
        let states = {
            let volumes = self.volumes.borrow();
            volumes.get(&parent).cloned().zip(volumes.get(&clone).cloned())
        };
        let Some((parent, clone)) = states else { return };
        // Received snapshots keep the identities of their originals.
        let guids = |volume: &VolumeState| volume.property(RECEIVED).unwrap_or_default();
        let mut mine = ReceivedGuids::parse(&guids(&clone)).0;
        let mut older = ReceivedGuids::parse(&guids(&parent)).0;
        let newer = older.split_off(&VolumeId(origin.id.0 + 1));
        mine.append(&mut older);
        for (volume, guids) in [(&clone, mine), (&parent, newer)] {
            let text = (!guids.is_empty()).then(|| ReceivedGuids(guids).to_text());
            self.keep_hidden(volume, RECEIVED, text);
        }
    }
}

/// The parent becomes a clone of the clone's origin, and the clone of what the parent was one of.
fn exchange_origins(config: &mut PoolConfig, parent: VolumeId, clone: VolumeId) {
    let volumes = &mut config.volumes;
    let place = |id: VolumeId| volumes.iter().position(|volume| volume.id == id.0);
    let Some((parent, clone)) = place(parent).zip(place(clone)) else { return };
    let origin = volumes[clone].origin;
    volumes[clone].origin = std::mem::replace(&mut volumes[parent].origin, origin);
    let wrote = volumes[parent].writers.iter().copied().chain([volumes[parent].id]);
    let wrote: Vec<u32> = wrote.filter(|id| *id != volumes[clone].id).collect();
    let writers = &mut volumes[clone].writers;
    writers.extend(wrote);
    writers.sort_unstable();
    writers.dedup();
}
