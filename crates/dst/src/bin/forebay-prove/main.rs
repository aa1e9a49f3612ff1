//! `forebay-prove`: runs scenarios for as long as it is told, and says what it found.
//!
//! A failure prints one line that replays it, shrinks itself and is saved to the corpus.
#![allow(clippy::disallowed_methods)] // an offline tool: wall time, its own threads, its own files

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use forebay_dst::fault_plan::Level;
use forebay_dst::generate::Constraints;
use forebay_dst::pool::Forebay;
use forebay_dst::prove::{Findings, run_number, scenario_of};
use forebay_dst::reference_pool::{Flaw, Reference};
use forebay_dst::scenario::Scenario;
use forebay_dst::subject::{LogShape, PoolSpec, Raid, Subject};
use forebay_dst::{Failure, Outcome, corpus, run, run_watched, shrink};

mod exhaustive;

/// Proof by simulation that nothing acknowledged is lost.
#[derive(Parser)]
struct Options {
    /// How long to search, for example 90s, 10m or 2h.
    #[arg(long, default_value = "60s", value_parser = parse_span)]
    time: Duration,
    /// Root seed; without one it is drawn from the clock and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this run of the search.
    #[arg(long)]
    run: Option<u64>,
    /// At most this many runs.
    #[arg(long)]
    runs: Option<u64>,
    /// Threads; all cores without it.
    #[arg(long)]
    threads: Option<usize>,
    /// Replays the scenarios of a file or folder instead, each twice.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// With --replay or --run: prints every device command.
    #[arg(long)]
    trace: bool,
    /// Every crash point of a small scenario for every shape instead.
    #[arg(long)]
    exhaustive: bool,
    /// With --exhaustive: only shapes whose name contains this, for example "Z1" or "Mirror log".
    #[arg(long, default_value = "")]
    shape: String,
    /// With --exhaustive: at every how many crash points the recovery is cut at each command too.
    #[arg(long, default_value_t = 25)]
    second_every: u64,
    /// With --exhaustive: all subsets are tried of up to this many unflushed writes.
    #[arg(long, default_value_t = 4)]
    subsets: usize,
    /// With --exhaustive: samples where there are more, and torn ones everywhere.
    #[arg(long, default_value_t = 8)]
    samples: u64,
    /// Runs each scenario twice and compares the digests.
    #[arg(long)]
    twice: bool,
    /// Only pools that are nearly full and written over and over, so that blocks are moved; or
    /// none of them with --full=never.
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    full: Option<FullArg>,
    /// Only scenarios in which recoveries are cut and struck disks lose what the next one writes first.
    #[arg(long)]
    crash_in_recovery: bool,
    /// Every client comes through the NBD server.
    #[arg(long)]
    nbd: bool,
    /// How much may break.
    #[arg(long, value_enum)]
    level: Option<LevelArg>,
    /// What is put to the proof.
    #[arg(long, value_enum, default_value = "pool")]
    subject: SubjectArg,
    /// Where failures are saved.
    #[arg(long, default_value = "crates/dst/corpus")]
    corpus: PathBuf,
    /// Runs that shrinking a failure may take.
    #[arg(long, default_value_t = 400)]
    shrink: usize,
    /// Go on after this many failures.
    #[arg(long, default_value_t = 0)]
    keep_going: usize,
    /// Print nothing but the summary.
    #[arg(long)]
    quiet: bool,
}

impl Options {
    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        self.threads.unwrap_or_else(cores)
    }

    /// What draws the same scenarios again, but for the seed.
    fn describe(&self) -> String {
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
        if self.nbd {
            out += "--nbd ";
        }
        out
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LevelArg {
    Crash,
    Within,
    Beyond,
    Lies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FullArg {
    Always,
    Never,
}

#[derive(Clone, Copy, ValueEnum)]
enum SubjectArg {
    Pool,
    Reference,
}

/// No scenario of the generator takes a hundredth of this.
const STUCK_AFTER: Duration = Duration::from_secs(120);

fn parse_span(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a span of time; write for example 90s, 10m or 2h");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end].parse().map_err(|_| bad())?;
    let unit = match &text[end..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(bad()),
    };
    Ok(Duration::from_secs(number * unit))
}

fn main() -> ExitCode {
    keep_memory();
    let options = Options::parse();
    match options.subject {
        SubjectArg::Pool => main_of(&options, Forebay::default, None),
        SubjectArg::Reference => main_of(&options, || Reference { flaw: Flaw::None }, one_disk()),
    }
}

/// Thousands of short lives of a machine ask for the same large buffers over and over: giving them
/// back to the kernel each time, and having them cleared, took a quarter of all time.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: called before any other thread exists; it only sets the allocator's thresholds.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 30);
        libc::mallopt(libc::M_TOP_PAD, 64 << 20);
    }
}

/// What the disks of one scenario held is the next one's memory.
const KEPT_BYTES: usize = 1 << 30;

fn one_disk() -> Option<PoolSpec> {
    Some(PoolSpec {
        raid: Raid::Raid0,
        log: LogShape::None,
        data_disks: 1,
        groups: 1,
        spare_disks: 0,
        data_bytes: 256 << 20,
        log_bytes: 0,
        segment_bytes: 1 << 20,
        seed: 1,
    })
}

fn main_of<S: Subject>(
    options: &Options,
    subject: impl Fn() -> S + Sync,
    spec: Option<PoolSpec>,
) -> ExitCode {
    if let Some(path) = &options.replay {
        return replay(path, &Rc::new(subject()), options.trace);
    }
    if options.exhaustive {
        return exhaustive::visit(options, &subject, spec);
    }
    let level = options.level.map(|level| match level {
        LevelArg::Crash => Level::CrashOnly,
        LevelArg::Within => Level::Within,
        LevelArg::Beyond => Level::Beyond,
        LevelArg::Lies => Level::Lies,
    });
    let manage = spec.is_none();
    let constraints = Constraints {
        spec,
        level,
        admin: true,
        manage,
        full: options.full.map(|full| full == FullArg::Always),
        crash_in_recovery: options.crash_in_recovery.then_some(true),
        remote: options.nbd.then_some(1000),
        ..Constraints::default()
    };
    let root = options.seed.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.as_nanos() as u64)
    });
    if let Some(number) = options.run {
        let scenario = scenario_of(root, number, &constraints);
        let subject_ = Rc::new(subject());
        let outcome = match options.trace {
            true => run_watched(&subject_, &scenario, |line| println!("{line}")),
            false => run(&subject_, &scenario),
        };
        return report_one(options, &Rc::new(subject()), root, number, &scenario, &outcome);
    }
    search(options, &subject, &constraints, root)
}

fn search<S: Subject>(
    options: &Options,
    subject: &(impl Fn() -> S + Sync),
    constraints: &Constraints,
    root: u64,
) -> ExitCode {
    let begun = Instant::now();
    let threads = options.threads();
    let describe = options.describe();
    let describe = describe.as_str();
    println!("{describe}root seed {root}, {threads} threads, {:?}", options.time);
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Findings::default());
    let at_work: Vec<Mutex<Option<(u64, Instant)>>> =
        (0..threads).map(|_| Mutex::default()).collect();
    let busy = AtomicU64::new(threads as u64);
    let (done, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Virtual time cannot show a loop in which no time passes: that takes a real clock.
        scope.spawn(|| {
            let mut told = Instant::now();
            while busy.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(Duration::from_millis(200));
                if !options.quiet && told.elapsed() > Duration::from_secs(10) {
                    told = Instant::now();
                    let secs = begun.elapsed().as_secs_f64();
                    let (runs, failed) =
                        (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed));
                    let rate = runs as f64 / secs;
                    println!("{secs:6.0} s: {runs} scenarios ({rate:.1}/s), {failed} failures");
                }
                for slot in &at_work {
                    let stuck = *slot.lock().expect("no panic under this lock");
                    if let Some((number, since)) = stuck
                        && since.elapsed() > STUCK_AFTER
                    {
                        println!("run {number}: Hang: not done after {STUCK_AFTER:?} of real time");
                        println!("  replay: forebay-prove {describe}--seed {root} --run {number}");
                        std::process::exit(3);
                    }
                }
            }
        });
        for slot in &at_work {
            let (next, stop, total, busy) = (&next, &stop, &total, &busy);
            let (done, failed) = (&done, &failed);
            scope.spawn(move || {
                forebay_device::keep_freed(KEPT_BYTES);
                let subject = Rc::new(subject());
                let mut mine = Findings::default();
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < options.time {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if options.runs.is_some_and(|runs| number >= runs) {
                        break;
                    }
                    let now = Instant::now();
                    *slot.lock().expect("no panic under this lock") = Some((number, now));
                    let outcome =
                        run_number(&subject, root, number, constraints, options.twice, &mut mine);
                    *slot.lock().expect("no panic under this lock") = None;
                    if let Some(failure) = &outcome.failure {
                        failed.fetch_add(1, Ordering::Relaxed);
                        println!("run {number}: {failure}");
                        println!("  replay: forebay-prove {describe}--seed {root} --run {number}");
                        if mine.failures.len() > options.keep_going {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                total.lock().expect("no panic under this lock").add(mine);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    let found = total.into_inner().expect("no panic under this lock");
    println!("{}", found.summary(begun.elapsed().as_secs_f64(), cpu_secs()));
    let subject = Rc::new(subject());
    let shrunk = if options.shrink > 0 { options.keep_going.max(1) } else { 0 };
    for (number, scenario, failure) in found.failures.iter().take(shrunk) {
        save_shrunk(options, &subject, &format!("run-{root:x}-{number}"), scenario, failure);
    }
    if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What this process has used of all cores, in seconds; 0 where the system does not say.
fn cpu_secs() -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name is in brackets and may hold anything; user and system time are 12th and 13th after it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SEC
}

fn save_shrunk<S: Subject>(
    options: &Options,
    subject: &Rc<S>,
    name: &str,
    scenario: &Scenario,
    failure: &Failure,
) {
    let (mut small, runs) =
        shrink::shrink(scenario, failure.kind, options.shrink, |candidate| run(subject, candidate));
    let message = run(subject, &small).failure.map_or_else(String::new, |f| f.to_string());
    small.story = message.clone();
    match corpus::save(&options.corpus, name, &small) {
        Ok(path) => {
            println!("shrunk to {} acts in {runs} runs: {}", small.acts(), path.display());
            println!("  {message}");
        }
        Err(error) => println!("could not save {name}: {error}"),
    }
}

fn report_one<S: Subject>(
    options: &Options,
    subject: &Rc<S>,
    root: u64,
    number: u64,
    scenario: &Scenario,
    outcome: &Outcome,
) -> ExitCode {
    println!("run {number} of root seed {root}: digest {:#x}", outcome.digest);
    println!("{:?}, demand {:?}, boots {}", scenario.spec, scenario.demand, scenario.boots.len());
    println!("device commands of each boot: {:?}", outcome.boot_commands);
    match &outcome.failure {
        None => {
            println!("passed");
            ExitCode::SUCCESS
        }
        Some(failure) => {
            println!("{failure}");
            if options.shrink > 0 {
                let name = format!("run-{root:x}-{number}");
                save_shrunk(options, subject, &name, scenario, failure);
            }
            ExitCode::FAILURE
        }
    }
}

fn replay<S: Subject>(path: &std::path::Path, subject: &Rc<S>, trace: bool) -> ExitCode {
    let loaded = if path.is_dir() {
        corpus::load(path)
    } else {
        corpus::load_one(path).map(|scenario| vec![(path.to_owned(), scenario)])
    };
    let scenarios = match loaded {
        Ok(scenarios) => scenarios,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut failed = 0;
    for (path, scenario) in &scenarios {
        if trace {
            run_watched(subject, scenario, |line| println!("{line}"));
        }
        let (first, second) = (run(subject, scenario), run(subject, scenario));
        let text = match &first.failure {
            _ if first.digest != second.digest => "not deterministic".to_owned(),
            Some(failure) => failure.to_string(),
            None => continue,
        };
        failed += 1;
        println!("{}: {text}", path.display());
    }
    println!("{} scenarios replayed, {failed} failed", scenarios.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
