//! Experiment `figures`: what others printed about a device, against its model.

use super::common::{percent, say};
use super::procedures::{self, steady_end};
use super::{Context, Plan};
use crate::catalogue::{Before, Fact, Page, PrintedRate};
use crate::drive::Cell;
use crate::load::Load;
use crate::task::{Outcome, Task};
use crate::timeline::{Phase, TimelineOutcome};
use forebay_report::{Basis, Cell as TableCell, Check, Column, Experiment, Table};

pub(super) const PLAN: Plan = Plan {
    id: "figures",
    title: "Models against printed figures",
    question: "How far is each model from the rates and latencies printed for its device?",
    method: "Every device of the catalogue with a printed rate of small random writes. Fresh: the \
             first minute after secure erase, 32 writes outstanding. Sustained: filled once, then \
             written at random twice over. Other loads as their pages have them; of those it is \
             known whether a number of the model was fitted to them. A figure is met within 15 % \
             of what was printed; one printed as \"about\" has an interval of 10 % either way \
             before that, one from memory 25 %, one printed as \"below\" has no lower end. A \
             device with a reservation stays in the table, is no check, and is left out of every \
             ranking. Latencies: 4 KiB writes in order after secure erase, one at a time, the \
             mean; no ranking uses them, so that a miss is shown and is no failed check.",
    devices: &[],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1", "intel-510-120gb", "intel-s3700-400gb"],
    cells,
    show,
};

/// How far a model may be from a printed figure.
const WITHIN: f64 = 0.15;

/// A printed rate and how it is measured.
#[derive(Clone, Copy)]
enum Rate<'a> {
    /// Random writes after secure erase.
    Fresh(&'a Fact),
    /// Random writes in the end.
    Sustained(&'a Fact),
    /// Another load.
    Other(&'a PrintedRate),
    /// Time of one write, which is not a rate.
    Latency(&'a Fact),
    /// Durable writes a second, one at a time: the time of one as well.
    Durable(&'a Fact),
}

#[derive(Clone, Copy)]
struct Printed<'a> {
    page: &'a Page,
    rate: Rate<'a>,
}

impl Printed<'_> {
    fn what(&self) -> &str {
        match self.rate {
            Rate::Fresh(_) => "fresh random writes",
            Rate::Sustained(_) => "sustained random writes",
            Rate::Latency(_) => "one write at a time",
            Rate::Durable(_) => "one durable write at a time",
            Rate::Other(rate) => &rate.what,
        }
    }

    /// Lower end, middle, upper end of what was printed.
    fn interval(&self) -> (f64, f64, f64) {
        match self.rate {
            Rate::Fresh(fact) | Rate::Sustained(fact) => fact.interval(),
            Rate::Other(rate) => (rate.requests_s(), rate.requests_s(), rate.requests_s()),
            Rate::Latency(fact) if fact.note == "below" => (0.0, fact.middle(), fact.interval().2),
            Rate::Latency(fact) => fact.interval(),
            Rate::Durable(fact) => {
                let (low, middle, high) = fact.interval();
                (1e6 / high, 1e6 / middle, 1e6 / low)
            }
        }
    }

    fn source(&self) -> &str {
        match self.rate {
            Rate::Fresh(fact) | Rate::Sustained(fact) => &fact.source,
            Rate::Latency(fact) | Rate::Durable(fact) => &fact.source,
            Rate::Other(rate) => &rate.source,
        }
    }

    /// Whether a number of the model was chosen by it; a fact does not say.
    fn fitted(&self) -> &'static str {
        match self.rate {
            Rate::Fresh(_) | Rate::Sustained(_) | Rate::Latency(_) | Rate::Durable(_) => "",
            Rate::Other(rate) if rate.fitted => "yes",
            Rate::Other(_) => "no",
        }
    }

    fn task(&self, context: &Context) -> Task {
        match self.rate {
            Rate::Fresh(fact) => {
                let random = Load { random_share: 1.0, ..Load::default() };
                let pattern = fact.load.clone().unwrap_or(random);
                let load = Phase::Load { minutes: 1.0, pattern };
                procedures::timeline(context, self.page, vec![Phase::SecureErase, load])
            }
            Rate::Sustained(_) => procedures::steady(context, self.page),
            Rate::Other(rate) => other(context, self.page, rate),
            Rate::Latency(fact) | Rate::Durable(fact) => {
                let fua = matches!(self.rate, Rate::Durable(_));
                let alone = Load { outstanding: 1, fua, ..Load::default() };
                let pattern = fact.load.clone().unwrap_or(alone);
                let load = Phase::Load { minutes: 1.0, pattern };
                procedures::timeline(context, self.page, vec![Phase::SecureErase, load])
            }
        }
    }

    /// Requests a second of the model, or microseconds.
    fn got(&self, timeline: &TimelineOutcome) -> f64 {
        match self.rate {
            Rate::Fresh(_) => timeline.fresh().iops,
            Rate::Latency(_) | Rate::Durable(_) => timeline.fresh().mean_ms * 1e3,
            Rate::Sustained(_) => steady_end(timeline).iops,
            Rate::Other(rate) if rate.at_end => steady_end(timeline).iops,
            Rate::Other(_) => {
                let whole = timeline.last_load().and_then(|phase| phase.whole);
                whole.map_or(0.0, |sample| sample.iops)
            }
        }
    }

    /// Whether a rate is near enough to the interval of the printed one.
    fn is_met(&self, got: f64) -> bool {
        let (low, _, high) = self.interval();
        (low * (1.0 - WITHIN)..=high * (1.0 + WITHIN)).contains(&got)
    }
}

fn other(context: &Context, page: &Page, rate: &PrintedRate) -> Task {
    let span_bytes = (page.device.offered_bytes() as f64 * rate.span_share) as u64;
    let pattern = Load { span_bytes, ..rate.load.clone() };
    let mut phases = vec![Phase::SecureErase];
    if rate.before == Before::Span {
        let in_order = Load { block_bytes: 128 << 10, span_bytes, ..Load::default() };
        phases.push(Phase::Passes { passes: rate.span_share, pattern: in_order });
    }
    phases.push(match rate.passes {
        Some(passes) => Phase::Passes { passes, pattern },
        None => Phase::Load { minutes: 1.0, pattern },
    });
    procedures::timeline(context, page, phases)
}

fn printed(context: &Context) -> Vec<Printed<'_>> {
    let mut printed = Vec::new();
    for page in &context.pages {
        let facts = &page.facts;
        let rates = (facts.fresh_write_iops.iter().map(Rate::Fresh))
            .chain(facts.sustained_write_iops.iter().map(Rate::Sustained))
            .chain(facts.rates.iter().map(Rate::Other))
            .chain(facts.write_latency_us.iter().map(Rate::Latency))
            .chain(facts.sync_write_iops.iter().map(Rate::Durable));
        printed.extend(rates.map(|rate| Printed { page, rate }));
    }
    printed
}

fn cells(context: &Context) -> Vec<Cell> {
    let cell = |p: &Printed<'_>| {
        Cell::new(format!("{}, {}", p.page.device.name, p.what()), p.task(context))
    };
    printed(context).iter().map(cell).collect()
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let printed = printed(context);
    let runs: Vec<(&Printed<'_>, f64)> =
        printed.iter().zip(outcomes).map(|(p, outcome)| (p, p.got(outcome.timeline()))).collect();
    let (latencies, rates): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|(p, _)| matches!(p.rate, Rate::Latency(_) | Rate::Durable(_)));
    show_rates(&rates, e);
    if !latencies.is_empty() {
        show_latencies(&latencies, e);
    }
}

/// Device, what was printed, the model's figure, and how far it is off.
fn row(p: &Printed<'_>, got: f64) -> Vec<TableCell> {
    let (_, middle, _) = p.interval();
    vec![
        TableCell::text(&p.page.device.name),
        TableCell::text(p.what()),
        TableCell::text(p.fitted()),
        TableCell::number(middle).noted(p.source()),
        TableCell::number(got).judged(p.is_met(got)),
        TableCell::text(percent(got / middle - 1.0)),
        TableCell::text(p.page.reservation.as_deref().unwrap_or_default()),
    ]
}

fn columns(unit: &str) -> Vec<Column> {
    vec![
        Column::new("Device"),
        Column::new("Of"),
        Column::new("Fitted to it"),
        Column::with_unit("Printed", unit),
        Column::with_unit("Model", unit),
        Column::new("Off by"),
        Column::new("Reservation"),
    ]
}

fn show_rates(rates: &[(&Printed<'_>, f64)], e: &mut Experiment) {
    let met = rates.iter().filter(|(p, got)| p.is_met(*got)).count();
    let reserved = rates.iter().filter(|(p, _)| p.page.reservation.is_some());
    let reserved_misses = reserved.filter(|(p, got)| !p.is_met(*got)).count();
    for (p, got) in rates.iter().filter(|(p, _)| p.page.reservation.is_none()) {
        let (low, _, high) = p.interval();
        // The nearest end of what was printed.
        let expected = got.clamp(low, high);
        let name = format!("{}: {}", p.page.device.name, p.what());
        let basis = if p.fitted() == "yes" { Basis::Fitted } else { Basis::Published };
        let source = p.source();
        e.checks.push(Check::relative(name, "1/s", (expected, *got), WITHIN, basis, source));
    }
    say(
        e,
        Basis::Published,
        format!(
            "{met} of {} printed rates are met within {}; {reserved_misses} of the others \
             belong to devices with a reservation, which no ranking has.",
            rates.len(),
            percent(WITHIN),
        ),
    );
    e.tables.push(Table {
        id: "figures".into(),
        title: "Printed rates and models".into(),
        caption: "Misses included. Whether a figure was used to fit its model: \
                  docs/device-models.md."
            .into(),
        columns: columns("1/s"),
        rows: rates.iter().map(|(p, got)| row(p, *got)).collect(),
    });
}

fn show_latencies(latencies: &[(&Printed<'_>, f64)], e: &mut Experiment) {
    let met = latencies.iter().filter(|(p, got)| p.is_met(*got)).count();
    say(
        e,
        Basis::Published,
        format!(
            "{met} of {} printed latencies of writes are met within {}: most models have the time \
             that a command costs, and not how long it is under way.",
            latencies.len(),
            percent(WITHIN),
        ),
    );
    e.tables.push(Table {
        id: "latencies".into(),
        title: "Printed latencies of writes and models".into(),
        caption: "Misses included. No number of a model was chosen by a latency, but for those \
                  whose page says so."
            .into(),
        columns: columns("us"),
        rows: latencies.iter().map(|(p, got)| row(p, *got)).collect(),
    });
}
