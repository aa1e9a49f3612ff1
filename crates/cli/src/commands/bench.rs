//! `forebay bench nbd`.

use std::rc::Rc;

use forebay_nbd::bench::{self, BenchArgs};

use super::Outcome;
use crate::failure::Failure;
use crate::signals::Stop;
use crate::terminal::patiently;

/// Runs the load; Ctrl-C ends it early, with the figures so far.
pub async fn bench_nbd(args: BenchArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let json = args.json;
    let ended = bench::Stop::new();
    let (asked, tell) = (stop.clone(), ended.clone());
    forebay_rt::spawn(async move {
        asked.asked().await;
        tell.ask();
    });
    let what = format!("measuring {}", args.uri);
    let measured = patiently(&what, false, bench::run(args, &ended)).await;
    let report = measured.map_err(|e| Failure::new(e.to_string()))?;
    let text = if json { format!("{}\n", report.to_json()) } else { report.to_string() };
    Ok(Outcome::text(text))
}
