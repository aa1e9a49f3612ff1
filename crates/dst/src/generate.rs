//! Scenarios from a seed. Each part derives its own stream by label, so that a change to one does
//! not change the others.

use forebay_sim::{CrashPoint, Rng, Seed};

use crate::admin_workload::AdminWorkload;
use crate::fault_plan::{FaultPlan, Level};
use crate::scenario::{Act, Admin, Boot, Crash, Demand, Fates, MapRot, Scenario, VERSION};
use crate::stamp::Fill;
use crate::subject::{LogShape, Manage, PoolSpec, Raid, Sync};

/// Of a thousand scenarios, those whose pool is nearly full.
const FULL: u64 = 80;
/// Of a thousand scenarios, those whose clients all write to one place.
const HOT_BLOCKS: u64 = 150;
/// Of a thousand scenarios, those in which recoveries are cut and disks lose what the next one writes.
const CRASH_IN_RECOVERY: u64 = 80;

/// What is wanted of a scenario; what is `None` is drawn.
#[derive(Clone, Debug, Default)]
pub struct Constraints {
    /// The shape of the pool.
    pub spec: Option<PoolSpec>,
    /// How much may break.
    pub level: Option<Level>,
    /// How many boots.
    pub boots: Option<u64>,
    /// How many clients.
    pub clients: Option<u64>,
    /// How many acts each client does in a boot.
    pub acts: Option<u64>,
    /// Whether the administrator is at work.
    pub admin: bool,
    /// Whether devices come and go too: the subject must be able to manage them.
    pub manage: bool,
    /// A pool nearly full, overwritten until the cleaner must move blocks; drawn without it.
    pub full: Option<bool>,
    /// Power cuts while a recovery commits, after which struck disks lose some of the first writes of
    /// the next one: what they held before lies where something else should be. Drawn without it.
    pub crash_in_recovery: Option<bool>,
    /// How many of a thousand clients come through NBD; drawn without it.
    pub remote: Option<u64>,
}

/// The scenario of `seed`.
#[must_use]
pub fn generate(seed: Seed, constraints: &Constraints) -> Scenario {
    // Now and then a pool that is nearly full and written over and over: only then does the
    // cleaner have something to do.
    let may = constraints.acts.is_none() && constraints.spec.is_none();
    let full = constraints.full.unwrap_or_else(|| may && seed.derive("full").rng().chance(FULL));
    let crash_in_recovery = constraints
        .crash_in_recovery
        .unwrap_or_else(|| may && seed.derive("relapse").rng().chance(CRASH_IN_RECOVERY));
    let draw = |seed: Seed| match full {
        true => draw_small_spec(seed.derive("small spec")),
        false => draw_spec(seed.derive("spec")),
    };
    let mut spec = constraints.spec.clone().unwrap_or_else(|| draw(seed));
    let mut more = seed.derive("relapse shape").rng();
    while crash_in_recovery && constraints.spec.is_none() && spec.parity() == 0 {
        // Without a copy nothing may be lost.
        spec = draw(Seed(more.u64()));
    }
    if constraints.manage && constraints.spec.is_none() {
        several(&mut spec, &mut seed.derive("several").rng());
        spec.spare_disks = seed.derive("spares").rng().below(3) as usize;
    }
    let mut rng = seed.derive("shape").rng();
    let level = constraints.level.unwrap_or_else(|| match rng.below(20) {
        0..7 => Level::CrashOnly,
        7..17 => Level::Within,
        17..19 => Level::Beyond,
        _ => Level::Lies,
    });
    let mut volumes: Vec<u64> = (0..rng.between(1, 3)).map(|_| rng.between(16, 512) * 8).collect();
    if full {
        volumes = split(nearly_all(&spec, &mut rng), &mut seed.derive("split").rng());
    }
    let (mut sparse, mut sync) = (Vec::new(), Vec::new());
    if constraints.manage {
        let mut kinds = seed.derive("kinds").rng();
        for volume in 0..volumes.len() as u32 {
            if kinds.chance(150) && !full {
                sparse.push(volume);
            }
            if kinds.chance(150) {
                sync.push((volume, *kinds.pick(&[Sync::Always, Sync::Disabled])));
            }
        }
    }
    let hot_blocks =
        (may && !full).then(|| draw_hot_blocks(&volumes, seed.derive("crowd"))).flatten();
    let mut fault_plan = FaultPlan::draw(&spec, level, &mut seed.derive("atlas").rng());
    if crash_in_recovery && level == Level::Within {
        fault_plan.strike_one(&spec, &mut more);
    }
    let boots =
        constraints.boots.unwrap_or_else(|| rng.between(if crash_in_recovery { 3 } else { 1 }, 4));
    let mut workload =
        AdminWorkload::new(&spec, &fault_plan, &volumes, constraints.manage, seed.derive("desk"));
    let remote = constraints
        .remote
        .unwrap_or_else(|| *seed.derive("remote").rng().pick(&[0, 0, 200, 500, 1000]));
    let mut boots: Vec<Boot> = (0..boots)
        .map(|index| {
            let seed = seed.derive("boot").derive(&index.to_string());
            let first = index == 0;
            let disks = spec.data_disks as u64;
            let (fault_plan, volumes) = (&fault_plan, &volumes);
            let plan = Plan {
                constraints,
                fault_plan,
                volumes,
                first,
                full,
                hot_blocks,
                remote,
                disks,
                seed,
            };
            let mut boot = draw_boot(&plan, &mut workload);
            if crash_in_recovery {
                crash_in_recovery_of(&mut boot, &plan, seed.derive("relapse"));
            }
            boot
        })
        .collect();
    if level == Level::Within && spec.raid.parity(spec.data_disks) == 0 {
        rot_map_in(&mut boots, &mut seed.derive("map rot").rng());
    }
    Scenario {
        version: VERSION,
        story: String::new(),
        seed: seed.0,
        spec,
        demand: level.demand(),
        volumes,
        sparse,
        sync,
        boots,
    }
}

/// A shape of pool, small enough for many runs a second.
#[must_use]
pub fn draw_spec(seed: Seed) -> PoolSpec {
    let mut rng = seed.rng();
    let raid = *rng.pick(&[Raid::Raid0, Raid::Mirror, Raid::Z1, Raid::Z2, Raid::Z3]);
    let log = *rng.pick(&[LogShape::None, LogShape::One, LogShape::Mirror]);
    let data_disks = match raid {
        Raid::Raid0 => rng.between(1, 3),
        Raid::Mirror => rng.between(2, 3),
        Raid::Z1 => rng.between(3, 5),
        Raid::Z2 => rng.between(4, 6),
        Raid::Z3 => rng.between(5, 7),
    } as usize;
    PoolSpec {
        raid,
        log,
        data_disks,
        groups: 1,
        spare_disks: 0,
        data_bytes: 64 << 20,
        log_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        seed: rng.u64(),
    }
}

/// A shape with few data columns: it takes little to fill it.
fn draw_small_spec(seed: Seed) -> PoolSpec {
    let mut rng = seed.rng();
    let (raid, data_disks) =
        *rng.pick(&[(Raid::Raid0, 1), (Raid::Raid0, 1), (Raid::Mirror, 2), (Raid::Z1, 3)]);
    PoolSpec { raid, data_disks, ..draw_spec(seed) }
}

/// Now and then two groups instead of one, and two rings.
fn several(spec: &mut PoolSpec, rng: &mut Rng) {
    let (groups, rings) = (rng.chance(150), rng.chance(200));
    if groups && spec.data_disks <= 5 {
        spec.groups = 2;
        spec.data_disks *= 2;
    }
    spec.log = match spec.log {
        LogShape::One if rings => LogShape::Two,
        LogShape::Mirror if rings => LogShape::TwoMirrors,
        log => log,
    };
}

/// What most of a pool of this shape can hold, in sectors.
fn nearly_all(spec: &PoolSpec, rng: &mut Rng) -> u64 {
    let width = spec.data_disks / spec.groups;
    let columns = match spec.raid {
        Raid::Mirror => 1,
        _ => width - spec.parity(),
    } * spec.groups;
    (columns as u64 * rng.between(26, 42)) << 11
}

/// One volume of so many sectors, or several that have as many together.
fn split(sectors: u64, rng: &mut Rng) -> Vec<u64> {
    let count = *rng.pick(&[1, 1, 2, 3]);
    vec![sectors / count / 8 * 8; count as usize]
}

/// Where all clients write.
#[derive(Clone, Copy)]
struct HotBlocks {
    volume: u32,
    first: u64,
}

/// Sectors in which a hot_blocks writes: some are still on media only when the next one comes for them.
const HOT_SECTORS: u64 = 128;

fn draw_hot_blocks(volumes: &[u64], seed: Seed) -> Option<HotBlocks> {
    let mut rng = seed.rng();
    let (is_one, volume) = (rng.chance(HOT_BLOCKS), rng.below(volumes.len() as u64));
    let first = rng.below((volumes[volume as usize] - HOT_SECTORS) / 8 + 1) * 8;
    is_one.then_some(HotBlocks { volume: volume as u32, first })
}

struct Plan<'a> {
    constraints: &'a Constraints,
    fault_plan: &'a FaultPlan,
    volumes: &'a [u64],
    first: bool,
    full: bool,
    hot_blocks: Option<HotBlocks>,
    remote: u64,
    disks: u64,
    seed: Seed,
}

fn draw_boot(plan: &Plan<'_>, workload: &mut AdminWorkload) -> Boot {
    let mut rng = plan.seed.derive("size").rng();
    let mut clients = plan.constraints.clients.unwrap_or_else(|| rng.between(1, 12));
    let mut acts = plan.constraints.acts.unwrap_or_else(|| 1 << rng.between(3, 8));
    let mut commands = clients * acts + 50;
    if plan.hot_blocks.is_some() {
        clients = clients.clamp(3, 8);
        acts = acts.min(64);
        commands = clients * acts + 50;
    }
    if plan.full {
        clients = rng.between(1, 4);
        acts = rng.between(80, 320) / clients;
        // What it takes to fill it, and to write on, measured.
        commands = plan.disks * if plan.first { 1200 } else { 500 };
    }
    let script = |index: u64| {
        let mut rng = plan.seed.derive("client").derive(&index.to_string()).rng();
        if plan.full {
            return draw_filler(plan.volumes, index, clients, acts, plan.first, &mut rng);
        }
        draw_client(plan.volumes, acts, plan.hot_blocks, &mut rng)
    };
    let mut remote = plan.seed.derive("remote").rng();
    let mut admin = if plan.constraints.admin && rng.chance(600) {
        let seed = plan.seed.derive("admin");
        if plan.full { workload.jobs_of_a_full_pool(seed) } else { workload.jobs(seed) }
    } else {
        Vec::new()
    };
    if plan.hot_blocks.is_some() {
        admin.splice(0..0, commits(12, 18, &mut plan.seed.derive("crowd").rng()));
    }
    let mut crash = plan.seed.derive("crash").rng();
    let number = match crash.below(6) {
        // Before it is full there is nothing to see that other scenarios do not show.
        _ if plan.full && plan.first => crash.between(commands / 3, commands),
        0 => crash.between(1, 60), // during an import, mostly
        1 => u64::MAX,             // after the work
        _ => crash.between(1, commands),
    };
    let point = match crash.below(3) {
        0 => CrashPoint::BeforeSubmit(number),
        1 => CrashPoint::AfterSubmit(number),
        _ => CrashPoint::AfterComplete(number),
    };
    let crashes = crash.chance(900);
    Boot {
        seed: plan.seed.derive("order").0,
        clients: (0..clients).map(script).collect(),
        remote: (0..clients as usize).filter(|_| remote.chance(plan.remote)).collect(),
        admin,
        map_rot: None,
        stale_map: Vec::new(),
        faults: plan.fault_plan.faults(commands, plan.first, &mut plan.seed.derive("faults").rng()),
        crash: crashes.then(|| Crash {
            in_work: plan.full || crash.chance(500),
            ..Crash::at(point, Fates::Random(crash.u64()))
        }),
    }
}

/// Without parity nothing may be struck but the pool's own map, which is there twice; and once only,
/// so that it is not a copy and what it is a copy of.
fn rot_map_in(boots: &mut [Boot], rng: &mut Rng) {
    let Some(last) = boots.len().checked_sub(1).filter(|last| *last > 0) else { return };
    let boot = rng.between(1, last as u64) as usize;
    if rng.chance(800) {
        let (pick, blocks) = (rng.u64(), rng.between(1, 4));
        let (at_byte, mask) = (rng.below(4096), 1 << rng.below(8));
        // Mostly in one that counts, and where it says something.
        let pick = if rng.chance(700) { rng.below(8) } else { pick };
        let at_byte = if rng.chance(500) { at_byte % 256 } else { at_byte };
        boots[boot].map_rot = Some(MapRot { pick, blocks, at_byte, mask });
    }
}

/// Makes a boot one that commits more often and is mostly cut while it does; and, when it recovers,
/// one on disks that lose some of what it writes first, or what it writes over rows of the map journal
/// that the run before had written and no root knows.
fn crash_in_recovery_of(boot: &mut Boot, plan: &Plan<'_>, seed: Seed) {
    let (mut rng, fault_plan) = (seed.rng(), plan.fault_plan);
    let recovers = !plan.first;
    if recovers && rng.chance(if plan.full { 300 } else { 600 }) {
        boot.stale_map = fault_plan.stale(plan.disks as usize, &mut rng);
    }
    if recovers && boot.stale_map.is_empty() {
        // A nearly full pool writes segments from end to end.
        boot.faults.extend(fault_plan.losses(if plan.full { 40 } else { 5 }, &mut rng));
    }
    // A nearly full pool is cut amid its segments anyway, and commits often.
    if plan.full {
        return;
    }
    boot.admin.splice(0..0, commits(4, 22, &mut rng));
    if rng.chance(700) {
        let number = rng.between(20, 160);
        let (point, in_work) = match rng.below(4) {
            0 if recovers => (CrashPoint::AfterSubmit(number), false),
            1 if recovers => (CrashPoint::AfterComplete(number), false),
            // Between the map journal of a commit and its root, one time in two.
            _ => (
                CrashPoint::AfterFlush(rng.between(1, 3 * plan.disks)),
                !recovers || rng.chance(500),
            ),
        };
        boot.crash = Some(Crash { in_work, ..Crash::at(point, Fates::Random(rng.u64())) });
    }
}

/// Fewer commits than `most`, and pauses before them.
fn commits(most: u64, pause_bits: u64, rng: &mut Rng) -> Vec<Admin> {
    let mut out = Vec::new();
    for _ in 0..rng.below(most) {
        out.push(Admin::Pause { ns: 1 << rng.between(14, pause_bits) });
        out.push(Admin::Manage(Manage::Commit));
    }
    out
}

/// A client of a pool that is nearly full: in the first boot it fills its part of the volume, then
/// it writes over the whole of it, some places more often than others.
fn draw_filler(
    volumes: &[u64],
    index: u64,
    clients: u64,
    acts: u64,
    first_boot: bool,
    rng: &mut Rng,
) -> Vec<Act> {
    const LONG: u64 = 512;
    // All are of the same size.
    let sectors = volumes[0];
    let write = |volume: u32, first: u64, count: u64, fua| {
        let count = count.min(sectors - first);
        Act::Write { volume, first, count, fua, fill: Fill::Noise }
    };
    let mut out = Vec::new();
    if first_boot {
        let part = sectors / clients / 8 * 8;
        for volume in 0..volumes.len() as u32 {
            let (mut at, end) =
                (index * part, if index + 1 == clients { sectors } else { (index + 1) * part });
            while at < end {
                out.push(write(volume, at, LONG.min(end - at), false));
                at += LONG;
            }
        }
    }
    let fua = *rng.pick(&[0, 0, 100]);
    let hot = *rng.pick(&[0, 500, 900]);
    for _ in 0..acts {
        let span = if rng.chance(hot) { sectors / 5 } else { sectors };
        let count = if rng.chance(800) { rng.between(8, 64) * 8 } else { rng.between(1, 8) * 8 };
        let first = rng.below(span / 8) * 8;
        // Also such as the administrator makes in place of others, while they are there.
        let all = volumes.len() as u64 + 2;
        let volume = if volumes.len() == 1 { 0 } else { rng.below(all) as u32 };
        out.push(match rng.below(40) {
            0 => Act::Flush { volume },
            1 => Act::Read { volume, first, count: count.min(sectors - first) },
            2 => Act::Trim { volume, first, count: count.min(sectors - first), fua: false },
            _ => write(volume, first, count, rng.chance(fua)),
        });
    }
    out
}

fn draw_client(
    volumes: &[u64],
    acts: u64,
    hot_blocks: Option<HotBlocks>,
    rng: &mut Rng,
) -> Vec<Act> {
    // Each client has habits: some only log, some only read, some overwrite one spot.
    let volume = rng.below(volumes.len() as u64) as u32;
    let sectors = volumes[volume as usize];
    let span = match rng.below(3) {
        0 => sectors.min(64),
        1 => sectors.min(512),
        _ => sectors,
    };
    let start = rng.below(sectors - span + 1) / 8 * 8;
    let fua = *rng.pick(&[0, 100, 500, 1000]);
    let write = rng.between(200, 900);
    let unaligned = *rng.pick(&[0, 0, 200, 900]);
    let large = *rng.pick(&[0, 0, 50]);
    let zeroing = *rng.pick(&[0, 0, 60, 300]);
    let flush = *rng.pick(&[0, 10, 100, 400]);
    let pause = *rng.pick(&[0, 0, 50]);
    let fill = if rng.chance(700) { Fill::Noise } else { Fill::Zeros };
    let mut at = 0;
    let sequential = rng.chance(300);
    let habits = (volume, start, span, write, unaligned, large, sequential);
    // With edges amid blocks.
    let (volume, start, span, write, unaligned, large, sequential) = match hot_blocks {
        Some(HotBlocks { volume, first }) => (volume, first, HOT_SECTORS, 800, 900, 400, false),
        None => habits,
    };
    let mut range = |rng: &mut Rng| {
        let count = if hot_blocks.is_some() {
            // Long ones over short ones.
            if rng.chance(large) { rng.between(17, 72) } else { rng.between(1, 12) }
        } else if rng.chance(large) {
            rng.between(16, 512)
        } else if rng.chance(unaligned) {
            rng.between(1, 24)
        } else {
            8 * rng.between(1, 4)
        };
        let count = count.min(span);
        let first = if sequential {
            at = if at + count > span { 0 } else { at };
            at += count;
            at - count
        } else if rng.chance(unaligned) {
            rng.below(span - count + 1)
        } else {
            rng.below((span - count) / 8 + 1) * 8
        };
        (start + first, count)
    };
    (0..acts)
        .map(|_| {
            if rng.chance(pause) {
                return Act::Pause { ns: 1 << rng.between(10, 30) };
            }
            if rng.chance(flush) {
                return Act::Flush { volume };
            }
            let (first, count) = range(rng);
            let fua = rng.chance(fua);
            if rng.chance(zeroing) {
                // Only whole blocks: what a trim of less does is nobody's promise.
                let (first, count) = (first / 8 * 8, count.div_ceil(8) * 8);
                return match rng.below(2) {
                    0 => Act::Trim { volume, first, count, fua },
                    _ => Act::Zero { volume, first, count, fua, no_hole: rng.chance(300) },
                };
            }
            if rng.chance(write) {
                return Act::Write { volume, first, count, fua, fill };
            }
            match rng.below(6) {
                0 => Act::Status { volume, first, count },
                _ => Act::Read { volume, first, count },
            }
        })
        .collect()
}

/// Whether everything is demanded of the scenario that `seed` gives.
#[must_use]
pub fn demands_all(scenario: &Scenario) -> bool {
    scenario.demand == Demand::AllData
}
