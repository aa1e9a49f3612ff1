//! Log devices in memory: which pools have them, and when the power fails.

use forebay_sim::Rng;
use forebay_sim::faults::Fault;

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::{Act, Boot, Power, TimedPower};
use crate::subject::PoolSpec;

/// How many of a thousand scenarios with log devices have some in memory.
const LOG_MEMORY_PER_MILLE: u64 = 350;

/// Puts log devices in memory.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let disks = spec.log.disks() as u64;
    // Beyond the promise the log is struck on all sides already.
    let is_promised = matches!(level, Level::CrashOnly | Level::Within);
    let is_usual = matches!(aim, Aim::Mixed | Aim::Replay | Aim::Parts);
    if disks > 0 && is_promised && is_usual && rng.chance(LOG_MEMORY_PER_MILLE) {
        spec.memory_logs = rng.between(1, disks) as usize;
    }
}

/// Adds pauses in which devices are armed, and failures of the power.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    if plan.spec.memory_logs == 0 {
        return;
    }
    let rng = &mut plan.seed.derive("log memory").rng();
    for acts in &mut boot.clients {
        for _ in 0..rng.between(1, 3) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: rng.between(1, 30) * 100_000_000 });
        }
    }
    // A save meets no disk that is slow on purpose: the battery would have to hold for longer.
    let memory_logs = plan.spec.memory_log_range();
    let delays = |fault: &Fault| {
        matches!(fault, Fault::Slow { .. } | Fault::Hung { .. } | Fault::Stuck { .. })
    };
    let can_fail = boot.crash.is_some()
        && boot.outage.is_none()
        && boot.succession.is_none()
        && !boot.faults.iter().any(|timed| matches!(timed.fault, Fault::Blocked { .. }));
    if !can_fail || rng.chance(400) {
        return;
    }
    boot.faults.retain(|timed| !(memory_logs.contains(&timed.disk) && delays(&timed.fault)));
    let mut at_command = rng.between(1, commands);
    for _ in 0..rng.between(1, 4) {
        let power = *rng.pick(&[Power::Battery, Power::Battery, Power::SilentBattery, Power::Line]);
        boot.power.push(TimedPower { at_command, power });
        at_command += rng.between(1, commands.max(2) / 2);
    }
}
