//! The aim "suspension": disks fail that the pool cannot do without, it waits, and is cleared.

use forebay_sim::faults::{Effect, Failure, Fault, Ops, Trigger};
use forebay_sim::{CrashPoint, Rng};

use super::aim::Aim;
use super::boot::{BootPlan, change_volumes, commits};
use crate::scenario::{Boot, Crash, Outage, TimedFault};
use crate::subject::PoolSpec;

/// Requests to the pool wait while it is suspended, and its groups are short.
pub(super) fn draw_properties(spec: &mut PoolSpec, rng: &mut Rng) {
    let mut set = |name: &str, value: &str| {
        spec.properties.insert(name.to_owned(), value.to_owned());
    };
    set("failmode", "wait");
    set("txg_timeout", rng.pick::<&str>(&["1", "5"]));
    if rng.chance(300) {
        set("dirty_limit", "4M");
    }
}

/// Adds faults that suspend the pool, and the operator who clears it.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    if plan.aim != Aim::Suspension {
        return;
    }
    let rng = &mut plan.seed.derive("suspension").rng();
    let others = std::mem::replace(&mut boot.admin, commits(8, 26, rng));
    change_volumes(boot, others, 28, &mut plan.seed.derive("suspension volumes").rng());
    if plan.fault_plan.is_survivable() {
        boot.faults = plan.fault_plan.loud_faults(commands, rng);
    }
    for _ in 0..rng.between(1, 3) {
        let at_command = rng.between(1, commands);
        strike(boot, plan, at_command, rng);
    }
    let second_ns = 1_000_000_000;
    let pause = |rng: &mut Rng| match rng.below(3) {
        0 => 1 << rng.between(20, 30),
        1 => rng.between(1, 10) * second_ns,
        _ => rng.between(1, 60) * second_ns,
    };
    let outage = Outage {
        lasts_ns: if rng.chance(300) { 0 } else { rng.below(90) * second_ns },
        pauses_ns: (0..rng.between(1, 4)).map(|_| pause(rng)).collect(),
        brings_online: rng.chance(600),
        cut: rng.chance(300).then(|| (rng.below(3) * rng.below(2), draw_cut(plan, rng))),
    };
    if outage.cut.is_some() {
        // The power fails at the end of the work, if no earlier.
        let fates = boot.crash.take().map(|crash| crash.fates);
        let fates = fates.unwrap_or(crate::scenario::Fates::Random(rng.u64()));
        boot.crash = Some(Crash::at(CrashPoint::AfterSubmit(u64::MAX), fates));
    } else if let Some(crash) = &mut boot.crash {
        crash.in_work = true;
    }
    boot.outage = Some(outage);
}

/// When the power fails, counted from the begin of a `clear`: in its import, in the commit of what
/// was in memory, or after it.
fn draw_cut(plan: &BootPlan<'_>, rng: &mut Rng) -> CrashPoint {
    let most = *rng.pick(&[5, 60, 60 * plan.disks]);
    let number = rng.between(1, most);
    match rng.below(4) {
        0 => CrashPoint::BeforeSubmit(number),
        1 => CrashPoint::AfterSubmit(number),
        2 => CrashPoint::AfterComplete(number),
        _ => CrashPoint::AfterFlush(rng.between(1, 4 * plan.disks)),
    }
}

/// Disks fail together, or nearly so: every disk, the data disks, or those of one group or less.
fn strike(boot: &mut Boot, plan: &BootPlan<'_>, at_command: u64, rng: &mut Rng) {
    let spec = plan.spec;
    if spec.log.disks() > 0 && rng.chance(300) {
        return strike_log(boot, plan, at_command, rng);
    }
    if spec.parity() > 0 && rng.chance(200) {
        return strike_in_turn(boot, plan, at_command, rng);
    }
    let mut disks: Vec<usize> = match rng.below(6) {
        0 | 1 => (0..spec.data_disks + spec.log.disks()).collect(),
        2 | 3 => (0..spec.data_disks).collect(),
        _ => {
            let group = rng.below(spec.groups as u64) as usize;
            spec.group_ranges().nth(group).expect("the pool has this group").collect()
        }
    };
    if rng.chance(300) {
        let spared = rng.below(disks.len() as u64) as usize;
        disks.remove(spared);
    }
    let (first, spread) = (draw_fault(rng), *rng.pick(&[0, 0, 3, 40]));
    let is_alike = rng.chance(700);
    for disk in disks {
        let fault = if is_alike { first.clone() } else { draw_fault(rng) };
        let at_command = at_command + rng.below(spread + 1);
        boot.faults.push(TimedFault { at_command, disk, fault });
    }
}

/// As many disks as parity fail once. The others go on alone, and vanish for the whole outage.
fn strike_in_turn(boot: &mut Boot, plan: &BootPlan<'_>, at_command: u64, rng: &mut Rng) {
    let mut fault = |at_command, disk, fault| {
        boot.faults.push(TimedFault { at_command, disk, fault });
    };
    let delay = rng.between(10, 200);
    for (group, parity) in plan.spec.groups_with_parity() {
        let mut left: Vec<usize> = group.collect();
        for _ in 0..parity {
            let disk = left.swap_remove(rng.below(left.len() as u64) as usize);
            let (trigger, failure) = (Trigger::once(Ops::WRITE), Failure::Eio);
            fault(at_command, disk, Fault::Error { trigger, failure, effect: Effect::None });
        }
        left.into_iter().for_each(|disk| fault(at_command + delay, disk, Fault::Gone));
    }
}

/// Log disks vanish for the whole outage, and data disks fail once.
fn strike_log(boot: &mut Boot, plan: &BootPlan<'_>, at_command: u64, rng: &mut Rng) {
    for disk in plan.spec.log_range().filter(|_| rng.chance(900)) {
        boot.faults.push(TimedFault { at_command, disk, fault: Fault::Gone });
    }
    let (after, delay) = (rng.below(12), rng.below(20));
    for disk in 0..plan.spec.data_disks {
        let trigger = Trigger::once(*rng.pick(&[Ops::WRITE, Ops::FLUSH])).after(after);
        let fault = Fault::Error { trigger, failure: Failure::Eio, effect: Effect::None };
        boot.faults.push(TimedFault { at_command: at_command + delay, disk, fault });
    }
}

/// A fault that answers every failed command with an error, or not at all.
fn draw_fault(rng: &mut Rng) -> Fault {
    let effect = *rng.pick(&[Effect::None, Effect::Full]);
    let after = rng.below(12);
    let once = |ops: Ops| Trigger::once(ops).after(after);
    match rng.below(12) {
        0 | 1 => Fault::Gone,
        2 => Fault::GoneAt { trigger: once(Ops::ALL), effect },
        3 => Fault::Error { trigger: once(Ops::WRITE), failure: Failure::Eio, effect },
        4 => {
            let trigger = Trigger::always(*rng.pick(&[Ops::WRITE, Ops::FLUSH, Ops::ALL]));
            Fault::Error { trigger, failure: Failure::Eio, effect }
        }
        5 | 6 => Fault::FlushError { trigger: Trigger::once(Ops::FLUSH).after(after % 4) },
        7 => {
            let ops = *rng.pick(&[Ops::WRITE, Ops::FLUSH, Ops::ALL]);
            Fault::Stuck { ops, for_secs: rng.chance(500).then(|| rng.between(6, 120)) }
        }
        8 => Fault::ReadOnly { on: true },
        _ => Fault::NoSpace { limit_bytes: rng.below(64) << 14 },
    }
}
