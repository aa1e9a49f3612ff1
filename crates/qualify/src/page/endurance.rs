//! Endurance and price on the page: life as an interval, and what a durable write costs.

use forebay_report::{Axis, Cell, ChartKind, Column, Experiment, Point, Role, Series, Table};

use super::{Shown, chart, experiment, said};
use crate::detect::whole;
use crate::plan::QUEUE_DEPTHS;
use crate::{Outcome, Qualification, StepKind};

const SECONDS_A_DAY: f64 = 86_400.0;

/// What durable writes of the purpose's method come to.
#[derive(Clone, Copy)]
struct Rates {
    /// Bytes a second of the slowest depth.
    least: f64,
    /// Of the fastest.
    most: f64,
    /// Writes a second of the fastest.
    iops: f64,
}

impl Rates {
    fn of(run: &Qualification) -> Option<Self> {
        let sync = run.plan.purpose.sync();
        let at = |queue_depth| whole(&run.outcomes, StepKind::SyncWrites { sync, queue_depth });
        let outcomes: Vec<&Outcome> = QUEUE_DEPTHS.into_iter().filter_map(at).collect();
        let bytes = || outcomes.iter().map(|o| o.measured.bytes_per_s());
        let most = bytes().fold(0.0, f64::max);
        let iops = outcomes.iter().map(|o| o.measured.iops()).fold(0.0, f64::max);
        (most > 0.0).then(|| Self { least: bytes().fold(f64::MAX, f64::min), most, iops })
    }
}

/// Days from the first write to the rated one, without a pause: shortest and longest.
fn life_days(of: &Shown<'_>, rates: Rates) -> Option<(f64, f64)> {
    let days = of.run.conditions.rated_bytes? / SECONDS_A_DAY;
    Some((days / rates.most, days / rates.least))
}

/// One chapter: a finding for each run, and charts and tables of what is known.
pub(super) fn endurance(shown: &[Shown<'_>]) -> Experiment {
    let question = "How long does it last at that rate, and what does a durable write cost?";
    let mut e = experiment(shown, "endurance", "Endurance and price", question);
    e.method = "Rated host bytes divided by the durable bytes a second: written at the rate of \
                the fastest depth to that of the slowest, without a pause."
        .to_owned();
    let caption = "The mark is the life at the fastest depth.";
    let mut lives = chart(&e, "life", "Life without a pause", caption);
    (lives.kind, lives.y) = (ChartKind::Interval, Axis::log("Life", "days"));
    let mut rows = Vec::new();
    for of in shown {
        let Some(rates) = Rates::of(of.run) else { continue };
        let (life, price) = (life_days(of, rates), of.run.conditions.price_usd);
        e.findings.push(of.finding(said(shown, of, &text(life, price, rates))));
        if let Some((shortest, longest)) = life {
            let point = Point::named(&of.name, Some(shortest)).between(shortest, longest);
            let role = if of.is_model() { Role::Simulated } else { Role::Measured };
            let (name, group) = (of.name.clone(), of.name.clone());
            let points = vec![point];
            lives.series.push(Series { name, group, role, dashed: false, points });
        }
        if life.is_some() || price.is_some() {
            rows.push(row(of, rates, life, price));
        }
    }
    if !lives.series.is_empty() {
        e.charts.push(lives);
    }
    if !rows.is_empty() {
        e.tables.push(table(rows));
    }
    e
}

fn text(life: Option<(f64, f64)>, price: Option<f64>, rates: Rates) -> String {
    let life = match life {
        Some((shortest, longest)) => {
            format!("the rated writes last {shortest:.0} to {longest:.0} days without a pause")
        }
        None => "its rated writes are not known (--rated-tb gives them)".to_owned(),
    };
    let price = match price {
        Some(price) => {
            format!("a durable write a second costs {:.4} dollars", price / rates.iops)
        }
        None => "its price is not known (--price gives it)".to_owned(),
    };
    format!("{life}; {price}")
}

fn row(of: &Shown<'_>, rates: Rates, life: Option<(f64, f64)>, price: Option<f64>) -> Vec<Cell> {
    vec![
        Cell::text(&of.name),
        Cell::maybe(of.run.conditions.rated_bytes.map(|bytes| bytes / 1e12)),
        Cell::number(rates.least / 1e6),
        Cell::number(rates.most / 1e6),
        Cell::maybe(life.map(|(shortest, _)| shortest)),
        Cell::maybe(life.map(|(_, longest)| longest)),
        Cell::maybe(price),
        Cell::maybe(price.map(|price| price / rates.iops * 1e3)),
        Cell::maybe(price.map(|price| rates.iops / price)),
    ]
}

fn table(rows: Vec<Vec<Cell>>) -> Table {
    Table {
        id: "lifetime".to_owned(),
        title: "Life without a pause, and price of durable writes".to_owned(),
        caption: "Rated bytes and prices are inputs; an unknown one leaves its columns open."
            .to_owned(),
        columns: vec![
            Column::new("Device"),
            Column::with_unit("Rated", "TB"),
            Column::with_unit("Durable, least", "MB/s"),
            Column::with_unit("Durable, most", "MB/s"),
            Column::with_unit("Life, shortest", "days"),
            Column::with_unit("Life, longest", "days"),
            Column::with_unit("Price", "$"),
            Column::with_unit("A thousand durable writes a second", "$"),
            Column::with_unit("Durable writes a second for a dollar", "1/s/$"),
        ],
        rows,
    }
}
