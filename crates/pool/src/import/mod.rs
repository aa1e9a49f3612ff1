//! The import path: what the devices hold is read and judged, then a pool is assembled from it and
//! the log's records are replayed.

pub(crate) mod device_match;
mod discovery;
pub(crate) mod divergence;
pub(crate) mod error;
pub(crate) mod found;
pub(crate) mod load_map;
pub(crate) mod recovery;
mod replay;
pub(crate) mod takeover;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_format::cache_device::CacheHeader;
use forebay_format::config::{MemberUse, PoolConfig};
use forebay_format::label::{Heartbeat, SUPERBLOCK_SLOTS};
use forebay_format::superblock::Superblock;
use forebay_intent_log::{IntentLog, LogConfig, LogError, LogState};
use forebay_multihost::{ACTIVITY_CHECK_DURATION, Claim, check_activity};
use forebay_rt as rt;
use forebay_units::{CommitId, DeviceId, FrameSeq, Nanos, PoolGuid};

use crate::import::device_match::{
    Seen, check_complete, check_newest, check_sources, leave_missing_logs, map_unreadable,
    newest_root, not_found, place_devices, select_pool, take_devices, with_reasons,
};
use crate::import::divergence::{History, one_history};
use crate::import::error::{ImportError, ImportErrorKind};
use crate::import::found::Found;
use crate::import::load_map::{Loaded, load_map, room_for_map};
use crate::import::recovery::Parts;
use crate::import::replay::{OldLog, check_log_epoch, read_log};
use crate::import::takeover::{Takeover, is_being_imported, labeled_devices};
use crate::labels::read_label;
use crate::opener::{FencedOpener, OpenDevice};
use crate::resume::Continued;
use crate::spec::ImportOptions;
use crate::status::{ImportReport, PoolEvent};
use crate::{Opener, Pool};

/// How often an import begins, when late requests of an earlier process of this machine change a
/// device that was read already, or an owner that is replaced has changed which devices there are.
const MOST_ATTEMPTS: u32 = 4;

impl Pool {
    /// Imports the pool `name_or_guid` found on `paths`: reads the newest root and the map journal,
    /// replays the log, and starts the pool. Refuses if devices or acknowledged writes are missing.
    pub async fn import(
        opener: Rc<dyn Opener>,
        paths: &[String],
        name_or_guid: &str,
        options: &ImportOptions,
    ) -> Result<Rc<Pool>, ImportError> {
        Self::import_as(opener, paths, name_or_guid, options, None).await
    }

    /// The same. With `continued`, only if no other owner has written to the pool since.
    pub(crate) async fn import_as(
        opener: Rc<dyn Opener>,
        paths: &[String],
        name_or_guid: &str,
        options: &ImportOptions,
        continued: Option<&Continued<'_>>,
    ) -> Result<Rc<Pool>, ImportError> {
        let mut attempts = 1;
        loop {
            let is_outdated = Cell::new(false);
            let context = (continued, &is_outdated);
            let imported =
                Self::import_once(opener.clone(), paths, name_or_guid, options, context).await;
            let is_overtaken = |error: &ImportError| {
                is_outdated.get() || matches!(error.kind, ImportErrorKind::Overtaken { .. })
            };
            match imported {
                Err(error) if is_overtaken(&error) && attempts < MOST_ATTEMPTS => attempts += 1,
                other => return other,
            }
        }
    }

    async fn import_once(
        opener: Rc<dyn Opener>,
        paths: &[String],
        name_or_guid: &str,
        options: &ImportOptions,
        (continued, is_outdated): (Option<&Continued<'_>>, &Cell<bool>),
    ) -> Result<Rc<Pool>, ImportError> {
        let begun = rt::now();
        let opener = FencedOpener::new(opener);
        let mut pool = name_or_guid.to_owned();
        let is_known = options.known.is_some();
        let taken = take_devices(&opener, paths, name_or_guid, is_known).await;
        let Seen { found, caches, .. } =
            taken.map_err(|kind| ImportError { pool: pool.clone(), kind })?;
        let outcome = match select_pool(&found, name_or_guid) {
            Ok(Some(mine)) => {
                pool.clone_from(&mine[0].label.configs[0].1.name);
                let wanted = Wanted { name_or_guid, options, continued, caches, is_outdated };
                Self::import_found(opener, found, &wanted, begun).await
            }
            Ok(None) => Err(not_found(&opener, paths, &found).await),
            Err(kind) => Err(kind),
        };
        outcome.map_err(|kind| ImportError { pool, kind })
    }

    async fn import_found(
        opener: Rc<FencedOpener>,
        mut found: Vec<Found>,
        wanted: &Wanted<'_>,
        begun: Nanos,
    ) -> Result<Rc<Pool>, ImportErrorKind> {
        let Wanted { options, continued, .. } = *wanted;
        let (mut history, mut chosen) = match wanted.choose(&found) {
            Ok(chosen) => chosen,
            Err(refusal) => return Err(wanted.watched(refusal, &mut found, opener.host()).await),
        };
        let (root, config) = &chosen;
        let elsewhere = !root.exported && root.host != opener.host();
        let (pool, looked_for) = (config.guid, config.generation);
        let seen: BTreeSet<u32> = history.devices.iter().map(|found| found.id()).collect();
        let mut takeover = Takeover::new(options, elsewhere);
        if elsewhere || is_being_imported(&history.devices, pool).await {
            takeover.watch(&history.devices, pool).await?;
        }
        let mut judged = loop {
            let generation = chosen.1.generation;
            let refusal = match judge(&history, chosen, &opener, options).await {
                Ok(judged) => break judged,
                Err(refusal) => refusal,
            };
            if takeover.is_certain(&refusal) {
                wanted.is_outdated.set(generation != looked_for);
                return Err(refusal);
            }
            wanted.read_labels(&mut found).await?;
            (history, chosen) = wanted.choose(&found)?;
            takeover.watch(&history.devices, pool).await?;
        };
        let nonce = rt::random_u64();
        if let Some(continued) = continued {
            continued.check(&judged.root, &judged.config, &history.devices)?;
        }
        // An owner that was paused reads the heartbeat before it writes again, and finds this one.
        let mine = Heartbeat { pool, nonce, host: opener.host(), ..Heartbeat::default() };
        let claim = takeover.claim(&history.devices, opener.monitor(), mine).await?;
        if takeover.has_watched() {
            // The old owner may have resumed since the labels were read, and writes until it reads
            // the heartbeat again. What it has written by then counts, so everything is read again.
            rt::sleep(ACTIVITY_CHECK_DURATION).await;
            claim.verify().await?;
            // There may not be room for two maps.
            drop(judged);
            wanted.read_labels(&mut found).await?;
            (history, chosen) = wanted.choose(&found)?;
            let is_outdated = chosen.1.generation != looked_for;
            if is_outdated && has_others(&chosen.1, &seen) {
                // The owner has changed its devices. The heartbeats of those were not watched, and
                // it may read nothing but its own there.
                wanted.is_outdated.set(true);
                return Err(ImportErrorKind::TakenMeanwhile);
            }
            let refused = |_: &_| wanted.is_outdated.set(is_outdated);
            judged = judge(&history, chosen, &opener, options).await.inspect_err(refused)?;
            if let Some(continued) = continued {
                continued.check(&judged.root, &judged.config, &history.devices)?;
            }
        }
        history.goes_on(&mut judged.config, nonce, continued);
        drop(found);
        let pool = Self::take_over(opener, judged, claim, (nonce, continued), begun).await?;
        pool.lifecycle.for_command.set(options.for_command);
        pool.note_cache_paths(&wanted.caches);
        pool.start(Vec::new());
        Ok(pool)
    }

    /// Assembles the pool that was judged, and replays its log. From here on the import
    /// writes.
    async fn take_over(
        opener: Rc<FencedOpener>,
        judged: Judged,
        claim: Claim,
        (nonce, continued): (u64, Option<&Continued<'_>>),
        begun: Nanos,
    ) -> Result<Rc<Pool>, ImportErrorKind> {
        let Judged { mut root, newest, config, devices, log_state, old_log, loaded, mut report } =
            judged;
        // Roots that are left behind (by -F, or by devices that return) must never count again: as
        // many new ones take their slots first, because the rotation goes on from the chosen root.
        let left = newest.commit.0 - root.commit.0;
        let slots_left = left % SUPERBLOCK_SLOTS;
        let first_roots = if left > 0 { slots_left.max(1) } else { 0 };
        // The gap keeps frames and footers of a crashed run from having the numbers that will be
        // written now. It is a multiple of the slots.
        let tried = continued.map_or(0, |c| c.tried().0.saturating_sub(newest.commit.0));
        let gap = tried.next_multiple_of(SUPERBLOCK_SLOTS)
            + SUPERBLOCK_SLOTS * (1 + rt::random_u64() % MOST_GAP);
        root.commit = CommitId(newest.commit.0 - slots_left + gap);
        let log_config = LogConfig::new(config.guid);
        let waiting = IntentLog::empty_state(
            &log_config,
            &[],
            newest.epoch + 1 + rt::random_below(EPOCH_GAP) as u32,
            log_state.committed,
            log_state.next_seq,
        );
        let log = IntentLog::start(log_config, &[], &waiting)?;
        // Another machine that has taken the pool has left its heartbeat. This import has written
        // nothing but its own yet.
        claim.verify().await?;
        for (addr, bytes) in &loaded.repairs {
            // A failed repair changes nothing: the journal has been read all the same.
            let _ = loaded.array.repair(*addr, bytes).await;
        }
        let parts = Parts { opener, nonce, config, devices, log, root, loaded };
        let pool = Pool::assemble(parts);
        pool.sync.rooted.set(newest.rooted);
        let recovered =
            pool.recover(&log_state, old_log, first_roots, continued, &mut report).await;
        if let Some(continued) = continued {
            continued.note_roots(&pool);
        }
        if pool.opener.monitor().fence().is_lost() {
            return Err(ImportErrorKind::TakenMeanwhile);
        }
        recovered.map_err(|e| pool.ended_by(e))?;
        claim.verify().await?;
        pool.health.heartbeats.go_on_after(claim.hand_over());
        pool.seal_all();
        report.seconds = rt::now().since(begun).as_secs_f64();
        for remark in &report.remarks {
            pool.health.events.push(PoolEvent::Import(remark.clone()));
        }
        *pool.stats.import.borrow_mut() = report;
        Ok(pool)
    }
}

/// Whether a configuration has members in use beside those that were seen.
fn has_others(config: &PoolConfig, seen: &BTreeSet<u32>) -> bool {
    let sides = config.logs.iter().flat_map(|ring| &ring.sides);
    let mut members = config.data_members().chain(sides);
    members.any(|member| member.state == MemberUse::Online && !seen.contains(&member.device))
}

/// What is to be imported, and how.
struct Wanted<'a> {
    name_or_guid: &'a str,
    options: &'a ImportOptions,
    continued: Option<&'a Continued<'a>>,
    /// The cache devices that were found, of whatever pool.
    caches: Vec<(CacheHeader, String)>,
    /// Set when the import is refused for a configuration that is newer than the one for which
    /// devices were looked for: there may be others by now.
    is_outdated: &'a Cell<bool>,
}

impl Wanted<'_> {
    /// The devices of the pool that share one history, and the root and configuration that count.
    fn choose<'f>(
        &self,
        found: &'f [Found],
    ) -> Result<(History<'f>, (Superblock, PoolConfig)), ImportErrorKind> {
        let selected = select_pool(found, self.name_or_guid)?.unwrap_or_default();
        let history = one_history(selected, self.options.keep.as_deref())?;
        let chosen = newest_root(&history.devices, self.options.rewind_groups)?;
        Ok((history, chosen))
    }

    /// What a pool is refused for whose labels do not fit each other: `refusal`, or that it is in
    /// use. An owner on another machine that changes its devices at this moment makes it look so.
    /// The import is to begin anew when the labels are others after the heartbeats were watched.
    async fn watched(
        &self,
        refusal: ImportErrorKind,
        found: &mut Vec<Found>,
        host: u64,
    ) -> ImportErrorKind {
        let Ok(Some(mine)) = select_pool(found, self.name_or_guid) else { return refusal };
        let mut roots = mine.iter().flat_map(|found| &found.label.roots);
        if !roots.any(|root| !root.exported && root.host != host) {
            return refusal;
        }
        let pool = mine[0].label.configs[0].0.pool;
        if let Err(error) = check_activity(&labeled_devices(&mine), PoolGuid(pool)).await {
            return error.into();
        }
        let again = match self.read_labels(found).await {
            Ok(()) => self.choose(found).err(),
            Err(lost) => Some(lost),
        };
        self.is_outdated.set(again.as_ref() != Some(&refusal));
        refusal
    }

    /// Reads the labels again: an owner may have changed them.
    async fn read_labels(&self, found: &mut Vec<Found>) -> Result<(), ImportErrorKind> {
        for device in &mut *found {
            device.label = read_label(&device.guarded.device).await;
        }
        let devices = found.iter().map(|device| device.path.clone()).collect();
        found.retain(|device| !device.label.configs.is_empty());
        match select_pool(found, self.name_or_guid)? {
            Some(_) => Ok(()),
            None => Err(ImportErrorKind::LabelsLost { devices }),
        }
    }
}

/// Everything that an import reads before it writes. A refused import leaves the pool as it was.
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
    /// On all data members in use. A device that has it misses nothing of the next root.
    rooted: CommitId,
    epoch: u32,
}

/// Adds to the root's state of the log what log marks say of it since: frames that were durable
/// must be there, even if the log's devices know nothing of them.
fn note_progress(state: &mut LogState, devices: &[&Found], pool: u64) {
    let marks = devices.iter().flat_map(|found| &found.label.log_marks);
    for (_, mark) in marks.filter(|(of, mark)| *of == pool && mark.epoch == state.epoch) {
        state.watermark = state.watermark.max(mark.watermark);
        state.next_seq = state.next_seq.max(FrameSeq(state.watermark.0.saturating_add(1)));
    }
}

/// Largest gap that an import leaves in the numbers of roots, in rounds of the superblock slots: at
/// most 2^29 numbers, so there is room for 2^35 imports. Two imports that continue from one root
/// collide once in 16 million.
const MOST_GAP: u64 = 1 << 24;

/// Largest gap in the log's epochs. Two halves of a pool that diverge and share a log device must
/// not take each other's frames for their own.
const EPOCH_GAP: u64 = 256;

async fn judge(
    history: &History<'_>,
    (root, mut config): (Superblock, PoolConfig),
    opener: &FencedOpener,
    options: &ImportOptions,
) -> Result<Judged, ImportErrorKind> {
    let mine = &history.devices;
    if config.destroyed {
        return Err(ImportErrorKind::Destroyed);
    }
    check_newest(&config, mine, &root, opener.host(), options)?;
    let mut devices = BTreeMap::new();
    let rooted = place_devices(&mut config, mine, &root, &mut devices);
    if let Err(refusal) = check_complete(&config, &devices, &root, options) {
        return Err(with_reasons(opener, refusal, &history.apart).await);
    }
    if options.accept_log_loss {
        leave_missing_logs(&mut config, &devices);
    }
    let mut report = ImportReport::default();
    let (mut log_state, _) = LogState::decode(&root.log_state).map_err(LogError::from)?;
    if options.rewind_groups == 0 {
        note_progress(&mut log_state, mine, root.pool);
    }
    let later_epoch = check_log_epoch(&config, &devices, &log_state, mine, options).await?;
    let old_log = match root.exported {
        true => OldLog::none(),
        false => read_log(&config, &devices, mine, &log_state, options, &mut report).await?,
    };
    let room_bytes = opener.free_memory_bytes().map(room_for_map);
    let loaded = load_map(&config, &devices, &root, room_bytes, &mut report).await;
    let loaded = loaded.map_err(|error| map_unreadable(error, &config, &devices))?;
    check_sources(&loaded, &config, &devices, options.force)?;
    let roots = || mine.iter().flat_map(|f| &f.label.roots);
    let epochs = roots().filter_map(|r| LogState::decode(&r.log_state).ok());
    let highest = roots().map(|r| r.commit).max().unwrap_or(root.commit);
    let newest = Newest {
        commit: history.highest.max(highest),
        rooted,
        epoch: epochs.map(|(state, _)| state.epoch).max().unwrap_or(0).max(later_epoch),
    };
    Ok(Judged { root, newest, config, devices, log_state, old_log, loaded, report })
}
