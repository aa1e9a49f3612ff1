//! Counters, temperature and power on the page.

use forebay_report::{Axis, Cell, Column, Experiment, Point, Role, Series, Table};

use super::{Shown, chart, experiment, said};
use crate::{Health, Step};

/// The key of the conditions that says where counters come from, or why there are none.
const COUNTERS: &str = "counters";

/// One chapter; empty where there is neither a counter nor a sensor.
pub(super) fn health(shown: &[Shown<'_>]) -> Experiment {
    let question = "What do the drive's own counters and the sensors say?";
    let mut e = experiment(shown, "health", "Wear, temperature and power", question);
    e.method = "The drive's counters before the first step, between steps and after the last; \
                sensors of the machine while the steps ran."
        .to_owned();
    for of in shown {
        if let Some(text) = of.run.wear_text() {
            e.findings.push(of.finding(said(shown, of, &text)));
        } else if let Some(why) = of.run.conditions.details.get(COUNTERS) {
            let text = format!("counters of the drive: {why}");
            e.findings.push(of.finding(said(shown, of, &text)));
        }
    }
    e.tables.extend([counters(shown), power(shown)]);
    e.tables.retain(|table| !table.rows.is_empty());
    let mut lines = chart(&e, "temperature", "Temperature", "At the end of each step.");
    (lines.x, lines.y) = (Axis::linear("Time", "s"), Axis::linear("Temperature", "°C"));
    for of in shown {
        let points = temperatures(of);
        let (name, group) = (of.name.clone(), of.name.clone());
        if !points.is_empty() {
            let role = Role::Measured;
            lines.series.push(Series { name, group, role, dashed: false, points });
        }
    }
    if !lines.series.is_empty() {
        e.charts.push(lines);
    }
    e
}

/// Of the sensor; without one, of the drive's counters.
fn temperatures(of: &Shown<'_>) -> Vec<Point> {
    let Some(first) = of.run.outcomes.first() else { return Vec::new() };
    let since = |at_s: u64| at_s.saturating_sub(first.started_s) as f64;
    let sensed = of.run.outcomes.iter().filter_map(|o| {
        let at_s = since(o.started_s) + o.measured.seconds;
        Some(Point::at(at_s, o.temperature_c?))
    });
    let sensed: Vec<Point> = sensed.collect();
    if !sensed.is_empty() {
        return sensed;
    }
    let readings = of.run.health.iter();
    readings.filter_map(|r| Some(Point::at(since(r.at_s), r.health.temperature_c?))).collect()
}

/// Before and after, counter by counter.
fn counters(shown: &[Shown<'_>]) -> Table {
    type Get = fn(&Health) -> Option<f64>;
    let figures: [(&str, Get); 8] = [
        ("rated life used, %", |h| h.used_percent),
        ("spare blocks, %", |h| h.spare_percent),
        ("written by hosts, GB", |h| Some(h.host_written?.bytes / 1e9)),
        ("written to the media, GB", |h| Some(h.media_written?.bytes / 1e9)),
        ("media errors", |h| h.media_errors.map(|n| n as f64)),
        ("unsafe shutdowns", |h| h.unsafe_shutdowns.map(|n| n as f64)),
        ("hours under power", |h| h.power_on_hours.map(|n| n as f64)),
        ("temperature, °C", |h| h.temperature_c),
    ];
    let mut rows = Vec::new();
    for of in shown {
        let Some((first, last)) = of.run.first_and_last() else { continue };
        for (name, get) in figures {
            let (Some(before), Some(after)) = (get(first), get(last)) else { continue };
            let values = [before, after, after - before].map(Cell::number);
            let name = Cell::text(said(shown, of, name));
            rows.push([name].into_iter().chain(values).collect());
        }
    }
    Table {
        id: "counters".to_owned(),
        title: "Counters of the drive".to_owned(),
        caption: "They count what other programs do, too.".to_owned(),
        columns: ["Counter", "Before", "After", "Change"].map(Column::new).to_vec(),
        rows,
    }
}

/// Mean power by step and sensor.
fn power(shown: &[Shown<'_>]) -> Table {
    let mut rows = Vec::new();
    for of in shown {
        for outcome in &of.run.outcomes {
            let title = Step { kind: outcome.kind, job: outcome.job }.title();
            rows.extend(outcome.power.iter().map(|power| {
                let name = Cell::text(said(shown, of, &title));
                vec![name, Cell::text(&power.sensor), Cell::number(power.watts)]
            }));
        }
    }
    Table {
        id: "power".to_owned(),
        title: "Power while a step ran".to_owned(),
        caption: "Its mean. A package is a processor with its memory controller, and no drive."
            .to_owned(),
        columns: vec![Column::new("Step"), Column::new("Sensor"), Column::with_unit("Power", "W")],
        rows,
    }
}
