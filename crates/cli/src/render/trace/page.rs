//! Traces as chapters of a report: what was recorded, pattern over time, seeks, sizes, latency.

use forebay_report::{
    Axis, Basis, Cell, Chart, ChartKind, Column, Experiment, Finding, Point, Role, Series, Table,
};
use forebay_trace::{Bucket, OpSummary, PatternRow, Percentiles, Rules, Slot, Summary, Timeline};
use forebay_units::SECTOR_BYTES;

use super::TraceHead;
use crate::render::numbers::bytes;

/// The pattern of a whole trace, by the rules of iopattern, in both orders.
#[derive(Clone, Copy, Debug)]
pub struct TraceRows {
    /// As the device got the requests.
    pub at_issue: PatternRow,
    /// As `trace iopattern` counts.
    pub at_completion: PatternRow,
}

/// What a page shows of a trace.
#[derive(Clone, Debug)]
pub struct TraceDigest {
    /// What was read.
    pub head: TraceHead,
    /// Names of its devices.
    pub devices: Vec<String>,
    /// Its summary.
    pub summary: Summary,
    /// Its pattern as a whole.
    pub rows: TraceRows,
    /// Its pattern over time, where it has times.
    pub timeline: Option<Timeline>,
    /// Distances from the end of the request before on the device, with their direction.
    pub seeks: Vec<Bucket>,
}

/// A trace and the name that tells it from the others on the page.
struct Shown<'a> {
    name: String,
    of: &'a TraceDigest,
}

/// Names for headings: the files', with a number where two are alike.
#[must_use]
pub fn trace_names(traces: &[TraceDigest]) -> Vec<String> {
    let short = |of: &TraceDigest| {
        let source = of.head.source.as_str();
        let name = source.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(source);
        let unpacked = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".xz"));
        unpacked.unwrap_or(name).to_owned()
    };
    let names: Vec<String> = traces.iter().map(short).collect();
    let name = |(at, name): (usize, &String)| {
        let before = names[..at].iter().filter(|other| *other == name).count();
        let is_alone = names.iter().filter(|other| *other == name).count() == 1;
        if is_alone { name.clone() } else { format!("{name} #{}", before + 1) }
    };
    names.iter().enumerate().map(name).collect()
}

/// The chapters; one without a chart or a table is left out.
#[must_use]
pub fn trace_experiments(traces: &[TraceDigest]) -> Vec<Experiment> {
    let names = trace_names(traces).into_iter();
    let shown: Vec<Shown<'_>> = names.zip(traces).map(|(name, of)| Shown { name, of }).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let mut all = vec![recorded(&shown), pattern(&shown), seeks(&shown), sizes(&shown)];
    all.push(latencies(&shown));
    for experiment in &mut all {
        for chart in &mut experiment.charts {
            chart.series.retain(|series| !series.points.is_empty());
        }
        experiment.charts.retain(|chart| !chart.series.is_empty());
    }
    all.retain(|experiment| !experiment.charts.is_empty() || !experiment.tables.is_empty());
    all
}

fn experiment(id: &str, title: &str, question: &str) -> Experiment {
    Experiment {
        id: id.to_owned(),
        title: title.to_owned(),
        question: question.to_owned(),
        ..Experiment::default()
    }
}

fn chart(id: &str, title: &str, caption: &str, x: Axis, y: Axis) -> Chart {
    let (id, title, caption) = (id.to_owned(), title.to_owned(), caption.to_owned());
    Chart { id, title, caption, x, y, ..Chart::default() }
}

impl Shown<'_> {
    fn series(&self, name: String, is_dashed: bool, points: Vec<Point>) -> Series {
        Series { name, group: self.name.clone(), role: Role::Measured, dashed: is_dashed, points }
    }

    fn finding(&self, all: &[Shown<'_>], text: &str) -> Finding {
        Finding { text: self.said(all, text), basis: Basis::Measured }
    }

    /// `name: text` when several traces are shown.
    fn said(&self, all: &[Shown<'_>], text: &str) -> String {
        if all.len() == 1 { text.to_owned() } else { format!("{}: {text}", self.name) }
    }
}

/// A share in percent, to two decimals.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 * 1e4 / whole as f64).round() / 100.0 }
}

fn recorded(shown: &[Shown<'_>]) -> Experiment {
    let mut e = experiment("trace", "What was recorded", "What did the device get to do?");
    e.method = "Each request counts once, as it was issued to the device where the trace tells. \
                docs/trace.md says how flushes, discards and small gaps are counted."
        .to_owned();
    let mut columns = vec![Column::new("Figure")];
    columns.extend(shown.iter().map(|of| Column::new(&of.name)));
    let all: Vec<Vec<(&'static str, Cell)>> = shown.iter().map(figures).collect();
    let row = |at: usize| {
        let mut cells = vec![Cell::text(all[0][at].0)];
        cells.extend(all.iter().map(|figures| figures[at].1.clone()));
        cells
    };
    e.tables.push(Table {
        id: "figures".to_owned(),
        title: "Figures of the whole trace".to_owned(),
        columns,
        rows: (0..all[0].len()).map(row).collect(),
        ..Table::default()
    });
    for of in shown {
        e.findings.push(of.finding(shown, &recorded_text(&of.of.summary)));
        if let Some(remark) = &of.of.head.remark {
            e.findings.push(of.finding(shown, &format!("not whole: {remark}")));
        }
    }
    e
}

fn recorded_text(got: &Summary) -> String {
    let secs = got.span_ns as f64 / 1e9;
    let rate = match got.span_ns {
        0 => String::new(),
        _ => format!(" in {secs:.1} s, {:.0} a second", got.records as f64 / secs),
    };
    let writes = percent(got.write.count, got.records);
    format!("{} requests{rate}; {writes:.0} % of them writes", got.records)
}

/// The rows of the table of figures: the same ones for every trace.
fn figures(of: &Shown<'_>) -> Vec<(&'static str, Cell)> {
    let (got, head, rows) = (&of.of.summary, &of.of.head, of.of.rows);
    // Numbers of results keep seven digits; a count is exact.
    let count = |count: u64| match count {
        0..10_000_000 => Cell::number(count as f64),
        _ => Cell::text(count.to_string()),
    };
    let mb = |op: &OpSummary| Cell::number(op.bytes as f64 / 1e6);
    let random = |row: &PatternRow| match row.count {
        0 => Cell::unknown(),
        _ => count(row.random_pct(Rules::Dtrace)),
    };
    let pairs = |part| match got.pairs {
        0 => Cell::unknown(),
        all => Cell::number(percent(part, all)),
    };
    let of_values = |values: &Option<Percentiles>, what: fn(&Percentiles) -> f64| {
        Cell::maybe(values.as_ref().map(what))
    };
    let placed = got.start_sector_mod_8.iter().sum::<u64>();
    let devices = of.of.devices.iter().map(String::as_str).take(4).collect::<Vec<_>>().join(", ");
    vec![
        ("format", Cell::text(head.format)),
        (
            "devices",
            Cell::text(devices).noted(match of.of.devices.len() {
                0..=4 => String::new(),
                more => format!("and {} more", more - 4),
            }),
        ),
        ("time, s", Cell::maybe((got.span_ns > 0).then_some(got.span_ns as f64 / 1e9))),
        ("requests", count(got.records)),
        ("reads", count(got.read.count)),
        ("writes", count(got.write.count)),
        ("flushes", count(got.flush.count)),
        ("discards", count(got.discard.count)),
        ("writes with FUA", count(got.fua)),
        ("read, MB", mb(&got.read)),
        ("written, MB", mb(&got.write)),
        ("%RAN of iopattern, as completed", random(&rows.at_completion)),
        ("%RAN in the order of issue", random(&rows.at_issue)),
        ("sequential, %", pairs(got.sequential)),
        ("after a forward gap below 128 KiB, %", pairs(got.small_forward_gaps)),
        ("backward, %", pairs(got.backward)),
        (
            "in whole blocks of 4 KiB, %",
            match placed {
                0 => Cell::unknown(),
                _ => Cell::number(percent(placed - got.unaligned_4k.min(placed), placed)),
            },
        ),
        ("writes between flushes, mean", of_values(&got.writes_per_flush, |v| v.mean)),
        ("under way, median", of_values(&got.queue_depth, |v| v.p50 as f64)),
        ("under way, p99", of_values(&got.queue_depth, |v| v.p99 as f64)),
    ]
}

/// Points of a timeline; its last span is cut off by the end of the trace.
fn over_time(timeline: &Timeline, value: impl Fn(&Slot, f64) -> Option<f64>) -> Vec<Point> {
    let width_s = timeline.width().as_secs_f64();
    let slots = timeline.slots();
    let whole = if slots.len() > 2 { slots.len() - 1 } else { slots.len() };
    let at = |(at, slot)| Some(Point::at(at as f64 * width_s, value(slot, width_s)?));
    slots[..whole].iter().enumerate().filter_map(at).collect()
}

fn pattern(shown: &[Shown<'_>]) -> Experiment {
    let question = "Is the traffic random or sequential, and how much is there?";
    let mut e = experiment("access-pattern", "Access pattern over time", question);
    e.method = "By the rules of the DTrace toolkit's iopattern: a request is random unless it \
                begins at the very sector where the one before it on its device ended, in the \
                order of completions."
        .to_owned();
    let time = || Axis::linear("Time", "s");
    let share = Axis::linear("Random requests", "%");
    let mut random = chart("random", "Share of random requests", "", time(), share);
    let mut rates = chart("rate", "Requests a second", "", time(), Axis::linear("Requests", "1/s"));
    let mut moved =
        chart("moved", "Bytes read and written", "", time(), Axis::linear("Throughput", "MB/s"));
    for of in shown {
        let row = &of.of.rows.at_completion;
        if row.count > 0 {
            let (pct, average) = (row.random_pct(Rules::Dtrace), bytes(row.avg_bytes(), false));
            let text = format!("{pct} % of the requests are random; {average} on average");
            e.findings.push(of.finding(shown, &text));
        }
        let Some(timeline) = &of.of.timeline else { continue };
        let points = over_time(timeline, |slot, _| {
            (slot.count > 0).then(|| percent(slot.random, slot.count))
        });
        random.series.push(of.series(of.name.clone(), false, points));
        let points = over_time(timeline, |slot, width_s| Some(slot.count as f64 / width_s));
        rates.series.push(of.series(of.name.clone(), false, points));
        for is_read in [false, true] {
            let moves = |slot: &Slot| if is_read { slot.read_bytes } else { slot.written_bytes };
            if timeline.slots().iter().all(|slot| moves(slot) == 0) {
                continue;
            }
            let rate = |slot: &Slot, width_s| Some(moves(slot) as f64 / width_s / 1e6);
            let word = if is_read { "read" } else { "written" };
            let points = over_time(timeline, rate);
            moved.series.push(of.series(of.said(shown, word), is_read, points));
        }
    }
    e.charts.extend([random, rates, moved]);
    e
}

/// Buckets from the lowest to the highest of all traces, in order.
fn ladder(shown: &[Shown<'_>]) -> Vec<i64> {
    let all = || shown.iter().flat_map(|of| &of.of.seeks).filter(|bucket| bucket.count > 0);
    let lowest = all().map(|bucket| bucket.sectors).min().unwrap_or(0);
    let highest = all().map(|bucket| bucket.sectors).max().unwrap_or(-1);
    let powers = || (0..63).map(|power| 1i64 << power);
    let steps = powers().rev().map(|step| -step).chain([0]).chain(powers());
    steps.filter(|step| (lowest..=highest).contains(step)).collect()
}

/// A distance as its bucket is called: the sector count next to zero, as bytes.
fn distance(sectors: i64) -> String {
    let size = bytes(sectors.unsigned_abs().saturating_mul(SECTOR_BYTES), false);
    match sectors {
        0 => "0".to_owned(),
        1.. => format!("+{size}"),
        _ => format!("−{size}"),
    }
}

fn seeks(shown: &[Shown<'_>]) -> Experiment {
    let question = "How far does a request begin from the end of the one before it?";
    let mut e = experiment("seeks", "Seek distances", question);
    e.method =
        "From the end of the request before on the same device, in the order of issue. Each \
                bar is a power of two of 512-byte sectors: +32K stands for 32 KiB up to 64 KiB \
                forward."
            .to_owned();
    let caption = "0 is sequential. Bars to the left are seeks backward.";
    let (x, y) = (Axis::linear("Distance", ""), Axis::linear("Requests", "%"));
    let mut bars = chart("distances", "Requests by seek distance", caption, x, y);
    bars.kind = ChartKind::Bar;
    let ladder = ladder(shown);
    for of in shown {
        let all: u64 = of.of.seeks.iter().map(|bucket| bucket.count).sum();
        if all == 0 {
            continue;
        }
        let count_at = |sectors: i64| {
            let found = of.of.seeks.iter().find(|bucket| bucket.sectors == sectors);
            found.map_or(0, |bucket| bucket.count)
        };
        let point = |&at: &i64| Point::named(distance(at), Some(percent(count_at(at), all)));
        bars.series.push(of.series(of.name.clone(), false, ladder.iter().map(point).collect()));
        let backward: u64 =
            of.of.seeks.iter().filter(|b| b.sectors < 0).map(|bucket| bucket.count).sum();
        let text = format!(
            "{} of {all} requests begin where the one before ended; {:.1} % go backward",
            count_at(0),
            percent(backward, all)
        );
        e.findings.push(of.finding(shown, &text));
    }
    e.charts.push(bars);
    e
}

fn sizes(shown: &[Shown<'_>]) -> Experiment {
    let mut e = experiment("sizes", "Sizes", "How large are the requests?");
    let caption = "4K stands for 4 KiB up to 8 KiB.";
    let (x, y) = (Axis::linear("Size", ""), Axis::linear("Requests", "%"));
    let mut bars = chart("sizes", "Requests by size", caption, x, y);
    bars.kind = ChartKind::Bar;
    let ops = |got: &Summary| [("reads", got.read.clone()), ("writes", got.write.clone())];
    let is_filled = |at: &usize| {
        shown.iter().any(|of| ops(&of.of.summary).iter().any(|(_, op)| op.sizes[*at] > 0))
    };
    let filled: Vec<usize> = (0..64).filter(is_filled).collect();
    let (Some(first), Some(last)) = (filled.first(), filled.last()) else { return e };
    for of in shown {
        let ops = ops(&of.of.summary);
        for (word, op) in ops.iter().filter(|(_, op)| op.bytes > 0) {
            let placed: u64 = op.sizes.iter().sum();
            let mean = op.bytes.checked_div(placed).unwrap_or(0);
            let [least, most, mean] =
                [op.min_bytes, op.max_bytes, mean].map(|size| bytes(size, false));
            let text = format!("{word} of {least} to {most}, {mean} on average");
            e.findings.push(of.finding(shown, &text));
        }
        let all: u64 = ops.iter().flat_map(|(_, op)| &op.sizes).sum();
        for (word, op) in ops.iter().filter(|(_, op)| op.sizes.iter().any(|count| *count > 0)) {
            let point =
                |at: usize| Point::named(bytes(1 << at, false), Some(percent(op.sizes[at], all)));
            let points = (*first..=*last).map(point).collect();
            // Bars of one color would be one bar: each operation is a group.
            let name = of.said(shown, word);
            bars.series.push(Series { group: name.clone(), ..of.series(name, false, points) });
        }
    }
    e.charts.push(bars);
    e
}

fn latencies(shown: &[Shown<'_>]) -> Experiment {
    let question = "How long did the device take for a request?";
    let mut e = experiment("trace-latency", "Response times", question);
    e.method =
        "From issue to completion, where the trace has both or a column of its own.".to_owned();
    let x = Axis::log("One request in so many takes longer", "");
    let mut lines = chart("latency", "Response times", "", x, Axis::log("Response", "µs"));
    let mut rows = Vec::new();
    for of in shown {
        let got = &of.of.summary;
        let ops = [("reads", &got.read), ("writes", &got.write), ("flushes", &got.flush)];
        for (word, op) in ops {
            let Some(times) = &op.latency_ns else { continue };
            let us = |ns: u64| ns as f64 / 1e3;
            let shares = [(2.0, times.p50), (10.0, times.p90), (100.0, times.p99)];
            let shares = shares.into_iter().chain([(1000.0, times.p999)]);
            // A percentile beyond which not one request lies is a guess.
            let known = shares.filter(|(one_in, _)| times.count as f64 >= *one_in);
            let points: Vec<Point> = known.map(|(one_in, ns)| Point::at(one_in, us(ns))).collect();
            let name = of.said(shown, word);
            let (p50, p99) = (us(times.p50), us(times.p99));
            let text = format!("{word}: p50 {p50:.0} µs, p99 {p99:.0} µs");
            e.findings.push(of.finding(shown, &text));
            let mut row = vec![Cell::text(&name), Cell::number(times.count as f64)];
            row.push(Cell::number(times.mean / 1e3));
            let at = |place: usize| Cell::maybe(points.get(place).and_then(|point| point.y));
            row.extend((0..4).map(at));
            row.push(Cell::number(us(times.max)));
            rows.push(row);
            lines.series.push(of.series(name, word == "flushes", points));
        }
    }
    let mut columns = vec![Column::new("Operation"), Column::new("Requests")];
    columns.extend(
        ["mean", "p50", "p90", "p99", "p99.9", "max"].map(|name| Column::with_unit(name, "µs")),
    );
    if !rows.is_empty() {
        let (id, title) = ("latencies".to_owned(), "Response times by operation".to_owned());
        e.tables.push(Table { id, title, columns, rows, ..Table::default() });
    }
    e.charts.push(lines);
    e
}
