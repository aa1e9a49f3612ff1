//! `forebay bench nbd`: runs the load generator and prints its report.

use std::rc::Rc;

use forebay_nbd::bench::{self, BenchArgs, Cancellation};

use super::outcome::Outcome;
use crate::failure::{ErrorCode, Failure};
use crate::signals::Stop;
use crate::terminal::with_waiting_line;

/// Runs the load. Ctrl-C ends it early, with a report on the requests so far.
pub async fn bench_nbd(args: BenchArgs, stop: &Rc<Stop>) -> Result<Outcome, Failure> {
    let json = args.json;
    let cancellation = Cancellation::new();
    let (stop, cancel) = (stop.clone(), cancellation.clone());
    forebay_rt::spawn(async move {
        stop.asked().await;
        cancel.cancel();
    });
    let what = format!("measuring {}", args.uri);
    let measured = with_waiting_line(&what, false, bench::run(args, &cancellation)).await;
    let report = measured.map_err(|e| Failure::new(ErrorCode::Bench, e))?;
    let text = if json { format!("{}\n", report.to_json()) } else { report.to_string() };
    Ok(Outcome::text(text))
}
