//! The aim "returns": disks come back while commands of theirs are late, while other disks are
//! slow, and while they are being rebuilt.

use forebay_sim::faults::{Effect, Failure, Fault, Ops, Trigger};
use forebay_sim::{Latency, Rng};

use super::aim::Aim;
use super::boot::BootPlan;
use crate::scenario::{Act, Admin, Boot, TimedFault};
use crate::subject::{Manage, PoolSpec};

/// Longest delay of a disk that is slow, below any deadline.
const MAX_SLOW_NS: u64 = 800_000_000;

/// Gives a pool short deadlines, and if it is not nearly full, segments of which the rebuild takes
/// several steps.
pub(super) fn draw_properties(spec: &mut PoolSpec, is_full: bool, rng: &mut Rng) {
    for name in ["device_timeout", "log_timeout"] {
        spec.properties.insert(name.to_owned(), rng.between(1, 2).to_string());
    }
    if !is_full {
        spec.data_bytes = 256 << 20;
        spec.segment_bytes = 4 << 20;
    }
}

/// Strikes the disks of `victims` so that they are given up, and brings them online again and
/// again. `commands` estimates the boot's device commands. Boots of other aims stay as they are.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, victims: &[usize], commands: u64) {
    if plan.aim != Aim::Returns {
        return;
    }
    let rng = &mut plan.seed.derive("returns").rng();
    for acts in &mut boot.clients {
        for _ in 0..rng.between(2, 24) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: 1 << rng.between(26, 31) });
        }
    }
    // What lands late shows only when the boot goes on for as long.
    if rng.chance(500) {
        boot.crash = None;
    }
    for disk in victims {
        for _ in 0..rng.between(1, 5) {
            let fault = draw_fault(plan.spec, rng);
            let at_command = rng.between(1, commands);
            boot.faults.push(TimedFault { at_command, disk: *disk, fault });
            let back = at_command + rng.between(1, 200);
            boot.faults.push(TimedFault { at_command: back, disk: *disk, fault: Fault::Back });
        }
    }
    for disk in (0..plan.disks as usize).filter(|disk| !victims.contains(disk)) {
        if rng.chance(600) {
            let (base_ns, max_ns) = (1 << rng.between(16, 26), MAX_SLOW_NS);
            let ops = *rng.pick(&[Ops::READ, Ops::WRITE, Ops::ALL]);
            let fault = Fault::Slow { ops, latency: Latency::HeavyTail { base_ns, max_ns } };
            boot.faults.push(TimedFault { at_command: rng.between(1, commands), disk, fault });
        }
    }
    for _ in 0..rng.between(8, 40) {
        boot.admin.push(Admin::Pause { ns: 1 << rng.between(22, 31) });
        for disk in victims {
            boot.admin.push(Admin::Manage(Manage::Online(*disk)));
        }
        if rng.chance(300) {
            boot.admin.push(Admin::Manage(Manage::Commit));
        }
    }
}

fn draw_fault(spec: &PoolSpec, rng: &mut Rng) -> Fault {
    let mut trigger = Trigger::once(Ops::WRITE).after(rng.below(20));
    match rng.below(8) {
        0 => Fault::Gone,
        1 => Fault::GoneAt { trigger, effect: *rng.pick(&[Effect::None, Effect::Full]) },
        2 => {
            let effect = *rng.pick(&[Effect::None, Effect::Full]);
            Fault::Error { trigger, failure: Failure::Eio, effect }
        }
        _ => {
            // Mostly in segments, which are written anew, and not in the log or the label.
            if rng.chance(700) {
                trigger = trigger.within(spec.data_bytes / 4, u64::MAX);
            }
            trigger.times = rng.between(1, 8);
            Fault::Late { trigger, for_ms: 1 << rng.between(12, 16) }
        }
    }
}
