//! What is gone after a power cut of that which was promised durable?

use super::common::{figure, say};
use super::{Context, Plan};
use crate::cut::{Cut, CutOutcome, Durability};
use crate::drive::Cell;
use crate::task::{Outcome, Task};
use forebay_flash::{DeviceSpec, Honesty, MediaSpec};
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Series, Table,
};

pub(super) const PLAN: Plan = Plan {
    id: "power-cut",
    title: "Power cuts",
    question: "Which devices keep every write they have promised when power goes at any instant?",
    method: "4 KiB writes, eight outstanding; power is cut at a random instant, 300 times. The host \
             asks for durability with FUA on each write, with a flush each 32 writes, or not at all \
             (flushes turned off). Rested: an hour between power and load. At once: the next load, \
             and so the next cut, comes right after power. A promised write counts as lost when it \
             is absent, torn, undone with its map entry, or cannot be read.",
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
    cells,
    show,
};

const CUTS: u32 = 300;

/// How the host asks, how long the device rests between cuts, and what that is called.
const WAYS: [(Durability, f64, &str); 4] = [
    (Durability::Fua, 3600.0, "FUA"),
    (Durability::Flush, 3600.0, "flush"),
    (Durability::Trusting, 3600.0, "flushes turned off"),
    (Durability::Fua, 0.0, "FUA, cut again at once"),
];

fn devices(context: &Context) -> Vec<DeviceSpec> {
    let mut devices: Vec<DeviceSpec> = context.pages.iter().map(|p| p.device.clone()).collect();
    if context.chosen {
        return devices;
    }
    // Two that lie or fail, so that the test is seen to catch them.
    let liar = context.pages.iter().find(|p| p.id == "samsung-850-pro-256gb").map(|p| {
        let mut device = p.device.clone();
        device.name += ", ignoring flush and FUA";
        if let MediaSpec::Flash(flash) = &mut device.media {
            flash.cache.flush = Honesty::Ignored;
            flash.cache.fua = Honesty::Ignored;
        }
        device
    });
    let tired = context.pages.iter().find(|p| p.id == "stec-zeusram-8gb").map(|p| {
        let mut device = p.device.clone();
        device.name += ", energy store aged to a quarter";
        if let MediaSpec::Dram(dram) = &mut device.media {
            dram.energy.full_j /= 4.0;
        }
        device
    });
    devices.extend(liar.into_iter().chain(tired));
    devices
}

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for device in devices(context) {
        for (durability, settle_s, way) in WAYS {
            let (seed, cuts) = (context.seed, CUTS);
            let cut = Cut { device: device.clone(), seed, durability, cuts, settle_s };
            cells.push(Cell::new(format!("{}, {way}", device.name), Task::Cut(cut)));
        }
    }
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let devices = devices(context);
    let runs: Vec<&CutOutcome> = outcomes.iter().map(Outcome::cut).collect();
    let mut rows = Vec::new();
    let mut safe = Vec::new();
    let mut unsafe_ones = Vec::new();
    for (device, runs) in devices.iter().zip(runs.chunks(WAYS.len())) {
        let mut row = vec![TableCell::text(&device.name)];
        for run in runs {
            let text = if run.safe() {
                "nothing lost".to_owned()
            } else {
                format!("{} of {} cuts lose", run.bad_cuts, run.cuts)
            };
            let note = if run.safe() {
                format!("{} promised writes", figure(run.promised as f64))
            } else {
                format!(
                    "{} of {} promised writes: {} undone with the map, {} torn; {} ranges at rest",
                    figure(run.lost as f64),
                    figure(run.promised as f64),
                    run.rolled_back,
                    run.shorn,
                    run.ruined_at_rest
                )
            };
            row.push(TableCell::text(text).judged(run.safe()).noted(note));
        }
        rows.push(row);
        let list = if runs[0].safe() && runs[1].safe() { &mut safe } else { &mut unsafe_ones };
        list.push(device.name.as_str());
        if let MediaSpec::Flash(flash) = &device.media
            && flash.cache.plp == forebay_flash::Plp::Full
        {
            e.checks.push(Check::relative(
                format!("{}: cuts that lose promised writes, FUA, flush or neither", device.name),
                "",
                (0.0, runs[..3].iter().map(|r| f64::from(r.bad_cuts)).sum()),
                0.0,
                Basis::Predicted,
                "energy for everything acknowledged",
            ));
        }
        if device.name.contains("ignoring") {
            let caught = f64::from(u32::from(!runs[1].safe()));
            e.checks.push(Check::relative(
                "A device that ignores flushes is caught",
                "",
                (1.0, caught),
                0.0,
                Basis::Invariant,
                "a test that cannot fail proves nothing",
            ));
        }
    }
    for (devices, what) in [
        (safe, format!("Every promised write survived {CUTS} cuts on")),
        (unsafe_ones, format!("Promised writes were lost in some of {CUTS} cuts on")),
    ] {
        if !devices.is_empty() {
            say(e, Basis::Predicted, format!("{what}: {}.", devices.join(", ")));
        }
    }
    let mut columns = vec![Column::new("Device")];
    columns.extend(WAYS.iter().map(|(.., way)| Column::new(way)));
    e.tables.push(Table {
        id: "lost".into(),
        title: format!("Promised writes after {CUTS} power cuts"),
        caption: "Models follow what the vendors say of each device's protection; the table shows \
                  what that means, not what a drive in hand does."
            .into(),
        columns,
        rows,
    });
    let series = WAYS.iter().enumerate().map(|(w, (.., way))| Series {
        name: (*way).into(),
        points: devices
            .iter()
            .zip(runs.chunks(WAYS.len()))
            .map(|(device, runs)| {
                let share = f64::from(runs[w].bad_cuts) / f64::from(runs[w].cuts.max(1));
                forebay_report::Point::named(device.name.as_str(), Some(share * 100.0))
            })
            .collect(),
        ..Series::default()
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
