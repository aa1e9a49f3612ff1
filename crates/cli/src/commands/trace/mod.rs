//! `forebay trace`: analyses of recorded block I/O.
//!
//! What enters: arguments, and the bytes of a trace. What leaves: tables, JSON, a converted trace.
//! What always holds: a trace that is damaged or cut off gives what was read, one line about the
//! rest on standard error, and exit code 1. Who calls: `crate::run`.

mod cache;
mod convert;
mod open;

use forebay_trace::{
    Op, Pattern, PatternOptions, PatternRow, Rules, SeekKey, SeekOptions, Seeks, Stage,
    SummaryBuilder,
};
use forebay_units::Nanos;

use self::open::Reading;
use super::outcome::Outcome;
use crate::args::{IopatternArgs, OnlyArgs, SeeksizeArgs, SummaryArgs, TraceCommand};
use crate::failure::Failure;
use crate::log;
use crate::render;
use crate::terminal::print;

/// Where to count a request when its completion matters.
const COMPLETION_FIRST: [Stage; 3] = [Stage::Completed, Stage::Issued, Stage::Queued];
/// Where to count a request when the issuing thread matters.
const QUEUE_FIRST: [Stage; 3] = [Stage::Queued, Stage::Issued, Stage::Completed];
/// Where to count a request when the device's view matters: merged, and flushes as it gets them.
const ISSUE_FIRST: [Stage; 3] = [Stage::Issued, Stage::Queued, Stage::Completed];

/// Runs the command.
pub fn trace(command: TraceCommand) -> Result<Outcome, Failure> {
    match command {
        TraceCommand::Iopattern(args) => iopattern(&args),
        TraceCommand::Seeksize(args) => seeksize(&args),
        TraceCommand::Summary(args) => summary(&args),
        TraceCommand::Convert(args) => convert::convert(&args),
        TraceCommand::Cache(args) => cache::cache(&args),
    }
}

fn only(args: OnlyArgs) -> Option<Op> {
    match (args.reads, args.writes) {
        (true, _) => Some(Op::Read),
        (_, true) => Some(Op::Write),
        _ => None,
    }
}

fn iopattern(args: &IopatternArgs) -> Result<Outcome, Failure> {
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &COMPLETION_FIRST)?;
    let default = (args.rules == Rules::Dtrace && !args.total).then(|| Nanos::from_secs(1));
    let options = PatternOptions {
        rules: args.rules,
        interval: args.interval.or(default),
        stage,
        only: only(args.only),
        counts_empty: args.count_flushes,
    };
    if options.interval.is_some() && !reading.has_times() {
        return Err(Failure::usage("the trace has no times to cut it into intervals")
            .with_hint("--total makes one line of all of it"));
    }
    let mut table = Table { args, lines: 0, kept: Vec::new(), empty: 0 };
    let mut pattern = Pattern::new(options);
    let mut rows = Vec::new();
    while let Some(event) = reading.next() {
        pattern.event(&event, &mut rows);
        if !rows.is_empty() && !table.take(&mut rows, &reading)? {
            return table.end(reading, stage);
        }
    }
    pattern.finish(&mut rows);
    table.take(&mut rows, &reading)?;
    table.end(reading, stage)
}

/// Lines of iopattern on their way out.
struct Table<'a> {
    args: &'a IopatternArgs,
    lines: u64,
    kept: Vec<PatternRow>,
    empty: u64,
}

impl Table<'_> {
    /// Prints or keeps rows; `false` when no more are wanted.
    fn take(&mut self, rows: &mut Vec<PatternRow>, reading: &Reading) -> Result<bool, Failure> {
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
                    Rules::Dtrace => self.lines.is_multiple_of(LINES_A_HEADING),
                    Rules::Bcc => self.lines == 0,
                };
                if is_due {
                    text.push_str(&render::iopattern_heading(self.args.rules, self.args.time));
                }
                let (rules, names) = (self.args.rules, reading.names());
                text.push_str(&render::iopattern_line(&row, rules, self.args.time, names));
            }
            self.lines += 1;
        }
        if !text.is_empty() {
            reading.clear_progress();
            print(&text)?;
        }
        Ok(self.args.count.is_none_or(|count| self.lines < count))
    }

    fn end(self, reading: Reading, stage: Stage) -> Result<Outcome, Failure> {
        let (head, names, complete) = reading.finish(stage);
        if self.args.json {
            let report = render::PatternReport {
                rules: self.args.rules,
                counts_flushes: self.args.count_flushes,
                rows: &self.kept,
                names: &names,
            };
            return Ok(Outcome { text: render::pattern_json(&head, &report), complete });
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

fn seeksize(args: &SeeksizeArgs) -> Result<Outcome, Failure> {
    let mut reading = Reading::open(&args.source)?;
    let (key, stages) = match args.rules {
        Rules::Dtrace => (SeekKey::ThreadAndDevice, &QUEUE_FIRST),
        Rules::Bcc => (SeekKey::Device, &ISSUE_FIRST),
    };
    let stage = reading.stage(args.source.at, stages)?;
    let mut seeks = Seeks::new(SeekOptions {
        key,
        is_signed: args.signed,
        stage,
        only: only(args.only),
        counts_empty: args.count_flushes,
    });
    while let Some(event) = reading.next() {
        seeks.event(&event);
    }
    let (head, names, complete) = reading.finish(stage);
    let report = render::SeekReport {
        rules: args.rules,
        is_signed: args.signed,
        total: seeks.total(),
        groups: if args.total { Vec::new() } else { seeks.groups() },
        names: &names,
    };
    let text =
        if args.json { render::seek_json(&head, &report) } else { render::seek_text(&report) };
    Ok(Outcome { text, complete })
}

fn summary(args: &SummaryArgs) -> Result<Outcome, Failure> {
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &ISSUE_FIRST)?;
    let has_times = reading.has_times();
    let mut builder = SummaryBuilder::new(stage);
    while let Some(event) = reading.next() {
        builder.event(&event);
    }
    let summary = builder.finish();
    let (head, names, complete) = reading.finish(stage);
    let text = if args.json {
        render::summary_json(&head, &summary, &names)
    } else {
        render::summary_text(&head, &summary, &names, has_times)
    };
    Ok(Outcome { text, complete })
}
