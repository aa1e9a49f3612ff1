//! The aims at rare interleavings: writers at the throttle while volumes are cut, slow reads while
//! segments are reused, rot before the cleaner moves it, writes at a wrong address, torn roots, and
//! a thread that is blocked.

use forebay_sim::faults::{Fault, Ops, Trigger};
use forebay_sim::{CrashPoint, Latency, Rng};

use super::aim::Aim;
use super::boot::{BootPlan, commits};
use super::{canceled, slow_labels};
use crate::scenario::{Act, Admin, Boot, Crash, Fates, TimedFault};
use crate::stamp::Fill;
use crate::subject::PoolSpec;

/// Sectors of a MiB.
const MIB_SECTORS: u64 = 1 << 11;

/// Draws volumes of a pool in which some writers fill the dirty limit and the others wait.
pub(super) fn draw_throttled_volumes(spec: &mut PoolSpec, rng: &mut Rng) -> Vec<u64> {
    spec.data_bytes = 256 << 20;
    spec.properties.insert("dirty_limit".to_owned(), "4M".to_owned());
    (0..rng.between(1, 2)).map(|_| rng.between(2, 6) * MIB_SECTORS).collect()
}

/// Draws two equal volumes.
pub(super) fn draw_equal_volumes(rng: &mut Rng) -> Vec<u64> {
    vec![rng.between(1, 4) * MIB_SECTORS; 2]
}

/// Turns a boot into one of an aim of this module. With any aim, labels may be slow.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64) {
    let rng = &mut plan.seed.derive("races").rng();
    match plan.aim {
        Aim::Throttle => throttle(boot, plan, rng),
        Aim::SlowReads => slow_reads(boot, plan, commands, rng),
        Aim::MovedRot => rot_much(boot, plan, commands, rng),
        Aim::Misaddressed => misaddress(boot, plan, commands, rng),
        Aim::Roots => tear_roots(boot, plan, rng),
        Aim::Blocked => block_thread(boot, commands, rng),
        Aim::Canceled => canceled::apply(boot, plan, commands),
        _ => {}
    }
    slow_labels::apply(boot, plan);
}

/// Long writes near the ends of volumes, more than the throttle admits at a time, while the ends
/// move. A writer may wait from before a shrink until after it.
fn throttle(boot: &mut Boot, plan: &BootPlan<'_>, rng: &mut Rng) {
    let clients = rng.between(6, 10);
    let script = |_| {
        let volume = rng.below(plan.volumes.len() as u64) as u32;
        let sectors = plan.volumes[volume as usize];
        let (fua, aligned) = (*rng.pick(&[0, 100, 500]), *rng.pick(&[300, 900]));
        let draw_one = |_| {
            let count = rng.between(256, MIB_SECTORS);
            let first = sectors / 4 + rng.below(sectors * 3 / 4);
            let (first, count) = match rng.chance(aligned) {
                true => (first / 8 * 8, count / 8 * 8),
                false => (first, count),
            };
            match rng.below(20) {
                0 => Act::Read { volume, first, count },
                1 => Act::Zero { volume, first, count, fua: false, no_hole: false },
                2 => Act::Trim { volume, first, count, fua: false },
                _ => Act::Write { volume, first, count, fua: rng.chance(fua), fill: Fill::Noise },
            }
        };
        (0..12).map(draw_one).collect()
    };
    boot.clients = (0..clients).map(script).collect();
    boot.is_beside = true;
    boot.admin.clear();
    for _ in 0..rng.between(8, 30) {
        boot.admin.push(Admin::Pause { ns: 1 << rng.between(14, 24) });
        let volume = rng.below(plan.volumes.len() as u64) as u32;
        let blocks = plan.volumes[volume as usize] / 8;
        let blocks = if rng.chance(500) { blocks } else { rng.between(blocks / 4, blocks) };
        boot.admin.push(Admin::Resize { volume, sectors: blocks * 8 });
    }
}

/// Readers of a nearly full pool whose reads take long now and then, while writers overwrite what
/// they read and its segments are reused.
fn slow_reads(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64, rng: &mut Rng) {
    for _ in 0..rng.between(2, 6) {
        let acts = rng.between(20, 120);
        let draw_one = |_| {
            let volume = rng.below(plan.volumes.len() as u64) as u32;
            let count = *rng.pick(&[1, 8, 64, 512]);
            // Where writers overwrite most.
            let first = rng.below(plan.volumes[volume as usize] / 5 - count);
            Act::Read { volume, first, count }
        };
        boot.clients.push((0..acts).map(draw_one).collect());
    }
    for disk in 0..plan.disks as usize {
        for _ in 0..rng.between(1, 4) {
            let (base_ns, max_ns) = (1 << rng.between(18, 26), 1 << rng.between(28, 31));
            let latency = Latency::HeavyTail { base_ns, max_ns };
            let fault = Fault::Slow { ops: Ops::READ, latency };
            // At first the pool is filled.
            let at_command = rng.between(commands / 2, commands);
            boot.faults.push(TimedFault { at_command, disk, fault });
        }
    }
}

/// Rot in many recent writes of the struck disks, before the cleaner moves some of their blocks.
fn rot_much(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64, rng: &mut Rng) {
    let may_rot =
        |disk: &usize| *disk < plan.disks as usize && plan.fault_plan.may_damage_newest(*disk);
    for disk in plan.fault_plan.victims().iter().copied().filter(may_rot) {
        for _ in 0..rng.between(20, 60) {
            let (back, permille, mask) = (rng.below(64), rng.below(1000), 1 << rng.below(8));
            let fault = Fault::RotRecent { back, permille, mask };
            boot.faults.push(TimedFault { at_command: rng.between(1, commands), disk, fault });
        }
    }
}

/// Clients write runs of blocks of equal numbers in two volumes. Struck disks flip a bit of the
/// address of some writes, so that they land at the same place of another row or segment.
fn misaddress(boot: &mut Boot, plan: &BootPlan<'_>, commands: u64, rng: &mut Rng) {
    let (sectors, clients) = (plan.volumes[0], rng.between(2, 6));
    let script = |index: u64| {
        let volume = (index % 2) as u32;
        let (mut at, fua) = (rng.below(sectors / 8) * 8, *rng.pick(&[0, 300]));
        let mut out = Vec::new();
        for _ in 0..rng.between(16, 64) {
            let count = (rng.between(1, 32) * 8).min(sectors);
            at = if at + count > sectors { 0 } else { at };
            out.push(match rng.below(12) {
                0 => Act::Read { volume, first: at, count },
                1 => Act::Flush { volume },
                _ => {
                    let fua = rng.chance(fua);
                    Act::Write { volume, first: at, count, fua, fill: Fill::Noise }
                }
            });
            at += count;
        }
        out
    };
    boot.clients = (0..clients).map(script).collect();
    boot.admin = commits(12, 22, rng);
    let may_miss = |disk: &&usize| plan.fault_plan.may_damage_newest(**disk);
    for disk in plan.fault_plan.victims().iter().filter(may_miss) {
        for _ in 0..rng.between(1, 4) {
            let mut trigger = Trigger::once(Ops::WRITE).after(rng.below(30));
            trigger.times = rng.between(1, 3);
            // From a block up to half of a disk.
            let fault = Fault::Misaddressed { trigger, bit: rng.between(12, 25) as u32 };
            let at_command = rng.between(1, commands);
            boot.faults.push(TimedFault { at_command, disk: *disk, fault });
        }
    }
}

/// The power fails while a root is being written to both label areas of every disk.
fn tear_roots(boot: &mut Boot, plan: &BootPlan<'_>, rng: &mut Rng) {
    boot.admin = commits(10, 20, rng);
    let point = CrashPoint::SinceFlush {
        flush: rng.between(1, 8 * plan.disks),
        commands: rng.between(1, 3 * plan.disks + 2),
    };
    let in_work = plan.is_first || rng.chance(400);
    let seed = rng.u64();
    let fates = if rng.chance(500) { Fates::Torn(seed) } else { Fates::Random(seed) };
    boot.crash = Some(Crash { in_work, ..Crash::at(point, fates) });
}

/// The thread that submits commands stands still, for longer than the deadline of devices at most.
fn block_thread(boot: &mut Boot, commands: u64, rng: &mut Rng) {
    boot.admin = commits(8, 24, rng);
    for _ in 0..rng.between(1, 6) {
        let for_ms = 1 << rng.below(16);
        let at_command = rng.between(1, commands);
        boot.faults.push(TimedFault { at_command, disk: 0, fault: Fault::Blocked { for_ms } });
    }
}
