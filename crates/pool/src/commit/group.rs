//! A transaction group on its way from memory into segments, the map, and a new root.

use std::rc::Rc;

use forebay_cache::Kept;
use forebay_compress::Compression;
use forebay_dedup::Fingerprint;
use forebay_device::IoBytes;
use forebay_format::map_record::{Delta, LEAF_BLOCKS, MAX_VOLUME_BLOCKS};
use forebay_map::{DEDUP_VOLUME, ExtentKind, PACKED_VOLUME, PackedRef, dedup_ref};
use forebay_rt as rt;
use forebay_rt::Either;
use forebay_segment::{Classes, STREAMS};
use forebay_txg::Content;
use forebay_units::{BLOCK_LEN, BlockAddr, CommitId, Lba, Nanos, TxgId, VolumeId};

use super::packing::Loose;
use crate::Pool;
use crate::commit::error::CommitError;
use crate::commit::group_changes::{GroupChange, GroupChanges};
use crate::commit::work;
use crate::dedup::DedupMode;
use crate::state::Writers;

/// Between two groups that do nothing but let go of snapshots.
const LET_GO_PAUSE: Nanos = Nanos::from_millis(50);

/// Blocks of a trim that are looked for in the cache.
const MOST_DROPPED_BLOCKS: u64 = 1 << 12;

/// Consecutive blocks of a volume that went to consecutive addresses.
struct Placed {
    volume: VolumeId,
    lba: Lba,
    addr: BlockAddr,
    sums: Vec<u64>,
}

/// Consecutive blocks of a volume that refer to consecutive contents.
struct Referring {
    volume: VolumeId,
    lba: Lba,
    content: Lba,
    blocks: u32,
}

/// Consecutive blocks of a volume with consecutive references into packed blocks.
struct PackedRun {
    volume: VolumeId,
    lba: Lba,
    addr: BlockAddr,
    blocks: u32,
}

/// Where the blocks of a group went.
#[derive(Default)]
pub(super) struct Places {
    cleared: Vec<(VolumeId, Lba, u64)>,
    placed: Vec<Placed>,
    referring: Vec<Referring>,
    packed: Vec<PackedRun>,
}

/// The group that is on its way from memory into segments.
pub(super) struct SyncingGroup {
    pub txg: TxgId,
    /// The root that will bring it.
    commit: CommitId,
    blocks: u64,
    /// Segments that are left to the journal.
    keep: u32,
    /// What is not in segments yet.
    changes: GroupChanges,
    /// Where the rest went.
    places: Places,
    /// Bytes of data so far.
    bytes: u64,
    /// Blocks that it overwrites, and young ones of them.
    overwritten: (u64, u64),
}

/// What holds for all blocks of an extent that is being written.
pub(super) struct Target {
    pub commit: CommitId,
    /// Segments that are left to the journal.
    pub keep: u32,
    /// Whether written blocks stay in the read cache.
    pub caches_writes: bool,
}

impl Places {
    fn place(&mut self, (volume, lba): (VolumeId, Lba), addr: BlockAddr, sum: u64) {
        match self.placed.last_mut() {
            Some(last)
                if last.volume == volume
                    && last.lba.0 + last.sums.len() as u64 == lba.0
                    && last.addr.segment() == addr.segment()
                    && last.addr.block() + last.sums.len() as u32 == addr.block() =>
            {
                last.sums.push(sum);
            }
            _ => self.placed.push(Placed { volume, lba, addr, sums: vec![sum] }),
        }
    }

    pub(super) fn pack(&mut self, (volume, lba): (VolumeId, Lba), addr: BlockAddr, blocks: u32) {
        match self.packed.last_mut() {
            Some(last)
                if last.volume == volume
                    && last.lba.0 + u64::from(last.blocks) == lba.0
                    && last.addr.raw() + u64::from(last.blocks) == addr.raw()
                    && last.addr.segment() == addr.segment() =>
            {
                last.blocks += blocks;
            }
            _ => self.packed.push(PackedRun { volume, lba, addr, blocks }),
        }
    }

    fn refer(&mut self, (volume, lba): (VolumeId, Lba), content: Lba) {
        match self.referring.last_mut() {
            Some(last)
                if last.volume == volume
                    && last.lba.0 + u64::from(last.blocks) == lba.0
                    && last.content.0 + u64::from(last.blocks) == content.0
                    && dedup_ref(last.content).segment() == dedup_ref(content).segment() =>
            {
                last.blocks += 1;
            }
            _ => self.referring.push(Referring { volume, lba, content, blocks: 1 }),
        }
    }
}

impl Pool {
    /// The sync task: commits a group when it is old, large or waited for, as long as the pool
    /// runs.
    pub(crate) async fn sync_loop(self: Rc<Self>) {
        self.sync_until_closed().await;
        self.sync.ended.set(true);
        self.sync.done.notify_all();
        self.health.log_changed.notify_all();
    }

    async fn sync_until_closed(self: &Rc<Self>) {
        loop {
            let idle = || !self.has_work() && !self.wants_sync();
            let ended = || self.is_stopped() || self.lifecycle.closing.get();
            self.sync.wake.until(|| !idle() || ended()).await;
            let timeout = self.settings.get().txg_timeout;
            // Snapshots let go of a bounded part of their blocks with each group.
            let most = if self.snapshots.has_dying() { LET_GO_PAUSE } else { timeout };
            let deadline = rt::now() + timeout.min(most);
            let due = self.sync.wake.until(|| self.wants_sync() || ended());
            // In both cases there is work: the group is waited for, or old.
            match rt::select(Box::pin(due), rt::sleep_until(deadline)).await {
                Either::Left(_) | Either::Right(_) => {}
            }
            if self.is_stopped() || (self.lifecycle.closing.get() && !self.wants_sync()) {
                return;
            }
            if let Err(error) = self.sync_group().await {
                self.stop(error.into());
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        !self.dirty.groups.borrow().open().is_empty()
            || self.sync.config_dirty.get()
            || self.snapshots.has_dying()
    }

    fn wants_sync(&self) -> bool {
        // Memory of writers that still wait for a device is freed by no commit.
        let gives_room = self.dirty.groups.borrow().open().held.bytes() > 0;
        let large = self.dirty.throttle.dirty_bytes() >= self.limits.get().txg_bytes;
        self.sync.wanted.get() > self.sync.committed.get()
            || self.sync.root_wanted.get()
            || (gives_room && (large || self.dirty.throttle.is_full()))
            || self.log_pressure()
    }

    /// Commits the open group: makes room, writes it, writes the root. Where the data devices are
    /// in object stores, the next groups may follow in the same call ([`Pool::root_beside`]).
    pub(crate) async fn sync_group(self: &Rc<Self>) -> Result<(), CommitError> {
        let mut writers = self.writers.lock().await;
        // The throttle's pace includes cleaning, because cleaning is part of the cost of a byte.
        let mut begun = rt::now();
        self.make_room(&mut writers).await?;
        self.sync.root_wanted.set(false);
        self.take_log_events();
        self.take_array_events();
        self.quiet_log().await;
        // The group has grown while the log drained. After this call it has room, and no await
        // follows before it is closed.
        self.make_room(&mut writers).await?;
        let mut group = self.close_group(self.sync.commit.get().next());
        self.place_group(&mut writers, &mut group).await?;
        loop {
            let (txg, bytes) = (group.txg, group.bytes);
            self.finish_group(&mut writers, group).await?;
            let next = self.root_beside(&mut writers, txg).await?;
            self.dirty.throttle.measured(bytes, rt::now().since(begun));
            match next {
                Some(next) => group = next,
                None => return Ok(()),
            }
            begun = rt::now();
        }
    }

    /// Closes the open group, which becomes the syncing one, for root `commit`.
    pub(super) fn close_group(&self, commit: CommitId) -> SyncingGroup {
        let txg = self.dirty.groups.borrow_mut().quiesce();
        self.close_versions();
        self.dirty.space.close_group();
        let blocks = self.blocks_in(self.dirty.groups.borrow().syncing().expect("just quiesced"));
        self.stats.note_group_blocks(blocks);
        SyncingGroup {
            txg,
            commit,
            blocks,
            keep: self.journal_keep(blocks),
            changes: GroupChanges::default(),
            places: Places::default(),
            bytes: 0,
            overwritten: (0, 0),
        }
    }

    /// Puts the blocks of the syncing group into segments. Changes neither the map nor the journal,
    /// so the root of the group before may be on its way.
    pub(super) async fn place_group(
        self: &Rc<Self>,
        writers: &mut Writers,
        group: &mut SyncingGroup,
    ) -> Result<(), CommitError> {
        let mut slices = rt::Slices::new();
        while let Some(change) = group.changes.next(self).await {
            let GroupChange { volume, lba, blocks, content, hashes } = change;
            let data = match content {
                Content::Zero => {
                    self.note_all_dying((volume, lba, blocks), &mut slices).await;
                    group.places.cleared.push((volume, lba, blocks));
                    continue;
                }
                Content::Data(data) => data,
            };
            group.bytes += data.len() as u64;
            let (old, young) = self.note_dying(volume, lba, blocks);
            group.overwritten = (group.overwritten.0 + old, group.overwritten.1 + young);
            let extent = (volume, lba, &data, &hashes[..]);
            let of = (group.commit, group.keep);
            self.write_extent(writers, extent, of, &mut group.places, &mut slices).await?;
        }
        Ok(())
    }

    /// Waits for the blocks of the syncing group, cleans along with it, and brings it into the map
    /// and the journal.
    async fn finish_group(
        self: &Rc<Self>,
        writers: &mut Writers,
        group: SyncingGroup,
    ) -> Result<(), CommitError> {
        let SyncingGroup { commit, blocks, keep, mut places, overwritten, .. } = group;
        let mut delta = Delta::new();
        self.repack_along(writers, blocks, (commit, keep)).await?;
        let to = Target { commit, keep, caches_writes: false };
        self.finish_packed(writers, &to, &mut places).await?;
        self.clean_along(writers, blocks, overwritten, keep).await?;
        self.finish_data(writers, commit).await?;
        self.apply_to_map(writers, &mut delta, &places).await?;
        self.end_versions(&mut delta, commit).await?;
        self.free_unused_contents(&mut delta).await?;
        self.free_unused_packed(&mut delta).await?;
        self.journal(writers, &delta, commit).await
    }

    /// Writes an extent of a group into segments, but for the blocks whose contents are there.
    async fn write_extent(
        self: &Rc<Self>,
        writers: &mut Writers,
        (volume, lba, data, hashes): (VolumeId, Lba, &IoBytes, &[Fingerprint]),
        (commit, keep): (CommitId, u32),
        places: &mut Places,
        slices: &mut rt::Slices,
    ) -> Result<(), CommitError> {
        let to = Target { commit, keep, caches_writes: self.caches_writes(volume) };
        let how = self.compression(volume);
        let mut loose = Vec::new();
        let mode = self.dedup_mode(volume);
        // The property may have changed since the extent was hashed.
        let hashes = if mode == DedupMode::Off { &[] } else { hashes };
        self.look_for_neighbors(hashes).await;
        for (index, block) in data.chunks(BLOCK_LEN).enumerate() {
            let at = (volume, Lba(lba.0 + index as u64));
            let mut bound = at;
            if let Some(fingerprint) = hashes.get(index) {
                if let Some(content) = self.known_content(fingerprint, block, mode).await {
                    places.refer(at, Lba(content));
                    slices.step().await;
                    continue;
                }
                let block = data.slice(index * BLOCK_LEN, BLOCK_LEN);
                if let Some(content) = self.dedup.give_number(*fingerprint, block) {
                    places.refer(at, Lba(content));
                    bound = (DEDUP_VOLUME, Lba(content));
                }
            }
            match how {
                Compression::Off => {
                    let block = data.slice(index * BLOCK_LEN, BLOCK_LEN);
                    self.store_block(writers, (at, bound), block, &to, places).await?;
                }
                _ => loose.push(Loose { at, bound, index }),
            }
            slices.step().await;
        }
        self.write_packed(writers, (data, &loose), how, &to, places).await
    }

    /// Writes a block into a segment. It is bound to `bound`; the block that it overwrites, at
    /// `at`, says how long it may live.
    pub(super) async fn store_block(
        self: &Rc<Self>,
        writers: &mut Writers,
        (at, bound): ((VolumeId, Lba), (VolumeId, Lba)),
        block: IoBytes,
        to: &Target,
        places: &mut Places,
    ) -> Result<(), CommitError> {
        let Target { commit, keep, caches_writes } = *to;
        let stream = self.user_stream(writers, at.0, at.1, keep);
        let clock = self.stats.clock();
        let writer = &mut writers.data[usize::from(stream)];
        let (addr, sum) =
            writer.append(bound.0, bound.1, block.clone(), commit, clock, keep).await?;
        self.stats.tick();
        rt::model_work(work::BLOCK);
        if caches_writes {
            self.keep_in_memory(self.block_key(addr), &block, Kept::Written);
        }
        places.place(bound, addr, sum);
        Ok(())
    }

    /// Fills the last rows of all data streams and waits for every write.
    pub(crate) async fn finish_data(
        &self,
        writers: &mut Writers,
        commit: CommitId,
    ) -> Result<(), CommitError> {
        for writer in &mut writers.data {
            writer.finish_rows(commit).await;
        }
        self.store.in_flight.drain().await?;
        Ok(())
    }

    /// As [`Pool::note_dying`] for a range that may be long, a leaf of the map at a time.
    async fn note_all_dying(
        &self,
        (volume, lba, blocks): (VolumeId, Lba, u64),
        slices: &mut rt::Slices,
    ) {
        const LEAF: u64 = LEAF_BLOCKS as u64;
        let (mut at, end) = (lba.0, lba.0 + blocks);
        while at < end {
            let Some(Lba(leaf)) = self.store.map.borrow().next_entry(volume, Lba(at)) else {
                break;
            };
            let (from, to) = (leaf.max(at), (leaf + LEAF).min(end));
            if from < to {
                self.note_dying(volume, Lba(from), to - from);
            }
            slices.step().await;
            at = leaf + LEAF;
        }
        slices.step().await;
    }

    /// Marks the blocks that the group being written overwrites as dying. Returns their number, and
    /// the number of young ones.
    fn note_dying(&self, volume: VolumeId, lba: Lba, blocks: u64) -> (u64, u64) {
        // What a snapshot has as well does not die.
        if self.has_versions(volume) {
            return (0, 0);
        }
        let (now, limit) = (self.stats.clock(), self.store.classes.young());
        let (mut all, mut young) = (0, 0);
        let mut note = |home: VolumeId, addr: BlockAddr, blocks: u64| {
            // Nor does what other blocks may refer to.
            if home != DEDUP_VOLUME {
                self.store.table.add_dying(addr, blocks as u32);
                let age = now.saturating_sub(self.store.table.get(addr.segment()).clock);
                all += blocks;
                young += if age < limit { blocks } else { 0 };
            }
        };
        let map = self.store.map.borrow();
        if blocks == 1 {
            rt::model_work(work::PIECE);
            if let Some(old) =
                map.lookup(volume, lba).filter(|old| PackedRef::of(old.addr).is_none())
            {
                note(old.home, old.addr, 1);
            }
        } else {
            map.lookup_range(volume, lba, blocks, |piece| {
                rt::model_work(work::PIECE);
                if let ExtentKind::Mapped { home, addr, .. } = piece.kind {
                    note(home, addr, piece.blocks);
                }
            });
        }
        (all, young)
    }

    /// The stream of a host block: by the age of the block that it overwrites, or the stream that
    /// has room when the last segments are in use.
    fn user_stream(&self, writers: &Writers, volume: VolumeId, lba: Lba, keep: u32) -> u8 {
        let map = self.store.map.borrow();
        let mut old = map.lookup(volume, lba);
        if let Some(packed) = old.and_then(|old| PackedRef::of(old.addr)) {
            old = map.lookup(PACKED_VOLUME, packed.block);
        }
        let old_clock = old.map(|old| self.store.table.get(old.addr.segment()).clock);
        let stream = self.store.classes.user_stream(self.stats.clock(), old_clock);
        let left = |stream: u8| writers.data[usize::from(stream)].blocks_left();
        if left(stream) > 0 || self.store.table.free_count() > keep + 1 {
            return stream;
        }
        (0..STREAMS).find(|other| Classes::is_user(*other) && left(*other) > 0).unwrap_or(stream)
    }

    /// Applies a group to the map: holes, new places, moved blocks, dropped volumes. Readers see
    /// all of it from the beginning, because they look into the syncing group before the map.
    async fn apply_to_map(
        &self,
        writers: &mut Writers,
        delta: &mut Delta,
        places: &Places,
    ) -> Result<(), CommitError> {
        let mut slices = rt::Slices::new();
        let mut cut = |addr: BlockAddr, blocks: u32| self.cut_run(addr, blocks);
        let mut freed = |addr: BlockAddr, blocks: u32| self.free_run(addr, blocks);
        for range in places.cleared.iter().copied() {
            let (volume, _, blocks) = range;
            // What is cut off at once may be long: its blocks leave the cache as others come.
            match blocks <= MOST_DROPPED_BLOCKS || self.has_versions(volume) {
                true => self.clear_versions(range, delta, &mut freed, &mut slices).await?,
                false => self.clear_versions(range, delta, &mut cut, &mut slices).await?,
            }
            slices.step().await;
        }
        self.apply_places(delta, places, &mut slices).await?;
        self.apply_repacked(writers, delta).await?;
        for moved in writers.relocations.drain(..) {
            self.apply_move(&moved, delta);
            slices.step().await;
        }
        for (volume, first) in std::mem::take(&mut writers.truncated) {
            if self.volumes.borrow().contains_key(&volume) {
                let range = (volume, Lba(first), MAX_VOLUME_BLOCKS - first);
                self.clear_versions(range, delta, &mut cut, &mut slices).await?;
            }
        }
        for volume in std::mem::take(&mut writers.dropped) {
            self.drop_from_map(volume, &mut cut, &mut slices).await?;
            delta.drop_volume(volume);
        }
        self.store.table.clear_dying();
        // From here on the map has the group's contents.
        if let Some(set) = self.dirty.groups.borrow_mut().retire() {
            self.stats.retiring(set.held);
        }
        Ok(())
    }

    /// Drops a volume from the map, a leaf at a time: no version that stays refers to it.
    async fn drop_from_map(
        &self,
        volume: VolumeId,
        cut: &mut impl FnMut(BlockAddr, u32),
        slices: &mut rt::Slices,
    ) -> Result<(), CommitError> {
        const LEAF: u64 = LEAF_BLOCKS as u64;
        let mut at = Lba(0);
        loop {
            let leaf = self.store.map.borrow().next_entry(volume, at);
            let Some(leaf) = leaf else { break };
            self.store.map.borrow_mut().clear(volume, leaf, LEAF, cut)?;
            rt::model_work(work::LEAF);
            slices.step().await;
            at = Lba(leaf.0 + LEAF);
        }
        Ok(self.store.map.borrow_mut().drop_volume(volume, cut)?)
    }

    /// Applies to the map where the blocks of a group went. Each volume is there: one is destroyed
    /// between two groups, while nothing else has the writers.
    async fn apply_places(
        &self,
        delta: &mut Delta,
        places: &Places,
        slices: &mut rt::Slices,
    ) -> Result<(), CommitError> {
        let mut freed = |addr: BlockAddr, blocks: u32| self.free_run(addr, blocks);
        for Placed { volume, lba, addr, sums } in &places.placed {
            self.store.table.add_live(*addr, sums.len() as u32);
            let (lba, blocks) = (*lba, sums.len() as u64);
            {
                let mut map = self.store.map.borrow_mut();
                map.keep_before_write(*volume, lba, blocks, &mut |kept| kept.note_in(delta));
                map.set_run(*volume, lba, *addr, sums, false, &mut freed)?;
            }
            delta.assign(*volume, lba, *addr, sums);
            rt::model_work(work::run(sums.len()));
            slices.step().await;
        }
        for PackedRun { volume, lba, addr, blocks } in &places.packed {
            self.packed.refer(*addr, *blocks);
            self.set_refs(delta, (*volume, *lba), *addr, *blocks);
            slices.step().await;
        }
        for Referring { volume, lba, content, blocks } in &places.referring {
            self.dedup.refer(*content, *blocks);
            self.set_refs(delta, (*volume, *lba), dedup_ref(*content), *blocks);
            slices.step().await;
        }
        Ok(())
    }

    /// Gives blocks of a volume the references from `addr` on.
    fn set_refs(
        &self,
        delta: &mut Delta,
        (volume, lba): (VolumeId, Lba),
        addr: BlockAddr,
        blocks: u32,
    ) {
        let mut map = self.store.map.borrow_mut();
        let kept = &mut |kept: forebay_map::Kept<'_>| kept.note_in(delta);
        map.keep_before_write(volume, lba, u64::from(blocks), kept);
        map.set_refs(volume, lba, addr, blocks, &mut |addr, blocks| self.free_run(addr, blocks));
        delta.assign_sealed(volume, lba, addr, blocks);
        rt::model_work(work::run(blocks as usize));
    }
}

#[cfg(test)]
mod tests;
