//! `forebay report`: results of qualifications as a page, JSON, CSV or Markdown.

use std::io::Write;

use forebay_qualify::{Qualification, results};
use forebay_report::{render, to_csv, to_json, to_markdown};

use super::outcome::Outcome;
use super::qualify::read_result;
use crate::args::ReportArgs;
use crate::failure::Failure;
use crate::files;

/// Runs the command.
pub fn report(args: &ReportArgs) -> Result<Outcome, Failure> {
    let mut runs: Vec<Qualification> = Vec::new();
    let mut complete = true;
    for path in &args.results {
        let (run, damage) = read_result(path)?;
        complete &= damage.is_none();
        runs.push(run);
    }
    let generator = format!("forebay {}", env!("CARGO_PKG_VERSION"));
    let results = results(&runs, &generator);
    let text = match (args.json, args.csv, args.markdown) {
        (true, ..) => Some(to_json(&results)),
        (_, true, _) => Some(to_csv(&results)),
        (.., true) => Some(to_markdown(&results)),
        _ => None,
    };
    let page = || render(&results);
    let Some(out) = &args.out else {
        if let Some(text) = text {
            return Ok(Outcome { text, complete });
        }
        let out = args.results[0].with_extension("html");
        write(&out, &page(), args.force)?;
        return Ok(Outcome { text: format!("{}\n", out.display()), complete });
    };
    let text = text.unwrap_or_else(page);
    if out.as_os_str() == "-" {
        return Ok(Outcome { text, complete });
    }
    write(out, &text, args.force)?;
    Ok(Outcome { text: String::new(), complete })
}

fn write(path: &std::path::Path, text: &str, force: bool) -> Result<(), Failure> {
    let file = match force {
        true => files::create_public(path),
        false => files::create_new_public(path),
    };
    let mut file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{} exists", path.display())).with_hint("--force replaces it")
        }
        _ => Failure::io(path.display(), &e),
    })?;
    file.write_all(text.as_bytes()).map_err(|e| Failure::io(path.display(), &e))
}
