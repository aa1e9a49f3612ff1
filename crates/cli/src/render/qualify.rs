//! A qualification as text.

use forebay_qualify::{Finding, Qualification, Reason, Sign, StepKind, Verdict};

use super::table::{Column, Table};
use crate::escape::visible;

/// Verdict and reasons, detectors, durable writes.
#[must_use]
pub fn qualification_text(run: &Qualification, verdict: &Verdict, found: &[Finding]) -> String {
    let (conditions, plan) = (&run.conditions, &run.plan);
    let mut text = format!("device       {}\n", visible(&conditions.label()));
    let (answer, purpose) = (verdict.answer.name(), plan.purpose.name());
    match plan.procedure {
        Some(procedure) => text.push_str(&format!("procedure    {}\n", procedure.name())),
        None => text.push_str(&format!("verdict      {answer}, as a log device for {purpose}\n")),
    }
    for reason in &verdict.reasons {
        let (word, reason) = match reason {
            Reason::Against(text) => ("against", text),
            Reason::Open(text) => ("open", text),
            Reason::For(text) => ("for", text),
            Reason::Note(text) => ("note", text),
        };
        text.push_str(&format!("  {word:<11}{}\n", visible(reason)));
    }
    if !plan.read_only && plan.procedure.is_none() {
        text.push_str("\ndetectors\n");
        for finding in found {
            let sign = match finding.sign {
                Sign::Hit => "yes",
                Sign::Clear => "no",
                Sign::Open => "not known",
            };
            let name = finding.detector.name();
            text.push_str(&format!("  {name:<20} {sign:<10}{}\n", visible(&finding.text)));
        }
    }
    text.push_str(&latencies(run));
    text
}

/// One line a load: rate and percentiles in microseconds.
fn latencies(run: &Qualification) -> String {
    let mut columns = vec![Column::left("LOAD"), Column::right("PER SECOND")];
    columns.extend(["P50", "P99", "P99.9", "P99.99", "P99.999", "MAX"].map(Column::right));
    let mut table = Table::new(&columns);
    let mut is_empty = true;
    for outcome in &run.outcomes {
        let is_shown = match outcome.kind {
            StepKind::SyncWrites { .. } | StepKind::Reads { .. } => true,
            StepKind::Procedure { .. } | StepKind::Saturation | StepKind::Writes { .. } => true,
            StepKind::MixedReads { .. } => run.plan.procedure.is_some(),
            _ => false,
        };
        if !is_shown {
            continue;
        }
        let latency = &outcome.measured.latency;
        let micros = |ns: Option<u64>| {
            ns.map_or_else(|| "-".to_owned(), |ns| format!("{:.0}", ns as f64 / 1e3))
        };
        let title = forebay_qualify::Step { kind: outcome.kind, job: outcome.job }.title();
        // A load that ended before its first request did has no rate.
        let rate = match outcome.measured.requests {
            0 => "-".to_owned(),
            _ => format!("{:.0}", outcome.measured.iops()),
        };
        let mut row = vec![title, rate];
        let shown = [latency.p50_ns, latency.p99_ns, latency.p999_ns];
        row.extend(shown.map(micros));
        let max_ns = (outcome.measured.requests > 0).then_some(latency.max_ns);
        row.extend([latency.p9999_ns, latency.p99999_ns, max_ns].map(micros));
        table.push(row);
        is_empty = false;
    }
    if is_empty { String::new() } else { format!("\nmicroseconds\n{}", table.render(false)) }
}
