//! Experiment `price`: sustained writes for a dollar.

use super::common::{OF_TAIL, figure, response_table, say};
use super::procedures::{self, steady_end};
use super::{Context, Plan};
use crate::catalogue::{self, Page};
use crate::drive::Cell;
use crate::task::Outcome;
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Column, Experiment, Point, Series, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "price",
    title: "Sustained writes for a dollar",
    question: "How many sustained 4 KiB random writes a second does a dollar buy?",
    method: "Sustained random 4 KiB writes (filled, then written twice over) over the price at \
             launch. An exact price gives a point; one printed as \"about\" an interval of 10 % \
             either way, one from memory 25 % (assumptions); an unknown price gives nothing. \
             A device with a reservation is in the table and not in the ranking.",
    devices: &[
        "ddrdrive-x1",
        "intel-311-20gb",
        "intel-320-40gb",
        "intel-320-300gb",
        "intel-320-600gb",
        "intel-510-250gb",
        "intel-710-200gb",
        "intel-s3700-100gb",
        "intel-s3700-200gb",
        "intel-s3700-400gb",
        "intel-900p-480gb",
        "intel-p4800x-375gb",
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
    ],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1", "intel-320-40gb"],
    cells,
    show,
};

fn runs(page: &Page) -> bool {
    !matches!(page.device.media, forebay_flash::MediaSpec::Disk(_))
}

fn cells(context: &Context) -> Vec<Cell> {
    let pages = context.pages.iter().filter(|p| runs(p));
    pages.map(|p| Cell::new(p.device.name.clone(), procedures::steady(context, p))).collect()
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let mut points = Vec::new();
    let mut rows = Vec::new();
    for (page, outcome) in context.pages.iter().filter(|p| runs(p)).zip(outcomes) {
        let iops = steady_end(outcome.timeline()).iops;
        let name = page.device.name.as_str();
        let price = page.facts.price_usd.as_ref().map(catalogue::Fact::interval);
        let point = Point::named(name, price.map(|(_, middle, _)| iops / middle));
        if page.reservation.is_none() {
            points.push(match price {
                Some((low, _, high)) if low < high => point.between(iops / high, iops / low),
                _ => point,
            });
        }
        let facts = &page.facts;
        let claimed = facts.fresh_write_iops.as_ref().or(facts.sustained_write_iops.as_ref());
        let claimed = claimed.map(catalogue::Fact::middle);
        let ratio = price.and_then(|(_, middle, _)| claimed.map(|c| c / middle));
        let text = price.map_or_else(TableCell::unknown, |(low, middle, high)| {
            if low < high {
                TableCell::text(format!("{} to {}", figure(low), figure(high)))
            } else {
                TableCell::number(middle)
            }
        });
        let note = page.facts.price_usd.as_ref().map_or("", |f| f.source.as_str());
        rows.push(vec![
            TableCell::text(name).noted(page.reservation.as_deref().unwrap_or_default()),
            TableCell::number(iops),
            text.noted(note),
            TableCell::maybe(price.map(|(_, middle, _)| iops / middle)),
            TableCell::maybe(ratio),
        ]);
    }
    let best = points.iter().filter_map(|p| p.y.map(|y| (p, y))).max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((point, y)) = best {
        let forebay_report::X::Name(name) = &point.x else { return };
        say(
            e,
            Basis::Predicted,
            format!("The most for a dollar: {name} with {} sustained writes a second.", figure(y)),
        );
    }
    e.charts.push(Chart {
        id: "iops-per-dollar".into(),
        title: "Sustained 4 KiB random writes a second for a dollar".into(),
        caption: "Bars are intervals where the price is uncertain; a device without a mark has no \
                  known price. Logarithmic."
            .into(),
        kind: ChartKind::Interval,
        x: Axis::linear("Device", ""),
        y: Axis::log("Writes for a dollar", "1/(s $)"),
        series: vec![Series { name: "sustained".into(), points, ..Series::default() }],
        responses: response_table(
            OF_TAIL,
            context
                .pages
                .iter()
                .filter(|p| runs(p))
                .zip(outcomes)
                .map(|(page, outcome)| (page.device.name.as_str(), outcome.timeline().tail())),
        ),
        ..Chart::default()
    });
    e.tables.push(table(rows));
}

fn table(rows: Vec<Vec<TableCell>>) -> Table {
    Table {
        id: "prices".into(),
        title: "Prices and rates".into(),
        caption: "By data sheet: the rate the vendor prints over the same price.".into(),
        columns: vec![
            Column::new("Device"),
            Column::with_unit("Sustained", "1/s"),
            Column::with_unit("Price at launch", "$"),
            Column::with_unit("Sustained for a dollar", "1/(s $)"),
            Column::with_unit("By data sheet", "1/(s $)"),
        ],
        rows,
    }
}
