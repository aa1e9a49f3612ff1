//! Building the instrumented tree: mutants that do not build are found and dropped.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tree::Tree;

/// How often the tree is checked at most: errors of one kind hide those of the next.
const MAX_ROUNDS: usize = 40;

/// The packages that have mutants, or scenarios that run them.
pub const PACKAGES: [&str; 7] = ["intent-log", "segment", "txg", "array", "map", "nbd", "pool"];

/// The search, under a name of its own: it is never taken for the proof's.
const SEARCH: &[&str] =
    &["build", "--quiet", "--keep-going", "-p", "forebay-dst", "--bin", "forebay-mutant"];

/// A program of the instrumented tree.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// The crate that it tests.
    pub package: String,
    /// The folder of that crate, in which tests run.
    pub folder: PathBuf,
}

/// What was built.
pub struct Programs {
    /// Test programs.
    pub tests: Vec<Program>,
    /// `forebay-prove`, unless only tests were built.
    pub prove: Option<PathBuf>,
}

fn cargo(tree: &Tree, target: &Path, arguments: &[&str], profile: &str) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.args(arguments).args(["--profile", profile, "--message-format=json"]);
    command.current_dir(&tree.folder).env("CARGO_TARGET_DIR", target);
    command.env("FOREBAY_MUTATED", "every mutant behind a switch, FOREBAY_MUTANT");
    command.stderr(Stdio::inherit());
    command
}

fn cargo_for_tests(tree: &Tree, target: &Path, arguments: &[&str]) -> Command {
    let mut command = cargo(tree, target, arguments, "mutation");
    command.env("RUSTFLAGS", "-Awarnings"); // they are those of the generated text
    command
}

fn messages(mut command: Command) -> io::Result<(bool, Vec<Value>)> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let all = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok((output.status.success(), all))
}

/// The names of these packages in cargo, or of all of them.
fn names(only: &[String]) -> Vec<String> {
    let all = || PACKAGES.iter().map(|name| (*name).to_owned()).collect();
    let meant: Vec<String> = if only.is_empty() { all() } else { only.to_vec() };
    meant.iter().map(|name| format!("forebay-{name}")).collect()
}

/// Drops mutants until the tree builds.
pub fn drop_what_does_not_build(
    tree: &mut Tree,
    target: &Path,
    only: &[String],
    mut tell: impl FnMut(&str),
) -> io::Result<()> {
    let names = names(only);
    let mut arguments = vec!["check", "--keep-going", "--quiet"];
    arguments.extend(names.iter().flat_map(|name| ["-p", name.as_str()]));
    for round in 1..=MAX_ROUNDS {
        tree.write()?;
        let (is_built, all) = messages(cargo_for_tests(tree, target, &arguments))?;
        if is_built {
            return Ok(());
        }
        let errors: Vec<Error> = all.iter().filter_map(Error::of).collect();
        let dropped = blame(tree, &errors);
        tell(&format!("round {round}: {} errors, {dropped} mutants dropped", errors.len()));
        if dropped == 0 {
            let first = errors.first().map_or("no error was read", |error| error.text.as_str());
            return Err(io::Error::other(format!("the tree does not build:\n{first}")));
        }
    }
    Err(io::Error::other("the tree does not build after many rounds"))
}

/// An error of the compiler.
struct Error {
    text: String,
    /// Files and byte ranges, the place of the error first.
    spans: Vec<(String, Range<usize>)>,
}

impl Error {
    fn of(message: &Value) -> Option<Self> {
        let message = &message["message"];
        if message["level"] != "error" {
            return None;
        }
        let mut spans: Vec<&Value> = message["spans"].as_array()?.iter().collect();
        spans.sort_by_key(|span| span["is_primary"] != true);
        let place = |span: &&Value| {
            let start = span["byte_start"].as_u64()? as usize;
            let end = span["byte_end"].as_u64()? as usize;
            Some((span["file_name"].as_str()?.to_owned(), start..end))
        };
        let spans: Vec<_> = spans.iter().filter_map(place).collect();
        let text = message["rendered"].as_str().unwrap_or_default().to_owned();
        (!spans.is_empty()).then_some(Self { text, spans })
    }
}

/// Drops what the errors are due to; where that is not plain, more of the function around it.
fn blame(tree: &mut Tree, errors: &[Error]) -> usize {
    let before = tree.dropped.clone();
    for error in errors {
        let known: BTreeSet<u32> = tree.dropped.clone();
        let (file, range) = &error.spans[0];
        let mut dropped = tree.blame(file, range);
        if dropped == 0 && tree.dropped == known {
            dropped = error.spans[1..].iter().map(|(file, range)| tree.blame(file, range)).sum();
        }
        // Another error of this round may have dropped the same mutant.
        if dropped == 0 && tree.dropped == before {
            tree.blame_function(file, range);
        }
    }
    tree.dropped.len() - before.len()
}

/// Builds the search alone, as the proof's own is built: what the two have in common is built once.
/// Names the patches that do not build.
pub fn build_search(tree: &mut Tree, target: &Path) -> io::Result<PathBuf> {
    tree.write()?;
    let (is_built, all) = messages(cargo(tree, target, SEARCH, "prove"))?;
    if !is_built {
        let errors: Vec<Error> = all.iter().filter_map(Error::of).collect();
        blame(tree, &errors);
        let names = tree.mutants.iter().filter(|mutant| tree.dropped.contains(&mutant.number));
        let names: Vec<&str> = names.map(|mutant| mutant.change.as_str()).collect();
        let first = errors.first().map_or("no error was read", |error| error.text.as_str());
        return Err(io::Error::other(format!("does not build: {}\n{first}", names.join(", "))));
    }
    let path = all.iter().find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.ok_or_else(|| io::Error::other("cargo names no program"))
}

/// Builds the tests and the search, or only the tests of some packages.
pub fn build(tree: &Tree, target: &Path, only: &[String]) -> io::Result<Programs> {
    let names = names(only);
    let mut arguments = vec!["test", "--no-run", "--quiet", "--lib", "--tests"];
    arguments.extend(names.iter().flat_map(|name| ["-p", name.as_str()]));
    let (tests_built, mut all) = messages(cargo_for_tests(tree, target, &arguments))?;
    let mut search_built = true;
    if only.is_empty() {
        let (is_built, more) = messages(cargo_for_tests(tree, target, SEARCH))?;
        search_built = is_built;
        all.extend(more);
    }
    if !tests_built || !search_built {
        let error = all.iter().find_map(Error::of).map_or(String::new(), |error| error.text);
        return Err(io::Error::other(format!("the tests do not build:\n{error}")));
    }
    let made = all.iter().filter(|message| message["executable"].is_string());
    let (mut tests, mut prove) = (Vec::new(), None);
    for message in made {
        let path = PathBuf::from(message["executable"].as_str().unwrap_or_default());
        let manifest = PathBuf::from(message["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().map(Path::to_owned).unwrap_or_default();
        let package = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match message["profile"]["test"] == true {
            true => tests.push(Program { path, package, folder }),
            false => prove = Some(path),
        }
    }
    tests.sort_by(|a, b| a.path.cmp(&b.path)); // cargo tells of them in any order
    Ok(Programs { tests, prove })
}
