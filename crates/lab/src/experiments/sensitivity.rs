//! Experiment `sensitivity`: which conclusions survive when assumed numbers are varied.

use super::common::{figure, percent, say};
use super::procedures::{B_MINUTES, b};
use super::{Context, Plan, summary};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::sensitivity::{assumed, variant};
use crate::task::{Outcome, Task};
use crate::timeline::TimelineOutcome;
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Series,
    Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "sensitivity",
    title: "Conclusions and assumptions",
    question: "Which conclusions hold whatever the assumed numbers are within their intervals?",
    method: "Procedure B (4 KiB random writes, 32 outstanding, 80 minutes from secure erase) on \
             the device of the page and on 23 variants of it. In each variant every assumed number \
             of link, timing, controller and buffer lies elsewhere in its interval (25 % either \
             way where the page gives none, an assumption in itself), by a low-discrepancy \
             sample. Sourced and fitted numbers and the geometry stay: a fitted number is not \
             fitted again.",
    devices: summary::DEVICES,
    small: summary::SMALL_DEVICES,
    cells,
    show,
};

/// Variants in each edition: primes, as the sample wants.
const VARIANTS: u32 = 23;
const SMALL_VARIANTS: u32 = 3;

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        let name = &page.device.name;
        cells.push(Cell::new(name.clone(), b(context, page)));
        for number in 0..context.pick(VARIANTS, SMALL_VARIANTS) {
            cells.push(Cell::new(
                format!("{name}, variant {number}"),
                varied(context, page, number),
            ));
        }
    }
    cells
}

/// Procedure B on a variant; on the device itself where the variant is impossible.
fn varied(context: &Context, page: &Page, number: u32) -> Task {
    let count = context.pick(VARIANTS, SMALL_VARIANTS);
    let device = variant(page, number, count).unwrap_or_else(|_| page.device.clone());
    b(context, &Page { device, ..page.clone() })
}

/// One device with its variants; the first run is the device of the page.
struct Subject<'a> {
    page: &'a Page,
    runs: Vec<&'a TimelineOutcome>,
}

/// The share of the fresh rate that is lost within ten minutes.
fn lost_in_ten_minutes(run: &TimelineOutcome) -> f64 {
    let tenth = run.samples().find(|s| (s.minute - 10.0).abs() < 0.5 && s.iops > 0.0);
    1.0 - tenth.map_or(0.0, |s| s.iops) / run.fresh().iops
}

fn sustained(run: &TimelineOutcome) -> f64 {
    run.sustained(10.0).iops
}

impl Subject<'_> {
    fn variants(&self) -> &[&TimelineOutcome] {
        &self.runs[1..]
    }

    /// The least, the page's own and the largest value over all runs.
    fn interval(&self, value: fn(&TimelineOutcome) -> f64) -> (f64, f64, f64) {
        let values = || self.runs.iter().map(|run| value(run));
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
        (low, value(self.runs[0]), high)
    }
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let each = 1 + context.pick(VARIANTS, SMALL_VARIANTS) as usize;
    let runs: Vec<&TimelineOutcome> = outcomes.iter().map(Outcome::timeline).collect();
    let pages = context.pages.iter().zip(runs.chunks(each));
    let subjects: Vec<Subject<'_>> =
        pages.map(|(page, runs)| Subject { page, runs: runs.to_vec() }).collect();
    for subject in &subjects {
        falls(subject, e);
        let count = context.pick(VARIANTS, SMALL_VARIANTS);
        let is_impossible = |n: &u32| variant(subject.page, *n, count).is_err();
        let impossible = (0..count).filter(is_impossible).count();
        if impossible > 0 {
            let name = &subject.page.device.name;
            let text = format!(
                "{name}: {impossible} variants are impossible devices; the page's own took their \
                 place."
            );
            say(e, Basis::Input, text);
        }
    }
    orders(&subjects, e);
    e.charts.push(rates(&subjects));
    e.charts.push(intervals(&subjects));
    e.tables.push(table(&subjects));
}

/// Whether the device loses much of its rate, in how many variants.
fn falls(subject: &Subject<'_>, e: &mut Experiment) {
    const MUCH: f64 = 0.3;
    let name = &subject.page.device.name;
    let (low, own, high) = subject.interval(lost_in_ten_minutes);
    let variants = subject.variants();
    let much = variants.iter().filter(|run| lost_in_ten_minutes(run) > MUCH).count();
    let verdict = match much {
        n if n == variants.len() => "in all",
        0 => "in none",
        _ => "in some only",
    };
    say(
        e,
        Basis::Predicted,
        format!(
            "{name}: more than {} of the fresh rate is lost within ten minutes {verdict} ({much} \
             of {} variants; {} to {}, {} as the page has it).",
            percent(MUCH),
            variants.len(),
            percent(low),
            percent(high),
            percent(own),
        ),
    );
    if subject.page.endless() {
        e.checks.push(Check::at_most(
            format!("{name}: share of the rate lost within ten minutes, worst variant"),
            "",
            (0.02, high.max(0.0)),
            Basis::Predicted,
            "talks: the DRAM device is flat; no assumed number may change that",
        ));
    }
}

/// Pairs whose order of sustained rates holds in all variants, and pairs where it does not.
fn orders(subjects: &[Subject<'_>], e: &mut Experiment) {
    let mut ranked: Vec<&Subject<'_>> = subjects.iter().collect();
    ranked.sort_by(|a, b| sustained(b.runs[0]).total_cmp(&sustained(a.runs[0])));
    for pair in ranked.windows(2) {
        let (upper, lower) = (pair[0].interval(sustained), pair[1].interval(sustained));
        let (first, second) = (&pair[0].page.device.name, &pair[1].page.device.name);
        let text = if upper.0 > lower.2 {
            format!(
                "{first} sustains more than {second} in every variant: at least {} against at most \
                 {} writes a second.",
                figure(upper.0),
                figure(lower.2)
            )
        } else {
            format!(
                "Which of {first} and {second} sustains more depends on assumed numbers: {} to {} \
                 against {} to {} writes a second.",
                figure(upper.0),
                figure(upper.2),
                figure(lower.0),
                figure(lower.2)
            )
        };
        say(e, Basis::Predicted, text);
    }
}

/// Rates over time, with the band of all variants.
fn rates(subjects: &[Subject<'_>]) -> Chart {
    let line = |subject: &Subject<'_>| {
        let own = subject.runs[0];
        let points = own.samples().filter(|s| s.iops > 0.0).enumerate().map(|(i, sample)| {
            let at = |run: &&TimelineOutcome| run.samples().nth(i).map(|s| s.iops);
            let all = || subject.runs.iter().filter_map(at);
            let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
            Point::at(sample.minute, sample.iops).between(low, high)
        });
        Series {
            name: subject.page.device.name.clone(),
            points: points.collect(),
            ..Series::default()
        }
    };
    Chart {
        id: "rates".into(),
        title: "Procedure B within the intervals of assumed numbers".into(),
        caption: "Line: the device of the page. Dotted: the slowest and the fastest variant in \
                  each minute. Logarithmic."
            .into(),
        kind: ChartKind::Line,
        x: Axis::linear("Time", "min"),
        y: Axis::log("Writes", "1/s"),
        series: subjects.iter().map(line).collect(),
        responses: super::common::response_table(
            super::common::OF_TAIL,
            subjects.iter().map(|s| (s.page.device.name.as_str(), s.runs[0].tail())),
        ),
        ..Chart::default()
    }
}

fn intervals(subjects: &[Subject<'_>]) -> Chart {
    let point = |subject: &Subject<'_>| {
        let (low, own, high) = subject.interval(lost_in_ten_minutes);
        let name = subject.page.device.name.as_str();
        Point::named(name, Some(own * 100.0)).between(low * 100.0, high * 100.0)
    };
    Chart {
        id: "lost".into(),
        title: "Lost of the fresh rate within ten minutes".into(),
        caption: "Mark: the device of the page. Bar: all variants.".into(),
        kind: ChartKind::Interval,
        x: Axis::linear("Device", ""),
        y: Axis::linear("Lost", "%"),
        series: vec![Series {
            name: "lost".into(),
            points: subjects.iter().map(point).collect(),
            ..Series::default()
        }],
        ..Chart::default()
    }
}

fn table(subjects: &[Subject<'_>]) -> Table {
    let row = |subject: &Subject<'_>| {
        let (low, own, high) = subject.interval(sustained);
        let paths = assumed(subject.page);
        vec![
            TableCell::text(&subject.page.device.name),
            TableCell::number(low),
            TableCell::number(own),
            TableCell::number(high),
            TableCell::number(paths.len() as f64).noted(paths.join(", ")),
        ]
    };
    Table {
        id: "sustained".into(),
        title: format!("Sustained random writes, minutes {} to {B_MINUTES}", B_MINUTES - 9.0),
        caption: "Over the variants; the numbers that are varied stand in the last column.".into(),
        columns: vec![
            Column::new("Device"),
            Column::with_unit("Least", "1/s"),
            Column::with_unit("As on the page", "1/s"),
            Column::with_unit("Most", "1/s"),
            Column::new("Numbers varied"),
        ],
        rows: subjects.iter().map(row).collect(),
    }
}
