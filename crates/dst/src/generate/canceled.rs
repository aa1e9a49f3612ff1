//! The aim "canceled": clients go away while their requests are in flight, and others go on.

use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{CrashPoint, Latency, Rng};

use super::boot::{BootPlan, commits};
use super::races;
use crate::scenario::{Act, Boot, Fates, TimedFault};
use crate::stamp::Fill;
use crate::subject::PoolSpec;

/// How many of a thousand pools have so little memory that writers wait for it.
const THROTTLED_PER_MILLE: u64 = 300;
/// How many of a thousand boots have clients that flush what others wrote, and go away.
const FLUSHES_PER_MILLE: u64 = 400;
/// Sectors of a long write.
const LONG_SECTORS: u64 = 1 << 10;

/// Draws the volumes of a pool with little memory; `None` leaves the usual ones.
pub(super) fn draw_volumes(spec: &mut PoolSpec, rng: &mut Rng) -> Option<Vec<u64>> {
    rng.chance(THROTTLED_PER_MILLE).then(|| races::draw_throttled_volumes(spec, rng))
}

/// Lets most clients of a boot go away several times. Some of the disks are slow. `commands`
/// estimates the boot's device commands.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    let rng = &mut plan.seed.derive("canceled").rng();
    boot.admin = commits(12, 20, rng);
    if rng.chance(FLUSHES_PER_MILLE) {
        return give_up_flushes(boot, plan, commands, rng);
    }
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

/// Clients that write to one volume and flush it, on slow disks. Some flushes are given up: they
/// carry what others wrote, who flush soon afterwards.
fn give_up_flushes(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64, rng: &mut Rng) {
    let volume = rng.below(plan.volumes.len() as u64) as u32;
    let places = plan.volumes[volume as usize] / 8;
    boot.admin.clear();
    let clients = rng.between(2, 8);
    let script = |_| {
        let mut acts = Vec::new();
        for _ in 0..rng.between(8, 60) {
            let (first, count) = (rng.below(places) * 8, 8);
            acts.push(Act::Write { volume, first, count, fua: false, fill: Fill::Noise });
            if rng.chance(700) {
                acts.push(Act::Pause { ns: 1 << rng.between(10, 24) });
            }
            if rng.chance(500) {
                let after_ns = if rng.chance(600) { 0 } else { 1 << rng.between(10, 18) };
                acts.push(Act::GiveUp { requests: 1, waits: 1, after_ns, is_abrupt: true });
            }
            acts.push(Act::Flush { volume });
            // What was given up is asked for again, as it may not have happened.
            if rng.chance(500) {
                acts.push(Act::Flush { volume });
            }
        }
        acts
    };
    boot.clients = (0..clients).map(script).collect();
    for disk in 0..plan.spec.disks() {
        let (min_ns, max_ns) = (1 << rng.between(14, 18), 1 << rng.between(20, 24));
        let fault = Fault::Slow { ops: Ops::WRITE, latency: Latency::Uniform { min_ns, max_ns } };
        boot.faults.push(TimedFault { at_command: 0, disk, fault });
    }
    let point = CrashPoint::AfterSubmit(rng.between(1, commands.min(100)));
    if let Some(crash) = &mut boot.crash {
        (crash.point, crash.in_work) = (point, true);
        if rng.chance(500) {
            crash.fates = Fates::Lost;
        }
    }
}

/// Makes most acts long writes.
fn lengthen(acts: &mut [Act], volumes: &[u64], rng: &mut Rng) {
    for act in acts {
        if let Act::Write { volume, fua, .. } = *act {
            // Not of volumes that the scenario itself creates.
            let Some(sectors) = volumes.get(volume as usize) else { continue };
            let count = LONG_SECTORS - rng.below(16);
            let first = sectors.saturating_sub(count) / 2;
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
