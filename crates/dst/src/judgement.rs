//! Judgement: what clients must find after an import, and what must work at the end of a run.
//!
//! What enters: a running pool and the demand. What leaves: the first objection, in the model.
//! Who calls: `boot.rs`, after each import and at the end of a boot without a power cut.

use std::collections::BTreeMap;

use forebay_device::{Device, IoBuf};
use forebay_units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::boot_context::BootContext;
use crate::client::{SectorRange, flush, read_all, write};
use crate::figures;
use crate::leaks::check_space;
use crate::model::{Model, Presence};
use crate::scenario::Demand;
use crate::snapshot_copies::FIRST_COPY;
use crate::stamp::Fill;
use crate::subject::{Pool, ScrubPhase, Scrubbed, Subject};
use crate::verdict::Kind;

/// Limit of scrubs at the end of a run.
const MAX_SCRUBS: u64 = 8;

/// Checks every volume against what clients know of it.
pub(crate) async fn judge<S: Subject>(context: &BootContext<S>, pool: &S::Pool, demand: Demand) {
    let model = &context.model;
    model.freeze_snapshots();
    let names = pool.volumes();
    model.settle_names(&names, demand == Demand::NeverWrong);
    let known: Vec<String> = model.ids().into_iter().map(|id| model.name_of(id)).collect();
    if let Some(stranger) = names.iter().find(|name| !known.contains(name)) {
        return model.object(Kind::Volumes, format!("volume {stranger} was never created"));
    }
    let unsettled = unsettled(pool);
    for id in model.ids() {
        let name = model.name_of(id);
        if unsettled.contains(&name) {
            continue;
        }
        let is_there = names.contains(&name);
        if !judge_presence(model, id, is_there, demand) {
            return;
        }
        if is_there {
            judge_volume(context, pool, id, demand).await;
        }
        if model.failed() {
            return;
        }
    }
    judge_snapshots(context, pool, demand).await;
}

/// Volumes that may or may not be there after the next import: streams to them were interrupted,
/// and the pool is suspended and cannot undo them, or find that all of them came.
fn unsettled(pool: &impl Pool) -> Vec<String> {
    if pool.is_suspended() { pool.receiving() } else { Vec::new() }
}

/// Checks that no disk returned wrong blocks where every damage is an error: the pool does not read
/// what a disk missed.
pub(crate) fn judge_disks<S: Subject>(context: &BootContext<S>, pool: &S::Pool) {
    if !context.scenario.is_loud {
        return;
    }
    if let Some((disk, count)) = pool.wrong_blocks(&context.disks.devices()).first() {
        let message = format!("disk {disk} returned {count} wrong blocks, and none was damaged");
        context.model.object(Kind::Scrub, message);
    }
}

/// Checks whether a volume may exist, or not. False after an objection.
fn judge_presence(model: &Model, id: u32, is_there: bool, demand: Demand) -> bool {
    let name = model.name_of(id);
    let presence = model.update(id, |v| v.presence).unwrap_or(Presence::Gone);
    if !is_in_order(model, &name, (presence, is_there), demand) {
        return false;
    }
    model.update(id, |v| {
        v.presence = if is_there { Presence::Present } else { Presence::Gone };
        // An older configuration may be valid again.
        if demand == Demand::NeverWrong && v.sync_varies {
            v.sync = None;
        }
    });
    true
}

/// Objects to what is lost or back. False after an objection.
fn is_in_order(model: &Model, name: &str, found: (Presence, bool), demand: Demand) -> bool {
    let what = match found {
        _ if demand == Demand::NeverWrong => return true,
        (Presence::Present, false) => "is lost",
        (Presence::Gone, true) => "was destroyed and is back",
        _ => return true,
    };
    model.object(Kind::Volumes, format!("{name} {what}"));
    false
}

/// Checks every snapshot against what the administrator knows of it.
async fn judge_snapshots<S: Subject>(context: &BootContext<S>, pool: &S::Pool, demand: Demand) {
    let model = &context.model;
    let names = pool.snapshots();
    model.settle_snapshot_names(&names, demand == Demand::NeverWrong);
    model.settle_promotions(&names, demand == Demand::NeverWrong);
    let known = model.snapshots();
    let is_known = |name: &&String| known.iter().any(|key| model.snapshot_name(*key) == **name);
    if let Some(stranger) = names.iter().find(|name| !is_known(name)) {
        return model.object(Kind::Volumes, format!("snapshot {stranger} was never taken"));
    }
    let unsettled = unsettled(pool);
    let holds = if model.has_tags() { pool.holds().await } else { BTreeMap::new() };
    for key in known {
        let name = model.snapshot_name(key);
        if unsettled.iter().any(|volume| name.split('@').next() == Some(volume)) {
            continue;
        }
        let is_there = names.contains(&name);
        let presence = model.update_snapshot(key, |s| s.presence).unwrap_or(Presence::Gone);
        if !is_in_order(model, &name, (presence, is_there), demand) {
            return;
        }
        model.update_snapshot(key, |snapshot| {
            snapshot.presence = if is_there { Presence::Present } else { Presence::Gone };
            snapshot.is_recent = false;
        });
        if is_there {
            let found = holds.get(&name).map_or(&[][..], Vec::as_slice);
            model.settle_holds(key, found, demand == Demand::NeverWrong);
            judge_snapshot(context, pool, key, demand).await;
        }
        if model.failed() {
            return;
        }
    }
}

/// Checks the size and every sector of a snapshot.
async fn judge_snapshot<S: Subject>(
    context: &BootContext<S>,
    pool: &S::Pool,
    key: (u32, u32),
    demand: Demand,
) {
    let model = &context.model;
    let name = model.snapshot_name(key);
    let Some(device) = pool.snapshot(&name) else {
        return model.object(Kind::Volumes, format!("{name} is listed and cannot be opened"));
    };
    let sectors = device.geometry().size_bytes / SECTOR_BYTES;
    let seen = read_all(&device, model, key.0, sectors).await;
    context.tally.borrow_mut().judged_sectors += sectors;
    model.count("snapshots judged", 1);
    model.update_snapshot(key, |snapshot| {
        let Some(contents) = &mut snapshot.contents else { return };
        if contents.sectors() != sectors {
            return model.object(Kind::Volumes, format!("{name} has {sectors} sectors"));
        }
        let judged = match demand {
            Demand::NeverWrong => contents.check_honest(&seen),
            Demand::AllData | Demand::Detected => contents.check_crash(&seen),
        };
        model.judge(Kind::Prefix, judged);
    });
}

/// Checks the size and every sector of a volume.
async fn judge_volume<S: Subject>(
    context: &BootContext<S>,
    pool: &S::Pool,
    id: u32,
    demand: Demand,
) {
    let model = &context.model;
    let name = model.name_of(id);
    let Some(device) = pool.volume(&name) else {
        return model.object(Kind::Volumes, format!("{name} is listed and cannot be opened"));
    };
    let sectors = device.geometry().size_bytes / SECTOR_BYTES;
    let gap = model.update(id, |v| v.gap_sectors).unwrap_or(0);
    let sectors = sectors.saturating_sub(gap);
    let is_expected = model.update(id, |v| {
        // A rollback that changes the size took effect, or did not, as the size says.
        if v.history.sectors() != sectors
            && v.rolling_back.as_ref().is_some_and(|back| back.contents.sectors() == sectors)
        {
            if let Some(back) = v.rolling_back.take() {
                v.history = back.after(&v.history);
                v.rollbacks += 1;
            }
        }
        let pending = std::mem::take(&mut v.resizing);
        // When committed data may be lost, so may a size.
        if pending.contains(&sectors) || demand == Demand::NeverWrong {
            v.history.resize(sectors);
        }
        v.history.sectors() == sectors
    });
    if is_expected != Some(true) {
        return model.object(Kind::Volumes, format!("{name} has {sectors} sectors"));
    }
    if context.scenario.spec.cache_disks > 0 {
        fill_cache_devices(&device, sectors * SECTOR_BYTES / BLOCK_BYTES).await;
    }
    let seen = read_all(&device, model, id, sectors).await;
    context.tally.borrow_mut().judged_sectors += sectors;
    model.update(id, |v| {
        let back = v.rolling_back.take().filter(|back| back.contents.sectors() == sectors);
        if let Some(back) = back {
            let after = back.after(&v.history);
            v.rollbacks += u64::from(after.clone().check_crash(&seen).is_ok());
            if v.history.clone().check_crash(&seen).is_err() {
                v.history = after;
            }
        }
        let judged = match demand {
            Demand::NeverWrong => v.history.check_honest(&seen),
            Demand::AllData | Demand::Detected => v.history.check_crash(&seen),
        };
        model.judge(Kind::Prefix, judged);
    });
}

/// Reads some blocks again and again, in an order that is no stream: what left memory and is read
/// again goes to a cache device. What they hold is judged afterwards.
async fn fill_cache_devices(device: &Device, blocks: u64) {
    const MOST_BLOCKS: u64 = 200;
    const ROUNDS: u64 = 3;
    let some = blocks.min(MOST_BLOCKS);
    for number in 0..ROUNDS * some {
        let block = number % some * 77 % blocks;
        let buf = IoBuf::zeroed(BLOCK_BYTES as usize);
        // Whether it can be read is judged afterwards too.
        let _ = device.read(block * BLOCK_BYTES, buf).await;
    }
}

/// The end of a boot without a power cut: writes and flushes still work, a scrub repairs all damage
/// and the next one finds none, and the export succeeds.
pub(crate) async fn finish<S: Subject>(context: &BootContext<S>, pool: S::Pool, demand: Demand) {
    let BootContext { model, phase, .. } = context;
    phase.set("last writes");
    for volume in model.ids().into_iter().filter(|volume| *volume < FIRST_COPY) {
        let Some((first, count)) = model.usable(volume, 0, 8) else { continue };
        let Some(device) = pool.volume(&model.name_of(volume)) else { continue };
        let range = SectorRange::of(model, volume, first, count);
        write(&device, model, range, true, Fill::Noise).await;
        flush(&device, model, volume).await;
    }
    phase.set("scrub");
    context.disks.lose_map();
    if !context.is_brief && !context.leaves_scrub {
        scrub_until_clean(context, &pool, demand).await;
    }
    if context.scenario.counts_leaks {
        phase.set("leaks");
        check_space(context, &pool).await;
    }
    if demand == Demand::AllData && !model.failed() {
        if context.is_brief {
            figures::check_emptied(context, &pool).await;
        } else if context.scenario.seed % 2 == 0 {
            // It commits. In the other half of the scenarios an export finds an open group.
            figures::note(context, &pool).await;
        }
    }
    phase.set("export");
    model.scrubs.export(pool.scrub_phase() == Some(ScrubPhase::Paused));
    match pool.export().await {
        Ok(()) => {
            for id in model.ids() {
                model.update(id, |v| v.history.mark_all_durable());
            }
        }
        Err(refusal) => model.error_seen("export", &refusal.message),
    }
}

/// Scrubs until a scrub must be clean, and checks that one. A scrub must be clean when the disks
/// took no damage during it and during the one before: a disk may lose a scrub's own repairs. Where
/// every damage is an error, the first scrub must be clean. A scrub that was paused goes on.
pub(crate) async fn scrub_until_clean<S: Subject>(
    context: &BootContext<S>,
    pool: &S::Pool,
    demand: Demand,
) {
    let model = &context.model;
    let has_copies = context.scenario.spec.parity() > 0;
    let found = pool.scrub_phase();
    let is_whole = match found {
        Some(ScrubPhase::Completed) => model.scrubs.is_new(),
        found => found == Some(ScrubPhase::Running),
    };
    let was_calm = is_whole && model.scrubs.is_calm(context.disks.damage());
    model.count("scrubs that are followed by one", u64::from(was_calm));
    let mut must_be_clean = context.scenario.is_loud || was_calm;
    for round in 0..MAX_SCRUBS {
        let before = context.disks.damage();
        let mut is_clean = false;
        match pool.scrub().await {
            Ok(found) if demand == Demand::AllData => {
                let is_calm = context.disks.damage() == before;
                if found.unrepaired > 0 || (must_be_clean && is_calm && found.repaired > 0) {
                    model.object(Kind::Scrub, format!("scrub {round} found {found:?}"));
                }
                is_clean = found == Scrubbed::default();
            }
            Ok(_) => {}
            Err(refusal) => model.error_seen("scrub", &refusal.message),
        }
        let is_calm = context.disks.damage() == before;
        // Without copies a clean scrub wrote nothing: another one would read what the final
        // judgement reads anyway.
        if is_calm && (must_be_clean || (is_clean && !has_copies)) {
            break;
        }
        must_be_clean = is_calm;
        if round == 0 && found == Some(ScrubPhase::Paused) {
            // It had begun before.
            must_be_clean = model.scrubs.is_calm(context.disks.damage());
            model.count("paused scrubs that are followed by one", u64::from(must_be_clean));
        }
    }
    model.scrubs.forget();
}
