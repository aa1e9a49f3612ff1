//! Reliability of an attachment: parts in series, and parts that both sides of a mirror share.

use super::super::Context;
use super::super::common::{figure, percent, say};
use crate::drive::Cell;
use crate::outages::{Outages, OutagesOutcome, Part, Rates};
use crate::task::{Outcome, Task};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Series,
    Table,
};

/// A kind of part, with its failures a year.
type Kind = (&'static str, f64);

/// Two million hours between failures, which sheets of enterprise drives print (from memory).
const DRIVE: Kind = ("drive or card", 0.0044);
const ADAPTER: Kind = ("host bus adapter", 0.004);
const CABLE: Kind = ("cable with its connectors", 0.0015);
const BACKPLANE: Kind = ("backplane", 0.005);
const SLOT: Kind = ("PCIe slot", 0.0005);
/// Each rate may be so many times higher or lower.
const WITHIN: f64 = 2.0;

/// Time until a failed part is replaced.
const REPAIR_HOURS: f64 = 24.0;
/// Rates of the simulated runs are so many times higher, so that outages of a mirror are met.
const SIMULATED_TIMES: f64 = 200.0;

/// How a log is attached: its name, the parts that both sides need, and those of each side.
struct Arrangement {
    name: &'static str,
    shared: &'static [Kind],
    sides: &'static [&'static [Kind]],
}

const BEHIND: &[Kind] = &[DRIVE, ADAPTER, CABLE, BACKPLANE];
const ON_CARD: &[Kind] = &[DRIVE, SLOT];
const PATH: &[Kind] = &[ADAPTER, CABLE];

const ARRANGEMENTS: [Arrangement; 6] = [
    Arrangement { name: "one drive behind an adapter", shared: &[], sides: &[BEHIND] },
    Arrangement { name: "one card in a slot", shared: &[], sides: &[ON_CARD] },
    Arrangement {
        name: "one drive, two adapters and cables",
        shared: &[DRIVE, BACKPLANE],
        sides: &[PATH, PATH],
    },
    Arrangement {
        name: "mirror behind one adapter",
        shared: &[ADAPTER, CABLE, BACKPLANE],
        sides: &[&[DRIVE], &[DRIVE]],
    },
    Arrangement {
        name: "mirror, an adapter and backplane each",
        shared: &[],
        sides: &[BEHIND, BEHIND],
    },
    Arrangement { name: "mirror of two cards", shared: &[], sides: &[ON_CARD, ON_CARD] },
];
// Places in the list.
const ONE_DRIVE: usize = 0;
const ONE_CARD: usize = 1;
const TWO_PATHS: usize = 2;
const SHARED: usize = 3;
const APART: usize = 4;
const CARDS: usize = 5;

const SOURCE: &str = "Jiang, Hu, Zhou, Kanevsky, FAST 2008, 39,000 systems: \
                      usenix.org/legacy/event/fast08/tech/jiang.html";

impl Arrangement {
    /// With all rates `times` higher.
    fn outages(&self, times: f64, years: f64, seed: u64) -> Outages {
        let parts = |kinds: &[Kind]| -> Vec<Part> {
            let part = |(name, rate): &Kind| Part {
                name: (*name).to_owned(),
                failures_a_year: rate * times,
            };
            kinds.iter().map(part).collect()
        };
        Outages {
            shared: parts(self.shared),
            sides: self.sides.iter().map(|side| parts(side)).collect(),
            repair_hours: REPAIR_HOURS,
            years,
            seed,
        }
    }

    /// By formula, with all rates `times` higher.
    fn rates(&self, times: f64) -> Rates {
        self.outages(times, 1.0, 0).formula()
    }

    /// Parts that must all work for one side to work.
    fn in_series(&self) -> usize {
        self.shared.len() + self.sides.first().map_or(0, |side| side.len())
    }
}

pub(super) fn cells(context: &Context) -> Vec<Cell> {
    let years = context.pick(2e6, 5e5);
    let cell = |arrangement: &Arrangement| {
        let outages = arrangement.outages(SIMULATED_TIMES, years, context.seed);
        Cell::new(format!("outages, {}", arrangement.name), Task::Outages(Box::new(outages)))
    };
    ARRANGEMENTS.iter().map(cell).collect()
}

pub(super) fn show(outcomes: &[Outcome], e: &mut Experiment) {
    let rates = ARRANGEMENTS.each_ref().map(|arrangement| arrangement.rates(1.0));
    let years = |rates: &Rates| 1.0 / rates.outages_a_year;
    let points = ARRANGEMENTS.iter().zip(&rates).map(|(arrangement, rates)| {
        let ends = [WITHIN, 1.0 / WITHIN].map(|times| years(&arrangement.rates(times)));
        Point::named(arrangement.name, Some(years(rates))).between(ends[0], ends[1])
    });
    e.charts.push(Chart {
        id: "outages".into(),
        title: "Parts in series: years between outages of a log".into(),
        caption:
            "An outage: no device of the log can be reached. Parts fail independently and are \
                  replaced after a day. Intervals: all rates of failure twice as high and half as \
                  high. Logarithmic."
                .into(),
        kind: ChartKind::Interval,
        x: Axis::linear("Attachment", ""),
        y: Axis::log("Time between outages", "years"),
        series: vec![Series {
            name: "years between outages".into(),
            points: points.collect(),
            ..Series::default()
        }],
        ..Chart::default()
    });
    e.tables.push(table(&rates));
    sentences(&rates, e);
    let runs = outcomes.iter().map(Outcome::outages);
    ARRANGEMENTS
        .iter()
        .zip(runs)
        .for_each(|(arrangement, run)| against_formula(arrangement, run, e));
    against_field(&rates, e);
}

fn table(rates: &[Rates]) -> Table {
    let row = |(arrangement, rates): (&Arrangement, &Rates)| {
        vec![
            TableCell::text(arrangement.name),
            TableCell::number(arrangement.in_series() as f64),
            TableCell::number(rates.repairs_a_year * 1000.0),
            TableCell::number(1.0 / rates.outages_a_year),
            TableCell::number(rates.hours_a_year * 3600.0),
        ]
    };
    let assumed = [DRIVE, ADAPTER, CABLE, BACKPLANE, SLOT];
    let assumed = assumed.map(|(name, rate)| format!("{name} {}", percent(rate))).join(", ");
    Table {
        id: "reliability".into(),
        title: "What fails, and how often the log is out".into(),
        caption: format!("Failures a year that are assumed: {assumed}. Each within a factor of 2."),
        columns: vec![
            Column::new("Attachment"),
            Column::new("Parts in series"),
            Column::with_unit("Parts replaced, of 1,000 logs", "1/year"),
            Column::with_unit("Between outages", "years"),
            Column::with_unit("Out", "s/year"),
        ],
        rows: ARRANGEMENTS.iter().zip(rates).map(row).collect(),
    }
}

fn sentences(rates: &[Rates; 6], e: &mut Experiment) {
    let outages = |which: usize| rates[which].outages_a_year;
    say(
        e,
        Basis::Input,
        format!(
            "Behind an adapter, a cable and a backplane a device is out {} times as often as on a \
             card: rates of parts in series add up, and the device's own is {} of them.",
            figure(outages(ONE_DRIVE) / outages(ONE_CARD)),
            percent(DRIVE.1 / outages(ONE_DRIVE)),
        ),
    );
    say(
        e,
        Basis::Formula,
        format!(
            "A mirror behind one adapter is out every {} years, one device there every {}: the \
             mirror covers the devices alone. With an adapter and a backplane for each side it is \
             out every {} million years, of two cards every {} million, as long as failures are \
             independent.",
            figure(1.0 / outages(SHARED)),
            figure(1.0 / outages(ONE_DRIVE)),
            figure(1e-6 / outages(APART)),
            figure(1e-6 / outages(CARDS)),
        ),
    );
}

/// The run, whose rates are higher, against the formula at the same rates.
fn against_formula(arrangement: &Arrangement, run: &OutagesOutcome, e: &mut Experiment) {
    e.checks.push(Check::relative(
        format!(
            "{}: outages simulated at {SIMULATED_TIMES} times the rates ({} met)",
            arrangement.name, run.outages
        ),
        "1/year",
        (run.formula.outages_a_year, run.simulated.outages_a_year),
        0.05,
        Basis::Formula,
        "alternating renewal of independent parts",
    ));
}

/// Shares that were printed of systems in the field. The rates of adapter, cable and backplane were
/// chosen so that both come out.
fn against_field(rates: &[Rates; 6], e: &mut Experiment) {
    let own = DRIVE.1 / rates[ONE_DRIVE].outages_a_year;
    let name = "The device's share of the failures behind an adapter: 20 to 55 % in the field";
    e.checks.push(Check::at_least(name, "", (0.20, own), Basis::Fitted, SOURCE));
    e.checks.push(Check::at_most(name, "", (0.55, own), Basis::Fitted, SOURCE));
    let fewer = 1.0 - rates[TWO_PATHS].outages_a_year / rates[ONE_DRIVE].outages_a_year;
    e.checks.push(Check::relative(
        "Failures that a second adapter and cable to a device prevent: 30 to 40 % in the field",
        "",
        (0.35, fewer),
        0.05 / 0.35,
        Basis::Fitted,
        SOURCE,
    ));
}
