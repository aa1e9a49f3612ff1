//! Scenarios from a seed. Each part derives its own stream by label, so that a change to one does
//! not change the others.

use forebay_sim::{CrashPoint, Rng, Seed};

use crate::atlas::{Atlas, Level};
use crate::scenario::{Act, Admin, Boot, Crash, Demand, Fates, Scenario, VERSION};
use crate::stamp::Fill;
use crate::subject::{LogShape, Manage, PoolSpec, Raid};

/// What is wanted of a scenario; what is `None` is drawn.
#[derive(Clone, Debug, Default)]
pub struct Wish {
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
    /// What the subject can be told to do.
    pub manage: Vec<Manage>,
}

/// The scenario of `seed`.
#[must_use]
pub fn generate(seed: Seed, wish: &Wish) -> Scenario {
    let spec = wish.spec.clone().unwrap_or_else(|| draw_spec(seed.derive("spec")));
    let mut rng = seed.derive("shape").rng();
    let level = wish.level.unwrap_or_else(|| match rng.below(20) {
        0..7 => Level::CrashOnly,
        7..17 => Level::Within,
        17..19 => Level::Beyond,
        _ => Level::Lies,
    });
    let mut volumes: Vec<u64> = (0..rng.between(1, 3)).map(|_| rng.between(16, 512) * 8).collect();
    // Now and then a volume that fills a good part of the pool, written over and over: only then
    // does the cleaner have something to do.
    let full = wish.acts.is_none() && wish.spec.is_none() && rng.chance(20);
    if full {
        volumes = vec![rng.between(12, 20) << 11];
    }
    let atlas = Atlas::draw(&spec, level, &mut seed.derive("atlas").rng());
    let boots = wish.boots.unwrap_or_else(|| rng.between(1, 4));
    let mut next_volume = volumes.len() as u32;
    let boots = (0..boots)
        .map(|index| {
            let seed = seed.derive("boot").derive(&index.to_string());
            let first = index == 0;
            let plan = Plan { wish, atlas: &atlas, volumes: &volumes, first, full, seed };
            draw_boot(&plan, &mut next_volume)
        })
        .collect();
    Scenario {
        version: VERSION,
        story: String::new(),
        seed: seed.0,
        spec,
        demand: level.demand(),
        volumes,
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
        spare_disks: 0,
        data_bytes: 64 << 20,
        log_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        seed: rng.u64(),
    }
}

struct Plan<'a> {
    wish: &'a Wish,
    atlas: &'a Atlas,
    volumes: &'a [u64],
    first: bool,
    full: bool,
    seed: Seed,
}

fn draw_boot(plan: &Plan<'_>, next_volume: &mut u32) -> Boot {
    let mut rng = plan.seed.derive("size").rng();
    let clients = plan.wish.clients.unwrap_or_else(|| rng.between(1, 12));
    let acts = plan.wish.acts.unwrap_or_else(|| 1 << rng.between(3, 8));
    let commands = clients * acts + 50;
    let script = |index: u64| {
        let mut rng = plan.seed.derive("client").derive(&index.to_string()).rng();
        draw_client(plan.volumes, acts, plan.full, &mut rng)
    };
    let admin =
        if plan.wish.admin && rng.chance(600) { draw_admin(plan, next_volume) } else { Vec::new() };
    let mut crash = plan.seed.derive("crash").rng();
    let number = match crash.below(6) {
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
        admin,
        faults: plan.atlas.faults(commands, plan.first, &mut plan.seed.derive("faults").rng()),
        crash: crashes.then(|| Crash { point, fates: Fates::Random(crash.u64()) }),
    }
}

fn draw_client(volumes: &[u64], acts: u64, full: bool, rng: &mut Rng) -> Vec<Act> {
    // Each client has habits: some only log, some only read, some overwrite one spot.
    let volume = rng.below(volumes.len() as u64) as u32;
    let sectors = volumes[volume as usize];
    let span = match rng.below(3) {
        _ if full => sectors,
        0 => sectors.min(64),
        1 => sectors.min(512),
        _ => sectors,
    };
    let start = rng.below(sectors - span + 1) / 8 * 8;
    let fua = *rng.pick(&[0, 100, 500, 1000]);
    let write = rng.between(200, 900);
    let unaligned = *rng.pick(&[0, 0, 200, 900]);
    let large = if full { 700 } else { *rng.pick(&[0, 0, 50]) };
    let zeroing = *rng.pick(&[0, 0, 60, 300]);
    let flush = *rng.pick(&[0, 10, 100, 400]);
    let pause = *rng.pick(&[0, 0, 50]);
    let fill = if rng.chance(700) { Fill::Noise } else { Fill::Zeros };
    let mut at = 0;
    let sequential = rng.chance(300);
    let mut range = |rng: &mut Rng| {
        let count = if rng.chance(large) {
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

fn draw_admin(plan: &Plan<'_>, next_volume: &mut u32) -> Vec<Admin> {
    let mut rng = plan.seed.derive("admin").rng();
    let mut jobs = Vec::new();
    let mut mine = Vec::new();
    for _ in 0..rng.between(1, 6) {
        jobs.push(Admin::Pause { ns: 1 << rng.between(14, 27) });
        jobs.push(match rng.below(7) {
            0 | 1 => {
                let volume = *next_volume;
                *next_volume += 1;
                mine.push(volume);
                Admin::Create { volume, sectors: rng.between(8, 128) * 8 }
            }
            2 if !mine.is_empty() => {
                let index = rng.below(mine.len() as u64) as usize;
                Admin::Destroy { volume: mine.swap_remove(index) }
            }
            3 => {
                let volume = rng.below(plan.volumes.len() as u64) as u32;
                let sectors = plan.volumes[volume as usize] + rng.below(64) * 8;
                Admin::Resize { volume, sectors }
            }
            4 | 5 if !plan.wish.manage.is_empty() => {
                Admin::Manage(rng.pick(&plan.wish.manage).clone())
            }
            _ => Admin::Scrub,
        });
    }
    jobs
}

/// Whether everything is demanded of the scenario that `seed` gives.
#[must_use]
pub fn demands_all(scenario: &Scenario) -> bool {
    scenario.demand == Demand::AllData
}
