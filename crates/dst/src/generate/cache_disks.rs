//! Cache devices: which pools have them, what befalls them, and who takes them in and out.

use forebay_sim::Rng;
use forebay_sim::faults::Fault;

use super::boot::BootPlan;
use crate::scenario::{Admin, Boot, TimedFault};
use crate::subject::{Manage, PoolSpec};

/// How many of a thousand scenarios have cache devices.
const CACHE_DISKS_PER_MILLE: u64 = 200;

/// Gives a pool cache devices. Its cache in memory is so small that blocks leave it soon.
pub(super) fn draw(spec: &mut PoolSpec, rng: &mut Rng) {
    if !rng.chance(CACHE_DISKS_PER_MILLE) {
        return;
    }
    spec.cache_disks = *rng.pick(&[1, 1, 1, 2]);
    let size = *rng.pick(&["64K", "64K", "128K", "1M"]);
    let dwpd = *rng.pick(&["off", "off", "1", "0.001"]);
    for (name, value) in [("cache_size", size), ("cache_dwpd", dwpd)] {
        spec.properties.insert(name.to_owned(), value.to_owned());
    }
}

/// Adds faults of cache devices, which may do anything at any level but that without faults, and
/// an operator who changes them.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    let disks: Vec<usize> = plan.spec.cache_range().collect();
    if disks.is_empty() {
        return;
    }
    let rng = &mut plan.seed.derive("cache disks").rng();
    if plan.fault_plan.has_faults() && rng.chance(700) {
        boot.faults.extend(plan.fault_plan.faults_of(&disks, commands, plan.is_first, rng));
        // A block there is read by few clients, so much must rot that one of them meets it.
        for _ in 0..rng.below(40) {
            let (disk, back, permille) = (*rng.pick(&disks), rng.below(16), rng.below(1000));
            let fault = Fault::RotRecent { back, permille, mask: 1 << rng.below(8) };
            boot.faults.push(TimedFault { at_command: rng.between(1, commands), disk, fault });
        }
    }
    if !boot.admin.is_empty() && rng.chance(400) {
        for _ in 0..rng.between(1, 4) {
            let disk = *rng.pick(&disks);
            let what = match rng.below(6) {
                0 | 1 => Manage::CacheOffline(disk),
                2 | 3 => Manage::CacheOnline(disk),
                4 => Manage::CacheRemove(disk),
                _ => Manage::CacheAdd(disk),
            };
            let at = rng.below(boot.admin.len() as u64 + 1) as usize;
            boot.admin.insert(at, Admin::Manage(what));
        }
    }
}
