//! Experiment `logs`: several logs on one device, told apart by nothing, by streams, by zones.

use super::common::{figure, over_names, response_table, say};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::logs::{Logs, LogsOutcome, Sorting};
use crate::task::{Outcome, Task};
use forebay_flash::MediaSpec;
use forebay_report::{Axis, Basis, Chart, ChartKind, Check, Experiment, Series};

pub(super) const PLAN: Plan = Plan {
    id: "logs",
    title: "Several logs on one device",
    question: "What does a log gain when the device can tell its data apart, by streams or zones?",
    method: "Eight logs, each a ring over an eighth of the device, written in order with 4 KiB, 32 \
             outstanding; turns by chance, one log 16 times as often as the slowest. Three rounds \
             over all rings count, after three that do not. Plain: the device as it is. Streams: \
             each log is a stream or placement handle. Zones: the same flash without a \
             translation layer, the log resets each zone before it writes it anew.",
    devices: &["samsung-pm9a3-1920gb", "kioxia-cm7-r-1920gb", "intel-s3700-200gb"],
    small: &["intel-s3700-200gb"],
    cells,
    show,
};

const SORTINGS: [(&str, Sorting); 3] =
    [("plain", Sorting::None), ("streams", Sorting::Streams), ("zones", Sorting::Zones)];
const SPEEDS: [u32; 8] = [16, 8, 4, 2, 1, 1, 1, 1];
const ROUNDS: u32 = 3;

fn flash_pages(context: &Context) -> impl Iterator<Item = &Page> {
    context.pages.iter().filter(|page| matches!(page.device.media, MediaSpec::Flash(_)))
}

fn cells(context: &Context) -> Vec<Cell> {
    let task = |page: &Page, sorting| {
        Task::Logs(Box::new(Logs {
            device: page.device.clone(),
            scale: context.scale_of(&page.device),
            seed: context.seed,
            sorting,
            speeds: SPEEDS.to_vec(),
            used: 1.0,
            rounds: ROUNDS,
            block_bytes: 4096,
            outstanding: 32,
        }))
    };
    let of_page = |page| {
        SORTINGS.map(|(name, sorting)| {
            Cell::new(format!("{}, {name}", page_name(page)), task(page, sorting))
        })
    };
    flash_pages(context).flat_map(of_page).collect()
}

fn page_name(page: &Page) -> &str {
    &page.device.name
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let outcomes: Vec<&LogsOutcome> = outcomes.iter().map(Outcome::logs).collect();
    let runs: Vec<(&Page, &[&LogsOutcome])> =
        flash_pages(context).zip(outcomes.chunks(SORTINGS.len())).collect();
    let bars = |value: fn(&LogsOutcome) -> f64| {
        let series = SORTINGS.iter().enumerate().map(|(k, (name, _))| {
            let values = runs.iter().map(|(page, runs)| (page_name(page), Some(value(runs[k]))));
            over_names(name, values)
        });
        series.collect::<Vec<Series>>()
    };
    let chart = |id: &str, title: &str, y: Axis, series: Vec<Series>| Chart {
        id: id.into(),
        title: title.into(),
        kind: ChartKind::Row,
        x: Axis::linear("Device", ""),
        y,
        series,
        ..Chart::default()
    };
    let lines = runs.iter().flat_map(|(page, runs)| {
        SORTINGS.iter().zip(*runs).map(move |((name, _), run)| {
            (format!("{}, {name}", page_name(page)), run.whole.responses)
        })
    });
    let responses = response_table("Over the rounds that count.", lines);
    e.charts.push(Chart {
        responses,
        ..chart(
            "rate",
            "4 KiB writes of eight logs",
            Axis::linear("Writes", "1/s"),
            bars(|run| run.whole.iops),
        )
    });
    e.charts.push(chart(
        "amplification",
        "Write amplification of eight logs",
        Axis::linear("Media bytes for each host byte", ""),
        bars(|run| run.whole.amplification),
    ));
    for (page, runs) in &runs {
        let [plain, streams, zones] = [0, 1, 2].map(|k: usize| &runs[k].whole);
        let [a, b, c] = [plain, streams, zones].map(|whole| figure(whole.amplification));
        let gain = figure(zones.iops / plain.iops);
        let name = page_name(page);
        e.checks.push(Check::relative(
            format!("{name}: bytes programmed for a byte in zones"),
            "",
            (1.0, zones.amplification),
            0.001,
            Basis::Invariant,
            "zones are erased without live data",
        ));
        say(
            e,
            Basis::Predicted,
            format!(
                "{name}: eight logs cost {a} bytes programmed a byte, {b} as streams and {c} in \
                 zones, which take {gain} times as many writes a second."
            ),
        );
    }
}
