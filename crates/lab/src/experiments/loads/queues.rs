//! A log's queue beside a queue of reads: what NVMe's arbitration does for the log.

use super::is_flash;
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::experiments::common::{figure, over_names, response_table, say};
use crate::experiments::{Context, procedures};
use crate::load::Load;
use crate::queues::{Arbitration, Class, Queue, QueueOutcome, Queues};
use crate::responses::Percentiles;
use crate::task::{Outcome, Task};
use crate::timeline::{Phase, TimelineOutcome};
use forebay_report::{Axis, Basis, Chart, ChartKind, Experiment};

/// Reads that the other queue keeps.
const READS: u32 = 256;
const MINUTES: f64 = 10.0;
const WEIGHTED: Arbitration = Arbitration::Weighted { high: 8, medium: 4, low: 1 };
/// Name, arbitration, class of the log's queue and of the reads', commands in the device at once
/// (0: as many as its link takes).
const WAYS: [(&str, Arbitration, Class, Class, u32); 4] = [
    ("all in the device", Arbitration::RoundRobin, Class::Medium, Class::Medium, 0),
    ("32 in the device, by turns", Arbitration::RoundRobin, Class::Medium, Class::Medium, 32),
    ("32, weights 8 to 1", WEIGHTED, Class::High, Class::Low, 32),
    ("32, the log urgent", WEIGHTED, Class::Urgent, Class::Low, 32),
];

fn task(context: &Context, page: &Page, way: usize) -> Task {
    let (_, arbitration, log, reads, device_slots) = WAYS[way];
    let random = Load { random_share: 1.0, ..Load::default() };
    let mut phases = vec![Phase::SecureErase];
    if is_flash(page) {
        phases.push(Phase::Fill { block_bytes: 128 << 10 });
        phases.push(Phase::Passes { passes: 1.0, pattern: random.clone() });
    }
    let log = Queue { pattern: Load { outstanding: 1, fua: true, ..Load::default() }, class: log };
    let reads =
        Queue { pattern: Load { read_share: 1.0, outstanding: READS, ..random }, class: reads };
    phases.push(Phase::Queues(Queues {
        minutes: MINUTES,
        arbitration,
        burst: 1,
        device_slots,
        queue_slots: 0,
        queues: vec![log, reads],
    }));
    procedures::timeline(context, page, phases)
}

/// One run for each way.
pub(super) fn cells(context: &Context, page: &Page) -> Vec<Cell> {
    let cell = |way: usize| {
        Cell::new(format!("{}, {}", page.device.name, WAYS[way].0), task(context, page, way))
    };
    (0..WAYS.len()).map(cell).collect()
}

/// Runs of all pages.
pub(super) fn count(context: &Context) -> usize {
    context.pages.len() * WAYS.len()
}

/// The log's queue and that of the reads.
fn both(run: &TimelineOutcome) -> (QueueOutcome, QueueOutcome) {
    let of = |queue: usize| run.phases.last().and_then(|phase| phase.queues.get(queue).copied());
    (of(0).unwrap_or_default(), of(1).unwrap_or_default())
}

fn p99(times: &Percentiles) -> Option<f64> {
    times.at_ms[2]
}

/// Charts and sentences of all devices; `outcomes` are those of [`cells`], page by page.
pub(super) fn show(pages: &[Page], outcomes: &[Outcome], e: &mut Experiment) {
    let runs: Vec<Vec<&TimelineOutcome>> =
        outcomes.chunks(WAYS.len()).map(|of| of.iter().map(Outcome::timeline).collect()).collect();
    let series = |value: fn(&TimelineOutcome) -> Option<f64>| {
        let of_way = |(way, (name, ..)): (usize, &(&str, _, _, _, _))| {
            let values = pages.iter().zip(&runs);
            over_names(
                name,
                values.map(|(page, runs)| (page.device.name.as_str(), value(runs[way]))),
            )
        };
        WAYS.iter().enumerate().map(of_way).collect::<Vec<_>>()
    };
    let chart = |id: &str, title: &str, y: Axis| Chart {
        id: id.into(),
        title: title.into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y,
        ..Chart::default()
    };
    e.charts.push(Chart {
        caption: format!(
            "Durable 4 KiB writes in order, one at a time, in a queue of their own beside one that \
             keeps {READS} random reads."
        ),
        series: series(|run| p99(&both(run).0.responses.writes)),
        ..chart(
            "log-beside-reads",
            "Response of a log's writes beside reads, by arbitration",
            Axis::log("99 % take at most", "ms"),
        )
    });
    let names = pages.iter().zip(&runs).flat_map(|(page, runs)| {
        let named = |(way, run): (usize, &&TimelineOutcome)| {
            let (log, reads) = both(run);
            let mut times = log.responses;
            times.reads = reads.responses.reads;
            (format!("{}, {}", page.device.name, WAYS[way].0), times)
        };
        runs.iter().enumerate().map(named).collect::<Vec<_>>()
    });
    e.charts.push(Chart {
        responses: response_table("Of each queue, from when a request was put into it.", names),
        series: series(|run| Some(both(run).1.iops)),
        ..chart(
            "reads-beside-log",
            "Reads beside a log, by arbitration",
            Axis::linear("Reads", "1/s"),
        )
    });
    for (page, runs) in pages.iter().zip(&runs) {
        let of = |way: usize| p99(&both(runs[way]).0.responses.writes);
        let (Some(all), Some(turns), Some(urgent)) = (of(0), of(1), of(3)) else { continue };
        say(
            e,
            Basis::Predicted,
            format!(
                "{} beside {READS} reads: 99 % of a log's writes take at most {} ms when the \
                 device has all reads at once, {} ms when it takes 32 commands by turns, {} ms \
                 when the log is urgent besides.",
                page.device.name,
                figure(all),
                figure(turns),
                figure(urgent),
            ),
        );
    }
}
