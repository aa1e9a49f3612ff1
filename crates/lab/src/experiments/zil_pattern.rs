//! Experiment `zil-pattern`: the access pattern at the log device, for one to a hundred datasets.

use super::common::{figure, say};
use super::{Context, Plan};
use crate::drive::Cell;
use crate::task::{Outcome, Task};
use crate::zil::{LogLayout, Zil, ZilOutcome};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Series,
    Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "zil-pattern",
    title: "Access pattern at the log device",
    question: "Does one log stream stay sequential, and how sequential are the chains of many \
               datasets?",
    method: "One synchronous client a dataset. A commit is one or more blocks of 8 KiB \
             (geometric, mean 4.55); a client thinks 0 to 400 µs between commits. Chains: each \
             dataset's block names its next block, so the next block is allocated before the next \
             writer is known; all chains share the device and its allocator. Stream: one sequence \
             of frames; a frame takes all waiting records; four frames are in flight, acknowledged \
             in order. Every write is durable before it completes. A write counts as random when \
             it does not start where the write before ended.",
    devices: &["ddrdrive-x1", "ocz-vertex-2-ex-50gb", "intel-710-200gb", "generic-disk-7200-2tb"],
    cells,
    show,
};

const DATASETS: [u32; 8] = [1, 2, 5, 10, 20, 40, 70, 100];
const LAYOUTS: [(LogLayout, &str); 2] =
    [(LogLayout::Chains, "chains"), (LogLayout::Stream, "one stream")];
/// Fitted: makes five datasets' chains as random as the talk's table, 39 % in the mean.
const MEAN_BLOCKS: f64 = 4.55;

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        // A disk does a few hundred commits a second: fewer commits give the same means.
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

/// Runs of one device in one layout, by number of datasets.
fn runs_of<'a>(runs: &'a [&'a ZilOutcome], device: usize, layout: usize) -> &'a [&'a ZilOutcome] {
    let from = (device * LAYOUTS.len() + layout) * DATASETS.len();
    &runs[from..from + DATASETS.len()]
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let runs: Vec<&ZilOutcome> = outcomes.iter().map(Outcome::zil).collect();
    charts(context, &runs, e);
    for (d, page) in context.pages.iter().enumerate() {
        compare_layouts(&page.device.name, runs_of(&runs, d, 0), runs_of(&runs, d, 1), e);
    }
    if !context.chosen {
        // The talk's tables were taken on a DRAM device, the first of the list.
        against_talk(runs_of(&runs, 0, 0), e);
    }
}

/// What a chart shows of each run: identifier, title, caption, axis, value.
type Measure = (&'static str, &'static str, &'static str, Axis, fn(&ZilOutcome) -> f64);

fn measures() -> [Measure; 4] {
    let seen =
        "The talk's tables have 0 to 6 % for one dataset and 21 to 71 % (mean 39 %) for five.";
    [
        (
            "random",
            "Device writes that do not follow the write before",
            seen,
            Axis::linear("Random", "%"),
            |z| z.random_percent,
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
            "Group commit packs the waiting records into one frame. Dashed: one stream.",
            Axis::linear("Size", "bytes"),
            |z| z.mean_bytes,
        ),
    ]
}

fn charts(context: &Context, runs: &[&ZilOutcome], e: &mut Experiment) {
    for (id, title, caption, y, value) in measures() {
        let mut series = Vec::new();
        for (l, (layout, name)) in LAYOUTS.iter().enumerate() {
            for (d, page) in context.pages.iter().enumerate() {
                series.push(Series {
                    name: format!("{}, {name}", page.device.name),
                    group: page.device.name.clone(),
                    dashed: *layout == LogLayout::Stream,
                    points: line(runs_of(runs, d, l), value),
                    ..Series::default()
                });
            }
        }
        e.charts.push(Chart {
            id: id.into(),
            title: title.into(),
            caption: caption.into(),
            kind: ChartKind::Line,
            x: Axis::log("Datasets", ""),
            y,
            series,
            ..Chart::default()
        });
    }
}

fn compare_layouts(name: &str, chains: &[&ZilOutcome], stream: &[&ZilOutcome], e: &mut Experiment) {
    let last = DATASETS.len() - 1;
    say(
        e,
        Basis::Predicted,
        format!(
            "{name}: a hundred datasets commit {} times a second in chains ({} % random) and {} \
             times in one stream ({} % random).",
            figure(chains[last].commits_s),
            figure(chains[last].random_percent),
            figure(stream[last].commits_s),
            figure(stream[last].random_percent),
        ),
    );
    let worst = stream.iter().map(|z| z.random_percent).fold(0.0, f64::max);
    e.checks.push(Check::relative(
        format!("{name}: sequential share of one stream, any number of datasets"),
        "%",
        (100.0, 100.0 - worst),
        0.01,
        Basis::Predicted,
        "design: at least 99 % with 100 datasets",
    ));
}

/// Random share and seeks of chains against the tables of the 2010 talk.
fn against_talk(chains: &[&ZilOutcome], e: &mut Experiment) {
    let (one, five) = (chains[0], chains[2]);
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
        (0.0, one.random_percent),
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
    e.tables.push(seek_table(one, five));
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
