//! Log devices in memory: which pools have them, and when the power fails.

use forebay_sim::Rng;
use forebay_sim::faults::Fault;

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::{Act, Admin, Boot, Power, TimedPower};
use crate::subject::{Manage, PoolSpec};

/// How many of a thousand scenarios with log devices have some in memory.
const LOG_MEMORY_PER_MILLE: u64 = 350;
/// How many of a thousand scenarios with mirrored logs have memory for a side of some.
const MIRRORED_MEMORY_PER_MILLE: u64 = 350;
/// How many of a thousand boots begin without the memory of the one before.
const MEMORY_LOST_PER_MILLE: u64 = 600;

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

/// Makes the first side of log mirrors memory. Faults spare their other sides.
pub(super) fn draw_mirrored(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let is_promised = matches!(level, Level::CrashOnly | Level::Within);
    let is_usual = matches!(aim, Aim::Mixed | Aim::Replay | Aim::Parts);
    let remote = spec.remote_log_range();
    let able = spec.ring_ranges().take_while(|ring| !remote.contains(&ring.start)).count() as u64;
    let has_sides = spec.log.sides() > 1 && spec.memory_logs == 0 && able > 0;
    if has_sides && is_promised && is_usual && rng.chance(MIRRORED_MEMORY_PER_MILLE) {
        spec.mirrored_memory = rng.between(1, able) as usize;
    }
}

/// Loses memory that only a mirror protects, takes it in again, and takes its other side away.
pub(super) fn apply_mirrored(boot: &mut Boot, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("mirrored memory").rng();
    if plan.spec.mirrored_memory == 0 {
        return;
    }
    boot.memory_lost = !plan.is_first && rng.chance(MEMORY_LOST_PER_MILLE);
    // A memory without its other side is not protected any more, and would be lost for good.
    let sides: Vec<usize> = plan.spec.mirrored_memory_disks().map(|disk| disk + 1).collect();
    let unprotects = |admin: &Admin| match admin {
        Admin::Manage(Manage::Detach(disk)) => sides.contains(disk),
        _ => false,
    };
    boot.admin.retain(|admin| !unprotects(admin));
    for disk in plan.spec.mirrored_memory_disks() {
        let other = disk + 1;
        let jobs = match rng.below(4) {
            0 => vec![Manage::Renew(disk)],
            1 => vec![Manage::Renew(disk), Manage::Offline(other)],
            2 => vec![Manage::Offline(other), Manage::Online(other)],
            _ => vec![Manage::Renew(disk), Manage::Offline(other), Manage::Online(other)],
        };
        for job in jobs {
            let pause = Admin::Pause { ns: 1 << rng.between(14, 27) };
            let at = rng.below(boot.admin.len() as u64 / 2 + 1) as usize;
            let at = if job == Manage::Renew(disk) { at } else { boot.admin.len() };
            boot.admin.splice(at..at, [pause, Admin::Manage(job)]);
        }
    }
}
