//! The search: scenarios of one root seed on all threads, for a time or a number of runs.

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_dst::coverage::{self, Drawn};
use forebay_dst::generate::Constraints;
use forebay_dst::prove::{Findings, run_number, scenario_of};
use forebay_dst::subject::Subject;

use crate::options::{KEPT_BYTES, Options};
use crate::report::save_shrunk;

/// Real time after which a scenario hangs. A drawn scenario takes less than a hundredth of it.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// What the threads of a search share.
struct Search<'a> {
    options: &'a Options,
    constraints: &'a Constraints,
    root: u64,
    begun: Instant,
    next: AtomicU64,
    is_stopped: AtomicBool,
    /// Workers that still run.
    busy: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    /// For each worker, the number of its scenario and when it began.
    at_work: Vec<Mutex<Option<(u64, Instant)>>>,
    total: Mutex<Findings>,
    /// What --steer has drawn so far.
    drawn: Mutex<Drawn>,
}

/// Searches on all threads and prints a summary.
pub fn search<S: Subject>(
    options: &Options,
    subject: &(impl Fn() -> S + Sync),
    constraints: &Constraints,
    root: u64,
) -> ExitCode {
    let threads = options.threads();
    let end = options.describe_end();
    println!("{}root seed {root}, {threads} threads, until {end}", options.describe());
    let search = Search {
        options,
        constraints,
        root,
        begun: Instant::now(),
        next: AtomicU64::new(0),
        is_stopped: AtomicBool::new(false),
        busy: AtomicU64::new(threads as u64),
        done: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        at_work: (0..threads).map(|_| Mutex::default()).collect(),
        total: Mutex::new(Findings::default()),
        drawn: Mutex::default(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| search.watch());
        for slot in &search.at_work {
            scope.spawn(|| search.work(&Rc::new(subject()), slot));
        }
    });
    let secs = search.begun.elapsed().as_secs_f64();
    let found = search.total.into_inner().expect("no panic under this lock");
    println!("{}", found.summary(secs, cpu_secs()));
    let written =
        options.coverage.as_deref().map(|path| write_coverage(options, root, &found, path));
    if let Some(Err(error)) = written {
        println!("could not write the coverage: {error}");
        return ExitCode::FAILURE;
    }
    let subject = Rc::new(subject());
    let shrunk = if options.shrink > 0 { options.keep_going.max(1) } else { 0 };
    for (number, scenario, failure) in found.failures.iter().take(shrunk) {
        save_shrunk(options, &subject, &format!("run-{root:x}-{number}"), scenario, failure);
    }
    if found.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many scenarios --steer chooses from.
const CHOICE: u64 = 4;

/// Writes the page of [`coverage::page`].
fn write_coverage(
    options: &Options,
    root: u64,
    found: &Findings,
    path: &Path,
) -> std::io::Result<()> {
    let steer = if options.steer { "--steer " } else { "" };
    let title = format!(
        "`forebay-prove {}{steer}--seed {root}`: {} scenarios, {} power cuts. A count says how\n\
         often the fault of the column struck while the row was so.",
        options.describe(),
        found.runs,
        found.tally.crashes
    );
    std::fs::write(path, coverage::page(&found.tally.states, &title))
}

impl Search<'_> {
    /// The number of the next scenario. With --steer it is that of the rarest of the next four, so
    /// `--run` repeats it. `None` after the last one.
    fn next_number(&self) -> Option<u64> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        if self.options.runs.is_some_and(|runs| turn >= runs) {
            return None;
        }
        if !self.options.steer {
            return Some(turn);
        }
        let drawn = (turn * CHOICE..(turn + 1) * CHOICE)
            .map(|number| (number, scenario_of(self.root, number, self.constraints)));
        let mut seen = self.drawn.lock().expect("no panic under this lock");
        let rarest = drawn.max_by_key(|(_, scenario)| seen.rarity(scenario));
        let (number, scenario) = rarest.expect("there are four");
        seen.add(&scenario);
        Some(number)
    }

    /// Prints progress, and ends the process when a scenario hangs. Virtual time cannot show a loop
    /// in which no time passes, so this uses a real clock.
    fn watch(&self) {
        let mut told = Instant::now();
        while self.busy.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(200));
            if !self.options.quiet && told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                self.print_progress();
            }
            for slot in &self.at_work {
                let current = *slot.lock().expect("no panic under this lock");
                if let Some((number, since)) = current {
                    if since.elapsed() > HANGS_AFTER {
                        println!("run {number}: Hang: not done after {HANGS_AFTER:?} of real time");
                        println!("  replay: {}", self.options.replay_command(self.root, number));
                        std::process::exit(3);
                    }
                }
            }
        }
    }

    fn print_progress(&self) {
        let secs = self.begun.elapsed().as_secs_f64();
        let runs = self.done.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        let rate = runs as f64 / secs;
        println!("{secs:6.0} s: {runs} scenarios ({rate:.1}/s), {failed} failures");
    }

    /// Runs scenarios until the time or their number is used up.
    fn work<S: Subject>(&self, subject: &Rc<S>, slot: &Mutex<Option<(u64, Instant)>>) {
        forebay_device::keep_freed(KEPT_BYTES);
        let options = self.options;
        let mut findings = Findings::default();
        let is_over = || options.time_limit().is_some_and(|limit| self.begun.elapsed() >= limit);
        while !self.is_stopped.load(Ordering::Relaxed) && !is_over() {
            let Some(number) = self.next_number() else { break };
            *slot.lock().expect("no panic under this lock") = Some((number, Instant::now()));
            let (root, twice) = (self.root, options.twice);
            let outcome = run_number(subject, root, number, self.constraints, twice, &mut findings);
            *slot.lock().expect("no panic under this lock") = None;
            if let Some(failure) = &outcome.failure {
                self.failed.fetch_add(1, Ordering::Relaxed);
                println!("run {number}: {failure}");
                println!("  replay: {}", options.replay_command(root, number));
                if findings.failures.len() > options.keep_going {
                    self.is_stopped.store(true, Ordering::Relaxed);
                }
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        self.total.lock().expect("no panic under this lock").add(findings);
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Processor time of this process in seconds; 0 where the system does not report it.
fn cpu_secs() -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The process name is in parentheses and may contain anything. User and system time are the
    // 12th and 13th fields behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SEC
}
