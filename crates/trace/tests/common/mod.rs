//! What the tests of whole traces share.

#![allow(dead_code, reason = "each test uses a part")]

pub mod samples;

use std::fs::File;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use forebay_trace::{
    Converter, Event, Format, ReadOptions, Remarks, Source, Stage, Target, TraceError,
};

/// The folder of recorded traces, which lies beside the repository and is no part of it.
pub fn traces() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = root.ancestors().map(|dir| dir.join("shared/data/traces")).find(|dir| dir.is_dir());
    if found.is_none() {
        // The output of a test that passes is not shown; this is.
        let message = "\nSKIPPED: shared/data/traces is not beside the repository\n";
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    found
}

pub fn open(path: &Path) -> Source {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Source::open(Box::new(file), ReadOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// All events, and that nothing was left unread.
pub fn events(path: &Path) -> Vec<Event> {
    let (events, remarks) = drain(open(path));
    assert!(remarks.is_clean(), "{}: {remarks}", path.display());
    events
}

pub fn source(bytes: Vec<u8>, format: Option<Format>) -> Result<Source, TraceError> {
    let options = ReadOptions { format, time_unit: None };
    Source::open(Box::new(Cursor::new(bytes)), options)
}

/// The events, and the remarks behind them.
pub fn drain(mut source: Source) -> (Vec<Event>, Remarks) {
    let events = source.by_ref().collect();
    (events, source.into_remarks().1)
}

/// The source in the own format.
pub fn compact(source: Source) -> Vec<u8> {
    convert(source, Target::Forebay)
}

pub fn convert(mut source: Source, target: Target) -> Vec<u8> {
    let mut out = Vec::new();
    let stage = source.stages().choose(&[Stage::Issued, Stage::Queued, Stage::Completed]);
    let mut converter = Converter::new(target, &mut out, stage, source.has_times()).unwrap();
    while let Some(event) = source.next() {
        converter.event(&event, source.names()).unwrap();
    }
    converter.finish(source.names()).unwrap();
    out
}
