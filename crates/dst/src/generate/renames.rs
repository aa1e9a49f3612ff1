//! Volumes that get another name while clients are connected to them, and snapshots that do.

use forebay_sim::Rng;

use super::aim::Aim;
use super::boot::BootPlan;
use super::snapshots::{FIRST_CLONE, MOST_CLONES};
use crate::scenario::{Admin, Boot, SnapshotJob};

/// How many of a thousand boots with an administrator have volumes renamed.
const BOOTS_PER_MILLE: u64 = 200;
/// How many of a thousand of these have volumes take names that others had.
const SHARED_PER_MILLE: u64 = 500;
/// Most volumes that are renamed in a boot.
const MOST_RENAMES: u64 = 5;
/// Names of a volume, the first one with it. Those after them belong to any.
const NAMES: u64 = 4;

/// How many of a thousand boots of scenarios with snapshots have snapshots renamed.
const SNAPSHOT_BOOTS_PER_MILLE: u64 = 300;
/// Most snapshots that are renamed in a boot.
const MOST_SNAPSHOT_RENAMES: u64 = 5;
/// Only so many of the newest snapshots get other names.
const NEWEST: usize = 6;

/// Renames volumes between the jobs of a boot.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("renames").rng();
    if !plan.may_change_volumes(boot) || !rng.chance(BOOTS_PER_MILLE) {
        return;
    }
    let has_snapshots = |job: &Admin| matches!(job, Admin::Snapshot(SnapshotJob::Clone { .. }));
    let has_clones = boot.admin.iter().any(has_snapshots);
    for _ in 0..rng.between(1, MOST_RENAMES) {
        let at = rng.below(boot.admin.len() as u64 + 1) as usize;
        let volume = match rng.below(10) {
            0..3 if has_clones => FIRST_CLONE + rng.below(u64::from(MOST_CLONES)) as u32,
            // With those that jobs create.
            3 => rng.below(plan.volumes.len() as u64 + 4) as u32,
            _ => rng.below(plan.volumes.len() as u64) as u32,
        };
        let rename = Admin::Rename { volume, to: rng.below(NAMES) as u32 };
        let pause = Admin::Pause { ns: 1 << rng.between(12, 24) };
        boot.admin.splice(at..at, [pause, rename]);
    }
    pass_names_on(boot, plan);
}

/// Has volumes take names that others had. Clients of other hosts would reach the other volume.
fn pass_names_on(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("shared names").rng();
    // Elsewhere a volume may be back that had the name.
    let is_certain = plan.fault_plan.is_survivable() && plan.aim != Aim::Rewind;
    if !is_certain || plan.remote > 0 || !rng.chance(SHARED_PER_MILLE) {
        return;
    }
    let mut at = 0;
    for _ in 0..rng.between(2, 8) {
        at += rng.below((boot.admin.len() - at) as u64 + 1) as usize;
        let volume = rng.below(plan.volumes.len() as u64 + 2) as u32;
        let to = if rng.chance(600) { NAMES + rng.below(2) } else { rng.below(NAMES) };
        let pause = Admin::Pause { ns: 1 << rng.between(12, 22) };
        boot.admin.splice(at..at, [pause, Admin::Rename { volume, to: to as u32 }]);
        at += 2;
    }
}

/// Renames some of the snapshots `taken`, between the other jobs of a boot.
pub(super) fn apply_to_snapshots(boot: &mut Boot, taken: &[(u32, u32)], rng: &mut Rng) {
    if taken.is_empty() || !rng.chance(SNAPSHOT_BOOTS_PER_MILLE) {
        return;
    }
    let newest = &taken[taken.len().saturating_sub(NEWEST)..];
    for _ in 0..rng.between(1, MOST_SNAPSHOT_RENAMES) {
        let (volume, number) = newest[rng.below(newest.len() as u64) as usize];
        let first = after_its_instant(&boot.admin, number);
        let at = first + rng.below((boot.admin.len() - first) as u64 + 1) as usize;
        let rename = SnapshotJob::Rename { volume, number, to: rng.below(NAMES) as u32 };
        let pause = Admin::Pause { ns: 1 << rng.between(12, 22) };
        boot.admin.splice(at..at, [pause, Admin::Snapshot(rename)]);
    }
}

/// The place in a list of jobs from which on the snapshots of an instant may be there.
pub(super) fn after_its_instant(jobs: &[Admin], number: u32) -> usize {
    let takes_it = |job: &Admin| match job {
        Admin::Snapshot(SnapshotJob::Take { number: taken, .. }) => *taken == number,
        _ => false,
    };
    jobs.iter().position(takes_it).map_or(0, |at| at + 1)
}
