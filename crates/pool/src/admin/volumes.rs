//! Commands on volumes.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Device;
use forebay_format::config::{PoolConfig, VolumeConfig};
use forebay_map::Map;
use forebay_units::{BLOCK_BYTES, VolumeId};

use crate::admin::error::{ConfigTooLarge, SpaceFor, VolumeError};
use crate::admin::properties::{
    COMPRESSION, DEDUP, RESERVATION, VOLUME_PROPERTIES, check_property, check_volume_name,
    effective,
};
use crate::commit::error::CommitError;
use crate::spec::VolumeSpec;
use crate::status::VolumeStatus;
use crate::volume::{Arrival, VolumeState};
use crate::{Compression, DedupMode, Pool, SyncMode, Volume};

/// The version of pools from which on they de-duplicate.
const WITH_DEDUP: u32 = 7;
/// The version of pools from which on they compress.
const WITH_COMPRESSION: u32 = 8;
/// The largest volume, whose byte offsets fit the protocols' 64 bits with room to spare.
pub const MAX_VOLUME_BYTES: u64 = 1 << 50;

pub(crate) fn check_size(size_bytes: u64) -> Result<(), VolumeError> {
    if size_bytes == 0 || size_bytes % BLOCK_BYTES != 0 || size_bytes > MAX_VOLUME_BYTES {
        return Err(VolumeError::BadSize { size_bytes, limit_bytes: MAX_VOLUME_BYTES });
    }
    Ok(())
}

/// Refuses a configuration that leaves too little room in its slot for stale segments and lost
/// blocks, which grow by themselves. For commands that make it grow.
pub(crate) fn check_fits(config: &PoolConfig) -> Result<(), ConfigTooLarge> {
    check_spare(config, 96 << 10)
}

/// Refuses a configuration with less than `spare_bytes` left. Lines of history do not count,
/// because they can be dropped.
fn check_spare(config: &PoolConfig, spare_bytes: u64) -> Result<(), ConfigTooLarge> {
    let size_bytes = PoolConfig { history: Vec::new(), ..config.clone() }.encode().len() as u64;
    if size_bytes + spare_bytes <= forebay_format::label::CONFIG_SLOT_BYTES {
        return Ok(());
    }
    Err(ConfigTooLarge { pool: config.name.clone(), size_bytes })
}

impl Pool {
    pub(crate) fn volume_named(&self, name: &str) -> Result<Rc<VolumeState>, VolumeError> {
        let volumes = self.volumes.borrow();
        let found = volumes.values().find(|v| *v.name.borrow() == name);
        let not_found = || VolumeError::NotFound { pool: self.name(), volume: name.to_owned() };
        found.cloned().ok_or_else(not_found)
    }

    /// The volumes, by name.
    #[must_use]
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        let mut all: Vec<VolumeStatus> =
            self.volumes.borrow().values().map(|v| self.volume_status(v)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// One volume by its name (without the pool's).
    #[must_use]
    pub fn get_volume(&self, name: &str) -> Option<VolumeStatus> {
        self.volume_named(name).ok().map(|v| self.volume_status(&v))
    }

    fn volume_status(&self, volume: &VolumeState) -> VolumeStatus {
        let (own, referenced, shared, in_snapshots) = {
            let map = self.store.map.borrow();
            let snapshots = self.snapshots.of(volume.id);
            let held: u64 = snapshots.iter().map(|s| map.mapped_blocks(s.id)).sum();
            let own = map.mapped_blocks(volume.id);
            (own, map.visible_blocks(volume.id), map.shared_blocks(volume.id), held)
        };
        let used_bytes = (own + in_snapshots) * BLOCK_BYTES;
        let size_bytes = volume.size_bytes.get();
        let reserved_bytes = if volume.sparse.get() { 0 } else { size_bytes };
        let free = self.free_blocks() * BLOCK_BYTES;
        let mut properties = effective(VOLUME_PROPERTIES, &volume.properties.borrow());
        let reservation = if volume.sparse.get() { "none" } else { "auto" };
        properties.insert(RESERVATION.to_owned(), reservation.to_owned());
        let resume_token = self.resume_token(volume).map(|token| token.to_text());
        VolumeStatus {
            name: format!("{}/{}", self.name(), volume.name.borrow()),
            id: volume.id.0,
            size_bytes,
            used_bytes,
            reserved_bytes,
            available_bytes: match volume.sparse.get() {
                true => free.min(size_bytes.saturating_sub((own - shared) * BLOCK_BYTES)),
                false => size_bytes.saturating_sub(own * BLOCK_BYTES),
            },
            referenced_bytes: referenced * BLOCK_BYTES,
            written_bytes: (own - shared) * BLOCK_BYTES,
            used_by_snapshots_bytes: in_snapshots * BLOCK_BYTES,
            origin: self
                .origin_of(volume.id)
                .and_then(|origin| Some(format!("{}/{}", self.name(), self.name_of(origin)?))),
            compress_percent: self.compress_percent(volume.id),
            sync: volume.sync.get().as_str().to_owned(),
            is_receiving: volume.arrival.get() != Arrival::Whole,
            resume_token,
            properties,
        }
    }

    /// Blocks that are neither used nor reserved.
    pub(crate) fn free_blocks(&self) -> u64 {
        let space = &self.dirty.space;
        space
            .usable_blocks
            .get()
            .saturating_sub(space.reserved_blocks.get())
            .saturating_sub(space.sparse_blocks.get())
            .saturating_add_signed(space.promised_blocks.get().saturating_neg())
    }

    /// Blocks that volumes and snapshots have, or were promised, beyond what there is. Snapshots
    /// that the open group is to take do not count: without room it refuses them at its end.
    pub(crate) fn overdrawn_blocks(&self) -> u64 {
        let (space, wanted) = (&self.dirty.space, self.snapshots.wanted.borrow());
        let promised = space.promised_blocks.get() - wanted.promised_blocks - wanted.grown_blocks;
        let taken = space.reserved_blocks.get() + space.sparse_blocks.get();
        taken.saturating_add_signed(promised).saturating_sub(space.usable_blocks.get())
    }

    /// The block device of a volume. `None` if the volume or the pool is about to go, because the
    /// handle would keep the devices open.
    #[must_use]
    pub fn open_volume(self: &Rc<Self>, name: &str) -> Option<Device> {
        let state = self.volume_named(name).ok().filter(|volume| !volume.gone.get())?;
        if self.lifecycle.closing.get() || self.check_whole(&state).is_err() {
            return None;
        }
        Some(Rc::new(Volume::new(self.clone(), state)))
    }

    /// Creates a volume. It can be written when this returns.
    pub async fn create_volume(&self, spec: &VolumeSpec) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        self.check_new_name(&spec.name)?;
        check_size(spec.size_bytes)?;
        for (name, value) in &spec.properties {
            check_property(VOLUME_PROPERTIES, name, value)?;
        }
        self.add_volume(spec.clone()).await
    }

    /// Creates a volume of checked properties.
    pub(crate) async fn add_volume(&self, mut spec: VolumeSpec) -> Result<(), VolumeError> {
        if let Some(reservation) = spec.properties.remove(RESERVATION) {
            spec.sparse = reservation == "none";
        }
        for (name, value) in &spec.properties {
            self.check_sharing(&spec.name, spec.sparse, name, value)?;
        }
        let blocks = Self::blocks_of(spec.size_bytes);
        if !spec.sparse {
            self.wait_for_room(blocks).await?;
            if blocks > self.free_blocks() {
                return Err(self.no_space(spec.size_bytes, SpaceFor::Volume));
            }
        }
        // The volume owns its space from here on: clients write to others while it is committed.
        let reserved = &self.dirty.space.reserved_blocks;
        reserved.set(reserved.get() + if spec.sparse { 0 } else { blocks });
        let config = {
            let id = self.next_id();
            let mut config = self.config.borrow_mut();
            config.next_volume = id + 1;
            let volume = VolumeConfig {
                id,
                name: spec.name.clone(),
                size_bytes: spec.size_bytes,
                sparse: spec.sparse,
                origin: None,
                writers: Vec::new(),
                properties: spec.properties.clone(),
            };
            config.volumes.push(volume.clone());
            volume
        };
        // The label must have room for the volume.
        let fits = check_fits(&self.config.borrow());
        if let Err(error) = fits {
            self.config.borrow_mut().volumes.retain(|v| v.id != config.id);
            self.refresh_space();
            return Err(error.into());
        }
        let id = VolumeId(config.id);
        self.store.map.borrow_mut().create_volume(id).map_err(CommitError::from)?;
        self.sync.config_dirty.set(true);
        self.commit_all().await?;
        self.volumes.borrow_mut().insert(id, VolumeState::new(&config));
        self.refresh_space();
        Ok(())
    }

    /// Refuses a name that no volume can have, or that one has.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<(), VolumeError> {
        check_volume_name(name)?;
        match self.volume_named(name) {
            Ok(_) => Err(VolumeError::Exists { pool: self.name(), volume: name.to_owned() }),
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn no_space(&self, needed_bytes: u64, wanted_for: SpaceFor) -> VolumeError {
        let free_bytes = self.free_blocks() * BLOCK_BYTES;
        VolumeError::NoSpace { pool: self.name(), free_bytes, needed_bytes, wanted_for }
    }

    /// Whether the configuration fits its slot.
    pub(crate) fn check_config_fits(&self) -> Result<(), ConfigTooLarge> {
        check_spare(&self.config.borrow(), 8 << 10)
    }

    /// Destroys a volume and all its data. With `recursive`, its snapshots go too; without, a
    /// volume with snapshots is refused.
    pub async fn destroy_volume(&self, name: &str, recursive: bool) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let volume = self.volume_to_destroy(name, recursive)?;
        self.drop_volume(&volume).await
    }

    /// The volume that a command destroys, or why it refuses to.
    pub(crate) fn volume_to_destroy(
        &self,
        name: &str,
        recursive: bool,
    ) -> Result<Rc<VolumeState>, VolumeError> {
        let volume = self.volume_named(name)?;
        self.check_whole(&volume)?;
        let snapshots = self.snapshots.of(volume.id);
        let living = || snapshots.iter().filter(|snapshot| !snapshot.is_dying);
        if !recursive && living().next().is_some() {
            let name = format!("{}/{name}", self.name());
            return Err(VolumeError::HasSnapshots { name, count: living().count() });
        }
        for snapshot in living() {
            self.check_may_go(&format!("{name}@{}", snapshot.name), snapshot)?;
        }
        Ok(volume)
    }

    /// Destroys a volume and its snapshots.
    pub(crate) async fn drop_volume(&self, volume: &VolumeState) -> Result<(), VolumeError> {
        volume.end();
        let snapshots = self.snapshots.of(volume.id);
        snapshots.iter().for_each(|snapshot| self.snapshots.close(snapshot.id));
        // Answered writes are committed first: the log must not name a volume that the
        // configuration does not have.
        self.commit_all().await?;
        {
            let mut writers = self.writers.lock().await;
            writers.dropped.push(volume.id);
            for snapshot in self.snapshots.of(volume.id) {
                writers.dropped.push(snapshot.id);
                self.snapshots.remove(snapshot.id);
                self.health.lost.borrow_mut().forget(snapshot.id);
            }
            self.dirty.groups.borrow_mut().forget_volume(volume.id);
            self.volumes.borrow_mut().remove(&volume.id);
            self.health.lost.borrow_mut().forget(volume.id);
            self.config.borrow_mut().volumes.retain(|v| v.id != volume.id.0);
            self.sync.config_dirty.set(true);
        }
        self.commit_all().await?;
        self.refresh_space();
        Ok(())
    }

    /// Gives a volume another name. Its snapshots go with it; clients that have them open by the
    /// old name must be gone.
    pub async fn rename_volume(&self, name: &str, new: &str) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let (volume, config) = self.volume_to_rename(name, new)?;
        *self.config.borrow_mut() = config;
        self.sync.config_dirty.set(true);
        self.snapshots.of(volume.id).iter().for_each(|snapshot| self.snapshots.close(snapshot.id));
        volume.name.replace(new.to_owned());
        Ok(self.commit_all().await?)
    }

    /// The volume that a command gives the name `new`, and the configuration with that name; or
    /// why it refuses to.
    pub(crate) fn volume_to_rename(
        &self,
        name: &str,
        new: &str,
    ) -> Result<(Rc<VolumeState>, PoolConfig), VolumeError> {
        let volume = self.volume_named(name)?;
        self.check_whole(&volume)?;
        self.check_new_name(new)?;
        let mut config = self.config.borrow().clone();
        if let Some(v) = config.volumes.iter_mut().find(|v| v.id == volume.id.0) {
            v.name = new.to_owned();
        }
        // The label must have room for a longer name.
        check_fits(&config)?;
        Ok((volume, config))
    }

    /// Changes the size of a volume. A smaller size loses the data past the new end, so it needs
    /// `force`.
    pub async fn resize_volume(
        &self,
        name: &str,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let volume = self.volume_named(name)?;
        self.check_whole(&volume)?;
        check_size(size_bytes)?;
        let before = volume.size_bytes.get();
        if size_bytes < before && !force {
            return Err(VolumeError::WouldShrink {
                volume: name.to_owned(),
                size_bytes: before,
                wanted_bytes: size_bytes,
            });
        }
        self.set_size(&volume, size_bytes).await
    }

    /// Changes the size of a volume. What lies past a smaller size is lost.
    pub(crate) async fn set_size(
        &self,
        volume: &Rc<VolumeState>,
        size_bytes: u64,
    ) -> Result<(), VolumeError> {
        let before = volume.size_bytes.get();
        let grown = Self::blocks_of(size_bytes.saturating_sub(before));
        if !volume.sparse.get() {
            self.wait_for_room(grown).await?;
            if grown > self.free_blocks() {
                return Err(self.no_space(grown * BLOCK_BYTES, SpaceFor::Growth));
            }
        }
        let set_config = |size_bytes| {
            let mut config = self.config.borrow_mut();
            if let Some(v) = config.volumes.iter_mut().find(|v| v.id == volume.id.0) {
                v.size_bytes = size_bytes;
            }
            self.sync.config_dirty.set(true);
        };
        if size_bytes < before {
            // From here on no write goes past the new end. Earlier ones are committed, then cut.
            volume.size_bytes.set(size_bytes);
            // A merge that has read what is cut off would bring it back after a growth.
            self.wait_for_merges(volume, Self::blocks_of(size_bytes), u64::MAX).await;
            self.commit_all().await.inspect_err(|_| volume.size_bytes.set(before))?;
            self.writers.lock().await.truncated.push((volume.id, Self::blocks_of(size_bytes)));
            set_config(size_bytes);
            self.commit_all().await?;
        } else {
            // The space is taken before the commit, during which clients write.
            let reserved = &self.dirty.space.reserved_blocks;
            reserved.set(reserved.get() + if volume.sparse.get() { 0 } else { grown });
            set_config(size_bytes);
            self.commit_all().await?;
            volume.size_bytes.set(size_bytes);
        }
        self.refresh_space();
        Ok(())
    }

    /// Sets a property of a volume.
    pub async fn set_volume(
        &self,
        name: &str,
        property: &str,
        value: &str,
    ) -> Result<(), VolumeError> {
        let _turn = self.volume_turn().await?;
        let volume = self.volume_named(name)?;
        self.check_whole(&volume)?;
        check_property(VOLUME_PROPERTIES, property, value)?;
        self.check_sharing(name, volume.sparse.get(), property, value)?;
        if property == RESERVATION {
            return self.set_reservation(&volume, value != "none").await;
        }
        let set = |properties: &mut BTreeMap<String, String>| {
            properties.insert(property.to_owned(), value.to_owned());
        };
        let mut config = self.config.borrow().clone();
        if let Some(v) = config.volumes.iter_mut().find(|v| v.id == volume.id.0) {
            set(&mut v.properties);
        }
        // The label must have room for a longer value.
        if config.encode().len() > self.config.borrow().encode().len() {
            check_fits(&config)?;
        }
        *self.config.borrow_mut() = config;
        self.sync.config_dirty.set(true);
        if [DEDUP, COMPRESSION].contains(&property) && value != "off" {
            volume.may_take_less.set(true);
        }
        // Earlier writes are committed, so that the new mode holds for all that follow.
        self.commit_all().await?;
        set(&mut volume.properties.borrow_mut());
        volume.apply_property(property, value);
        if let Some(mode) = (property == "sync").then(|| SyncMode::parse(value)).flatten() {
            // Writes of the open group from before the switch are on no list. Until that group is
            // committed, a durable write waits for its root.
            volume.log_from.set(self.dirty.groups.borrow().open_txg().next());
            volume.sync.set(mode);
            self.commit_all().await?;
        }
        Ok(())
    }

    /// Refuses to de-duplicate or to compress where that cannot be.
    pub(crate) fn check_sharing(
        &self,
        volume: &str,
        is_sparse: bool,
        property: &str,
        value: &str,
    ) -> Result<(), VolumeError> {
        if property == COMPRESSION && value != "off" {
            self.check_format(WITH_COMPRESSION, "compression")?;
            if !is_sparse {
                return Err(VolumeError::CompressionNeedsSparse { volume: volume.to_owned() });
            }
        }
        if property != DEDUP || value == "off" {
            return Ok(());
        }
        self.check_format(WITH_DEDUP, "de-duplication")?;
        if !is_sparse {
            let volume = volume.to_owned();
            return Err(VolumeError::DedupNeedsSparse { volume, has_refs: false });
        }
        Ok(())
    }

    /// Refuses to set space aside for a volume with references, or whose snapshots have
    /// some: a rollback would bring them back.
    fn check_has_no_refs(&self, volume: &VolumeState) -> Result<(), VolumeError> {
        let map = self.store.map.borrow();
        let versions = self.snapshots.of(volume.id).into_iter().map(|snapshot| snapshot.id);
        let has_refs = versions.chain([volume.id]).any(|version| map.has_refs(version));
        let is_on =
            volume.dedup.get() != DedupMode::Off || volume.compression.get() != Compression::Off;
        if has_refs || is_on {
            let volume = volume.name.borrow().clone();
            return Err(VolumeError::DedupNeedsSparse { volume, has_refs: true });
        }
        Ok(())
    }

    /// Sets aside the whole size of a volume (thick), or no space (thin).
    async fn set_reservation(
        &self,
        volume: &VolumeState,
        is_thick: bool,
    ) -> Result<(), VolumeError> {
        if volume.sparse.get() != is_thick {
            return Ok(());
        }
        if is_thick {
            self.check_has_no_refs(volume)?;
        }
        let keep = || {
            let mut config = self.config.borrow_mut();
            if let Some(kept) = config.volumes.iter_mut().find(|v| v.id == volume.id.0) {
                kept.sparse = !is_thick;
            }
            self.sync.config_dirty.set(true);
        };
        if !is_thick {
            // Others may take the space only once the configuration says that it is free.
            keep();
        }
        self.commit_all().await?;
        let blocks = Self::blocks_of(volume.size_bytes.get());
        let (mapped, shared) = {
            let map = self.store.map.borrow();
            (map.mapped_blocks(volume.id), map.shared_blocks(volume.id))
        };
        // What it shares with a snapshot takes its own space beside the reservation.
        let blocks_needed = blocks + shared;
        if is_thick && blocks_needed > self.free_blocks() + mapped {
            let needed_bytes = (blocks_needed - mapped) * BLOCK_BYTES;
            return Err(self.no_space(needed_bytes, SpaceFor::Reservation));
        }
        // Writes since the commit: of a thick volume none is promised. What this counts twice goes
        // with the next root.
        let pending = self.absorbed_blocks(volume.id, blocks, Map::mapped_within);
        let promised = &self.dirty.space.promised_blocks;
        promised.set(promised.get() + if is_thick { -pending } else { pending }.max(0));
        volume.sparse.set(!is_thick);
        self.refresh_space();
        self.count_sparse_blocks();
        if is_thick {
            keep();
            self.commit_all().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
