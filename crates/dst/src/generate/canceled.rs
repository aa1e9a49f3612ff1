//! The aim "canceled": clients go away while their requests are in flight, and others go on.

use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{Latency, Rng};

use super::boot::{BootPlan, commits};
use super::races;
use crate::scenario::{Act, Boot, TimedFault};
use crate::stamp::Fill;
use crate::subject::PoolSpec;

/// How many of a thousand pools have so little memory that writers wait for it.
const THROTTLED_PER_MILLE: u64 = 300;
/// Sectors of a long write.
const LONG_SECTORS: u64 = 1 << 10;

/// Draws the volumes of a pool with little memory; `None` leaves the usual ones.
pub(super) fn draw_volumes(spec: &mut PoolSpec, rng: &mut Rng) -> Option<Vec<u64>> {
    rng.chance(THROTTLED_PER_MILLE).then(|| races::draw_throttled_volumes(spec, rng))
}

/// Lets most clients of a boot go away several times, on disks of which some are slow. `commands`
/// estimates the boot's device commands.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    let rng = &mut plan.seed.derive("canceled").rng();
    boot.admin = commits(12, 20, rng);
    let is_throttled = plan.spec.properties.contains_key("dirty_limit");
    for acts in &mut boot.clients {
        if is_throttled && rng.chance(500) {
            lengthen(acts, plan.volumes, rng);
        }
        if rng.chance(800) {
            go_away(acts, rng);
        }
    }
    for disk in 0..plan.spec.disks() {
        if rng.chance(400) {
            let (base_ns, max_ns) = (1 << rng.between(14, 18), 1 << rng.between(20, 27));
            let latency = Latency::HeavyTail { base_ns, max_ns };
            let ops = *rng.pick(&[Ops::READ, Ops::WRITE, Ops::FLUSH, Ops::ALL]);
            let at_command = rng.between(1, commands);
            boot.faults.push(TimedFault { at_command, disk, fault: Fault::Slow { ops, latency } });
        }
    }
}

/// Makes most acts long writes.
fn lengthen(acts: &mut [Act], volumes: &[u64], rng: &mut Rng) {
    for act in acts {
        if let Act::Write { volume, fua, .. } = *act {
            let count = LONG_SECTORS - rng.below(16);
            let first = volumes[volume as usize].saturating_sub(count) / 2;
            if rng.chance(700) {
                *act = Act::Write { volume, first, count, fua, fill: Fill::Noise };
            }
        }
    }
}

/// Inserts departures between the acts of a client.
fn go_away(acts: &mut Vec<Act>, rng: &mut Rng) {
    let most = *rng.pick(&[1, 1, 3, 12]);
    let mut left = std::mem::take(acts).into_iter().peekable();
    while left.peek().is_some() {
        let requests = rng.between(1, most);
        // Departures at the first waits are those of requests that have done least.
        let waits = rng.between(1, 4 * requests);
        let after_ns = if rng.chance(500) { 0 } else { 1 << rng.between(10, 24) };
        acts.push(Act::GiveUp { requests, waits, after_ns, is_abrupt: rng.chance(500) });
        acts.extend(left.by_ref().take((requests + rng.below(12)) as usize));
    }
}
