//! The aim "takeover": the machine that has the pool stands still, and another one takes the pool.

use forebay_sim::faults::Fault;
use forebay_sim::{CrashPoint, Rng, Seed};

use super::aim::Aim;
use super::boot::{BootPlan, change_volumes, commits};
use super::clients::draw_client;
use crate::fault_plan::Level;
use crate::scenario::{
    Act, Admin, Attempt, Boot, Crash, CutOff, Fates, Loss, Stand, StandEnd, Takeover, TimedFault,
};
use crate::subject::{Manage, PoolSpec, Raid};

const MS: u64 = 1_000_000;

/// How long a disk holds, at most, what a machine that stands still has sent: the next owner reads
/// the log later.
const MAX_HELD_MS: u64 = 6_500;

/// How many of a thousand boots have a takeover.
const TAKEOVERS_PER_MILLE: u64 = 800;
/// How many of a thousand takeovers are those of an owner that is cut off from its disks.
const CUT_OFF_PER_MILLE: u64 = 400;
/// How many of a thousand takeovers are by a machine that does not reach the disks that may fail.
const MISSES_PER_MILLE: u64 = 500;
/// How many of a thousand takeovers are from an owner that loses such disks.
const LOSSES_PER_MILLE: u64 = 400;
/// How many of a thousand takeovers have a third machine that wants the pool.
const RIVALS_PER_MILLE: u64 = 300;
/// How many of a thousand boots have scrubs.
const SCRUBS_PER_MILLE: u64 = 300;
/// How many of a thousand pools in object stores keep their log, and when cut off mostly reach it.
const KEEPS_LOG_PER_MILLE: u64 = 750;
/// How many of a thousand boots keep the drawn jobs on devices.
const DEVICES_PER_MILLE: u64 = 500;
/// How many of a thousand pools with redundancy have spares that the pool takes by itself.
const HOT_SPARES_PER_MILLE: u64 = 300;
/// An estimate of the commands of both machines from the next one's appearance on.
const TAKEOVER_COMMANDS: u64 = 800;
/// How many of a thousand pools of this aim have one disk, half of which are in object stores.
const ONE_DISK_PER_MILLE: u64 = 500;

/// The shape of a pool that both machines reach with all its devices.
pub(super) fn draw_spec(spec: PoolSpec, rng: &mut Rng) -> PoolSpec {
    if rng.chance(ONE_DISK_PER_MILLE) {
        return PoolSpec { raid: Raid::Raid0, data_disks: 1, ..spec };
    }
    // With a disk that copies and replaces others.
    let mut spec = PoolSpec { spare_disks: usize::from(rng.chance(300)), ..spec };
    if spec.parity() > 0 && rng.chance(HOT_SPARES_PER_MILLE) {
        spec.hot_spares = rng.between(1, 2) as usize;
        spec.spare_disks += spec.hot_spares;
    }
    spec
}

/// Adds a takeover to a boot in which nothing fails but power, the owner's link to its disks, and
/// at level within the disks that the pool can do without. `commands` estimates the boot's
/// device commands.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, level: Level, commands: u64) {
    if plan.aim != Aim::Takeover || !matches!(level, Level::CrashOnly | Level::Within) {
        return;
    }
    let rng = &mut plan.seed.derive("takeover").rng();
    let others = std::mem::replace(&mut boot.admin, commits(8, 26, rng));
    let (mut devices, others): (Vec<Admin>, Vec<Admin>) =
        others.into_iter().partition(|job| job.may_be_refused());
    let keeps_log = keeps_log(plan.spec);
    devices.retain(|job| !(keeps_log && matches!(job, Admin::Manage(Manage::RemoveLog(_)))));
    change_volumes(boot, others, 30, &mut plan.seed.derive("takeover volumes").rng());
    scrub(boot, &mut plan.seed.derive("takeover scrubs").rng());
    add_device_jobs(boot, devices, &mut plan.seed.derive("takeover devices").rng());
    let lives_at_first = rng.chance(300);
    add_pauses(&mut boot.clients, if lives_at_first { 32 } else { 28 }, rng);
    if !rng.chance(TAKEOVERS_PER_MILLE) {
        return;
    }
    let most = if rng.chance(700) { commands / 2 } else { 2 * commands };
    let at_command = rng.between(1, most.max(1));
    let after_ns = match rng.below(4) {
        _ if lives_at_first => rng.between(6_000, 20_000) * MS,
        0 => 1 << rng.between(16, 33),
        _ => 0,
    };
    let mut stands = vec![Stand { after_ns, end: draw_end(rng), cut_off: None, has_log: false }];
    while stands.len() < 3 && rng.chance(300) {
        let after_ns = 1 << rng.between(10, 33);
        stands.push(Stand { after_ns, end: draw_end(rng), cut_off: None, has_log: false });
    }
    let attempt = |rng: &mut Rng| {
        let pause_ns = if rng.chance(400) { 0 } else { rng.below(3_000) * MS };
        Attempt { pause_ns, forces: rng.chance(800) }
    };
    let mut attempts: Vec<Attempt> = (0..rng.between(1, 4)).map(|_| attempt(rng)).collect();
    attempts.last_mut().expect("at least one").forces = true;
    boot.takeover = Some(Takeover {
        at_command,
        stands,
        is_suspended: !plan.spec.in_objects && rng.chance(300),
        lands_after_ns: rng.below(MAX_HELD_MS) * MS,
        loss: None,
        misses: Vec::new(),
        attempts,
        rival: draw_rival(plan),
        seed: rng.u64(),
        clients: draw_clients(plan, rng),
    });
    let number = at_command + rng.between(0, 800);
    let point = match rng.below(6) {
        0 => CrashPoint::BeforeSubmit(number),
        1 => CrashPoint::AfterSubmit(number),
        2 => CrashPoint::AfterComplete(number),
        _ => CrashPoint::AfterSubmit(u64::MAX),
    };
    let crash = Crash { in_work: true, ..Crash::at(point, Fates::Random(rng.u64())) };
    let crashes = rng.chance(700);
    let cuts = cut_off(boot.takeover.as_mut().map_or(&mut [], |t| &mut t.stands), plan);
    boot.crash = (crashes || cuts).then_some(crash);
    if let Some(takeover) = boot.takeover.as_mut().filter(|_| !cuts) {
        miss_disks(takeover, plan);
        lose_disks(takeover, plan);
    }
    if level == Level::Within {
        add_faults(boot, plan, at_command);
    }
}

/// Adds faults of disks after the next machine's appearance at `at_command`.
fn add_faults(boot: &mut Boot, plan: &BootPlan<'_>, at_command: u64) {
    let rng = &mut plan.seed.derive("takeover faults").rng();
    let after =
        |fault: TimedFault| TimedFault { at_command: fault.at_command + at_command, ..fault };
    let faults = plan.fault_plan.faults(TAKEOVER_COMMANDS, true, rng);
    boot.faults.extend(faults.into_iter().map(after));
    // A machine that stands still ends no hang, and sends what is slow when it goes on: later
    // than heartbeats promise.
    let is_late = |fault: &Fault| matches!(fault, Fault::Hung { .. } | Fault::Slow { .. });
    boot.faults.retain(|timed| !is_late(&timed.fault));
}

/// Has the owner scrub, in some boots.
fn scrub(boot: &mut Boot, rng: &mut Rng) {
    if !rng.chance(SCRUBS_PER_MILLE) {
        return;
    }
    for _ in 0..rng.between(1, 2) {
        let at = rng.below(boot.admin.len() as u64 + 1) as usize;
        boot.admin.splice(at..at, [Admin::Pause { ns: 1 << rng.between(14, 28) }, Admin::Scrub]);
    }
}

/// Has the owner take devices out and in, in some boots.
fn add_device_jobs(boot: &mut Boot, jobs: Vec<Admin>, rng: &mut Rng) {
    if !rng.chance(DEVICES_PER_MILLE) {
        return;
    }
    let mut at = 0;
    for job in jobs {
        at += rng.below((boot.admin.len() - at) as u64 + 1) as usize;
        boot.admin.splice(at..at, [Admin::Pause { ns: 1 << rng.between(14, 30) }, job]);
        at += 2;
    }
}

/// True when a pool in an object store has a log that its owner may be left with.
fn keeps_log(spec: &PoolSpec) -> bool {
    spec.in_objects && Seed(spec.seed).derive("keeps log").rng().chance(KEEPS_LOG_PER_MILLE)
}

/// Has the owner run on in some of its stands, without its disks. True when it does.
fn cut_off(stands: &mut [Stand], plan: &BootPlan<'_>) -> bool {
    let rng = &mut plan.seed.derive("cut off").rng();
    let keeps_log = keeps_log(plan.spec);
    if !rng.chance(CUT_OFF_PER_MILLE) {
        return false;
    }
    for (index, stand) in stands.iter_mut().enumerate() {
        if index == 0 || rng.chance(500) {
            let how = if rng.chance(700) { CutOff::Hangs } else { CutOff::Fails };
            stand.cut_off = Some(how);
            stand.has_log = keeps_log && rng.chance(800);
        }
    }
    stands.iter().any(Stand::is_blind)
}

/// Has the other machine miss disks that the pool can do without. An owner that is cut off may have
/// given up others.
fn miss_disks(takeover: &mut Takeover, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("misses").rng();
    if rng.chance(MISSES_PER_MILLE) {
        let victims = plan.fault_plan.victims().iter().copied();
        takeover.misses = victims.filter(|_| rng.chance(800)).collect();
    }
}

/// Has the owner lose disks that the pool can do without. The other machine may reach them.
fn lose_disks(takeover: &mut Takeover, plan: &BootPlan<'_>) {
    let rng = &mut plan.seed.derive("losses").rng();
    if !rng.chance(LOSSES_PER_MILLE) {
        return;
    }
    let victims = plan.fault_plan.victims().iter().copied();
    let disks: Vec<usize> = victims.filter(|_| rng.chance(700)).collect();
    let how = if rng.chance(600) { CutOff::Hangs } else { CutOff::Fails };
    let after_ns = if rng.chance(500) { 0 } else { 1 << rng.between(12, 33) };
    takeover.loss = (!disks.is_empty()).then_some(Loss { disks, how, after_ns });
}

/// Leaves out the faults of boots after one whose owner is cut off: it may give up as many disks as
/// the pool can do without, its log too, and keep the pool. When they are whole again is not known.
pub(super) fn spare_after_cuts(mut boots: Vec<Boot>) -> Vec<Boot> {
    let mut was_cut_off = false;
    for boot in &mut boots {
        if was_cut_off {
            boot.faults.clear();
            let stands = boot.takeover.iter_mut().flat_map(|takeover| &mut takeover.stands);
            for stand in stands.filter(|stand| stand.has_log) {
                *stand = Stand { cut_off: None, has_log: false, ..*stand };
            }
        }
        let mut stands = boot.takeover.iter().flat_map(|takeover| &takeover.stands);
        was_cut_off |= stands.any(Stand::is_blind);
    }
    boots
}

/// The imports of a third machine: at the same time as those of the other one, or later.
fn draw_rival(plan: &BootPlan<'_>) -> Vec<Attempt> {
    let rng = &mut plan.seed.derive("rival").rng();
    if !rng.chance(RIVALS_PER_MILLE) {
        return Vec::new();
    }
    let attempt = |rng: &mut Rng| {
        let pause_ns = match rng.below(3) {
            0 => 1 << rng.between(10, 27),
            1 => rng.below(3_000) * MS,
            _ => rng.below(14_000) * MS,
        };
        Attempt { pause_ns, forces: rng.chance(900) }
    };
    (0..rng.between(1, 3)).map(|_| attempt(rng)).collect()
}

/// When the owner goes on: before, while or after the next machine imports, or while the next
/// owner's clients work.
fn draw_end(rng: &mut Rng) -> StandEnd {
    match rng.below(20) {
        0..4 => StandEnd::AfterNs(rng.between(100, 4_000) * MS),
        4..9 => StandEnd::AfterNs(rng.between(4_000, 12_000) * MS),
        9..11 => StandEnd::AfterNs(rng.between(12_000, 60_000) * MS),
        11..15 => StandEnd::InImport(rng.between(1, 400)),
        _ => StandEnd::AtCommand(1 << rng.below(9)),
    }
}

/// The clients of the next owner.
fn draw_clients(plan: &BootPlan<'_>, rng: &mut Rng) -> Vec<Vec<Act>> {
    let script = |index: u64| {
        let seed = plan.seed.derive("next owner").derive(&index.to_string());
        let (mut script, mut sectors) = (seed.derive("acts").rng(), seed.derive("parts").rng());
        let acts = script.between(4, 64);
        draw_client(plan.volumes, acts, plan.hot_blocks, &mut script, &mut sectors)
    };
    let mut clients: Vec<Vec<Act>> = (0..rng.between(1, 4)).map(script).collect();
    add_pauses(&mut clients, 30, rng);
    clients
}

/// Lets clients pause a few times, each time up to 2^`bits` ns.
fn add_pauses(clients: &mut [Vec<Act>], bits: u64, rng: &mut Rng) {
    for acts in clients {
        for _ in 0..rng.between(1, 8) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: 1 << rng.between(20, bits) });
        }
    }
}
