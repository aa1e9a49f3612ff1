//! Command line options of `forebay-prove`.

use std::num::ParseIntError;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use forebay_dst::fault_plan::Level;
use forebay_dst::generate::{Aim, Constraints};
use forebay_dst::subject::PoolSpec;

/// Freed buffers that each thread keeps: the disks of one scenario reuse those of the last.
pub const KEPT_BYTES: usize = 1 << 30;

/// How long a search takes that no option limits.
const DEFAULT_TIME: Duration = Duration::from_secs(60);

/// Proof by simulation that no acknowledged write is lost.
#[derive(Parser)]
pub struct Options {
    /// How long to search, for example 90s, 10m or 2h. Without it a search of --runs ends with the
    /// last one, and any other after 60s.
    #[arg(long, value_parser = parse_time)]
    time: Option<Duration>,
    /// Root seed; by default drawn from the clock and printed.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Run only the scenario with this number.
    #[arg(long)]
    pub run: Option<u64>,
    /// Limit of scenarios.
    #[arg(long)]
    pub runs: Option<u64>,
    /// Number of threads; all cores by default.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Replay the scenarios of files or folders, each twice.
    #[arg(long)]
    pub replay: Vec<PathBuf>,
    /// With --replay: run each scenario once, and stop at the first that fails.
    #[arg(long)]
    pub once: bool,
    /// Save the scenarios that a search of --runs would run to this folder, and run none.
    #[arg(long, requires = "runs")]
    pub draw: Option<PathBuf>,
    /// With --replay or --run: print every device command.
    #[arg(long)]
    pub trace: bool,
    /// Visit every crash point of a small scenario on every pool shape.
    #[arg(long)]
    pub exhaustive: bool,
    /// With --exhaustive: visit only shapes whose name contains this, such as "Z1" or "Mirror log".
    #[arg(long, default_value = "")]
    pub shape: String,
    /// With --exhaustive: cut the recovery from every n-th crash point at each command.
    #[arg(long, default_value_t = 25)]
    pub second_every: u64,
    /// With --exhaustive: try all subsets of up to this many unflushed writes.
    #[arg(long, default_value_t = 4)]
    pub subsets: usize,
    /// With --exhaustive: how many samples to try of more writes, and how many torn ones.
    #[arg(long, default_value_t = 8)]
    pub samples: u64,
    /// Run each scenario twice and compare the digests.
    #[arg(long)]
    pub twice: bool,
    /// Draw only nearly full pools that are overwritten until the cleaner moves blocks, or never.
    #[arg(
        long,
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    full: Option<FullArg>,
    /// Draw only scenarios whose recoveries are cut and whose struck disks then lose writes.
    #[arg(long)]
    crash_in_recovery: bool,
    /// Draw only scenarios that exercise this in particular.
    #[arg(long, value_enum)]
    aim: Option<Aim>,
    /// Connect every client through the NBD server.
    #[arg(long)]
    nbd: bool,
    /// How much may break.
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// The subject of the proof.
    #[arg(long, value_enum, default_value = "pool")]
    pub subject: SubjectArg,
    /// Folder for failing scenarios.
    #[arg(long, default_value = "crates/dst/corpus")]
    pub corpus: PathBuf,
    /// Limit of runs for shrinking a failure; 0 does not shrink.
    #[arg(long, default_value_t = 400)]
    pub shrink: usize,
    /// Continue after this many failures.
    #[arg(long, default_value_t = 0)]
    pub keep_going: usize,
    /// Write to this file which faults met which phases, activities, jobs and shapes.
    #[arg(long)]
    pub coverage: Option<PathBuf>,
    /// Of each four scenarios run only the one whose faults, jobs and shape met least so far.
    #[arg(long)]
    pub steer: bool,
    /// Print no progress.
    #[arg(long)]
    pub quiet: bool,
}

impl Options {
    /// Number of threads to use.
    pub fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.unwrap_or_else(cores)
    }

    /// How long a search may take; `None` without a limit.
    pub fn time_limit(&self) -> Option<Duration> {
        self.time.or_else(|| self.runs.is_none().then_some(DEFAULT_TIME))
    }

    /// When a search ends, for its first line.
    pub fn describe_end(&self) -> String {
        let ends = [
            self.runs.map(|runs| format!("{runs} scenarios")),
            self.time_limit().map(|time| format!("{time:?}")),
        ];
        ends.into_iter().flatten().collect::<Vec<_>>().join(" or ")
    }

    /// What the options fix of each scenario. `spec` is the only shape that the subject supports.
    pub fn constraints(&self, spec: Option<PoolSpec>) -> Constraints {
        Constraints {
            manage: spec.is_none(),
            spec,
            level: self.level,
            admin: true,
            full: self.full.map(|full| full == FullArg::Always),
            crash_in_recovery: self.crash_in_recovery.then_some(true),
            aim: self.aim,
            remote: self.nbd.then_some(1000),
            ..Constraints::default()
        }
    }

    /// The command that runs one scenario again.
    pub fn replay_command(&self, root: u64, number: u64) -> String {
        format!("forebay-prove {}--seed {root} --run {number}", self.describe())
    }

    /// The options that select which scenarios are drawn, without the seed.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        if let Some(value) = self.level.and_then(|level| level.to_possible_value()) {
            out += &format!("--level {} ", value.get_name());
        }
        if let Some(value) = self.full.and_then(|full| full.to_possible_value()) {
            out += &format!("--full={} ", value.get_name());
        }
        if self.crash_in_recovery {
            out += "--crash-in-recovery ";
        }
        if let Some(value) = self.aim.and_then(|aim| aim.to_possible_value()) {
            out += &format!("--aim {} ", value.get_name());
        }
        if self.nbd {
            out += "--nbd ";
        }
        out
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FullArg {
    Always,
    Never,
}

/// Which subject to run.
#[derive(Clone, Copy, ValueEnum)]
pub enum SubjectArg {
    /// The product.
    Pool,
    /// The reference pool without a flaw.
    Reference,
}

/// A malformed duration.
#[derive(Debug)]
enum TimeError {
    Number(ParseIntError),
    Unit(String),
}

impl std::fmt::Display for TimeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TimeError::Number(error) => write!(f, "{error}; write for example 90s, 10m or 2h"),
            TimeError::Unit(unit) => write!(f, "unknown unit '{unit}'; use s, m or h"),
        }
    }
}

impl std::error::Error for TimeError {}

fn parse_time(text: &str) -> Result<Duration, TimeError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(TimeError::Number)?;
    let unit_secs = match &text[end..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        unit => return Err(TimeError::Unit(unit.to_owned())),
    };
    Ok(Duration::from_secs(number * unit_secs))
}
