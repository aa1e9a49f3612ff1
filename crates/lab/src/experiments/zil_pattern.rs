//! What does the log device see when one, five or a hundred datasets commit?

use super::common::{figure, say};
use super::{Context, Plan};
use crate::drive::Cell;
use crate::task::{Outcome, Task};
use crate::zil::{Layout, Zil, ZilOutcome};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Series,
    Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "zil-pattern",
    title: "Access pattern at the log device",
    question: "Does one sequential log stream stay sequential, and what do many datasets' chains \
               make of it?",
    method: "One synchronous client a dataset, each commit 1 to many blocks of 8 KiB (geometric, \
             mean 4.55), thinking 0 to 400 µs in between. Chains: each dataset's block names its next \
             one, so that one is allocated before it is known who writes next; all chains share \
             the device and its allocator. Stream: one sequence of frames, each taking all records \
             that wait, four in flight, acknowledged in order. Every write is durable before it \
             completes. A write counts as random when it does not start where the one before ended.",
    devices: &["ddrdrive-x1", "ocz-vertex-2-ex-50gb", "intel-710-200gb", "generic-disk-7200-2tb"],
    cells,
    show,
};

const DATASETS: [u32; 8] = [1, 2, 5, 10, 20, 40, 70, 100];
const LAYOUTS: [(Layout, &str); 2] = [(Layout::Chains, "chains"), (Layout::Stream, "one stream")];
/// Fitted: makes five datasets' chains as random as the talk's table, 39 % in the mean.
const MEAN_BLOCKS: f64 = 4.55;

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        // A disk does a few hundred commits a second; fewer of them say as much.
        let disk = matches!(page.device.media, forebay_flash::MediaSpec::Disk(_));
        let commits = if disk { 3_000 } else { 40_000 };
        for (layout, name) in LAYOUTS {
            for datasets in DATASETS {
                let label = format!("{}, {datasets} datasets, {name}", page.device.name);
                let zil = Zil {
                    device: page.device.clone(),
                    scale: context.scale,
                    seed: context.seed,
                    datasets,
                    layout,
                    block_bytes: 8192,
                    mean_blocks: MEAN_BLOCKS,
                    think_us: 200.0,
                    commits,
                    frames_in_flight: 4,
                };
                cells.push(Cell::new(label, Task::Zil(zil)));
            }
        }
    }
    cells
}

fn line(runs: &[&ZilOutcome], value: fn(&ZilOutcome) -> f64) -> Vec<Point> {
    DATASETS.iter().zip(runs).map(|(n, run)| Point::at(f64::from(*n), value(run))).collect()
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let runs: Vec<&ZilOutcome> = outcomes.iter().map(Outcome::zil).collect();
    let of = |device: usize, layout: usize| -> &[&ZilOutcome] {
        let from = (device * LAYOUTS.len() + layout) * DATASETS.len();
        &runs[from..from + DATASETS.len()]
    };
    let both = |value: fn(&ZilOutcome) -> f64| -> Vec<Series> {
        let mut series = Vec::new();
        for (l, (layout, name)) in LAYOUTS.iter().enumerate() {
            for (d, page) in context.pages.iter().enumerate() {
                series.push(Series {
                    name: format!("{}, {name}", page.device.name),
                    group: page.device.name.clone(),
                    dashed: *layout == Layout::Stream,
                    points: line(of(d, l), value),
                    ..Series::default()
                });
            }
        }
        series
    };
    let x = || Axis::log("Datasets", "");
    let seen =
        "The talk's tables have 0 to 6 % for one dataset and 21 to 71 % (mean 39 %) for five.";
    for (id, title, caption, y, value) in [
        (
            "random",
            "Device writes that do not follow the one before",
            seen,
            Axis::linear("Random", "%"),
            (|z| z.random_percent) as fn(&ZilOutcome) -> f64,
        ),
        (
            "commits",
            "Commits a second, all datasets together",
            "Dashed: one stream.",
            Axis::log("Commits", "1/s"),
            |z| z.commits_s,
        ),
        ("latency", "Mean time to commit", "Dashed: one stream.", Axis::log("Time", "ms"), |z| {
            z.mean_ms
        }),
        (
            "size",
            "Mean size of a device write",
            "Group commit packs what waits into one frame. Dashed: one stream.",
            Axis::linear("Size", "bytes"),
            |z| z.mean_bytes,
        ),
    ] {
        e.charts.push(Chart {
            id: id.into(),
            title: title.into(),
            caption: caption.into(),
            kind: ChartKind::Line,
            x: x(),
            y,
            series: both(value),
            ..Chart::default()
        });
    }
    for (d, page) in context.pages.iter().enumerate() {
        let (chains, stream) = (of(d, 0), of(d, 1));
        let last = DATASETS.len() - 1;
        say(
            e,
            Basis::Predicted,
            format!(
                "{}: a hundred datasets commit {} times a second in chains ({} % random) and {} \
                 times in one stream ({} % random).",
                page.device.name,
                figure(chains[last].commits_s),
                figure(chains[last].random_percent),
                figure(stream[last].commits_s),
                figure(stream[last].random_percent),
            ),
        );
        let worst = stream.iter().map(|z| z.random_percent).fold(0.0, f64::max);
        e.checks.push(Check::relative(
            format!("{}: sequential share of one stream, any number of datasets", page.device.name),
            "%",
            (100.0, 100.0 - worst),
            0.01,
            Basis::Predicted,
            "design: at least 99 % with 100 datasets",
        ));
    }
    if context.chosen {
        return;
    }
    // The talk's tables were taken on a DRAM device.
    let five = of(0, 0)[2];
    e.checks.push(Check::relative(
        "Random share of five datasets' chains",
        "%",
        (39.0, five.random_percent),
        0.10,
        Basis::Fitted,
        "iopattern table of the 2010 talk, mean of twenty intervals",
    ));
    e.checks.push(Check::relative(
        "Random share of one dataset's chain",
        "%",
        (0.0, of(0, 0)[0].random_percent),
        6.0,
        Basis::Predicted,
        "iopattern table of the 2010 talk: 0 to 6 %",
    ));
    let zero = five.zero_seeks as f64;
    let all = zero + five.seeks.iter().map(|(_, ahead, back)| ahead + back).sum::<u64>() as f64;
    e.checks.push(Check::relative(
        "Share of zero-length seeks with five datasets",
        "%",
        (158_590.0 / 268_630.0 * 100.0, zero / all * 100.0),
        0.10,
        Basis::Fitted,
        "seeksize table of the 2010 talk (follows from the random share)",
    ));
    e.tables.push(seek_table(of(0, 0)[0], five));
}

fn seek_table(one: &ZilOutcome, five: &ZilOutcome) -> Table {
    let mut buckets: Vec<u64> =
        one.seeks.iter().chain(&five.seeks).map(|(bucket, ..)| *bucket).collect();
    buckets.sort_unstable();
    buckets.dedup();
    let count = |run: &ZilOutcome, bucket: u64| {
        run.seeks.iter().find(|s| s.0 == bucket).map_or((0, 0), |s| (s.1, s.2))
    };
    let mut rows = vec![vec![
        TableCell::text("0"),
        TableCell::number(one.zero_seeks as f64),
        TableCell::number(0.0),
        TableCell::number(five.zero_seeks as f64),
        TableCell::number(0.0),
    ]];
    for bucket in buckets {
        let ((a, b), (c, d)) = (count(one, bucket), count(five, bucket));
        let mut row = vec![TableCell::text(bucket.to_string())];
        row.extend([a, b, c, d].map(|n| TableCell::number(n as f64)));
        rows.push(row);
    }
    Table {
        id: "seeks".into(),
        title: "Seeks at the log device, chains, as seeksize counts them".into(),
        caption: "Distance from the end of one write to the start of the next; each row holds \
                  distances from its own up to twice as far."
            .into(),
        columns: vec![
            Column::with_unit("Distance", "sectors"),
            Column::new("one dataset, ahead"),
            Column::new("one dataset, back"),
            Column::new("five datasets, ahead"),
            Column::new("five datasets, back"),
        ],
        rows,
    }
}
