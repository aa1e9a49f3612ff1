//! SNIA's tests on the page: write saturation, IOPS by mix and size, latency.

use forebay_report::{Axis, Cell, Column, Experiment, Point, Role, Series, Table};

use super::{Shown, chart, experiment, said};
use crate::detect::whole;
use crate::matrix::{PtsTest, pts_steadiness, rounds};
use crate::steady::WINDOW_ROUNDS;
use crate::{MixCell, StepKind};

/// All chapters; one without a step is empty.
pub(super) fn experiments(shown: &[Shown<'_>]) -> Vec<Experiment> {
    vec![saturation(shown), matrix(shown, PtsTest::Iops), matrix(shown, PtsTest::Latency)]
}

fn line(of: &Shown<'_>, name: String, points: Vec<Point>) -> Series {
    let role = if of.is_model() { Role::Simulated } else { Role::Measured };
    Series { name, group: of.name.clone(), role, dashed: false, points }
}

fn saturation(shown: &[Shown<'_>]) -> Experiment {
    let question = "How does the rate of random writes fall, from a discarded device on?";
    let mut e = experiment(shown, "saturation", "Write saturation", question);
    e.method = "Random 4 KiB writes, 32 in flight, until four times the capacity is written or a \
                day is over."
        .to_owned();
    let mut over = chart(&e, "capacities", "Rate of random 4 KiB writes by capacities written", "");
    over.x = Axis::linear("Written", "× capacity");
    over.y = Axis::linear("Writes", "1/s");
    for of in shown {
        let Some(outcome) = whole(&of.run.outcomes, StepKind::Saturation) else { continue };
        let capacity = of.run.plan.span_bytes as f64;
        let (mut written, mut before_s) = (0.0, 0.0);
        let point = |sample: &crate::Sample| {
            written += sample.iops * (sample.at_s - before_s) * 4096.0;
            before_s = sample.at_s;
            Point::at(written / capacity, sample.iops)
        };
        let points: Vec<Point> = outcome.measured.samples.iter().map(point).collect();
        if !points.is_empty() {
            over.series.push(line(of, of.name.clone(), points));
        }
        let times = outcome.measured.written_bytes as f64 / capacity;
        let text = format!("{times:.2} times the capacity was written");
        e.findings.push(of.finding(said(shown, of, &text)));
    }
    if !over.series.is_empty() {
        e.charts.push(over);
    }
    e
}

/// The mean over the last window of rounds.
fn mean(window: &[&[MixCell]], at: (u8, u32), value: impl Fn(&MixCell) -> f64) -> Option<f64> {
    let cells = window
        .iter()
        .filter_map(|cells| cells.iter().find(|cell| (cell.read_percent, cell.block_bytes) == at));
    let values: Vec<f64> = cells.map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn matrix(shown: &[Shown<'_>], test: PtsTest) -> Experiment {
    let (id, title, question) = match test {
        PtsTest::Iops => ("pts-iops", "IOPS by mix and size", "What does it do of each mix?"),
        PtsTest::Latency => ("pts-latency", "Latency by mix and size", "How long does one take?"),
    };
    let mut e = experiment(shown, id, title, question);
    let depth = test.queue_depth();
    e.method = format!(
        "The device is discarded and written twice in order; then rounds of each mix and size for \
         a minute, {depth} in flight, until 4 KiB writes are steady over five rounds, or 25 \
         rounds. The table has the mean of the last five."
    );
    let mut over = chart(&e, "rounds", "Writes alone, by round", "");
    over.x = Axis::linear("Round", "");
    over.y = match test {
        PtsTest::Iops => Axis::log("Writes", "1/s"),
        PtsTest::Latency => Axis::log("Mean response", "µs"),
    };
    for of in shown {
        let all: Vec<&[MixCell]> =
            rounds(&of.run.outcomes, test).map(|o| o.cells.as_slice()).collect();
        if all.is_empty() {
            continue;
        }
        let figure = |cell: &MixCell| match test {
            PtsTest::Iops => cell.iops,
            PtsTest::Latency => cell.latency.mean_ns / 1e3,
        };
        for &size in test.sizes() {
            let at = |(round, cells): (usize, &&[MixCell])| {
                let cell = cells.iter().find(|c| (c.read_percent, c.block_bytes) == (0, size))?;
                Some(Point::at(round as f64 + 1.0, figure(cell)))
            };
            let points: Vec<Point> = all.iter().enumerate().filter_map(at).collect();
            if !points.is_empty() {
                let name = said(shown, of, &forebay_units::format_bytes(u64::from(size)));
                over.series.push(line(of, name, points));
            }
        }
        let steady = pts_steadiness(&of.run.outcomes, test);
        let word = match steady {
            Some(steady) if steady.is_reached => "reached",
            _ => "not reached",
        };
        let count = all.len();
        let text = format!("steady state {word} after {count} rounds");
        e.findings.push(of.finding(said(shown, of, &text)));
        let window = &all[count.saturating_sub(WINDOW_ROUNDS)..];
        e.tables.extend(tables(shown, of, test, window));
    }
    if !over.series.is_empty() {
        e.charts.push(over);
    }
    e
}

/// An id that no other run's table has.
fn table_id(shown: &[Shown<'_>], of: &Shown<'_>, id: &str) -> String {
    let at = shown.iter().position(|other| other.name == of.name).unwrap_or(0);
    if at == 0 { id.to_owned() } else { format!("{id}-{}", at + 1) }
}

/// Sizes down, mixes across.
fn tables(shown: &[Shown<'_>], of: &Shown<'_>, test: PtsTest, window: &[&[MixCell]]) -> Vec<Table> {
    let mut columns = vec![Column::new("Size")];
    let unit = if test == PtsTest::Iops { "1/s" } else { "µs" };
    let mix = |percent: &u8| Column::with_unit(&format!("{percent}/{} R/W", 100 - percent), unit);
    columns.extend(test.read_percents().iter().map(mix));
    let table = |id: &str, title: &str, value: &dyn Fn(&MixCell) -> f64| {
        let row = |&size: &u32| {
            let mut row = vec![Cell::text(forebay_units::format_bytes(u64::from(size)))];
            let cell = |percent: &u8| Cell::maybe(mean(window, (*percent, size), value));
            row.extend(test.read_percents().iter().map(cell));
            row
        };
        Table {
            id: table_id(shown, of, id),
            title: said(shown, of, title),
            caption: "Mean of the last five rounds.".to_owned(),
            columns: columns.clone(),
            rows: test.sizes().iter().map(row).collect(),
        }
    };
    match test {
        PtsTest::Iops => vec![table("iops", "Requests a second", &|cell| cell.iops)],
        PtsTest::Latency => vec![
            table("mean", "Mean response", &|cell| cell.latency.mean_ns / 1e3),
            table("longest", "Longest response", &|cell| cell.latency.max_ns as f64 / 1e3),
        ],
    }
}
