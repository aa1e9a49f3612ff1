//! What can notice a mutant: tests and scenarios, with the mutants that each reaches.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::compile::{Program, Programs};
use crate::process::{Ended, Task, run};

/// Processor time for one probe without a mutant. One that takes longer is left out.
const MAX_PROBE: Duration = Duration::from_secs(12);

/// The root seed from which the scenarios are drawn.
const ROOT_SEED: &str = "1";

/// Scenarios of the budget: how many, and the options that select their class.
const DRAWN: &[(u32, &str)] = &[
    (40, ""),
    (2, "--full"),
    (8, "--crash-in-recovery --level within"),
    (8, "--level beyond"),
    (6, "--aim parts"),
    (4, "--aim refusals"),
    (8, "--aim redundancy --level within"),
    (2, "--aim sizes"),
    (6, "--aim beside"),
    (4, "--aim replay"),
    (6, "--aim rewind --level crash"),
    (2, "--aim throttle"),
    (1, "--aim slow-reads"),
    (1, "--aim moved-rot --level within"),
    (4, "--aim misaddressed --level within"),
    (4, "--aim roots"),
    (4, "--aim blocked --level crash"),
    (10, "--aim suspension"),
];

/// Where a probe comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A test, with the crate that it tests.
    Test(String),
    /// A scenario.
    Scenario,
}

/// A test or a scenario.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where it comes from.
    pub kind: Kind,
    /// The program that runs it.
    pub program: PathBuf,
    /// Where the program runs.
    pub folder: PathBuf,
    /// Name of the test, or file of the scenario.
    pub name: String,
    /// Processor time that it takes without a mutant.
    pub takes: Duration,
    /// Numbers of the mutants that it reaches.
    pub reached: BTreeSet<u32>,
}

/// The command that runs probes of one program.
pub fn command(probes: &[&Probe]) -> Vec<String> {
    let Some(first) = probes.first() else { return Vec::new() };
    let mut command = vec![first.program.to_string_lossy().into_owned()];
    let names = probes.iter().map(|probe| probe.name.clone());
    match first.kind {
        Kind::Test(_) => {
            command.extend(["--test-threads=1".to_owned(), "--exact".to_owned()]);
            command.extend(names);
        }
        Kind::Scenario => {
            command.push("--once".to_owned());
            command.extend(names.flat_map(|name| ["--replay".to_owned(), name]));
        }
    }
    command
}

/// Whether a line of a probe's output says that something failed.
pub fn is_failure(kind: &Kind, line: &str) -> bool {
    match kind {
        Kind::Test(_) => line.ends_with("... FAILED"),
        Kind::Scenario => line.contains(".json: "),
    }
}

/// All tests and scenarios. `work` gets the scenarios, and a record of what they reach: it is read
/// instead of being measured again as long as the programs are the same.
pub fn probes(
    root: &Path,
    work: &Path,
    programs: &Programs,
    mut tell: impl FnMut(&str),
) -> io::Result<Vec<Probe>> {
    let record = work.join("reach.tsv");
    let stamp = stamp(programs)?;
    if let Some(known) = read_record(&record, &stamp)? {
        return Ok(known);
    }
    let mut all = Vec::new();
    for program in &programs.tests {
        all.extend(tests_of(program)?);
    }
    if let Some(prove) = &programs.prove {
        all.extend(scenarios(root, work, prove)?);
    }
    tell(&format!("{} tests and scenarios: what does each reach?", all.len()));
    let reach = work.join("reach");
    let mut whole = Vec::new();
    for mut probe in all {
        match measure(&mut probe, &reach)? {
            Ended::Passed => whole.push(probe),
            ended => tell(&format!("left out, without a mutant: {} ({ended:?})", probe.name)),
        }
    }
    write_record(&record, &stamp, &whole)?;
    Ok(whole)
}

fn tests_of(program: &Program) -> io::Result<Vec<Probe>> {
    let mut list = Command::new(&program.path);
    list.args(["--list", "--format", "terse"]).current_dir(&program.folder);
    let listed = list.output()?.stdout;
    let ignored = list.arg("--ignored").output()?.stdout;
    let names = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        names.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let run = &names(&listed) - &names(&ignored);
    let probe = |name| Probe {
        kind: Kind::Test(program.package.clone()),
        program: program.path.clone(),
        folder: program.folder.clone(),
        name,
        takes: Duration::ZERO,
        reached: BTreeSet::new(),
    };
    Ok(run.into_iter().map(probe).collect())
}

/// The corpus, and scenarios that are drawn anew.
fn scenarios(root: &Path, work: &Path, prove: &Path) -> io::Result<Vec<Probe>> {
    let drawn = work.join("scenarios");
    let _ = std::fs::remove_dir_all(&drawn);
    for (count, class) in DRAWN {
        let mut draw = Command::new(prove);
        draw.args(["--seed", ROOT_SEED, "--runs", &count.to_string(), "--draw"]).arg(&drawn);
        let output = draw.args(class.split_whitespace()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("no scenarios could be drawn: {class}")));
        }
    }
    let mut files = Vec::new();
    for folder in [root.join("crates/dst/corpus"), drawn] {
        for entry in std::fs::read_dir(folder)? {
            files.push(entry?.path());
        }
    }
    files.retain(|path| path.extension().is_some_and(|end| end == "json"));
    files.sort();
    let probe = |path: PathBuf| Probe {
        kind: Kind::Scenario,
        program: prove.to_owned(),
        folder: work.to_owned(),
        name: path.to_string_lossy().into_owned(),
        takes: Duration::ZERO,
        reached: BTreeSet::new(),
    };
    Ok(files.into_iter().map(probe).collect())
}

/// Runs a probe without a mutant, and keeps how long it takes and what it reaches.
fn measure(probe: &mut Probe, reach: &Path) -> io::Result<Ended> {
    let (ended, takes) = run(
        &Task {
            command: &command(&[probe]),
            folder: &probe.folder,
            mutant: &format!("reach:{}", reach.display()),
            limit: MAX_PROBE,
        },
        |line| is_failure(&probe.kind, line),
    )?;
    probe.takes = takes;
    let numbers = std::fs::read_to_string(reach).unwrap_or_default();
    probe.reached = numbers.lines().filter_map(|line| line.parse().ok()).collect();
    let _ = std::fs::remove_file(reach);
    Ok(ended)
}

/// Identifies the programs: their files, lengths and times.
fn stamp(programs: &Programs) -> io::Result<String> {
    let mut stamp = format!("{DRAWN:?}");
    for path in programs.tests.iter().map(|test| &test.path).chain(&programs.prove) {
        let data = std::fs::metadata(path)?;
        stamp += &format!(" {} {} {:?}", path.display(), data.len(), data.modified()?);
    }
    Ok(stamp)
}

fn write_record(record: &Path, stamp: &str, probes: &[Probe]) -> io::Result<()> {
    let mut text = format!("{stamp}\n");
    for probe in probes {
        let kind = match &probe.kind {
            Kind::Test(package) => package.as_str(),
            Kind::Scenario => "",
        };
        let reached: Vec<String> = probe.reached.iter().map(u32::to_string).collect();
        let (program, folder) = (probe.program.display(), probe.folder.display());
        let (takes, reached) = (probe.takes.as_millis(), reached.join(" "));
        text += &format!("{kind}\t{program}\t{folder}\t{}\t{takes}\t{reached}\n", probe.name);
    }
    std::fs::write(record, text)
}

fn read_record(record: &Path, stamp: &str) -> io::Result<Option<Vec<Probe>>> {
    let Ok(text) = std::fs::read_to_string(record) else { return Ok(None) };
    let mut lines = text.lines();
    if lines.next() != Some(stamp) {
        return Ok(None);
    }
    let probe = |line: &str| {
        let [kind, program, folder, name, takes, reached] =
            line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        Some(Probe {
            kind: if kind.is_empty() { Kind::Scenario } else { Kind::Test(kind.to_owned()) },
            program: PathBuf::from(program),
            folder: PathBuf::from(folder),
            name: name.to_owned(),
            takes: Duration::from_millis(takes.parse().ok()?),
            reached: reached.split(' ').filter_map(|number| number.parse().ok()).collect(),
        })
    };
    Ok(lines.map(probe).collect())
}
