//! Results as text: Markdown for people, CSV for spreadsheets.

use crate::html::number;
use crate::{
    Bound, Cell, Chart, Check, Column, Experiment, Histogram, Results, Table, Value, X,
    round_significant,
};

/// Results as Markdown: findings, checks, tables, and the data of charts.
#[must_use]
pub fn to_markdown(results: &Results) -> String {
    let mut out = format!("# {}\n", inline(&results.title));
    let is_seeded = results.experiments.iter().any(|e| !e.config_hash.is_empty());
    let seed = if is_seeded { format!(", seed {}", results.seed) } else { String::new() };
    out.push_str(&format!("\n{}{seed}\n", inline(&results.generator)));
    for e in &results.experiments {
        out.push_str(&section(e));
    }
    out
}

fn section(e: &Experiment) -> String {
    let mut out = format!("\n## {}\n\n{}\n", inline(&e.title), inline(&e.question));
    if let Some(refusal) = &e.refusal {
        out.push_str(&format!("\n{}\n", inline(refusal)));
    }
    if !e.advice.is_empty() || !e.findings.is_empty() {
        out.push('\n');
    }
    for finding in e.advice.iter().chain(&e.findings) {
        out.push_str(&format!("- {}\n", inline(&finding.text)));
    }
    if !e.checks.is_empty() {
        out.push_str("\n| check | wanted | got | holds |\n|---|---|---|---|\n");
        out.extend(e.checks.iter().map(check));
    }
    for t in &e.tables {
        out.push_str(&format!("\n### {}\n\n{}", inline(&t.title), table(t)));
    }
    for c in &e.charts {
        out.push_str(&format!("\n### {}\n\n{}", inline(&c.title), chart(c)));
    }
    out
}

/// Text that stays in its cell and in its line.
fn inline(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

fn check(c: &Check) -> String {
    let bound = match c.bound {
        Bound::Near => "near",
        Bound::AtMost => "at most",
        Bound::AtLeast => "at least",
    };
    let figure = |value| format!("{} {}", number(value), c.unit).trim_end().to_owned();
    let (expected, got) = (figure(c.expected), figure(c.got));
    let holds = if c.pass { "yes" } else { "no" };
    format!("| {} | {bound} {expected} | {got} | {holds} |\n", inline(&c.name))
}

fn heading(column: &Column) -> String {
    match column.unit.as_str() {
        "" => inline(&column.name),
        unit => format!("{} ({unit})", inline(&column.name)),
    }
}

fn cell(cell: &Cell) -> String {
    let value = match &cell.value {
        Value::Number(value) => number(*value),
        Value::Text(text) => inline(text),
        Value::Unknown(()) => "unknown".to_owned(),
    };
    match cell.note.as_str() {
        "" => value,
        note => format!("{value}: {}", inline(note)),
    }
}

fn row(cells: impl Iterator<Item = String>) -> String {
    format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

fn table(t: &Table) -> String {
    let mut out = row(t.columns.iter().map(heading));
    out.push_str(&format!("|{}\n", "---|".repeat(t.columns.len())));
    for cells in &t.rows {
        out.push_str(&row(cells.iter().map(cell)));
    }
    out
}

fn place(x: &X) -> String {
    match x {
        X::Number(value) => number(*value),
        X::Name(name) => inline(name),
    }
}

/// One row for each point: series of a chart need not share their places.
fn chart(c: &Chart) -> String {
    let axis = |axis: &crate::Axis| heading(&Column::with_unit(&axis.label, &axis.unit));
    let mut out = row(["series".to_owned(), axis(&c.x), axis(&c.y)].into_iter());
    out.push_str("|---|---|---|\n");
    for series in &c.series {
        for point in &series.points {
            let mut value = point.y.map_or_else(|| "unknown".to_owned(), number);
            if let (Some(low), Some(high)) = (point.low, point.high) {
                value.push_str(&format!(" ({} to {})", number(low), number(high)));
            }
            out.push_str(&row([inline(&series.name), place(&point.x), value].into_iter()));
        }
    }
    out
}

/// Every value of the results, a line each: experiment, chart or table or check, series or row,
/// place or column, unit, value. An unknown value is empty. The ends of an interval are lines of
/// their own, of the kinds low and high. A count of a histogram has the end of its stretch as row
/// and the upper edge of its range as column. Numbers have the digits of the JSON.
#[must_use]
pub fn to_csv(results: &Results) -> String {
    let mut out = String::from("experiment,kind,id,row,column,unit,value\n");
    for e in &results.experiments {
        let mut line = |kind: &str, id: &str, [row, column, unit, value]: [&str; 4]| {
            let words = [e.id.as_str(), kind, id, row, column, unit, value];
            out.push_str(&words.map(quoted).join(","));
            out.push('\n');
        };
        for c in &e.checks {
            line("check", "", [&c.name, "wanted", &c.unit, &figure(c.expected)]);
            line("check", "", [&c.name, "got", &c.unit, &figure(c.got)]);
        }
        for t in &e.tables {
            for cells in &t.rows {
                let name = cells.first().map(plain).unwrap_or_default();
                for (column, cell) in t.columns.iter().zip(cells).skip(1) {
                    line("table", &t.id, [&name, &column.name, &column.unit, &plain(cell)]);
                }
            }
        }
        for c in &e.charts {
            for series in &c.series {
                for point in &series.points {
                    let x = match &point.x {
                        X::Number(value) => figure(*value),
                        X::Name(name) => name.clone(),
                    };
                    let y = point.y.map(figure).unwrap_or_default();
                    line("chart", &c.id, [&series.name, &x, &c.y.unit, &y]);
                    for (end, value) in [("low", point.low), ("high", point.high)] {
                        let Some(value) = value else { continue };
                        line(end, &c.id, [&series.name, &x, &c.y.unit, &figure(value)]);
                    }
                }
            }
            for (column, range, count) in c.histogram.iter().flat_map(counts) {
                line("count", &c.id, [&column, &range, &c.y.unit, &count]);
            }
        }
    }
    out
}

/// The end of each stretch, the upper edge of each range that holds something in it, and the count.
fn counts(histogram: &Histogram) -> impl Iterator<Item = (String, String, String)> {
    histogram.columns.iter().flat_map(|column| {
        column.counts.iter().filter_map(|(range, count)| {
            let edge = histogram.edges.get(*range as usize + 1)?;
            Some((figure(column.to), figure(*edge), count.to_string()))
        })
    })
}

/// A number as the JSON has it.
fn figure(value: f64) -> String {
    round_significant(value).to_string()
}

fn plain(cell: &Cell) -> String {
    match &cell.value {
        Value::Number(value) => figure(*value),
        Value::Text(text) => text.clone(),
        Value::Unknown(()) => String::new(),
    }
}

fn quoted(word: &str) -> String {
    if word.contains([',', '"', '\n']) {
        return format!("\"{}\"", word.replace('"', "\"\""));
    }
    word.to_owned()
}
