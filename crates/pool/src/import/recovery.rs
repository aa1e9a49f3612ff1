//! Recovery: a pool is assembled from what an import has read, and the log is replayed.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_array::{MemberState, MemberStatus};
use forebay_format::config::PoolConfig;
use forebay_format::superblock::Superblock;
use forebay_intent_log::{IntentLog, LogRing, LogState};
use forebay_map::{DEDUP_VOLUME, LEAF_BLOCKS, PACKED_VOLUME};
use forebay_rt as rt;
use forebay_rt::sync::{Mutex, Notify};
use forebay_segment::{Classes, DataWriter, InFlight, JournalWriter, Reader, STREAMS};
use forebay_txg::{Groups, Throttle};
use forebay_units::{DeviceId, Lba, TxgId, VolumeId};

use crate::Pool;
use crate::commit::MOST_IN_FLIGHT_BYTES;
use crate::dedup::Dedup;
use crate::health::HealthState;
use crate::import::error::{ImportErrorKind, RecoveryError};
use crate::import::load_map::Loaded;
use crate::import::replay::OldLog;
use crate::layout::{SEPARATE_SEGMENTS, limits_for, log_rings_of};
use crate::opener::{FencedOpener, OpenDevice};
use crate::packed::Packed;
use crate::read_ahead::{READERS_AHEAD, ReadAhead};
use crate::read_cache::ReadCache;
use crate::resume::Continued;
use crate::scrub::ScanState;
use crate::settings::Settings;
use crate::snapshots::Snapshots;
use crate::space::Space;
use crate::state::{DirtyData, Lifecycle, Store, SyncControl, Writers};
use crate::status::ImportReport;
use crate::status::stats::Stats;
use crate::volume::VolumeState;

/// The parts that a running pool is assembled from.
pub(crate) struct Parts {
    pub opener: Rc<FencedOpener>,
    pub nonce: u64,
    pub config: PoolConfig,
    pub devices: BTreeMap<DeviceId, OpenDevice>,
    pub log: IntentLog,
    pub root: Superblock,
    pub loaded: Loaded,
}

impl SyncControl {
    /// The state of a pool whose last commit is `root`.
    fn after(root: &Superblock) -> Self {
        Self {
            wake: Notify::new(),
            wanted: TxgId(0).into(),
            committed: root.txg.into(),
            commit: root.commit.into(),
            rooted: root.commit.into(),
            done: Notify::new(),
            config_dirty: false.into(),
            config_written: (root.config_generation, root.config_sum).into(),
            overtakes: false.into(),
            written: Default::default(),
            root_wanted: false.into(),
            version: root.version.into(),
            ended: false.into(),
        }
    }
}

impl Pool {
    /// Replays the log into groups, takes what a suspended pool had in memory, commits all that,
    /// and starts the log anew. Writes `first_roots` roots before, over those that the import
    /// leaves behind.
    pub(super) async fn recover(
        self: &Rc<Self>,
        state: &LogState,
        old: OldLog,
        first_roots: u64,
        continued: Option<&Continued<'_>>,
        report: &mut ImportReport,
    ) -> Result<(), RecoveryError> {
        *self.health.replaying.borrow_mut() = Some(state.clone());
        // The states of members that the device match found must be under the next root.
        self.sync.config_dirty.set(true);
        self.sync.overtakes.set(first_roots > 0);
        for _ in 0..first_roots {
            // Segments that only a newer root uses are free here, and its part of the journal
            // begins where this one goes on. After a power cut that root would count, and must miss
            // nothing: no block and no frame is written before it is gone.
            let (mut writers, txg) = (self.writers.lock().await, self.sync.committed.get());
            self.write_root(&mut writers, txg, false).await?;
        }
        let begun = rt::now();
        self.replay(old, state).await?;
        report.replay_seconds += rt::now().since(begun).as_secs_f64();
        if let Some(continued) = continued {
            // The log may be incomplete where memory is not, and counts until memory is under a
            // root. What is replayed must not share that root's memory.
            self.sync_group().await?;
            continued.hand_over(self);
        }
        self.health.replayed.set(true);
        self.cut_leftovers().await;
        // The old log counts until the root of the last replayed group starts the new one.
        self.restart_log_wanted();
        self.sync_group().await?;
        if self.health.replaying.borrow().is_some() {
            return Err(RecoveryError::LogNotStarted);
        }
        Ok(())
    }

    /// The error of an import that failed after it began to write, with the devices that it could
    /// not use.
    pub(super) fn ended_by(&self, error: RecoveryError) -> ImportErrorKind {
        let status = self.store.array.status();
        let config = self.config.borrow();
        let paths = |lacks: fn(&MemberStatus) -> bool| {
            let lacking = status.iter().filter(|s| lacks(s));
            let member = |s: &MemberStatus| config.data_members().find(|m| m.device == s.id.0);
            lacking.filter_map(member).map(|m| m.path.clone()).collect()
        };
        ImportErrorKind::Recovery {
            error: Box::new(error),
            out_of_use: paths(|s| s.name.is_none() || s.state != MemberState::Online),
            behind: paths(|s| s.stale_segments > 0),
        }
    }

    /// Drops blocks of destroyed volumes and blocks past the end of cut ones. A cleaning root may
    /// have brought the new configuration before a crash prevented the group that would have cut
    /// them. It has brought the end of their snapshots as well: every root has their records.
    async fn cut_leftovers(&self) {
        let mut writers = self.writers.lock().await;
        let known: Vec<VolumeId> = self.store.map.borrow().volumes().collect();
        for id in known {
            let size_bytes = self.volumes.borrow().get(&id).map(|volume| volume.size_bytes.get());
            match size_bytes {
                None if self.snapshots.contains(id) => {}
                None if id == DEDUP_VOLUME || id == PACKED_VOLUME => {}
                None => writers.dropped.push(id),
                Some(size_bytes) => {
                    let end = Self::blocks_of(size_bytes);
                    if self.shows_blocks_from(id, Lba(end)).await {
                        writers.truncated.push((id, end));
                    }
                }
            }
        }
    }

    /// Whether a volume has a block from `end` on that is no hole. A clone may have all of them
    /// from its origin.
    async fn shows_blocks_from(&self, volume: VolumeId, end: Lba) -> bool {
        const LEAF: u64 = LEAF_BLOCKS as u64;
        let mut slices = rt::Slices::new();
        let mut from = end;
        loop {
            let leaf = self.store.map.borrow().next_entry(volume, from);
            let Some(leaf) = leaf else { return false };
            let (first, next) = (leaf.max(end), Lba(leaf.0 + LEAF));
            if self.store.map.borrow().visible_within(volume, first, next.0 - first.0) > 0 {
                return true;
            }
            slices.step().await;
            from = next;
        }
    }

    /// Assembles a pool. No task runs yet.
    pub(crate) fn assemble(parts: Parts) -> Rc<Pool> {
        let Parts { opener, nonce, config, devices, log, root, loaded } = parts;
        let Loaded { array, table, map, snapshots, fingerprints, doubled, lacks_copies, .. } =
            loaded;
        let settings = Settings::of(&config.properties);
        let in_flight = InFlight::new(MOST_IN_FLIGHT_BYTES);
        let guid = config.guid;
        let separate = table.count() >= SEPARATE_SEGMENTS;
        let data = (0..STREAMS).map(|stream| {
            DataWriter::new(array.clone(), table.clone(), in_flight.clone(), guid, stream)
        });
        let data = data.collect();
        let (of_array, of_table) = (array.clone(), table.clone());
        let mut journal = JournalWriter::new(of_array, of_table, in_flight.clone(), guid);
        match root.journal_end {
            Some(end) if array.can_extend(end.addr.segment()) => {
                journal.resume(end, loaded.journal, doubled);
            }
            // An operator has given up members that have a part of it.
            Some(end) => journal.leave(end, loaded.journal),
            None => {}
        }
        let volumes: BTreeMap<VolumeId, Rc<VolumeState>> =
            config.volumes.iter().map(|v| (VolumeId(v.id), VolumeState::new(v))).collect();
        let (limits, dirty_limit, usable_blocks) = limits_for(&config);
        let reader = Reader::new(array.clone(), table.clone(), guid, settings.footer_cache);
        let classes = Classes::new(separate);
        let dedup = Dedup::restored(guid, &map, &fingerprints, settings.dedup_index_size);
        let (packed, packer) = Packed::restored(&map);
        let store = Store { array, table, reader, in_flight, classes, map: map.into() };
        let pool = Rc::new(Pool {
            guid,
            nonce,
            opener,
            devices: devices.into(),
            volumes: volumes.into(),
            snapshots: Snapshots::restored(snapshots),
            dirty: DirtyData {
                groups: Groups::new(root.txg.next()).into(),
                throttle: Throttle::new(dirty_limit),
                space: Space::default(),
            },
            log,
            store,
            dedup,
            packed,
            cache: ReadCache::new(settings.cache_policy),
            cache_devices: Default::default(),
            read_ahead: ReadAhead::default(),
            writers: Mutex::new(Writers::new(data, journal, root.journal_start, packer)),
            sync: SyncControl::after(&root),
            limits: limits.into(),
            settings: settings.into(),
            trims: crate::commit::Trims::default(),
            scan: ScanState::restored(config.scan.as_ref()),
            health: HealthState::restored(&config.lost),
            spares: Default::default(),
            stats: Stats::new(&root.counters, &config.figures),
            lifecycle: Lifecycle::default(),
            admin: Mutex::new(()),
            config: config.into(),
        });
        pool.dirty.space.usable_blocks.set(usable_blocks);
        pool.scan.copies_wanted.set(lacks_copies);
        pool.complete();
        pool
    }

    /// What follows from the parts of a pool that was just assembled.
    fn complete(&self) {
        self.refresh_space();
        self.apply_properties();
        for id in self.volumes.borrow().keys().chain([&DEDUP_VOLUME, &PACKED_VOLUME]) {
            // A volume that the journal does not name yet is all holes.
            let _ = self.store.map.borrow_mut().create_volume(*id);
        }
        for id in self.volumes.borrow().keys() {
            self.link_versions(*id);
        }
        self.space_after_group();
    }

    /// Starts the tasks of a pool. `caches` are cache devices that are open already.
    pub(crate) fn start(self: &Rc<Self>, caches: Vec<OpenDevice>) {
        self.stop_when_taken_over();
        let tasks = vec![
            rt::spawn(self.clone().sync_loop()),
            rt::spawn(self.clone().pace_loop()),
            rt::spawn(self.clone().health_loop()),
            rt::spawn(self.clone().scan_loop()),
            rt::spawn(self.clone().label_check_loop()),
            rt::spawn(self.clone().log_mark_loop()),
            rt::spawn(self.clone().log_memory_loop()),
            rt::spawn(self.clone().remote_log_loop()),
            rt::spawn(self.clone().spare_loop()),
            rt::spawn(self.clone().cache_size_loop()),
        ];
        let readers = (0..READERS_AHEAD).map(|_| rt::spawn(self.clone().read_ahead_loop()));
        self.lifecycle.tasks.borrow_mut().extend(tasks.into_iter().chain(readers));
        self.start_cache_devices(caches);
        *self.lifecycle.heartbeat_task.borrow_mut() =
            Some(rt::spawn(self.clone().heartbeat_loop()));
    }

    /// The log's rings by the present configuration.
    pub(crate) fn log_rings(&self) -> Vec<LogRing> {
        log_rings_of(&self.config.borrow(), &self.devices.borrow())
    }

    /// Counts reserved blocks again.
    pub(crate) fn refresh_space(&self) {
        let volumes = self.volumes.borrow();
        let thick = volumes.values().filter(|v| !v.sparse.get());
        self.dirty
            .space
            .reserved_blocks
            .set(thick.map(|v| Self::blocks_of(v.size_bytes.get())).sum());
    }
}
