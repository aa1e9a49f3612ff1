//! `forebay-prove`: runs scenarios against the pool and reports failures.
//!
//! A failure prints the command that repeats it. The failing scenario is shrunk and saved to the
//! corpus.
#![allow(clippy::disallowed_methods)] // an offline tool: wall time, its own threads, its own files

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use forebay_dst::generate::Constraints;
use forebay_dst::pool::Forebay;
use forebay_dst::prove::scenario_of;
use forebay_dst::reference_pool::{Flaw, Reference};
use forebay_dst::scenario::Scenario;
use forebay_dst::subject::{LogShape, PoolSpec, Raid, Subject};
use forebay_dst::{corpus, run, run_watched};

use crate::options::{Options, SubjectArg};
use crate::report::report_one;
use crate::search::search;

mod exhaustive;
mod options;
mod report;
mod scripts;
mod search;

fn main() -> ExitCode {
    // Each scenario allocates the same large buffers. Returning them to the kernel and clearing
    // them again took a quarter of all time.
    forebay_rt::sys::keep_freed_memory();
    let options = Options::parse();
    if let Some(mutation) = option_env!("FOREBAY_MUTATED") {
        println!("built from a mutated tree: {mutation}");
    }
    match options.subject {
        SubjectArg::Pool => prove(&options, Forebay::default, None),
        SubjectArg::Reference => prove(&options, || Reference { flaw: Flaw::None }, one_disk()),
    }
}

/// The only shape of the reference pool.
fn one_disk() -> Option<PoolSpec> {
    Some(PoolSpec {
        raid: Raid::Raid0,
        log: LogShape::None,
        data_disks: 1,
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
        data_bytes: 256 << 20,
        log_bytes: 0,
        segment_bytes: 1 << 20,
        properties: BTreeMap::new(),
        seed: 1,
    })
}

fn prove<S: Subject>(
    options: &Options,
    subject: impl Fn() -> S + Sync,
    spec: Option<PoolSpec>,
) -> ExitCode {
    if !options.replay.is_empty() {
        return replay(options, &Rc::new(subject()));
    }
    if options.exhaustive {
        return exhaustive::visit(options, &subject, spec);
    }
    let constraints = options.constraints(spec);
    let root = options.seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |since| since.as_nanos() as u64)
    });
    if let Some(folder) = &options.draw {
        return draw(options, &constraints, root, folder);
    }
    let Some(number) = options.run else {
        return search(options, &subject, &constraints, root);
    };
    let scenario = scenario_of(root, number, &constraints);
    let watched = Rc::new(subject());
    let outcome = match options.trace {
        true => run_watched(&watched, &scenario, |line| println!("{line}")),
        false => run(&watched, &scenario),
    };
    report_one(options, &Rc::new(subject()), (root, number), &scenario, &outcome)
}

/// Saves the scenarios of a search.
fn draw(options: &Options, constraints: &Constraints, root: u64, folder: &Path) -> ExitCode {
    let class: String = options.describe().split_whitespace().collect::<Vec<_>>().join("-");
    for number in 0..options.runs.unwrap_or(0) {
        let scenario = scenario_of(root, number, constraints);
        let name = format!("run{class}-{root}-{number}");
        if let Err(error) = corpus::save(folder, &name, &scenario) {
            eprintln!("{name}: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// The scenarios of a file or folder.
fn load(path: &Path) -> std::io::Result<Vec<(PathBuf, Scenario)>> {
    match path.is_dir() {
        true => corpus::load(path),
        false => corpus::load_one(path).map(|scenario| vec![(path.to_owned(), scenario)]),
    }
}

/// Replays saved scenarios, each twice if not told otherwise.
fn replay<S: Subject>(options: &Options, subject: &Rc<S>) -> ExitCode {
    let loaded: Result<Vec<_>, _> = options.replay.iter().map(|path| load(path)).collect();
    let scenarios = match loaded {
        Ok(scenarios) => scenarios.concat(),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut failed = 0;
    for (path, scenario) in &scenarios {
        if options.trace {
            run_watched(subject, scenario, |line| println!("{line}"));
        }
        let first = run(subject, scenario);
        let differs = !options.once && run(subject, scenario).digest != first.digest;
        let text = match &first.failure {
            _ if differs => "not deterministic".to_owned(),
            Some(failure) => failure.to_string(),
            None => continue,
        };
        failed += 1;
        println!("{}: {text}", path.display());
        if options.once {
            break;
        }
    }
    println!("{} scenarios replayed, {failed} failed", scenarios.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
