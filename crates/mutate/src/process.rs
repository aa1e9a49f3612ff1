//! Running a test program with limits of time and memory.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Address space of a test program: a mutant may allocate without end.
const MAX_KIB: u64 = 6 << 20;
/// How often the limits are looked at.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// Real time that a program may take, in multiples of its limit of processor time.
const MAX_WALL: u32 = 4;
/// Clock ticks in /proc.
const TICK: Duration = Duration::from_millis(10);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With success.
    Passed,
    /// It printed a failure, or ended with another status. Has the line that says so.
    Failed(String),
    /// It took too long.
    Limit,
}

/// What is run.
pub struct Task<'a> {
    /// Program and arguments.
    pub command: &'a [String],
    /// The folder in which it runs.
    pub folder: &'a std::path::Path,
    /// Value of `FOREBAY_MUTANT`.
    pub mutant: &'a str,
    /// Limit of processor time.
    pub limit: Duration,
}

/// Runs a program until it ends, prints a line that `is_failure` finds, or takes too long. Returns
/// the processor time that it took as well.
pub fn run(task: &Task<'_>, is_failure: impl Fn(&str) -> bool) -> io::Result<(Ended, Duration)> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {MAX_KIB}; exec \"$0\" \"$@\"")]);
    command.args(task.command).current_dir(task.folder);
    command.env("CARGO_MANIFEST_DIR", task.folder).env("FOREBAY_MUTANT", task.mutant);
    command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1").env("RUST_BACKTRACE", "0");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let output = child.stdout.take().expect("it is piped");
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::Builder::new().spawn(move || {
        let all = BufReader::new(output).lines().map_while(Result::ok);
        all.for_each(|line| drop(sender.send(line)));
    })?;
    let begun = Instant::now();
    let mut failure = None;
    loop {
        match lines.recv_timeout(LOOKS_EVERY) {
            Ok(line) if is_failure(&line) => failure = Some(Ended::Failed(line)),
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if is_over_limit(&child, begun, task.limit) {
            failure = Some(Ended::Limit);
        }
        if failure.is_some() {
            child.kill()?;
            break;
        }
    }
    // Its output has ended, so it takes no more, but it is still in /proc.
    let takes = begun.elapsed().min(processor_time(child.id()) + TICK);
    let status = child.wait()?;
    let _ = reader.join();
    let ended = match status.success() {
        true => Ended::Passed,
        false => Ended::Failed(status.to_string()),
    };
    Ok((failure.unwrap_or(ended), takes))
}

fn is_over_limit(child: &Child, begun: Instant, limit: Duration) -> bool {
    begun.elapsed() > limit
        && (begun.elapsed() > limit * MAX_WALL || processor_time(child.id()) > limit)
}

/// Processor time that a process has taken.
fn processor_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name is in parentheses. User and system time are the 12th and 13th fields behind it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u32 = fields.skip(11).take(2).filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}
