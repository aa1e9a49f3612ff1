//! `forebay trace convert`.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use forebay_lab::is_same_file;
use forebay_rt::sys;
use forebay_trace::{Converter, Target};
use serde::Serialize;

use super::super::outcome::Outcome;
use super::super::output;
use super::ISSUE_FIRST;
use super::open::{Reading, is_stdin};
use crate::args::ConvertArgs;
use crate::failure::{ErrorCode, Failure};
use crate::log;
use crate::render::{TraceHead, document};

/// The result of a conversion, for `--json`.
#[derive(Serialize)]
struct Converted<'a> {
    #[serde(flatten)]
    head: &'a TraceHead,
    output: String,
    to: &'a str,
    written: u64,
    left_out: u64,
}

pub fn convert(args: &ConvertArgs) -> Result<Outcome, Failure> {
    let to_stdout = is_stdin(&args.out);
    if to_stdout && args.json {
        return Err(Failure::usage("--json and the trace cannot both go to standard output"));
    }
    let mut reading = Reading::open(&args.source)?;
    let stage = reading.stage(args.source.at, &ISSUE_FIRST)?;
    if is_same_file(&args.source.source, &args.out) {
        return Err(Failure::usage(format!("{} is the trace itself", args.out.display())));
    }
    let mut file = if to_stdout { None } else { Some(output::create(&args.out, args.force)?) };
    let sink: Box<dyn Write + '_> = match &mut file {
        Some(file) => Box::new(file),
        None => Box::new(sys::stdout().map_err(|e| Failure::io("standard output", &e))?),
    };
    let out = BufWriter::with_capacity(256 << 10, sink);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::new(ErrorCode::OutputClosed, ""),
        _ => Failure::io(args.out.display(), &error),
    };
    let mut converter = Converter::new(args.to, out, stage, reading.has_times()).map_err(failed)?;
    while let Some(event) = reading.next() {
        converter.event(&event, reading.names()).map_err(failed)?;
    }
    let (head, names) = reading.finish(stage);
    let complete = head.complete;
    let (written, left_out) = converter.finish(&names).map_err(failed)?;
    if let Some(file) = file {
        file.finish().map_err(failed)?;
    }
    if args.json {
        let (to, output) = (args.to.name(), args.out.display().to_string());
        let body = Converted { head: &head, output, to, written, left_out };
        return Ok(Outcome { text: document("trace convert", body), complete });
    }
    if left_out > 0 {
        let format = match args.to {
            Target::Forebay => "the own format",
            Target::Csv => "the table",
            Target::Fio => "an iolog",
            Target::Disksim => "DiskSim's format",
        };
        log::notice(&format!("{left_out} requests are left out, which {format} cannot express"));
    }
    Ok(Outcome { text: String::new(), complete })
}

/// Bytes of a file that is being written; 0 when nothing can be said.
pub fn written_len(path: &Path) -> u64 {
    path.metadata().map_or(0, |meta| meta.len())
}
