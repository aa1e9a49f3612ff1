//! Creation: devices are checked, labels are written, and the first root.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_array::ArrayError;
use forebay_device::Device;
use forebay_format::checksum::crc64;
use forebay_format::config::{
    CacheConfig, FiguresConfig, GroupConfig, Lineage, LostConfig, MemberConfig, MemberUse,
    PoolConfig, RingConfig, SpareConfig,
};
use forebay_format::label::Heartbeat;
use forebay_format::superblock::{COUNTERS, Superblock, VERSION};
use forebay_intent_log::{IntentLog, LogConfig};
use forebay_multihost::leave_heartbeat;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, CommitId, DeviceId, FrameSeq, Layout, OwnerNonce, TxgId};

use crate::admin::caches::{clear_header, write_header};
use crate::admin::candidate::{
    Candidate, cache_owner_of, open_candidate, owner_of, release_all, reserve_all,
};
use crate::admin::error::{AdminError, CandidateError};
use crate::admin::properties::{POOL_PROPERTIES, check_pool_name, check_property};
use crate::cache_devices::read_header;
use crate::import::load_map::Loaded;
use crate::import::recovery::Parts;
use crate::labels::{
    WriteThroughError, clear_label, give_back, read_label, write_config, write_root, write_through,
};
use crate::layout::{
    LayoutError, POOL_RINGS_FROM, UNIT_BYTES, build_array, check_ids, geometry_of, group_shape,
    log_range, log_rings_of, reserve_bytes, ring_configs,
};
use crate::opener::{FencedOpener, OpenDevice};
use crate::spec::{GroupSpec, LogSpec, PoolSpec};
use crate::state::WrittenLabels;
use crate::{Opener, Pool};

/// The devices of a specification, opened.
#[derive(Default)]
pub(crate) struct Opened {
    pub groups: Vec<(GroupSpec, Vec<Candidate>)>,
    pub logs: Vec<(LogSpec, Vec<Candidate>)>,
    pub caches: Vec<Candidate>,
    pub spares: Vec<Candidate>,
}

impl Opened {
    /// All of them.
    pub fn devices(&self) -> Vec<Device> {
        let groups = self.groups.iter().flat_map(|(_, devices)| devices);
        groups.chain(self.logs.iter().flat_map(|(_, sides)| sides)).map(Candidate::device).collect()
    }

    /// The cache devices, which keep what they have open.
    pub fn cache_devices(&self) -> Vec<OpenDevice> {
        let open =
            |candidate: &Candidate| OpenDevice::new(&candidate.path, candidate.guarded.clone());
        self.caches.iter().map(open).collect()
    }
}

/// Refuses groups of another kind, or groups that survive fewer failures, than others of the pool,
/// unless forced: a pool is as good as its worst group, and a group that was added by mistake
/// cannot be removed. Logs, caches and spares are added whatever the groups are.
pub(crate) fn check_alike(there: &[GroupConfig], spec: &PoolSpec) -> Result<(), AdminError> {
    if spec.force || spec.groups.is_empty() {
        return Ok(());
    }
    // What is left of a mirror is a single device.
    let kind = |group: &GroupConfig| match (group.layout, group.members.len()) {
        (Layout::Mirror, 1) => (Layout::Raid0, 1),
        other => other,
    };
    let before = there.iter().map(kind);
    let after = spec.groups.iter().map(|group| (group.layout, group.devices.len()));
    let all: Vec<(Layout, usize)> = before.chain(after).collect();
    let layouts: BTreeSet<Layout> = all.iter().map(|(layout, _)| *layout).collect();
    if layouts.len() > 1 {
        return Err(AdminError::UnlikeKinds { kinds: layouts.into_iter().collect() });
    }
    let survives = all.iter().map(|(layout, devices)| layout.parity_columns(*devices));
    match (survives.clone().min(), survives.max()) {
        (Some(least), Some(most)) if least != most => Err(AdminError::UnlikeGroups { least, most }),
        _ => Ok(()),
    }
}

/// Opens all devices of a specification. Writes nothing.
pub(crate) async fn open_spec(
    opener: &FencedOpener,
    spec: &PoolSpec,
) -> Result<Opened, AdminError> {
    let mut seen = BTreeSet::new();
    let names = spec.groups.iter().flat_map(|g| &g.devices);
    let logs = spec.logs.iter().flat_map(|l| &l.devices);
    for path in names.chain(logs).chain(&spec.caches).chain(&spec.spares) {
        if !seen.insert(path) {
            return Err(AdminError::NamedTwice { device: path.clone() });
        }
    }
    let mut opened = Opened::default();
    for group in &spec.groups {
        let mut devices = Vec::new();
        for path in &group.devices {
            devices.push(open_candidate(opener, path, spec.force).await?);
        }
        opened.groups.push((group.clone(), devices));
    }
    for log in &spec.logs {
        let mut devices = Vec::new();
        for path in &log.devices {
            devices.push(open_candidate(opener, path, spec.force).await?);
        }
        opened.logs.push((log.clone(), devices));
    }
    for path in &spec.caches {
        opened.caches.push(open_candidate(opener, path, spec.force).await?);
    }
    for path in &spec.spares {
        // A spare is taken only while it is empty, so -f changes nothing here.
        let spare = open_candidate(opener, path, false).await.map_err(|error| match error {
            CandidateError::OwnedByPool { .. } | CandidateError::NotEmpty { .. } => {
                AdminError::SpareNotEmpty(error)
            }
            other => other.into(),
        });
        opened.spares.push(spare?);
    }
    Ok(opened)
}

pub(crate) fn member(config: &mut PoolConfig, candidate: &Candidate) -> MemberConfig {
    let device = config.next_device;
    config.next_device += 1;
    MemberConfig {
        device,
        path: candidate.path.clone(),
        size_bytes: candidate.size_bytes,
        state: MemberUse::Online,
        stale_since: None,
        stale: Vec::new(),
        replacement: None,
    }
}

/// Adds the groups and logs of `opened` to a configuration. Returns the ids of their devices.
pub(crate) fn add_to_config(
    config: &mut PoolConfig,
    opened: &Opened,
) -> Result<BTreeMap<DeviceId, OpenDevice>, AdminError> {
    let mut devices = BTreeMap::new();
    for (spec, candidates) in &opened.groups {
        let smallest = candidates.iter().map(|c| c.size_bytes).min().unwrap_or(0);
        let layout = spec.layout;
        let data_columns = layout.data_columns(candidates.len()).max(1);
        let first = config.groups.first().map(geometry_of);
        let like = first.map(|g| u64::from(g.blocks_per_segment()) * BLOCK_BYTES);
        let (data_start_bytes, column_bytes, segments) =
            group_shape(smallest, config.reserve_bytes, data_columns, like);
        let first_segment = config.groups.iter().map(|g| g.first_segment + g.segments).max();
        let members: Vec<MemberConfig> =
            candidates.iter().map(|candidate| member(config, candidate)).collect();
        for (member, candidate) in members.iter().zip(candidates) {
            let open = OpenDevice::new(&candidate.path, candidate.guarded.clone());
            devices.insert(DeviceId(member.device), open);
        }
        let group = GroupConfig {
            layout,
            unit_bytes: UNIT_BYTES,
            column_bytes,
            data_start_bytes,
            first_segment: first_segment.unwrap_or(0),
            segments,
            members,
        };
        let checked = geometry_of(&group).check().map_err(ArrayError::from);
        checked.map_err(LayoutError::from)?;
        check_ids(&group)?;
        config.groups.push(group);
    }
    for (_, candidates) in &opened.logs {
        // The number is used neither by the configuration nor by the present log. After the log has
        // started anew, the epoch tells old frames apart, and a number is free again.
        let used: BTreeSet<u32> =
            config.logs.iter().chain(&config.log_rings).map(|r| r.ring).collect();
        let ring = (0..).find(|ring| !used.contains(ring)).unwrap_or(POOL_RINGS_FROM);
        let smallest = candidates.iter().map(|c| c.size_bytes).min().unwrap_or(0);
        let (start_bytes, len_bytes) = log_range(smallest);
        let sides: Vec<MemberConfig> =
            candidates.iter().map(|candidate| member(config, candidate)).collect();
        for (side, candidate) in sides.iter().zip(candidates) {
            let open = OpenDevice::new(&candidate.path, candidate.guarded.clone());
            devices.insert(DeviceId(side.device), open);
        }
        config.logs.push(RingConfig { ring, len_bytes, start_bytes, sides });
    }
    for candidate in &opened.caches {
        let (path, size_bytes) = (candidate.path.clone(), candidate.size_bytes);
        let device = config.next_device;
        config.next_device += 1;
        let (state, nonce, added_at) = (MemberUse::Online, rt::random_u64(), rt::wall_clock());
        config.caches.push(CacheConfig { device, path, size_bytes, state, nonce, added_at });
    }
    for Candidate { path, size_bytes, .. } in &opened.spares {
        if config.spares.iter().any(|spare| spare.path == *path) {
            return Err(AdminError::NamedTwice { device: path.clone() });
        }
        config.spares.push(SpareConfig { path: path.clone(), size_bytes: *size_bytes });
    }
    if config.logs.iter().any(|ring| ring.ring >= POOL_RINGS_FROM) {
        return Err(AdminError::TooManyLogs { limit: POOL_RINGS_FROM });
    }
    Ok(devices)
}

impl Pool {
    /// Clears the labels of the device at `path`. Fails if the device is in use or has no label,
    /// and without `force` if its pool still counts.
    pub async fn clear_label(
        opener: Rc<dyn Opener>,
        path: &str,
        force: bool,
    ) -> Result<(), AdminError> {
        // Nothing is written to a device without a label.
        let opener = FencedOpener::new(opener);
        let device = open_candidate(&opener, path, true).await?.device();
        let label = read_label(&device).await;
        let cache_of = cache_owner_of(&device).await;
        if label.current().is_none() && cache_of.is_none() {
            return Err(AdminError::NoLabel { device: path.to_owned() });
        }
        if let Some(pool) = owner_of(&label).or(cache_of).filter(|_| !force) {
            let device = path.to_owned();
            return Err(CandidateError::OwnedByPool { device, pool }.into());
        }
        opener.monitor().set_owner(OwnerNonce(rt::random_u64()));
        let devices = [device];
        reserve_all(&opener, &devices, force).await?;
        let cleared = clear_label(&devices[0]).await;
        release_all(&opener, &devices).await;
        Ok(cleared?)
    }
}

/// A region for the log on a device that belongs to no pool yet.
pub(crate) struct LogPlace {
    pub device: Device,
    pub start_bytes: u64,
    pub len_bytes: u64,
}

/// The regions of a new pool's log: on the log devices or, without any, on the data devices.
fn log_places(config: &PoolConfig, devices: &BTreeMap<DeviceId, OpenDevice>) -> Vec<LogPlace> {
    let place = |member: &MemberConfig, start_bytes: u64, len_bytes: u64| {
        let id = DeviceId(member.device);
        LogPlace { device: devices[&id].device(), start_bytes, len_bytes }
    };
    if config.logs.is_empty() {
        let start_bytes = forebay_format::label::LABEL_BYTES;
        return config
            .data_members()
            .map(|member| place(member, start_bytes, config.reserve_bytes))
            .collect();
    }
    let sides = config.logs.iter().flat_map(|ring| ring.sides.iter().map(move |s| (ring, s)));
    sides.map(|(ring, side)| place(side, ring.start_bytes, ring.len_bytes)).collect()
}

/// Reserves `devices`, then prepares the log on those of `places`. If that fails or is canceled,
/// all of it is given back.
pub(crate) async fn take_devices(
    opener: &FencedOpener,
    devices: &[Device],
    places: &[LogPlace],
    force: bool,
) -> Result<(), AdminError> {
    reserve_all(opener, devices, force).await?;
    let prepared = prepare_log(opener, places).await;
    if prepared.is_err() {
        release_all(opener, devices).await;
    }
    prepared
}

/// Clears the labels of the log's devices and allocates its regions. If that fails or is canceled,
/// all regions are given back.
async fn prepare_log(opener: &FencedOpener, places: &[LogPlace]) -> Result<(), AdminError> {
    for place in places {
        clear(&place.device).await?;
    }
    for (done, place) in places.iter().enumerate() {
        let LogPlace { device, start_bytes, len_bytes } = place;
        let outcome = write_through(opener, device, *start_bytes, *len_bytes).await;
        let Err(error) = outcome else { continue };
        give_back_all(&places[..done]).await;
        return Err(match error {
            WriteThroughError::Device(error) if !opener.is_unwanted() => {
                AdminError::LogPlace(error)
            }
            WriteThroughError::Device(_) | WriteThroughError::Unwanted => AdminError::Interrupted,
        });
    }
    Ok(())
}

/// Gives back the regions of a log that does not come about.
pub(crate) async fn give_back_all(places: &[LogPlace]) {
    for place in places {
        give_back(&place.device, place.start_bytes, place.len_bytes).await;
    }
}

/// Clears the label of a device that is about to join a pool.
pub(crate) async fn clear(device: &Device) -> Result<(), CandidateError> {
    clear_label(device).await.map_err(CandidateError::NotWritable)
}

/// Clears the labels of a new pool's data devices, where its log has not done so already.
async fn clear_data_devices(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> Result<(), CandidateError> {
    if !config.logs.is_empty() {
        for member in config.data_members() {
            clear(&devices[&DeviceId(member.device)].device()).await?;
        }
    }
    Ok(())
}

/// Takes what was written of a pool that does not come about from its devices. One that cannot be
/// written keeps it: the command says already which.
async fn clear_all(pool: u64, devices: &[Device], caches: &[Device]) {
    for device in devices {
        let _ = clear_label(device).await;
    }
    for cache in caches {
        if read_header(cache).await.is_ok_and(|header| header.pool == pool) {
            clear_header(cache).await;
        }
    }
}

/// The configuration and the devices of a new pool, before anything is written.
async fn checked(opener: &FencedOpener, name: &str, spec: &PoolSpec) -> Result<Opened, AdminError> {
    check_pool_name(name)?;
    for (property, value) in &spec.properties {
        check_property(POOL_PROPERTIES, property, value)?;
    }
    if spec.groups.is_empty() || spec.groups.iter().any(|g| g.devices.is_empty()) {
        return Err(AdminError::NoDevice);
    }
    check_alike(&[], spec)?;
    open_spec(opener, spec).await
}

/// The configuration of a new pool, before its devices are added.
fn empty_config(name: &str, spec: &PoolSpec, opened: &Opened) -> PoolConfig {
    let smallest = opened.groups.iter().flat_map(|(_, d)| d).map(|c| c.size_bytes).min();
    PoolConfig {
        name: name.to_owned(),
        guid: rt::random_u64() | 1,
        generation: 1,
        created_at: rt::wall_clock(),
        groups: Vec::new(),
        reserve_bytes: reserve_bytes(smallest.unwrap_or(0)),
        logs: Vec::new(),
        log_rings: Vec::new(),
        spares: Vec::new(),
        caches: Vec::new(),
        properties: spec.properties.clone(),
        volumes: Vec::new(),
        next_device: 0,
        next_volume: 1,
        history: Vec::new(),
        scan: None,
        lineage: Lineage::default(),
        lost: LostConfig::default(),
        figures: FiguresConfig::default(),
        scrubbed_at: 0,
        destroyed: false,
    }
}

impl Pool {
    /// Fails as [`Pool::create`] would before it writes. Writes nothing itself.
    pub async fn check_new(
        opener: Rc<dyn Opener>,
        name: &str,
        spec: &PoolSpec,
    ) -> Result<(), AdminError> {
        checked(&FencedOpener::new(opener), name, spec).await.map(|_| ())
    }

    /// Creates a pool and imports it. Writes nothing before everything has been checked.
    pub async fn create(
        opener: Rc<dyn Opener>,
        name: &str,
        spec: &PoolSpec,
    ) -> Result<Rc<Pool>, AdminError> {
        let opener = FencedOpener::new(opener);
        let opened = checked(&opener, name, spec).await?;
        let mut config = empty_config(name, spec, &opened);
        let nonce = rt::random_u64();
        opener.monitor().set_owner(OwnerNonce(nonce));
        crate::import::divergence::begin(&mut config, nonce, CommitId(0));
        let devices = add_to_config(&mut config, &opened)?;
        let caches = opened.cache_devices();
        drop(opened);
        // The step that takes long and can be canceled comes first: until it is done, the other
        // devices are unchanged.
        let all: Vec<Device> = devices.values().map(OpenDevice::device).collect();
        let places = log_places(&config, &devices);
        take_devices(&opener, &all, &places, spec.force).await?;
        let on_caches: Vec<Device> = caches.iter().map(OpenDevice::device).collect();
        let pool = config.guid;
        let made = match clear_data_devices(&config, &devices).await {
            Err(error) => Err(error.into()),
            Ok(()) => {
                let made = Self::on_cleared(opener.clone(), nonce, config, devices, caches).await;
                if made.is_err() {
                    clear_all(pool, &all, &on_caches).await;
                }
                made
            }
        };
        if made.is_err() {
            give_back_all(&places).await;
            release_all(&opener, &all).await;
        }
        made
    }

    /// Writes a new pool to devices that were cleared for it, and starts it.
    async fn on_cleared(
        opener: Rc<FencedOpener>,
        nonce: u64,
        mut config: PoolConfig,
        devices: BTreeMap<DeviceId, OpenDevice>,
        caches: Vec<OpenDevice>,
    ) -> Result<Rc<Self>, AdminError> {
        let rings = log_rings_of(&config, &devices);
        config.log_rings = ring_configs(&config, &rings);
        for (cache, open) in config.caches.iter().zip(&caches) {
            write_header(&config, cache, open).await?;
        }
        let heartbeat = Heartbeat { pool: config.guid, nonce, host: opener.host(), beat: 0 };
        for (id, open) in &devices {
            // A machine that watches this device alone sees it leave the pool.
            leave_heartbeat(&open.device(), &heartbeat).await?;
            write_config(&open.device(), id.0, &config).await?;
        }
        let array = build_array(&config, &devices, &|_| Vec::new())?;
        let log_config = LogConfig::new(config.guid);
        let state = IntentLog::empty_state(&log_config, &rings, 1, TxgId(0), FrameSeq(1));
        let root = Superblock {
            version: VERSION,
            pool: config.guid,
            commit: CommitId(1),
            previous: CommitId(0),
            txg: TxgId(0),
            config_generation: 1,
            config_sum: crc64(&config.encode()),
            journal_start: None,
            journal_end: None,
            exported: false,
            written_at: rt::wall_clock(),
            nonce,
            host: opener.host(),
            counters: [0; COUNTERS],
            log_state: state.encode(),
        };
        for member in config.data_members() {
            let open = &devices[&DeviceId(member.device)];
            write_root(&open.device(), &root).await?;
        }
        let written = WrittenLabels {
            config: Some(((1, root.config_sum), devices.keys().copied().collect())),
            root: Some((root.clone(), config.data_members().map(|m| DeviceId(m.device)).collect())),
        };
        let log = IntentLog::start(log_config, &rings, &state)?;
        let loaded = Loaded::empty(array);
        let parts = Parts { opener, nonce, config, devices, log, root, loaded };
        let pool = Pool::assemble(parts);
        pool.note_log_sides(&rings);
        *pool.sync.written.borrow_mut() = written;
        pool.start(caches);
        Ok(pool)
    }
}
