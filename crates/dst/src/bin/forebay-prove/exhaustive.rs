//! `--exhaustive`: every crash point of each script on its pool shapes.

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_dst::Failure;
use forebay_dst::exhaustive::{Depth, Report, explore_shard};
use forebay_dst::scenario::Scenario;
use forebay_dst::subject::{PoolSpec, Subject};

use crate::options::{KEPT_BYTES, Options};
use crate::report::save_shrunk;
use crate::scripts::{Visit, visit_of, visits};

/// Parts of each shape, so that all threads end at about the same time.
const SHARDS: u64 = 8;

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
    let visits = match spec {
        Some(spec) => vec![visit_of(spec)],
        None => visits(),
    };
    let all: Vec<String> = visits.iter().map(|visit| visit.name.clone()).collect();
    let shapes: Vec<_> =
        visits.into_iter().filter(|visit| visit.name.contains(&options.shape)).collect();
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
    let mut blind = 0;
    for (Visit { name, sees, .. }, sum) in shapes.iter().zip(sums) {
        let report = sum.into_inner().expect("no panic under this lock").report;
        let tally = &report.tally;
        if !tally.events.contains_key(*sees) && !tally.faults.contains_key(*sees) {
            println!("{name}: FAILED: the visit saw no '{sees}'");
            blind += 1;
        }
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
    if all.failure.is_some() || blind > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Divides all shapes into shards, visits them on all threads and returns a sum for each shape.
fn visit_shards<S: Subject>(
    options: &Options,
    subject: &(impl Fn() -> S + Sync),
    shapes: &[Visit],
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
                    let Visit { name, scenario, stride, .. } = &shapes[*shape];
                    let since = Instant::now();
                    let depth = Depth { stride: *stride, ..depth.clone() };
                    let report = explore_shard(&subject, scenario, &depth, (*shard, SHARDS));
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
        "{name:32} {:5} commands {:5} points ({:5} with every subset) {:7} crash states \
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
