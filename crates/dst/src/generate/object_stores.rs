//! Data disks in object stores: which pools have them, and which objects a store loses.

use forebay_sim::{Rng, Seed};

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::{Act, Admin, Boot, TimedLoss};
use crate::subject::{LogShape, Manage, PoolSpec, Raid};

/// How many of a thousand scenarios with one data disk have it in an object store.
const OBJECTS_PER_MILLE: u64 = 500;
/// The same at level beyond, where the store loses objects.
const LOSSES_PER_MILLE: u64 = 300;
/// How many of a thousand stores with copies lose objects at level within.
const COPIES_LOSE_PER_MILLE: u64 = 500;
/// Most objects that a store loses in a boot.
const MAX_LOST: u64 = 3;

/// Puts the data disk of a pool into an object store. At level crash nothing but the power fails
/// then: a store has redundancy of its own. At level beyond it loses objects.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let per_mille = match level {
        Level::CrashOnly => OBJECTS_PER_MILLE,
        Level::Beyond => LOSSES_PER_MILLE,
        Level::Within | Level::Lies => return,
    };
    let is_alone = spec.data_disks == 1 && spec.spare_disks == 0;
    let is_usual = !matches!(aim, Aim::Suspension | Aim::Blocked | Aim::SlowReads);
    let is_drawn = aim == Aim::Objects || (is_usual && rng.chance(per_mille));
    if is_alone && is_drawn {
        spec.in_objects = true;
        // As the product has it for these: the log must not be in a store.
        if spec.log == LogShape::None {
            spec.log = LogShape::One;
        }
        spec.properties.insert("device_timeout".to_owned(), "3600".to_owned());
    }
}

/// Has some pools of one disk or of a mirror take in a copy that is in an object store, or a disk
/// as a copy of one that is. At level within disks fail beside it as ever, and the store may lose
/// what the other sides have.
pub(super) fn draw_copies(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let is_usual = matches!(aim, Aim::Mixed | Aim::Objects | Aim::Parts | Aim::Snapshots);
    let takes_copies = spec.data_disks == 1 || spec.raid == Raid::Mirror;
    let is_plain = spec.hot_spares == 0 && spec.groups == 1 && spec.remote_logs == 0;
    let is_promised = matches!(level, Level::CrashOnly | Level::Within);
    if !is_promised || !is_usual || !takes_copies || !is_plain {
        return;
    }
    let per_mille = if spec.in_objects { 500 } else { 250 };
    if spec.data_disks > 2 || spec.spare_disks > 1 || !rng.chance(per_mille) {
        return;
    }
    spec.spare_disks = 1;
    if spec.log == LogShape::None {
        spec.log = LogShape::One;
    }
    if !spec.in_objects || rng.chance(400) {
        spec.stores.push(spec.hot_spare_range().end);
    }
    // Disks may hang without end beside it, and are then waited for.
    if level == Level::CrashOnly || spec.parity() == 0 {
        spec.properties.insert("device_timeout".to_owned(), "3600".to_owned());
    }
    if rng.chance(600) {
        let rate = *rng.pick(&["1M", "4M", "16M"]);
        spec.properties.insert("scan_rate".to_owned(), rate.to_owned());
    }
    if rng.chance(500) {
        // A group goes to segments beside the root of the one before.
        spec.properties.insert("dirty_limit".to_owned(), "4M".to_owned());
    }
}

/// True when a pool gets copies of [`draw_copies`].
pub(super) fn has_copies(spec: &PoolSpec) -> bool {
    !spec.stores.is_empty() || (spec.in_objects && spec.spare_disks > 0)
}

/// True when the stores of copies lose objects, which the other sides have.
fn lose_objects(plan: &BootPlan<'_>) -> bool {
    let rng = &mut Seed(plan.spec.seed).derive("copies lose objects").rng();
    plan.fault_plan.has_faults() && has_copies(plan.spec) && rng.chance(COPIES_LOSE_PER_MILLE)
}

/// True when what faults leave of a pool is the store alone once the first disk is detached.
fn needs_first(plan: &BootPlan<'_>) -> bool {
    let data = 0..plan.spec.data_disks;
    lose_objects(plan) || plan.fault_plan.victims().iter().any(|disk| data.contains(disk))
}

/// Leaves out jobs of others that would make a store one of the disks that faults leave, or leave
/// it alone.
fn spare_copy(boot: &mut Boot, plan: &BootPlan<'_>, spare: usize) {
    let (spec, loses) = (plan.spec, lose_objects(plan));
    boot.admin.retain(|job| {
        let takes_data = job.taken().iter().any(|disk| *disk < spec.data_disks);
        let is_group = matches!(job, Admin::Manage(Manage::AddGroup(_)));
        let leaves_it_alone = loses && takes_data;
        !(job.taken().contains(&spare) || is_group || leaves_it_alone)
    });
}

/// Attaches the copy, mostly in the middle of the other jobs; detaches it, or what it is a copy of,
/// and attaches it again.
pub(super) fn attach(boot: &mut Boot, plan: &BootPlan<'_>) {
    if !has_copies(plan.spec) {
        return;
    }
    let rng = &mut plan.seed.derive("attached stores").rng();
    let spare = plan.spec.hot_spare_range().end;
    let first = plan.spec.data_disks - 1;
    let has_faults = plan.fault_plan.has_faults();
    if has_faults {
        spare_copy(boot, plan, spare);
    }
    let mut at = 0;
    for _ in 0..rng.between(1, 3) {
        let what = match rng.below(10) {
            0 if !has_faults || !needs_first(plan) => Manage::DetachCopy(first),
            1 | 2 => Manage::DetachCopy(spare),
            3 => Manage::AttachCopy(spare, first),
            _ => Manage::AttachCopy(first, spare),
        };
        let pause = Admin::Pause { ns: 1 << rng.between(14, 30) };
        at += rng.below((boot.admin.len() - at) as u64 + 1) as usize;
        boot.admin.splice(at..at, [pause, Admin::Manage(what)]);
        at += 2;
    }
    // A rebuild takes a while.
    for acts in &mut boot.clients {
        if rng.chance(400) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: 1 << rng.between(24, 31) });
        }
    }
}

/// Draws the objects that the store loses in a boot.
pub(super) fn draw_losses(plan: &BootPlan<'_>, commands: u64) -> Vec<TimedLoss> {
    let is_lossy = plan.spec.in_objects && !plan.fault_plan.is_survivable();
    if !is_lossy && !lose_objects(plan) {
        return Vec::new();
    }
    let rng = &mut plan.seed.derive("lost objects").rng();
    let loss = |rng: &mut Rng| {
        let at_command = if rng.chance(250) { 0 } else { rng.between(1, commands.min(1 << 12)) };
        TimedLoss { at_command, pick: rng.u64() }
    };
    (0..rng.between(0, MAX_LOST)).map(|_| loss(rng)).collect()
}
