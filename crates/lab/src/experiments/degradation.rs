//! Experiment `degradation`: the write rate of a fresh device over hours, with an hour of rest.

use super::common::{
    OF_TAIL, ResponseLine, figure, over_time, percent, printed, response_table, say,
    write_histogram,
};
use super::procedures::{self, A_MINUTES, MIXES, Shape};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::task::Outcome;
use crate::timeline::TimelineOutcome;
use forebay_flash::MediaSpec;
use forebay_report::{Axis, Band, Basis, Chart, ChartKind, Check, Experiment, Point, Series};

pub(super) const PLAN: Plan = Plan {
    id: "degradation",
    title: "Degradation after secure erase",
    question: "What is left of a fresh device's write rate, how soon is it lost, and does an hour \
               of rest bring it back?",
    method: "Procedure A: 4 KiB writes, 32 outstanding on each of two workers, pseudo-random data, \
             raw device; secure erase, 60 minutes of load, 60 minutes of rest, 60 minutes of load; \
             sequential, half random and random, places aligned to 4 KiB and to 512 bytes. \
             Procedure B: 4 KiB random writes, 32 outstanding, 80 minutes from secure erase. One \
             sample each 60 seconds. Whether a device cleans while it rests is an input: no source \
             says so of these, so that their pages say no. The same load runs also on models that \
             clean while they rest until half of their spare space is free.",
    devices: &[
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
        "ddrdrive-x1",
        "intel-320-40gb",
        "intel-320-80gb",
        "intel-320-160gb",
        "intel-320-300gb",
        "intel-320-600gb",
        "intel-710-100gb",
        "intel-710-200gb",
        "intel-710-300gb",
    ],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1", "intel-320-80gb"],
    cells,
    show,
};

/// Random aligned writes, the case that the talks opened with: its places in [`MIXES`] and
/// [`ALIGNS`].
const RANDOM: (usize, usize) = (2, 0);

/// Identifier, name, and the runs of procedure A of one device, by mix and then by alignment.
type RunsOfA<'a> = (&'a str, &'a str, Vec<&'a TimelineOutcome>);

const ALIGNS: [(u32, &str); 2] = [(4096, "4 KiB aligned"), (512, "512 B aligned")];

/// One printed row: device, share of random places, alignment, IOPS, MB/s, mean and longest
/// response in ms.
pub(crate) struct Printed {
    pub device: &'static str,
    pub random_share: f64,
    pub align_bytes: u32,
    pub iops: f64,
    pub mib_s: f64,
    pub mean_ms: f64,
    pub max_ms: f64,
}

/// What the 2010 talk printed for minute 180.
pub(crate) const PRINTED: [Printed; 2] = [
    Printed {
        device: "ocz-vertex-2-pro-50gb",
        random_share: 0.5,
        align_bytes: 4096,
        iops: 3252.45,
        mib_s: 12.70,
        mean_ms: 19.6793,
        max_ms: 281.5113,
    },
    Printed {
        device: "ocz-vertex-2-ex-50gb",
        random_share: 0.5,
        align_bytes: 512,
        iops: 5460.44,
        mib_s: 21.33,
        mean_ms: 11.7224,
        max_ms: 225.5198,
    },
];

fn runs_a(context: &Context, id: &str) -> bool {
    context.chosen || PLAN.devices[..3].contains(&id)
}

fn runs_b(context: &Context, id: &str) -> bool {
    context.chosen || PLAN.devices[2..].contains(&id)
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in context.pages.iter().filter(|p| runs_a(context, &p.id)) {
        for (random_share, mix) in MIXES {
            for (align_bytes, align) in ALIGNS {
                let shape = Shape { align_bytes, ..Shape::random(random_share) };
                let label = format!("{}, {mix}, {align}", page.device.name);
                cells.push(Cell::new(label, procedures::a(context, page, shape)));
            }
        }
    }
    for page in context.pages.iter().filter(|p| runs_b(context, &p.id)) {
        let label = format!("{}, procedure B", page.device.name);
        cells.push(Cell::new(label, procedures::b(context, page)));
    }
    if let Some(page) = rated(context) {
        cells.push(Cell::new("as the 710 is rated", procedures::steady(context, page)));
    }
    for page in context.pages.iter().filter(|p| runs_a(context, &p.id)) {
        if let Some(cleaning) = cleaning_at_rest(page) {
            let label = format!("{}, cleaning at rest", page.device.name);
            cells.push(Cell::new(label, procedures::a(context, &cleaning, Shape::random(1.0))));
        }
    }
    cells
}

/// The same device, if it is flash, with firmware that cleans while it rests until half of its
/// spare space is free.
fn cleaning_at_rest(page: &Page) -> Option<Page> {
    let mut page = page.clone();
    let offered = page.device.offered_bytes() as f64;
    let MediaSpec::Flash(flash) = &mut page.device.media else { return None };
    let spare = 1.0 - offered / flash.raw_bytes() as f64;
    let superblocks = f64::from(flash.geometry.blocks_per_plane) * spare / 2.0;
    flash.ftl.idle_clean_superblocks = superblocks.max(1.0) as u32;
    Some(page)
}

/// The device whose sustained rate its vendor prints: full span, in a steady state.
fn rated(context: &Context) -> Option<&Page> {
    context.pages.iter().find(|p| p.id == "intel-710-200gb")
}

fn idle_band() -> Vec<Band> {
    vec![Band { from: A_MINUTES, to: 2.0 * A_MINUTES, label: "an hour of rest".into() }]
}

/// Samples under load only: an hour of rest is a gap in the line, not a row of zeros.
fn loaded(outcome: &TimelineOutcome, name: &str) -> Series {
    let loads = outcome.phases.iter().filter(|p| p.whole.is_some());
    let mut series = Series { name: name.into(), ..Series::default() };
    for phase in loads {
        if !series.points.is_empty() {
            let gap = Point { y: None, ..Point::at(phase.from_minute, 0.0) };
            series.points.push(gap);
        }
        series.points.extend(over_time("", phase.samples.iter(), |s| s.iops).points);
    }
    series
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let mut next = outcomes.iter().map(Outcome::timeline).peekable();
    let per_device = MIXES.len() * ALIGNS.len();
    let mut of_a: Vec<RunsOfA<'_>> = Vec::new();
    for page in context.pages.iter().filter(|p| runs_a(context, &p.id)) {
        let runs = next.by_ref().take(per_device).collect();
        of_a.push((&page.id, &page.device.name, runs));
    }
    let of_b: Vec<(&Page, &TimelineOutcome)> =
        context.pages.iter().filter(|p| runs_b(context, &p.id)).zip(next.by_ref()).collect();
    let rated = rated(context).zip(next.next_if(|_| rated(context).is_some()));
    let mut cleaning: Vec<(&str, &TimelineOutcome)> = Vec::new();
    for page in context.pages.iter().filter(|p| runs_a(context, &p.id)) {
        if cleaning_at_rest(page).is_some() {
            cleaning.extend(next.next().map(|outcome| (page.id.as_str(), outcome)));
        }
    }
    sentences(&of_a, &cleaning, e);
    for (m, (share, mix)) in MIXES.iter().enumerate() {
        for (a, (align_bytes, align)) in ALIGNS.iter().enumerate() {
            let mut series: Vec<Series> = of_a
                .iter()
                .map(|(_, name, runs)| loaded(runs[m * ALIGNS.len() + a], name))
                .collect();
            if (m, a) == RANDOM {
                series.extend(cleaning.iter().map(|run| cleaning_line(run, &of_a)));
            }
            for row in &PRINTED {
                let here = row.random_share == *share && row.align_bytes == *align_bytes;
                if let Some((_, name, _)) =
                    of_a.iter().find(|(id, ..)| *id == row.device).filter(|_| here)
                {
                    series.push(printed(&format!("{name}, printed"), name, 180.0, row.iops));
                }
            }
            e.charts.push(Chart {
                id: format!("a-{m}-{align_bytes}"),
                title: format!("Procedure A: 4 KiB writes, {mix}, {align}"),
                caption: "Write rate each minute; hollow marks were printed by the 2010 talk. The \
                          scale is logarithmic."
                    .into(),
                kind: ChartKind::Line,
                x: Axis::linear("Time", "min"),
                y: Axis::log("Writes", "1/s"),
                series,
                bands: idle_band(),
                responses: response_table(
                    OF_TAIL,
                    of_a.iter().map(|(_, name, runs)| (*name, runs[m * ALIGNS.len() + a].tail())),
                ),
                ..Chart::default()
            });
        }
    }
    for (id, name, runs) in &of_a {
        response_times(id, name, runs, e);
    }
    if !of_b.is_empty() {
        e.charts.push(chart_of_b(&of_b));
        for (page, outcome) in &of_b {
            against_facts(page, outcome, e);
        }
    }
    if let Some((page, outcome)) = rated {
        against_rating(page, outcome, e);
    }
    checks(&of_a, e);
}

/// Procedure B, all devices.
fn chart_of_b(of_b: &[(&Page, &TimelineOutcome)]) -> Chart {
    let series = of_b.iter().map(|(p, o)| loaded(o, &p.device.name)).collect();
    Chart {
        id: "b".into(),
        title: "Procedure B: 4 KiB random writes from secure erase".into(),
        caption: "Larger members of a family fall later; none of the flash devices keeps its \
                      first rate."
            .into(),
        kind: ChartKind::Line,
        x: Axis::linear("Time", "min"),
        y: Axis::log("Writes", "1/s"),
        series,
        responses: response_table(
            OF_TAIL,
            of_b.iter().map(|(page, outcome)| (page.device.name.as_str(), outcome.tail())),
        ),
        ..Chart::default()
    }
}

const LINES: [ResponseLine; 5] = [
    ("p50", |t| t.at_ms[0]),
    ("p99", |t| t.at_ms[2]),
    ("p99.9", |t| t.at_ms[3]),
    ("p99.99", |t| t.at_ms[4]),
    ("longest", |t| Some(t.max_ms)),
];

/// Response times of one device minute by minute, under the load whose figures were printed, or
/// under random aligned writes.
fn response_times(id: &str, name: &str, runs: &[&TimelineOutcome], e: &mut Experiment) {
    let row = PRINTED.iter().find(|row| row.device == id);
    let (m, a) = row.map_or(RANDOM, Printed::place);
    let run = runs[m * ALIGNS.len() + a];
    let line = |(line, value): ResponseLine| {
        let points = run.samples().map(|s| {
            let y = Some(s.responses.writes).filter(|t| t.requests > 0).and_then(|t| value(&t));
            Point { y, ..Point::at(s.minute, 0.0) }
        });
        Series { name: line.into(), points: points.collect(), ..Series::default() }
    };
    let mut series: Vec<Series> = LINES.map(line).into();
    if let Some(row) = row {
        series.push(printed("longest, printed", "longest", 180.0, row.max_ms));
        let longest = run.last_load().map_or(0.0, |p| p.tail.writes.max_ms);
        say(
            e,
            Basis::Published,
            format!(
                "{name}: the longest response printed for minute 180 is {} ms; the model's over \
                 the last ten minutes is {} ms. No model has the firmware's own pauses.",
                figure(row.max_ms),
                figure(longest),
            ),
        );
    }
    e.charts.push(Chart {
        id: format!("responses-{id}"),
        title: format!("{name}: response times, {}, {}", MIXES[m].1, ALIGNS[a].1),
        caption: "Of the writes of each minute: the histogram, and lines for its percentiles. A \
                  percentile is drawn where at least one write lies beyond it. Logarithmic."
            .into(),
        kind: ChartKind::Line,
        x: Axis::linear("Time", "min"),
        y: Axis::log("Response", "ms"),
        series,
        bands: idle_band(),
        histogram: write_histogram(run),
        responses: response_table(OF_TAIL, [(name, run.tail())]),
        ..Chart::default()
    });
}

impl Printed {
    /// Its mix and its alignment, as places in [`MIXES`] and [`ALIGNS`].
    fn place(&self) -> (usize, usize) {
        let mix = MIXES.iter().position(|(share, _)| *share == self.random_share);
        let align = ALIGNS.iter().position(|(bytes, _)| *bytes == self.align_bytes);
        (mix.unwrap_or_default(), align.unwrap_or_default())
    }
}

/// The 320's and the 710's printed rates, which their fitted numbers rest on; and what follows.
fn against_facts(page: &Page, outcome: &TimelineOutcome, e: &mut Experiment) {
    let Some(fact) = page.facts.fresh_write_iops.as_ref().filter(|f| !f.recalled) else { return };
    // The larger ones are at the controller's limit, which was fitted on the 300 GB one; the
    // smaller ones have fewer dies, and their figures follow from that alone.
    let (basis, tolerance) = match page.id.as_str() {
        "intel-320-300gb" => (Basis::Fitted, 0.05),
        "intel-320-40gb" | "intel-320-80gb" => (Basis::Predicted, 0.30),
        _ => return,
    };
    e.checks.push(Check::relative(
        format!("{}: first minute after secure erase", page.device.name),
        "1/s",
        (fact.middle(), outcome.fresh().iops),
        tolerance,
        basis,
        &fact.source,
    ));
}

fn against_rating(page: &Page, outcome: &TimelineOutcome, e: &mut Experiment) {
    let end = procedures::steady_end(outcome);
    let facts = &page.facts;
    for (what, unit, fact, got, tolerance) in [
        ("sustained, full span", "1/s", &facts.sustained_write_iops, end.iops, 0.05),
        ("write amplification", "", &facts.write_amplification, end.amplification, 0.25),
    ] {
        let Some(fact) = fact else { continue };
        e.checks.push(Check::relative(
            format!("{}: {what}", page.device.name),
            unit,
            (fact.middle(), got),
            tolerance,
            Basis::Fitted,
            &fact.source,
        ));
    }
}

/// The line of a device that cleans while it rests, in the color of the same device that does not.
fn cleaning_line((id, outcome): &(&str, &TimelineOutcome), of_a: &[RunsOfA<'_>]) -> Series {
    let name = of_a.iter().find(|(other, ..)| other == id).map_or(*id, |(_, name, _)| *name);
    let line = loaded(outcome, &format!("{name}, cleaning at rest"));
    Series { group: name.into(), dashed: true, ..line }
}

fn sentences(of_a: &[RunsOfA<'_>], cleaning: &[(&str, &TimelineOutcome)], e: &mut Experiment) {
    for (id, name, runs) in of_a {
        let run = runs[RANDOM.0 * ALIGNS.len() + RANDOM.1];
        let (fresh, tenth) = (run.fresh().iops, at_minute(run, 10.0));
        let end = run.sustained(10.0).iops;
        let flat = run.phases.iter().flat_map(|p| &p.samples).filter(|s| s.iops > 0.0);
        let (low, high) = flat.fold((f64::MAX, 0.0f64), |(l, h), s| (l.min(s.iops), h.max(s.iops)));
        if high / low < 1.02 {
            say(
                e,
                Basis::Predicted,
                format!(
                    "{name}: flat at {} writes a second; lowest and highest minute differ by {}.",
                    figure(end),
                    percent(high / low - 1.0)
                ),
            );
            continue;
        }
        say(
            e,
            Basis::Predicted,
            format!(
                "{name}: random 4 KiB writes fall from {} to {} a second within ten minutes of \
                 secure erase ({} lost) and end at {}.",
                figure(fresh),
                figure(tenth),
                percent(1.0 - tenth / fresh),
                figure(end),
            ),
        );
        if let Some((_, cleaning)) = cleaning.iter().find(|(other, _)| other == id) {
            rest(name, run, cleaning, e);
        }
    }
}

/// What an hour of rest changes without cleaning and with it.
fn rest(name: &str, run: &TimelineOutcome, cleaning: &TimelineOutcome, e: &mut Experiment) {
    let text = format!(
        "{name}: an hour of rest leaves the rate as it was ({} before, {} in the first minute \
         after), because its page says that it does not clean at rest. If it did, until half of \
         its spare space is free, the first minute would have {} and the tenth {}.",
        figure(at_minute(run, 60.0)),
        figure(at_minute(run, 121.0)),
        figure(at_minute(cleaning, 121.0)),
        figure(at_minute(cleaning, 130.0)),
    );
    say(e, Basis::Input, text);
}

fn at_minute(run: &TimelineOutcome, minute: f64) -> f64 {
    let near = |s: &&crate::bench::Sample| (s.minute - minute).abs() < 0.5 && s.iops > 0.0;
    run.samples().find(near).map_or(0.0, |s| s.iops)
}

fn checks(of_a: &[RunsOfA<'_>], e: &mut Experiment) {
    for row in &PRINTED {
        let Some((_, name, runs)) = of_a.iter().find(|(id, ..)| *id == row.device) else {
            continue;
        };
        let (m, a) = row.place();
        let end = runs[m * ALIGNS.len() + a].sustained(1.0);
        for (what, unit, pair) in [
            ("writes", "1/s", (row.iops, end.iops)),
            ("throughput", "MiB/s", (row.mib_s, end.mib_s)),
            ("mean response", "ms", (row.mean_ms, end.mean_ms)),
        ] {
            e.checks.push(Check::relative(
                format!("{name}: {what} at minute 180"),
                unit,
                pair,
                0.05,
                Basis::Fitted,
                "Iometer figures printed in the 2010 talk",
            ));
        }
    }
    for (_, name, runs) in of_a {
        let run = runs[RANDOM.0 * ALIGNS.len() + RANDOM.1];
        e.checks.push(Check::relative(
            format!("{name}: random writes in the first minute after rest, over the last before"),
            "",
            (1.0, at_minute(run, 121.0) / at_minute(run, 60.0).max(1e-9)),
            0.05,
            Basis::Input,
            "2010 talk: idling does not bring the rate back",
        ));
    }
}
