//! `forebay report`: results of qualifications, and traces, as a page, JSON, CSV or Markdown.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use forebay_lab::is_same_file;
use forebay_qualify::{Qualification, results};
use forebay_report::{Results, render, to_csv, to_json, to_markdown};

use super::outcome::Outcome;
use super::output;
use super::qualify::read_result;
use super::trace::digest;
use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::files;
use crate::render::{TraceDigest, trace_experiments, trace_names};

/// Runs the command.
pub fn report(args: &ReportArgs) -> Result<Outcome, Failure> {
    let is_page = !(args.json || args.csv || args.markdown);
    let page_name = match &args.out {
        None if is_page => Some(default_page(&args.results[0])?),
        out => out.clone(),
    };
    if let Some(out) = &page_name {
        if args.results.iter().any(|result| result.is_file() && is_same_file(result, out)) {
            let message = format!("{} is one of the results", out.display());
            return Err(Failure::usage(message).with_hint("-o gives the page another name"));
        }
    }
    let (mut runs, mut traces, mut complete) = (Vec::new(), Vec::new(), true);
    for path in &args.results {
        match what_is(path)? {
            Content::Qualification => {
                let (run, damage) = read_result(path)?;
                complete &= damage.is_none();
                runs.push(run);
            }
            Content::Witness => {
                let message = format!("{} is the file of a witness", path.display());
                let hint = format!("'forebay witness {} --show' prints it", path.display());
                return Err(Failure::usage(message).with_hint(hint));
            }
            Content::Trace => {
                let trace = digest(path, args.format, args.time_unit)?;
                complete &= trace.head.complete;
                traces.push(trace);
            }
        }
    }
    let results = together(&runs, &traces);
    let text = match (args.json, args.csv, args.markdown) {
        (true, ..) => to_json(&results),
        (_, true, _) => to_csv(&results),
        (.., true) => to_markdown(&results),
        _ => render(&results),
    };
    let Some(out) = page_name.filter(|out| out.as_os_str() != "-") else {
        return Ok(Outcome { text, complete });
    };
    write(&out, &text, args.force)?;
    let said = if args.out.is_none() { format!("{}\n", out.display()) } else { String::new() };
    Ok(Outcome { text: said, complete })
}

/// What a file is, by its first bytes.
enum Content {
    Qualification,
    Witness,
    /// Or nothing that is known: the readers of traces tell.
    Trace,
}

fn what_is(path: &Path) -> Result<Content, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Content::Trace);
    }
    const MARKS: u64 = 16;
    let failed = |e| Failure::io(path.display(), &e);
    let file = files::open_to_read(path);
    let mut head = Vec::new();
    match file {
        Ok(file) if file.metadata().is_ok_and(|meta| meta.is_file()) => {
            file.take(MARKS).read_to_end(&mut head).map_err(failed)?;
        }
        // A name may stand for the files that blktrace made; a folder is refused by its reader.
        _ => return Ok(Content::Trace),
    }
    let is_log = head.starts_with(b"forebay-qualify/")
        || path.extension().is_some_and(|extension| extension == "fbq");
    Ok(match head.starts_with(b"forebay-witness/") {
        true => Content::Witness,
        false if is_log => Content::Qualification,
        false => Content::Trace,
    })
}

/// Where the page goes when no name is given.
fn default_page(first: &Path) -> Result<PathBuf, Failure> {
    if first.as_os_str() == "-" {
        let message = "a page of standard input needs a name";
        return Err(Failure::usage(message).with_hint("-o names it, and -o - prints it"));
    }
    let page = first.with_extension("html");
    if page == first && first.extension().is_some() {
        let message = format!("{} is the name of the page, too", first.display());
        return Err(Failure::usage(message).with_hint("-o gives it another one"));
    }
    Ok(page)
}

/// One document of all that was read.
fn together(runs: &[Qualification], traces: &[TraceDigest]) -> Results {
    let mut results = results(runs, &forebay_report::generator());
    if traces.is_empty() {
        return results;
    }
    let names = trace_names(traces).join(", ");
    results.title = match runs {
        [] => format!("Trace: {names}"),
        _ => format!("{}, and trace: {names}", results.title),
    };
    results.experiments.extend(trace_experiments(traces));
    results
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut file = output::create(path, force)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.finish());
    written.map_err(|e| Failure::io(path.display(), &e))
}
