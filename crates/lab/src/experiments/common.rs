//! What several experiments need: sentences, series, the checks every run must pass.

use crate::bench::Sample;
use crate::task::Outcome;
use forebay_report::{Basis, Check, Experiment, Finding, Point, Role, Series};

/// Said once under every experiment.
pub(super) const SCALE_NOTE: &str = "Models of flash devices are smaller than the devices by the scale given, with the same dies, \
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

/// A figure somebody printed, as a mark in a chart over minutes.
pub(super) fn printed(name: &str, group: &str, minute: f64, value: f64) -> Series {
    Series {
        name: name.into(),
        group: group.into(),
        role: Role::Published,
        points: vec![Point::at(minute, value)],
        ..Series::default()
    }
}

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
        if c.is_ascii_digit() && left > 0 && left.is_multiple_of(3) {
            out.push(',');
        }
    }
    out + rest
}

/// `62 %` of a share.
pub(super) fn percent(share: f64) -> String {
    format!("{} %", figure(share * 100.0))
}

/// What must hold in any run, whatever the device: Little's law, utilisation, even wear.
pub(super) fn invariants(outcomes: &[Outcome], experiment: &mut Experiment) {
    let timelines: Vec<_> = outcomes
        .iter()
        .filter_map(|o| match o {
            Outcome::Timeline(t) => Some(t),
            _ => None,
        })
        .collect();
    let ratios = timelines.iter().flat_map(|t| &t.phases).filter_map(|p| p.little);
    let worst = ratios
        .map(|(integrated, rate_times_response)| rate_times_response / integrated.max(1e-12))
        .max_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs()));
    if let Some(worst) = worst {
        experiment.checks.push(Check::relative(
            "Little's law: rate times response over requests outstanding, worst run",
            "",
            (1.0, worst),
            0.01,
            Basis::Invariant,
            "Little 1961; both sides counted apart by the device",
        ));
        let busiest = timelines.iter().map(|t| t.utilisation).fold(0.0, f64::max);
        experiment.checks.push(Check::relative(
            "Utilisation of the medium stays between 0 and 1, busiest run",
            "",
            (0.5, busiest),
            // What is under way when a run ends is counted whole: a hair above 1 is that.
            1.01,
            Basis::Invariant,
            "time the servers were busy over time there was, operations under way counted whole",
        ));
    }
    let worn = timelines.iter().filter(|t| t.erase_mean >= 10.0);
    let uneven = worn.map(|t| t.erase_deviation / t.erase_mean).fold(0.0, f64::max);
    if uneven > 0.0 {
        experiment.checks.push(Check::relative(
            "Wear spread: deviation of erase counts over their mean, worst run of ten cycles and more",
            "",
            (0.0, uneven),
            0.5,
            Basis::Invariant,
            "dynamic wear levelling opens the least worn block first",
        ));
    }
}

#[cfg(test)]
mod tests;
