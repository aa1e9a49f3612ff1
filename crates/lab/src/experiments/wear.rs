//! Experiment `wear`: bytes at the drives and at their flash for each byte that a client writes.

use super::common::{figure, percent, say};
use super::{Context, Plan};
use crate::catalogue;
use crate::drive::Cell;
use crate::task::{Outcome, Task};
use crate::wear::{Wear, WearOutcome};
use forebay_flash::MediaSpec;
use forebay_report::{
    Axis, Basis, Cell as TableCell, Chart, ChartKind, Check, Column, Experiment, Point, Role,
    Series, Table,
};
use forebay_units::Layout;

pub(super) const PLAN: Plan = Plan {
    id: "wear",
    title: "Wear under the pool",
    question: "How many bytes reach the flash cells for each byte a client writes?",
    method: "The pool's own code in virtual time over 16 simulated flash drives and a DRAM log \
             device, with a volume of 8 GiB. The drives are cut down so that the volume with its \
             parity takes the share of their bytes that is said; their erase unit by as much as \
             the pool's segments. The volume is filled once, then overwritten at random, ten \
             writes outstanding, without FUA: the pool's whole space in 64 KiB first, so that all \
             flash has been written once, then half the volume in the load's own size; the next \
             volume's worth counts. At the interface: bytes that the data drives were sent over \
             bytes that clients wrote, as the figures printed for ZFS count. Own: bytes programmed \
             to flash over bytes at the interface.",
    devices: &["samsung-830-128gb"],
    small: &["samsung-830-128gb"],
    cells,
    show,
};

const DRIVES: u32 = 16;
const VOLUME_BYTES: u64 = 8 << 30;
const SMALL_VOLUME_BYTES: u64 = 128 << 20;
/// How far the small edition may be above the target.
const SMALL_SLACK: f64 = 1.2;
const SHAPES: [(Layout, &str, f64); 4] = [
    (Layout::Raid0, "RAID 0", 0.0),
    (Layout::Raidz1, "Z1", 1.0),
    (Layout::Raidz2, "Z2", 2.0),
    (Layout::Raidz3, "Z3", 3.0),
];
const BLOCKS: [(u32, &str); 2] = [(4096, "4K"), (65536, "64K")];
/// Writes over usable bytes of ZFS, by block and shape, as the linear-write engine's paper prints.
const PRINTED: [[f64; 4]; 2] = [[5.3, 11.5, 16.3, 23.0], [1.2, 2.5, 3.7, 4.9]];
const PRINTED_SOURCE: &str = "linear-write engine's comparison with ZFS on 16 SSDs of 128 GB: \
                              iostat under random writes at queue depth 10 after a fill";
const SHARE: f64 = 0.12;
const SHARES: [f64; 6] = [SHARE, 0.3, 0.5, 0.65, 0.75, 0.85];
const SMALL_SHARES: [f64; 1] = [SHARE];

fn shares(context: &Context) -> &'static [f64] {
    context.pick(&SHARES, &SMALL_SHARES)
}

fn cells(context: &Context) -> Vec<Cell> {
    let log = catalogue::find("ddrdrive-x1").expect("it is built in").device;
    let mut cells = Vec::new();
    for page in context.pages.iter().filter(|p| matches!(p.device.media, MediaSpec::Flash(_))) {
        let mut add = |(redundancy, name, _): (Layout, &str, f64), block, full: f64| {
            let (block_bytes, block_name) = block;
            let wear = Wear {
                device: page.device.clone(),
                log: log.clone(),
                drives: DRIVES,
                volume_bytes: context.pick(VOLUME_BYTES, SMALL_VOLUME_BYTES),
                full,
                redundancy,
                block_bytes,
                turnover: 1.0,
                seed: context.seed,
            };
            let label = format!("{name} {block_name} {}", percent(full));
            cells.push(Cell::new(label, Task::Wear(Box::new(wear))));
        };
        for block in BLOCKS {
            SHAPES.iter().for_each(|&shape| add(shape, block, SHARE));
        }
        shares(context)[1..].iter().for_each(|&share| add(SHAPES[1], BLOCKS[0], share));
    }
    cells
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let pages = context.pages.iter().filter(|p| matches!(p.device.media, MediaSpec::Flash(_)));
    let shares = shares(context);
    // Shapes by block at 12 %, then Z1 4K at the other shares.
    let per_device = SHAPES.len() * BLOCKS.len() + shares.len() - 1;
    for (page, runs) in pages.zip(outcomes.chunks(per_device)) {
        let runs: Vec<&WearOutcome> = runs.iter().map(Outcome::wear).collect();
        shapes(&page.id, &page.device.name, context, &runs[..8], e);
        let mut by_share = vec![runs[1]];
        by_share.extend(&runs[8..]);
        by_fill(&page.id, &page.device.name, shares, &by_share, e);
    }
}

fn amplification(label: &str) -> Axis {
    Axis::linear(label, "")
}

fn shapes(id: &str, device: &str, context: &Context, runs: &[&WearOutcome], e: &mut Experiment) {
    for (run, (_, shape, parity)) in runs.iter().zip(&SHAPES) {
        // One-sided: less is better. A small volume has its maps and roots in full, and less data.
        let slack = context.pick(1.0, SMALL_SLACK);
        let (limit, got) = (slack * target(*parity), run.interface_amplification());
        let name = format!("{shape} {}, {device}: at the interface, at most", BLOCKS[0].1);
        let source = "the design's target: 1.05 times n/(n-p) at 12 % full";
        e.checks.push(Check::at_most(name, "", (limit, got), Basis::Formula, source));
    }
    let (z1, z3) = (runs[1], runs[3]);
    say(
        e,
        Basis::Predicted,
        format!(
            "{device}, 4K at 12 % full: Z1 sends its drives {} bytes for each client byte and Z3 \
             {}; the drives' own amplification on top is {} and {}. Printed for ZFS: {} and {}.",
            figure(z1.interface_amplification()),
            figure(z3.interface_amplification()),
            figure(z1.drive_amplification()),
            figure(z3.drive_amplification()),
            figure(PRINTED[0][1]),
            figure(PRINTED[0][3]),
        ),
    );
    e.tables.push(shape_table(id, device, runs));
    e.charts.push(shape_chart(id, device, runs));
}

/// The design's target for a shape with `parity` parity columns.
fn target(parity: f64) -> f64 {
    1.05 * f64::from(DRIVES) / (f64::from(DRIVES) - parity)
}

fn shape_table(id: &str, device: &str, runs: &[&WearOutcome]) -> Table {
    let shapes = BLOCKS.iter().enumerate().flat_map(|(b, (_, block))| {
        SHAPES.iter().enumerate().map(move |(s, shape)| (b, *block, s, shape))
    });
    let row = |(b, block, s, (_, shape, parity)): (usize, &str, usize, &(_, &str, f64))| {
        let run = runs[b * SHAPES.len() + s];
        let limit = target(*parity);
        let share = |bytes: u64| TableCell::number(bytes as f64 / run.host_bytes as f64);
        let interface = run.interface_amplification();
        vec![
            TableCell::text(format!("{shape} {block}")),
            TableCell::number(interface).judged(interface <= limit),
            TableCell::number(limit),
            TableCell::number(PRINTED[b][s]).noted(PRINTED_SOURCE),
            TableCell::number(run.drive_amplification()),
            TableCell::number(run.whole_amplification()),
            share(run.parts.data),
            share(run.parts.parity),
            share(run.parts.metadata),
            share(run.parts.cleaning),
            share(run.parts.padding),
        ]
    };
    let columns = [
        "Shape and block",
        "At the interface",
        "Target",
        "Printed for ZFS",
        "Drives' own",
        "In all",
    ];
    let parts = ["Data", "Parity", "Metadata", "Cleaning", "Padding"];
    Table {
        id: format!("{id}-shapes"),
        title: format!("Bytes for each client byte at 12 % full, {device}"),
        caption: "All columns count bytes for each byte that clients wrote, but for the drives' \
                  own. The last five split the first by the pool's own count. Data below 1: a \
                  block that is overwritten before its group is written goes out once."
            .into(),
        columns: columns.into_iter().chain(parts).map(Column::new).collect(),
        rows: shapes.map(row).collect(),
    }
}

fn shape_chart(id: &str, device: &str, runs: &[&WearOutcome]) -> Chart {
    let names = || {
        BLOCKS.iter().flat_map(|(_, block)| {
            SHAPES.iter().map(move |(_, shape, _)| format!("{shape} {block}"))
        })
    };
    let series = |name: &str, role, values: Vec<f64>| Series {
        name: name.into(),
        role,
        points: names().zip(values).map(|(n, v)| Point::named(n, Some(v))).collect(),
        ..Series::default()
    };
    let of = |value: fn(&WearOutcome) -> f64| runs.iter().map(|r| value(r)).collect::<Vec<_>>();
    Chart {
        id: format!("{id}-shapes"),
        title: format!("Bytes for each client byte, {device}"),
        caption: PRINTED_SOURCE.into(),
        kind: ChartKind::Bar,
        x: Axis::linear("Shape and block", ""),
        y: amplification("Bytes for each client byte"),
        series: vec![
            series("At the interface", Role::Simulated, of(WearOutcome::interface_amplification)),
            series("Programmed to flash", Role::Simulated, of(WearOutcome::whole_amplification)),
            series("ZFS at the interface, printed", Role::Published, PRINTED.concat()),
        ],
        ..Chart::default()
    }
}

fn by_fill(id: &str, device: &str, shares: &[f64], runs: &[&WearOutcome], e: &mut Experiment) {
    let series = |name: &str, value: fn(&WearOutcome) -> f64| Series {
        name: name.into(),
        points: shares.iter().zip(runs).map(|(s, r)| Point::at(s * 100.0, value(r))).collect(),
        ..Series::default()
    };
    let last = runs[runs.len() - 1];
    say(
        e,
        Basis::Predicted,
        format!(
            "{device}, Z1 4K: from {} at 12 % of the drives' bytes in use to {} at {} at the \
             interface; the drives' own amplification goes from {} to {}.",
            figure(runs[0].interface_amplification()),
            figure(last.interface_amplification()),
            percent(shares[shares.len() - 1]),
            figure(runs[0].drive_amplification()),
            figure(last.drive_amplification()),
        ),
    );
    e.charts.push(Chart {
        id: format!("{id}-utilization"),
        title: format!("Z1 4K by how full the pool is, {device}"),
        caption:
            "In use: the volume and its parity, as a share of the data drives' bytes; what the \
             pool keeps back counts as free. Uniform random overwrites are the worst case: no \
             block is colder than another."
                .into(),
        x: Axis::linear("In use of the drives' bytes", "%"),
        y: amplification("Bytes for each byte"),
        series: vec![
            series("At the interface, a client byte", WearOutcome::interface_amplification),
            series("Drives' own, an interface byte", WearOutcome::drive_amplification),
            series("Programmed, a client byte", WearOutcome::whole_amplification),
        ],
        ..Chart::default()
    });
}
