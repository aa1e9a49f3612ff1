//! Digest of a trace for a page: all that its charts and tables need, in one pass.

use std::path::Path;

use forebay_trace::{
    Format, Pattern, PatternOptions, Rules, SeekKey, SeekOptions, Seeks, Stage, SummaryBuilder,
    TimeUnit, Timeline,
};

use super::open::Reading;
use super::{COMPLETION_FIRST, ISSUE_FIRST};
use crate::args::SourceArgs;
use crate::failure::Failure;
use crate::render::{TraceDigest, TraceRows};

/// Reads the trace at `path` to its end.
pub fn digest(
    path: &Path,
    format: Option<Format>,
    time_unit: Option<TimeUnit>,
) -> Result<TraceDigest, Failure> {
    let source = path.to_owned();
    let args = SourceArgs { source, format, time_unit, only_device: None, at: None };
    let mut reading = Reading::open(&args)?;
    let issued = reading.stage(None, &ISSUE_FIRST)?;
    let completed = reading.stage(None, &COMPLETION_FIRST)?;
    let has_times = reading.has_times();
    let mut summary = SummaryBuilder::new(issued);
    let mut at_issue = pattern(issued);
    let mut at_completion = pattern(completed);
    let mut timeline = Timeline::new(completed);
    let mut seeks = Seeks::new(SeekOptions {
        key: SeekKey::Device,
        is_signed: true,
        stage: issued,
        only: None,
        counts_empty: false,
    });
    let mut rows = Vec::new();
    while let Some(event) = reading.next() {
        summary.event(&event);
        at_issue.event(&event, &mut rows);
        at_completion.event(&event, &mut rows);
        timeline.event(&event);
        seeks.event(&event);
    }
    let row = |pattern: Pattern| {
        let mut rows = Vec::new();
        pattern.finish(&mut rows);
        rows.pop().unwrap_or_default()
    };
    let rows = TraceRows { at_issue: row(at_issue), at_completion: row(at_completion) };
    let (head, names) = reading.finish(issued);
    Ok(TraceDigest {
        head,
        devices: names.devices().to_vec(),
        summary: summary.finish(),
        rows,
        timeline: has_times.then_some(timeline),
        seeks: seeks.total(),
    })
}

/// The pattern of the whole trace, by the rules of iopattern.
fn pattern(stage: Stage) -> Pattern {
    Pattern::new(PatternOptions {
        rules: Rules::Dtrace,
        interval: None,
        stage,
        only: None,
        counts_empty: false,
    })
}
