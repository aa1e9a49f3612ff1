//! The aim "halves": pools whose halves are imported apart from each other (at level crash).

use std::ops::Range;

use forebay_sim::{CrashPoint, Rng};

use super::aim::Aim;
use super::boot::{BootPlan, Size, commits};
use crate::fault_plan::Level;
use crate::scenario::{Admin, Apart, Boot, Crash, Fates, Half};
use crate::subject::{LogShape, Manage, PoolSpec, Raid};

/// How many of a thousand boots begin with halves.
const HALVES_PER_MILLE: u64 = 700;

/// A pool of which both halves have all data: mirrors, or as much parity as data, and a log that is
/// on the data disks or mirrored.
pub(super) fn draw_spec(spec: PoolSpec, rng: &mut Rng) -> PoolSpec {
    let (raid, width) = *rng.pick(&[
        (Raid::Mirror, 2),
        (Raid::Mirror, 2),
        (Raid::Mirror, 3),
        (Raid::Mirror, 4),
        (Raid::Z2, 4),
        (Raid::Z3, 6),
    ]);
    let groups = rng.between(1, if width < 4 { 2 } else { 1 }) as usize;
    let log =
        *rng.pick(&[LogShape::None, LogShape::Mirror, LogShape::Mirror, LogShape::TwoMirrors]);
    PoolSpec { raid, data_disks: groups * width, groups, log, ..spec }
}

/// Lets halves of the disks be written apart before a boot. No disk leaves its place in the pool.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, level: Level) {
    if plan.aim != Aim::Halves {
        return;
    }
    let stays = |job: &Admin| match job {
        Admin::Manage(job) => matches!(job, Manage::Commit | Manage::Clean),
        _ => true,
    };
    boot.admin.retain(stays);
    let rng = &mut plan.seed.derive("halves").rng();
    if plan.is_first || level != Level::CrashOnly || !rng.chance(HALVES_PER_MILLE) {
        return;
    }
    let commands = Size::draw(plan, &mut plan.seed.derive("size").rng()).commands.min(1 << 12);
    let [one, other] = draw_halves(plan.spec, rng);
    let mut half = |disks, clients| {
        let crash = rng.chance(600).then(|| draw_cut(commands, true, rng));
        let admin = commits(6, 26, rng);
        let boot = Boot { seed: rng.u64(), clients, admin, crash, ..Boot::default() };
        Half { disks, boot }
    };
    let halves = [
        half(one, boot.clients.clone()),
        half(other, boot.clients.iter().rev().cloned().collect()),
    ];
    let cut = rng.chance(600).then(|| draw_cut(400, false, rng));
    boot.apart = Some(Box::new(Apart { halves, cut }));
}

fn draw_cut(commands: u64, in_work: bool, rng: &mut Rng) -> Crash {
    let number = rng.between(1, commands);
    let point = match rng.below(3) {
        0 => CrashPoint::BeforeSubmit(number),
        1 => CrashPoint::AfterSubmit(number),
        _ => CrashPoint::AfterComplete(number),
    };
    Crash { in_work, ..Crash::at(point, Fates::Random(rng.u64())) }
}

/// Divides the disks of each group and of each log mirror.
fn draw_halves(spec: &PoolSpec, rng: &mut Rng) -> [Vec<usize>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    let width = spec.data_disks / spec.groups;
    let least_data = width - spec.parity();
    let groups = spec.group_ranges().map(|disks| (disks, least_data));
    let rings = spec.ring_ranges().map(|disks| (disks, 1));
    let all: Vec<(Range<usize>, usize)> = groups.chain(rings).collect();
    for (disks, least) in all {
        let mut disks: Vec<usize> = disks.collect();
        for at in (1..disks.len()).rev() {
            disks.swap(at, rng.below(at as u64 + 1) as usize);
        }
        let first = rng.between(least as u64, (disks.len() - least) as u64) as usize;
        halves[0].extend(&disks[..first]);
        halves[1].extend(&disks[first..]);
    }
    halves
}
