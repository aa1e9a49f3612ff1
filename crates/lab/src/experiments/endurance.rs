//! Experiment `endurance`: time until the flash is written to its limit, alone and in a mirror.

use super::common::{figure, over_names, percent, say};
use super::procedures::{self, steady_end};
use super::{Context, Plan};
use crate::bench::Sample;
use crate::catalogue::{self, Page};
use crate::drive::Cell;
use crate::mirror::{Mirror, MirrorOutcome};
use crate::task::{Outcome, Task};
use forebay_flash::{DeviceSpec, MediaSpec};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Role,
    Series, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "endurance",
    title: "Write life",
    question: "For how long can a log device take its own sustained write rate?",
    method: "Sustained random 4 KiB writes (filled, then written twice over) against the host \
             bytes the vendor rates it for, and against the cycles of its flash times its raw size \
             over the amplification measured. Mirrors: two translation layers take the same writes \
             until each is out of good blocks, with few cycles a block, which only changes the \
             unit of time; failed blocks are counted along the way.",
    devices: &[
        "intel-x25-e-32gb",
        "intel-x25-e-64gb",
        "intel-x25-m-g2-80gb",
        "intel-311-20gb",
        "intel-320-160gb",
        "intel-320-300gb",
        "intel-710-100gb",
        "intel-710-200gb",
        "intel-710-300gb",
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
        "samsung-850-pro-256gb",
        "ocz-vector-180-480gb",
        "intel-s3700-200gb",
        "intel-p3700-400gb",
        "samsung-pm9a3-1920gb",
        "kioxia-cm7-r-1920gb",
        "kioxia-fl6-800gb",
        "solidigm-p5810-800gb",
    ],
    small: &["ocz-vertex-2-ex-50gb", "intel-x25-e-32gb"],
    cells,
    show,
};

/// Device both mirrors are made of.
const MIRRORED: &str = "ocz-vertex-2-ex-50gb";
const MODEL_CYCLES: f64 = 60.0;
const DAY_S: f64 = 86_400.0;

/// The same device with half as much flash again, and no more of it offered.
fn larger(device: &DeviceSpec) -> DeviceSpec {
    let mut larger = device.clone();
    if let MediaSpec::Flash(flash) = &mut larger.media {
        flash.geometry.blocks_per_plane = flash.geometry.blocks_per_plane / 2 * 3;
    }
    larger.name = format!("{}, half as much flash again", device.name);
    larger
}

fn spare20(page: &Page) -> Page {
    let mut page = page.clone();
    page.device.unused_fraction = 0.2;
    page
}

const SPARED: &str = "intel-710-200gb";

fn flash_pages(context: &Context) -> Vec<&Page> {
    let flash = |p: &&Page| matches!(p.device.media, MediaSpec::Flash(_));
    context.pages.iter().filter(flash).collect()
}

fn mirrors(context: &Context) -> Vec<(String, Task)> {
    let page = catalogue::find(MIRRORED).expect("built in");
    let left = page.device.clone();
    let task = |right: DeviceSpec| {
        let (left, cycles, seed) = (left.clone(), MODEL_CYCLES, context.seed);
        Task::Mirror(Box::new(Mirror { left, right, cycles, seed }))
    };
    vec![
        ("mirror of equals".to_owned(), task(left.clone())),
        ("mirror of unequals".to_owned(), task(larger(&left))),
    ]
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells: Vec<Cell> = flash_pages(context)
        .iter()
        .map(|page| Cell::new(page.device.name.clone(), procedures::steady(context, page)))
        .collect();
    if context.chosen {
        return cells;
    }
    let page = catalogue::find(SPARED).expect("built in");
    cells.push(Cell::new("a fifth left unused", procedures::steady(context, &spare20(&page))));
    let page = catalogue::find(MIRRORED).expect("built in");
    cells.push(Cell::new("the mirrored device", procedures::steady(context, &page)));
    cells.extend(mirrors(context).into_iter().map(|(label, task)| Cell::new(label, task)));
    cells
}

/// The write life of one device.
struct Life<'a> {
    page: &'a Page,
    end: Sample,
    /// Days until the bytes that the vendor rates it for.
    by_rating: Option<f64>,
    /// Days until the cycles of its flash are used up.
    by_cycles: Option<f64>,
}

impl<'a> Life<'a> {
    fn new(page: &'a Page, outcome: &Outcome) -> Self {
        let end = steady_end(outcome.timeline());
        let days = |bytes: f64| bytes / (end.iops * 4096.0) / DAY_S;
        let by_rating = page.rated_bytes().map(days);
        let by_cycles = page.bytes_by_cycles(end.amplification).map(days);
        Self { page, end, by_rating, by_cycles }
    }

    fn row(&self) -> Vec<TableCell> {
        let hours = |d: Option<f64>| TableCell::maybe(d.map(|d| d * 24.0));
        vec![
            TableCell::text(&self.page.device.name)
                .noted(self.page.reservation.as_deref().unwrap_or_default()),
            TableCell::number(self.end.iops),
            TableCell::number(self.end.amplification),
            TableCell::maybe(self.page.rated_bytes().map(|b| b / 1e12)),
            hours(self.by_rating),
            hours(self.by_cycles),
        ]
    }
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let pages = flash_pages(context);
    let lives: Vec<Life<'_>> =
        pages.iter().zip(outcomes).map(|(page, outcome)| Life::new(page, outcome)).collect();
    let bars = |name: &str, value: fn(&Life<'_>) -> Option<f64>| {
        let known = lives.iter().filter(|life| life.page.reservation.is_none());
        over_names(name, known.map(|life| (life.page.device.name.as_str(), value(life))))
    };
    let rating = bars("by the vendor's rating", |life| life.by_rating);
    e.charts.push(Chart {
        id: "days".into(),
        title: "Days to the write limit at the device's own sustained rate".into(),
        caption: "Dashed outline: by the host bytes the vendor rates it for; filled: by the \
                  cycles of its flash in the model. A missing bar is unknown; devices with a \
                  reservation are left out. DRAM devices have no limit."
            .into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y: Axis::log("Life", "days"),
        series: vec![
            bars("by flash cycles", |life| life.by_cycles),
            Series { role: Role::Published, ..rating },
        ],
        ..Chart::default()
    });
    e.tables.push(life_table(&lives));
    let known = lives.iter().filter(|life| life.page.reservation.is_none());
    let shortest = known.filter_map(|life| life.by_rating.map(|days| (life, days)));
    if let Some((life, days)) = shortest.min_by(|a, b| a.1.total_cmp(&b.1)) {
        say(
            e,
            Basis::Predicted,
            format!(
                "{} reaches the bytes it is rated for after {} days at its own sustained rate; a \
                 DRAM device never does.",
                life.page.device.name,
                figure(days)
            ),
        );
    }
    if !context.chosen {
        spare(&pages, outcomes, e);
        let rest = &outcomes[pages.len() + 1..];
        mirror_charts(steady_end(rest[0].timeline()), rest[1].mirror(), rest[2].mirror(), e);
    }
}

fn life_table(lives: &[Life<'_>]) -> Table {
    Table {
        id: "life".into(),
        title: "Write life".into(),
        caption: "At the sustained rate without pause.".into(),
        columns: vec![
            Column::new("Device"),
            Column::with_unit("Sustained", "1/s"),
            Column::new("Amplification"),
            Column::with_unit("Rated for", "TB"),
            Column::with_unit("Life by rating", "h"),
            Column::with_unit("Life by cycles", "h"),
        ],
        rows: lives.iter().map(Life::row).collect(),
    }
}

/// A fifth left unused: the vendor rates the 710 for half as many bytes again.
fn spare(pages: &[&Page], outcomes: &[Outcome], e: &mut Experiment) {
    let Some(i) = pages.iter().position(|p| p.id == SPARED) else { return };
    let facts = &pages[i].facts;
    let (Some(plain), Some(more)) = (&facts.endurance_tb, &facts.endurance_tb_spare20) else {
        return;
    };
    let before = steady_end(outcomes[i].timeline()).amplification;
    let after = steady_end(outcomes[pages.len()].timeline()).amplification;
    say(
        e,
        Basis::Predicted,
        format!(
            "Leaving a fifth of the {} unused stretches its life {} times in the model; the vendor \
             rates it for {} times the bytes.",
            pages[i].device.name,
            figure(before / after),
            figure(more.middle() / plain.middle()),
        ),
    );
}

fn mirror_charts(end: Sample, equal: &MirrorOutcome, unequal: &MirrorOutcome, e: &mut Experiment) {
    let page = catalogue::find(MIRRORED).expect("built in");
    let MediaSpec::Flash(flash) = &page.device.media else { return };
    // One pass of the model stands for as many of the device as its cycles are more.
    let stretch = flash.endurance.cycles_mean / MODEL_CYCLES;
    let pass_days = page.device.offered_bytes() as f64 / (end.iops * 4096.0) / DAY_S;
    let days = |passes: f64| passes * stretch * pass_days;
    for (id, title, m, other) in [
        ("equal", "A mirror of two equal devices", equal, "right, equal"),
        ("unequal", "A mirror of two sizes", unequal, "right, half as much flash again"),
    ] {
        let line = |value: fn(&(f64, f64, f64)) -> f64| {
            m.wear.iter().map(|w| Point::at(days(w.0 * m.left_passes), value(w))).collect()
        };
        let flat: Vec<Point> =
            m.wear.iter().map(|w| Point::at(days(w.0 * m.left_passes), 0.0)).collect();
        let mut series = vec![
            Series { name: "left".into(), points: line(|w| w.1), ..Series::default() },
            Series { name: other.into(), points: line(|w| w.2), ..Series::default() },
        ];
        if id == "unequal" {
            let name = "a DRAM device beside it".into();
            series.push(Series { name, points: flat, ..Series::default() });
        }
        e.charts.push(Chart {
            id: format!("mirror-{id}"),
            title: title.into(),
            caption: "Failed blocks as both sides take the same writes at the sustained rate. A \
                      line ends level when its device has stopped taking writes."
                .into(),
            kind: ChartKind::Line,
            x: Axis::linear("Time", "days"),
            y: Axis::linear("Failed blocks", "%"),
            series,
            ..Chart::default()
        });
    }
    let gap = |m: &MirrorOutcome| (m.right_passes - m.left_passes).abs() / m.left_passes;
    say(
        e,
        Basis::Predicted,
        format!(
            "Mirrored equals wear out {} days apart after {}: {} of their life. With half as much \
             flash again on one side the gap is {}; a DRAM device beside it has no end.",
            figure(days((equal.right_passes - equal.left_passes).abs())),
            figure(days(equal.left_passes.min(equal.right_passes))),
            percent(gap(equal)),
            percent(gap(unequal)),
        ),
    );
    e.checks.push(Check::relative(
        "Mirrored equals: life of the right over the left side",
        "",
        (1.0, equal.right_passes / equal.left_passes),
        0.02,
        Basis::Predicted,
        "talks: both sides see identical writes and wear out together",
    ));
}
