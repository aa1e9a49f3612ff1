//! Stages of published procedures: the rate over time, and a table of its turning points.

use forebay_report::{Axis, Band, Cell, Column, Experiment, Point, Role, Series, Table};

use super::{Shown, chart, experiment, said};
use crate::detect::whole;
use crate::{Outcome, Pattern, Stage, StepKind};

/// Patterns and alignments in the order of the charts.
const LOADS: [(Pattern, bool); 6] = [
    (Pattern::Sequential, true),
    (Pattern::Mixed, true),
    (Pattern::Random, true),
    (Pattern::Sequential, false),
    (Pattern::Mixed, false),
    (Pattern::Random, false),
];

/// The charts of all loads that were measured.
pub(super) fn stages(shown: &[Shown<'_>]) -> Experiment {
    let question = "How does the rate of writes change with use, and does rest bring it back?";
    let mut e = experiment(shown, "procedure", "Writes by the published procedure", question);
    e.method =
        "4 KiB writes of pseudo-random data on a device that was discarded first. The first \
                point is the first second, each later one the mean of a minute."
            .to_owned();
    let mut rows = Vec::new();
    for (pattern, is_aligned) in LOADS {
        let grid = if is_aligned { "on the 4 KiB grid" } else { "512 bytes beside it" };
        let title = format!("4 KiB writes, {}, {grid}", pattern.name());
        let id = title.to_lowercase().replace([' ', ','], "-");
        let mut lines = chart(&e, &id, &title, "");
        lines.x = Axis::linear("Time", "min");
        lines.y = Axis::linear("Writes", "1/s");
        for of in shown {
            let stage = |stage| {
                let kind = StepKind::Procedure { pattern, is_aligned, stage };
                whole(&of.run.outcomes, kind)
            };
            let (Some(first), Some(fresh)) = (stage(Stage::FirstSecond), stage(Stage::Fresh))
            else {
                continue;
            };
            let rested = stage(Stage::Rested);
            let shrink = f64::from(of.run.plan.shrink);
            let fresh_min = minutes(fresh, shrink);
            let mut points: Vec<Point> =
                rate(first).map(|rate| Point::at(0.0, rate)).into_iter().collect();
            points.extend(samples(fresh, 0.0, shrink));
            if let Some(rested) = rested {
                // The rest lasts as long as the load before it: a gap, and no rise of the rate.
                points.push(Point { y: None, ..Point::at(fresh_min, 0.0) });
                points.extend(samples(rested, 2.0 * fresh_min, shrink));
                if lines.bands.is_empty() {
                    let (from, to) = (fresh_min, 2.0 * fresh_min);
                    lines.bands.push(Band { from, to, label: "rest".to_owned() });
                }
            }
            let role = if of.is_model() { Role::Simulated } else { Role::Measured };
            let (name, group) = (of.name.clone(), of.name.clone());
            lines.series.push(Series { name, group, role, dashed: false, points });
            let name = said(shown, of, &format!("{}, {grid}", pattern.name()));
            rows.push(row(name, first, fresh, rested));
            if (pattern, is_aligned) == (Pattern::Random, true) {
                let text = turning_text(first, fresh, rested);
                e.findings.push(of.finding(said(shown, of, &text)));
            }
        }
        if !lines.series.is_empty() {
            e.charts.push(lines);
        }
    }
    if !rows.is_empty() {
        e.tables.push(table(rows));
    }
    e
}

/// Writes a second; unknown where the load ended before its first write did.
fn rate(outcome: &Outcome) -> Option<f64> {
    (outcome.measured.requests > 0).then(|| outcome.measured.iops())
}

/// How long a stage is meant to last, in minutes of the procedure.
fn minutes(outcome: &Outcome, shrink: f64) -> f64 {
    outcome.job.limit_ns as f64 * shrink / 60e9
}

fn samples(outcome: &Outcome, from_min: f64, shrink: f64) -> impl Iterator<Item = Point> {
    let samples = outcome.measured.samples.iter();
    samples.map(move |s| Point::at(from_min + s.at_s * shrink / 60.0, s.iops))
}

/// Random writes in a sentence.
fn turning_text(first: &Outcome, fresh: &Outcome, rested: Option<&Outcome>) -> String {
    let last = |o: &Outcome| o.measured.samples.last().map_or(0.0, |s| s.iops);
    let at_first = rate(first).map_or("unknown".to_owned(), |rate| format!("{rate:.0}"));
    let at_last = last(fresh);
    let rested =
        rested.map(last).map(|rate| format!(", {rate:.0} in the last minute behind a rest"));
    let rested = rested.unwrap_or_default();
    format!(
        "random writes a second: {at_first} in the first second, {at_last:.0} in the load's \
         last minute{rested}"
    )
}

fn row(name: String, first: &Outcome, fresh: &Outcome, rested: Option<&Outcome>) -> Vec<Cell> {
    let last = |o: &Outcome| o.measured.samples.last().map(|s| s.iops);
    let begin = |o: &Outcome| o.measured.samples.first().map(|s| s.iops);
    let end = rested.unwrap_or(fresh);
    vec![
        Cell::text(name),
        Cell::maybe(rate(first)),
        Cell::maybe(last(fresh)),
        Cell::maybe(rested.and_then(begin)),
        Cell::maybe(rested.and_then(last)),
        Cell::number(end.measured.latency.mean_ns / 1e6),
        Cell::number(end.measured.latency.max_ns as f64 / 1e6),
    ]
}

fn table(rows: Vec<Vec<Cell>>) -> Table {
    Table {
        id: "turning-points".to_owned(),
        title: "Writes a second at the turning points".to_owned(),
        caption: "Mean and longest response are of the last stage.".to_owned(),
        columns: vec![
            Column::new("Load"),
            Column::with_unit("First second", "1/s"),
            Column::with_unit("Last minute before the rest", "1/s"),
            Column::with_unit("First minute after it", "1/s"),
            Column::with_unit("Last minute", "1/s"),
            Column::with_unit("Mean response", "ms"),
            Column::with_unit("Longest response", "ms"),
        ],
        rows,
    }
}
