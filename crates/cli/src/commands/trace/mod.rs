//! `forebay trace`: analyses of recorded block I/O.
//!
//! What enters: arguments, and the bytes of a trace. What leaves: tables, JSON, a converted trace.
//! What always holds: a trace that is damaged or cut off gives what was read, one line about the
//! rest on standard error, and exit code 1. Who calls: `crate::run`.

mod cache;
mod convert;
mod digest;
mod kernel;
mod live;
mod open;
mod pool;
mod replay;

pub use digest::digest;
pub use pool::record_pool;

use std::rc::Rc;

use forebay_rt::Runtime;
use forebay_trace::{
    Names, Op, Pattern, PatternOptions, PatternRow, Rules, SeekKey, SeekOptions, Seeks, Stage,
    SummaryBuilder,
};
use forebay_units::Nanos;

use self::open::Reading;
use super::outcome::Outcome;
use crate::args::{IopatternArgs, OnlyArgs, SeeksizeArgs, SummaryArgs, TraceCommand};
use crate::failure::Failure;
use crate::log;
use crate::render::{self, TraceHead};
use crate::signals::Signals;
use crate::terminal::print;

/// Where to count a request when its completion matters.
const COMPLETION_FIRST: [Stage; 3] = [Stage::Completed, Stage::Issued, Stage::Queued];
/// Where to count a request when the issuing thread matters.
const QUEUE_FIRST: [Stage; 3] = [Stage::Queued, Stage::Issued, Stage::Completed];
/// Where to count a request when the device's view matters: merged, and flushes as it gets them.
const ISSUE_FIRST: [Stage; 3] = [Stage::Issued, Stage::Queued, Stage::Completed];

/// Runs the command. `runtime` is for those that work with a live device.
pub fn trace(
    command: TraceCommand,
    runtime: impl FnOnce() -> Result<Runtime, Failure>,
) -> Result<Outcome, Failure> {
    if let TraceCommand::Replay(args) = &command {
        if let Some(name) = args.target.strip_prefix("sim:").map(str::to_owned) {
            return replay::on_model(args.clone(), &name);
        }
    }
    if live::needs_runtime(&command) {
        // Before the runtime has threads: they inherit the signal mask.
        let signals = Signals::take()?;
        return runtime()?.block_on(async move {
            let stop = signals.watch();
            live::trace_live(command, &Rc::clone(&stop)).await
        });
    }
    match command {
        TraceCommand::Iopattern(args) => iopattern(&args),
        TraceCommand::Seeksize(args) => seeksize(&args),
        TraceCommand::Summary(args) => summary(&args),
        TraceCommand::Convert(args) => convert::convert(&args),
        TraceCommand::Cache(args) => cache::cache(&args),
        TraceCommand::Record(_) | TraceCommand::Replay(_) | TraceCommand::Pool(_) => {
            unreachable!("they need a runtime")
        }
    }
}

/// The word that `--at` takes.
fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Request => "request",
        Stage::Queued => "queue",
        Stage::Issued => "issue",
        Stage::Completed => "complete",
    }
}

fn only(args: OnlyArgs) -> Option<Op> {
    match (args.reads, args.writes) {
        (true, _) => Some(Op::Read),
        (_, true) => Some(Op::Write),
        _ => None,
    }
}

fn pattern_options(args: &IopatternArgs, stage: Stage) -> PatternOptions {
    let default = (args.rules == Rules::Dtrace && !args.total).then(|| Nanos::from_secs(1));
    PatternOptions {
        rules: args.rules,
        interval: args.interval.or(default),
        stage,
        only: only(args.only),
        counts_empty: args.count_flushes,
    }
}

fn iopattern(args: &IopatternArgs) -> Result<Outcome, Failure> {
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &COMPLETION_FIRST)?;
    let options = pattern_options(args, stage);
    if options.interval.is_some() && !reading.has_times() {
        return Err(Failure::usage("the trace has no times to cut it into intervals")
            .with_hint("--total makes one line of all of it"));
    }
    let mut table = Table::new(args);
    let mut pattern = Pattern::new(options);
    let mut rows = Vec::new();
    let mut goes_on = true;
    while goes_on {
        let Some(event) = reading.next() else { break };
        pattern.event(&event, &mut rows);
        if !rows.is_empty() {
            reading.clear_progress();
            goes_on = table.take(&mut rows, reading.names())?;
        }
    }
    if goes_on {
        pattern.finish(&mut rows);
        reading.clear_progress();
        table.take(&mut rows, reading.names())?;
    }
    let (head, names) = reading.finish(stage);
    table.end(&head, &names)
}

/// Lines of iopattern on their way out.
struct Table<'a> {
    args: &'a IopatternArgs,
    lines: u64,
    kept: Vec<PatternRow>,
    empty: u64,
}

impl<'a> Table<'a> {
    fn new(args: &'a IopatternArgs) -> Self {
        Self { args, lines: 0, kept: Vec::new(), empty: 0 }
    }

    /// Prints or keeps rows; `false` when no more are wanted.
    fn take(&mut self, rows: &mut Vec<PatternRow>, names: &Names) -> Result<bool, Failure> {
        const LINES_A_HEADING: u64 = 20;
        let mut text = String::new();
        for row in rows.drain(..) {
            if self.args.count.is_some_and(|count| self.lines >= count) {
                break;
            }
            self.empty += row.empty;
            if self.args.json {
                self.kept.push(row);
            } else {
                // biopattern prints its heading once.
                let is_due = match self.args.rules {
                    Rules::Dtrace => self.lines % LINES_A_HEADING == 0,
                    Rules::Bcc => self.lines == 0,
                };
                let (rules, has_time) = (self.args.rules, self.args.time);
                if is_due {
                    text.push_str(&render::iopattern_heading(rules, has_time));
                }
                text.push_str(&render::iopattern_line(&row, rules, has_time, names));
            }
            self.lines += 1;
        }
        if !text.is_empty() {
            print(&text)?;
        }
        Ok(self.args.count.is_none_or(|count| self.lines < count))
    }

    fn end(self, head: &TraceHead, names: &Names) -> Result<Outcome, Failure> {
        let complete = head.complete;
        if self.args.json {
            let report = render::PatternReport {
                rules: self.args.rules,
                counts_flushes: self.args.count_flushes,
                rows: &self.kept,
                names,
            };
            return Ok(Outcome { text: render::pattern_json(head, &report), complete });
        }
        if self.empty > 0 && !self.args.count_flushes {
            log::notice(&format!(
                "{} flushes and empty requests are not counted; --count-flushes counts them",
                self.empty
            ));
        }
        Ok(Outcome { text: String::new(), complete })
    }
}

fn seek_key(rules: Rules) -> SeekKey {
    match rules {
        Rules::Dtrace => SeekKey::ThreadAndDevice,
        Rules::Bcc => SeekKey::Device,
    }
}

fn seek_options(args: &SeeksizeArgs, stage: Stage) -> SeekOptions {
    SeekOptions {
        key: seek_key(args.rules),
        is_signed: args.signed,
        stage,
        only: only(args.only),
        counts_empty: args.count_flushes,
    }
}

fn seek_outcome(args: &SeeksizeArgs, seeks: &Seeks, head: &TraceHead, names: &Names) -> Outcome {
    let report = render::SeekReport {
        rules: args.rules,
        is_signed: args.signed,
        total: seeks.total(),
        groups: if args.total { Vec::new() } else { seeks.groups() },
        names,
    };
    let text = match args.json {
        true => render::seek_json(head, &report),
        false => render::seek_text(&report),
    };
    Outcome { text, complete: head.complete }
}

/// A recorded trace has an end of its own.
fn refuse_seconds(seconds: Option<Nanos>) -> Result<(), Failure> {
    match seconds {
        Some(_) => Err(Failure::usage("--seconds is for a live block device")),
        None => Ok(()),
    }
}

fn seeksize(args: &SeeksizeArgs) -> Result<Outcome, Failure> {
    refuse_seconds(args.seconds)?;
    let mut reading = Reading::open(&args.source)?;
    let stages = match seek_key(args.rules) {
        SeekKey::ThreadAndDevice => &QUEUE_FIRST,
        SeekKey::Device => &ISSUE_FIRST,
    };
    let stage = reading.stage(args.source.at, stages)?;
    let mut seeks = Seeks::new(seek_options(args, stage));
    while let Some(event) = reading.next() {
        seeks.event(&event);
    }
    let (head, names) = reading.finish(stage);
    Ok(seek_outcome(args, &seeks, &head, &names))
}

fn summary(args: &SummaryArgs) -> Result<Outcome, Failure> {
    refuse_seconds(args.seconds)?;
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &ISSUE_FIRST)?;
    let has_times = reading.has_times();
    let mut builder = SummaryBuilder::new(stage);
    while let Some(event) = reading.next() {
        builder.event(&event);
    }
    let summary = builder.finish();
    let (head, names) = reading.finish(stage);
    let complete = head.complete;
    let text = if args.json {
        render::summary_json(&head, &summary, &names)
    } else {
        render::summary_text(&head, &summary, &names, has_times)
    };
    Ok(Outcome { text, complete })
}
