//! Device match: which devices an import has, which of their roots counts, and whether that is
//! enough.

use std::collections::{BTreeMap, BTreeSet};

use forebay_array::ArrayError;
use forebay_device::{DeviceError, ErrorKind, IoBuf};
use forebay_format::cache_device::CacheHeader;
use forebay_format::config::{MemberConfig, MemberUse, PoolConfig, RingConfig};
use forebay_format::superblock::{Superblock, VERSION};
use forebay_rt as rt;
use forebay_units::{CommitId, DeviceId, Nanos, SegmentId};

use crate::cache_devices::read_header;
use crate::import::divergence::told;
use crate::import::error::{ImportErrorKind, Lacking, MapLoadError, Witness};
use crate::import::found::Found;
use crate::import::load_map::Loaded;
use crate::labels::{Label, read_label};
use crate::layout::{POOL_RINGS_FROM, geometry_of};
use crate::opener::{FencedOpener, OpenDevice};
use crate::spec::{ImportOptions, Told};

/// Length of the read that tests whether a device is readable, in bytes.
const FIRST_BYTES: usize = 4096;

/// Delay before devices that another process has open are tried again.
const BUSY_RETRY_INTERVAL: Nanos = Nanos::from_millis(200);
/// Most such tries: the kernel closes the files of a process that was killed with its io_uring, and
/// that takes a while on a machine with much to do.
const BUSY_RETRIES: u32 = 10;

/// Devices that are opened and read at a time when pools are looked for.
const LOOKS_AT_ONCE: usize = 16;

/// Looks at devices for an import of `pool` (its name or id), which tries busy devices again: a
/// command that only looks at labels has a device open for a moment, and so has a process that was
/// killed. Fails when another process keeps a member of the pool: that process may go on with the
/// member alone, as this one would without it, and then each has writes that the other lacks.
///
/// With `follow`, members that are not at `paths` are looked for where the pool has them: the list
/// that the caller has may be from before another command changed the devices.
pub(crate) async fn take_devices(
    opener: &FencedOpener,
    paths: &[String],
    pool: &str,
    follow: bool,
) -> Result<Seen, ImportErrorKind> {
    let mut paths = paths.to_vec();
    let mut seen = look_at(opener, &paths).await;
    let mut others = BTreeSet::new();
    for tried in 0.. {
        if follow {
            let more = missing_members(&seen, pool).into_values();
            let more: Vec<String> = more.filter(|path| !paths.contains(path)).collect();
            seen.add(look_at(opener, &more).await);
            paths.extend(more);
        }
        let held = held_member(opener, &seen, pool, &mut others).await;
        match held {
            Some(device) if tried == BUSY_RETRIES => {
                return Err(ImportErrorKind::HeldHere { device });
            }
            // That process may be another import, which waits for what this one has: it gets all.
            Some(_) => seen = Seen { busy: paths.clone(), ..Seen::default() },
            None if seen.busy.is_empty() || tried == BUSY_RETRIES => break,
            None => {}
        }
        // Of different length: two that wait for each other do not meet again and again.
        let pause = BUSY_RETRY_INTERVAL.0;
        rt::sleep(Nanos(pause / 2 + rt::random_below(pause))).await;
        let busy = std::mem::take(&mut seen.busy);
        seen.add(look_at(opener, &busy).await);
    }
    Ok(seen)
}

/// Id and path of each member in use of `pool`, by the newest configuration, that is not here.
fn missing_members(seen: &Seen, pool: &str) -> BTreeMap<u32, String> {
    let mine = select_pool(&seen.found, pool).ok().flatten().unwrap_or_default();
    let configs = mine.iter().map(|found| &found.label.configs[0]);
    let Some((_, config)) = configs.max_by_key(|(envelope, _)| envelope.generation) else {
        return BTreeMap::new();
    };
    let sides = config.logs.iter().flat_map(|ring| &ring.sides);
    let is_missing = |m: &&MemberConfig| m.state == MemberUse::Online && holder(m, &mine).is_none();
    let missing = config.data_members().chain(sides).filter(is_missing);
    missing.map(|member| (member.device, member.path.clone())).collect()
}

/// The path of a device that another process has open and that is a member in use of `pool`, which
/// is not here. `others`: busy paths of none of its devices, and of those that do not answer.
async fn held_member(
    opener: &FencedOpener,
    seen: &Seen,
    pool: &str,
    others: &mut BTreeSet<String>,
) -> Option<String> {
    let missing = missing_members(seen, pool);
    let guid = select_pool(&seen.found, pool).ok().flatten()?.first()?.label.configs[0].0.pool;
    for path in seen.busy.iter().filter(|_| !missing.is_empty()) {
        if others.contains(path) {
            continue;
        }
        let label = match opener.open_to_look(path).await {
            Ok(device) => read_label(&device).await,
            Err(_) => Label::default(),
        };
        match label.configs.first().filter(|(owner, _)| owner.pool == guid) {
            Some((owner, _)) if missing.contains_key(&owner.device) => return Some(path.clone()),
            // It may be missed by a newer configuration that the next look finds.
            Some(_) => {}
            None => drop(others.insert(path.clone())),
        }
    }
    None
}

/// What is at some paths.
#[derive(Default)]
pub(crate) struct Seen {
    /// Devices that have labels.
    pub found: Vec<Found>,
    /// Cache devices, and where they are.
    pub caches: Vec<(CacheHeader, String)>,
    /// Paths of devices that another process has open.
    pub busy: Vec<String>,
}

impl Seen {
    /// Adds what is at more paths.
    fn add(&mut self, more: Self) {
        self.found.extend(more.found);
        self.caches.extend(more.caches);
        self.busy.extend(more.busy);
    }
}

/// Reads the labels of all devices at `paths` that can be opened. Those that hang delay
/// [`LOOKS_AT_ONCE`] others, not all of them.
pub(crate) async fn look_at(opener: &FencedOpener, paths: &[String]) -> Seen {
    let mut seen = Seen::default();
    for some in paths.chunks(LOOKS_AT_ONCE) {
        for look in rt::join_all(some.iter().map(|path| look_at_one(opener, path))).await {
            match look {
                Look::Labeled(device) => seen.found.push(*device),
                Look::Cache(header, path) => seen.caches.push((header, path)),
                Look::Busy(path) => seen.busy.push(path),
                Look::Other => {}
            }
        }
    }
    seen
}

/// What a look at one path found.
enum Look {
    Labeled(Box<Found>),
    /// A cache device.
    Cache(CacheHeader, String),
    /// Another process has the device open.
    Busy(String),
    /// No device, or one without a label.
    Other,
}

async fn look_at_one(opener: &FencedOpener, path: &str) -> Look {
    let guarded = match opener.open(path).await {
        Ok(guarded) => guarded,
        Err(error) if error.kind == ErrorKind::Busy => return Look::Busy(path.to_owned()),
        Err(_) => return Look::Other,
    };
    let label = read_label(&guarded.device).await;
    if !label.configs.is_empty() {
        return Look::Labeled(Box::new(Found { path: path.to_owned(), guarded, label }));
    }
    match read_header(&guarded.device).await {
        Ok(header) => Look::Cache(header, path.to_owned()),
        Err(_) => Look::Other,
    }
}

/// The root that counts among the devices found, and its configuration.
pub(crate) fn newest_root(
    found: &[&Found],
    rewind: u64,
) -> Result<(Superblock, PoolConfig), ImportErrorKind> {
    // Skipping what a later program wrote would silently take it back.
    let unknown = |f: &&Found| f.label.unknown_version.map(|version| (f.path.clone(), version));
    if let Some((device, found)) = found.iter().find_map(unknown) {
        return Err(ImportErrorKind::FormatVersion { device, expected: VERSION, found });
    }
    let mut roots: Vec<&Superblock> = found.iter().flat_map(|f| &f.label.roots).collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.commit));
    roots.dedup_by_key(|root| root.commit);
    let mut roots = roots.into_iter().skip(rewind as usize);
    let Some(root) = roots.next() else {
        return Err(ImportErrorKind::NoSuperblock(newest_lacks(found)));
    };
    let config_of = |root: &Superblock| {
        found.iter().find_map(|f| f.label.config(root.config_generation, root.config_sum))
    };
    // Falling back to an older root would silently take back what this one committed.
    let config = config_of(root).ok_or_else(|| ImportErrorKind::NoConfiguration {
        root: root.commit,
        holders: owned(paths_with(root, found)),
        generation: root.config_generation,
        lacking: newest_lacks(found),
        has_older: roots.any(|older| config_of(older).is_some()),
    })?;
    Ok((root.clone(), config.clone()))
}

fn owned(paths: Vec<&str>) -> Vec<String> {
    paths.into_iter().map(str::to_owned).collect()
}

/// Members of the newest configuration that are not here, and members that are here without a
/// readable superblock.
fn newest_lacks(found: &[&Found]) -> Lacking {
    let configs = found.iter().filter_map(|f| f.label.configs.first());
    let Some((_, config)) = configs.max_by_key(|(envelope, _)| envelope.generation) else {
        return Lacking::default();
    };
    let is_rootless =
        |m: &&MemberConfig| holder(m, found).is_some_and(|f| f.label.roots.is_empty());
    let rootless = config.data_members().filter(is_rootless).map(|m| m.path.clone()).collect();
    Lacking { missing: owned(absent(config, found)), rootless }
}

fn paths_with<'a>(root: &Superblock, found: &[&'a Found]) -> Vec<&'a str> {
    let has = |f: &&&Found| f.label.roots.iter().any(|r| r.commit == root.commit);
    found.iter().filter(has).map(|f| f.path.as_str()).collect()
}

fn holder<'a>(member: &MemberConfig, found: &[&'a Found]) -> Option<&'a Found> {
    found.iter().copied().find(|f| f.label.configs[0].0.device == member.device)
}

/// Paths of the data members in use that are not here.
fn absent<'a>(config: &'a PoolConfig, found: &[&Found]) -> Vec<&'a str> {
    let gone = |m: &&MemberConfig| m.state == MemberUse::Online && holder(m, found).is_none();
    config.data_members().filter(gone).map(|m| m.path.as_str()).collect()
}

/// The refusal of a root that is not the newest. `config` is the configuration that knows of newer
/// roots.
pub(crate) fn not_newest(
    witness: Witness,
    config: &PoolConfig,
    found: &[&Found],
) -> ImportErrorKind {
    let is_current =
        |path: &&str| config.data_members().any(|m| m.path == **path && m.stale_since.is_none());
    let missing = absent(config, found).into_iter().filter(is_current).collect();
    let present = found.iter().map(|f| f.path.clone()).collect();
    ImportErrorKind::RootNotNewest { witness, missing: owned(missing), present }
}

/// The refusal when none of the devices at `paths` has a label of the pool. It names the devices
/// that do not answer or cannot be read. Devices of other pools do not count.
pub(crate) async fn not_found(
    opener: &FencedOpener,
    paths: &[String],
    found: &[Found],
) -> ImportErrorKind {
    let mut unreadable = Vec::new();
    for path in paths.iter().filter(|path| found.iter().all(|f| f.path != **path)) {
        let outcome = match opener.open(path).await {
            Ok(guarded) => guarded.device.read(0, IoBuf::zeroed(FIRST_BYTES)).await.map(drop),
            Err(error) => Err(error),
        };
        unreadable.extend(outcome.err());
    }
    ImportErrorKind::NotFound { unreadable, searched: paths.to_vec() }
}

/// The devices with labels of the pool; `None` when there is none.
pub(crate) fn select_pool<'a>(
    found: &'a [Found],
    name_or_guid: &str,
) -> Result<Option<Vec<&'a Found>>, ImportErrorKind> {
    let matches = |f: &&Found| {
        let (envelope, config) = &f.label.configs[0];
        config.name == name_or_guid || envelope.pool.to_string() == name_or_guid
    };
    let mine: Vec<&Found> = found.iter().filter(matches).collect();
    let Some(first) = mine.first() else { return Ok(None) };
    let guid = first.label.configs[0].0.pool;
    if mine.iter().any(|f| f.label.configs[0].0.pool != guid) {
        return Err(ImportErrorKind::Ambiguous);
    }
    Ok(Some(mine))
}

/// Gives every member of the configuration its device, by label. Returns the highest root that all
/// data members in use have: an owner that ended while it wrote the newest root left it on some of
/// them only.
pub(crate) fn place_devices(
    config: &mut PoolConfig,
    found: &[&Found],
    root: &Superblock,
    devices: &mut BTreeMap<DeviceId, OpenDevice>,
) -> CommitId {
    let mut everywhere = root.commit;
    let mut place = |member: &mut MemberConfig, data: bool, devices: &mut BTreeMap<_, _>| {
        // When two devices carry the same id (a copy), the one with the newer root counts.
        let newest = |f: &&&Found| {
            (f.label.roots.first().map(|r| r.commit), f.label.configs[0].0.generation)
        };
        let best = found
            .iter()
            .filter(|f| f.label.configs[0].0.device == member.device)
            .max_by_key(newest);
        // A truncated device counts as missing.
        let whole = |f: &&&Found| f.guarded.device.geometry().size_bytes >= member.size_bytes;
        let Some(best) = best.filter(whole) else { return };
        member.path.clone_from(&best.path);
        devices.insert(DeviceId(member.device), OpenDevice::new(&best.path, best.guarded.clone()));
        if data {
            let last = best.label.roots.first().map_or(CommitId(0), |r| r.commit);
            // Everything up to the root before the newest was flushed to all members in use, so a
            // member that is one root behind misses nothing. A member further behind is an old
            // copy.
            if last < root.previous && member.state == MemberUse::Online {
                let since = member.stale_since.map_or(last.0, |s| s.min(last.0));
                member.stale_since = Some(since);
            }
            if member.state == MemberUse::Online && member.stale_since.is_none() {
                everywhere = everywhere.min(last);
            }
        } else if best.label.configs[0].0.generation < root.config_generation
            && member.state == MemberUse::Online
        {
            // A log side that missed a configuration missed frames too.
            member.state = MemberUse::Faulted;
        }
    };
    // The log to be replayed may lie on devices that have left the pool since. Every acknowledged
    // frame is on all of them, whatever became of them later.
    for side in config.log_rings.iter().flat_map(|ring| &ring.sides) {
        let same = found.iter().filter(|f| f.label.configs[0].0.device == side.device);
        let best = same.max_by_key(|f| f.label.configs[0].0.generation);
        if let Some(best) = best {
            let open = OpenDevice::new(&best.path, best.guarded.clone());
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
    everywhere
}

/// Refuses a root that may be older than the last one, because missing devices may know more.
pub(crate) fn check_newest(
    config: &PoolConfig,
    found: &[&Found],
    root: &Superblock,
    host: u64,
    options: &ImportOptions,
) -> Result<(), ImportErrorKind> {
    if options.force || options.rewind_groups > 0 {
        return Ok(());
    }
    // A generation is written just before the root that names it; two ahead proves newer roots.
    let newer = found
        .iter()
        .find(|f| f.label.configs.iter().any(|(e, _)| e.generation > root.config_generation + 1));
    if let Some(newer) = newer {
        let witness = Witness::Device(newer.path.clone());
        return Err(not_newest(witness, &newer.label.configs[0].1, found));
    }
    let here = |m: &MemberConfig| holder(m, found).is_some();
    let online = |m: &&MemberConfig| m.state == MemberUse::Online;
    let current = |m: &&MemberConfig| online(m) && m.stale_since.is_none();
    let has_roots = |m: &MemberConfig| holder(m, found).is_some_and(|f| !f.label.roots.is_empty());
    // One generation ahead may be a change whose root was never written, unless it marks every
    // device that has this root as left behind, and one that may have its root is missing.
    let holders = found.iter().filter(|f| f.label.roots.iter().any(|r| r.commit == root.commit));
    let holders: Vec<u32> = holders.map(|f| f.label.configs[0].0.device).collect();
    let next = found.iter().flat_map(|f| &f.label.configs).find(|(envelope, newer)| {
        let left = |id: &u32| {
            let member = newer.data_members().find(|m| m.device == *id);
            member.is_none_or(|m| m.state != MemberUse::Online || m.stale_since.is_some())
        };
        envelope.generation > root.config_generation
            && holders.iter().all(left)
            && !newer.data_members().filter(current).all(has_roots)
    });
    if let Some((_, next)) = next {
        return Err(not_newest(Witness::LeftBehind, next, found));
    }
    // A log device that is here is a witness, because it is told of every member that leaves.
    let witness = config.logs.iter().flat_map(|r| &r.sides).filter(online).any(here);
    // A member that this root calls left behind cannot have gone on alone since: it would have been
    // rebuilt first, and the members that are here would know.
    let members: Vec<&MemberConfig> = config.data_members().filter(current).collect();
    let missing: Vec<&str> = members.iter().filter(|m| !here(m)).map(|m| m.path.as_str()).collect();
    // The list of known pools is a witness too, if no other machine had the pool since.
    let told = |told: Told| {
        let here = root.config_generation >= told.generation || has_heard(found, told);
        told.generation > 0 && root.host == host && here
    };
    let witness = witness || options.known.is_some_and(told);
    let missing = owned(missing);
    if witness || 2 * missing.len() < members.len().max(1) {
        return check_told(config, root, options, missing);
    }
    Err(ImportErrorKind::HalfMissing { missing })
}

/// Whether a device has the very configuration that the list was told of last, and is whole in it.
/// Then no missing device can be newer, even if the root that names it was never written.
fn has_heard(found: &[&Found], last: Told) -> bool {
    let whole = |device: u32, config: &PoolConfig| {
        let of = |m: &&MemberConfig| m.device == device;
        let member = config.data_members().find(of);
        member.is_some_and(|m| m.state == MemberUse::Online && m.stale_since.is_none())
    };
    let configs = found.iter().flat_map(|found| &found.label.configs);
    configs.into_iter().any(|(e, config)| told(config) == last && whole(e.device, config))
}

/// Refuses a root that is older than what the list of known pools was told of. A pool goes on with
/// fewer than half of its devices, and only the others may be here now.
fn check_told(
    config: &PoolConfig,
    root: &Superblock,
    options: &ImportOptions,
    missing: Vec<String>,
) -> Result<(), ImportErrorKind> {
    let newer = options.known.filter(|told| told.generation > root.config_generation + 1);
    // `--keep` chooses between histories, so the operator knows of the other one.
    let (Some(_), None) = (newer, &options.keep) else { return Ok(()) };
    let present = config.data_members().map(|m| m.path.clone()).collect();
    Err(ImportErrorKind::RootNotNewest { witness: Witness::KnownPools, missing, present })
}

/// The refusal of a map that cannot be read, with the members that would have it.
pub(crate) fn map_unreadable(
    error: MapLoadError,
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> ImportErrorKind {
    let (missing, behind) = incomplete(config, devices);
    ImportErrorKind::Map { error: Box::new(error), missing, behind }
}

/// Refuses members that do not hold every segment together when others may, unless `force` gives up
/// what those alone have: the next root says that they lack it.
pub(crate) fn check_sources(
    loaded: &Loaded,
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    force: bool,
) -> Result<(), ImportErrorKind> {
    let Loaded { array, table, .. } = loaded;
    if array.check_writable().is_ok() {
        return Ok(());
    }
    // No member lacks anything of a free segment.
    for segment in (0..table.count()).map(SegmentId).filter(|segment| table.is_free(*segment)) {
        let _ = array.reset_segment(segment);
    }
    let Err(ArrayError::SourcesMissing { .. }) = array.check_writable() else { return Ok(()) };
    // What was given up before is on no member.
    if let Some(segment) = array.missing_source().filter(|_| !force) {
        let (missing, behind) = incomplete(config, devices);
        return Err(ImportErrorKind::SourcesMissing { segment, missing, behind });
    }
    array.give_up_sources();
    Ok(())
}

/// Paths of the data members that are missing, and of those that are behind.
fn incomplete(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> (Vec<String>, Vec<String>) {
    let is_here = |member: &MemberConfig| devices.contains_key(&DeviceId(member.device));
    let is_behind = |member: &MemberConfig| {
        is_here(member) && (member.stale_since.is_some() || !member.stale.is_empty())
    };
    let paths = |lacks: &dyn Fn(&MemberConfig) -> bool| {
        config.data_members().filter(|m| lacks(m)).map(|m| m.path.clone()).collect()
    };
    (paths(&|member| !is_here(member)), paths(&is_behind))
}

/// The errno of a path that leads nowhere (ENOENT).
const NO_ENTRY: i32 = 2;

/// The same refusal, with why log devices do not count that are there: they cannot be opened, or
/// they are among those at `written_apart`.
pub(crate) async fn with_reasons(
    opener: &FencedOpener,
    mut refusal: ImportErrorKind,
    written_apart: &[String],
) -> ImportErrorKind {
    if let ImportErrorKind::LogMissing { missing, unopened, apart, .. } = &mut refusal {
        for path in missing {
            if written_apart.contains(path) {
                apart.push(path.clone());
                continue;
            }
            let opened = opener.open(path).await;
            let is_there = |error: &DeviceError| {
                !matches!(error.kind, ErrorKind::Gone | ErrorKind::Os { errno: NO_ENTRY })
            };
            unopened.extend(opened.err().filter(is_there));
        }
    }
    refusal
}

pub(crate) fn check_complete(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    root: &Superblock,
    options: &ImportOptions,
) -> Result<(), ImportErrorKind> {
    let absent = |member: &&MemberConfig| !devices.contains_key(&DeviceId(member.device));
    for group in &config.groups {
        let geometry = geometry_of(group);
        let usable = |m: &&MemberConfig| !absent(m) && m.state == MemberUse::Online;
        // A replacement that is not filled yet is judged by the segments that it holds, later.
        let any_usable = |first: &&MemberConfig| {
            std::iter::successors(Some(*first), |m| m.replacement.as_deref()).any(|m| usable(&m))
        };
        let good = group.members.iter().filter(any_usable).count();
        if good < geometry.data_columns().max(1) {
            let out = |m: &&MemberConfig| !absent(m) && m.state != MemberUse::Online;
            let paths = |of: &dyn Fn(&&MemberConfig) -> bool| {
                group.members.iter().filter(of).map(|m| m.path.clone()).collect()
            };
            return Err(ImportErrorKind::TooFewDevices {
                layout: geometry.layout,
                devices: group.members.len(),
                needed: geometry.data_columns().max(1),
                usable: good,
                missing: paths(&absent),
                out_of_use: paths(&out),
            });
        }
    }
    if options.accept_log_loss {
        return Ok(());
    }
    let gone = |ring: &&RingConfig| ring.sides.iter().all(|m| absent(&m));
    let (ring, lost_after) = if root.exported {
        // The missing log holds nothing that counts, but the operator must accept that the pool
        // goes on without its log device.
        let in_use = |ring: &&RingConfig| ring.sides.iter().any(|m| m.state == MemberUse::Online);
        (config.logs.iter().filter(in_use).find(gone), None)
    } else {
        let mut rings = config.log_rings.iter().filter(|ring| ring.ring < POOL_RINGS_FROM);
        (rings.find(gone), Some(root.txg))
    };
    let Some(ring) = ring else { return Ok(()) };
    let missing = ring.sides.iter().map(|m| m.path.clone()).collect();
    let (unopened, apart) = (Vec::new(), Vec::new());
    Err(ImportErrorKind::LogMissing { missing, lost_after, unopened, apart })
}

/// Takes log devices out of use that the import was told to go on without, so that the next import
/// need not be told again.
pub(crate) fn leave_missing_logs(
    config: &mut PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) {
    for side in config.logs.iter_mut().flat_map(|ring| &mut ring.sides) {
        if side.state == MemberUse::Online && !devices.contains_key(&DeviceId(side.device)) {
            side.state = MemberUse::Faulted;
        }
    }
}

#[cfg(test)]
mod tests;
