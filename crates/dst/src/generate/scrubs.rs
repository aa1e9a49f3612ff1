//! The aim "scrubs": scrubs that are paused, go on after an export and a crash, and are stopped,
//! while disks rot; and maps that no disk holds any more, which a scrub writes anew.

use forebay_sim::faults::{Fault, Ops};
use forebay_sim::{Latency, Rng};

use super::aim::Aim;
use super::boot::{BootPlan, Size};
use crate::fault_plan::Level;
use crate::scenario::{Admin, Boot, TimedFault, TimedMapLoss};
use crate::subject::{Manage, PoolSpec, ScanJob};

/// Most places of a disk that rot in a boot.
const MOST_ROT: u64 = 24;
/// Longest time of a read on a disk that is slow.
const MAX_SLOW_NS: u64 = 60_000_000;
/// Most recent writes of a disk that may rot.
const RECENT_WRITES: u64 = 64;

/// Gives some pools scrubs that take long.
pub(super) fn draw_properties(spec: &mut PoolSpec, rng: &mut Rng) {
    if rng.chance(600) {
        let rate = *rng.pick(&["1M", "4M", "16M"]);
        spec.properties.insert("scan_rate".to_owned(), rate.to_owned());
    }
}

/// Draws the jobs of a boot, the rot, and what is left of the scrub at its end. Boots of other aims
/// stay as they are.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, level: Level) {
    if plan.aim != Aim::Scrubs {
        return;
    }
    let commands = Size::draw(plan, &mut plan.seed.derive("size").rng()).commands.min(1 << 12);
    let rng = &mut plan.seed.derive("scrubs").rng();
    boot.admin = draw_jobs(rng);
    let data = 0..plan.spec.data_disks;
    if level == Level::Within {
        // Disks that fail otherwise are put out of use, and no scrub repairs them.
        boot.faults.retain(|timed| matches!(timed.fault, Fault::SlowArea { .. }));
        // A scrub that begins after the last rot must find all of it.
        let (rots, last) = (rng.chance(600), *rng.pick(&[40, 40, commands]));
        let victims = plan.fault_plan.victims().iter().filter(|disk| rots && data.contains(disk));
        for disk in victims {
            for _ in 0..rng.between(1, MOST_ROT) {
                let (at_command, fault) = (rng.between(1, last), draw_rot(rng));
                boot.faults.push(TimedFault { at_command, disk: *disk, fault });
            }
        }
    }
    if rng.chance(500) {
        // A scrub is in the middle of a segment when the pool is exported.
        let latency = Latency::HeavyTail { base_ns: 1 << rng.between(17, 23), max_ns: MAX_SLOW_NS };
        for disk in data {
            let (at_command, fault) = (rng.between(1, 40), Fault::Slow { ops: Ops::READ, latency });
            boot.faults.push(TimedFault { at_command, disk, fault });
        }
    }
    if rng.chance(600) {
        boot.crash = None;
    }
    let is_survivable = matches!(level, Level::CrashOnly | Level::Within);
    if boot.crash.is_none() && is_survivable && rng.chance(300) {
        let pick = rng.chance(600).then(|| rng.below(6));
        boot.lost_map = Some(TimedMapLoss { at_command: rng.between(1, commands), pick });
    }
    boot.leaves_scrub = boot.lost_map.is_none() && rng.chance(700);
}

fn draw_jobs(rng: &mut Rng) -> Vec<Admin> {
    let mut jobs = Vec::new();
    for _ in 0..rng.between(1, 12) {
        jobs.push(Admin::Pause { ns: 1 << rng.between(14, 30) });
        jobs.push(match rng.below(20) {
            0..8 => Admin::Scan(ScanJob::Begin),
            8..14 => Admin::Scan(ScanJob::Pause),
            14 | 15 => Admin::Scan(ScanJob::Stop),
            16 => Admin::Scrub,
            _ => Admin::Manage(Manage::Commit),
        });
    }
    jobs
}

/// Rot of labels, of what lies in the first segments, and of what was written last.
fn draw_rot(rng: &mut Rng) -> Fault {
    let mask = 1 << rng.below(8);
    match rng.below(8) {
        0 => Fault::Rot { offset_bytes: rng.below(1 << 20), mask },
        1..6 => Fault::Rot { offset_bytes: rng.between(4 << 20, 11 << 20), mask },
        _ => {
            let (back, permille) = (rng.below(RECENT_WRITES), rng.below(1000));
            Fault::RotRecent { back, permille, mask }
        }
    }
}
