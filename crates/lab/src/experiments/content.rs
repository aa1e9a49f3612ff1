//! Experiment `content`: the gain of a compressing controller from data that compresses.

use super::common::{OF_TAIL, figure, over_names, response_table, say};
use super::procedures::{self, Shape};
use super::{Context, Plan};
use crate::catalogue::Page;
use crate::drive::Cell;
use crate::load::Content;
use crate::task::Outcome;
use forebay_flash::MediaSpec;
use forebay_report::{Axis, Basis, Chart, ChartKind, Check, Experiment};

pub(super) const PLAN: Plan = Plan {
    id: "content",
    title: "Content of the data",
    question: "How much faster does a device look when the test writes data that compresses?",
    method: "Procedure A, random 4 KiB writes. The data is pseudo-random, half a repeated byte, or \
             one repeated byte; what a compressing controller stores is measured with LZ4 on those \
             very bytes. Fresh is the first minute, sustained the mean of the last ten.",
    devices: &[
        "ocz-vertex-2-ex-50gb",
        "ocz-vertex-2-pro-50gb",
        "intel-520-240gb",
        "intel-710-200gb",
        "ddrdrive-x1",
    ],
    small: &["ocz-vertex-2-ex-50gb", "ddrdrive-x1"],
    cells,
    show,
};

const CONTENTS: [Content; 3] = [Content::PseudoRandom, Content::Half, Content::Repeating];

fn cells(context: &Context) -> Vec<Cell> {
    let mut cells = Vec::new();
    for page in &context.pages {
        for content in CONTENTS {
            let shape = Shape { content, ..Shape::random(1.0) };
            let label = format!("{}, {}", page.device.name, content.name());
            cells.push(Cell::new(label, procedures::a(context, page, shape)));
        }
    }
    cells
}

fn compresses(page: &Page) -> bool {
    matches!(&page.device.media, MediaSpec::Flash(f) if f.controller.compression.is_some())
}

/// What compression gains, and where the figure comes from: `rates` by content, and the rate of a
/// fresh device under a repeating byte.
fn say_gain(page: &Page, rates: [f64; 3], fresh: f64, e: &mut Experiment) {
    let gain = format!(
        "{}: a repeating byte makes sustained writes {} times faster than pseudo-random data, half \
         of it {} times.",
        page.device.name,
        figure(rates[2] / rates[0]),
        figure(rates[1] / rates[0]),
    );
    // At the rate of a fresh device the controller is the limit, whatever cleaning costs.
    if rates[2] > 0.98 * fresh {
        let text = format!(
            "{gain} With the repeating byte it is as fast as fresh: the controller's time for a \
             command, a fitted number, is the limit."
        );
        say(e, Basis::Fitted, text);
    } else {
        say(e, Basis::Predicted, gain);
    }
}

fn show(context: &Context, outcomes: &[Outcome], e: &mut Experiment) {
    let runs: Vec<_> = outcomes.iter().map(Outcome::timeline).collect();
    let runs: Vec<_> = runs.chunks(CONTENTS.len()).collect();
    for (id, title, value) in [
        ("sustained", "Sustained random 4 KiB writes by content", true),
        ("fresh", "The first minute after secure erase by content", false),
    ] {
        let series = CONTENTS.iter().enumerate().map(|(c, content)| {
            let values = context.pages.iter().zip(&runs).map(|(page, runs)| {
                let iops = if value { runs[c].sustained(10.0).iops } else { runs[c].fresh().iops };
                (page.device.name.as_str(), Some(iops))
            });
            over_names(content.name(), values)
        });
        e.charts.push(Chart {
            id: id.into(),
            title: title.into(),
            caption: "Only controllers that compress tell the difference.".into(),
            kind: ChartKind::Row,
            x: Axis::linear("Device", ""),
            y: Axis::linear("Writes", "1/s"),
            series: series.collect(),
            responses: response_table(
                if value { OF_TAIL } else { "Over the first minute." },
                context.pages.iter().zip(&runs).flat_map(|(page, runs)| {
                    CONTENTS.iter().zip(runs.iter()).map(move |(content, run)| {
                        let name = format!("{}, {}", page.device.name, content.name());
                        (name, if value { run.tail() } else { run.fresh().responses })
                    })
                }),
            ),
            ..Chart::default()
        });
    }
    for (page, runs) in context.pages.iter().zip(&runs) {
        let rate = |content: usize| runs[content].sustained(10.0).iops;
        let gain = rate(2) / rate(0);
        if compresses(page) {
            say_gain(page, [rate(0), rate(1), rate(2)], runs[2].fresh().iops, e);
        } else {
            e.checks.push(Check::relative(
                format!("{}: repeating over pseudo-random", page.device.name),
                "",
                (1.0, gain),
                0.01,
                Basis::Predicted,
                "a controller that does not compress cannot tell",
            ));
        }
    }
}
