//! Shared parts of the experiments: sentences, series, checks that every run must pass.

use crate::bench::Sample;
use crate::responses::{Percentiles, Responses, SHARE_NAMES, range_edge_ms};
use crate::task::Outcome;
use crate::timeline::TimelineOutcome;
use forebay_report::{
    Basis, Cell as TableCell, Check, Column, Experiment, Finding, Histogram, HistogramColumn,
    Point, Role, Series, Table,
};

/// Part of the method of every experiment.
pub(super) const SCALE_NOTE: &str = "\
     Models of flash devices are smaller than the devices by the scale given, with the same dies, \
     speeds and share of spare space; time is stretched by the same factor, so that axes read as \
     for the full-size device.";

/// Adds a sentence.
pub(super) fn say(experiment: &mut Experiment, basis: Basis, text: String) {
    experiment.findings.push(Finding { text, basis });
}

/// A series over minutes.
pub(super) fn over_time<'a>(
    name: &str,
    samples: impl Iterator<Item = &'a Sample>,
    value: fn(&Sample) -> f64,
) -> Series {
    Series {
        name: name.into(),
        points: samples.map(|s| Point::at(s.minute, value(s))).collect(),
        ..Series::default()
    }
}

/// A series over names.
pub(super) fn over_names<N: Into<String>>(
    name: &str,
    values: impl IntoIterator<Item = (N, Option<f64>)>,
) -> Series {
    Series {
        name: name.into(),
        points: values.into_iter().map(|(x, y)| Point::named(x, y)).collect(),
        ..Series::default()
    }
}

/// A published figure, as a mark in a chart over minutes.
pub(super) fn printed(name: &str, group: &str, minute: f64, value: f64) -> Series {
    Series {
        name: name.into(),
        group: group.into(),
        role: Role::Published,
        points: vec![Point::at(minute, value)],
        ..Series::default()
    }
}

/// How long the requests behind the values of a chart took: a row for each kind of request that a
/// named run has.
pub(super) fn response_table<N: Into<String>>(
    caption: &str,
    runs: impl IntoIterator<Item = (N, Responses)>,
) -> Option<Table> {
    let mut rows = Vec::new();
    for (name, times) in runs {
        let name = name.into();
        for (kind, times) in [("reads", times.reads), ("writes", times.writes)] {
            if times.requests > 0 {
                rows.push(response_row(&name, kind, &times));
            }
        }
    }
    let mut columns = vec![Column::new("Run"), Column::new("Requests of")];
    columns.push(Column::new("Requests"));
    columns.extend(SHARE_NAMES.iter().map(|share| Column::with_unit(share, "ms")));
    columns.push(Column::with_unit("longest", "ms"));
    Some(Table {
        id: "responses".into(),
        title: "Response times, p50 to p99.999".into(),
        caption: format!(
            "{caption} A percentile beyond which not even one request lies is unknown."
        ),
        columns,
        rows,
    })
}

fn response_row(name: &str, kind: &str, times: &Percentiles) -> Vec<TableCell> {
    let mut row = vec![TableCell::text(name), TableCell::text(kind)];
    row.push(TableCell::number(times.requests as f64));
    row.extend(times.at_ms.map(TableCell::maybe));
    row.push(TableCell::number(times.max_ms));
    row
}

/// How long the writes of each sample took, in milliseconds; nothing without writes.
pub(super) fn write_histogram(outcome: &TimelineOutcome) -> Option<Histogram> {
    let counts = outcome.phases.iter().flat_map(|phase| &phase.histograms);
    let ranges = || counts.clone().flat_map(|counts| counts.writes.iter().map(|(range, _)| *range));
    let (lowest, highest) = (ranges().min()?, ranges().max()?);
    let mut columns = Vec::new();
    for phase in &outcome.phases {
        let mut from = phase.from_minute;
        for (sample, counts) in phase.samples.iter().zip(&phase.histograms) {
            let counts = counts.writes.iter().map(|(range, count)| (range - lowest, *count));
            columns.push(HistogramColumn { from, to: sample.minute, counts: counts.collect() });
            from = sample.minute;
        }
    }
    let edges = (lowest..=highest + 1).map(range_edge_ms).collect();
    Some(Histogram { of: "writes".into(), edges, columns })
}

/// A line of a chart of response times, and what it shows of a stretch.
pub(super) type ResponseLine = (&'static str, fn(&Percentiles) -> Option<f64>);

/// The caption of response times at the end of a load.
pub(super) const OF_TAIL: &str = "Over the last sixth of the load.";

/// `1,234`, `12.3`, `0.123`, `0`: for sentences.
pub(super) fn figure(value: f64) -> String {
    if value.abs() < 0.000_5 {
        return "0".into();
    }
    let decimals = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut out = String::new();
    for (i, c) in whole.chars().enumerate() {
        out.push(c);
        let left = whole.len() - i - 1;
        if c.is_ascii_digit() && left > 0 && left % 3 == 0 {
            out.push(',');
        }
    }
    out + rest
}

/// `62 %` of a share.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", figure(share * 100.0))
}

/// The ratio that is furthest from 1.
fn furthest(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    ratios.max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()))
}

/// Checks that every run must pass, whatever the device: Little's law, utilization, even wear.
pub(super) fn invariants(outcomes: &[Outcome], experiment: &mut Experiment) {
    let timelines: Vec<_> = outcomes
        .iter()
        .filter_map(|o| match o {
            Outcome::Timeline(t) => Some(t),
            _ => None,
        })
        .collect();
    if timelines.is_empty() {
        return;
    }
    let loads = || timelines.iter().flat_map(|t| &t.phases).filter(|p| !p.worn_out);
    let little = loads().filter_map(|p| p.little).map(|(device, host)| host / device);
    let product = furthest(little);
    let kept = loads().filter_map(|p| p.outstanding).map(|(n, depth)| n / f64::from(depth));
    let integrated = furthest(kept);
    for (name, worst) in [
        ("Little's law: rate times response at the host, over requests outstanding", product),
        ("Requests outstanding at the device, over those the load keeps outstanding", integrated),
    ] {
        if let Some(worst) = worst {
            experiment.checks.push(Check::relative(
                format!("{name}, worst run"),
                "",
                (1.0, worst),
                1e-6,
                Basis::Invariant,
                "Little 1961; the host sums responses, the device integrates its queue",
            ));
        }
    }
    experiment.checks.push(Check::at_most(
        "Utilization of the medium, busiest run",
        "",
        (1.0, timelines.iter().map(|t| t.utilization).fold(0.0, f64::max)),
        Basis::Invariant,
        "a server is busy for no more time than there is",
    ));
    let worn = timelines.iter().filter(|t| t.erase_mean >= 10.0);
    let uneven = worn.map(|t| t.erase_deviation / t.erase_mean).fold(0.0, f64::max);
    if uneven > 0.0 {
        experiment.checks.push(Check::at_most(
            "Wear spread: deviation of erase counts over mean, worst run of ten cycles and more",
            "",
            (0.5, uneven),
            Basis::Invariant,
            "dynamic wear leveling opens the least worn block first",
        ));
    }
}

#[cfg(test)]
mod tests;
