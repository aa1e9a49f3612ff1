//! Experiment `mixed`: the 2015 review's two sweeps from pure reads to pure writes, with power.

use super::common::{figure, over_names, response_table, say};
use super::procedures;
use super::{Context, Plan};
use crate::bench::Sample;
use crate::drive::Cell;
use crate::load::Load;
use crate::task::Outcome;
use crate::timeline::{Phase, mean};
use forebay_report::{Axis, Basis, Chart, ChartKind, Experiment, Point, Series, Table};

pub(super) const PLAN: Plan = Plan {
    id: "mixed",
    title: "Reads among writes",
    question: "What do throughput and power do between pure reads and pure writes?",
    method: "A drive filled once with 128 KiB sequential data; then 4 KiB random at queue depth 3 \
             over 16 GB, and 128 KiB sequential at queue depth 1 over the whole drive, at read \
             shares of 100, 80, 60, 40, 20 and 0 percent, three minutes each. Power figures of the \
             models are assumptions, so that power shows the shape, not the height.",
    devices: &[
        "samsung-850-pro-256gb",
        "samsung-sm951-512gb",
        "sandisk-extreme-pro-480gb",
        "ocz-vector-180-480gb",
        "samsung-830-128gb",
        "ddrdrive-x1",
    ],
    small: &["samsung-850-pro-256gb", "ddrdrive-x1"],
    cells,
    show,
};

const READ_PERCENT: [u32; 6] = [100, 80, 60, 40, 20, 0];
const MINUTES: f64 = 3.0;

fn load(random: bool, percent: u32) -> Load {
    let read_share = f64::from(percent) / 100.0;
    if random {
        let span_bytes = 16_000_000_000;
        Load { read_share, random_share: 1.0, outstanding: 3, span_bytes, ..Load::default() }
    } else {
        Load { read_share, outstanding: 1, block_bytes: 128 << 10, ..Load::default() }
    }
}

const SWEEPS: [(bool, &str); 2] = [
    (true, "4 KiB random, queue depth 3, 16 GB span"),
    (false, "128 KiB sequential, queue depth 1, whole drive"),
];

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        for (random, name) in SWEEPS {
            let mut phases = vec![Phase::SecureErase, Phase::Fill { block_bytes: 128 << 10 }];
            phases.extend(
                READ_PERCENT.map(|percent| Phase::Load {
                    minutes: MINUTES,
                    pattern: load(random, percent),
                }),
            );
            let label = format!("{}, {name}", page.device.name);
            cells.push(Cell::new(label, procedures::timeline(context, page, phases)));
        }
    }
    cells
}

/// Response times of each device at each mix.
fn times(runs: &[(&str, Vec<Sample>)]) -> Option<Table> {
    let rows = runs.iter().flat_map(|(name, points)| {
        let points = READ_PERCENT.iter().zip(points);
        points.map(move |(percent, s)| (format!("{name}, {percent} % reads"), s.responses))
    });
    response_table("Over the three minutes of each mix.", rows)
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    for (s, (random, sweep)) in SWEEPS.iter().enumerate() {
        let runs: Vec<(&str, Vec<Sample>)> = context
            .pages
            .iter()
            .enumerate()
            .map(|(i, page)| {
                let run = outcomes[i * SWEEPS.len() + s].timeline();
                let points = run.phases.iter().filter(|p| p.whole.is_some());
                let points = points.map(|p| Sample {
                    responses: p.whole.map(|whole| whole.responses).unwrap_or_default(),
                    ..mean(&p.samples.iter().collect::<Vec<_>>())
                });
                (page.device.name.as_str(), points.collect())
            })
            .collect();
        let id = if *random { "random" } else { "sequential" };
        for (what, unit, value) in [
            ("throughput", "MB/s", (|s| s.mib_s * 1.048_576) as fn(&Sample) -> f64),
            ("power", "W", |s| s.power_w),
        ] {
            let average = |points: &[Sample]| {
                points.iter().map(value).sum::<f64>() / points.len().max(1) as f64
            };
            e.charts.push(Chart {
                id: format!("{id}-{what}-mean"),
                title: format!("{sweep}: mean {what} over the six mixes"),
                kind: ChartKind::Row,
                x: Axis::linear("Device", ""),
                y: Axis::linear(what, unit),
                series: vec![over_names(
                    &format!("mean {what}"),
                    runs.iter().map(|(name, points)| (*name, Some(average(points)))),
                )],
                responses: times(&runs).filter(|_| unit == "MB/s"),
                ..Chart::default()
            });
            let series = runs.iter().map(|(name, points)| {
                let points = READ_PERCENT.iter().zip(points);
                let points =
                    points.map(|(percent, s)| Point::at(f64::from(100 - percent), value(s)));
                Series { name: (*name).into(), points: points.collect(), ..Series::default() }
            });
            e.charts.push(Chart {
                id: format!("{id}-{what}"),
                title: format!("{sweep}: {what} at each mix"),
                kind: ChartKind::Line,
                x: Axis::linear("Share of writes", "%"),
                y: Axis::linear(what, unit),
                series: series.collect(),
                responses: times(&runs).filter(|_| unit == "MB/s"),
                ..Chart::default()
            });
        }
        for (name, points) in runs.iter().filter(|_| *random) {
            let worst = points.iter().map(|s| s.iops).fold(f64::MAX, f64::min);
            let (reads, writes) = (points[0].iops, points[points.len() - 1].iops);
            say(
                e,
                Basis::Predicted,
                format!(
                    "{name}: {} random reads a second alone, {} writes alone, {} at the worst mix.",
                    figure(reads),
                    figure(writes),
                    figure(worst)
                ),
            );
        }
    }
}
