//! Experiment `attachment`: hops, protocol, a shared adapter, bit errors, parts that fail.

use super::common::{figure, over_names, percent, response_table, say};
use super::{Context, Plan};
use crate::bench::Sample;
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::load::Load;
use crate::shared::{Shared, SharedOutcome};
use crate::task::{Outcome, Task};
use forebay_flash::{DeviceSpec, InterfaceKind, InterfaceSpec};
use forebay_report::{Axis, Basis, Chart, ChartKind, Check, Experiment, Point, Series, Table};

mod reliability;

pub(super) const PLAN: Plan = Plan {
    id: "attachment",
    title: "Attachment",
    question: "What do an adapter, a cable and their protocol cost, against a card that is its own \
               PCIe endpoint, and what do they add to the parts that can fail?",
    method: "4 KiB random writes. The same medium behind each kind of attachment, one at a time \
             and 32 outstanding; one to eight devices behind one adapter that passes 60,000 \
             commands a second (an assumption typical of 2010) against as many cards on PCIe; and \
             bit error rates of the link from 1e-12 to 1e-5, each hit costing a repeat. \
             Reliability: parts that fail independently at assumed rates and are replaced after a \
             day, by the formulas of alternating renewal; runs at 200 times the rates check them.",
    devices: &["ddrdrive-x1"],
    small: &["ddrdrive-x1"],
    cells,
    show,
};

const KINDS: [(InterfaceKind, &str); 6] = [
    (InterfaceKind::Sata2, "SATA 3 Gb/s, adapter"),
    (InterfaceKind::Sata6, "SATA 6 Gb/s, adapter"),
    (InterfaceKind::Sas6, "SAS 6 Gb/s, adapter"),
    (InterfaceKind::Sas12, "SAS 12 Gb/s, adapter"),
    (InterfaceKind::Pcie, "PCIe x1 card"),
    (InterfaceKind::Nvme, "NVMe"),
];
const HBA_IOPS: f64 = 60_000.0;
const COUNTS: [u32; 6] = [1, 2, 3, 4, 6, 8];
const ERROR_RATES: [f64; 8] = [1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5];
const REQUESTS: u64 = 60_000;

fn attached(page: &Page, kind: InterfaceKind) -> DeviceSpec {
    let mut device = page.device.clone();
    device.interface = InterfaceSpec::of(kind);
    device
}

fn task(context: &Context, device: DeviceSpec, devices: u32, hba_iops: f64, depth: u32) -> Task {
    let pattern = Load { random_share: 1.0, outstanding: depth, ..Load::default() };
    let (seed, requests) = (context.seed, context.pick(REQUESTS, REQUESTS / 10));
    Task::Shared(Shared { device, devices, hba_iops, seed, requests, pattern })
}

const PER_DEVICE: usize = 2 * KINDS.len() + 2 * COUNTS.len() + ERROR_RATES.len();

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        let name = &page.device.name;
        for depth in [1, 32] {
            for (kind, what) in KINDS {
                let label = format!("{name}, {what}, depth {depth}");
                cells.push(Cell::new(label, task(context, attached(page, kind), 1, 0.0, depth)));
            }
        }
        for (kind, hba) in [(InterfaceKind::Sata2, HBA_IOPS), (InterfaceKind::Pcie, 0.0)] {
            for count in COUNTS {
                let label = format!("{name}, {count} devices");
                cells.push(Cell::new(label, task(context, attached(page, kind), count, hba, 32)));
            }
        }
        for rate in ERROR_RATES {
            let mut device = attached(page, InterfaceKind::Sata2);
            device.interface.bit_error_rate = Some(rate);
            let label = format!("{name}, bit error rate {rate:e}");
            cells.push(Cell::new(label, task(context, device, 1, 0.0, 32)));
        }
    }
    cells.extend(reliability::cells(context));
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let (outcomes, outages) = outcomes.split_at(context.pages.len() * PER_DEVICE);
    for (page, outcomes) in context.pages.iter().zip(outcomes.chunks(PER_DEVICE)) {
        let runs: Vec<_> = outcomes.iter().map(Outcome::shared).collect();
        let (kinds, rest) = runs.split_at(2 * KINDS.len());
        let (counts, errors) = rest.split_at(2 * COUNTS.len());
        show_kinds(page, kinds, e);
        show_counts(page, counts, e);
        show_errors(page, errors, e);
    }
    reliability::show(outages, e);
}

/// Response times of `runs` by name, from the host's side of the adapter.
fn times(names: impl Iterator<Item = String>, runs: &[&SharedOutcome]) -> Option<Table> {
    let runs = runs.iter().map(|run| run.whole.responses);
    response_table("From the host's side of the adapter.", names.zip(runs))
}

/// The same medium behind each kind of attachment: `runs` has all kinds at depth 1, then at 32.
fn show_kinds(page: &Page, runs: &[&SharedOutcome], e: &mut Experiment) {
    let name = &page.device.name;
    let (one, many) = runs.split_at(KINDS.len());
    let latency_us: Vec<f64> = one.iter().map(|run| run.whole.mean_ms * 1000.0).collect();
    let rates: Vec<f64> = many.iter().map(|run| run.whole.iops).collect();
    let mut chart = |id: &str, title: String, y: Axis, series: &str, values: &[f64], runs| {
        let values = KINDS.iter().zip(values).map(|((_, what), value)| (*what, Some(*value)));
        e.charts.push(Chart {
            id: format!("{}-{id}", page.id),
            title,
            caption: "Everything but the attachment is the same.".into(),
            kind: ChartKind::Row,
            x: Axis::linear("Attachment", ""),
            y,
            series: vec![over_names(series, values)],
            responses: times(KINDS.iter().map(|(_, what)| (*what).to_owned()), runs),
            ..Chart::default()
        });
    };
    let title = format!("The medium of {name}, one write at a time");
    chart("latency", title, Axis::linear("Mean response", "µs"), "mean response", &latency_us, one);
    let title = format!("The medium of {name}, 32 writes outstanding");
    chart("rate", title, Axis::linear("Writes", "1/s"), "writes a second", &rates, many);
    say(
        e,
        Basis::Input,
        format!(
            "One write at a time takes {} µs on a PCIe card and {} µs behind a SATA adapter.",
            figure(latency_us[4]),
            figure(latency_us[0])
        ),
    );
}

/// Several devices behind one adapter, and as many cards: `runs` has the adapter first.
fn show_counts(page: &Page, runs: &[&SharedOutcome], e: &mut Experiment) {
    let name = &page.device.name;
    let line = |runs: &[&SharedOutcome]| -> Vec<Point> {
        let counts = COUNTS.iter().zip(runs);
        counts.map(|(n, run)| Point::at(f64::from(*n), run.whole.iops)).collect()
    };
    let (behind, cards) = runs.split_at(COUNTS.len());
    let last = |runs: &[&SharedOutcome]| runs.last().map_or(0.0, |run| run.whole.iops);
    say(
        e,
        Basis::Input,
        format!(
            "Eight of {name} behind one adapter do {} writes a second together, eight cards {}: \
             the adapter is the limit from two devices on.",
            figure(last(behind)),
            figure(last(cards))
        ),
    );
    e.checks.push(Check::relative(
        format!("{name}: eight devices behind the adapter reach its cap and no more"),
        "1/s",
        (HBA_IOPS, last(behind)),
        0.01,
        Basis::Formula,
        "an adapter passes one command after another",
    ));
    let series = [("behind one adapter", line(behind)), ("one PCIe slot each", line(cards))];
    e.charts.push(Chart {
        id: format!("{}-adapter", page.id),
        title: "Several devices: one adapter against a slot each".into(),
        kind: ChartKind::Line,
        x: Axis::linear("Devices", ""),
        y: Axis::linear("Writes, all together", "1/s"),
        series: series
            .map(|(name, points)| Series { name: name.into(), points, ..Series::default() })
            .into(),
        responses: times(
            ["behind one adapter", "one PCIe slot each"].iter().flat_map(|what| {
                COUNTS.iter().map(move |count| format!("{count} devices, {what}"))
            }),
            runs,
        ),
        ..Chart::default()
    });
}

fn show_errors(page: &Page, runs: &[&SharedOutcome], e: &mut Experiment) {
    let line = |name: &str, value: fn(&Sample) -> f64| {
        let points = ERROR_RATES.iter().zip(runs);
        let points = points.map(|(rate, run)| Point::at(*rate, value(&run.whole))).collect();
        Series { name: name.into(), points, ..Series::default() }
    };
    e.charts.push(Chart {
        id: format!("{}-errors", page.id),
        title: "Bit errors on the link".into(),
        caption: "Below one error in a thousand commands only the longest response shows them."
            .into(),
        kind: ChartKind::Line,
        x: Axis::log("Bit error rate", ""),
        y: Axis::log("Response", "ms"),
        series: vec![line("mean", |s| s.mean_ms), line("longest", |s| s.max_ms)],
        responses: times(ERROR_RATES.iter().map(|rate| format!("bit error rate {rate:e}")), runs),
        ..Chart::default()
    });
    let worst = runs[ERROR_RATES.len() - 1].whole.iops / runs[0].whole.iops;
    say(
        e,
        Basis::Predicted,
        format!("A bit error rate of 1e-5 costs {} of the writes.", percent(1.0 - worst)),
    );
}
