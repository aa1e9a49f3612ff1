//! The corridor of an import: labels, the newest root, the map journal, the log's replay.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use forebay_array::{Array, GroupConfig as ArrayGroup, GroupGeometry, MemberState};
use forebay_array::{ErrorCounts, MemberConfig as ArrayMember};
use forebay_device::{BlockDevice, Deadline, Device, DeviceError, ErrorKind, Operation};
use forebay_format::config::{GroupConfig, MemberConfig, MemberUse, PoolConfig, RingConfig};
use forebay_format::footer::footer_blocks;
use forebay_format::journal::{FrameKind, SegmentRecord};
use forebay_format::label::{Heartbeat, SUPERBLOCK_SLOTS};
use forebay_format::map_record::{Delta, decode_leaves};
use forebay_format::superblock::{JournalPosition, Superblock};
use forebay_intent_log::{IntentLog, LogConfig, LogRing, LogState, Side};
use forebay_map::Map;
use forebay_rt as rt;
use forebay_rt::sync::{Mutex, Notify};
use forebay_segment::{
    Classes, DataWriter, InFlight, JournalReader, JournalWriter, Reader, STREAMS, SegmentTable,
};
use forebay_txg::{Groups, Throttle};
use forebay_units::{
    BLOCK_BYTES, BlockAddr, CommitId, DeviceId, Nanos, SegmentId, TxgId, VolumeId, parse_bytes,
};

use crate::devices::parse_layout;
use crate::health::HealthState;
use crate::labels::{Label, OpenDevice, Opener, open_in_time, read_beat, read_label, write_beat};
use crate::possession::{Possession, WATCH, fence};
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
    pub opener: Rc<dyn Opener>,
    pub possession: Rc<Possession>,
    pub nonce: u64,
    pub config: PoolConfig,
    pub devices: BTreeMap<DeviceId, OpenDevice>,
    pub log: IntentLog,
    pub root: Superblock,
    pub loaded: Loaded,
}

/// What the devices hold of the map, and what follows from it.
pub(crate) struct Loaded {
    pub array: Rc<Array>,
    pub table: Rc<SegmentTable>,
    pub map: Map,
    /// Segments of the map journal.
    pub journal: Vec<JournalPosition>,
    /// Blocks of the journal that some device holds otherwise than they should be.
    pub repairs: Vec<(BlockAddr, Vec<u8>)>,
}

impl Loaded {
    /// Of a pool without data.
    pub fn empty(array: Rc<Array>) -> Self {
        let table = empty_table(&array);
        Self { array, table, map: Map::new(), journal: Vec::new(), repairs: Vec::new() }
    }
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

fn empty_table(array: &Array) -> Rc<SegmentTable> {
    let table = SegmentTable::new();
    for geometry in array.groups() {
        table.add_group(geometry.segments, data_blocks(&geometry));
    }
    table
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
        let copies = (geometry.parity_columns() + 1).min(4);
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

/// A device found with a label of the pool.
pub(crate) struct Found {
    pub path: String,
    pub deadline: Rc<Deadline>,
    pub label: Label,
}

/// Reads the labels of all devices at `paths` that can be opened.
pub(crate) async fn find_devices(opener: &Rc<dyn Opener>, paths: &[String]) -> Vec<Found> {
    let mut found = Vec::new();
    for path in paths {
        let Ok(deadline) = open_in_time(opener, path) else { continue };
        let device: Device = deadline.clone();
        let label = read_label(&device).await;
        if !label.configs.is_empty() {
            found.push(Found { path: path.clone(), deadline, label });
        }
    }
    found
}

/// The root that counts among those found, and the configuration that belongs to it.
pub(crate) fn newest_root(
    found: &[&Found],
    rewind: u64,
) -> Result<(Superblock, PoolConfig), PoolError> {
    let mut roots: Vec<&Superblock> = found.iter().flat_map(|f| &f.label.roots).collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.commit));
    roots.dedup_by_key(|root| root.commit);
    let Some(root) = roots.into_iter().nth(rewind as usize) else {
        return Err(PoolError::new("no readable superblock"));
    };
    let config = found.iter().find_map(|f| f.label.config(root.config_generation, root.config_sum));
    // Going on to an older root would silently take back what this one committed.
    let config = config.ok_or_else(|| {
        PoolError::new(format!(
            "root {} needs generation {} of the configuration, and no device has it",
            root.commit, root.config_generation
        ))
    })?;
    Ok((root.clone(), config.clone()))
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
        let (opener, possession) = fence(opener);
        let mut found = find_devices(&opener, paths).await;
        let mine = select_pool(&found, name_or_guid)?;
        let (root, config) = newest_root(&mine, options.rewind_groups).map_err(|e| {
            PoolError::new(format!("pool '{name_or_guid}' cannot be imported: {e}"))
        })?;
        let elsewhere = !root.exported && root.host != opener.host();
        if elsewhere {
            check_not_in_use(&mine, &config.name, options).await?;
        }
        let mut judged = judge(&mine, opener.host(), name_or_guid, options).await?;
        let nonce = rt::random_u64();
        // An owner that stood still looks here before it writes again.
        possession.follow(claim(&mine, config.guid, nonce, opener.host()).await);
        if elsewhere {
            // Its owner may have come back while we read, and believes in itself until it looks at
            // the heartbeat again: what it did until then counts.
            check_still_ours(&mine, &config.name, nonce).await?;
            for device in &mut found {
                let again: Device = device.deadline.clone();
                device.label = read_label(&again).await;
            }
            found.retain(|device| !device.label.configs.is_empty());
            let mine = select_pool(&found, name_or_guid)?;
            judged = judge(&mine, opener.host(), name_or_guid, options).await?;
        }
        drop(found);
        let Judged { mut root, newest, config, devices, log_state, old_log, loaded, mut report } =
            judged;
        // Roots that are left behind (by -F, or by devices that return) must never win again. The
        // gap keeps what a crash left behind, frames and footers, from having the number of what
        // will be written now; its multiple of the slots keeps the rotation of the superblocks.
        let gap = SUPERBLOCK_SLOTS * (1 + rt::random_u64() % MOST_GAP);
        root.commit = CommitId(newest.commit.0 + gap);
        let log_config = LogConfig::new(config.guid);
        let waiting = IntentLog::empty_state(
            &log_config,
            &[],
            newest.epoch + 1,
            log_state.committed,
            log_state.next_seq,
        );
        let log = IntentLog::start(log_config, &[], &waiting)?;
        for (addr, bytes) in &loaded.repairs {
            // A failed repair leaves what there was: the journal has been read all the same.
            let _ = loaded.array.repair(*addr, bytes).await;
        }
        let parts = Parts { opener, possession, nonce, config, devices, log, root, loaded };
        let pool = Pool::assemble(parts)?;
        pool.sync.rooted.set(newest.commit);
        pool.recover(&log_state, old_log, &mut report).await?;
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
        // The old log counts until the root of the last replayed group starts the new one.
        self.restart_log_wanted();
        self.sync_group().await?;
        if self.health.replaying.borrow().is_some() {
            return Err(PoolError::new("the log could not be started; see its devices"));
        }
        Ok(())
    }

    /// Puts a pool together; nothing runs yet.
    pub(crate) fn assemble(parts: Parts) -> Result<Rc<Pool>, PoolError> {
        let Parts { opener, possession, nonce, config, devices, log, root, loaded } = parts;
        let Loaded { array, table, map, journal: journal_segments, .. } = loaded;
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
            journal.resume(end, journal_segments);
        }
        let volumes: BTreeMap<VolumeId, Rc<VolumeState>> =
            config.volumes.iter().map(|v| (VolumeId(v.id), VolumeState::new(v))).collect();
        let (limits, dirty_limit, usable_blocks) = limits_for(&config, &array);
        let pool = Rc::new(Pool {
            guid,
            opener,
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
            stats: Stats::new(&root.counters),
            space: Space::default(),
            health: HealthState::new(),
            scan: ScanState::restored(config.scan.as_ref()),
            nonce,
            possession,
            admin: Mutex::new(()),
            tasks: Vec::new().into(),
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
        Ok(pool)
    }

    /// Starts the tasks of a pool.
    pub(crate) fn start(self: &Rc<Self>) {
        let tasks = vec![
            rt::spawn(self.clone().sync_loop()),
            rt::spawn(self.clone().health_loop()),
            rt::spawn(self.clone().heartbeat_loop()),
            rt::spawn(self.clone().scan_loop()),
        ];
        self.tasks.borrow_mut().extend(tasks);
    }

    /// The log's rings as the configuration has them now.
    pub(crate) fn log_rings(&self) -> Vec<LogRing> {
        log_rings_of(&self.config.borrow(), &self.devices.borrow())
    }

    /// Counts reserved and sparse blocks anew.
    pub(crate) fn refresh_space(&self) {
        let volumes = self.volumes.borrow();
        let map = self.map.borrow();
        let thick = volumes.values().filter(|v| !v.sparse);
        self.space.reserved_blocks.set(thick.map(|v| Self::blocks_of(v.size_bytes.get())).sum());
        let sparse = volumes.values().filter(|v| v.sparse);
        self.space.sparse_blocks.set(sparse.map(|v| map.mapped_blocks(v.id)).sum());
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
    let (reserve, map_reserve) = (streams + 2, 3);
    // The open streams, one group, the journal (about 1 % of what is mapped), and 1/24 so that the
    // cleaner never works on segments that are all alive.
    let kept = reserve + map_reserve + dirty_segments + 2 + 4 + segments / 80 + segments / 24;
    let limits = Limits {
        txg_timeout: Nanos::from_secs(5),
        txg_bytes: dirty_limit / 3,
        reserve_segments: reserve as u32,
        map_reserve_segments: map_reserve as u32,
    };
    (limits, dirty_limit, segments.saturating_sub(kept) * per_segment)
}

fn select_pool<'a>(found: &'a [Found], name_or_guid: &str) -> Result<Vec<&'a Found>, PoolError> {
    let matches = |f: &&Found| {
        let (envelope, config) = &f.label.configs[0];
        config.name == name_or_guid || envelope.pool.to_string() == name_or_guid
    };
    let mine: Vec<&Found> = found.iter().filter(matches).collect();
    let Some(first) = mine.first() else {
        return Err(PoolError::new(format!(
            "no pool '{name_or_guid}' was found; 'pool import' without a name lists what is there"
        )));
    };
    let guid = first.label.configs[0].0.pool;
    if mine.iter().any(|f| f.label.configs[0].0.pool != guid) {
        return Err(PoolError::new(format!(
            "more than one pool is named '{name_or_guid}'; import it by its number"
        )));
    }
    Ok(mine)
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
    commit: CommitId,
    epoch: u32,
}

/// Most of the gap that an import leaves in the numbers of roots, in rounds of the superblocks'
/// slots: 2^29 numbers at most, so there is room for 2^35 imports, and two that go on from the
/// same root meet once in 16 million.
const MOST_GAP: u64 = 1 << 24;

async fn judge(
    mine: &[&Found],
    host: u64,
    name_or_guid: &str,
    options: &ImportOptions,
) -> Result<Judged, PoolError> {
    let (root, mut config) = newest_root(mine, options.rewind_groups)
        .map_err(|e| PoolError::new(format!("pool '{name_or_guid}' cannot be imported: {e}")))?;
    if config.destroyed {
        return Err(PoolError::new(format!("pool '{}' was destroyed", config.name)));
    }
    check_newest(&config, mine, &root, host, options)?;
    let mut devices = BTreeMap::new();
    place_devices(&mut config, mine, &root, &mut devices);
    check_complete(&config, &devices, &root, options)?;
    if options.accept_log_loss {
        leave_missing_logs(&mut config, &devices);
    }
    let mut report = ImportReport::default();
    let (log_state, _) = LogState::decode(&root.log_state)?;
    let old_log = match root.exported {
        true => OldLog::none(),
        false => read_log(&config, &devices, &log_state, options, &mut report).await?,
    };
    let loaded = load_map(&config, &devices, &root, &mut report).await?;
    let roots = || mine.iter().flat_map(|f| &f.label.roots);
    let epochs = roots().filter_map(|r| LogState::decode(&r.log_state).ok());
    let newest = Newest {
        commit: roots().map(|r| r.commit).max().unwrap_or(root.commit),
        epoch: epochs.map(|(state, _)| state.epoch).max().unwrap_or(0).max(log_state.epoch),
    };
    Ok(Judged { root, newest, config, devices, log_state, old_log, loaded, report })
}

/// Refuses a pool that another machine has imported and not exported, unless that machine is
/// silent and the operator says so. (On one machine the devices' locks do.)
async fn check_not_in_use(
    found: &[&Found],
    name: &str,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    let before = beats(found).await;
    rt::sleep(WATCH).await;
    if beats(found).await != before {
        return Err(PoolError::new(format!(
            "pool '{name}' is imported on another machine and in use there; export it there first"
        )));
    }
    if !options.force && options.known.is_none() {
        return Err(PoolError::new(format!(
            "pool '{name}' was last used by another machine and not exported; that machine is \
             silent now: use -f to import it if you are sure that it is off"
        )));
    }
    Ok(())
}

/// After the claim: waits until an owner that has come back has looked at the heartbeat, and
/// refuses when a mark of ours is gone.
async fn check_still_ours(found: &[&Found], name: &str, nonce: u64) -> Result<(), PoolError> {
    let marked = marks(found, nonce).await;
    rt::sleep(WATCH).await;
    let left = marks(found, nonce).await;
    if marked.iter().zip(&left).all(|(marked, left)| *left || !*marked) {
        return Ok(());
    }
    Err(PoolError::new(format!(
        "pool '{name}' is imported on another machine that has come back meanwhile; export it \
         there, or turn that machine off and try again"
    )))
}

/// Which devices have our mark.
async fn marks(found: &[&Found], nonce: u64) -> Vec<bool> {
    let mut marks = Vec::new();
    for found in found {
        let device: Device = found.deadline.clone();
        marks.push(read_beat(&device).await.is_some_and(|beat| beat.nonce == nonce));
    }
    marks
}

/// Writes a first heartbeat to every device found. Gives the nonces of those that lay there.
async fn claim(found: &[&Found], pool: u64, nonce: u64, host: u64) -> Vec<u64> {
    let devices: Vec<Device> = found.iter().map(|found| found.deadline.clone() as Device).collect();
    let mut before = BTreeSet::new();
    for device in &devices {
        before.extend(
            read_beat(device).await.filter(|held| held.pool == pool).map(|held| held.nonce),
        );
    }
    let beat = Heartbeat { pool, nonce, host, beat: 0 };
    for device in &devices {
        // One that fails here fails the next root too, which deals with it.
        let _ = write_beat(device, &beat).await;
    }
    before.into_iter().collect()
}

async fn beats(found: &[&Found]) -> Vec<Option<u64>> {
    let mut beats = Vec::new();
    for found in found {
        let device: Device = found.deadline.clone();
        beats.push(read_beat(&device).await.map(|beat| beat.beat));
    }
    beats
}

/// Gives every member of the configuration its device, by label.
fn place_devices(
    config: &mut PoolConfig,
    found: &[&Found],
    root: &Superblock,
    devices: &mut BTreeMap<DeviceId, OpenDevice>,
) {
    let place = |member: &mut MemberConfig, data: bool, devices: &mut BTreeMap<_, _>| {
        // When two devices carry the same id (a copy), the one with the newer root counts.
        let newest = |f: &&&Found| {
            (f.label.roots.first().map(|r| r.commit), f.label.configs[0].0.generation)
        };
        let best = found
            .iter()
            .filter(|f| f.label.configs[0].0.device == member.device)
            .max_by_key(newest);
        // One that was cut short is as good as missing.
        let whole = |f: &&&Found| f.deadline.geometry().size_bytes >= member.size_bytes;
        let Some(best) = best.filter(whole) else { return };
        member.path.clone_from(&best.path);
        devices.insert(DeviceId(member.device), OpenDevice::new(&best.path, best.deadline.clone()));
        if data {
            let last = best.label.roots.first().map_or(CommitId(0), |r| r.commit);
            // Everything up to the root before the newest was flushed to all members in use, so a
            // member one root behind misses nothing. One further behind is an old copy.
            if last < root.previous && member.state == MemberUse::Online {
                let since = member.stale_since.map_or(last.0, |s| s.min(last.0));
                member.stale_since = Some(since);
            }
        } else if best.label.configs[0].0.generation < root.config_generation {
            // A log side that missed a configuration missed frames with it.
            member.state = MemberUse::Faulted;
        }
    };
    // The log that is to be replayed may lie on devices that have left since: whatever became of
    // them later, every acknowledged frame is on all of them.
    for side in config.log_rings.iter().flat_map(|ring| &ring.sides) {
        let same = found.iter().filter(|f| f.label.configs[0].0.device == side.device);
        let best = same.max_by_key(|f| f.label.configs[0].0.generation);
        if let Some(best) = best {
            let open = OpenDevice::new(&best.path, best.deadline.clone());
            devices.insert(DeviceId(side.device), open);
        }
    }
    let data = config.groups.iter_mut().flat_map(|g| &mut g.members).map(|m| (m, true));
    let logs = config.logs.iter_mut().flat_map(|r| &mut r.sides).map(|m| (m, false));
    for (member, data) in data.chain(logs) {
        let mut at = Some(member);
        while let Some(member) = at {
            place(member, data, devices);
            at = member.replacement.as_deref_mut();
        }
    }
}

/// Refuses a root that may be older than the last one: the devices that are missing may know more.
fn check_newest(
    config: &PoolConfig,
    found: &[&Found],
    root: &Superblock,
    host: u64,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    if options.force || options.rewind_groups > 0 {
        return Ok(());
    }
    // A generation is written just before the root that names it; two ahead proves newer roots.
    let newer = found
        .iter()
        .find(|f| f.label.configs.iter().any(|(e, _)| e.generation > root.config_generation + 1));
    if let Some(newer) = newer {
        return Err(PoolError::new(format!(
            "pool '{}' cannot be imported: {} knows of changes that are newer than the newest \
             root found; the devices that hold newer data are missing: bring them back, or use -f \
             to go back to what is here",
            config.name, newer.path
        )));
    }
    // One ahead may be a change whose root was never written; but not when it marks every device
    // that this root was read from as left behind.
    let holders = found.iter().filter(|f| f.label.roots.iter().any(|r| r.commit == root.commit));
    let holders: Vec<u32> = holders.map(|f| f.label.configs[0].0.device).collect();
    let next = found.iter().flat_map(|f| &f.label.configs).find(|(envelope, newer)| {
        let left = |id: &u32| {
            let member = newer.data_members().find(|m| m.device == *id);
            member.is_none_or(|m| m.state != MemberUse::Online || m.stale_since.is_some())
        };
        envelope.generation > root.config_generation && holders.iter().all(left)
    });
    if next.is_some() {
        return Err(PoolError::new(format!(
            "pool '{}' cannot be imported: the devices that are here were left behind by others \
             that are missing and hold newer data; bring those back, or use -f to go back to what \
             is here",
            config.name
        )));
    }
    let here = |m: &MemberConfig| found.iter().any(|f| f.label.configs[0].0.device == m.device);
    // A log device that is here is a witness: it is told of every member that leaves.
    let online = |m: &&MemberConfig| m.state == MemberUse::Online;
    let witness = config.logs.iter().flat_map(|r| &r.sides).filter(online).any(here);
    // A member that this very root calls left behind cannot have gone on alone since: it would
    // have had to be rebuilt first, and the members that are here would know of that.
    let current = |m: &&MemberConfig| online(m) && m.stale_since.is_none();
    let members: Vec<&MemberConfig> = config.data_members().filter(current).collect();
    let missing: Vec<&str> = members.iter().filter(|m| !here(m)).map(|m| m.path.as_str()).collect();
    // The list of known pools is one, too, as long as no other machine had the pool since.
    let told = |generation: u64| {
        generation > 0 && root.host == host && root.config_generation >= generation
    };
    let witness = witness || options.known.is_some_and(told);
    if witness || 2 * missing.len() < members.len().max(1) {
        return Ok(());
    }
    Err(PoolError::new(format!(
        "pool '{}': half of its devices or more are missing ({}), and they may hold newer data \
         than those that are here; bring them back, or use -f if you are sure that they do not",
        config.name,
        missing.join(", ")
    )))
}

fn check_complete(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    root: &Superblock,
    options: &ImportOptions,
) -> Result<(), PoolError> {
    let absent = |member: &&MemberConfig| !devices.contains_key(&DeviceId(member.device));
    for group in &config.groups {
        let geometry = geometry_of(group)?;
        let usable = |m: &&MemberConfig| !absent(m) && m.state == MemberUse::Online;
        let good = group.members.iter().filter(usable).count();
        if good < geometry.data_columns().max(1) {
            let missing: Vec<&str> =
                group.members.iter().filter(absent).map(|m| m.path.as_str()).collect();
            return Err(PoolError::new(format!(
                "pool '{}' cannot be imported: its {} of {} devices needs {} of them, {good} are \
                 usable; missing: {}; bring devices back (-d DIR says where to look)",
                config.name,
                group.layout,
                group.members.len(),
                geometry.data_columns().max(1),
                if missing.is_empty() { "none".to_owned() } else { missing.join(", ") },
            )));
        }
    }
    if options.accept_log_loss {
        return Ok(());
    }
    let paths = |ring: &RingConfig| -> String {
        ring.sides.iter().map(|m| m.path.as_str()).collect::<Vec<_>>().join(", ")
    };
    if root.exported {
        // Nothing of it counts, but a pool that goes on without its log device is another pool
        // than the one that was exported: that is for the operator to say.
        let in_use = |ring: &&RingConfig| ring.sides.iter().any(|m| m.state == MemberUse::Online);
        let gone = |ring: &&RingConfig| ring.sides.iter().all(|m| absent(&m));
        if let Some(ring) = config.logs.iter().filter(in_use).find(gone) {
            return Err(PoolError::new(format!(
                "pool '{}' cannot be imported: its log device is missing ({}); no data is lost \
                 with it, for the pool was exported: bring it back (-d DIR says where to look), \
                 or use 'pool import -m' to go on without it",
                config.name,
                paths(ring)
            )));
        }
        return Ok(());
    }
    for ring in config.log_rings.iter().filter(|ring| ring.ring < POOL_RINGS_FROM) {
        if ring.sides.iter().all(|m| absent(&m)) {
            return Err(PoolError::new(format!(
                "pool '{}' cannot be imported: its log device is missing ({}), and with it writes \
                 that were acknowledged after {}; bring it back (-d DIR says where to look), or \
                 use 'pool import -m' to lose them",
                config.name,
                paths(ring),
                root.txg
            )));
        }
    }
    Ok(())
}

/// Log devices that the pool was told to go on without are out of use from now on, so that the
/// next import need not be told again.
fn leave_missing_logs(config: &mut PoolConfig, devices: &BTreeMap<DeviceId, OpenDevice>) {
    for side in config.logs.iter_mut().flat_map(|ring| &mut ring.sides) {
        if side.state == MemberUse::Online && !devices.contains_key(&DeviceId(side.device)) {
            side.state = MemberUse::Faulted;
        }
    }
}

/// Reads the map journal, and from it which segments hold what.
async fn load_map(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    root: &Superblock,
    report: &mut ImportReport,
) -> Result<Loaded, PoolError> {
    // Which segments a member misses is known only after the journal has been read: until then a
    // member that misses anything is asked for nothing.
    let end = config.groups.iter().map(|g| g.first_segment + g.segments).max().unwrap_or(0);
    let everything = 0..end;
    let cautious = |m: &MemberConfig| match m.stale_since {
        Some(_) => vec![everything.clone()],
        None => m.stale.iter().map(|(a, b)| *a..*b).collect(),
    };
    let array = build_array(config, devices, &cautious)?;
    let mut map = Map::new();
    let mut records: BTreeMap<SegmentId, SegmentRecord> = BTreeMap::new();
    let (mut journal, mut repairs) = (Vec::new(), Vec::new());
    if let (Some(start), Some(end)) = (root.journal_start, root.journal_end) {
        let mut reader = JournalReader::new(array.clone(), config.guid, start, end);
        while let Some(frame) = reader.next().await? {
            let payload = frame.payload();
            match frame.kind() {
                FrameKind::Delta => map.apply(&Delta::decode(payload)?),
                FrameKind::Leaves => {
                    decode_leaves(payload)?.iter().for_each(|image| map.load_leaf(image));
                }
                FrameKind::Segments => {
                    for record in SegmentRecord::decode_all(payload)? {
                        records.insert(record.segment, record);
                    }
                }
                FrameKind::Pad | FrameKind::Jump => {}
            }
        }
        report.map_bytes = reader.bytes();
        repairs = reader.take_repairs();
        journal = reader.segments().to_vec();
    }
    let journal_segments: Vec<SegmentId> = journal.iter().map(|at| at.addr.segment()).collect();
    let table = empty_table(&array);
    let corrupt = |detail: String| {
        let kind = ErrorKind::Corrupt { detail };
        PoolError::from(DeviceError::new("map journal", Operation::Read, 0, 0, kind))
    };
    for record in records.values() {
        let is_journal = journal_segments.contains(&record.segment);
        let mut record = *record;
        if record.kind == 2 && !is_journal {
            record.kind = 0;
        }
        if !table.load_record(&record) {
            return Err(corrupt(format!("names segment {}", record.segment)));
        }
    }
    for segment in &journal_segments {
        if table.get(*segment).state == forebay_segment::SegmentState::Free {
            table.reopen(*segment);
            table.close(*segment, false);
        }
        // What the journal says of its own segments is one root old: rows written since then must
        // be rebuilt and scrubbed as well.
        let geometry = array.geometry_of(*segment)?;
        let last = root.journal_end.filter(|end| end.addr.segment() == *segment);
        let rows = last.map_or(geometry.rows(), |end| end.addr.block() / geometry.blocks_per_row());
        table.wrote(*segment, rows, root.commit);
    }
    let mut bad = None;
    map.for_each(|volume, lba, addr, blocks| {
        if addr.segment().0 >= table.len() {
            bad.get_or_insert(format!("block {lba} of volume {volume} is at {addr}"));
            return;
        }
        table.add_live(addr, blocks);
        if table.get(addr.segment()).state == forebay_segment::SegmentState::Free {
            bad.get_or_insert(format!(
                "block {lba} of volume {volume} is in segment {}, which is free",
                addr.segment()
            ));
        }
    });
    if let Some(detail) = bad {
        return Err(corrupt(detail));
    }
    let exact = |m: &MemberConfig| {
        let mut stale: Vec<Range<u32>> = m.stale.iter().map(|(a, b)| *a..*b).collect();
        if let Some(since) = m.stale_since {
            table.for_each(|segment, info| {
                let is_journal = journal_segments.contains(&segment);
                let in_use = info.state != forebay_segment::SegmentState::Free;
                // The journal's own records are one root behind.
                if in_use && (info.last >= since || is_journal) {
                    stale.push(segment.0..segment.0 + 1);
                }
            });
        }
        stale
    };
    let array = build_array(config, devices, &exact)?;
    Ok(Loaded { array, table, map, journal, repairs })
}
