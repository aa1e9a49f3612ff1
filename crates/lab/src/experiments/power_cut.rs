//! Experiment `power-cut`: writes promised durable that are gone after a power cut.

use super::common::{figure, over_names, say};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::cut::{Cut, CutOutcome, Durability};
use crate::drive::Cell;
use crate::task::{Outcome, Task};
use forebay_flash::{DeviceSpec, Honesty, MediaSpec, Plp};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "power-cut",
    title: "Power cuts",
    question: "Which devices keep every write they have promised when power goes at any instant?",
    method: "4 KiB writes, eight outstanding; power is cut at a random instant, 300 times. The \
             host asks for durability with FUA on each write, with a flush each 32 writes, or not \
             at all (flushes turned off). Rested: an hour between power and load. At once: the \
             next load, and so the next cut, comes right after power. A promised write counts as \
             lost when it is absent, torn, undone with its map entry, or cannot be read.",
    devices: &[
        "intel-x25-e-32gb",
        "intel-x25-m-g2-80gb",
        "intel-520-240gb",
        "samsung-850-pro-256gb",
        "ocz-vector-180-480gb",
        "intel-320-160gb",
        "intel-710-200gb",
        "ocz-vertex-2-ex-50gb",
        "ddrdrive-x1",
        "stec-zeusram-8gb",
        "pmc-flashtec-nv-16gb",
    ],
    small: &["samsung-850-pro-256gb", "ocz-vertex-2-ex-50gb", "ddrdrive-x1", "stec-zeusram-8gb"],
    cells,
    show,
};

/// Cuts in each edition.
const CUTS: u32 = 300;
const SMALL_CUTS: u32 = 30;

/// How the host asks, how long the device rests between cuts, and what that is called.
const WAYS: [(Durability, f64, &str); 4] = [
    (Durability::Fua, 3600.0, "FUA"),
    (Durability::Flush, 3600.0, "flush"),
    (Durability::Trusting, 3600.0, "flushes turned off"),
    (Durability::Fua, 0.0, "FUA, cut again at once"),
];

/// A device under test and what its model stands for.
struct Subject {
    device: DeviceSpec,
    /// The device breaks its promises: the experiment must catch it.
    lies: bool,
}

fn subjects(context: &Context) -> Vec<Subject> {
    let honest = |p: &Page| Subject { device: p.device.clone(), lies: false };
    let mut subjects: Vec<Subject> = context.pages.iter().map(honest).collect();
    if context.chosen {
        return subjects;
    }
    // A device that lies and one whose energy store has aged: the experiment must catch both.
    let liar = context.pages.iter().find(|p| p.id == "samsung-850-pro-256gb").map(|p| {
        let mut device = p.device.clone();
        device.name += ", ignoring flush and FUA";
        if let MediaSpec::Flash(flash) = &mut device.media {
            flash.cache.flush = Honesty::Ignored;
            flash.cache.fua = Honesty::Ignored;
        }
        Subject { device, lies: true }
    });
    let tired = context.pages.iter().find(|p| p.id == "stec-zeusram-8gb").map(|p| {
        let mut device = p.device.clone();
        device.name += ", energy store aged to a quarter";
        if let MediaSpec::Dram(dram) = &mut device.media {
            dram.energy.full_j /= 4.0;
        }
        Subject { device, lies: false }
    });
    subjects.extend(liar.into_iter().chain(tired));
    subjects
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for Subject { device, .. } in subjects(context) {
        for (durability, rest_s, way) in WAYS {
            let (seed, cuts) = (context.seed, context.pick(CUTS, SMALL_CUTS));
            let cut = Cut { device: device.clone(), seed, durability, cuts, rest_s };
            cells.push(Cell::new(format!("{}, {way}", device.name), Task::Cut(cut)));
        }
    }
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let subjects = subjects(context);
    let runs: Vec<&CutOutcome> = outcomes.iter().map(Outcome::cut).collect();
    let runs: Vec<&[&CutOutcome]> = runs.chunks(WAYS.len()).collect();
    for (subject, runs) in subjects.iter().zip(&runs) {
        check(subject, runs, e);
    }
    let cuts = context.pick(CUTS, SMALL_CUTS);
    sentences(&subjects, &runs, cuts, e);
    let mut columns = vec![Column::new("Device")];
    columns.extend(WAYS.iter().map(|(.., way)| Column::new(way)));
    let rows = subjects.iter().zip(&runs).map(|(subject, runs)| {
        let name = TableCell::text(&subject.device.name);
        std::iter::once(name).chain(runs.iter().map(|run| lost_cell(run))).collect()
    });
    e.tables.push(Table {
        id: "lost".into(),
        title: format!("Promised writes after {cuts} power cuts"),
        caption: "Models follow what the vendors say of each device's protection; the table shows \
                  what that means, not what a drive in hand does."
            .into(),
        columns,
        rows: rows.collect(),
    });
    let series = WAYS.iter().enumerate().map(|(w, (.., way))| {
        let shares = subjects.iter().zip(&runs).map(|(subject, runs)| {
            let share = f64::from(runs[w].bad_cuts) / f64::from(runs[w].cuts.max(1));
            (subject.device.name.as_str(), Some(share * 100.0))
        });
        over_names(way, shares)
    });
    e.charts.push(Chart {
        id: "bad-cuts".into(),
        title: "Cuts that lose something promised".into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y: Axis::linear("Cuts", "%"),
        series: series.collect(),
        ..Chart::default()
    });
}

fn lost_cell(run: &CutOutcome) -> TableCell {
    let promised = figure(run.promised as f64);
    if run.safe() {
        let note = format!("{promised} promised writes");
        return TableCell::text("nothing lost").judged(true).noted(note);
    }
    let note = format!(
        "{} of {promised} promised writes: {} undone with the map, {} torn; {} ranges at rest",
        figure(run.lost as f64),
        run.rolled_back,
        run.shorn,
        run.ruined_at_rest
    );
    let text = format!("{} of {} cuts lose", run.bad_cuts, run.cuts);
    TableCell::text(text).judged(false).noted(note)
}

fn check(subject: &Subject, runs: &[&CutOutcome], e: &mut Experiment) {
    let name = &subject.device.name;
    if let MediaSpec::Flash(flash) = &subject.device.media {
        if flash.cache.plp == Plp::Full {
            e.checks.push(Check::relative(
                format!("{name}: cuts that lose promised writes, FUA, flush or neither"),
                "",
                (0.0, runs[..3].iter().map(|r| f64::from(r.bad_cuts)).sum()),
                0.0,
                Basis::Input,
                "energy for everything acknowledged",
            ));
        }
    }
    if subject.lies {
        e.checks.push(Check::relative(
            "A device that ignores flushes is caught",
            "",
            (1.0, f64::from(u32::from(!runs[1].safe()))),
            0.0,
            Basis::Invariant,
            "a test that cannot fail proves nothing",
        ));
    }
}

/// One sentence for each way to survive: each device is in one of them.
fn sentences(subjects: &[Subject], runs: &[&[&CutOutcome]], cuts: u32, e: &mut Experiment) {
    let classes = [
        "Every promised write survived, even with flushes turned off and cut again at once, on",
        "Rested devices lost nothing, but a second cut right after the first did harm, on",
        "Writes survived only while flush and FUA were used, on",
        "Promised writes were lost despite flush and FUA on",
    ];
    let class = |runs: &[&CutOutcome]| match [0, 1, 2, 3].map(|way: usize| runs[way].safe()) {
        [true, true, true, true] => 0,
        [true, true, true, false] => 1,
        [true, true, false, _] => 2,
        _ => 3,
    };
    for (number, what) in classes.iter().enumerate() {
        let here = subjects.iter().zip(runs).filter(|(_, runs)| class(runs) == number);
        let names: Vec<&str> = here.map(|(subject, _)| subject.device.name.as_str()).collect();
        if !names.is_empty() {
            let text = format!("{what} ({cuts} cuts each): {}.", names.join(", "));
            // What a cache keeps is what the vendor says of it.
            say(e, Basis::Input, text);
        }
    }
}
