//! Roots: the superblock that commits a group and everything it changed.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::Device;
use forebay_format::checksum::crc64;
use forebay_format::config::{MemberUse, PoolConfig};
use forebay_format::footer::Run;
use forebay_format::superblock::{JournalPosition, Superblock};
use forebay_intent_log::{LogError, LogRing, LogState};
use forebay_map::LeafId;
use forebay_rt as rt;
use forebay_segment::{DataWriter, SegmentState};
use forebay_txg::DirtySet;
use forebay_units::{CommitId, DeviceId, Lba, SegmentId, TxgId, VolumeId};

use crate::Pool;
use crate::commit::error::{CommitError, LabelPart};
use crate::import::divergence::told;
use crate::labels::{
    BOTH_AREAS, FIRST_AREA, LabelError, SECOND_AREA, write_config, write_config_to,
};
use crate::layout::{device_paths, ring_configs};
use crate::opener::OpenDevice;
use crate::state::Writers;
use crate::status::PoolEvent;

/// Extents of a committed group that are let go of in one step.
const EXTENTS_LET_GO: usize = 16;

/// What the root says of the log, and whether the log starts anew after it.
enum LogPlan {
    GoesOn(LogState),
    StartsAnew(Vec<LogRing>, LogState, u64),
    /// During replay the root keeps naming the log that is being replayed.
    Keep(LogState),
}

/// Where the map journal begins and ends.
#[derive(Clone, Copy)]
pub(super) struct JournalRange {
    start: Option<JournalPosition>,
    end: Option<JournalPosition>,
}

impl JournalRange {
    fn of(writers: &Writers) -> Self {
        Self { start: writers.journal_start, end: writers.journal.position() }
    }
}

/// A root that is about to be written.
pub(super) struct NextRoot {
    pub commit: CommitId,
    /// The last group in it, and whether it brings that group.
    txg: TxgId,
    group: bool,
    journal: JournalRange,
    /// Long runs of the segments that were closed since the last root.
    long_runs: Vec<Run>,
}

/// How many devices accepted a label.
#[derive(Default)]
struct LabelVerdict {
    good: usize,
    /// Devices that did not accept it and that the pool needs.
    needed: usize,
    last: Option<LabelError>,
}

impl LabelVerdict {
    /// A label counts when at least one device accepted it and the pool needs no other.
    fn judge(self, part: LabelPart) -> Result<(), CommitError> {
        if self.good > 0 && self.needed == 0 {
            return Ok(());
        }
        let last = self.last.map(Box::new);
        Err(CommitError::LabelNotWritten { part, written: self.good, last })
    }
}

impl Pool {
    /// Makes everything written so far durable and commits it with a new root. `txg` is the last
    /// group in it; `group` says whether this root brings that group.
    pub(crate) async fn write_root(
        self: &Rc<Self>,
        writers: &mut Writers,
        txg: TxgId,
        group: bool,
    ) -> Result<(), CommitError> {
        let root = self.begin_root(writers, txg, group);
        let rooted = self.finish_root(&root).await?;
        self.tidy_after_root(writers, root, rooted).await;
        Ok(())
    }

    /// What the next root takes of the writers. They may go on then.
    pub(super) fn begin_root(&self, writers: &mut Writers, txg: TxgId, group: bool) -> NextRoot {
        self.tally(writers);
        NextRoot {
            commit: self.sync.commit.get().next(),
            txg,
            group,
            journal: JournalRange::of(writers),
            long_runs: writers.data.iter_mut().flat_map(DataWriter::take_long_runs).collect(),
        }
    }

    /// Makes what a root names durable, writes the root, and lets everything go on that waits for
    /// it. Returns the group that it brings.
    pub(super) async fn finish_root(
        self: &Rc<Self>,
        next: &NextRoot,
    ) -> Result<Option<DirtySet>, CommitError> {
        self.store.array.flush().await?;
        self.take_array_events();
        // A root without devices that the pool needs would call them left behind, and no import
        // would accept them again.
        self.store.array.check_writable()?;
        let NextRoot { commit, txg, group, journal, .. } = *next;
        let plan = self.log_plan(txg, group);
        if let LogPlan::StartsAnew(rings, ..) = &plan {
            let mut config = self.config.borrow_mut();
            config.log_rings = ring_configs(&config, rings);
            self.sync.config_dirty.set(true);
        }
        if self.stats.figures_are_due(false) {
            self.sync.config_dirty.set(true);
        }
        if self.sync.config_dirty.get() {
            self.write_configs().await?;
        }
        let log_state = match &plan {
            LogPlan::GoesOn(state) | LogPlan::Keep(state) => state,
            LogPlan::StartsAnew(_, state, _) => state,
        };
        let root = self.superblock(journal, commit, txg, log_state.encode(), false);
        self.put_root(&root).await?;
        if self.sync.overtakes.replace(false) {
            let config = self.config.borrow().clone();
            self.write_config_to_members(&config, SECOND_AREA).await?;
        }
        self.root_is_written(commit, txg, group, plan).await
    }

    fn superblock(
        &self,
        journal: JournalRange,
        commit: CommitId,
        txg: TxgId,
        log_state: Vec<u8>,
        exported: bool,
    ) -> Superblock {
        let (config_generation, config_sum) = self.sync.config_written.get();
        Superblock {
            version: self.sync.version.get(),
            pool: self.guid,
            commit,
            previous: self.sync.rooted.get(),
            txg,
            config_generation,
            config_sum,
            journal_start: journal.start,
            journal_end: journal.end,
            exported,
            written_at: rt::wall_clock(),
            nonce: self.nonce,
            host: self.opener.host(),
            counters: self.counters(),
            log_state,
        }
    }

    /// Devices that receive labels and roots: data members in use.
    pub(crate) fn label_devices(&self) -> Vec<(DeviceId, OpenDevice)> {
        let devices = self.devices.borrow();
        let members = self.store.array.status().into_iter();
        members
            .filter(|member| member.state.is_in_use())
            .filter_map(|m| devices.get(&m.id).map(|d| (m.id, d.clone())))
            .collect()
    }

    /// All devices with a label that are written to: data members in use, then log devices.
    pub(crate) fn devices_in_use(&self) -> Vec<(DeviceId, Device)> {
        let data = self.label_devices().into_iter().map(|(id, open)| (id, open.device()));
        let config = self.config.borrow();
        let devices = self.devices.borrow();
        let sides = config.logs.iter().flat_map(|ring| &ring.sides);
        let sides = sides.filter(|side| side.state == MemberUse::Online);
        let logs = sides.filter_map(|side| {
            let id = DeviceId(side.device);
            devices.get(&id).map(|open| (id, open.device()))
        });
        data.chain(logs).collect()
    }

    /// Writes a root to every member in use.
    async fn put_root(&self, root: &Superblock) -> Result<(), CommitError> {
        let devices = self.label_devices();
        let handles: Vec<_> = devices.iter().map(|(_, open)| open.device()).collect();
        let writes = handles.iter().map(|device| self.write_root_and_heartbeat(device, root));
        let outcomes = rt::join_all(writes).await;
        let bytes = 2 * forebay_format::label::SUPERBLOCK_BYTES;
        let mut verdict = LabelVerdict::default();
        let mut holders = BTreeSet::new();
        for ((id, _), outcome) in devices.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    verdict.good += 1;
                    holders.insert(*id);
                    self.stats.wrote_root(bytes);
                }
                Err(error) => self.label_failed(*id, error.into(), &mut verdict),
            }
        }
        verdict.judge(LabelPart::Root)?;
        self.sync.written.borrow_mut().root = Some((root.clone(), holders));
        self.sync.rooted.set(root.commit);
        Ok(())
    }

    /// A device could not take a label or a root. Its data was flushed before, so the root is good
    /// without it. The device is out of use from here on.
    fn label_failed(&self, id: DeviceId, error: LabelError, verdict: &mut LabelVerdict) {
        if error.is_fence_lost() {
            // The device is well. The pool belongs to another owner, or has stopped.
            verdict.needed += 1;
            verdict.last = Some(error);
            return;
        }
        // A member that has left the pool meanwhile has no counters.
        let _ = self.store.array.count_write_error(id);
        if self.store.array.fault(id, error.device_error()).is_err() {
            verdict.needed += 1;
        }
        self.sync.config_dirty.set(true);
        verdict.last = Some(error);
    }

    /// Writes the configuration with a new generation to every device, log devices included.
    pub(crate) async fn write_configs(&self) -> Result<(), CommitError> {
        let (config, mut holders) = self.write_data_configs().await?;
        self.write_log_configs(&config, &mut holders).await;
        let written = (self.sync.config_written.get(), holders);
        self.sync.written.borrow_mut().config = Some(written);
        Ok(())
    }

    /// Returns the configuration, and the devices that took it.
    async fn write_data_configs(&self) -> Result<(PoolConfig, BTreeSet<DeviceId>), CommitError> {
        self.sync.config_dirty.set(false);
        self.apply_deadlines();
        self.refresh_member_configs();
        let config = {
            let mut config = self.config.borrow_mut();
            config.generation += 1;
            config.scan = self.scan_config();
            config.lost = self.health.lost.borrow().config();
            config.figures = self.figures(&config);
            shorten(&mut config);
            config.clone()
        };
        self.sync.config_written.set((config.generation, crc64(&config.encode())));
        let areas = if self.sync.overtakes.get() { FIRST_AREA } else { BOTH_AREAS };
        let holders = self.write_config_to_members(&config, areas).await?;
        self.opener.witness(self.guid, told(&config), device_paths(&config)).await;
        Ok((config, holders))
    }

    /// Writes a configuration to some label areas of all data members. Returns those that took it.
    async fn write_config_to_members(
        &self,
        config: &PoolConfig,
        areas: Range<usize>,
    ) -> Result<BTreeSet<DeviceId>, CommitError> {
        let mut verdict = LabelVerdict::default();
        let mut holders = BTreeSet::new();
        for (id, open) in self.label_devices() {
            match write_config_to(&open.device(), id.0, config, areas.clone()).await {
                Ok(()) => {
                    verdict.good += 1;
                    holders.insert(id);
                }
                Err(error) => self.label_failed(id, error, &mut verdict),
            }
            self.stats.wrote_root(areas.len() as u64 * 4096);
        }
        verdict.judge(LabelPart::Configuration)?;
        Ok(holders)
    }

    /// Adds the devices that took it to `holders`.
    async fn write_log_configs(&self, config: &PoolConfig, holders: &mut BTreeSet<DeviceId>) {
        for ring in &config.logs {
            for side in ring.sides.iter().filter(|side| side.state == MemberUse::Online) {
                let id = DeviceId(side.device);
                let open = self.devices.borrow().get(&id).cloned();
                let Some(open) = open else { continue };
                match write_config(&open.device(), side.device, config).await {
                    Ok(()) => {
                        holders.insert(id);
                    }
                    Err(error) => self.fail_log_side(id, &error),
                }
            }
        }
    }

    pub(crate) fn note_log_sides(&self, rings: &[LogRing]) {
        let sides = rings.iter().flat_map(|ring| &ring.sides).map(|side| side.device_id);
        *self.health.log_sides.borrow_mut() = sides.collect();
    }

    fn log_plan(&self, txg: TxgId, group: bool) -> LogPlan {
        let request = self.quiet_request().filter(|_| group && self.log.is_paused());
        let Some(request) = request else {
            return match self.health.replaying.borrow().clone() {
                Some(state) => LogPlan::Keep(state),
                None => {
                    let void = self.health.log_void.borrow().clone();
                    LogPlan::GoesOn(void.unwrap_or_else(|| self.log.state(txg)))
                }
            };
        };
        let rings = self.log_rings();
        let state = self.log.next_state(&rings, self.log.epoch() + 1, txg);
        LogPlan::StartsAnew(rings, state, request)
    }

    /// The root is on the devices. Returns the group that it brings.
    async fn root_is_written(
        self: &Rc<Self>,
        commit: CommitId,
        txg: TxgId,
        group: bool,
        plan: LogPlan,
    ) -> Result<Option<DirtySet>, CommitError> {
        self.sync.commit.set(commit);
        let mut rooted = None;
        let replaying = matches!(plan, LogPlan::Keep(_));
        if !replaying {
            self.log.release(txg);
        }
        if group {
            for volume in self.volumes.borrow().values() {
                volume.committed(txg);
            }
            rooted = self.dirty.groups.borrow_mut().rooted();
            self.dirty.throttle.release(self.stats.take_retired());
            self.space_after_group();
            self.sync.committed.set(txg);
        }
        if let LogPlan::StartsAnew(rings, state, request) = plan {
            match self.log.resume(&rings, &state).await {
                Ok(()) => {
                    self.note_log_sides(&rings);
                    self.log_is_restarted(request);
                }
                Err(LogError::Closed) => return Err(self.why_ended()),
                // Another side failed meanwhile. The next group tries again without it.
                Err(error) => {
                    self.health.events.push(PoolEvent::LogNotStarted(error));
                    *self.health.log_void.borrow_mut() = Some(state);
                    self.take_log_events();
                    self.take_array_events();
                    self.sync.wake.notify_all();
                }
            }
        }
        self.sync.done.notify_all();
        Ok(rooted)
    }

    /// Frees what the root has made superfluous, in memory and on the devices.
    pub(super) async fn tidy_after_root(
        self: &Rc<Self>,
        writers: &mut Writers,
        root: NextRoot,
        mut rooted: Option<DirtySet>,
    ) {
        self.seal(&root.long_runs);
        self.reclaim(writers, root.commit);
        // Nothing waits for this, and everything would wait for all of it at once.
        let mut slices = rt::Slices::new();
        while rooted.as_mut().is_some_and(|set| set.let_go(EXTENTS_LET_GO)) {
            slices.step().await;
        }
        if rooted.is_some() {
            self.note_free_memory(self.opener.count_memory().await.free_bytes);
        }
    }

    /// Drops checksums from memory whose footers are now under a root.
    fn seal(&self, long_runs: &[Run]) {
        let mut map = self.store.map.borrow_mut();
        for run in long_runs {
            let first = LeafId::of(run.volume, run.lba).leaf;
            let last = Lba(run.lba.0 + u64::from(run.blocks) - 1);
            for leaf in first..=LeafId::of(run.volume, last).leaf {
                let volume = run.volume;
                map.seal(LeafId { volume, leaf }, &mut |s| self.has_footer(s));
            }
        }
    }

    /// The same for the whole map, after an import.
    pub(crate) fn seal_all(&self) {
        let mut map = self.store.map.borrow_mut();
        let mut cursor = Some(LeafId::default());
        while let Some(leaf) = cursor.and_then(|from| map.leaves_from(from).next()) {
            map.seal(leaf, &mut |s| self.has_footer(s));
            cursor = leaf.next();
        }
    }

    /// Whether a segment's footer is on media and under a root.
    fn has_footer(&self, segment: SegmentId) -> bool {
        let info = self.store.table.get(segment);
        info.state == SegmentState::Full && info.footer && info.last <= self.sync.commit.get().0
    }

    /// Counts the blocks of sparse volumes again. Only the root that brings a group calls this:
    /// what is not under it stays in `promised_blocks`.
    pub(crate) fn space_after_group(&self) {
        self.count_sparse_blocks();
        self.dirty.space.group_is_rooted();
    }

    /// Counts the mapped blocks of sparse volumes and of snapshots, and what other volumes share
    /// with their snapshots: an overwrite takes space beside the reserved one.
    pub(crate) fn count_sparse_blocks(&self) {
        let map = self.store.map.borrow();
        let volumes = self.volumes.borrow();
        let taken = |version: VolumeId| match volumes.get(&version) {
            Some(volume) if !volume.sparse.get() => map.shared_blocks(version),
            _ => map.placed_blocks(version),
        };
        self.dirty.space.sparse_blocks.set(map.volumes().map(taken).sum());
    }

    /// Frees segments that no root needs. The root before the newest stays readable while there is
    /// space to spare.
    fn reclaim(self: &Rc<Self>, writers: &mut Writers, commit: CommitId) {
        let tight = self.is_tight(writers);
        let oldest = if tight { commit } else { CommitId(commit.0.saturating_sub(1)) };
        let trim = self.settings.get().autotrim;
        for segment in self.store.table.reclaimable(oldest) {
            // No root refers to it. It is discarded later, if it is still free then.
            let _ = self.store.array.reset_segment(segment);
            self.store.table.free(segment);
            if trim {
                self.trims.note(segment, commit);
            }
        }
        // Where space is short, segments are reused before a discard would help.
        if trim && !tight {
            self.trim_freed(commit);
        }
    }

    /// Writes the last root of a pool that is exported: the log is empty, and nothing follows.
    pub(crate) async fn write_last_root(&self, writers: &mut Writers) -> Result<(), CommitError> {
        self.store.array.flush().await?;
        self.store.array.check_writable()?;
        if self.stats.figures_are_due(true) {
            self.sync.config_dirty.set(true);
        }
        if self.sync.config_dirty.get() {
            self.write_configs().await?;
        }
        self.put_last_root(writers).await
    }

    async fn put_last_root(&self, writers: &mut Writers) -> Result<(), CommitError> {
        let (commit, txg) = (self.sync.commit.get().next(), self.sync.committed.get());
        self.tally(writers);
        let state = self.log.state(txg).encode();
        let root = self.superblock(JournalRange::of(writers), commit, txg, state, true);
        self.put_root(&root).await?;
        self.sync.commit.set(commit);
        Ok(())
    }

    /// Writes one more root, which marks the pool as destroyed. Until it is there the pool is an
    /// exported one, because a configuration without its root does not count. Log devices have no
    /// roots and are written last, so they are not free before the pool is gone.
    pub(crate) async fn write_destroyed_root(
        &self,
        writers: &mut Writers,
    ) -> Result<(), CommitError> {
        self.config.borrow_mut().destroyed = true;
        let (config, mut holders) = self.write_data_configs().await?;
        self.put_last_root(writers).await?;
        self.write_log_configs(&config, &mut holders).await;
        Ok(())
    }
}

/// Drops the oldest lines of history until the configuration fits its slot.
fn shorten(config: &mut PoolConfig) {
    const SPARE: usize = 4096;
    let fits = |config: &PoolConfig| {
        config.encode().len() + SPARE <= forebay_format::label::CONFIG_SLOT_BYTES as usize
    };
    while !fits(config) && !config.history.is_empty() {
        let half = config.history.len().div_ceil(2);
        config.history.drain(..half);
    }
}
