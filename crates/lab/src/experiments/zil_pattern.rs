//! Experiment `zil-pattern`: the access pattern at the log device, for one to a hundred datasets.

use super::common::{figure, response_table, say};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::responses::Responses;
use crate::task::{Outcome, Task};
use crate::zil::{ChainRules, LogLayout, Pattern, Zil, ZilOutcome};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Role,
    Series, Table,
};
use measured::{Measured, TALK, TRACE_SOURCE, TRACES};

mod measured;

pub(super) const PLAN: Plan = Plan {
    id: "zil-pattern",
    title: "Access pattern at the log device",
    question: "Does one log stream stay sequential, and how sequential are the chains of many \
               datasets?",
    method: "One synchronous client a dataset, which writes its file or volume in order: 4 KiB \
             70 %, 8 KiB 10 %, 16 KiB 8 %, 32 KiB 5 %, 64 KiB 4 %, 128 KiB 3 % of the writes, with \
             a pause of 0 to 400 µs before each. Forebay: the pool's own code with one volume a \
             dataset, over four DRAM data devices and the log device, which records what it is \
             sent. ZFS: a model of its chains by the rules of OpenZFS 2.1 (next block sized by the \
             last sixteen, only the used part written, four allocators with a metaslab each, a \
             flush after the writes of a commit), of which a trace of one file system decided \
             between four readings; and by those of 2010, when blocks were written whole from one \
             metaslab. A write counts as random when it does not start where the write before \
             ended, in the order in which they were sent.",
    devices: &["ddrdrive-x1", "ocz-vertex-2-ex-50gb", "intel-710-200gb", "generic-disk-7200-2tb"],
    small: &["ddrdrive-x1"],
    cells,
    show,
};

const DATASETS: [u32; 8] = [1, 2, 5, 10, 20, 40, 70, 100];
const SMALL_DATASETS: [u32; 3] = [1, 5, 100];
const ZFS: usize = 0;
const FOREBAY: usize = 1;
const LAYOUTS: [(LogLayout, &str); 2] =
    [(LogLayout::Chains(ChainRules::OpenZfs21), "ZFS chains"), (LogLayout::Stream, "Forebay")];
const OF_2010: LogLayout = LogLayout::Chains(ChainRules::WholeBlocks);

fn counts(context: &Context) -> &'static [u32] {
    context.pick(&DATASETS, &SMALL_DATASETS)
}

fn task(context: &Context, page: &Page, layout: LogLayout, datasets: u32) -> Task {
    // A disk does a few hundred commits a second: fewer commits give the same means.
    let disk = matches!(page.device.media, forebay_flash::MediaSpec::Disk(_));
    let full = if disk { 3_000 } else { 40_000 };
    Task::Zil(Zil {
        device: page.device.clone(),
        scale: context.scale_of(&page.device),
        seed: context.seed,
        datasets,
        layout,
        think_us: 200.0,
        commits: context.pick(full, 3_000),
    })
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        for (layout, name) in LAYOUTS {
            for datasets in counts(context) {
                let label = format!("{}, {datasets} datasets, {name}", page.device.name);
                cells.push(Cell::new(label, task(context, page, layout, *datasets)));
            }
        }
    }
    // On the first device: the talk's tables were taken on a DRAM device, the first of the list.
    for (datasets, ..) in TALK {
        let label = format!("{datasets} datasets, as in 2010");
        cells.push(Cell::new(label, task(context, &context.pages[0], OF_2010, datasets)));
    }
    cells
}

/// The runs of one device.
struct Device<'a> {
    name: &'a str,
    counts: &'static [u32],
    /// By layout, then by number of datasets.
    runs: [&'a [&'a ZilOutcome]; LAYOUTS.len()],
}

impl Device<'_> {
    fn with(&self, layout: usize, datasets: u32) -> Option<&ZilOutcome> {
        let place = self.counts.iter().position(|n| *n == datasets)?;
        Some(self.runs[layout][place])
    }
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let runs: Vec<&ZilOutcome> = outcomes.iter().map(Outcome::zil).collect();
    let counts = counts(context);
    let of = |device: usize, layout: usize| {
        let from = (device * LAYOUTS.len() + layout) * counts.len();
        &runs[from..from + counts.len()]
    };
    let devices: Vec<Device<'_>> = context
        .pages
        .iter()
        .enumerate()
        .map(|(d, page)| Device {
            name: &page.device.name,
            counts,
            runs: [of(d, ZFS), of(d, FOREBAY)],
        })
        .collect();
    for device in &devices {
        compare(device, e);
    }
    let of_2010 = &runs[runs.len() - TALK.len()..];
    against_traces(&devices[0], e);
    against_talk(of_2010, e);
    charts(&devices, e);
}

fn compare(device: &Device<'_>, e: &mut Experiment) {
    let last = device.counts.len() - 1;
    let [zfs, forebay] = device.runs.map(|runs| runs[last]);
    let name = device.name;
    say(
        e,
        Basis::Predicted,
        format!(
            "{name}: {} datasets commit {} times a second in Forebay's log ({} % of the device's \
             writes random) and {} times in ZFS's chains ({} %).",
            device.counts[last],
            figure(forebay.commits_s),
            figure(forebay.pattern.random_percent()),
            figure(zfs.commits_s),
            figure(zfs.pattern.random_percent()),
        ),
    );
    let random = device.runs[FOREBAY].iter().map(|z| z.pattern.random_percent());
    e.checks.push(Check::at_most(
        format!("{name}: random share of Forebay's log, any number of datasets"),
        "%",
        (1.0, random.fold(0.0, f64::max)),
        Basis::Predicted,
        "design: at least 99 % sequential with 100 datasets",
    ));
}

/// The modelled chains against what was recorded of OpenZFS.
fn against_traces(device: &Device<'_>, e: &mut Experiment) {
    let mut pairs = Vec::new();
    for measured in &TRACES {
        let Some(run) = device.with(ZFS, measured.datasets) else { continue };
        let datasets = measured.datasets;
        let random = measured.random as f64 / (measured.writes - 1) as f64 * 100.0;
        let mean_bytes = measured.bytes as f64 / measured.writes as f64;
        for (what, unit, pair, tolerance) in [
            ("random share", "%", (random, run.pattern.random_percent()), 0.03),
            ("mean size of a write", "bytes", (mean_bytes, run.pattern.mean_bytes()), 0.05),
        ] {
            let name = format!("ZFS chains, {datasets} datasets: {what}");
            // The sizes of this trace decided between four readings of the rules.
            let basis = if datasets == 1 { Basis::Fitted } else { Basis::Predicted };
            e.checks.push(Check::relative(name, unit, pair, tolerance, basis, TRACE_SOURCE));
        }
        let [near, far, back] = run.pattern.directions_percent();
        say(
            e,
            Basis::Predicted,
            format!(
                "ZFS chains, {datasets} datasets: {} % of the writes seek ahead by less than 128 \
                 KiB, {} % ahead by more, {} % back.",
                figure(near),
                figure(far),
                figure(back),
            ),
        );
        pairs.push((measured, &run.pattern));
    }
    if let [(_, one), (_, five)] = pairs.as_slice() {
        say(
            e,
            Basis::Predicted,
            format!(
                "The modelled chains are {} % random with one dataset and {} % with five; a \
                 recorded OpenZFS log device was 92.5 % and 98.7 %. The first decided between \
                 readings of the rules; the second was fitted to nothing.",
                figure(one.random_percent()),
                figure(five.random_percent()),
            ),
        );
        e.tables.push(seek_table(&pairs));
        e.tables.push(size_table(&pairs));
    }
}

/// The talk's tables are of the ZFS of 2010 under a load whose sizes it does not print.
fn against_talk(runs: &[&ZilOutcome], e: &mut Experiment) {
    let rows = TALK.iter().zip(runs).map(|((datasets, least, mean, most), run)| {
        vec![
            TableCell::text(datasets.to_string()),
            TableCell::number(run.pattern.random_percent()),
            TableCell::number(*mean).noted(format!("{least} to {most} in its intervals")),
            TableCell::number(run.pattern.mean_bytes()),
        ]
    });
    e.tables.push(Table {
        id: "talk".into(),
        title: "Chains as in 2010, against the talk's tables".into(),
        caption: "Blocks written whole, from one metaslab. The talk does not print the sizes of \
                  its load, so that its share for five datasets is no check of the model."
            .into(),
        columns: vec![
            Column::new("Datasets"),
            Column::with_unit("Random, model", "%"),
            Column::with_unit("Random, printed mean", "%"),
            Column::with_unit("Mean size, model", "bytes"),
        ],
        rows: rows.collect(),
    });
    e.checks.push(Check::at_most(
        "Chains as in 2010: random share of one dataset",
        "%",
        (TALK[0].3, runs[0].pattern.random_percent()),
        Basis::Predicted,
        "iopattern table of the 2010 talk: 0 to 6 %",
    ));
}

type Pairs<'a> = [(&'a Measured, &'a Pattern)];

/// A row for each distance: percent of all writes, ahead and back, model and measured.
fn seek_table(pairs: &Pairs<'_>) -> Table {
    let mut buckets: Vec<u64> = pairs
        .iter()
        .flat_map(|(measured, pattern)| {
            let model = pattern.seeks.iter().map(|s| s.sectors);
            measured.seeks.iter().map(|s| s.0).chain(model)
        })
        .collect();
    buckets.sort_unstable();
    buckets.dedup();
    let share = |part: u64, whole: u64| {
        TableCell::number(part as f64 / whole.saturating_sub(1).max(1) as f64 * 100.0)
    };
    let mut zero = vec![TableCell::text("0")];
    for (measured, pattern) in pairs {
        zero.push(share(pattern.zero_seeks(), pattern.writes));
        zero.push(share(measured.writes - 1 - measured.random, measured.writes));
        zero.extend([TableCell::number(0.0), TableCell::number(0.0)]);
    }
    let mut rows = vec![zero];
    for bucket in buckets {
        let mut row = vec![TableCell::text(bucket.to_string())];
        for (measured, pattern) in pairs {
            let model = pattern.seeks.iter().find(|s| s.sectors == bucket);
            let model = model.map_or((0, 0), |s| (s.ahead, s.back));
            let trace =
                measured.seeks.iter().find(|s| s.0 == bucket).map_or((0, 0), |s| (s.1, s.2));
            row.push(share(model.0, pattern.writes));
            row.push(share(trace.0, measured.writes));
            row.push(share(model.1, pattern.writes));
            row.push(share(trace.1, measured.writes));
        }
        rows.push(row);
    }
    let mut columns = vec![Column::with_unit("Distance", "sectors")];
    for (measured, _) in pairs {
        for what in ["ahead, model", "ahead, recorded", "back, model", "back, recorded"] {
            columns.push(Column::with_unit(&format!("{}: {what}", measured.datasets), "%"));
        }
    }
    Table {
        id: "seeks".into(),
        title: "Seeks at the log device, ZFS chains and recorded".into(),
        caption: "By number of datasets, in percent of the writes. Distance from the end of one \
                  write to the start of the next; each row holds distances from its own up to \
                  twice as far. Far seeks go from one allocator's metaslab to another's, and \
                  depend on the sizes of device and metaslabs."
            .into(),
        columns,
        rows,
    }
}

/// A row for each size that 1 % of the recorded writes have.
fn size_table(pairs: &Pairs<'_>) -> Table {
    let sizes: Vec<u64> = pairs[0].0.sizes.iter().map(|(sectors, _)| *sectors).collect();
    let share = |count: u64, of: u64| TableCell::number(count as f64 / of.max(1) as f64 * 100.0);
    let count = |sizes: &[(u64, u64)], size: u64| {
        sizes.iter().find(|(sectors, _)| *sectors == size).map_or(0, |(_, count)| *count)
    };
    let row = |size: u64| {
        let mut row = vec![TableCell::number(size as f64 / 2.0)];
        for (measured, pattern) in pairs {
            row.push(share(count(&pattern.sizes, size), pattern.writes));
            row.push(share(count(measured.sizes, size), measured.writes));
        }
        row
    };
    let mut columns = vec![Column::with_unit("Size", "KiB")];
    for (measured, _) in pairs {
        for what in ["model", "recorded"] {
            columns.push(Column::with_unit(&format!("{}: {what}", measured.datasets), "%"));
        }
    }
    Table {
        id: "sizes".into(),
        title: "Sizes of writes at the log device, ZFS chains and recorded".into(),
        caption: "By number of datasets, in percent of the writes; sizes that at least 1 % of the \
                  recorded writes have."
            .into(),
        columns,
        rows: sizes.into_iter().map(row).collect(),
    }
}

/// What a chart shows of each run: identifier, title, caption, axis, value.
type Measure = (&'static str, &'static str, &'static str, Axis, fn(&ZilOutcome) -> f64);

fn measures() -> [Measure; 4] {
    [
        (
            "random",
            "Device writes that do not follow the write before",
            "Dashed: Forebay. Hollow marks: recorded of OpenZFS 2.1.11.",
            Axis::linear("Random", "%"),
            |z| z.pattern.random_percent(),
        ),
        (
            "commits",
            "Commits a second, all datasets together",
            "Dashed: Forebay.",
            Axis::log("Commits", "1/s"),
            |z| z.commits_s,
        ),
        ("latency", "Mean time to commit", "Dashed: Forebay.", Axis::log("Time", "ms"), |z| {
            z.mean_ms
        }),
        (
            "size",
            "Mean size of a device write",
            "Group commit packs the waiting records into one frame. Dashed: Forebay.",
            Axis::linear("Size", "bytes"),
            |z| z.pattern.mean_bytes(),
        ),
    ]
}

fn charts(devices: &[Device<'_>], e: &mut Experiment) {
    for (id, title, caption, y, value) in measures() {
        let mut series = Vec::new();
        for (l, (layout, name)) in LAYOUTS.iter().enumerate() {
            for device in devices {
                let points = device.counts.iter().zip(device.runs[l]);
                let points = points.map(|(n, run)| Point::at(f64::from(*n), value(run)));
                series.push(Series {
                    name: format!("{}, {name}", device.name),
                    group: device.name.into(),
                    dashed: *layout == LogLayout::Stream,
                    points: points.collect(),
                    ..Series::default()
                });
            }
        }
        if id == "random" {
            let share = |m: &Measured| m.random as f64 / (m.writes - 1) as f64 * 100.0;
            series.push(Series {
                name: "OpenZFS 2.1.11, recorded".into(),
                role: Role::Published,
                points: TRACES.iter().map(|m| Point::at(f64::from(m.datasets), share(m))).collect(),
                ..Series::default()
            });
        }
        e.charts.push(Chart {
            id: id.into(),
            title: title.into(),
            caption: caption.into(),
            kind: ChartKind::Line,
            x: Axis::log("Datasets", ""),
            y,
            series,
            responses: times(devices).filter(|_| id == "commits" || id == "latency"),
            ..Chart::default()
        });
    }
}

/// How long commits took on each device.
fn times(devices: &[Device<'_>]) -> Option<Table> {
    let rows = devices.iter().flat_map(|device| {
        LAYOUTS.iter().zip(device.runs).flat_map(move |((_, name), runs)| {
            device.counts.iter().zip(runs).map(move |(n, run)| {
                let times = Responses { writes: run.commits, ..Responses::default() };
                (format!("{}, {name}, {n} datasets", device.name), times)
            })
        })
    });
    response_table("From the commit to its completion.", rows)
}
