//! Log devices on other hosts: which pools have them, and when networks fail.

use forebay_sim::Rng;

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::{Act, Boot, Network, TimedNetwork};
use crate::subject::PoolSpec;

/// How many of a thousand scenarios with log devices have some on other hosts.
const REMOTE_LOGS_PER_MILLE: u64 = 450;

/// Puts log devices on other hosts.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let disks = (spec.log.disks() - spec.memory_logs) as u64;
    // Beyond the promise the log is struck on all sides already.
    let is_promised = matches!(level, Level::CrashOnly | Level::Within);
    let is_usual = matches!(aim, Aim::Mixed | Aim::Replay | Aim::Parts | Aim::Redundancy);
    if disks > 0 && is_promised && is_usual && rng.chance(REMOTE_LOGS_PER_MILLE) {
        spec.remote_logs = rng.between(1, disks) as usize;
    }
}

/// Adds failures of the networks to log devices that may fail.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    // In a succession other disks fail later, once the pool is whole.
    if plan.aim == Aim::Redundancy && !plan.is_first {
        return;
    }
    let rng = &mut plan.seed.derive("remote log").rng();
    for disk in plan.spec.remote_log_range() {
        if !plan.fault_plan.victims().contains(&disk) || rng.chance(200) {
            continue;
        }
        let early = !plan.is_first && rng.chance(250);
        let mut at_command = if early { 0 } else { rng.between(1, commands) };
        for _ in 0..rng.between(1, 5) {
            let network = match rng.below(10) {
                0..4 => Network::Down,
                4..7 => Network::Up,
                7..9 => Network::Restart,
                _ => Network::Slow { ms: rng.between(1, 4000) },
            };
            boot.network.push(TimedNetwork { at_command, disk, network });
            at_command += rng.between(1, commands.max(4) / 4);
        }
    }
    if boot.network.is_empty() {
        return;
    }
    // For devices that are given up, and for those that come back.
    for acts in &mut boot.clients {
        for _ in 0..rng.between(1, 3) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: rng.between(10, 80) * 100_000_000 });
        }
    }
}
