//! Experiment `figures`: write rates that others printed about a device, against its model.

use super::common::{percent, say};
use super::procedures::{self, steady_end};
use super::{Context, Plan};
use crate::catalogue::{Fact, Page};
use crate::drive::Cell;
use crate::load::Load;
use crate::task::Outcome;
use crate::timeline::Phase;
use forebay_report::{Basis, Cell as TableCell, Check, Column, Experiment, Table};

pub(super) const PLAN: Plan = Plan {
    id: "figures",
    title: "Models against printed figures",
    question: "How far is each model from the write rates printed for its device?",
    method: "Every device of the catalogue with a printed rate of small random writes. Fresh: the \
             first minute after secure erase, 32 writes outstanding. Sustained: filled once, then \
             written at random twice over. A figure is met within 15 % of what was printed; one \
             printed as \"about\" has an interval of 10 % either way before that, one from memory \
             25 %. A device with a reservation stays in the table, is no check, and is left out of \
             every ranking.",
    devices: &[],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1", "intel-510-120gb", "intel-s3700-400gb"],
    cells,
    show,
};

/// How far a model may be from a printed figure.
const WITHIN: f64 = 0.15;

/// A printed rate and how it is measured.
#[derive(Clone, Copy)]
struct Printed<'a> {
    page: &'a Page,
    what: &'static str,
    fact: &'a Fact,
    is_fresh: bool,
}

fn printed(context: &Context) -> Vec<Printed<'_>> {
    let mut printed = Vec::new();
    for page in &context.pages {
        for (what, is_fresh, fact) in [
            ("fresh", true, &page.facts.fresh_write_iops),
            ("sustained", false, &page.facts.sustained_write_iops),
        ] {
            printed.extend(fact.iter().map(|fact| Printed { page, what, fact, is_fresh }));
        }
    }
    printed
}

fn cells(context: &Context) -> Vec<Cell> {
    let task = |p: &Printed<'_>| {
        if !p.is_fresh {
            return procedures::steady(context, p.page);
        }
        let random = Load { random_share: 1.0, ..Load::default() };
        let pattern = p.fact.load.clone().unwrap_or(random);
        let load = Phase::Load { minutes: 1.0, pattern };
        procedures::timeline(context, p.page, vec![Phase::SecureErase, load])
    };
    let cell = |p: &Printed<'_>| Cell::new(format!("{}, {}", p.page.device.name, p.what), task(p));
    printed(context).iter().map(cell).collect()
}

/// Whether a rate is near enough to the interval of a printed one.
fn is_met(fact: &Fact, got: f64) -> bool {
    let (low, _, high) = fact.interval();
    (low * (1.0 - WITHIN)..=high * (1.0 + WITHIN)).contains(&got)
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let (mut rows, mut met, mut reserved_misses) = (Vec::new(), 0, 0);
    let printed = printed(context);
    for (p, outcome) in printed.iter().zip(outcomes) {
        let timeline = outcome.timeline();
        let got = if p.is_fresh { timeline.fresh().iops } else { steady_end(timeline).iops };
        let (name, middle) = (p.page.device.name.as_str(), p.fact.middle());
        let is_met = is_met(p.fact, got);
        met += usize::from(is_met);
        let reservation = p.page.reservation.as_deref();
        if reservation.is_none() {
            let (low, _, high) = p.fact.interval();
            // The nearest end of what was printed.
            let expected = got.clamp(low, high);
            let name = format!("{name}: {} writes", p.what);
            let basis = Basis::Published;
            let source = p.fact.source.as_str();
            e.checks.push(Check::relative(name, "1/s", (expected, got), WITHIN, basis, source));
        } else {
            reserved_misses += usize::from(!is_met);
        }
        rows.push(vec![
            TableCell::text(name),
            TableCell::text(p.what),
            TableCell::number(middle).noted(p.fact.source.as_str()),
            TableCell::number(got).judged(is_met),
            TableCell::text(percent(got / middle - 1.0)),
            TableCell::text(reservation.unwrap_or_default()),
        ]);
    }
    say(
        e,
        Basis::Published,
        format!(
            "{met} of {} printed write rates are met within {}; {reserved_misses} of the others \
             belong to devices with a reservation, which no ranking has.",
            printed.len(),
            percent(WITHIN),
        ),
    );
    e.tables.push(Table {
        id: "figures".into(),
        title: "Printed write rates and models".into(),
        caption: "Misses included. Whether a figure was used to fit its model: \
                  docs/device-models.md."
            .into(),
        columns: vec![
            Column::new("Device"),
            Column::new("Rate"),
            Column::with_unit("Printed", "1/s"),
            Column::with_unit("Model", "1/s"),
            Column::new("Off by"),
            Column::new("Reservation"),
        ],
        rows,
    });
}
