//! The corridor of an import: what the devices hold is judged, then a pool is put together from it
//! and the log's records are replayed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_array::{Array, GroupGeometry, GroupSpec as ArrayGroup, MemberState};
use forebay_array::{ErrorCounts, MemberSpec as ArrayMember, MemberStatus};
use forebay_format::config::{GroupConfig, MemberConfig, MemberUse, PoolConfig, RingConfig};
use forebay_format::footer::footer_blocks;
use forebay_format::label::{Heartbeat, SUPERBLOCK_SLOTS};
use forebay_format::map_record::MAX_VOLUME_BLOCKS;
use forebay_format::superblock::Superblock;
use forebay_intent_log::{IntentLog, LogConfig, LogRing, LogState, Side};
use forebay_rt as rt;
use forebay_rt::sync::{Mutex, Notify};
use forebay_segment::{Classes, DataWriter, InFlight, JournalWriter, Reader, STREAMS};
use forebay_txg::{Groups, Throttle};
use forebay_units::{
    BLOCK_BYTES, CommitId, DeviceId, FrameSeq, Lba, Nanos, TxgId, VolumeId, parse_bytes,
};

use crate::cleaning::journal_copies;
use crate::devices::parse_layout;
use crate::health::HealthState;
use crate::labels::{OpenDevice, Opener, read_label};
use crate::lineage::{History, one_history};
use crate::loading::{Loaded, load_map};
use crate::placing::{
    Found, check_complete, check_newest, leave_missing_logs, name_unreadable, newest_root,
    place_devices, select_pool, take_devices, with_what_lacks,
};
use crate::possession::{Claim, Gate, WATCH, check_not_in_use, is_being_imported};
use crate::replay::{OldLog, read_log};
use crate::scan::ScanState;
use crate::spec::ImportOptions;
use crate::stats::Stats;
use crate::status::ImportReport;
use crate::volume::VolumeState;
use crate::{Limits, Pool, PoolError, Space, SyncControl, Writers};

/// From this many segments on, blocks are separated by lifetime: below, the open segments of six
/// streams would take too large a share.
const SEPARATE_SEGMENTS: u32 = 512;

/// The most dirty data that a pool holds unless it is told otherwise.
pub(crate) const MOST_DIRTY_BYTES: u64 = 256 << 20;

/// Everything that a running pool is put together from.
pub(crate) struct Parts {
    pub gate: Rc<Gate>,
    pub nonce: u64,
    pub config: PoolConfig,
    pub devices: BTreeMap<DeviceId, OpenDevice>,
    pub log: IntentLog,
    pub root: Superblock,
    pub loaded: Loaded,
}

pub(crate) fn geometry_of(group: &GroupConfig) -> Result<GroupGeometry, PoolError> {
    let layout = parse_layout(&group.layout)
        .ok_or_else(|| PoolError::new(format!("layout '{}' is unknown", group.layout)))?;
    Ok(GroupGeometry {
        layout,
        members: group.members.len(),
        unit_bytes: group.unit_bytes,
        column_bytes: group.column_bytes,
        data_start_bytes: group.data_start_bytes,
        first_segment: group.first_segment,
        segments: group.segments,
    })
}

pub(crate) fn data_blocks(geometry: &GroupGeometry) -> u32 {
    let blocks = geometry.blocks_per_segment();
    blocks - footer_blocks(blocks)
}

/// The array of a configuration over the devices that are open. `stale` says which segments a
/// member misses.
pub(crate) fn build_array(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    stale: &dyn Fn(&MemberConfig) -> Vec<Range<u32>>,
) -> Result<Rc<Array>, PoolError> {
    let mut groups = Vec::new();
    for group in &config.groups {
        groups.push(build_array_group(group, devices, stale)?);
    }
    Ok(Array::new(groups)?)
}

/// One group of the array.
pub(crate) fn build_array_group(
    group: &GroupConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    stale: &dyn Fn(&MemberConfig) -> Vec<Range<u32>>,
) -> Result<ArrayGroup, PoolError> {
    let member = |member: &MemberConfig| {
        let id = DeviceId(member.device);
        ArrayMember {
            id,
            device: devices.get(&id).map(OpenDevice::device),
            state: match member.state {
                MemberUse::Online => MemberState::Online,
                MemberUse::Offline => MemberState::Offline,
                MemberUse::Faulted => MemberState::Faulted,
            },
            stale: stale(member),
            errors: ErrorCounts::default(),
        }
    };
    let slots = group.members.iter().map(|first| {
        let chain = std::iter::successors(Some(first), |m| m.replacement.as_deref());
        chain.map(member).collect::<Vec<_>>()
    });
    Ok(ArrayGroup { geometry: geometry_of(group)?, slots: slots.collect() })
}

/// Rings in the pool are numbered from here on, so that they are never taken for log devices.
pub(crate) const POOL_RINGS_FROM: u32 = 32;

/// Rings as the configuration keeps them.
pub(crate) fn ring_configs(config: &PoolConfig, rings: &[LogRing]) -> Vec<RingConfig> {
    let member = |side: &Side| crate::devices::member_of(config, side.device_id.0).cloned();
    let keep = |ring: &LogRing| RingConfig {
        ring: u32::from(ring.index),
        len_bytes: ring.len_bytes,
        start_bytes: ring.sides.first().map_or(0, |side| side.start_bytes),
        sides: ring.sides.iter().filter_map(member).collect(),
    };
    rings.iter().map(keep).collect()
}

/// The log's rings on the devices in use: log devices, or regions of the data devices.
pub(crate) fn log_rings_of(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> Vec<LogRing> {
    let side = |member: &MemberConfig, start_bytes: u64| {
        let device_id = DeviceId(member.device);
        let usable = member.state == MemberUse::Online;
        let device = devices.get(&device_id).filter(|_| usable)?.device();
        Some(Side { device_id, device, start_bytes })
    };
    if !config.logs.is_empty() {
        let rings = config.logs.iter().map(|ring| LogRing {
            index: ring.ring as u8,
            len_bytes: ring.len_bytes,
            sides: ring.sides.iter().filter_map(|s| side(s, ring.start_bytes)).collect(),
        });
        let rings: Vec<LogRing> = rings.filter(|ring| !ring.sides.is_empty()).collect();
        if !rings.is_empty() {
            return rings;
        }
    }
    // In the pool: as many copies as the group survives failures, and one; several such rings
    // when there are devices for them.
    const MOST_RINGS: usize = 4;
    let mut rings: Vec<LogRing> = Vec::new();
    for group in &config.groups {
        let Ok(geometry) = geometry_of(group) else { continue };
        let start = forebay_format::label::LABEL_BYTES;
        let stale = |m: &&MemberConfig| m.stale_since.is_none() && m.stale.is_empty();
        let sides: Vec<Side> =
            group.members.iter().filter(stale).filter_map(|m| side(m, start)).collect();
        let copies = geometry.parity_columns() + 1;
        for chunk in sides.chunks_exact(copies.min(sides.len()).max(1)) {
            if rings.len() < MOST_RINGS {
                rings.push(LogRing {
                    index: POOL_RINGS_FROM as u8 + rings.len() as u8,
                    len_bytes: config.reserve_bytes,
                    sides: chunk.to_vec(),
                });
            }
        }
    }
    rings
}

impl Pool {
    /// Imports the pool `name_or_guid` found on `paths`: reads the newest root and the map
    /// journal, replays the log, and serves. Refused when devices, or acknowledged writes, are
    /// missing.
    pub async fn import(
        opener: Rc<dyn Opener>,
        paths: &[String],
        name_or_guid: &str,
        options: &ImportOptions,
    ) -> Result<Rc<Pool>, PoolError> {
        let begun = rt::now();
        let gate = Gate::new(opener);
        let mut found = take_devices(&gate, paths).await;
        let keep = options.keep.as_deref();
        let selected = match select_pool(&found, name_or_guid) {
            Ok(selected) => selected,
            Err(error) => {
                let bad = name_unreadable(&gate, paths, &found).await;
                return Err(PoolError::new(error.message + &bad));
            }
        };
        let mut history = one_history(selected, keep)?;
        let chosen = choose_root(&history, name_or_guid, options)?;
        let (root, config) = &chosen;
        let elsewhere = !root.exported && root.host != gate.host();
        // A mark of nobody who has written a root: an import that is going on, or was cut short.
        let watched = elsewhere || is_being_imported(&history.devices, config.guid);
        if watched {
            check_not_in_use(&history.devices, &config.name, elsewhere, options).await?;
        }
        let (pool, name) = (config.guid, config.name.clone());
        let mut judged = judge(&history, chosen, gate.host(), options).await?;
        let nonce = rt::random_u64();
        // An owner that stood still looks here before it writes again.
        let mine = Heartbeat { pool, nonce, host: gate.host(), ..Heartbeat::default() };
        let claim = Claim::new(&history.devices, &name, &gate.possession, mine).await?;
        if watched {
            // Its owner may have come back while we read, and believes in itself until it looks at
            // the heartbeat again: what it did until then counts.
            rt::sleep(WATCH).await;
            claim.look().await?;
            for device in &mut found {
                device.label = read_label(&device.guarded.device).await;
            }
            let all: Vec<String> = found.iter().map(|device| device.path.clone()).collect();
            found.retain(|device| !device.label.configs.is_empty());
            let gone = |error: PoolError| {
                PoolError::new(format!(
                    "{error}; their labels cannot be read any more: {}; bring devices back",
                    all.join(", ")
                ))
            };
            history = one_history(select_pool(&found, name_or_guid).map_err(gone)?, keep)?;
            let chosen = choose_root(&history, name_or_guid, options)?;
            judged = judge(&history, chosen, gate.host(), options).await?;
        }
        let Judged {
            mut root,
            newest,
            mut config,
            devices,
            log_state,
            old_log,
            loaded,
            mut report,
        } = judged;
        history.goes_on(&mut config, nonce);
        drop(found);
        // Roots that are left behind (by -F, or by devices that return) must never win again. The
        // gap keeps what a crash left behind, frames and footers, from having the number of what
        // will be written now; its multiple of the slots keeps the rotation of the superblocks.
        let gap = SUPERBLOCK_SLOTS * (1 + rt::random_u64() % MOST_GAP);
        root.commit = CommitId(newest.commit.0 + gap);
        let log_config = LogConfig::new(config.guid);
        let waiting = IntentLog::empty_state(
            &log_config,
            &[],
            newest.epoch + 1 + rt::random_below(EPOCH_GAP) as u32,
            log_state.committed,
            log_state.next_seq,
        );
        let log = IntentLog::start(log_config, &[], &waiting)?;
        // Whoever has taken it meanwhile has left a mark: nothing but ours was written yet.
        claim.look().await?;
        for (addr, bytes) in &loaded.repairs {
            // A failed repair leaves what there was: the journal has been read all the same.
            let _ = loaded.array.repair(*addr, bytes).await;
        }
        let parts = Parts { gate, nonce, config, devices, log, root, loaded };
        let pool = Pool::assemble(parts)?;
        pool.sync.rooted.set(newest.rooted);
        pool.recover(&log_state, old_log, &mut report).await.map_err(|e| pool.ended_by(e))?;
        claim.look().await?;
        drop(claim);
        pool.seal_all();
        report.seconds = rt::now().since(begun).as_secs_f64();
        report.remarks.iter().for_each(|r| pool.health.remark(r.clone()));
        *pool.stats.import.borrow_mut() = report;
        pool.start();
        Ok(pool)
    }

    /// Replays the log into groups, commits them, and starts the log anew.
    async fn recover(
        self: &Rc<Self>,
        state: &LogState,
        old: OldLog,
        report: &mut ImportReport,
    ) -> Result<(), PoolError> {
        *self.health.replaying.borrow_mut() = Some(state.clone());
        // What was found out about members while placing them must be under the next root.
        self.sync.config_dirty.set(true);
        let begun = rt::now();
        self.replay(old, state).await?;
        report.replay_seconds += rt::now().since(begun).as_secs_f64();
        self.health.replayed.set(true);
        self.cut_leftovers().await;
        // The old log counts until the root of the last replayed group starts the new one.
        self.restart_log_wanted();
        self.sync_group().await?;
        if self.health.replaying.borrow().is_some() {
            return Err(PoolError::new("the log could not be started; see its devices"));
        }
        Ok(())
    }

    /// An import that ended when it went to write: which devices it could not use.
    fn ended_by(&self, error: PoolError) -> PoolError {
        let status = self.array.status();
        let config = self.config.borrow();
        let mut message = format!("pool '{}' cannot be imported: {error}", config.name);
        type Lacks = fn(&MemberStatus) -> bool;
        let lists: [(&str, Lacks); 2] = [
            ("out of use", |s| s.name.is_none() || s.state != MemberState::Online),
            ("behind the others, and not rebuilt yet", |s| s.stale_segments > 0),
        ];
        for (lack, lacks) in lists {
            let who = status.iter().filter(|s| lacks(s));
            let who = who.filter_map(|s| config.data_members().find(|m| m.device == s.id.0));
            let who: Vec<&str> = who.map(|m| m.path.as_str()).collect();
            if !who.is_empty() {
                message.push_str(&format!("; {lack}: {}", who.join(", ")));
            }
        }
        message.push_str(
            "; bring devices back, or make room where device files lie, and import it again",
        );
        PoolError::new(message)
    }

    /// What volumes have that are gone by the configuration, and what lies past the end of the others:
    /// a root of the cleaner may have brought the new configuration, and a crash have come before the
    /// group that was to cut them.
    async fn cut_leftovers(&self) {
        let mut writers = self.writers.lock().await;
        let map = self.map.borrow();
        let volumes = self.volumes.borrow();
        for id in map.volumes() {
            match volumes.get(&id) {
                None => writers.dropped.push(id),
                Some(volume) => {
                    let end = Self::blocks_of(volume.size_bytes.get());
                    if map.mapped_within(id, Lba(end), MAX_VOLUME_BLOCKS - end) > 0 {
                        writers.truncated.push((id, end));
                    }
                }
            }
        }
    }

    /// Puts a pool together; nothing runs yet.
    pub(crate) fn assemble(parts: Parts) -> Result<Rc<Pool>, PoolError> {
        let Parts { gate, nonce, config, devices, log, root, loaded } = parts;
        let Loaded { array, table, map, journal: journal_segments, doubled, .. } = loaded;
        let in_flight = InFlight::new(64 << 20);
        let guid = config.guid;
        let separate = table.len() >= SEPARATE_SEGMENTS;
        let data = (0..STREAMS).map(|stream| {
            DataWriter::new(array.clone(), table.clone(), in_flight.clone(), guid, stream)
        });
        let data = data.collect();
        let (of_array, of_table) = (array.clone(), table.clone());
        let mut journal = JournalWriter::new(of_array, of_table, in_flight.clone(), guid);
        if let Some(end) = root.journal_end {
            journal.resume(end, journal_segments, doubled);
        }
        let volumes: BTreeMap<VolumeId, Rc<VolumeState>> =
            config.volumes.iter().map(|v| (VolumeId(v.id), VolumeState::new(v))).collect();
        let (limits, dirty_limit, usable_blocks) = limits_for(&config, &array);
        let pool = Rc::new(Pool {
            guid,
            gate,
            reader: Reader::new(array.clone(), table.clone(), guid, footer_cache_bytes(&config)),
            in_flight,
            classes: Classes::new(separate),
            map: map.into(),
            groups: Groups::new(root.txg.next()).into(),
            throttle: Throttle::new(dirty_limit),
            log,
            volumes: volumes.into(),
            writers: Mutex::new(Writers {
                data,
                journal,
                journal_start: root.journal_start,
                checkpoint: None,
                relocations: Vec::new(),
                dropped: Vec::new(),
                truncated: Vec::new(),
            }),
            sync: SyncControl {
                wake: Notify::new(),
                wanted: TxgId(0).into(),
                committed: root.txg.into(),
                commit: root.commit.into(),
                rooted: root.commit.into(),
                done: Notify::new(),
                config_dirty: false.into(),
                config_written: (root.config_generation, root.config_sum).into(),
                root_wanted: false.into(),
                ended: false.into(),
            },
            limits: limits.into(),
            stopped: None.into(),
            closing: false.into(),
            stats: Stats::new(&root.counters, &config.figures),
            space: Space::default(),
            health: HealthState::restored(&config.lost),
            scan: ScanState::restored(config.scan.as_ref()),
            trims: crate::trimming::Trims::default(),
            nonce,
            admin: Mutex::new(()),
            tasks: Vec::new().into(),
            heart: None.into(),
            closed: false.into(),
            config: config.into(),
            devices: devices.into(),
            array,
            table,
        });
        pool.space.usable_blocks.set(usable_blocks);
        pool.refresh_space();
        pool.apply_properties();
        for id in pool.volumes.borrow().keys() {
            // A volume that the journal does not name yet is all holes.
            let _ = pool.map.borrow_mut().create_volume(*id);
        }
        pool.space_after_group();
        Ok(pool)
    }

    /// Starts the tasks of a pool.
    pub(crate) fn start(self: &Rc<Self>) {
        let tasks = vec![
            rt::spawn(self.clone().sync_loop()),
            rt::spawn(self.clone().health_loop()),
            rt::spawn(self.clone().scan_loop()),
        ];
        self.tasks.borrow_mut().extend(tasks);
        *self.heart.borrow_mut() = Some(rt::spawn(self.clone().heartbeat_loop()));
    }

    /// The log's rings as the configuration has them now.
    pub(crate) fn log_rings(&self) -> Vec<LogRing> {
        log_rings_of(&self.config.borrow(), &self.devices.borrow())
    }

    /// Counts reserved blocks anew.
    pub(crate) fn refresh_space(&self) {
        let volumes = self.volumes.borrow();
        let thick = volumes.values().filter(|v| !v.sparse);
        self.space.reserved_blocks.set(thick.map(|v| Self::blocks_of(v.size_bytes.get())).sum());
    }
}

/// Limits, the dirty limit in bytes, and blocks that data may take.
fn footer_cache_bytes(config: &PoolConfig) -> u64 {
    const AUTO: u64 = 64 << 20;
    let set = config.properties.get("footer_cache").and_then(|v| parse_bytes(v).ok());
    set.unwrap_or(AUTO)
}

pub(crate) fn limits_for(config: &PoolConfig, array: &Array) -> (Limits, u64, u64) {
    const LEAST_DIRTY: u64 = 4 << 20;
    let groups = array.groups();
    let segments: u64 = groups.iter().map(|g| u64::from(g.segments)).sum();
    let blocks: u64 =
        groups.iter().map(|g| u64::from(g.segments) * u64::from(data_blocks(g))).sum();
    let auto = (blocks * BLOCK_BYTES / 16).clamp(LEAST_DIRTY, MOST_DIRTY_BYTES);
    let set = config.properties.get("dirty_limit").and_then(|v| parse_bytes(v).ok());
    let dirty_limit = set.unwrap_or(auto).max(LEAST_DIRTY);
    let per_segment = (blocks / segments.max(1)).max(1);
    let dirty_segments = (dirty_limit / BLOCK_BYTES).div_ceil(per_segment);
    let streams = if segments >= u64::from(SEPARATE_SEGMENTS) { u64::from(STREAMS) } else { 2 };
    // What the cleaner works in when nothing else is free, and what only the journal may take.
    let copies = journal_copies(&groups);
    let (reserve, map_reserve) = (3, 3 * copies);
    // The open streams, one group, the journal (about 1 % of what is mapped), and 1/24 so that the
    // cleaner never works on segments that are all alive.
    let journal = copies * (2 + segments / 80);
    let kept = streams + 2 + map_reserve + dirty_segments + journal + 4 + segments / 24;
    let limits = Limits {
        txg_timeout: Nanos::from_secs(5),
        txg_bytes: dirty_limit / 3,
        reserve_segments: reserve as u32,
        map_reserve_segments: map_reserve as u32,
    };
    (limits, dirty_limit, segments.saturating_sub(kept) * per_segment)
}

/// All that an import reads before it writes anything: who is told no finds the pool as it was.
struct Judged {
    root: Superblock,
    newest: Newest,
    config: PoolConfig,
    devices: BTreeMap<DeviceId, OpenDevice>,
    log_state: LogState,
    old_log: OldLog,
    loaded: Loaded,
    report: ImportReport,
}

/// The highest numbers found on any device.
#[derive(Clone, Copy)]
struct Newest {
    /// Left behind or not: the next root must be above it.
    commit: CommitId,
    /// On all data members in use: whoever has it misses nothing of the next one.
    rooted: CommitId,
    epoch: u32,
}

/// Takes into the state that the root has of the log what heartbeats say of it since: frames that were
/// durable must be there, though the log's devices may know nothing of them any more.
fn note_progress(state: &mut LogState, devices: &[&Found], pool: u64) {
    let beats = devices.iter().filter_map(|found| found.label.beat.as_ref());
    let marks = beats.filter(|beat| beat.pool == pool).map(|beat| beat.log);
    for mark in marks.filter(|mark| mark.epoch == state.epoch) {
        state.watermark = state.watermark.max(mark.watermark);
        state.next_seq = state.next_seq.max(FrameSeq(state.watermark.0.saturating_add(1)));
    }
}

/// Most of the gap that an import leaves in the numbers of roots, in rounds of the superblocks'
/// slots: 2^29 numbers at most, so there is room for 2^35 imports, and two that go on from the
/// same root meet once in 16 million.
const MOST_GAP: u64 = 1 << 24;

/// Most of the gap in the log's epochs: two halves of a pool that go on apart and share a log device
/// shall not take each other's frames for their own.
const EPOCH_GAP: u64 = 256;

fn choose_root(
    history: &History<'_>,
    name_or_guid: &str,
    options: &ImportOptions,
) -> Result<(Superblock, PoolConfig), PoolError> {
    newest_root(&history.devices, options.rewind_groups)
        .map_err(|e| PoolError::new(format!("pool '{name_or_guid}' cannot be imported: {e}")))
}

async fn judge(
    history: &History<'_>,
    (root, mut config): (Superblock, PoolConfig),
    host: u64,
    options: &ImportOptions,
) -> Result<Judged, PoolError> {
    let mine = &history.devices;
    if config.destroyed {
        return Err(PoolError::new(format!("pool '{}' was destroyed", config.name)));
    }
    check_newest(&config, mine, &root, host, options)?;
    let mut devices = BTreeMap::new();
    let rooted = place_devices(&mut config, mine, &root, &mut devices);
    check_complete(&config, &devices, &root, options)?;
    if options.accept_log_loss {
        leave_missing_logs(&mut config, &devices);
    }
    let mut report = ImportReport::default();
    let (mut log_state, _) = LogState::decode(&root.log_state)?;
    if options.rewind_groups == 0 {
        note_progress(&mut log_state, mine, root.pool);
    }
    let old_log = match root.exported {
        true => OldLog::none(),
        false => read_log(&config, &devices, &log_state, options, &mut report).await?,
    };
    let loaded = load_map(&config, &devices, &root, &mut report).await;
    let loaded = loaded.map_err(|error| with_what_lacks(error, &config, &devices))?;
    let roots = || mine.iter().flat_map(|f| &f.label.roots);
    let epochs = roots().filter_map(|r| LogState::decode(&r.log_state).ok());
    let highest = roots().map(|r| r.commit).max().unwrap_or(root.commit);
    let newest = Newest {
        commit: history.highest.max(highest),
        rooted,
        epoch: epochs.map(|(state, _)| state.epoch).max().unwrap_or(0).max(log_state.epoch),
    };
    Ok(Judged { root, newest, config, devices, log_state, old_log, loaded, report })
}
