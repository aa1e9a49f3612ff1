//! Commands on snapshots and clones.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::Device;
use forebay_format::config::VolumeConfig;
use forebay_format::snapshot::{MAX_HOLDS, Snapshot};
use forebay_format::superblock::VERSION;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, Lba, VolumeId};

use crate::admin::error::{AdminError, NameError, SpaceFor, VolumeError};
use crate::admin::properties::{VOLUME_PROPERTIES, check_property, check_snapshot_name};
use crate::admin::volumes::check_fits;
use crate::commit::error::CommitError;
use crate::spec::CloneSpec;
use crate::status::SnapshotStatus;
use crate::volume::VolumeState;
use crate::{Pool, Volume};

/// The version of pools from which on they have snapshots.
const WITH_SNAPSHOTS: u32 = 6;

/// The volume's and the snapshot's part of `VOL@SNAP`.
fn split(name: &str) -> Result<(&str, &str), VolumeError> {
    let bad = || NameError::BadSnapshot { name: name.to_owned() };
    Ok(name.split_once('@').ok_or_else(bad)?)
}

impl Pool {
    /// Brings the pool's format to the newest version. Returns the one before.
    pub async fn upgrade(&self) -> Result<u32, AdminError> {
        let _turn = self.turn().await?;
        let before = self.sync.version.replace(VERSION);
        self.commit_config().await?;
        Ok(before)
    }

    /// Refuses `what` in a pool of a format before `needed`.
    pub(crate) fn check_format(&self, needed: u32, what: &'static str) -> Result<(), VolumeError> {
        let version = self.sync.version.get();
        if version >= needed {
            return Ok(());
        }
        Err(VolumeError::OldFormat { pool: self.name(), version, needed, what })
    }

    /// The volume and the living snapshot of `VOL@SNAP`.
    pub(crate) fn snapshot_named(
        &self,
        name: &str,
    ) -> Result<(Rc<VolumeState>, Snapshot), VolumeError> {
        let (volume, snapshot) = split(name)?;
        let volume = self.volume_named(volume)?;
        let found = self.snapshots.named(volume.id, snapshot);
        let none = || VolumeError::NoSnapshot { pool: self.name(), name: name.to_owned() };
        Ok((volume, found.ok_or_else(none)?))
    }

    /// The read-only block device of snapshot `VOL@SNAP`.
    #[must_use]
    pub fn open_snapshot(self: &Rc<Self>, name: &str) -> Option<Device> {
        let (_, snapshot) = self.snapshot_named(name).ok()?;
        if self.lifecycle.closing.get() {
            return None;
        }
        let state = self.snapshot_state(snapshot.id)?;
        Some(Rc::new(Volume::new(self.clone(), state)))
    }

    /// Takes snapshots (`VOL@SNAP`), all of them at one instant: they hold what was answered before
    /// this call, and nothing that is asked for after it.
    pub async fn take_snapshots(&self, names: &[String]) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        self.snapshot_all(names).await
    }

    /// As [`Pool::take_snapshots`], for a caller that has the turn.
    pub(crate) async fn snapshot_all(&self, names: &[String]) -> Result<(), VolumeError> {
        self.check_format(WITH_SNAPSHOTS, "a snapshot")?;
        let mut new = Vec::new();
        let mut known = BTreeSet::new();
        for name in names {
            let (volume, snapshot) = split(name)?;
            check_snapshot_name(snapshot)?;
            let volume = self.volume_named(volume)?;
            self.check_whole(&volume)?;
            if self.snapshots.named(volume.id, snapshot).is_some() || !known.insert(name) {
                let name = format!("{}/{name}", self.name());
                return Err(VolumeError::SnapshotExists { name });
            }
            new.push((volume, snapshot.to_owned()));
        }
        self.take_new_snapshots(&new, rt::wall_clock()).await?;
        Ok(())
    }

    /// Blocks that must be free for a snapshot of a volume.
    fn blocks_for_snapshot(&self, volume: &VolumeState) -> u64 {
        if volume.sparse.get() {
            return 0;
        }
        // Its reservation stays whole, so what the snapshot holds needs room beside it. Overwrites
        // that no root has yet count: the snapshot before keeps what they replace.
        let blocks = Self::blocks_of(volume.size_bytes.get());
        self.blocks_no_snapshot_has(volume.id, blocks)
    }

    /// Takes these snapshots of volumes, at the end of the next group that is closed. Returns the
    /// first one's id. Fails if there is not enough room for what they will hold, now or then.
    pub(crate) async fn take_new_snapshots(
        &self,
        new: &[(Rc<VolumeState>, String)],
        created_at: u64,
    ) -> Result<VolumeId, VolumeError> {
        // Snapshots of one volume at one instant hold the same.
        let volumes: BTreeMap<_, _> = new.iter().map(|(volume, _)| (volume.id, volume)).collect();
        let needed = || volumes.values().map(|volume| self.blocks_for_snapshot(volume)).sum();
        self.wait_for_room(needed()).await?;
        let first = self.want_snapshots(new, needed(), created_at)?;
        self.commit_all().await?;
        match new.is_empty() || self.snapshots.contains(first) {
            true => Ok(first),
            // What was written until the group was closed left too little room.
            false => Err(self.no_space(needed() * BLOCK_BYTES, SpaceFor::Snapshot)),
        }
    }

    /// Has the next group end with these snapshots, for which `needed` blocks must be free. Returns
    /// the first one's id.
    fn want_snapshots(
        &self,
        new: &[(Rc<VolumeState>, String)],
        needed: u64,
        created_at: u64,
    ) -> Result<VolumeId, VolumeError> {
        if needed > self.free_blocks() {
            return Err(self.no_space(needed * BLOCK_BYTES, SpaceFor::Snapshot));
        }
        self.promise_blocks(needed as i64);
        let first = self.next_id();
        let snapshots = new.iter().zip(first..).map(|((volume, name), id)| Snapshot {
            id: VolumeId(id),
            volume: volume.id,
            taken_of: volume.id,
            name: name.clone(),
            commit: 0,
            created_at,
            size_bytes: volume.size_bytes.get(),
            referenced_blocks: 0,
            holds: Vec::new(),
            is_dying: false,
        });
        let mut wanted = self.snapshots.wanted.borrow_mut();
        wanted.promised_blocks += needed as i64;
        wanted.taken.extend(snapshots);
        Ok(VolumeId(first))
    }

    /// The id that the next volume or snapshot gets.
    pub(crate) fn next_id(&self) -> u32 {
        self.config.borrow().next_volume.max(self.snapshots.next_id())
    }

    /// The snapshots that `VOL@SPEC` names, oldest first: `SPEC` is a list, separated by commas, of
    /// names and of ranges `FIRST%LAST`, `%LAST`, `FIRST%` or `%`.
    pub fn snapshots_of_spec(&self, spec: &str) -> Result<Vec<String>, VolumeError> {
        let (name, parts) = split(spec)?;
        let volume = self.volume_named(name)?;
        let all = self.snapshots.of(volume.id).into_iter().filter(|s| !s.is_dying);
        let all: Vec<String> = all.map(|snapshot| snapshot.name).collect();
        let place = |snapshot: &str| {
            let missing = || VolumeError::NoSnapshot {
                pool: self.name(),
                name: format!("{name}@{snapshot}"),
            };
            all.iter().position(|other| other == snapshot).ok_or_else(missing)
        };
        let mut chosen = BTreeSet::new();
        for part in parts.split(',') {
            match part.split_once('%') {
                None => {
                    chosen.insert(place(part)?);
                }
                Some((first, last)) => {
                    let first = if first.is_empty() { 0 } else { place(first)? };
                    let last = match last {
                        "" => all.len().saturating_sub(1),
                        last => place(last)?,
                    };
                    chosen.extend(first..=last.min(all.len().saturating_sub(1)));
                }
            }
        }
        let found = chosen.into_iter().filter_map(|at| all.get(at));
        Ok(found.map(|snapshot| format!("{name}@{snapshot}")).collect())
    }

    /// Destroys snapshots (`VOL@SNAP`), all or none. Their names are free when this returns; their
    /// blocks become free with the groups that follow.
    pub async fn destroy_snapshots(&self, names: &[String]) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        self.destroy_all(names).await
    }

    /// As [`Pool::destroy_snapshots`], for a caller that has the turn.
    pub(crate) async fn destroy_all(&self, names: &[String]) -> Result<(), VolumeError> {
        let dying = self.snapshots_to_destroy(names)?;
        self.let_die(dying).await;
        Ok(self.commit_all().await?)
    }

    /// The snapshots that a command destroys, or why it refuses to.
    pub(crate) fn snapshots_to_destroy(
        &self,
        names: &[String],
    ) -> Result<Vec<Snapshot>, VolumeError> {
        let mut dying = Vec::new();
        for name in names {
            let (volume, snapshot) = self.snapshot_named(name)?;
            self.check_is_no_base(&volume, &snapshot)?;
            self.check_may_go(name, &snapshot)?;
            dying.push(snapshot);
        }
        Ok(dying)
    }

    pub(crate) fn check_may_go(&self, name: &str, snapshot: &Snapshot) -> Result<(), VolumeError> {
        let name = || format!("{}/{name}", self.name());
        let clones = self.clones_of(snapshot.id);
        if !clones.is_empty() {
            return Err(VolumeError::HasClones { name: name(), clones });
        }
        if !snapshot.holds.is_empty() {
            return Err(VolumeError::IsHeld { name: name(), tags: snapshot.holds.clone() });
        }
        Ok(())
    }

    /// Marks snapshots as being destroyed. Holds the writers' lock: no group is half in the map.
    async fn let_die(&self, snapshots: Vec<Snapshot>) {
        let _writers = self.writers.lock().await;
        let volumes: BTreeSet<VolumeId> = snapshots.iter().map(|s| s.volume).collect();
        for snapshot in snapshots {
            self.snapshots.close(snapshot.id);
            self.expect_blocks(snapshot.referenced_blocks);
            self.snapshots.insert(Snapshot { is_dying: true, ..snapshot });
        }
        for volume in volumes {
            self.link_versions(volume);
            // Without the next root the snapshots are there after a power cut, and hold what is
            // overwritten until then.
            if let Some(volume) = self.volumes.borrow().get(&volume) {
                volume.is_being_shared.set(true);
            }
        }
    }

    /// Takes a volume back to its snapshot `VOL@SNAP`. With `destroy_newer`, destroys the snapshots
    /// that were taken since; without, refuses if there are any.
    pub async fn roll_back_volume(
        &self,
        name: &str,
        destroy_newer: bool,
    ) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let (volume, snapshot, newer) = self.newer_to_destroy(name, destroy_newer)?;
        self.go_back(&volume, &snapshot, newer).await
    }

    /// The volume and the snapshot that a command goes back to, and the newer ones that it
    /// destroys; or why it refuses to.
    pub(crate) fn newer_to_destroy(
        &self,
        name: &str,
        destroy_newer: bool,
    ) -> Result<(Rc<VolumeState>, Snapshot, Vec<Snapshot>), VolumeError> {
        let (volume, snapshot) = self.snapshot_named(name)?;
        self.check_whole(&volume)?;
        let full = |other: &Snapshot| format!("{}@{}", volume.name.borrow(), other.name);
        let newer: Vec<Snapshot> = self
            .snapshots
            .of(volume.id)
            .into_iter()
            .filter(|other| other.id > snapshot.id && !other.is_dying)
            .collect();
        if !newer.is_empty() && !destroy_newer {
            let newer = newer.iter().map(full).collect();
            return Err(VolumeError::NotNewest { name: name.to_owned(), newer });
        }
        for other in &newer {
            self.check_may_go(&full(other), other)?;
        }
        Ok((volume, snapshot, newer))
    }

    /// Takes a volume back to a snapshot of its own, whose newer ones `newer` are destroyed.
    pub(crate) async fn go_back(
        &self,
        volume: &Rc<VolumeState>,
        snapshot: &Snapshot,
        newer: Vec<Snapshot>,
    ) -> Result<(), VolumeError> {
        let (grown, room) = self.room_to_roll_back(volume, snapshot).await?;
        let (size_bytes, before) = (snapshot.size_bytes, volume.size_bytes.get());
        // Clients write until the group is closed, and must not take this.
        self.reserve_growth(volume, grown);
        self.reserve_for_map(room);
        self.let_die(newer).await;
        // A merge that has read what goes back would bring it back. What it reads goes back with a
        // group, and is there until that is in the map.
        let _stop = self.stop_merges(volume).await;
        self.begin_size_of(volume, size_bytes);
        self.snapshots.wanted.borrow_mut().rolled_back.push(volume.id);
        self.commit_all().await?;
        self.end_size_of(volume, size_bytes, before).await
    }

    /// As [`Pool::go_back`], a part with each of several groups, so that there is always room for
    /// it. Only for a volume that is hidden until it is whole, because a power cut leaves a part.
    pub(crate) async fn go_back_in_parts(
        &self,
        volume: &Rc<VolumeState>,
        snapshot: &Snapshot,
    ) -> Result<(), VolumeError> {
        let (size_bytes, before) = (snapshot.size_bytes, volume.size_bytes.get());
        self.reserve_growth(volume, Self::blocks_of(size_bytes.saturating_sub(before)));
        self.begin_size_of(volume, size_bytes);
        loop {
            // The first group brings what was written as well.
            self.snapshots.wanted.borrow_mut().partly_rolled_back.push(volume.id);
            self.commit_all().await?;
            // What newer ones that are being destroyed hold goes through this snapshot.
            let left = self.snapshots.of(volume.id).into_iter().filter(|s| s.id >= snapshot.id);
            let map = self.store.map.borrow();
            if left.map(|snapshot| map.entries(snapshot.id)).all(|entries| entries == 0) {
                break;
            }
        }
        self.end_size_of(volume, size_bytes, before).await
    }

    /// Takes the space by which a volume is about to grow.
    fn reserve_growth(&self, volume: &VolumeState, grown: u64) {
        let reserved = &self.dirty.space.reserved_blocks;
        reserved.set(reserved.get() + if volume.sparse.get() { 0 } else { grown });
    }

    /// Gives a volume the size of the snapshot to which it goes back. Past the end that it has now
    /// clients write once a root has a larger size: a crash before would lose what was answered.
    fn begin_size_of(&self, volume: &VolumeState, size_bytes: u64) {
        if let Some(v) = self.config.borrow_mut().volumes.iter_mut().find(|v| v.id == volume.id.0) {
            v.size_bytes = size_bytes;
        }
        self.sync.config_dirty.set(true);
        volume.size_bytes.set(size_bytes.min(volume.size_bytes.get()));
    }

    /// The volume has gone back. What a volume that was larger `before` had past its end, where the
    /// snapshot has nothing, is cut off.
    async fn end_size_of(
        &self,
        volume: &VolumeState,
        size_bytes: u64,
        before: u64,
    ) -> Result<(), VolumeError> {
        volume.size_bytes.set(size_bytes);
        if size_bytes < before {
            let end = Self::blocks_of(size_bytes);
            self.writers.lock().await.truncated.push((volume.id, end));
            self.commit_all().await?;
        }
        // Without the root a power cut would bring back the size, and what it reserves.
        self.refresh_space();
        Ok(())
    }

    /// Keeps blocks for what one group writes into the map journal, until the space is counted
    /// again.
    pub(crate) fn reserve_for_map(&self, blocks: u64) {
        let reserved = &self.dirty.space.reserved_blocks;
        reserved.set(reserved.get() + blocks);
    }

    /// Blocks by which a volume grows that goes back to a snapshot, and blocks that must be free
    /// for the map journal: one group writes all that goes back. Fails if too few are free.
    pub(crate) async fn room_to_roll_back(
        &self,
        volume: &VolumeState,
        snapshot: &Snapshot,
    ) -> Result<(u64, u64), VolumeError> {
        const ENTRY_BYTES: u64 = 24;
        let grown = Self::blocks_of(snapshot.size_bytes.saturating_sub(volume.size_bytes.get()));
        if !volume.sparse.get() {
            self.wait_for_room(grown).await?;
            if grown > self.free_blocks() {
                return Err(self.no_space(grown * BLOCK_BYTES, SpaceFor::Rollback));
            }
        }
        let newer = self.snapshots.of(volume.id).into_iter().filter(|s| s.id >= snapshot.id);
        let map = self.store.map.borrow();
        let entries: u64 = newer.map(|snapshot| map.entries(snapshot.id)).sum();
        let needed = entries * ENTRY_BYTES;
        if needed / BLOCK_BYTES > self.free_blocks() {
            return Err(self.no_space(needed, SpaceFor::Rollback));
        }
        Ok((grown, needed / BLOCK_BYTES))
    }

    /// Creates a volume that begins as snapshot `VOL@SNAP`, and takes space only for what differs.
    pub async fn clone_snapshot(&self, name: &str, spec: &CloneSpec) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let (_, snapshot) = self.snapshot_named(name)?;
        self.check_new_name(&spec.name)?;
        for (name, value) in &spec.properties {
            check_property(VOLUME_PROPERTIES, name, value)?;
            self.check_sharing(&spec.name, true, name, value)?;
        }
        let id = self.next_id();
        let volume = VolumeConfig {
            id,
            name: spec.name.clone(),
            size_bytes: snapshot.size_bytes,
            sparse: true,
            origin: Some(snapshot.id.0),
            writers: Vec::new(),
            properties: spec.properties.clone(),
        };
        let mut config = self.config.borrow().clone();
        config.volumes.push(volume.clone());
        check_fits(&config)?;
        {
            let mut config = self.config.borrow_mut();
            config.next_volume = id + 1;
            config.volumes.push(volume.clone());
        }
        let id = VolumeId(id);
        self.store.map.borrow_mut().create_volume(id).map_err(CommitError::from)?;
        self.link_versions(id);
        self.sync.config_dirty.set(true);
        self.commit_all().await?;
        self.volumes.borrow_mut().insert(id, VolumeState::new(&volume));
        Ok(())
    }

    /// Gives snapshot `VOL@SNAP` another name, `new` (without the volume's).
    pub async fn rename_snapshot(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let snapshot = self.snapshot_to_rename(name, new)?;
        self.snapshots.close(snapshot.id);
        self.snapshots.insert(Snapshot { name: new.to_owned(), ..snapshot });
        Ok(self.commit_all().await?)
    }

    /// The snapshot that a command gives the name `new`, or why it refuses to.
    pub(crate) fn snapshot_to_rename(
        &self,
        name: &str,
        new: &str,
    ) -> Result<Snapshot, VolumeError> {
        let (volume, snapshot) = self.snapshot_named(name)?;
        check_snapshot_name(new)?;
        if self.snapshots.named(volume.id, new).is_some() {
            let name = format!("{}/{}@{new}", self.name(), volume.name.borrow());
            return Err(VolumeError::SnapshotExists { name });
        }
        self.check_is_not_coming(&volume, new)?;
        Ok(snapshot)
    }

    /// Adds a tag to snapshot `VOL@SNAP`, which then cannot be destroyed; or takes it away again.
    pub async fn hold_snapshot(
        &self,
        name: &str,
        tag: &str,
        release: bool,
    ) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let (_, mut snapshot) = self.snapshot_named(name)?;
        check_snapshot_name(tag)?;
        let at = snapshot.holds.iter().position(|held| held == tag);
        let full = || format!("{}/{name}", self.name());
        match (at, release) {
            (Some(at), true) => {
                snapshot.holds.remove(at);
            }
            (None, false) if snapshot.holds.len() < MAX_HOLDS => {
                snapshot.holds.push(tag.to_owned());
            }
            (None, false) => return Err(VolumeError::TooManyHolds { name: full() }),
            (at, _) => {
                let (name, tag, is_there) = (full(), tag.to_owned(), at.is_some());
                return Err(VolumeError::Tag { name, tag, is_there });
            }
        }
        self.snapshots.insert(snapshot);
        Ok(self.commit_all().await?)
    }

    /// The snapshots of the pool, by volume and oldest first.
    pub async fn list_snapshots(&self) -> Vec<SnapshotStatus> {
        let mut all = Vec::new();
        let mut volumes: Vec<_> = self.snapshots.volumes().into_iter().collect();
        volumes.sort_by_key(|volume| self.name_of(*volume));
        for volume in volumes {
            for snapshot in self.snapshots.of(volume).into_iter().filter(|s| !s.is_dying) {
                let Some(name) = self.name_of(snapshot.id) else { continue };
                let used_bytes = self.unique_blocks(snapshot.id).await * BLOCK_BYTES;
                all.push(SnapshotStatus {
                    name: format!("{}/{name}", self.name()),
                    id: snapshot.id.0,
                    created_at: snapshot.created_at,
                    size_bytes: snapshot.size_bytes,
                    used_bytes,
                    referenced_bytes: snapshot.referenced_blocks * BLOCK_BYTES,
                    clones: self.clones_of(snapshot.id),
                    holds: snapshot.holds.clone(),
                });
            }
        }
        all
    }

    /// Blocks that would become free if only this snapshot went.
    async fn unique_blocks(&self, snapshot: VolumeId) -> u64 {
        let (mut unique, mut from) = (0, Lba(0));
        let mut slices = rt::Slices::new();
        loop {
            let counted = self.store.map.borrow().unique_blocks(snapshot, from);
            let Some((blocks, next)) = counted else { return unique };
            (unique, from) = (unique + blocks, next);
            slices.step().await;
        }
    }
}
