//! The scripts of the exhaustive mode, and the pool shapes that each one visits.

use std::collections::BTreeMap;

use forebay_dst::scenario::{
    Act, Admin, Boot, Crash, Demand, Fates, Scenario, SnapshotJob, TimedFault, VERSION,
};
use forebay_dst::stamp::Fill;
use forebay_dst::subject::{LogShape, Manage, PoolSpec, Raid};
use forebay_sim::CrashPoint;
use forebay_sim::faults::{Effect, Failure, Fault, Ops, Trigger};

/// A scenario whose last boot is cut at every instant.
pub struct Visit {
    /// The script, unless it is the first one, and the shape.
    pub name: String,
    pub scenario: Scenario,
    /// Every so many crash points are visited.
    pub stride: u64,
    /// The event or fault that the visit must see, because the script is about it.
    pub sees: &'static str,
}

/// A script: what is before the shape in its visits' names, its scenario on a shape, the event or
/// fault that it must see, and every so many of its crash points are visited.
struct Script {
    name: &'static str,
    scenario: fn(PoolSpec) -> Scenario,
    sees: &'static str,
    stride: u64,
}

const SMALL: Script = Script { name: "", scenario: small, sees: "admin: commit", stride: 1 };
const RESIZE: Script =
    Script { name: "resize: ", scenario: resize, sees: "admin: volume resized", stride: 1 };
const RESILVER: Script =
    Script { name: "resilver: ", scenario: resilver, sees: "admin: device online", stride: 1 };
const LOG_FAILS: Script =
    Script { name: "log fails: ", scenario: log_fails, sees: "error", stride: 1 };
const REWIND: Script = Script {
    name: "rewind: ",
    scenario: rewind,
    sees: "imports from the root before the newest",
    stride: 1,
};
const SNAPSHOTS: Script =
    Script { name: "snapshots: ", scenario: snapshots, sees: "admin: volume cloned", stride: 1 };
const PROMOTION: Script =
    Script { name: "promotion: ", scenario: promotion, sees: "admin: clone promoted", stride: 1 };
const REPLAY: Script =
    Script { name: "replay: ", scenario: replay, sees: "log records replayed", stride: 2 };
/// Each of its crash points takes long, because the pool is nearly full.
const CLEANER: Script =
    Script { name: "cleaner: ", scenario: cleaner, sees: "blocks moved by the cleaner", stride: 6 };

/// Every visit.
pub fn visits() -> Vec<Visit> {
    let (none, one, mirrored) = (LogShape::None, LogShape::One, LogShape::Mirror);
    let (single, mirror) = (shape(Raid::Raid0, 1, none), shape(Raid::Mirror, 2, one));
    let mut out: Vec<Visit> = shapes().into_iter().map(visit_of).collect();
    out.extend([
        RESIZE.on(single.clone()),
        RESIZE.on(mirror.clone()),
        RESILVER.on(shape(Raid::Mirror, 2, none)),
        RESILVER.on(shape(Raid::Z1, 3, one)),
        LOG_FAILS.on(shape(Raid::Raid0, 1, mirrored)),
        LOG_FAILS.on(shape(Raid::Z1, 3, mirrored)),
        REWIND.on(single.clone()),
        REWIND.on(mirror.clone()),
        SNAPSHOTS.on(single.clone()),
        SNAPSHOTS.on(mirror.clone()),
        PROMOTION.on(single.clone()),
        PROMOTION.on(mirror),
        REPLAY.on(shape(Raid::Raid0, 1, one)),
        CLEANER.on(single),
        SMALL.on(in_objects(one, 1)),
        SMALL.on(in_objects(mirrored, 2)),
        RESIZE.on(in_objects(one, 3)),
        SNAPSHOTS.on(in_objects(one, 4)),
        REWIND.on(in_objects(one, 5)),
    ]);
    out
}

/// A pool in an object store. Its seed says how the store behaves.
fn in_objects(log: LogShape, seed: u64) -> PoolSpec {
    let properties = [("device_timeout".to_owned(), "3600".to_owned())].into();
    PoolSpec { in_objects: true, properties, seed, ..shape(Raid::Raid0, 1, log) }
}

/// The visit of the first script to a shape.
pub fn visit_of(spec: PoolSpec) -> Visit {
    SMALL.on(spec)
}

impl Script {
    fn on(&self, spec: PoolSpec) -> Visit {
        let PoolSpec { groups, raid, log, data_disks, in_objects, .. } = spec;
        let place = if in_objects { " in objects" } else { "" };
        let times = if groups > 1 { format!("{groups} times ") } else { String::new() };
        let name =
            format!("{}{times}{raid:?} of {}{place}, {log:?} log", self.name, data_disks / groups);
        let scenario = (self.scenario)(spec);
        Visit { name, scenario, stride: self.stride, sees: self.sees }
    }
}

fn shape(raid: Raid, width: usize, log: LogShape) -> PoolSpec {
    PoolSpec {
        raid,
        log,
        data_disks: width,
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
        seed: 1,
    }
}

/// The shapes of the first script.
fn shapes() -> Vec<PoolSpec> {
    let mut out = Vec::new();
    for (raid, width) in [
        (Raid::Raid0, 1),
        (Raid::Raid0, 2),
        (Raid::Mirror, 2),
        (Raid::Z1, 3),
        (Raid::Z2, 4),
        (Raid::Z3, 5),
    ] {
        for log in [LogShape::None, LogShape::One, LogShape::Mirror] {
            out.push(shape(raid, width, log));
        }
    }
    // Several groups, several rings.
    let twice = |spec: PoolSpec| PoolSpec { groups: 2, data_disks: 2 * spec.data_disks, ..spec };
    out.push(twice(shape(Raid::Mirror, 2, LogShape::None)));
    out.push(twice(shape(Raid::Z1, 3, LogShape::One)));
    out.push(shape(Raid::Mirror, 2, LogShape::Two));
    out.push(shape(Raid::Raid0, 1, LogShape::TwoMirrors));
    out
}

fn scenario(spec: PoolSpec, volumes: Vec<u64>, boots: Vec<Boot>) -> Scenario {
    Scenario {
        version: VERSION,
        description: String::new(),
        seed: spec.seed,
        spec,
        demand: Demand::AllData,
        volumes,
        sparse: Vec::new(),
        sync: Vec::new(),
        gaps: Vec::new(),
        is_loud: false,
        counts_leaks: false,
        keeps_disks: false,
        boots,
    }
}

fn write(volume: u32, first: u64, count: u64, fua: bool) -> Act {
    Act::Write { volume, first, count, fua, fill: Fill::Noise }
}

fn pause(us: u64) -> Admin {
    Admin::Pause { ns: us * 1000 }
}

fn commit() -> Admin {
    Admin::Manage(Manage::Commit)
}

/// A few acts of every kind: FUA, flush, unaligned write, trim, zeroes, two volumes.
fn clients() -> Vec<Vec<Act>> {
    vec![
        vec![
            write(0, 0, 8, true),
            write(0, 8, 16, false),
            Act::Flush { volume: 0 },
            write(0, 3, 2, true),
            Act::Trim { volume: 0, first: 8, count: 8, fua: true },
        ],
        vec![
            write(1, 0, 8, false),
            write(1, 64, 8, true),
            Act::Zero { volume: 1, first: 0, count: 8, fua: false, no_hole: false },
            write(1, 0, 1, true),
        ],
    ]
}

/// Two commits among the writes, so that every command of a commit is cut too.
fn small(spec: PoolSpec) -> Scenario {
    let admin = vec![pause(60), commit(), pause(60), commit()];
    let boot = Boot { seed: 1, clients: clients(), admin, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// Volumes shrink, grow, come and go beside the writes.
fn resize(spec: PoolSpec) -> Scenario {
    let mut clients = clients();
    clients[1].extend([write(1, 96, 32, true), write(2, 0, 16, true), write(1, 100, 4, false)]);
    let admin = vec![
        Admin::Resize { volume: 1, sectors: 64 },
        Admin::Create { volume: 2, sectors: 64 },
        Admin::Resize { volume: 1, sectors: 128 },
        Admin::Destroy { volume: 2 },
        commit(),
    ];
    let boot = Boot { seed: 1, clients, admin, is_beside: true, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// Snapshots are taken, cloned, rolled back to and destroyed beside the writes.
fn snapshots(spec: PoolSpec) -> Scenario {
    let mut clients = clients();
    clients[1].extend([
        write(1000, 4, 8, true),
        Act::Trim { volume: 1000, first: 0, count: 8, fua: true },
    ]);
    let admin = [
        SnapshotJob::Take { volumes: vec![0, 1], number: 0 },
        SnapshotJob::Clone { volume: 1, number: 0, clone: 1000 },
        SnapshotJob::Take { volumes: vec![0, 1000], number: 1 },
        SnapshotJob::RollBack { volume: 1, number: 0, in_use: false },
        SnapshotJob::Destroy { volume: 0, number: 0 },
        SnapshotJob::ReadAll { number: 1 },
    ];
    let admin = admin.map(|job| [pause(30), Admin::Snapshot(job)]).into_iter().flatten();
    let admin = admin.chain([Admin::Destroy { volume: 0 }, commit()]).collect();
    let boot = Boot { seed: 1, clients, admin, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// A clone and its volume change places twice beside the writes, and the volume goes.
fn promotion(spec: PoolSpec) -> Scenario {
    let mut clients = clients();
    clients[1].extend([
        write(1000, 4, 8, true),
        Act::Trim { volume: 1000, first: 0, count: 8, fua: true },
        write(1, 2, 12, true),
    ]);
    let admin = [
        SnapshotJob::Take { volumes: vec![1], number: 0 },
        SnapshotJob::Take { volumes: vec![1], number: 1 },
        SnapshotJob::Clone { volume: 1, number: 1, clone: 1000 },
        SnapshotJob::Take { volumes: vec![1, 1000], number: 2 },
        SnapshotJob::Promote { clone: 1000 },
        SnapshotJob::Promote { clone: 1 },
        SnapshotJob::Destroy { volume: 1, number: 0 },
        SnapshotJob::Promote { clone: 1000 },
        SnapshotJob::ReadAll { number: 2 },
    ];
    let admin = admin.map(|job| [pause(30), Admin::Snapshot(job)]).into_iter().flatten();
    let admin = admin.chain([Admin::Destroy { volume: 1 }, commit()]).collect();
    let boot = Boot { seed: 1, clients, admin, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// A disk is away while clients write, and is filled while they go on.
fn resilver(spec: PoolSpec) -> Scenario {
    let mut clients = clients();
    clients[0].extend([Act::Flush { volume: 0 }, write(0, 40, 24, true), write(0, 44, 3, true)]);
    let admin = vec![
        Admin::Manage(Manage::Offline(0)),
        pause(200),
        Admin::Manage(Manage::Online(0)),
        pause(200),
        commit(),
    ];
    let boot = Boot { seed: 1, clients, admin, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// A write to one side of the log's mirror fails, and the log goes on with the other one.
fn log_fails(spec: PoolSpec) -> Scenario {
    let trigger = Trigger::once(Ops::WRITE).after(1);
    let fault = Fault::Error { trigger, failure: Failure::Eio, effect: Effect::None };
    let faults = vec![TimedFault { at_command: 1, disk: spec.log_range().start, fault }];
    let admin = vec![pause(300), commit()];
    let boot = Boot { seed: 1, clients: clients(), admin, faults, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![boot])
}

/// An import from the root before the newest.
fn rewind(spec: PoolSpec) -> Scenario {
    let admin = vec![pause(60), commit(), pause(60), commit(), pause(500), commit()];
    let crash = Crash::at(CrashPoint::AfterSubmit(u64::MAX), Fates::Kept);
    let before = Boot { seed: 1, clients: clients(), admin, crash: Some(crash), ..Boot::default() };
    let boot = Boot { seed: 2, clients: clients(), rewinds: true, ..Boot::default() };
    scenario(spec, vec![128, 128], vec![before, boot])
}

/// The import replays more of the log than a group may hold, and commits in its middle.
fn replay(mut spec: PoolSpec) -> Scenario {
    const WRITES: u64 = 48;
    const SECTORS: u64 = 256;
    spec.data_bytes = 256 << 20;
    spec.properties.insert("dirty_limit".to_owned(), "64M".to_owned());
    spec.properties.insert("txg_timeout".to_owned(), "600".to_owned());
    let fill = (0..WRITES).map(|index| write(0, index % 12 * SECTORS, SECTORS, true)).collect();
    let property = "dirty_limit".to_owned();
    let admin = vec![Admin::Set { property, value: "4M".to_owned() }];
    let crash = Crash::at(CrashPoint::AfterSubmit(u64::MAX), Fates::Kept);
    let clients = vec![fill];
    let before = Boot { seed: 1, clients, admin, crash: Some(crash), ..Boot::default() };
    let boot = Boot { seed: 2, ..Boot::default() };
    scenario(spec, vec![12 * SECTORS], vec![before, boot])
}

/// A nearly full pool is overwritten here and there, and the cleaner moves what is left.
fn cleaner(spec: PoolSpec) -> Scenario {
    const STEP_SECTORS: u64 = 512;
    let sectors = 42 << 11;
    let steps = sectors / STEP_SECTORS;
    let mut fill: Vec<Act> =
        (0..steps).map(|step| write(0, step * STEP_SECTORS, STEP_SECTORS, false)).collect();
    // A part of each step and each time another one, so that segments stay partly live.
    let overwrite = |at: u64| write(0, at * 37 % steps * STEP_SECTORS + at % 3 * 128, 128, false);
    fill.extend((0..400).map(overwrite));
    let before = Boot { seed: 1, clients: vec![fill], ..Boot::default() };
    let clients = vec![(400..520).map(overwrite).collect()];
    let admin = vec![pause(2000), commit(), pause(2000), commit(), pause(2000), commit()];
    let boot = Boot { seed: 2, clients, admin, ..Boot::default() };
    scenario(spec, vec![sectors], vec![before, boot])
}
