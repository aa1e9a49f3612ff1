//! The generator: a scenario from a seed, within constraints for what must not be drawn.
//!
//! What always holds: each part derives its own stream by label, so a change to one part does not
//! change the others. Labels never change: a new label redraws every scenario, and recorded seeds
//! would lose their meaning.

use std::collections::BTreeMap;

use forebay_sim::{Rng, Seed};

use crate::admin_workload::AdminWorkload;
use crate::fault_plan::{FaultPlan, Level};
use crate::scenario::{Boot, Scenario, VERSION, cuts_off};
use crate::subject::{DEDUP_ON, DEDUP_VERIFY, LZ4, LogShape, PoolSpec, Raid, Sync};
use boot::{BootPlan, Size, crash_in_recovery_of, draw_boot, rot_map_in};
use clients::HotBlocks;
use succession::Chain;

mod aim;
mod beside;
mod boot;
mod cache_disks;
mod canceled;
mod clients;
mod constraints;
mod halves;
mod holds;
mod limits;
mod log_memory;
mod object_stores;
mod parts;
mod races;
mod refusals;
mod remote_log;
mod renames;
mod reservations;
mod returns;
mod rewinds;
mod scrubs;
mod sharing;
mod sizes;
mod slow_labels;
mod snapshots;
mod succession;
mod suspension;
mod takeovers;
mod wide_volumes;

pub use aim::Aim;
pub use constraints::Constraints;

/// How many of a thousand pools of several groups have one of another kind.
const MIXED_GROUPS_PER_MILLE: u64 = 400;
/// How many of a thousand scenarios have a nearly full pool.
const NEARLY_FULL_PER_MILLE: u64 = 80;
/// How many of a thousand usual scenarios have properties other than the default.
const PROPERTIES_PER_MILLE: u64 = 150;
/// How many of a thousand scenarios have a read cache.
const CACHE_PER_MILLE: u64 = 250;
/// Chance that sparse volumes and clones are de-duplicated.
const DEDUP_PER_MILLE: u64 = 250;
/// Chance that sparse volumes and clones are compressed.
const COMPRESSION_PER_MILLE: u64 = 300;
/// How many of a thousand scenarios of most classes have spares that the pool takes by itself.
const HOT_SPARES_PER_MILLE: u64 = 60;
/// How many of a thousand scenarios have a power cut in a recovery, after which disks lose writes.
const CRASH_IN_RECOVERY_PER_MILLE: u64 = 80;

/// Which special class the scenario belongs to.
#[derive(Clone, Copy)]
struct Class {
    /// Special classes and hot blocks may be drawn.
    is_free: bool,
    is_full: bool,
    crashes_in_recovery: bool,
    aim: Aim,
}

impl Class {
    fn draw(seed: Seed, constraints: &Constraints) -> Self {
        let is_free = constraints.acts.is_none() && constraints.spec.is_none();
        let draw = |label, per_mille| is_free && seed.derive(label).rng().chance(per_mille);
        // An aim that was asked for excludes the classes that were not.
        let has_aim = constraints.aim.is_some_and(|aim| aim != Aim::Mixed);
        let is_full =
            constraints.full.unwrap_or_else(|| !has_aim && draw("full", NEARLY_FULL_PER_MILLE));
        let crashes_in_recovery = constraints
            .crash_in_recovery
            .unwrap_or_else(|| !has_aim && draw("relapse", CRASH_IN_RECOVERY_PER_MILLE));
        let is_usual = is_free && !is_full && !crashes_in_recovery;
        let aim = match constraints.aim {
            Some(aim) => aim,
            None if is_usual => Aim::draw(&mut seed.derive("aim").rng()),
            None => Aim::Mixed,
        };
        let is_full = is_full
            || matches!(aim, Aim::SlowReads | Aim::MovedRot)
            || (aim == Aim::Returns && seed.derive("returns").rng().chance(500))
            || (aim == Aim::Snapshots && seed.derive("snapshots").rng().chance(400))
            || (aim == Aim::Sharing && seed.derive("sharing").rng().chance(300));
        Self { is_free, is_full, crashes_in_recovery, aim }
    }

    fn fewest_boots(self) -> u64 {
        match self.aim {
            Aim::Redundancy | Aim::Replay | Aim::Returns | Aim::Rewind | Aim::Scrubs => 2,
            Aim::Halves => 2,
            Aim::Roots => 3,
            _ if self.crashes_in_recovery => 3,
            _ => 1,
        }
    }

    /// Draws what the class says of a boot.
    fn apply(self, boot: &mut Boot, plan: &BootPlan<'_>, level: Level, seed: Seed) {
        let lies = self.aim == Aim::Rewind && level == Level::Within;
        let rewinds = self.aim == Aim::Rewind && (level == Level::CrashOnly || lies);
        boot.rewinds = rewinds && !plan.is_first;
        if self.aim == Aim::Rewind && plan.has_disks_alone() {
            boot.looks_back = plan.seed.derive("looks back").rng().below(5);
        }
        if lies {
            // Other faults change which devices have which root, and so does a rewind cut short.
            let rng = &mut seed.derive("lies").rng();
            boot.faults = plan.fault_plan.lies(Size::draw(plan, rng).commands, rng);
            boot.crash.iter_mut().for_each(|crash| crash.in_work = true);
        }
        if self.crashes_in_recovery {
            crash_in_recovery_of(boot, plan, seed);
        }
        rewinds::apply(boot, plan, level);
        scrubs::apply(boot, plan, level);
        halves::apply(boot, plan, level);
    }

    /// Disks fail in turn (at level within).
    fn has_succession(self) -> bool {
        matches!(self.aim, Aim::Redundancy | Aim::Returns)
    }

    /// A pool without redundancy may not lose a write or a disk.
    fn needs_redundancy(self) -> bool {
        let aim = matches!(self.aim, Aim::Misaddressed | Aim::MovedRot | Aim::Scrubs);
        self.crashes_in_recovery || aim || self.has_succession()
    }
}

/// What the volumes of a scenario are.
struct Stock {
    volumes: Vec<u64>,
    sparse: Vec<u32>,
    sync: Vec<(u32, Sync)>,
    gaps: Vec<(u32, u64)>,
}

/// The scenario of `seed`.
#[must_use]
pub fn generate(seed: Seed, constraints: &Constraints) -> Scenario {
    let class = Class::draw(seed, constraints);
    let mut recovery_rng = seed.derive("relapse shape").rng();
    let mut spec = draw_pool(seed, constraints, class, &mut recovery_rng);
    let mut rng = seed.derive("shape").rng();
    let level = constraints.level.unwrap_or_else(|| draw_level(&mut rng));
    let Stock { volumes, sparse, sync, gaps } =
        draw_stock(seed, constraints, (class, level), &mut spec, &mut rng);
    let hot_blocks = draw_hot_blocks(seed, class, &volumes);
    let fault_plan = draw_faults(seed, (class, level), &spec, &mut recovery_rng);
    let boots = constraints.boots.unwrap_or_else(|| rng.between(class.fewest_boots(), 4));
    let mut workload =
        AdminWorkload::new(&spec, &fault_plan, &volumes, constraints.manage, seed.derive("desk"));
    let remote = constraints.remote.unwrap_or_else(|| draw_remote(seed));
    let mut snapshots = snapshots::Workload::new(&class, constraints, seed.derive("snapshots"));
    let mut chain = Chain::new(&spec, &fault_plan, class.aim, &mut seed.derive("succession").rng());
    let draw_one = |index: u64| {
        let seed = seed.derive("boot").derive(&index.to_string());
        let plan = BootPlan {
            constraints,
            fault_plan: &fault_plan,
            spec: &spec,
            volumes: &volumes,
            is_first: index == 0,
            is_full: class.is_full,
            aim: class.aim,
            hot_blocks,
            remote,
            disks: spec.data_disks as u64,
            seed,
        };
        let mut boot = draw_boot(&plan, &mut workload);
        boot::pause_for_spares(&mut boot, &plan);
        let commands = || Size::draw(&plan, &mut plan.seed.derive("size").rng()).commands;
        races::apply(&mut boot, &plan, commands().min(1 << 12));
        class.apply(&mut boot, &plan, level, seed.derive("relapse"));
        suspension::apply(&mut boot, &plan, commands().min(1 << 12));
        takeovers::apply(&mut boot, &plan, level, commands().min(1 << 12));
        cache_disks::apply(&mut boot, &plan, commands());
        log_memory::apply_all(&mut boot, &plan, commands().min(1 << 12));
        if class.has_succession() && level == Level::Within {
            chain.extend(&mut boot, index == 0, commands(), plan.seed.derive("succession"));
            returns::apply(&mut boot, &plan, chain.victims(), commands().min(1 << 12));
        }
        remote_log::apply(&mut boot, &plan, commands().min(1 << 12));
        snapshots.apply(&mut boot, &plan);
        draw_changes_of_volumes(&mut boot, &plan);
        object_stores::attach(&mut boot, &plan);
        boot
    };
    let mut boots: Vec<Boot> = (0..boots).map(draw_one).collect();
    rot_map_in(&mut boots, &spec, level, &mut seed.derive("map rot").rng());
    let in_turn = class.has_succession() && (level == Level::CrashOnly || chain.is_loud);
    Scenario {
        version: VERSION,
        description: String::new(),
        seed: seed.0,
        is_loud: in_turn || (object_stores::has_copies(&spec) && level == Level::CrashOnly),
        spec,
        demand: level.demand(),
        volumes,
        sparse,
        sync,
        gaps,
        counts_leaks: matches!(class.aim, Aim::Refusals | Aim::Canceled),
        keeps_disks: level == Level::CrashOnly && keeps_disks(class.aim, &boots),
        boots: takeovers::spare_after_cuts(boots),
    }
}

/// Draws jobs that change volumes beside their clients.
fn draw_changes_of_volumes(boot: &mut Boot, plan: &BootPlan<'_>) {
    sharing::apply(boot, plan);
    renames::apply(boot, plan);
    reservations::apply(boot, plan);
    limits::apply(boot, plan);
}

/// True when no fault of the boots is a reason to put a disk out of use.
fn keeps_disks(aim: Aim, boots: &[Boot]) -> bool {
    let mut jobs = boots.iter().flat_map(|boot| &boot.admin);
    let is_any_out = jobs.any(|job| !job.taken().is_empty());
    matches!(aim, Aim::Blocked | Aim::Takeover) && !cuts_off(boots) && !is_any_out
}

/// Draws the disks that faults strike.
fn draw_faults(
    seed: Seed,
    (class, level): (Class, Level),
    spec: &PoolSpec,
    recovery_rng: &mut Rng,
) -> FaultPlan {
    let mut fault_plan = FaultPlan::draw(spec, level, &mut seed.derive("atlas").rng());
    if (class.needs_redundancy() || class.aim == Aim::Rewind) && level == Level::Within {
        fault_plan.strike_one(spec, recovery_rng);
    }
    fault_plan
}

/// Draws how many of a thousand clients come through NBD.
fn draw_remote(seed: Seed) -> u64 {
    *seed.derive("remote").rng().pick(&[0, 0, 200, 500, 1000])
}

/// Draws the volumes, and the properties of the pool.
fn draw_stock(
    seed: Seed,
    constraints: &Constraints,
    (class, level): (Class, Level),
    spec: &mut PoolSpec,
    rng: &mut Rng,
) -> Stock {
    let mut volumes: Vec<u64> = (0..rng.between(1, 3)).map(|_| rng.between(16, 512) * 8).collect();
    if class.is_full {
        volumes = split(nearly_all(spec, rng), &mut seed.derive("split").rng());
    }
    let lacks_room = seed.derive("snapshots room").rng().chance(300);
    if class.is_full && class.aim == Aim::Snapshots && !lacks_room {
        // There is room for what snapshots hold. Elsewhere those of thick volumes do not fit.
        volumes.iter_mut().for_each(|sectors| *sectors = *sectors / 16 * 8);
    }
    let (mut sparse, mut sync, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
    let sizes = &mut seed.derive("sizes").rng();
    match class.aim {
        Aim::Refusals => {
            (volumes, sparse) = refusals::draw_volumes(spec, &mut seed.derive("refusals").rng());
        }
        Aim::Sizes => (volumes, sparse, gaps) = sizes::draw_volumes(spec, sizes),
        Aim::Snapshots => sparse = snapshots::draw_sparse(seed, class.is_full, &mut volumes),
        Aim::Sharing => {
            let rng = &mut seed.derive("sharing volumes").rng();
            volumes = sharing::draw_volumes(spec, class.is_full, rng);
            sparse.extend(0..volumes.len() as u32);
        }
        Aim::Canceled => {
            let throttled = canceled::draw_volumes(spec, &mut seed.derive("canceled").rng());
            volumes = throttled.unwrap_or(volumes);
            let kinds = &mut seed.derive("kinds").rng();
            (sparse, sync) = draw_properties(volumes.len() as u32, false, kinds);
        }
        Aim::Throttle => {
            volumes = races::draw_throttled_volumes(spec, &mut seed.derive("races").rng());
        }
        Aim::Misaddressed => {
            volumes = races::draw_equal_volumes(&mut seed.derive("races").rng());
        }
        _ if constraints.manage => {
            let kinds = &mut seed.derive("kinds").rng();
            (sparse, sync) = draw_properties(volumes.len() as u32, class.is_full, kinds);
        }
        _ => {}
    }
    match class.aim {
        Aim::Replay => sizes::hold_much_log(spec),
        Aim::Sizes => sizes::draw_properties(spec, sizes),
        Aim::Returns => {
            returns::draw_properties(spec, class.is_full, &mut seed.derive("returns shape").rng());
        }
        Aim::Suspension => {
            suspension::draw_properties(spec, &mut seed.derive("suspension").rng());
        }
        Aim::Scrubs => scrubs::draw_properties(spec, &mut seed.derive("scrubs").rng()),
        Aim::Mixed if class.is_free && !class.is_full && sizes.chance(PROPERTIES_PER_MILLE) => {
            sizes::draw_properties(spec, sizes);
        }
        _ => {}
    }
    draw_services(spec, seed, (class, level), constraints.manage);
    Stock { volumes, sparse, sync, gaps }
}

/// Draws caches, what the pool does with blocks of sparse volumes, and special devices.
fn draw_services(spec: &mut PoolSpec, seed: Seed, (class, level): (Class, Level), manages: bool) {
    draw_cache(spec, &mut seed.derive("cache").rng());
    if class.aim != Aim::Sharing {
        draw_dedup(spec, &mut seed.derive("dedup").rng());
        draw_compression(spec, &mut seed.derive("compression").rng());
    }
    if class.aim == Aim::Halves {
        // What the halves have is on their disks alone.
        return;
    }
    if class.is_free {
        object_stores::draw(spec, level, class.aim, &mut seed.derive("object stores").rng());
    }
    if class.is_free && manages {
        let rng = &mut seed.derive("copies in stores").rng();
        object_stores::draw_copies(spec, level, class.aim, rng);
    }
    if class.is_free && class.aim == Aim::Takeover {
        cache_disks::draw(spec, &mut seed.derive("takeover cache disks").rng());
    } else if class.is_free {
        cache_disks::draw(spec, &mut seed.derive("cache disks").rng());
        log_memory::draw(spec, level, class.aim, &mut seed.derive("log memory").rng());
        remote_log::draw(spec, level, class.aim, &mut seed.derive("remote log").rng());
        log_memory::draw_mirrored(
            spec,
            level,
            class.aim,
            &mut seed.derive("mirrored memory").rng(),
        );
    }
}

/// Draws whether the pool has a read cache, and of which kind.
fn draw_cache(spec: &mut PoolSpec, rng: &mut Rng) {
    if rng.chance(CACHE_PER_MILLE) {
        let size = *rng.pick(&["1M", "1M", "64M"]);
        let policy = *rng.pick(&["arc", "s3fifo", "sieve", "lru"]);
        for (name, value) in [("cache_size", size), ("cache_policy", policy)] {
            spec.properties.insert(name.to_owned(), value.to_owned());
        }
    }
}

/// Draws whether sparse volumes are de-duplicated.
fn draw_dedup(spec: &mut PoolSpec, rng: &mut Rng) {
    if rng.chance(DEDUP_PER_MILLE) {
        // The size says which mode: see the subject.
        let size = *rng.pick(&[DEDUP_ON, DEDUP_ON, DEDUP_VERIFY]);
        spec.properties.insert("dedup_index_size".to_owned(), size.to_owned());
    }
}

/// Draws whether sparse volumes are compressed, beside what they are anyway.
fn draw_compression(spec: &mut PoolSpec, rng: &mut Rng) {
    if rng.chance(COMPRESSION_PER_MILLE) {
        let size = spec.properties.get("dedup_index_size").map_or("", String::as_str);
        let with = match size {
            DEDUP_ON => "4M",
            DEDUP_VERIFY => "5M",
            _ => LZ4,
        };
        spec.properties.insert("dedup_index_size".to_owned(), with.to_owned());
    }
}

fn draw_hot_blocks(seed: Seed, class: Class, volumes: &[u64]) -> Option<HotBlocks> {
    match class.aim {
        Aim::Parts => Some(HotBlocks::choose(volumes, seed.derive("crowd"))),
        Aim::Refusals | Aim::Sizes | Aim::Replay | Aim::Throttle => None,
        Aim::Misaddressed | Aim::Sharing | Aim::Memory => None,
        _ if class.is_free && !class.is_full => HotBlocks::draw(volumes, seed.derive("crowd")),
        _ => None,
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
    let small = matches!(class.aim, Aim::Refusals | Aim::Roots | Aim::Snapshots);
    let is_small = class.is_full || small || matches!(class.aim, Aim::Sharing | Aim::Memory);
    let draw = |seed: Seed| match is_small {
        true => draw_small_spec(seed.derive("small spec")),
        false => draw_spec(seed.derive("spec")),
    };
    let mut spec = draw(seed);
    while class.needs_redundancy() && spec.parity() == 0 {
        spec = draw(Seed(recovery_rng.u64()));
    }
    if class.aim == Aim::Memory {
        return log_memory::with_log(spec);
    }
    if class.aim == Aim::Takeover {
        return takeovers::draw_spec(spec, &mut seed.derive("takeover shape").rng());
    }
    if class.aim == Aim::Halves {
        return halves::draw_spec(spec, &mut seed.derive("halves shape").rng());
    }
    if class.aim == Aim::Objects {
        return PoolSpec { raid: Raid::Raid0, data_disks: 1, ..spec };
    }
    if constraints.manage {
        add_groups_and_rings(&mut spec, &mut seed.derive("several").rng());
        mix_groups(&mut spec, &mut seed.derive("kinds of groups").rng());
        spec.spare_disks = seed.derive("spares").rng().below(3) as usize;
        let rng = &mut seed.derive("hot spares").rng();
        let per_mille = match class.aim {
            Aim::Redundancy => 400,
            Aim::Suspension => 300,
            // A disk with much rot would be replaced.
            Aim::Scrubs => 0,
            _ => HOT_SPARES_PER_MILLE,
        };
        if rng.chance(per_mille) && spec.parity() > 0 {
            spec.hot_spares = rng.between(1, 2) as usize;
            spec.spare_disks += spec.hot_spares;
        }
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
        last_group: None,
        spare_disks: 0,
        hot_spares: 0,
        cache_disks: 0,
        memory_logs: 0,
        remote_logs: 0,
        mirrored_memory: 0,
        in_objects: false,
        stores: Vec::new(),
        data_bytes: 64 << 20,
        log_bytes: 64 << 20,
        segment_bytes: 1 << 20,
        properties: BTreeMap::new(),
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

/// Gives some pools two to four groups, and some two log rings.
fn add_groups_and_rings(spec: &mut PoolSpec, rng: &mut Rng) {
    let (groups, rings) = (rng.chance(150), rng.chance(200));
    if groups && spec.data_disks <= 5 {
        spec.groups = 2;
        spec.data_disks *= 2;
    }
    // Only from here on, so that other pools stay as they are.
    if spec.groups == 2 && spec.data_disks <= 8 && rng.chance(500) {
        let width = spec.data_disks / 2;
        spec.groups = rng.between(3, 4) as usize;
        spec.data_disks = width * spec.groups;
    }
    spec.log = match spec.log {
        LogShape::One if rings => LogShape::Two,
        LogShape::Mirror if rings => LogShape::TwoMirrors,
        log => log,
    };
}

/// Gives the last of several groups another kind. A pool with redundancy keeps it.
fn mix_groups(spec: &mut PoolSpec, rng: &mut Rng) {
    let width = spec.data_disks / spec.groups;
    if spec.groups == 1 || width == 1 || !rng.chance(MIXED_GROUPS_PER_MILLE) {
        return;
    }
    let kinds = [(Raid::Mirror, 2), (Raid::Z1, 3), (Raid::Z2, 4), (Raid::Z3, 5)];
    let able = kinds.iter().filter(|(raid, least)| *least <= width && *raid != spec.raid);
    let able: Vec<Raid> = able.map(|(raid, _)| *raid).collect();
    spec.last_group = able.get(rng.below(able.len().max(1) as u64) as usize).copied();
}

/// The size in sectors of volumes that nearly fill a pool of this shape.
fn nearly_all(spec: &PoolSpec, rng: &mut Rng) -> u64 {
    let columns: usize =
        spec.groups_with_parity().map(|(disks, parity)| disks.len() - parity).sum();
    (columns as u64 * rng.between(26, 42)) << 11
}

/// Splits so many sectors into one to three volumes of equal size.
fn split(sectors: u64, rng: &mut Rng) -> Vec<u64> {
    let count = *rng.pick(&[1, 1, 2, 3]);
    vec![sectors / count / 8 * 8; count as usize]
}
