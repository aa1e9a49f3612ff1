//! Experiment `loads`: skewed places, trims, requests that arrive whatever the device does, and
//! queues with arbitration.

use super::common::{OF_TAIL, ResponseLine, figure, over_names, response_table, say};
use super::procedures::{self, steady_end};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::load::{Arrivals, Load, Places};
use crate::task::{Outcome, Task};
use crate::timeline::{Phase, TimelineOutcome};
use forebay_flash::MediaSpec;
use forebay_report::{Axis, Basis, Chart, ChartKind, Experiment, Point, Series};

mod queues;

pub(super) const PLAN: Plan = Plan {
    id: "loads",
    title: "Loads of the field",
    question: "What do skew, trims, bursts and several queues do that uniform closed loops do not \
               show?",
    method: "Random 4 KiB writes. Skew and trims: filled once, then written twice over, 32 \
             outstanding. Zipf: the place of rank k in proportion to 1/k^0.99; hot and cold: a \
             tenth of the places takes nine tenths of the requests; ranks are scattered over the \
             device. Trims go to uniform places. Open arrivals, filled and written once over \
             before: one half, seven and nine tenths of the sustained rate that was printed for \
             the device, one at a time or in bursts of 32, at random, for ten minutes. Queues, \
             filled and written once over before: ten minutes of durable 4 KiB writes in order, \
             one at a time, beside a queue of 256 random reads.",
    devices: &[
        "intel-s3700-200gb",
        "intel-710-200gb",
        "ocz-vertex-2-ex-50gb",
        "intel-p4800x-375gb",
    ],
    small: &["ocz-vertex-2-ex-50gb"],
    cells,
    show,
};

const ZIPF: Places = Places::Zipf { theta: 0.99 };
const HOT_COLD: Places = Places::HotCold { places: 0.1, requests: 0.9 };
/// Name, places, share of trims.
const KINDS: [(&str, Places, f64); 5] = [
    ("uniform", Places::Uniform, 0.0),
    ("zipf 0.99", ZIPF, 0.0),
    ("hot and cold", HOT_COLD, 0.0),
    ("uniform, 10 % trims", Places::Uniform, 0.1),
    ("uniform, 25 % trims", Places::Uniform, 0.25),
];
const RATES: [f64; 3] = [0.5, 0.7, 0.9];
const BURSTS: [u32; 2] = [1, 32];
const OPEN_MINUTES: f64 = 10.0;

/// The sustained rate that open arrivals are a share of: of the device that the talk printed a row
/// for, that row; otherwise the fact.
fn printed_rate(page: &Page) -> Option<f64> {
    let row = super::degradation::PRINTED.iter().find(|row| row.device == page.id);
    let fact = page.facts.sustained_write_iops.as_ref().or(page.facts.fresh_write_iops.as_ref());
    row.map(|row| row.iops).or_else(|| fact.map(crate::catalogue::Fact::middle))
}

fn is_flash(page: &Page) -> bool {
    matches!(page.device.media, MediaSpec::Flash(_))
}

fn open(context: &Context, page: &Page, rate_s: f64, burst: u32) -> Task {
    let random = Load { random_share: 1.0, ..Load::default() };
    let arrivals = match burst {
        1 => Arrivals::Poisson { rate_s },
        _ => Arrivals::Bursts { rate_s, burst },
    };
    let mut phases = vec![Phase::SecureErase];
    if is_flash(page) {
        phases.push(Phase::Fill { block_bytes: 128 << 10 });
        phases.push(Phase::Passes { passes: 1.0, pattern: random.clone() });
    }
    let pattern = Load { arrivals, ..random };
    phases.push(Phase::Load { minutes: OPEN_MINUTES, pattern });
    procedures::timeline(context, page, phases)
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        for (name, places, trim_share) in KINDS.iter().filter(|_| is_flash(page)) {
            let steady = procedures::steady(context, page);
            let label = format!("{}, {name}", page.device.name);
            cells.push(Cell::new(label, with(steady, *places, *trim_share)));
        }
        let Some(rate_s) = printed_rate(page) else { continue };
        for burst in BURSTS {
            for share in RATES {
                let label = format!("{}, {share} of its rate, bursts of {burst}", page.device.name);
                cells.push(Cell::new(label, open(context, page, share * rate_s, burst)));
            }
        }
    }
    cells.extend(context.pages.iter().flat_map(|page| queues::cells(context, page)));
    cells
}

/// The same task with other places and trims in its last phase.
fn with(task: Task, places: Places, trim_share: f64) -> Task {
    let mut task = task;
    let Task::Timeline(timeline) = &mut task else { return task };
    if let Some(Phase::Passes { pattern, .. }) = timeline.phases.last_mut() {
        (pattern.places, pattern.trim_share) = (places, trim_share);
    }
    task
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let last = outcomes.len() - queues::count(context);
    let mut next = outcomes[..last].iter().map(Outcome::timeline);
    let (mut skews, mut opens) = (Vec::new(), Vec::new());
    for page in &context.pages {
        if is_flash(page) {
            let runs: Vec<&TimelineOutcome> = next.by_ref().take(KINDS.len()).collect();
            skews.push((page, runs));
        }
        if let Some(rate_s) = printed_rate(page) {
            let count = BURSTS.len() * RATES.len();
            let runs: Vec<&TimelineOutcome> = next.by_ref().take(count).collect();
            opens.push((page, rate_s, runs));
        }
    }
    show_skews(&skews, e);
    for (page, rate_s, runs) in &opens {
        show_open(page, *rate_s, runs, e);
    }
    queues::show(&context.pages, &outcomes[last..], e);
}

fn show_skews(skews: &[(&Page, Vec<&TimelineOutcome>)], e: &mut Experiment) {
    let bars = |value: fn(&TimelineOutcome) -> f64| {
        let series = KINDS.iter().enumerate().map(|(k, (name, ..))| {
            let values =
                skews.iter().map(|(page, runs)| (page.device.name.as_str(), Some(value(runs[k]))));
            over_names(name, values)
        });
        series.collect::<Vec<Series>>()
    };
    let times = response_table(
        OF_TAIL,
        skews.iter().flat_map(|(page, runs)| {
            KINDS
                .iter()
                .zip(runs)
                .map(|((name, ..), run)| (format!("{}, {name}", page.device.name), run.tail()))
        }),
    );
    let chart = |id: &str, title: &str, y: Axis, series: Vec<Series>| Chart {
        id: id.into(),
        title: title.into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y,
        series,
        ..Chart::default()
    };
    e.charts.push(Chart {
        responses: times,
        ..chart(
            "rate",
            "Sustained random 4 KiB writes by skew and trims",
            Axis::linear("Writes", "1/s"),
            bars(|run| steady_end(run).iops),
        )
    });
    e.charts.push(chart(
        "amplification",
        "Write amplification by skew and trims",
        Axis::linear("Media bytes for each host byte", ""),
        bars(|run| steady_end(run).amplification),
    ));
    for (page, runs) in skews {
        let of = |k: usize| figure(steady_end(runs[k]).amplification);
        say(
            e,
            Basis::Predicted,
            format!(
                "{}: amplification {} with uniform writes, {} with zipf, {} with hot and cold \
                 places, {} with a quarter of trims.",
                page.device.name,
                of(0),
                of(1),
                of(2),
                of(4),
            ),
        );
    }
}

/// Response times against the rate of arrivals.
fn show_open(page: &Page, rate_s: f64, runs: &[&TimelineOutcome], e: &mut Experiment) {
    let name = &page.device.name;
    let lines: [ResponseLine; 2] = [("p50", |t| t.at_ms[0]), ("p99.9", |t| t.at_ms[3])];
    let mut series = Vec::new();
    for (b, burst) in BURSTS.iter().enumerate() {
        let how = if *burst == 1 { "single".to_owned() } else { format!("bursts of {burst}") };
        for (line, value) in lines {
            let runs = &runs[b * RATES.len()..(b + 1) * RATES.len()];
            let points = RATES.iter().zip(runs).map(|(share, run)| {
                let y = value(&run.tail().writes);
                Point { y, ..Point::at(share * rate_s, 0.0) }
            });
            series.push(Series {
                name: format!("{line}, {how}"),
                group: line.into(),
                dashed: *burst > 1,
                points: points.collect(),
                ..Series::default()
            });
        }
    }
    let names = BURSTS.iter().flat_map(|burst| {
        RATES.iter().map(move |share| format!("{} % of the rate, bursts of {burst}", share * 100.0))
    });
    e.charts.push(Chart {
        id: format!("open-{}", page.id),
        title: format!("{name}: response to open arrivals"),
        caption: "Of writes that arrive at random whatever the device does. Where the model's own \
                  sustained rate is below the rate of arrivals, the queue grows without end."
            .into(),
        kind: ChartKind::Line,
        x: Axis::linear("Arrivals", "1/s"),
        y: Axis::log("Response", "ms"),
        series,
        responses: response_table(OF_TAIL, names.zip(runs.iter().map(|run| run.tail()))),
        ..Chart::default()
    });
    let last = |b: usize| runs[(b + 1) * RATES.len() - 1].tail().writes;
    let (single, bursts) = (last(0), last(1));
    if let (Some(single), Some(bursts)) = (single.at_ms[3], bursts.at_ms[3]) {
        say(
            e,
            Basis::Predicted,
            format!(
                "{name} at nine tenths of its printed rate: 99.9 % of single arrivals take at most \
                 {} ms, of bursts of 32 at most {} ms.",
                figure(single),
                figure(bursts),
            ),
        );
    }
}
