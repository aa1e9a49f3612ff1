//! Which devices an import has, which root of theirs counts, and whether that is enough.

use std::collections::BTreeMap;

use forebay_device::{ErrorKind, IoBuf};
use forebay_format::config::{MemberConfig, MemberUse, PoolConfig, RingConfig};
use forebay_format::superblock::{Superblock, VERSION};
use forebay_rt as rt;
use forebay_units::{CommitId, DeviceId, Nanos};

use crate::PoolError;
use crate::import::divergence::told;
use crate::labels::{Label, read_label};
use crate::layout::{POOL_RINGS_FROM, geometry_of};
use crate::opener::{FencedOpener, Guarded, OpenDevice};
use crate::spec::{ImportOptions, Told};

/// Read of a device to see whether it can be read.
const FIRST_BYTES: usize = 4096;

/// A device found with a label of the pool.
pub(crate) struct Found {
    pub path: String,
    pub guarded: Guarded,
    pub label: Label,
}

/// When a device is tried once more that somebody has open.
const A_MOMENT: Nanos = Nanos::from_millis(200);

/// Reads the labels of all devices at `paths` that can be opened.
pub(crate) async fn find_devices(opener: &FencedOpener, paths: &[String]) -> Vec<Found> {
    look_at(opener, paths).await.0
}

/// The same for who takes them. Whoever just looks at labels has a device open for a moment only, and no
/// pool shall do without it for that.
pub(crate) async fn take_devices(opener: &FencedOpener, paths: &[String]) -> Vec<Found> {
    let (mut found, busy) = look_at(opener, paths).await;
    if !busy.is_empty() {
        rt::sleep(A_MOMENT).await;
        found.extend(find_devices(opener, &busy).await);
    }
    found
}

/// The devices that have labels, and paths of those that somebody else has open.
async fn look_at(opener: &FencedOpener, paths: &[String]) -> (Vec<Found>, Vec<String>) {
    let (mut found, mut busy) = (Vec::new(), Vec::new());
    for path in paths {
        let guarded = match opener.open(path) {
            Ok(guarded) => guarded,
            Err(error) => {
                busy.extend((error.kind == ErrorKind::Busy).then(|| path.clone()));
                continue;
            }
        };
        let label = read_label(&guarded.device).await;
        if !label.configs.is_empty() {
            found.push(Found { path: path.clone(), guarded, label });
        }
    }
    (found, busy)
}

/// The root that counts among those found, and the configuration that belongs to it.
pub(crate) fn newest_root(
    found: &[&Found],
    rewind: u64,
) -> Result<(Superblock, PoolConfig), PoolError> {
    // Passing over what another program wrote later would silently take that back.
    if let Some(other) = found.iter().find(|f| f.label.unknown_version.is_some()) {
        return Err(PoolError::new(format!(
            "{} has superblocks of format version {}, and this program reads version {VERSION}; use \
             the program that wrote them",
            other.path,
            other.label.unknown_version.unwrap_or_default()
        )));
    }
    let mut roots: Vec<&Superblock> = found.iter().flat_map(|f| &f.label.roots).collect();
    roots.sort_by_key(|root| std::cmp::Reverse(root.commit));
    roots.dedup_by_key(|root| root.commit);
    let Some(root) = roots.into_iter().nth(rewind as usize) else {
        return Err(PoolError::new(format!("no readable superblock{}", newest_lacks(found))));
    };
    let config = found.iter().find_map(|f| f.label.config(root.config_generation, root.config_sum));
    // Going on to an older root would silently take back what this one committed.
    let config = config.ok_or_else(|| {
        PoolError::new(format!(
            "root {} (on {}) needs generation {} of the configuration, and no device has it; 'forebay \
             pool import -F' goes back to an older root{}",
            root.commit,
            paths_with(root, found).join(", "),
            root.config_generation,
            newest_lacks(found)
        ))
    })?;
    Ok((root.clone(), config.clone()))
}

/// What lacks of the pool as the newest configuration on any device has it, to be added to a refusal:
/// members that are not here, and those that are here without a readable superblock.
fn newest_lacks(found: &[&Found]) -> String {
    let configs = found.iter().filter_map(|f| f.label.configs.first());
    let Some((_, config)) = configs.max_by_key(|(envelope, _)| envelope.generation) else {
        return String::new();
    };
    let missing = absent(config, found);
    let rootless = config
        .data_members()
        .filter(|m| holder(m, found).is_some_and(|f| f.label.roots.is_empty()));
    let rootless: Vec<&str> = rootless.map(|m| m.path.as_str()).collect();
    let mut text = String::new();
    for (lack, who) in [("missing", missing), ("without a readable superblock", rootless)] {
        if !who.is_empty() {
            text.push_str(&format!("; {lack}: {}", who.join(", ")));
        }
    }
    text + "; bring devices back ('forebay pool import -d DIR' looks elsewhere)"
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

/// The same of those that hold what is newer, for a refusal.
fn who_is_newer(config: &PoolConfig, found: &[&Found]) -> String {
    let current =
        |path: &&str| config.data_members().any(|m| m.path == **path && m.stale_since.is_none());
    let missing: Vec<&str> = absent(config, found).into_iter().filter(current).collect();
    match missing[..] {
        [] => {
            let here: Vec<&str> = found.iter().map(|f| f.path.as_str()).collect();
            format!(
                "no device is missing, but those that are here ({}) have lost them",
                here.join(", ")
            )
        }
        _ => {
            format!("they are on devices that are missing: {}; bring them back", missing.join(", "))
        }
    }
}

/// Of the devices at `paths`, which were all looked at and have no label of the pool that was wanted:
/// those that do not answer or cannot be read, for a refusal. (A device that is read and belongs to
/// something else is none of ours.)
pub(crate) async fn name_unreadable(
    opener: &FencedOpener,
    paths: &[String],
    found: &[Found],
) -> String {
    const NAMED: usize = 8;
    let mut bad = Vec::new();
    for path in paths.iter().filter(|path| found.iter().all(|f| f.path != **path)) {
        let outcome = match opener.open(path) {
            Ok(guarded) => guarded.device.read(0, IoBuf::zeroed(FIRST_BYTES)).await.map(drop),
            Err(error) => Err(error),
        };
        bad.extend(outcome.err().map(|error| error.to_string()));
    }
    let more = bad.len().saturating_sub(NAMED);
    bad.truncate(NAMED);
    let mut text = String::new();
    if !bad.is_empty() {
        text = format!("; could not be looked at: {}", bad.join(", "));
    }
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    if bad.is_empty() && !paths.is_empty() && paths.len() <= NAMED {
        text = format!("; none of these has a label of it that can be read: {}", paths.join(", "));
    }
    if !text.is_empty() {
        text.push_str("; bring devices back");
    }
    text
}

pub(crate) fn select_pool<'a>(
    found: &'a [Found],
    name_or_guid: &str,
) -> Result<Vec<&'a Found>, PoolError> {
    let matches = |f: &&Found| {
        let (envelope, config) = &f.label.configs[0];
        config.name == name_or_guid || envelope.pool.to_string() == name_or_guid
    };
    let mine: Vec<&Found> = found.iter().filter(matches).collect();
    let Some(first) = mine.first() else {
        return Err(PoolError::new(format!(
            "no pool '{name_or_guid}' was found; 'forebay pool import' without a name lists what \
             is there"
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

/// Gives every member of the configuration its device, by label. Gives the highest root that all data
/// members in use have: the newest one may be on some of them only, when its owner ended while it
/// wrote it.
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
        // One that was cut short is as good as missing.
        let whole = |f: &&&Found| f.guarded.device.geometry().size_bytes >= member.size_bytes;
        let Some(best) = best.filter(whole) else { return };
        member.path.clone_from(&best.path);
        devices.insert(DeviceId(member.device), OpenDevice::new(&best.path, best.guarded.clone()));
        if data {
            let last = best.label.roots.first().map_or(CommitId(0), |r| r.commit);
            // Everything up to the root before the newest was flushed to all members in use, so a
            // member one root behind misses nothing. One further behind is an old copy.
            if last < root.previous && member.state == MemberUse::Online {
                let since = member.stale_since.map_or(last.0, |s| s.min(last.0));
                member.stale_since = Some(since);
            }
            if member.state == MemberUse::Online && member.stale_since.is_none() {
                everywhere = everywhere.min(last);
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

/// Refuses a root that may be older than the last one: the devices that are missing may know more.
pub(crate) fn check_newest(
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
             root found; {}, or use -f to go back to what is here",
            config.name,
            newer.path,
            who_is_newer(&newer.label.configs[0].1, found)
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
    if let Some((_, next)) = next {
        return Err(PoolError::new(format!(
            "pool '{}' cannot be imported: the devices that are here were left behind by others, and \
             know of changes that are newer than the newest root found; {}, or use -f to go back to \
             what is here",
            config.name,
            who_is_newer(next, found)
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
    let told = |told: Told| {
        let here = root.config_generation >= told.generation || has_heard(found, told);
        told.generation > 0 && root.host == host && here
    };
    let witness = witness || options.known.is_some_and(told);
    if witness || 2 * missing.len() < members.len().max(1) {
        return check_told(config, root, options, &missing);
    }
    Err(PoolError::new(format!(
        "pool '{}': half of its devices or more are missing ({}), and they may hold newer data \
         than those that are here; bring them back, or use -f if you are sure that they do not",
        config.name,
        missing.join(", ")
    )))
}

/// Whether a device that is here has the very configuration that the list was told of last, and is whole in
/// that: nobody can have gone on without it since, though the root that names it was never written.
fn has_heard(found: &[&Found], last: Told) -> bool {
    let whole = |device: u32, config: &PoolConfig| {
        let of = |m: &&MemberConfig| m.device == device;
        let member = config.data_members().find(of);
        member.is_some_and(|m| m.state == MemberUse::Online && m.stale_since.is_none())
    };
    let configs = found.iter().flat_map(|found| &found.label.configs);
    configs.into_iter().any(|(e, config)| told(config) == last && whole(e.device, config))
}

/// Refuses a root that is older than what the list of known pools was told of: a pool goes on with
/// fewer than half of its devices, and the others may be all that is here now.
fn check_told(
    config: &PoolConfig,
    root: &Superblock,
    options: &ImportOptions,
    missing: &[&str],
) -> Result<(), PoolError> {
    let newer = options.known.filter(|told| told.generation > root.config_generation + 1);
    // Who says which history counts knows that there is another.
    let (Some(_), None) = (newer, &options.keep) else { return Ok(()) };
    let lack = match missing {
        [] => {
            let here: Vec<&str> = config.data_members().map(|m| m.path.as_str()).collect();
            format!("its devices ({}) have lost it", here.join(", "))
        }
        missing => {
            format!("it is on devices that are missing: {}; bring them back", missing.join(", "))
        }
    };
    Err(PoolError::new(format!(
        "pool '{}' cannot be imported: this machine knows of changes that are newer than the newest \
         root found; {lack}, or use -f to go back to what is here",
        config.name
    )))
}

/// An import that could not read what it needs: which members would have it.
pub(crate) fn with_what_lacks(
    error: PoolError,
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
) -> PoolError {
    let names = |lacks: &dyn Fn(&MemberConfig) -> bool| {
        let paths: Vec<&str> =
            config.data_members().filter(|m| lacks(m)).map(|m| m.path.as_str()).collect();
        paths.join(", ")
    };
    let here = |member: &MemberConfig| devices.contains_key(&DeviceId(member.device));
    let behind = |member: &MemberConfig| {
        here(member) && (member.stale_since.is_some() || !member.stale.is_empty())
    };
    let mut message = error.message;
    let lacking = config.data_members().any(|m| !here(m) || behind(m));
    message.push_str(match lacking {
        true if message.contains("bring devices back") => "",
        true => "; bring devices back",
        false => {
            "; no device is missing: 'forebay pool import -F' goes back to an older root, if \
                  that can be read"
        }
    });
    for (lack, who) in [
        ("missing", names(&|member| !here(member))),
        ("behind the others, and not rebuilt yet", names(&behind)),
    ] {
        if !who.is_empty() {
            message.push_str(&format!("; {lack}: {who}"));
        }
    }
    PoolError::new(format!("pool '{}' cannot be imported: {message}", config.name))
}

pub(crate) fn check_complete(
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
            let out = |m: &&MemberConfig| !absent(m) && m.state != MemberUse::Online;
            let names = |of: &dyn Fn(&&MemberConfig) -> bool| -> String {
                let of = group.members.iter().filter(of).map(|m| m.path.as_str());
                of.collect::<Vec<_>>().join(", ")
            };
            let (missing, out) = (names(&absent), names(&out));
            let out = if out.is_empty() { out } else { format!("; out of use: {out}") };
            return Err(PoolError::new(format!(
                "pool '{}' cannot be imported: its {} of {} devices needs {} of them, and {good} \
                 can be used; missing: {}{out}; bring devices back ('forebay pool import -d DIR' \
                 looks elsewhere)",
                config.name,
                group.layout,
                group.members.len(),
                geometry.data_columns().max(1),
                if missing.is_empty() { "none" } else { &missing },
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
                 with it, for the pool was exported: bring it back ('forebay pool import -d DIR' looks elsewhere), \
                 or use 'forebay pool import -m' to go on without it",
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
                 that were acknowledged after {}; bring it back ('forebay pool import -d DIR' looks elsewhere), or \
                 use 'forebay pool import -m' to lose them",
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
