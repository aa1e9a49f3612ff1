//! One boot of a drawn scenario: clients, administrator, faults and the power cut.

use forebay_sim::{CrashPoint, Rng, Seed};

use super::aim::Aim;
use super::clients::{Filler, HotBlocks, draw_client};
use super::constraints::Constraints;
use super::{beside, log_memory, object_stores, parts, refusals, sharing, sizes, snapshots};
use crate::admin_workload::AdminWorkload;
use crate::fault_plan::{FaultPlan, Level};
use crate::scenario::{Act, Admin, Boot, Crash, Fates, MapRot};
use crate::subject::{Manage, PoolSpec};

/// What the draw of a boot depends on.
pub(super) struct BootPlan<'a> {
    pub(super) constraints: &'a Constraints,
    pub(super) fault_plan: &'a FaultPlan,
    pub(super) spec: &'a PoolSpec,
    pub(super) volumes: &'a [u64],
    pub(super) is_first: bool,
    pub(super) is_full: bool,
    pub(super) aim: Aim,
    pub(super) hot_blocks: Option<HotBlocks>,
    /// How many of a thousand clients connect through NBD.
    pub(super) remote: u64,
    /// Number of data disks.
    pub(super) disks: u64,
    pub(super) seed: Seed,
}

impl BootPlan<'_> {
    /// True when jobs that change volumes may be added to those of the boot.
    pub(super) fn may_change_volumes(&self, boot: &Boot) -> bool {
        let Constraints { manage, acts, spec, .. } = self.constraints;
        *manage && acts.is_none() && spec.is_none() && !boot.admin.is_empty()
    }

    /// True when a copy of the disks is a copy of all that the pool has.
    pub(super) fn has_disks_alone(&self) -> bool {
        let spec = self.spec;
        spec.memory_logs + spec.remote_logs + spec.mirrored_memory + spec.cache_disks == 0
    }
}

/// How much the clients of a boot do.
pub(super) struct Size {
    clients: u64,
    acts: u64,
    /// An estimate of the device commands that the boot takes.
    pub(super) commands: u64,
}

impl Size {
    pub(super) fn draw(plan: &BootPlan<'_>, rng: &mut Rng) -> Self {
        let mut clients = plan.constraints.clients.unwrap_or_else(|| rng.between(1, 12));
        let mut acts = plan.constraints.acts.unwrap_or_else(|| 1 << rng.between(3, 8));
        let mut commands = clients * acts + 50;
        if plan.hot_blocks.is_some() {
            clients = clients.clamp(3, 8);
            acts = acts.min(64);
            commands = clients * acts + 50;
        }
        match plan.aim {
            Aim::Sizes => {
                clients = clients.min(3);
                acts = acts.min(16);
                commands = 40 * clients * acts;
            }
            Aim::Replay => {
                clients = clients.min(4);
                acts = rng.between(20, 120) / clients;
                // Of a recovery, which reads the log and commits it in groups.
                commands = if plan.is_first { u64::MAX } else { 600 };
            }
            Aim::Memory => clients = clients.min(3),
            Aim::Beside | Aim::Snapshots | Aim::Sharing => {
                clients = clients.clamp(2, 8);
                acts = acts.min(64);
                commands = clients * acts + 50;
            }
            _ => {}
        }
        if plan.aim == Aim::Refusals {
            clients = clients.min(6);
            acts = rng.between(200, 1500) / clients;
            commands = 3 * clients * acts;
        }
        if plan.is_full {
            clients = rng.between(1, 4);
            acts = rng.between(80, 320) / clients;
            // Measured: what filling the pool takes, and what overwriting takes.
            commands = plan.disks * if plan.is_first { 1200 } else { 500 };
        }
        Self { clients, acts, commands }
    }
}

pub(super) fn draw_boot(plan: &BootPlan<'_>, workload: &mut AdminWorkload) -> Boot {
    let mut rng = plan.seed.derive("size").rng();
    let Size { clients, acts, commands } = Size::draw(plan, &mut rng);
    let script = |index: u64| {
        let mut rng = plan.seed.derive("client").derive(&index.to_string()).rng();
        if plan.is_full {
            let fills = plan.is_first;
            return Filler { volumes: plan.volumes, index, clients, acts, fills }.draw(&mut rng);
        }
        if let (Aim::Parts, Some(place)) = (plan.aim, plan.hot_blocks) {
            return parts::draw_client(place, acts, &mut rng);
        }
        if plan.aim == Aim::Refusals {
            return refusals::draw_client(plan.volumes, index, acts, &mut rng);
        }
        match plan.aim {
            Aim::Sizes => return sizes::draw_client(plan.volumes, acts, &mut rng),
            Aim::Replay => return sizes::draw_log_filler(plan.volumes, acts, &mut rng),
            Aim::Beside => return beside::draw_client(plan.volumes, acts, &mut rng),
            Aim::Memory => return log_memory::draw_client(plan.volumes, &mut rng),
            Aim::Sharing => return sharing::draw_client(plan.volumes, acts, &mut rng),
            Aim::Snapshots => return snapshots::draw_client(plan.volumes, acts, &mut rng),
            _ => {}
        }
        let mut sectors = plan.seed.derive("parts").derive(&index.to_string()).rng();
        draw_client(plan.volumes, acts, plan.hot_blocks, &mut rng, &mut sectors)
    };
    let mut remote = plan.seed.derive("remote").rng();
    let mut admin = if plan.constraints.admin && rng.chance(600) {
        let seed = plan.seed.derive("admin");
        if plan.is_full { workload.jobs_of_a_full_pool(seed) } else { workload.jobs(seed) }
    } else {
        Vec::new()
    };
    draw_jobs_of_aim(&mut admin, plan);
    if plan.hot_blocks.is_some() {
        admin.splice(0..0, commits(12, 18, &mut plan.seed.derive("crowd").rng()));
    }
    let mut crash = plan.seed.derive("crash").rng();
    let point = draw_crash_point(plan, commands, &mut crash);
    let crashes = crash.chance(900);
    let faults = &mut plan.seed.derive("faults").rng();
    Boot {
        seed: plan.seed.derive("order").0,
        clients: (0..clients).map(script).collect(),
        remote: (0..clients as usize).filter(|_| remote.chance(plan.remote)).collect(),
        admin,
        map_rot: None,
        lost_map: None,
        leaves_scrub: false,
        stale_map: Vec::new(),
        succession: None,
        outage: None,
        takeover: None,
        rewinds: false,
        further_roots: 0,
        looks_back: 0,
        apart: None,
        power: Vec::new(),
        network: Vec::new(),
        lost_objects: object_stores::draw_losses(plan, commands),
        memory_lost: false,
        is_beside: plan.aim == Aim::Beside,
        faults: plan.fault_plan.faults(commands.min(1 << 12), plan.is_first, faults),
        crash: crashes.then(|| Crash {
            in_work: plan.is_full || (crash.chance(500) && plan.aim != Aim::Replay),
            ..Crash::at(point, Fates::Random(crash.u64()))
        }),
    }
}

/// Draws the jobs that the aim asks for.
fn draw_jobs_of_aim(admin: &mut Vec<Admin>, plan: &BootPlan<'_>) {
    let jobs = &mut plan.seed.derive("aim").rng();
    match plan.aim {
        Aim::Refusals => *admin = refusals::draw_jobs(jobs),
        Aim::Sizes => *admin = sizes::draw_jobs(jobs),
        Aim::Replay => *admin = vec![sizes::shrink_memory()],
        Aim::Beside => *admin = beside::draw_jobs(plan.volumes, plan.is_first, jobs),
        Aim::Rewind => *admin = commits(8, 20, jobs),
        Aim::Sharing => admin.splice(0..0, commits(12, 22, jobs)).for_each(drop),
        _ => {}
    }
}

fn draw_crash_point(plan: &BootPlan<'_>, commands: u64, rng: &mut Rng) -> CrashPoint {
    let number = match rng.below(6) {
        // The log is full when the work ends.
        _ if plan.aim == Aim::Replay && plan.is_first => u64::MAX,
        // A crash before the pool is nearly full shows nothing that other scenarios do not.
        _ if plan.is_full && plan.is_first => rng.between(commands / 3, commands),
        0 => rng.between(1, 60), // mostly during an import
        1 => u64::MAX,           // after the work
        _ => rng.between(1, commands),
    };
    match rng.below(3) {
        0 => CrashPoint::BeforeSubmit(number),
        1 => CrashPoint::AfterSubmit(number),
        _ => CrashPoint::AfterComplete(number),
    }
}

/// Adds rot in the map journal to one boot of a pool without parity. The pool must survive it: the
/// journal has a second copy. Only one copy may be struck, so the rot comes only once. What a pool
/// wrote while it had a copy in a store has no second one for a moment when that is detached.
pub(super) fn rot_map_in(boots: &mut [Boot], spec: &PoolSpec, level: Level, rng: &mut Rng) {
    let has_parity = spec.parity() > 0;
    if level != Level::Within || has_parity || object_stores::has_copies(spec) {
        return;
    }
    let Some(last) = boots.len().checked_sub(1).filter(|last| *last > 0) else { return };
    let boot = rng.between(1, last as u64) as usize;
    if rng.chance(800) {
        let (pick, blocks) = (rng.u64(), rng.between(1, 4));
        let (at_byte, mask) = (rng.below(4096), 1 << rng.below(8));
        // Prefer the newest frames, and the bytes at their start.
        let pick = if rng.chance(700) { rng.below(8) } else { pick };
        let at_byte = if rng.chance(500) { at_byte % 256 } else { at_byte };
        boots[boot].map_rot = Some(MapRot { pick, blocks, at_byte, mask });
    }
}

/// Turns a boot into one of the class "crash in recovery". It commits more often, and the power
/// mostly fails during a commit. A boot that recovers runs on disks that lose some of its first
/// writes, or its writes over rows of the map journal that the run before wrote and no root names.
pub(super) fn crash_in_recovery_of(boot: &mut Boot, plan: &BootPlan<'_>, seed: Seed) {
    let (mut rng, fault_plan) = (seed.rng(), plan.fault_plan);
    let recovers = !plan.is_first;
    if recovers && rng.chance(if plan.is_full { 300 } else { 600 }) {
        boot.stale_map = fault_plan.stale(plan.disks as usize, &mut rng);
    }
    if recovers && boot.stale_map.is_empty() {
        // A nearly full pool writes whole segments, so its first writes are many.
        let first_writes = if plan.is_full { 40 } else { 5 };
        boot.faults.extend(fault_plan.losses(first_writes, &mut rng));
    }
    // In a nearly full pool the drawn crash already falls into a commit, and commits are frequent.
    if plan.is_full {
        return;
    }
    boot.admin.splice(0..0, commits(4, 22, &mut rng));
    if rng.chance(700) {
        let number = rng.between(20, 160);
        let (point, in_work) = match rng.below(4) {
            0 if recovers => (CrashPoint::AfterSubmit(number), false),
            1 if recovers => (CrashPoint::AfterComplete(number), false),
            // Every second flush lies between the map journal of a commit and its root.
            _ => {
                let flush = rng.between(1, 3 * plan.disks);
                (CrashPoint::AfterFlush(flush), !recovers || rng.chance(500))
            }
        };
        boot.crash = Some(Crash { in_work, ..Crash::at(point, Fates::Random(rng.u64())) });
    }
}

/// Lets some clients pause while the pool finds a failed disk and takes a spare.
pub(super) fn pause_for_spares(boot: &mut Boot, plan: &BootPlan<'_>) {
    if plan.spec.hot_spares == 0 {
        return;
    }
    let rng = &mut plan.seed.derive("hot spares").rng();
    for acts in &mut boot.clients {
        if rng.chance(500) {
            let at = rng.below(acts.len() as u64 + 1) as usize;
            acts.insert(at, Act::Pause { ns: rng.between(1, 16) * 500_000_000 });
        }
    }
}

/// Fewer than `most` commits, each after a pause of up to 2^`pause_bits` ns.
pub(super) fn commits(most: u64, pause_bits: u64, rng: &mut Rng) -> Vec<Admin> {
    let mut out = Vec::new();
    for _ in 0..rng.below(most) {
        out.push(Admin::Pause { ns: 1 << rng.between(14, pause_bits) });
        out.push(Admin::Manage(Manage::Commit));
    }
    out
}

/// Puts the jobs of `others` that change volumes between the jobs of a boot, each after a pause of
/// up to 2^`pause_bits` ns.
pub(super) fn change_volumes(boot: &mut Boot, others: Vec<Admin>, pause_bits: u64, rng: &mut Rng) {
    let mut at = 0;
    for job in others {
        if !matches!(job, Admin::Create { .. } | Admin::Resize { .. } | Admin::Destroy { .. }) {
            continue;
        }
        // A volume is created before it is destroyed.
        at += rng.below((boot.admin.len() - at) as u64 + 1) as usize;
        boot.admin.splice(at..at, [Admin::Pause { ns: 1 << rng.between(14, pause_bits) }, job]);
        at += 2;
    }
}
