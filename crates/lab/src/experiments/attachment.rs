//! What lies between host and device: hops, protocol, a shared adapter, bit errors.

use super::common::{figure, percent, say};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::load::Load;
use crate::shared::Shared;
use crate::task::{Outcome, Task};
use forebay_flash::{DeviceSpec, InterfaceKind, InterfaceSpec};
use forebay_report::{Axis, Basis, Chart, ChartKind, Check, Experiment, Point, Series};

pub(super) const PLAN: Plan = Plan {
    id: "attachment",
    title: "Attachment",
    question: "What do an adapter, a cable and their protocol cost, against a card that is its own \
               PCIe endpoint?",
    method: "4 KiB random writes. The same medium behind each kind of attachment, one at a time and \
             32 outstanding; one to eight devices behind one adapter that passes 60,000 commands a \
             second (an assumption typical of 2010) against as many cards on PCIe; and bit error \
             rates of the link from 1e-12 to 1e-5, each hit costing a repeat.",
    devices: &["ddrdrive-x1"],
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
    let (seed, requests) = (context.seed, REQUESTS);
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
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    for (page, outcomes) in context.pages.iter().zip(outcomes.chunks(PER_DEVICE)) {
        let runs: Vec<_> = outcomes.iter().map(Outcome::shared).collect();
        let (kinds, rest) = runs.split_at(2 * KINDS.len());
        let (counts, errors) = rest.split_at(2 * COUNTS.len());
        let name = &page.device.name;
        let latency = |k: usize| kinds[k].whole.mean_ms * 1000.0;
        let points =
            KINDS.iter().enumerate().map(|(k, (_, what))| Point::named(*what, Some(latency(k))));
        e.charts.push(Chart {
            id: format!("{}-latency", page.id),
            title: format!("The medium of {name}, one write at a time"),
            caption: "Everything but the attachment is the same.".into(),
            kind: ChartKind::Row,
            x: Axis::linear("Attachment", ""),
            y: Axis::linear("Mean response", "µs"),
            series: vec![Series {
                name: "mean response".into(),
                points: points.collect(),
                ..Series::default()
            }],
            ..Chart::default()
        });
        let points = KINDS
            .iter()
            .enumerate()
            .map(|(k, (_, what))| Point::named(*what, Some(kinds[KINDS.len() + k].whole.iops)));
        e.charts.push(Chart {
            id: format!("{}-rate", page.id),
            title: format!("The medium of {name}, 32 writes outstanding"),
            kind: ChartKind::Row,
            x: Axis::linear("Attachment", ""),
            y: Axis::linear("Writes", "1/s"),
            series: vec![Series {
                name: "writes a second".into(),
                points: points.collect(),
                ..Series::default()
            }],
            ..Chart::default()
        });
        let line = |from: usize| {
            let counts = COUNTS.iter().zip(&counts[from..]);
            counts.map(|(n, run)| Point::at(f64::from(*n), run.whole.iops)).collect()
        };
        let behind: Vec<Point> = line(0);
        let cards: Vec<Point> = line(COUNTS.len());
        let last = |points: &[Point]| points.last().and_then(|p| p.y).unwrap_or_default();
        say(
            e,
            Basis::Predicted,
            format!(
                "Eight of {name} behind one adapter do {} writes a second together, eight cards {}: \
                 the adapter is the limit from two devices on.",
                figure(last(&behind)),
                figure(last(&cards))
            ),
        );
        say(
            e,
            Basis::Predicted,
            format!(
                "One write at a time takes {} µs on a PCIe card and {} µs behind a SATA adapter.",
                figure(latency(4)),
                figure(latency(0))
            ),
        );
        e.checks.push(Check::relative(
            format!("{name}: eight devices behind the adapter reach its cap and no more"),
            "1/s",
            (HBA_IOPS, last(&behind)),
            0.01,
            Basis::Formula,
            "an adapter passes one command after another",
        ));
        e.charts.push(Chart {
            id: format!("{}-adapter", page.id),
            title: "Several devices: one adapter against a slot each".into(),
            kind: ChartKind::Line,
            x: Axis::linear("Devices", ""),
            y: Axis::linear("Writes, all together", "1/s"),
            series: vec![
                Series { name: "behind one adapter".into(), points: behind, ..Series::default() },
                Series { name: "one PCIe slot each".into(), points: cards, ..Series::default() },
            ],
            ..Chart::default()
        });
        let of = |value: fn(&crate::bench::Sample) -> f64| {
            let points = ERROR_RATES.iter().zip(errors);
            points.map(|(rate, run)| Point::at(*rate, value(&run.whole))).collect()
        };
        e.charts.push(Chart {
            id: format!("{}-errors", page.id),
            title: "Bit errors on the link".into(),
            caption: "Below one error in a thousand commands only the longest response shows them."
                .into(),
            kind: ChartKind::Line,
            x: Axis::log("Bit error rate", ""),
            y: Axis::log("Response", "ms"),
            series: vec![
                Series { name: "mean".into(), points: of(|s| s.mean_ms), ..Series::default() },
                Series { name: "longest".into(), points: of(|s| s.max_ms), ..Series::default() },
            ],
            ..Chart::default()
        });
        let worst = errors[ERROR_RATES.len() - 1].whole.iops / errors[0].whole.iops;
        say(
            e,
            Basis::Predicted,
            format!("A bit error rate of 1e-5 costs {} of the writes.", percent(1.0 - worst)),
        );
    }
}
