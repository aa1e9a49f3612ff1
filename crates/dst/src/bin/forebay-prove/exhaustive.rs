//! `--exhaustive`: every crash point of a small scenario on every pool shape.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_dst::Failure;
use forebay_dst::exhaustive::{Depth, Report, explore_shard};
use forebay_dst::scenario::{Act, Admin, Boot, Demand, Scenario, VERSION};
use forebay_dst::stamp::Fill;
use forebay_dst::subject::{LogShape, Manage, PoolSpec, Raid, Subject};

use crate::options::{KEPT_BYTES, Options};
use crate::report::save_shrunk;

/// Parts of each shape, so that all threads end at about the same time.
const SHARDS: u64 = 8;

/// Every shape that the exhaustive mode visits.
fn shapes() -> Vec<(String, PoolSpec)> {
    let mut out = Vec::new();
    let mut add = |groups: usize, raid: Raid, width: usize, log: LogShape| {
        let times = if groups > 1 { format!("{groups} times ") } else { String::new() };
        let name = format!("{times}{raid:?} of {width}, {log:?} log");
        let spec = PoolSpec {
            properties: BTreeMap::new(),
            raid,
            log,
            data_disks: groups * width,
            groups,
            spare_disks: 0,
            data_bytes: 64 << 20,
            log_bytes: 64 << 20,
            segment_bytes: 1 << 20,
            seed: 1,
        };
        out.push((name, spec));
    };
    for (raid, width) in [
        (Raid::Raid0, 1),
        (Raid::Raid0, 2),
        (Raid::Mirror, 2),
        (Raid::Z1, 3),
        (Raid::Z2, 4),
        (Raid::Z3, 5),
    ] {
        for log in [LogShape::None, LogShape::One, LogShape::Mirror] {
            add(1, raid, width, log);
        }
    }
    // Several groups, several rings.
    add(2, Raid::Mirror, 2, LogShape::None);
    add(2, Raid::Z1, 3, LogShape::One);
    add(1, Raid::Mirror, 2, LogShape::Two);
    add(1, Raid::Raid0, 1, LogShape::TwoMirrors);
    out
}

/// A few acts of every kind: FUA, flush, unaligned write, trim, zeroes, two volumes.
fn small_scenario(spec: &PoolSpec) -> Scenario {
    let write =
        |volume, first, count, fua| Act::Write { volume, first, count, fua, fill: Fill::Noise };
    let clients = vec![
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
    ];
    // Two commits among the writes, so that every command of a commit is cut too.
    let pause = Admin::Pause { ns: 60_000 };
    let commit = Admin::Manage(Manage::Commit);
    let admin = vec![pause.clone(), commit.clone(), pause, commit];
    Scenario {
        gaps: Vec::new(),
        is_loud: false,
        counts_leaks: false,
        keeps_disks: false,
        version: VERSION,
        description: String::new(),
        seed: 1,
        spec: spec.clone(),
        demand: Demand::AllData,
        volumes: vec![128, 128],
        sparse: Vec::new(),
        sync: Vec::new(),
        boots: vec![Boot { seed: 1, clients, admin, ..Boot::default() }],
    }
}

/// The report of one shape so far, shared by all threads.
#[derive(Default)]
struct Sum {
    report: Report,
    shards_left: u64,
    busy: Duration,
}

/// Visits every shape whose name contains the argument of `--shape`.
pub fn visit<S: Subject>(
    options: &Options,
    subject: &(impl Fn() -> S + Sync),
    spec: Option<PoolSpec>,
) -> ExitCode {
    let shapes = match spec {
        Some(spec) => vec![("one shape".to_owned(), spec)],
        None => shapes(),
    };
    let all: Vec<String> = shapes.iter().map(|(name, _)| name.clone()).collect();
    let shapes: Vec<_> =
        shapes.into_iter().filter(|(name, _)| name.contains(&options.shape)).collect();
    if shapes.is_empty() {
        // An empty visit must not look like success.
        let all = all.join("; ");
        eprintln!("no shape's name contains '{}'; the shapes are: {all}", options.shape);
        return ExitCode::from(2);
    }
    let depth = Depth {
        second_every: options.second_every,
        subsets_up_to: options.subsets.min(20),
        samples: options.samples,
        ..Depth::default()
    };
    let begun = Instant::now();
    let sums = visit_shards(options, subject, &shapes, &depth);
    let mut all = Report::default();
    for ((name, _), sum) in shapes.iter().zip(sums) {
        let report = sum.into_inner().expect("no panic under this lock").report;
        if let Some((scenario, failure)) = &report.failure {
            save(options, subject, name, scenario, failure);
        }
        all.add(report);
    }
    println!(
        "every crash point: {} shapes, {} points, {} crash states, {} second crashes, \
         {} power cuts, {:.0} s",
        shapes.len(),
        all.points,
        all.first,
        all.second,
        all.tally.crashes,
        begun.elapsed().as_secs_f64()
    );
    if all.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Divides all shapes into shards, visits them on all threads and returns a sum for each shape.
fn visit_shards<S: Subject>(
    options: &Options,
    subject: &(impl Fn() -> S + Sync),
    shapes: &[(String, PoolSpec)],
    depth: &Depth,
) -> Vec<Mutex<Sum>> {
    let jobs: Vec<(usize, u64)> =
        (0..shapes.len()).flat_map(|shape| (0..SHARDS).map(move |shard| (shape, shard))).collect();
    let new_sum = || Mutex::new(Sum { shards_left: SHARDS, ..Sum::default() });
    let sums: Vec<Mutex<Sum>> = shapes.iter().map(|_| new_sum()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.threads() {
            scope.spawn(|| {
                forebay_device::keep_freed(KEPT_BYTES);
                let subject = Rc::new(subject());
                while let Some((shape, shard)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (name, spec) = &shapes[*shape];
                    let since = Instant::now();
                    let scenario = small_scenario(spec);
                    let report = explore_shard(&subject, &scenario, depth, (*shard, SHARDS));
                    let sum = &mut *sums[*shape].lock().expect("no panic under this lock");
                    sum.report.add(report);
                    sum.busy += since.elapsed();
                    sum.shards_left -= 1;
                    if sum.shards_left == 0 {
                        println!("{}", line(name, sum));
                    }
                }
            });
        }
    });
    sums
}

fn line(name: &str, sum: &Sum) -> String {
    let report = &sum.report;
    format!(
        "{name:24} {:5} commands {:5} points ({:5} with every subset) {:7} crash states \
         {:6} second crashes {:6.1} s: {}",
        report.commands,
        report.points,
        report.complete,
        report.first,
        report.second,
        sum.busy.as_secs_f64(),
        if report.failure.is_some() { "FAILED" } else { "passed" }
    )
}

fn save<S: Subject>(
    options: &Options,
    subject: &impl Fn() -> S,
    name: &str,
    scenario: &Scenario,
    failure: &Failure,
) {
    println!("{name}: {failure}");
    let file: String = name.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    let subject = Rc::new(subject());
    save_shrunk(options, &subject, &format!("exhaustive-{file}"), scenario, failure);
}
