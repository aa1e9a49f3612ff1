//! The aim "takeover": the machine that has the pool stands still, and another one takes the pool.

use forebay_sim::{CrashPoint, Rng};

use super::aim::Aim;
use super::boot::{BootPlan, commits};
use super::clients::draw_client;
use crate::fault_plan::Level;
use crate::scenario::{Act, Attempt, Boot, Crash, Fates, Stand, StandEnd, Takeover};
use crate::subject::{PoolSpec, Raid};

const MS: u64 = 1_000_000;

/// How long a disk holds, at most, what a machine that stands still has sent: the next owner reads
/// the log later.
const MAX_HELD_MS: u64 = 6_500;

/// How many of a thousand boots have a takeover.
const TAKEOVERS_PER_MILLE: u64 = 800;
/// How many of a thousand pools of this aim have one disk, half of which are in object stores.
const ONE_DISK_PER_MILLE: u64 = 500;

/// The shape of a pool that both machines reach with all its devices.
pub(super) fn draw_spec(spec: PoolSpec, rng: &mut Rng) -> PoolSpec {
    match rng.chance(ONE_DISK_PER_MILLE) {
        true => PoolSpec { raid: Raid::Raid0, data_disks: 1, ..spec },
        false => spec,
    }
}

/// Adds a takeover to a boot in which nothing but power fails. `commands` estimates the boot's
/// device commands.
pub(super) fn apply(boot: &mut Boot, plan: &BootPlan<'_>, level: Level, commands: u64) {
    if plan.aim != Aim::Takeover || level != Level::CrashOnly {
        return;
    }
    let rng = &mut plan.seed.derive("takeover").rng();
    boot.admin = commits(8, 26, rng);
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
    let mut stands = vec![Stand { after_ns, end: draw_end(rng) }];
    while stands.len() < 3 && rng.chance(300) {
        stands.push(Stand { after_ns: 1 << rng.between(10, 33), end: draw_end(rng) });
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
        attempts,
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
    boot.crash = rng.chance(700).then_some(crash);
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
