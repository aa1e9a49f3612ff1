//! The comparison of engines of 2013 on the page: rates by queue depth, clients, wear.

use forebay_report::{Axis, Cell, Chart, Column, Experiment, Point, Role, Series, Table};

use super::{Shown, chart, experiment, said};
use crate::detect::whole;
use crate::procedure::{ENGINE_DEPTHS, ENGINE_SIZES, ENGINE_WEAR_DEPTH};
use crate::{Outcome, Procedure, StepKind};

/// Requests a second of one client, as the comparison counts them.
const CLIENT_IOPS: f64 = 100.0;

/// One chapter; empty without such a run.
pub(super) fn engines(shown: &[Shown<'_>]) -> Experiment {
    let question = "What does it do at rising queue depths, and what do the devices below do then?";
    let mut e = experiment(shown, "engines", "Fill, random reads, random writes", question);
    e.method = "Filled in order once, then a minute each of random requests.".to_owned();
    let by_depth = |e: &Experiment, id: &str, title: &str| {
        let mut lines = chart(e, id, title, "");
        lines.x = Axis::log("Requests in flight", "");
        lines.y = Axis::log("Requests", "1/s");
        lines
    };
    let mut fill = chart(&e, "fill", "Fill in order", "");
    (fill.x, fill.y) = (Axis::linear("Time", "s"), Axis::linear("Throughput", "MB/s"));
    let mut reads = by_depth(&e, "reads", "Random 4 KiB reads");
    let mut writes = by_depth(&e, "writes", "Random 4 KiB writes");
    let (mut clients, mut wear) = (Vec::new(), Vec::new());
    for of in shown.iter().filter(|of| of.run.plan.procedure == Some(Procedure::Ess2013)) {
        let role = if of.is_model() { Role::Simulated } else { Role::Measured };
        let add = |into: &mut Chart, points: Vec<Point>| {
            let (name, group) = (of.name.clone(), of.name.clone());
            into.series.push(Series { name, group, role, dashed: false, points });
        };
        if let Some(outcome) = whole(&of.run.outcomes, StepKind::Fill) {
            let mb = f64::from(outcome.job.block_bytes) / 1e6;
            let samples = outcome.measured.samples.iter();
            add(&mut fill, samples.map(|s| Point::at(s.at_s, s.iops * mb)).collect());
        }
        let read_kind = |queue_depth| StepKind::Reads { queue_depth };
        let write_kind = |queue_depth| StepKind::Writes { block_bytes: 4096, queue_depth };
        add(&mut reads, points(of, &read_kind));
        add(&mut writes, points(of, &write_kind));
        clients.extend(ENGINE_DEPTHS.iter().filter_map(|&queue_depth| {
            let rate = |kind| Some(whole(&of.run.outcomes, kind)?.measured.iops());
            let (read, write) = (rate(read_kind(queue_depth)), rate(write_kind(queue_depth)));
            read.or(write)?;
            Some(vec![
                Cell::text(said(shown, of, &queue_depth.to_string())),
                Cell::maybe(read),
                Cell::maybe(write),
                Cell::maybe(write.map(|write| (write / CLIENT_IOPS).floor())),
            ])
        }));
        e.findings.extend(summary_text(of).map(|text| of.finding(said(shown, of, &text))));
        for block_bytes in ENGINE_SIZES {
            let kind = StepKind::Writes { block_bytes, queue_depth: ENGINE_WEAR_DEPTH };
            let Some(outcome) = whole(&of.run.outcomes, kind) else { continue };
            let size = forebay_units::format_bytes(u64::from(block_bytes));
            wear.push(wear_row(said(shown, of, &size), outcome));
        }
    }
    for lines in [fill, reads, writes] {
        if lines.series.iter().any(|series| !series.points.is_empty()) {
            e.charts.push(lines);
        }
    }
    e.tables.extend([clients_table(clients), wear_table(wear)]);
    e.tables.retain(|table| !table.rows.is_empty());
    e
}

/// Random 4 KiB writes in a sentence.
fn summary_text(of: &Shown<'_>) -> Option<String> {
    let at = |queue_depth| {
        let kind = StepKind::Writes { block_bytes: 4096, queue_depth };
        whole(&of.run.outcomes, kind)
    };
    let known = ENGINE_DEPTHS.iter().filter_map(|&depth| Some((depth, at(depth)?)));
    let rates: Vec<String> =
        known.map(|(depth, o)| format!("{:.0} at QD{depth}", o.measured.iops())).collect();
    if rates.is_empty() {
        return None;
    }
    let mut text = format!("random 4 KiB writes a second: {}", rates.join(", "));
    let wear = at(ENGINE_WEAR_DEPTH).filter(|o| o.measured.written_bytes > 0);
    if let Some((outcome, below)) = wear.and_then(|o| Some((o, o.below?))) {
        let wear = below.written_bytes as f64 / outcome.measured.written_bytes as f64;
        text.push_str(&format!("; {wear:.2} bytes written below for each byte"));
    }
    Some(text)
}

fn points(of: &Shown<'_>, kind: &dyn Fn(u32) -> StepKind) -> Vec<Point> {
    let at = |&queue_depth: &u32| {
        let outcome = whole(&of.run.outcomes, kind(queue_depth))?;
        Some(Point::at(f64::from(queue_depth), outcome.measured.iops()))
    };
    ENGINE_DEPTHS.iter().filter_map(at).collect()
}

fn clients_table(rows: Vec<Vec<Cell>>) -> Table {
    Table {
        id: "clients".to_owned(),
        title: "Random 4 KiB requests by queue depth".to_owned(),
        caption: "Clients of 100 writes a second each.".to_owned(),
        columns: vec![
            Column::new("In flight"),
            Column::with_unit("Reads", "1/s"),
            Column::with_unit("Writes", "1/s"),
            Column::new("Clients"),
        ],
        rows,
    }
}

fn wear_row(name: String, outcome: &Outcome) -> Vec<Cell> {
    let seconds = outcome.measured.seconds.max(1e-9);
    let per_second = |bytes: u64| bytes as f64 / seconds / 1e6;
    let host = outcome.measured.written_bytes;
    let below = outcome.below;
    let wear = below.filter(|_| host > 0).map(|b| b.written_bytes as f64 / host as f64);
    vec![
        Cell::text(name),
        Cell::number(per_second(host)),
        Cell::maybe(below.map(|b| per_second(b.read_bytes))),
        Cell::maybe(below.map(|b| per_second(b.written_bytes))),
        Cell::maybe(wear),
    ]
}

fn wear_table(rows: Vec<Vec<Cell>>) -> Table {
    Table {
        id: "wear".to_owned(),
        title: format!("Random writes with {ENGINE_WEAR_DEPTH} in flight, and the devices below"),
        caption: "At the devices' interface, from the kernel's counters, while the step ran. What \
                  is still in memory at its end falls into the next one."
            .to_owned(),
        columns: vec![
            Column::new("Size"),
            Column::with_unit("Usable", "MB/s"),
            Column::with_unit("Device reads", "MB/s"),
            Column::with_unit("Device writes", "MB/s"),
            Column::new("Written below / written"),
        ],
        rows,
    }
}
