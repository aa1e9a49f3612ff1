//! The generator: a scenario from a seed.
//!
//! What enters: a seed, and constraints for what must not be drawn. What leaves: a scenario.
//! What always holds: each part derives its own stream by label, so a change to one part does not
//! change the others. Labels never change: a new label redraws every scenario, and recorded seeds
//! would lose their meaning.
//! Who calls: the search (`prove.rs`) and tests.

use forebay_sim::{Rng, Seed};

use crate::admin_workload::AdminWorkload;
use crate::fault_plan::{FaultPlan, Level};
use crate::scenario::{Boot, Scenario, VERSION};
use crate::subject::{LogShape, PoolSpec, Raid, Sync};
use boot::{BootPlan, crash_in_recovery_of, draw_boot, rot_map_in};
use clients::HotBlocks;

mod boot;
mod clients;
mod constraints;

pub use constraints::Constraints;

/// How many of a thousand scenarios have a nearly full pool.
const NEARLY_FULL_PER_MILLE: u64 = 80;
/// How many of a thousand scenarios have a power cut in a recovery, after which disks lose writes.
const CRASH_IN_RECOVERY_PER_MILLE: u64 = 80;

/// Which special class the scenario belongs to.
#[derive(Clone, Copy)]
struct Class {
    /// Special classes and hot blocks may be drawn.
    is_free: bool,
    is_full: bool,
    crashes_in_recovery: bool,
}

impl Class {
    fn draw(seed: Seed, constraints: &Constraints) -> Self {
        let is_free = constraints.acts.is_none() && constraints.spec.is_none();
        let draw = |label, per_mille| is_free && seed.derive(label).rng().chance(per_mille);
        let is_full = constraints.full.unwrap_or_else(|| draw("full", NEARLY_FULL_PER_MILLE));
        let crashes_in_recovery = constraints
            .crash_in_recovery
            .unwrap_or_else(|| draw("relapse", CRASH_IN_RECOVERY_PER_MILLE));
        Self { is_free, is_full, crashes_in_recovery }
    }
}

/// The scenario of `seed`.
#[must_use]
pub fn generate(seed: Seed, constraints: &Constraints) -> Scenario {
    let class = Class::draw(seed, constraints);
    let mut recovery_rng = seed.derive("relapse shape").rng();
    let spec = draw_pool(seed, constraints, class, &mut recovery_rng);
    let mut rng = seed.derive("shape").rng();
    let level = constraints.level.unwrap_or_else(|| draw_level(&mut rng));
    let mut volumes: Vec<u64> = (0..rng.between(1, 3)).map(|_| rng.between(16, 512) * 8).collect();
    if class.is_full {
        volumes = split(nearly_all(&spec, &mut rng), &mut seed.derive("split").rng());
    }
    let (mut sparse, mut sync) = (Vec::new(), Vec::new());
    if constraints.manage {
        let kinds = &mut seed.derive("kinds").rng();
        (sparse, sync) = draw_properties(volumes.len() as u32, class.is_full, kinds);
    }
    let has_hot_blocks = class.is_free && !class.is_full;
    let hot_blocks =
        has_hot_blocks.then(|| HotBlocks::draw(&volumes, seed.derive("crowd"))).flatten();
    let mut fault_plan = FaultPlan::draw(&spec, level, &mut seed.derive("atlas").rng());
    if class.crashes_in_recovery && level == Level::Within {
        fault_plan.strike_one(&spec, &mut recovery_rng);
    }
    let fewest_boots = if class.crashes_in_recovery { 3 } else { 1 };
    let boots = constraints.boots.unwrap_or_else(|| rng.between(fewest_boots, 4));
    let admin_seed = seed.derive("desk");
    let mut workload =
        AdminWorkload::new(&spec, &fault_plan, &volumes, constraints.manage, admin_seed);
    let remote = constraints
        .remote
        .unwrap_or_else(|| *seed.derive("remote").rng().pick(&[0, 0, 200, 500, 1000]));
    let draw_one = |index: u64| {
        let seed = seed.derive("boot").derive(&index.to_string());
        let plan = BootPlan {
            constraints,
            fault_plan: &fault_plan,
            volumes: &volumes,
            is_first: index == 0,
            is_full: class.is_full,
            hot_blocks,
            remote,
            disks: spec.data_disks as u64,
            seed,
        };
        let mut boot = draw_boot(&plan, &mut workload);
        if class.crashes_in_recovery {
            crash_in_recovery_of(&mut boot, &plan, seed.derive("relapse"));
        }
        boot
    };
    let mut boots: Vec<Boot> = (0..boots).map(draw_one).collect();
    if level == Level::Within && spec.raid.parity(spec.data_disks) == 0 {
        rot_map_in(&mut boots, &mut seed.derive("map rot").rng());
    }
    Scenario {
        version: VERSION,
        description: String::new(),
        seed: seed.0,
        spec,
        demand: level.demand(),
        volumes,
        sparse,
        sync,
        boots,
    }
}

fn draw_level(rng: &mut Rng) -> Level {
    match rng.below(20) {
        0..7 => Level::CrashOnly,
        7..17 => Level::Within,
        17..19 => Level::Beyond,
        _ => Level::Lies,
    }
}

fn draw_pool(
    seed: Seed,
    constraints: &Constraints,
    class: Class,
    recovery_rng: &mut Rng,
) -> PoolSpec {
    if let Some(spec) = &constraints.spec {
        return spec.clone();
    }
    let draw = |seed: Seed| match class.is_full {
        true => draw_small_spec(seed.derive("small spec")),
        false => draw_spec(seed.derive("spec")),
    };
    let mut spec = draw(seed);
    // A pool without redundancy may not lose a write, so it cannot be of this class.
    while class.crashes_in_recovery && spec.parity() == 0 {
        spec = draw(Seed(recovery_rng.u64()));
    }
    if constraints.manage {
        add_groups_and_rings(&mut spec, &mut seed.derive("several").rng());
        spec.spare_disks = seed.derive("spares").rng().below(3) as usize;
    }
    spec
}

/// Draws which volumes are sparse, and which have a `sync` other than the default.
fn draw_properties(volumes: u32, is_full: bool, rng: &mut Rng) -> (Vec<u32>, Vec<(u32, Sync)>) {
    let (mut sparse, mut sync) = (Vec::new(), Vec::new());
    for volume in 0..volumes {
        if rng.chance(150) && !is_full {
            sparse.push(volume);
        }
        if rng.chance(150) {
            sync.push((volume, *rng.pick(&[Sync::Always, Sync::Disabled])));
        }
    }
    (sparse, sync)
}

/// A pool shape that is small enough for many runs a second.
fn draw_spec(seed: Seed) -> PoolSpec {
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

/// A pool shape with few data columns, which few writes fill.
fn draw_small_spec(seed: Seed) -> PoolSpec {
    let mut rng = seed.rng();
    let (raid, data_disks) =
        *rng.pick(&[(Raid::Raid0, 1), (Raid::Raid0, 1), (Raid::Mirror, 2), (Raid::Z1, 3)]);
    PoolSpec { raid, data_disks, ..draw_spec(seed) }
}

/// Gives some pools two groups, and some two log rings.
fn add_groups_and_rings(spec: &mut PoolSpec, rng: &mut Rng) {
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

/// The size in sectors of volumes that nearly fill a pool of this shape.
fn nearly_all(spec: &PoolSpec, rng: &mut Rng) -> u64 {
    let width = spec.data_disks / spec.groups;
    let columns = match spec.raid {
        Raid::Mirror => 1,
        _ => width - spec.parity(),
    } * spec.groups;
    (columns as u64 * rng.between(26, 42)) << 11
}

/// Splits so many sectors into one to three volumes of equal size.
fn split(sectors: u64, rng: &mut Rng) -> Vec<u64> {
    let count = *rng.pick(&[1, 1, 2, 3]);
    vec![sectors / count / 8 * 8; count as usize]
}
