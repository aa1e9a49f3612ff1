//! Log devices in memory: which pools have them, and when the power fails.

use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{CrashPoint, Latency, Rng};

use super::aim::Aim;
use super::boot::BootPlan;
use crate::fault_plan::Level;
use crate::scenario::{Act, Admin, Boot, Crash, Fates, Power, TimedFault, TimedPower};
use crate::stamp::Fill;
use crate::subject::{LogShape, Manage, PoolSpec};

/// How many of a thousand scenarios with log devices have some in memory.
const LOG_MEMORY_PER_MILLE: u64 = 350;
/// How many of a thousand scenarios with mirrored logs have memory for a side of some.
const MIRRORED_MEMORY_PER_MILLE: u64 = 350;
/// How many of a thousand boots begin without the memory of the one before.
const MEMORY_LOST_PER_MILLE: u64 = 600;

/// Puts log devices in memory.
pub(super) fn draw(spec: &mut PoolSpec, level: Level, aim: Aim, rng: &mut Rng) {
    let disks = spec.log.disks() as u64;
    if aim == Aim::Memory {
        // Beside a side that is no memory nothing would be lost.
        spec.memory_logs = if rng.chance(800) { disks } else { rng.between(1, disks) } as usize;
        // What the log has is nowhere else for long.
        spec.properties.insert("txg_timeout".to_owned(), "60".to_owned());
        return;
    }
    // Beyond the promise the log is struck on all sides already.
    let is_promised = matches!(level, Level::CrashOnly | Level::Within);
    let is_usual = matches!(aim, Aim::Mixed | Aim::Replay | Aim::Parts);
    if disks > 0 && is_promised && is_usual && rng.chance(LOG_MEMORY_PER_MILLE) {
        spec.memory_logs = rng.between(1, disks) as usize;
    }
}

/// Adds to a boot what happens to log devices in memory of any kind.
pub(super) fn apply_all(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    apply(boot, plan, commands);
    apply_mirrored(boot, plan);
    apply_aim(boot, plan);
}

/// Adds pauses in which devices are armed, and failures of the power.
fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    if plan.spec.memory_logs == 0 || plan.aim == Aim::Memory {
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

/// The shape of a pool with log devices in memory.
pub(super) fn with_log(spec: PoolSpec) -> PoolSpec {
    match spec.log {
        LogShape::None => PoolSpec { log: LogShape::One, ..spec },
        _ => spec,
    }
}

/// The script of a client of the aim "memory": durable writes all along.
pub(super) fn draw_client(volumes: &[u64], rng: &mut Rng) -> Vec<Act> {
    let volume = rng.below(volumes.len() as u64) as u32;
    let sectors = volumes[volume as usize];
    // The log device is armed after some seconds, and saved seconds after the line has gone.
    let bits = rng.between(22, 25);
    let mut out = Vec::new();
    for _ in 0..rng.between(200, 500) {
        let count = 8 * rng.between(1, 3);
        let first = rng.below((sectors - count) / 8 + 1) * 8;
        out.push(Act::Write { volume, first, count, fua: rng.chance(900), fill: Fill::Noise });
        if rng.chance(700) {
            out.push(Act::Pause { ns: rng.between(1, 1 << bits) });
        }
    }
    out
}

/// Turns a boot into one of the aim "memory": restores and saves take as long as many writes, the
/// line comes and goes, and the power fails at any instant of that.
fn apply_aim(boot: &mut Boot, plan: &BootPlan<'_>) {
    if plan.aim != Aim::Memory {
        return;
    }
    let rng = &mut plan.seed.derive("memory").rng();
    boot.admin.clear();
    for disk in plan.spec.memory_log_range() {
        let read = Latency::Uniform { min_ns: 1 << 20, max_ns: 1 << rng.between(22, 26) };
        let write = Latency::HeavyTail { base_ns: 1 << 18, max_ns: 1 << rng.between(24, 31) };
        for (ops, latency) in [(Ops::READ, read), (Ops::WRITE, write)] {
            // What is read before, and answered after, lacks what is written meanwhile.
            let fault = match rng.chance(600) {
                true => Fault::SlowAnswer { ops, latency },
                false => Fault::Slow { ops, latency },
            };
            boot.faults.push(TimedFault { at_command: 0, disk, fault });
        }
    }
    boot.power.clear();
    let acts: usize = boot.clients.iter().map(Vec::len).sum();
    let mut at_command = 0;
    for _ in 0..rng.below(5) {
        at_command += rng.between(1, acts as u64 / 2);
        let power = *rng.pick(&[Power::Battery, Power::Battery, Power::SilentBattery, Power::Line]);
        boot.power.push(TimedPower { at_command, power });
    }
    if rng.chance(800) {
        let point = CrashPoint::AtTime(rng.between(1 << 29, 1 << 33));
        boot.crash = Some(Crash::at(point, Fates::Random(rng.u64())));
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
fn apply_mirrored(boot: &mut Boot, plan: &BootPlan<'_>) {
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
