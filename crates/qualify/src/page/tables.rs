//! Tables of qualifications: detectors, latencies, conditions, differences.

use std::collections::BTreeSet;

use forebay_report::{Cell, Column, Experiment, Table};

use super::{Shown, experiment, said};
use crate::detect::whole;
use crate::plan::QUEUE_DEPTHS;
use crate::{
    Detector, Outcome, Pattern, Qualification, Sign, StepKind, Sync, WriteCache, findings,
};

/// Detectors by run.
pub(super) fn detectors(shown: &[Shown<'_>]) -> Table {
    let mut columns = vec![Column::new("Detector")];
    columns.extend(shown.iter().map(|of| Column::new(&of.name)));
    let found: Vec<_> =
        shown.iter().map(|of| findings(&of.run.conditions, &of.run.outcomes)).collect();
    let row = |detector: Detector| {
        let mut cells = vec![Cell::text(detector.name())];
        for findings in &found {
            let finding = findings.iter().find(|f| f.detector == detector);
            cells.push(finding.map_or_else(Cell::unknown, |finding| {
                let (word, good) = match finding.sign {
                    Sign::Hit => ("yes", Some(detector == Detector::Memory)),
                    Sign::Clear if detector == Detector::Memory => ("no", None),
                    Sign::Clear => ("no", Some(true)),
                    Sign::Open => ("not known", None),
                };
                let cell = Cell::text(word).noted(&finding.text);
                good.map_or(cell.clone(), |good| cell.judged(good))
            }));
        }
        cells
    };
    Table {
        id: "detectors".to_owned(),
        title: "Detectors".to_owned(),
        caption: "What the measurements show beside the rates.".to_owned(),
        columns,
        rows: Detector::ALL.into_iter().map(row).collect(),
    }
}

fn micros(ns: Option<u64>) -> Cell {
    Cell::maybe(ns.map(|ns| ns as f64 / 1e3))
}

/// Response times of durable writes as the purpose needs them.
pub(super) fn latencies(shown: &[Shown<'_>]) -> Table {
    let mut columns = vec![Column::new("Load"), Column::with_unit("Rate", "1/s")];
    columns.extend(
        ["p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "max"]
            .map(|name| Column::with_unit(name, "µs")),
    );
    let mut rows = Vec::new();
    for of in shown {
        for sync in [Sync::Flush, Sync::Fua] {
            for queue_depth in QUEUE_DEPTHS {
                let kind = StepKind::SyncWrites { sync, queue_depth };
                let Some(outcome) = whole(&of.run.outcomes, kind) else { continue };
                rows.push(latency_row(shown, of, outcome));
            }
        }
    }
    Table {
        id: "latencies".to_owned(),
        title: "Durable writes".to_owned(),
        caption: "A percentile beyond which not one request lies is unknown.".to_owned(),
        columns,
        rows,
    }
}

fn latency_row(shown: &[Shown<'_>], of: &Shown<'_>, outcome: &Outcome) -> Vec<Cell> {
    let latency = &outcome.measured.latency;
    let title = crate::Step { kind: outcome.kind, job: outcome.job }.title();
    let mut cells = vec![Cell::text(said(shown, of, &title))];
    cells.push(Cell::number(outcome.measured.iops()));
    cells.extend(latency.percentiles().map(|(_, _, ns)| micros(ns)));
    cells.push(micros(Some(latency.max_ns)));
    cells
}

fn facts(of: &Shown<'_>) -> Vec<(String, String)> {
    let (c, plan) = (&of.run.conditions, &of.run.plan);
    let mut facts = vec![
        ("target".to_owned(), c.target.clone()),
        ("size".to_owned(), forebay_units::format_bytes(c.size_bytes)),
        ("block".to_owned(), format!("{} B", c.block_bytes)),
        ("span used".to_owned(), forebay_units::format_bytes(plan.span_bytes)),
        ("profile".to_owned(), plan.profile.name().to_owned()),
        ("purpose".to_owned(), plan.purpose.name().to_owned()),
        ("seed".to_owned(), plan.seed.to_string()),
    ];
    let mut add = |key: &str, value: Option<String>| {
        facts.extend(value.map(|value| (key.to_owned(), value)));
    };
    add("model", c.model.clone());
    add("serial", c.serial.clone());
    add("firmware", c.firmware.clone());
    add("scale of the model", c.scale.map(|scale| format!("1/{scale:.1}")));
    let waits = if plan.sleeps { "sleeps" } else { "polls for up to 400 µs, then sleeps" };
    add("waiting for a request", (!of.is_model()).then(|| waits.to_owned()));
    add("only", plan.only.map(|part| part.name().to_owned()));
    add("times divided by", (plan.shrink > 1).then(|| plan.shrink.to_string()));
    let cache = c.write_cache.map(|cache| match cache {
        WriteCache::Volatile => "volatile",
        WriteCache::Durable => "durable, or none",
    });
    add("write cache", cache.map(str::to_owned));
    add("FUA", c.takes_fua.map(|takes| if takes { "yes" } else { "no" }.to_owned()));
    let temperatures = of.run.outcomes.iter().filter_map(|o| o.temperature_c);
    add("hottest", temperatures.max_by(f64::total_cmp).map(|c| format!("{c:.0} °C")));
    facts.extend(c.details.clone());
    facts
}

/// Conditions by run.
pub(super) fn conditions(shown: &[Shown<'_>]) -> Experiment {
    let question = "On what, and under which conditions, was this measured?";
    let mut e = experiment(shown, "conditions", "Conditions", question);
    let facts: Vec<_> = shown.iter().map(facts).collect();
    let mut seen = BTreeSet::new();
    let keys: Vec<&String> =
        facts.iter().flatten().map(|(key, _)| key).filter(|key| seen.insert(*key)).collect();
    let mut columns = vec![Column::new("Condition")];
    columns.extend(shown.iter().map(|of| Column::new(&of.name)));
    let row = |key: &&String| {
        let value = |facts: &Vec<(String, String)>| {
            let found = facts.iter().find(|(name, _)| name == *key);
            found.map_or_else(Cell::unknown, |(_, value)| Cell::text(value))
        };
        let mut cells = vec![Cell::text(key.as_str())];
        cells.extend(facts.iter().map(value));
        cells
    };
    e.tables.push(Table {
        id: "conditions".to_owned(),
        title: "Device and machine".to_owned(),
        columns,
        rows: keys.iter().map(row).collect(),
        ..Table::default()
    });
    e
}

/// Figures of two runs beside each other, in the order of the second one's steps.
#[must_use]
pub fn comparison(before: &Qualification, after: &Qualification) -> Table {
    let mut rows = Vec::new();
    let mut add = |name: String, old: Option<f64>, new: Option<f64>, wants_more: bool| {
        let (Some(old), Some(new)) = (old, new) else { return };
        if old <= 0.0 {
            return;
        }
        let change = (new / old - 1.0) * 100.0;
        let cell = Cell::number(change);
        // A tenth is beyond what two runs of one device differ by, mostly.
        const REMARKABLE_PERCENT: f64 = 10.0;
        let cell = match change.abs() >= REMARKABLE_PERCENT {
            true => cell.judged((change > 0.0) == wants_more),
            false => cell,
        };
        rows.push(vec![Cell::text(name), Cell::number(old), Cell::number(new), cell]);
    };
    let rate = |run: &Qualification, kind| Some(whole(&run.outcomes, kind)?.measured.iops());
    let p99 = |run: &Qualification, kind| {
        Some(whole(&run.outcomes, kind)?.measured.latency.p99_ns? as f64 / 1e3)
    };
    for pattern in [Pattern::Sequential, Pattern::Mixed, Pattern::Random] {
        let kind = StepKind::Sustained { pattern };
        let name = format!("sustained {} writes, 1/s", pattern.name());
        add(name, rate(before, kind), rate(after, kind), true);
    }
    for outcome in &after.outcomes {
        let kind = outcome.kind;
        let title = crate::Step { kind, job: outcome.job }.title();
        if matches!(
            kind,
            StepKind::SyncWrites { .. }
                | StepKind::Reads { .. }
                | StepKind::Writes { .. }
                | StepKind::MixedReads { .. }
                | StepKind::Procedure { .. }
                | StepKind::Saturation
        ) {
            add(format!("{title}, 1/s"), rate(before, kind), rate(after, kind), true);
            add(format!("{title}, p99 in µs"), p99(before, kind), p99(after, kind), false);
        }
    }
    Table {
        id: "difference".to_owned(),
        title: "Figures of both runs".to_owned(),
        caption: "A change of a tenth or more is marked.".to_owned(),
        columns: vec![
            Column::new("Figure"),
            Column::new("Before"),
            Column::new("After"),
            Column::with_unit("Change", "%"),
        ],
        rows,
    }
}

/// What two runs differ in.
pub(super) fn difference(before: &Shown<'_>, after: &Shown<'_>) -> Experiment {
    let pair = [
        Shown { name: before.name.clone(), run: before.run },
        Shown { name: after.name.clone(), run: after.run },
    ];
    let question = "What changed from the first run to the second?";
    let mut e = experiment(&pair, "difference", "Difference", question);
    let mut table = comparison(before.run, after.run);
    table.columns[1].name.clone_from(&before.name);
    table.columns[2].name.clone_from(&after.name);
    let (a, b) = (before.run.judge().answer, after.run.judge().answer);
    if before.run.plan.procedure.is_none() && after.run.plan.procedure.is_none() {
        e.findings.push(after.finding(format!("the verdicts: {}, then {}", a.name(), b.name())));
    }
    let judged = |good| {
        let is_so = |row: &&Vec<Cell>| row.last().is_some_and(|cell| cell.good == Some(good));
        table.rows.iter().filter(is_so).count()
    };
    let (better, worse, all) = (judged(true), judged(false), table.rows.len());
    if all > 0 {
        let text =
            format!("of {all} figures, {better} are better by a tenth or more, and {worse} worse");
        e.findings.push(after.finding(text));
        e.tables.push(table);
    }
    e
}
