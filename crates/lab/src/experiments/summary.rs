//! Experiment `summary`: the talks' comparison table. Each cell comes from a run or from the
//! catalogue.

use super::common::{figure, over_names, percent, response_table, say};
use super::procedures::{self, Shape, steady_end};
use super::{Context, Plan};
use crate::catalogue::{Fact, Page};
use crate::cut::{Cut, Durability};
use crate::drive::Cell;
use crate::load::{Content, Load};
use crate::task::{Outcome, Task};
use crate::timeline::Phase;
use forebay_flash::{InterfaceKind, MediaSpec};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Column, Experiment, Finding, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "summary",
    title: "Log devices compared",
    question: "Which device can stand as a log device, and what is the price of each choice?",
    method: "Each figure from a run of its own. Rates and sensitivities: procedure A (random 4 KiB \
             writes, 64 outstanding), mean of the last ten minutes. Content: repeating byte over \
             pseudo-random. Alignment: 512 B against 4 KiB. Partition: start at sector 63. Half \
             the span: the same load over the first half of the device, the rest never written; \
             no TRIM is sent. Write life: filled and written twice over, by the vendor's \
             rating, else by the cycles of the flash. Power: 300 cuts with FUA and with flushes.",
    devices: DEVICES,
    small: SMALL_DEVICES,
    cells,
    show,
};

/// The devices that the talks compare most.
pub(super) const DEVICES: &[&str] = &[
    "ocz-vertex-2-ex-50gb",
    "ocz-vertex-2-pro-50gb",
    "intel-320-160gb",
    "intel-710-200gb",
    "ddrdrive-x1",
];
pub(super) const SMALL_DEVICES: &[&str] = &["ocz-vertex-2-ex-50gb", "ddrdrive-x1"];

const RUNS: usize = 8;

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in context.pages.iter().filter(|p| runs(p)) {
        let base = Shape::random(1.0);
        let half = {
            let span_bytes = page.device.offered_bytes() / 2;
            let pattern = Load { random_share: 1.0, workers: 2, span_bytes, ..Load::default() };
            let load = Phase::Load { minutes: procedures::A_MINUTES, pattern };
            procedures::timeline(context, page, vec![Phase::SecureErase, load])
        };
        let cut = |durability| {
            let (device, seed) = (page.device.clone(), context.seed);
            let cuts = context.pick(300, 30);
            Task::Cut(Cut { device, seed, durability, cuts, rest_s: 3600.0 })
        };
        let tasks: [Task; RUNS] = [
            procedures::a(context, page, base),
            procedures::a(context, page, Shape { content: Content::Repeating, ..base }),
            procedures::a(context, page, Shape { align_bytes: 512, ..base }),
            procedures::a(context, page, Shape { offset_bytes: 63 * 512, ..base }),
            half,
            procedures::steady(context, page),
            cut(Durability::Fua),
            cut(Durability::Flush),
        ];
        cells.extend(tasks.map(|task| Cell::new(page.device.name.clone(), task)));
    }
    cells
}

fn runs(page: &Page) -> bool {
    !matches!(page.device.media, MediaSpec::Disk(_))
}

fn life(page: &Page, outcome: &Outcome) -> TableCell {
    if page.endless() {
        return TableCell::text("no limit").judged(true).noted("writing wears nothing");
    }
    let end = steady_end(outcome.timeline());
    let (bytes, by) = match (page.rated_bytes(), &page.device.media) {
        (Some(bytes), _) => (bytes, "by rating"),
        (None, MediaSpec::Flash(f)) => {
            let all = f.raw_bytes() as f64 * f.endurance.cycles_mean;
            (all / end.amplification.max(1.0), "by flash cycles")
        }
        _ => return TableCell::unknown(),
    };
    let days = bytes / (end.iops * 4096.0) / 86_400.0;
    TableCell::text(format!("{} days", figure(days))).judged(false).noted(by)
}

/// How far a ratio is from 1: under 5 % counts as insensitive.
fn sensitivity(value: f64, base: f64) -> TableCell {
    let change = value / base - 1.0;
    if change.abs() < 0.05 {
        return TableCell::text("none").judged(true).noted(percent(change));
    }
    let sign = if change > 0.0 { "+" } else { "" };
    TableCell::text(format!("{sign}{}", percent(change))).judged(false)
}

const ROWS: [&str; 13] = [
    "Fresh 4 KiB random writes, 1/s",
    "Sustained, 1/s",
    "Lost after secure erase",
    "Sensitivity to content",
    "Sensitivity to alignment",
    "Sensitivity to partition offset",
    "Gain with half the span in use",
    "Sustained writes for a dollar",
    "Write life at that rate",
    "Promised writes after power cuts",
    "Warranty, years",
    "Host bus adapter and cable",
    "External power",
];

/// The runs of one device, and what they share.
struct Row<'a> {
    page: &'a Page,
    runs: &'a [Outcome],
    fresh: f64,
    sustained: f64,
}

impl<'a> Row<'a> {
    fn new(page: &'a Page, runs: &'a [Outcome]) -> Self {
        let first = runs[0].timeline();
        let (fresh, sustained) = (first.fresh().iops, first.sustained(10.0).iops);
        Self { page, runs, fresh, sustained }
    }

    /// Share of the fresh rate that is lost.
    fn lost(&self) -> f64 {
        1.0 - self.sustained / self.fresh
    }

    /// How far the sustained rate of run `i` is from that of the first run.
    fn sensitivity(&self, i: usize) -> TableCell {
        sensitivity(self.runs[i].timeline().sustained(10.0).iops, self.sustained)
    }

    fn per_dollar(&self) -> TableCell {
        let dollars = self.page.facts.price_usd.as_ref().map(Fact::interval);
        dollars.map_or_else(TableCell::unknown, |(low, middle, high)| {
            let cell = TableCell::number(self.sustained / middle);
            if low < high {
                let (few, many) = (figure(self.sustained / high), figure(self.sustained / low));
                return cell.noted(format!("{few} to {many}: price uncertain"));
            }
            cell
        })
    }

    fn warranty(&self) -> TableCell {
        let warranty = self.page.facts.warranty_years.as_ref();
        warranty.map_or_else(TableCell::unknown, |f| {
            let cell = TableCell::number(f.middle());
            if f.recalled { cell.noted("from memory") } else { cell }
        })
    }

    fn external_power(&self) -> TableCell {
        match &self.page.device.media {
            MediaSpec::Dram(dram) if dram.energy.charge_w == 0.0 => {
                TableCell::text("needed").judged(false)
            }
            _ => TableCell::text("not needed").judged(true),
        }
    }

    /// The cells of [`ROWS`].
    fn cells(&self) -> [TableCell; ROWS.len()] {
        let lost = self.lost();
        let loss = if lost < 0.005 { "nothing".into() } else { percent(lost) };
        let safe = self.is_safe();
        let kind = self.page.device.interface.kind;
        let direct = matches!(kind, InterfaceKind::Pcie | InterfaceKind::Nvme);
        [
            TableCell::number(self.fresh),
            TableCell::number(self.sustained),
            TableCell::text(loss).judged(lost < 0.05),
            self.sensitivity(1),
            self.sensitivity(2),
            self.sensitivity(3),
            self.sensitivity(4),
            self.per_dollar(),
            life(self.page, &self.runs[5]),
            TableCell::text(if safe { "all there" } else { "some lost" }).judged(safe),
            self.warranty(),
            TableCell::text(if direct { "not needed" } else { "needed" }).judged(direct),
            self.external_power(),
        ]
    }

    fn is_safe(&self) -> bool {
        self.runs[6].cut().safe() && self.runs[7].cut().safe()
    }

    /// Sustained writes a second for a dollar.
    fn rate_for_a_dollar(&self) -> Option<f64> {
        let dollars = self.page.facts.price_usd.as_ref().map(Fact::middle);
        dollars.map(|dollars| self.sustained / dollars)
    }

    fn sentence(&self) -> String {
        let (name, fresh) = (&self.page.device.name, figure(self.fresh));
        if self.lost() < 0.05 {
            return format!("{name} keeps its {fresh} random writes a second.");
        }
        let kept = percent(self.sustained / self.fresh);
        format!("{name} keeps {kept} of the {fresh} random writes a second it starts with.")
    }
}

/// Which device to choose in which case, from what the runs show.
fn advice(devices: &[Row<'_>]) -> Vec<Finding> {
    let mut advice = Vec::new();
    let mut add = |basis, text| advice.push(Finding { text, basis });
    let safe = || devices.iter().filter(|d| d.is_safe() && d.page.reservation.is_none());
    if let Some(best) = safe().max_by(|a, b| a.sustained.total_cmp(&b.sustained)) {
        let longest = best.runs[0].timeline().tail().writes.max_ms;
        let wear = if best.page.endless() { ", and writing wears nothing" } else { "" };
        add(
            Basis::Predicted,
            format!(
                "Choose {} as the log device if the rate that lasts decides: {} random writes a \
                 second after hours of them, none slower than {} ms at the end, every promised \
                 write there after {} power cuts{wear}.",
                best.page.device.name,
                figure(best.sustained),
                figure(longest),
                best.runs[6].cut().cuts + best.runs[7].cut().cuts,
            ),
        );
    }
    let priced = safe().filter_map(|d| d.rate_for_a_dollar().map(|rate| (d, rate)));
    if let Some((best, rate)) = priced.max_by(|a, b| a.1.total_cmp(&b.1)) {
        let name = &best.page.device.name;
        let text = format!(
            "Choose {name} if its price at launch decides: {} sustained writes a second for a \
             dollar.",
            figure(rate)
        );
        add(Basis::Predicted, text);
    }
    let lossy: Vec<&str> =
        devices.iter().filter(|d| !d.is_safe()).map(|d| d.page.device.name.as_str()).collect();
    if !lossy.is_empty() {
        let text = format!(
            "Do not use as a log device: {}. As their vendors describe them, they lose writes that \
             they have promised.",
            lossy.join(", ")
        );
        add(Basis::Input, text);
    }
    advice
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let pages = context.pages.iter().filter(|p| runs(p));
    let devices: Vec<Row<'_>> =
        pages.zip(outcomes.chunks(RUNS)).map(|(page, runs)| Row::new(page, runs)).collect();
    let mut table: Vec<Vec<TableCell>> =
        ROWS.iter().map(|name| vec![TableCell::text(*name)]).collect();
    for device in &devices {
        for (row, cell) in table.iter_mut().zip(device.cells()) {
            row.push(cell);
        }
        say(e, Basis::Predicted, device.sentence());
    }
    e.advice = advice(&devices);
    let mut columns = vec![Column::new("")];
    columns.extend(devices.iter().map(|d| Column::new(&d.page.device.name)));
    e.tables.push(Table {
        id: "comparison".into(),
        title: "Comparison".into(),
        caption: "✓ speaks for a device as a log device, ✗ against it. What is fitted and what is \
                  predicted: docs/device-models.md."
            .into(),
        columns,
        rows: table,
    });
    let bars = |name: &str, value: fn(&Row<'_>) -> f64| {
        over_names(name, devices.iter().map(|d| (d.page.device.name.as_str(), Some(value(d)))))
    };
    e.charts.push(Chart {
        id: "fresh-sustained".into(),
        title: "Fresh and sustained random 4 KiB writes".into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y: Axis::linear("Writes", "1/s"),
        series: vec![bars("fresh", |d| d.fresh), bars("sustained", |d| d.sustained)],
        responses: response_table(
            "Fresh: the first minute. Sustained: the last sixth of the load.",
            devices.iter().flat_map(|d| {
                let (run, name) = (d.runs[0].timeline(), &d.page.device.name);
                let fresh = (format!("{name}, fresh"), run.fresh().responses);
                [fresh, (format!("{name}, sustained"), run.tail())]
            }),
        ),
        ..Chart::default()
    });
}
