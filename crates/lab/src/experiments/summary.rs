//! The talks' comparison table, each cell from a run or from the catalogue.

use super::common::{figure, percent, say};
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
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Column, Experiment, Point, Series, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "summary",
    title: "Log devices compared",
    question: "Which device can stand as a log device, and what is the price of each choice?",
    method: "Each figure from a run of its own. Rates and sensitivities: procedure A (random 4 KiB \
             writes, 64 outstanding), mean of the last ten minutes. Content: repeating byte over \
             pseudo-random. Alignment: 512 B against 4 KiB. Partition: start at sector 63. TRIM: \
             the half of the device that is used and trimmed to is what cleaning sees, so the same \
             load over half the span. Write life: filled and written twice over, by the vendor's \
             rating, else by the cycles of the flash. Power: 300 cuts with FUA and with flushes.",
    devices: &[
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
        "intel-320-160gb",
        "intel-710-200gb",
        "ddrdrive-x1",
    ],
    cells,
    show,
};

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
            Task::Cut(Cut { device, seed, durability, cuts: 300, settle_s: 3600.0 })
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

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let pages: Vec<&Page> = context.pages.iter().filter(|p| runs(p)).collect();
    let mut table: Vec<Vec<TableCell>> = [
        "Fresh 4 KiB random writes, 1/s",
        "Sustained, 1/s",
        "Lost after secure erase",
        "Sensitivity to content",
        "Sensitivity to alignment",
        "Sensitivity to partition offset",
        "Sensitivity to TRIM",
        "Sustained writes for a dollar",
        "Write life at that rate",
        "Promised writes after power cuts",
        "Warranty, years",
        "Host bus adapter and cable",
        "External power",
    ]
    .map(|name| vec![TableCell::text(name)])
    .to_vec();
    let mut bars = (Vec::new(), Vec::new());
    for (page, runs) in pages.iter().zip(outcomes.chunks(RUNS)) {
        let iops = |i: usize| runs[i].timeline().sustained(10.0).iops;
        let (fresh, sustained) = (runs[0].timeline().fresh().iops, iops(0));
        let name = page.device.name.as_str();
        bars.0.push(Point::named(name, Some(fresh)));
        bars.1.push(Point::named(name, Some(sustained)));
        let lost = 1.0 - sustained / fresh;
        let dollars = page.facts.price_usd.as_ref().map(Fact::interval);
        let per_dollar = dollars.map_or_else(TableCell::unknown, |(low, middle, high)| {
            let cell = TableCell::number(sustained / middle);
            if low < high {
                let (few, many) = (figure(sustained / high), figure(sustained / low));
                return cell.noted(format!("{few} to {many}: price uncertain"));
            }
            cell
        });
        let safe = runs[6].cut().safe() && runs[7].cut().safe();
        let power = if safe { "all there" } else { "some lost" };
        let warranty = page.facts.warranty_years.as_ref();
        let years = warranty.map_or_else(TableCell::unknown, |f| {
            let cell = TableCell::number(f.middle());
            if f.recalled { cell.noted("from memory") } else { cell }
        });
        let kind = page.device.interface.kind;
        let direct = matches!(kind, InterfaceKind::Pcie | InterfaceKind::Nvme);
        let external = match &page.device.media {
            MediaSpec::Dram(dram) if dram.energy.charge_w == 0.0 => {
                TableCell::text("needed").judged(false)
            }
            _ => TableCell::text("not needed").judged(true),
        };
        let column = [
            TableCell::number(fresh),
            TableCell::number(sustained),
            TableCell::text(if lost < 0.005 { "nothing".into() } else { percent(lost) })
                .judged(lost < 0.05),
            sensitivity(iops(1), sustained),
            sensitivity(iops(2), sustained),
            sensitivity(iops(3), sustained),
            sensitivity(iops(4), sustained),
            per_dollar,
            life(page, &runs[5]),
            TableCell::text(power).judged(safe),
            years,
            TableCell::text(if direct { "not needed" } else { "needed" }).judged(direct),
            external,
        ];
        for (row, cell) in table.iter_mut().zip(column) {
            row.push(cell);
        }
        if lost >= 0.05 {
            say(
                e,
                Basis::Predicted,
                format!(
                    "{name} keeps {} of the {} random writes a second it starts with.",
                    percent(sustained / fresh),
                    figure(fresh)
                ),
            );
        } else {
            say(
                e,
                Basis::Predicted,
                format!("{name} keeps its {} random writes a second.", figure(fresh)),
            );
        }
    }
    let mut columns = vec![Column::new("")];
    columns.extend(pages.iter().map(|p| Column::new(&p.device.name)));
    e.tables.push(Table {
        id: "comparison".into(),
        title: "Comparison".into(),
        caption: "✓ speaks for a device as a log device, ✗ against it. What is fitted and what is \
                  predicted: docs/device-models.md."
            .into(),
        columns,
        rows: table,
    });
    e.charts.push(Chart {
        id: "fresh-sustained".into(),
        title: "Fresh and sustained random 4 KiB writes".into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y: Axis::linear("Writes", "1/s"),
        series: vec![
            Series { name: "fresh".into(), points: bars.0, ..Series::default() },
            Series { name: "sustained".into(), points: bars.1, ..Series::default() },
        ],
        ..Chart::default()
    });
}
