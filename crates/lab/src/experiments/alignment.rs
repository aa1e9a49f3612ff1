//! Experiment `alignment`: the cost of writes that do not start on a mapping unit.

use super::common::{OF_TAIL, figure, over_names, percent, response_table, say};
use super::procedures::{self, MIXES, Shape};
use super::{Context, Plan};
use crate::drive::Cell;
use crate::responses::Responses;
use crate::task::Outcome;
use forebay_report::{Axis, Basis, Chart, ChartKind, Check, Experiment};

pub(super) const PLAN: Plan = Plan {
    id: "alignment",
    title: "Alignment and partition offset",
    question: "What does it cost when 4 KiB writes do not start on a multiple of 4 KiB?",
    method: "Procedure A. Places aligned to 4 KiB, to 512 bytes, and to 4 KiB in a partition that \
             starts at sector 63. The figure is the mean of the last ten minutes.",
    devices: &["ocz-vertex-2-ex-50gb", "ocz-vertex-2-pro-50gb", "intel-710-200gb", "ddrdrive-x1"],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1"],
    cells,
    show,
};

/// Name, grid of random places, start of the partition.
const CASES: [(&str, u32, u64); 3] = [
    ("4 KiB aligned", 4096, 0),
    ("512 B aligned", 512, 0),
    ("partition at sector 63", 4096, 63 * 512),
];

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        for (random_share, mix) in MIXES {
            for (case, align_bytes, offset_bytes) in CASES {
                let shape = Shape { align_bytes, offset_bytes, ..Shape::random(random_share) };
                let label = format!("{}, {mix}, {case}", page.device.name);
                cells.push(Cell::new(label, procedures::a(context, page, shape)));
            }
        }
    }
    cells
}

/// Names of a device's runs, in their order.
fn run_names() -> impl Iterator<Item = String> {
    MIXES.iter().flat_map(|(_, mix)| CASES.iter().map(move |(case, ..)| format!("{mix}, {case}")))
}

fn tail(outcome: &Outcome) -> Responses {
    outcome.timeline().tail()
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let iops: Vec<f64> = outcomes.iter().map(|o| o.timeline().sustained(10.0).iops).collect();
    let runs = outcomes.chunks(MIXES.len() * CASES.len());
    let rates = iops.chunks(MIXES.len() * CASES.len());
    for ((page, iops), runs) in context.pages.iter().zip(rates).zip(runs) {
        let of = |mix: usize, case: usize| iops[mix * CASES.len() + case];
        let series = CASES.iter().enumerate().map(|(c, (case, ..))| {
            let values = MIXES.iter().enumerate().map(|(m, (_, mix))| (*mix, Some(of(m, c))));
            over_names(case, values)
        });
        e.charts.push(Chart {
            id: page.id.clone(),
            title: format!("{}: sustained 4 KiB writes", page.device.name),
            kind: ChartKind::Bar,
            x: Axis::linear("Mix", ""),
            y: Axis::linear("Writes", "1/s"),
            series: series.collect(),
            responses: response_table(OF_TAIL, run_names().zip(runs.iter().map(tail))),
            ..Chart::default()
        });
        let memory = !matches!(page.device.media, forebay_flash::MediaSpec::Flash(_));
        let lost = |m: usize| 1.0 - of(m, 1) / of(m, 0);
        if memory {
            for (m, (_, mix)) in MIXES.iter().enumerate() {
                e.checks.push(Check::relative(
                    format!("{}: {mix}, 512 B over 4 KiB alignment", page.device.name),
                    "",
                    (1.0, of(m, 1) / of(m, 0)),
                    0.01,
                    Basis::Predicted,
                    "2010 talk: constant at any alignment",
                ));
            }
            say(e, Basis::Predicted, format!("{}: the same at any alignment.", page.device.name));
        } else {
            say(
                e,
                Basis::Predicted,
                format!(
                    "{}: places on 512 bytes instead of 4 KiB cost {} of half random and {} of \
                     random writes; of sequential ones {}.",
                    page.device.name,
                    percent(lost(1)),
                    percent(lost(2)),
                    percent(lost(0)),
                ),
            );
            let programmed = |case: usize| {
                let random = (MIXES.len() - 1) * CASES.len();
                runs[random + case].timeline().sustained(10.0).amplification
            };
            say(
                e,
                Basis::Predicted,
                format!(
                    "{}: a byte of random writes programs {} on 4 KiB and {} on 512 bytes, so that \
                     the flash lasts {} times as long on 4 KiB.",
                    page.device.name,
                    figure(programmed(0)),
                    figure(programmed(1)),
                    figure(programmed(1) / programmed(0)),
                ),
            );
        }
    }
}
