//! Volumes whose space is reserved, or is not any more, while clients write them.

use super::aim::Aim;
use super::boot::BootPlan;
use super::snapshots::{FIRST_CLONE, MOST_CLONES};
use crate::scenario::{Admin, Boot};

/// How many of a thousand boots with an administrator have such volumes.
const BOOTS_PER_MILLE: u64 = 200;
/// Most changes in a boot.
const MOST_CHANGES: u64 = 6;

/// Changes reservations between the jobs of a boot.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>) {
    // There what is left of the space is counted, or volumes are larger than the pool.
    let is_apart = matches!(plan.aim, Aim::Refusals | Aim::Canceled | Aim::Sizes);
    let rng = &mut plan.seed.derive("reservations").rng();
    if !plan.may_change_volumes(boot) || is_apart || !rng.chance(BOOTS_PER_MILLE) {
        return;
    }
    for _ in 0..rng.between(1, MOST_CHANGES) {
        let at = rng.below(boot.admin.len() as u64 + 1) as usize;
        let volume = match rng.below(5) {
            0 => FIRST_CLONE + rng.below(u64::from(MOST_CLONES)) as u32,
            _ => rng.below(plan.volumes.len() as u64) as u32,
        };
        let pause = Admin::Pause { ns: 1 << rng.between(12, 24) };
        let is_thick = rng.chance(500);
        boot.admin.splice(at..at, [pause, Admin::Reserve { volume, is_thick }]);
    }
}
