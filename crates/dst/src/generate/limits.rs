//! Volumes whose requests are limited while clients make them.

use super::aim::Aim;
use super::boot::BootPlan;
use crate::scenario::{Admin, Boot};

/// How many of a thousand boots with an administrator have such volumes.
const BOOTS_PER_MILLE: u64 = 150;
/// Most changes in a boot.
const MOST_CHANGES: u64 = 6;

/// Sets and lifts limits between the jobs of a boot.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>) {
    // There a client that waits is one that must not, or waits for something else.
    let is_apart = matches!(plan.aim, Aim::Canceled | Aim::Suspension | Aim::Takeover);
    let rng = &mut plan.seed.derive("limits").rng();
    if !plan.may_change_volumes(boot) || is_apart || !rng.chance(BOOTS_PER_MILLE) {
        return;
    }
    for _ in 0..rng.between(1, MOST_CHANGES) {
        let at = rng.below(boot.admin.len() as u64 + 1) as usize;
        let volume = rng.below(plan.volumes.len() as u64) as u32;
        let (name, value) = *rng.pick(&[
            ("iops_limit", "200"),
            ("iops_limit", "5000"),
            ("iops_limit", "none"),
            ("bandwidth_limit", "1M"),
            ("bandwidth_limit", "16M"),
            ("bandwidth_limit", "none"),
        ]);
        let pause = Admin::Pause { ns: 1 << rng.between(12, 28) };
        let limit = Admin::Service { volume, name: name.to_owned(), value: value.to_owned() };
        boot.admin.splice(at..at, [pause, limit]);
    }
}
