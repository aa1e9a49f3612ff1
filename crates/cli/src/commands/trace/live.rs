//! `forebay trace` on a live device: recording it to a file, and analyses while it works.

use std::io::BufWriter;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_trace::{CompactWriter, Event, Names, Pattern, SeekKey, Seeks, Stage, SummaryBuilder};
use forebay_units::{Nanos, format_bytes};
use serde::Serialize;

use super::super::outcome::Outcome;
use super::super::output;
use super::convert::written_len;
use super::kernel::{MECHANISM, Recorder, is_block_device};
use super::{Table, pattern_options, seek_options};
use crate::args::{IopatternArgs, RecordArgs, SeeksizeArgs, SourceArgs, SummaryArgs, TraceCommand};
use crate::failure::Failure;
use crate::log;
use crate::render::{self, TraceHead, document};
use crate::signals::Stop;
use crate::terminal::Screen;

/// Between two looks at the kernel's buffers.
const POLL_INTERVAL: Nanos = Nanos::from_millis(100);
/// A recording that is killed loses no more than this.
const CHUNK_INTERVAL: Nanos = Nanos::from_secs(1);

/// Whether the command works with a device, and does not only read a trace.
pub fn needs_runtime(command: &TraceCommand) -> bool {
    let source = match command {
        TraceCommand::Record(_) | TraceCommand::Replay(_) => return true,
        TraceCommand::Iopattern(args) => &args.source,
        TraceCommand::Seeksize(args) => &args.source,
        TraceCommand::Summary(args) => &args.source,
        TraceCommand::Convert(_) | TraceCommand::Cache(_) | TraceCommand::Pool(_) => return false,
    };
    // With a format, a device is read as a file: the log of dm-log-writes is one.
    source.format.is_none() && is_block_device(&source.source)
}

/// Refuses an option that chooses among devices: a live device is one.
fn refuse_choice(source: &SourceArgs) -> Result<(), Failure> {
    if source.only_device.is_none() {
        return Ok(());
    }
    let message = format!("{} is recorded live, and alone", source.source.display());
    Err(Failure::usage(message).with_hint("--device chooses among the devices of a trace"))
}

/// Runs a command on a live device until it has what it wants, or Ctrl-C.
pub async fn trace_live(command: TraceCommand, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    match &command {
        TraceCommand::Iopattern(args) => refuse_choice(&args.source)?,
        TraceCommand::Seeksize(args) => refuse_choice(&args.source)?,
        TraceCommand::Summary(args) => refuse_choice(&args.source)?,
        _ => {}
    }
    match command {
        TraceCommand::Record(args) => record(&args, stop).await,
        TraceCommand::Replay(args) => super::replay::command(&args, stop).await,
        TraceCommand::Iopattern(args) => iopattern(&args, stop).await,
        TraceCommand::Seeksize(args) => seeksize(&args, stop).await,
        TraceCommand::Summary(args) => summary(&args, stop).await,
        TraceCommand::Convert(_) | TraceCommand::Cache(_) | TraceCommand::Pool(_) => {
            unreachable!("they are not live")
        }
    }
}

/// Gives the events of each tenth of a second to `each`, with the time up to which they are
/// complete, until it returns `false`, `seconds` have passed, or Ctrl-C.
async fn follow(
    recorder: &mut Recorder,
    stop: &Rc<Stop>,
    seconds: Option<Nanos>,
    mut each: impl FnMut(Nanos, &[Event], &Names) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let end = seconds.map(|span| forebay_rt::now() + span);
    loop {
        let now = forebay_rt::now();
        let left = end.map_or(POLL_INTERVAL, |end| end.since(now).min(POLL_INTERVAL));
        let is_asked = stop.unless_asked(forebay_rt::sleep(left)).await.is_none();
        let (until, events) = recorder.take()?;
        let goes_on = each(until, &events, recorder.names())?;
        let is_over = end.is_some_and(|end| forebay_rt::now() >= end);
        if !goes_on || is_asked || is_over {
            return Ok(());
        }
    }
}

/// A recorder, of which the user is told unless the output is JSON.
fn announced(source: &SourceArgs, is_json: bool) -> Result<Recorder, Failure> {
    let recorder = Recorder::start(&source.source)?;
    if !is_json {
        log::notice("Tracing... Hit Ctrl-C to end.");
    }
    Ok(recorder)
}

/// Gives each event to `each` until the end. Returns how many there were.
async fn follow_each(
    recorder: &mut Recorder,
    stop: &Rc<Stop>,
    seconds: Option<Nanos>,
    mut each: impl FnMut(&Event),
) -> Result<u64, Failure> {
    let mut count = 0;
    follow(recorder, stop, seconds, |_, events, _| {
        events.iter().for_each(&mut each);
        count += events.len() as u64;
        Ok(true)
    })
    .await?;
    Ok(count)
}

/// The head of a live analysis.
fn head(source: &SourceArgs, recorder: &Recorder, stage: &'static str, events: u64) -> TraceHead {
    let remark = recorder.loss();
    if let Some(remark) = &remark {
        log::warning(remark);
    }
    let (complete, source) = (remark.is_none(), source.source.display().to_string());
    TraceHead { source, format: "tracefs", stage, events, complete, remark }
}

async fn iopattern(args: &IopatternArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let stage = args.source.at.unwrap_or(Stage::Completed);
    let options = pattern_options(args, stage);
    let mut recorder = Recorder::start(&args.source.source)?;
    let mut pattern = Pattern::new(options);
    let mut table = Table::new(args);
    let (mut rows, mut count) = (Vec::new(), 0);
    pattern.advance_to(forebay_rt::sys::boot_time(), &mut rows);
    follow(&mut recorder, stop, None, |until, events, names| {
        for event in events {
            pattern.event(event, &mut rows);
        }
        count += events.len() as u64;
        pattern.advance_to(until, &mut rows);
        table.take(&mut rows, names)
    })
    .await?;
    if options.interval.is_none() {
        pattern.finish(&mut rows);
        table.take(&mut rows, recorder.names())?;
    }
    let head = head(&args.source, &recorder, super::stage_name(stage), count);
    table.end(&head, recorder.names())
}

async fn seeksize(args: &SeeksizeArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let stage = args.source.at.unwrap_or(match super::seek_key(args.rules) {
        SeekKey::ThreadAndDevice => Stage::Queued,
        SeekKey::Device => Stage::Issued,
    });
    let mut seeks = Seeks::new(seek_options(args, stage));
    let mut recorder = announced(&args.source, args.json)?;
    let each = |event: &Event| seeks.event(event);
    let count = follow_each(&mut recorder, stop, args.seconds, each).await?;
    let head = head(&args.source, &recorder, super::stage_name(stage), count);
    Ok(super::seek_outcome(args, &seeks, &head, recorder.names()))
}

async fn summary(args: &SummaryArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let stage = args.source.at.unwrap_or(Stage::Issued);
    let mut builder = SummaryBuilder::new(stage);
    let mut recorder = announced(&args.source, args.json)?;
    let each = |event: &Event| builder.event(event);
    let count = follow_each(&mut recorder, stop, args.seconds, each).await?;
    let head = head(&args.source, &recorder, super::stage_name(stage), count);
    let summary = builder.finish();
    let text = match args.json {
        true => render::summary_json(&head, &summary, recorder.names()),
        false => render::summary_text(&head, &summary, recorder.names(), true),
    };
    Ok(Outcome { text, complete: head.complete })
}

/// The result of a recording, for `--json`.
#[derive(Serialize)]
struct Recorded<'a> {
    device: String,
    mechanism: &'a str,
    output: String,
    events: u64,
    seconds: f64,
    complete: bool,
}

async fn record(args: &RecordArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let out = args.recording.out.clone().unwrap_or_else(|| {
        let name = args.device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PathBuf::from(format!("{name}.fbt"))
    });
    output::refuse_json_beside(&out, args.recording.json)?;
    let mut recorder = Recorder::start(&args.device)?;
    let file = BufWriter::new(output::recording(&out, args.recording.force)?);
    let failed = |e| Failure::io(out.display(), &e);
    let mut writer = CompactWriter::new(file, true);
    let (screen, begun) = (Screen::stderr(), forebay_rt::now());
    let mut ended = begun;
    let mut count = 0;
    if !args.recording.json {
        let device = args.device.display();
        log::notice(&format!(
            "recording {device} to {} by {MECHANISM}; Ctrl-C ends",
            out.display()
        ));
    }
    let outcome = follow(&mut recorder, stop, args.recording.seconds, |_, events, names| {
        for event in events {
            writer.event(event, names).map_err(failed)?;
        }
        count += events.len() as u64;
        let now = forebay_rt::now();
        if now.since(ended) >= CHUNK_INTERVAL {
            ended = now;
            writer.end_chunk().map_err(failed)?;
            let secs = now.since(begun).0 / 1_000_000_000;
            let len = format_bytes(written_len(&out));
            let span = crate::clock::duration(secs);
            screen.show(&format!("{span}, {count} events, {len}"));
        }
        Ok(true)
    })
    .await;
    screen.clear();
    writer.finish(recorder.names()).map_err(failed)?;
    outcome?;
    let seconds = forebay_rt::now().since(begun).as_secs_f64();
    let loss = recorder.loss();
    let complete = loss.is_none();
    if let Some(loss) = loss {
        log::warning(&loss);
    }
    let (device, name) = (args.device.display().to_string(), out.display().to_string());
    let text = match args.recording.json {
        true => {
            let (mechanism, output) = ("tracefs", name);
            let body = Recorded { device, mechanism, output, events: count, seconds, complete };
            document("trace record", body)
        }
        false => format!("{count} events of {device} in {seconds:.1} s: {name}\n"),
    };
    Ok(output::recorded(&out, text, complete))
}
