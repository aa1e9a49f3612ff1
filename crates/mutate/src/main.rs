//! `forebay-mutate`: a mutation run over the crates that a write passes.
#![allow(clippy::disallowed_methods)] // an offline tool: wall time, its own files

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_mutate::compile::{PACKAGES, build, build_search, drop_what_does_not_build};
use forebay_mutate::finder::Mutant;
use forebay_mutate::patches;
use forebay_mutate::probes::probes;
use forebay_mutate::results::{Outcome, Results};
use forebay_mutate::session::Session;
use forebay_mutate::subject::Subjects;
use forebay_mutate::tree::{Mutants, Tree, write_if_changed};

/// Builds all mutants at once, and runs each against the tests and scenarios that reach it.
///
/// What is found is in target/mutation: results.tsv (one line a mutant; a stopped run continues),
/// summary.md, and survivors.txt, the mutants that nothing notices: each has to be judged.
#[derive(Parser)]
struct Options {
    /// Stop after this many minutes; the next run continues.
    #[arg(long)]
    minutes: Option<f64>,
    /// Of n equal parts only the k-th, from 0: 3/40.
    #[arg(long, default_value = "0/1", value_parser = parse_part)]
    part: (usize, usize),
    /// Only mutants of this crate, with its own tests alone, in a folder of their own below
    /// target/mutation; may be repeated.
    #[arg(long, value_name = "CRATE", value_parser = PACKAGES)]
    package: Vec<String>,
    /// Only mutants of files whose path contains this; several options run in their order.
    #[arg(long)]
    file: Vec<String>,
    /// Run mutants again that came to this: survived, not-reached, own-test, ...
    #[arg(long, value_parser = parse_outcome)]
    again: Vec<Outcome>,
    /// How many times the usual time a mutant may take before it counts as survived.
    #[arg(long, default_value_t = 1)]
    budget: u32,
    /// How many processes run at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run nothing: build, and print the summary.
    #[arg(long)]
    summary: bool,
    /// Instead of all that, build the search with every patch of this folder behind a switch:
    /// prints the program, and then the number and the name of each patch.
    #[arg(long, value_name = "FOLDER")]
    patches: Option<PathBuf>,
}

fn parse_part(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parts.filter(|(k, n)| k < n).ok_or_else(|| "write a part as 3/40".to_owned())
}

fn parse_outcome(text: &str) -> Result<Outcome, String> {
    Outcome::of(text).ok_or_else(|| "no such outcome".to_owned())
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-mutate: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let root = std::env::current_dir()?;
    let target = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root.join("target"), Into::into);
    if let Some(folder) = &options.patches {
        return build_patches(&root, &target, folder);
    }
    let work = target.join("mutation").join(options.package.join("+"));
    std::fs::create_dir_all(&work)?;
    let dropped_file = work.join("dropped.txt");
    let dropped = std::fs::read_to_string(&dropped_file).unwrap_or_default();
    let dropped: BTreeSet<String> = dropped.lines().map(str::to_owned).collect();
    let tell = |text: &str| println!("{text}");

    let mutants = Mutants::of_the_language(&root, &options.package)?;
    let mut tree = Tree::new(&root, &work.join("tree"), mutants, &dropped)?;
    let built = drop_what_does_not_build(&mut tree, &work.join("build"), &options.package, tell);
    write_if_changed(&dropped_file, dropped_names(&tree).as_bytes())?;
    built?;
    let (all, not_built) = (tree.mutants.len(), tree.dropped.len());
    println!("{all} mutants, {not_built} of them do not build");
    let programs = build(&tree, &work.join("build"), &options.package)?;
    let probes = probes(&root, &work, &programs, tell)?;
    let mut results = Results::open(&work.join("results.tsv"))?;
    if !options.summary {
        let mutants = selected(&tree, &results, options);
        println!("{} mutants to run against {} tests and scenarios", mutants.len(), probes.len());
        let limit = options.minutes.map_or(Duration::MAX, |m| Duration::from_secs_f64(m * 60.0));
        let begun = Instant::now();
        let session = Session {
            probes: &probes,
            budget: options.budget.max(1),
            until: begun.checked_add(limit).unwrap_or(begun + Duration::from_secs(1 << 30)),
            results: Mutex::new(&mut results),
            subjects: Subjects::new(probes.iter().map(|probe| probe.name.as_str())),
            noticed: Mutex::new(BTreeMap::new()),
        };
        let ran = session.run(&mutants, options.jobs)?;
        println!("{ran} mutants ran in {:.0} s", begun.elapsed().as_secs_f64());
    }
    report(&tree, &results, &work)
}

fn build_patches(root: &Path, target: &Path, folder: &Path) -> io::Result<()> {
    let mutants = patches::find(root, &patches::read(folder)?)?;
    let copy = target.join("mutants/tree");
    let mut tree = Tree::new(root, &copy, mutants, &BTreeSet::new())?;
    println!("{}", build_search(&mut tree, target)?.display());
    for mutant in &tree.mutants {
        println!("{} {}", mutant.number, mutant.change);
    }
    Ok(())
}

fn dropped_names(tree: &Tree) -> String {
    let names = tree.mutants.iter().filter(|mutant| tree.dropped.contains(&mutant.number));
    names.map(|mutant| mutant.name() + "\n").collect()
}

/// The mutants to run, in order.
fn selected<'a>(tree: &'a Tree, results: &Results, options: &Options) -> Vec<&'a Mutant> {
    let (part, parts) = options.part;
    let is_due = |mutant: &&Mutant| {
        let again = results.of(mutant).is_none_or(|outcome| options.again.contains(&outcome));
        again && !tree.dropped.contains(&mutant.number) && mutant.number as usize % parts == part
    };
    let due: Vec<&Mutant> = tree.mutants.iter().filter(is_due).collect();
    if options.file.is_empty() {
        return due;
    }
    let mut seen = BTreeSet::new();
    let mut chosen = Vec::new();
    for name in &options.file {
        let of_file = due.iter().filter(|mutant| mutant.file.contains(name));
        chosen.extend(of_file.filter(|mutant| seen.insert(mutant.number)).copied());
    }
    chosen
}

/// Prints the summary, and writes it and the list of survivors.
fn report(tree: &Tree, results: &Results, work: &Path) -> io::Result<()> {
    let survivors = work.join("survivors.txt");
    let summary = results.summary(&tree.mutants, &tree.dropped);
    print!("{summary}");
    std::fs::write(work.join("summary.md"), summary)?;
    println!("the survivors are in {}", survivors.display());
    std::fs::write(survivors, results.survivors(&tree.mutants, &tree.dropped))
}
