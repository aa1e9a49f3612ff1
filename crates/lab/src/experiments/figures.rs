//! Experiment `figures`: rates that others printed about a device, against its model.

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
    question: "How far is each model from the rates printed for its device?",
    method: "Every device of the catalogue with a printed rate of small random writes. Fresh: the \
             first minute after secure erase, 32 writes outstanding. Sustained: filled once, then \
             written at random twice over. Other loads as their pages have them; of those it is \
             known whether a number of the model was fitted to them. A figure is met within 15 % \
             of what was printed; one printed as \"about\" has an interval of 10 % either way \
             before that, one from memory 25 %. A device with a reservation stays in the table, is \
             no check, and is left out of every ranking.",
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
            Rate::Other(rate) => &rate.what,
        }
    }

    /// Lower end, middle, upper end of what was printed.
    fn interval(&self) -> (f64, f64, f64) {
        match self.rate {
            Rate::Fresh(fact) | Rate::Sustained(fact) => fact.interval(),
            Rate::Other(rate) => (rate.requests_s(), rate.requests_s(), rate.requests_s()),
        }
    }

    fn source(&self) -> &str {
        match self.rate {
            Rate::Fresh(fact) | Rate::Sustained(fact) => &fact.source,
            Rate::Other(rate) => &rate.source,
        }
    }

    /// Whether a number of the model was chosen by it; a fact does not say.
    fn fitted(&self) -> &'static str {
        match self.rate {
            Rate::Fresh(_) | Rate::Sustained(_) => "",
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
        }
    }

    /// Requests a second of the model.
    fn got(&self, timeline: &TimelineOutcome) -> f64 {
        match self.rate {
            Rate::Fresh(_) => timeline.fresh().iops,
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
            .chain(facts.rates.iter().map(Rate::Other));
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
    let (mut rows, mut met, mut reserved_misses) = (Vec::new(), 0, 0);
    let printed = printed(context);
    for (p, outcome) in printed.iter().zip(outcomes) {
        let timeline = outcome.timeline();
        let (name, (low, middle, high)) = (p.page.device.name.as_str(), p.interval());
        let got = p.got(timeline);
        let is_met = p.is_met(got);
        met += usize::from(is_met);
        let reservation = p.page.reservation.as_deref();
        if reservation.is_none() {
            // The nearest end of what was printed.
            let expected = got.clamp(low, high);
            let name = format!("{name}: {}", p.what());
            let basis = if p.fitted() == "yes" { Basis::Fitted } else { Basis::Published };
            let source = p.source();
            e.checks.push(Check::relative(name, "1/s", (expected, got), WITHIN, basis, source));
        } else {
            reserved_misses += usize::from(!is_met);
        }
        rows.push(vec![
            TableCell::text(name),
            TableCell::text(p.what()),
            TableCell::text(p.fitted()),
            TableCell::number(middle).noted(p.source()),
            TableCell::number(got).judged(is_met),
            TableCell::text(percent(got / middle - 1.0)),
            TableCell::text(reservation.unwrap_or_default()),
        ]);
    }
    say(
        e,
        Basis::Published,
        format!(
            "{met} of {} printed rates are met within {}; {reserved_misses} of the others \
             belong to devices with a reservation, which no ranking has.",
            printed.len(),
            percent(WITHIN),
        ),
    );
    e.tables.push(Table {
        id: "figures".into(),
        title: "Printed rates and models".into(),
        caption: "Misses included. Whether a figure was used to fit its model: \
                  docs/device-models.md."
            .into(),
        columns: vec![
            Column::new("Device"),
            Column::new("Rate"),
            Column::new("Fitted to it"),
            Column::with_unit("Printed", "1/s"),
            Column::with_unit("Model", "1/s"),
            Column::new("Off by"),
            Column::new("Reservation"),
        ],
        rows,
    });
}
