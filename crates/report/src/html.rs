//! HTML text and tables; the tables can be read without any script.

use crate::{Cell, Chart, ChartKind, Histogram, Series, Table, Value, X, round_significant};

/// `text` with the five special characters of HTML replaced.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// Endings of host names that sources of figures have.
const HOSTS: [&str; 6] = [".com", ".org", ".net", ".io", ".de", ".tw"];

/// `text` escaped, with the addresses of pages in it as links.
pub(crate) fn linked(text: &str) -> String {
    let link = |word: &str| {
        let address = word.trim_end_matches([',', ';', '.', ')']);
        let rest = &word[address.len()..];
        let plain = address.trim_start_matches("https://").trim_start_matches("http://");
        let host = plain.split('/').next().unwrap_or_default();
        let is_host = HOSTS.iter().any(|end| host.ends_with(end) && host.len() > end.len());
        if !is_host || host.contains(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '-') {
            return escape(word);
        }
        let (plain, shown) = (escape(plain), escape(address));
        format!("<a href=\"https://{plain}\">{shown}</a>{}", escape(rest))
    };
    text.split(' ').map(link).collect::<Vec<_>>().join(" ")
}

/// JSON made safe inside a script element: no `<` survives, so no tag can end it.
pub(crate) fn escape_script(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A number for people: thousands apart, as many decimals as its size deserves.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let size = value.abs();
    if size >= 1e15 || (size > 0.0 && size < 1e-4) {
        return format!("{value:.2e}");
    }
    let decimals = match size {
        s if s >= 1000.0 => 0,
        s if s >= 100.0 => 1,
        s if s >= 10.0 => 2,
        s if s >= 0.1 || s == 0.0 => 3,
        _ => 6,
    };
    let plain = format!("{:.decimals$}", round_significant(value));
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = whole.trim_start_matches('-');
    let mut grouped = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            grouped.push('\u{202f}');
        }
        grouped.push(c);
    }
    let sign = if whole.starts_with('-') { "−" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

fn heading(name: &str, unit: &str) -> String {
    if unit.is_empty() {
        escape(name)
    } else {
        format!("{} <small>{}</small>", escape(name), escape(unit))
    }
}

fn cell_html(cell: &Cell, head: bool) -> String {
    let (text, numeric) = match &cell.value {
        Value::Number(n) => (number(*n), true),
        Value::Text(t) => (escape(t), false),
        Value::Unknown(()) => ("unknown".into(), false),
    };
    let mut classes = Vec::new();
    if numeric {
        classes.push("n");
    }
    if matches!(cell.value, Value::Unknown(())) {
        classes.push("unknown");
    }
    let mark = match cell.good {
        Some(true) => {
            classes.push("good");
            "<i aria-label=\"in favor\">✓</i> "
        }
        Some(false) => {
            classes.push("bad");
            "<i aria-label=\"against\">✗</i> "
        }
        None => "",
    };
    let tag = if head { "th scope=\"row\"" } else { "td" };
    let end = if head { "th" } else { "td" };
    let note = if cell.note.is_empty() {
        String::new()
    } else {
        format!("<small class=\"note\">{}</small>", linked(&cell.note))
    };
    let class = classes.join(" ");
    format!("<{tag} class=\"{class}\">{mark}{text}{note}</{end}>")
}

/// A table with its caption.
pub(crate) fn table(table: &Table) -> String {
    let mut out = String::from("<div class=\"scroll\"><table>");
    out.push_str("<thead><tr>");
    for column in &table.columns {
        out.push_str(&format!("<th scope=\"col\">{}</th>", heading(&column.name, &column.unit)));
    }
    out.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        out.push_str("<tr>");
        for (i, cell) in row.iter().enumerate() {
            out.push_str(&cell_html(cell, i == 0));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

fn x_values(series: &[Series]) -> Vec<X> {
    let mut names: Vec<X> = Vec::new();
    let mut numbers: Vec<f64> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for point in series.iter().flat_map(|s| &s.points) {
        match &point.x {
            X::Number(n) => numbers.push(*n),
            X::Name(name) => {
                if seen.insert(name.clone()) {
                    names.push(point.x.clone());
                }
            }
        }
    }
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    numbers.into_iter().map(X::Number).chain(names).collect()
}

fn same_x(a: &X, b: &X) -> bool {
    match (a, b) {
        (X::Number(a), X::Number(b)) => a.total_cmp(b).is_eq(),
        (X::Name(a), X::Name(b)) => a == b,
        _ => false,
    }
}

/// The table of a histogram: one row for each stretch, one column for each range.
pub(crate) fn histogram_table(chart: &Chart, histogram: &Histogram) -> String {
    let mut out = String::from(
        "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Histogram\">\
         <table><thead><tr>",
    );
    out.push_str(&format!("<th scope=\"col\">{}</th>", heading(&chart.x.label, &chart.x.unit)));
    for edge in histogram.edges.iter().skip(1) {
        let below = heading(&format!("below {}", number(*edge)), &chart.y.unit);
        out.push_str(&format!("<th scope=\"col\">{below}</th>"));
    }
    out.push_str("</tr></thead><tbody>");
    for column in &histogram.columns {
        let stretch = format!("{} to {}", number(column.from), number(column.to));
        out.push_str(&format!("<tr><th scope=\"row\">{stretch}</th>"));
        let mut counts = vec![0; histogram.edges.len().saturating_sub(1)];
        for (range, count) in &column.counts {
            if let Some(cell) = counts.get_mut(*range as usize) {
                *cell = *count;
            }
        }
        for count in counts {
            out.push_str(&format!("<td class=\"n\">{}</td>", number(count as f64)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// The table of a chart: one row for each x, one column for each series (three when it has
/// intervals).
pub(crate) fn chart_table(chart: &Chart) -> String {
    let intervals = |s: &Series| s.points.iter().any(|p| p.low.is_some());
    let mut out = String::from(
        "<div class=\"scroll tall\" tabindex=\"0\" role=\"region\" aria-label=\"Data\">\
         <table><thead><tr>",
    );
    let x_heading = match chart.kind {
        ChartKind::Line | ChartKind::Bar | ChartKind::Row | ChartKind::Interval => {
            heading(&chart.x.label, &chart.x.unit)
        }
    };
    out.push_str(&format!("<th scope=\"col\">{x_heading}</th>"));
    for series in &chart.series {
        let name = heading(&series.name, &chart.y.unit);
        out.push_str(&format!("<th scope=\"col\">{name}</th>"));
        if intervals(series) {
            out.push_str("<th scope=\"col\">from</th><th scope=\"col\">to</th>");
        }
    }
    out.push_str("</tr></thead><tbody>");
    // Series are walked in step with the rows: both follow the order of x, so this stays linear
    // for the long ones; a series in another order is found by search.
    let mut next = vec![0usize; chart.series.len()];
    for x in x_values(&chart.series) {
        let label = match &x {
            X::Number(n) => number(*n),
            X::Name(name) => escape(name),
        };
        out.push_str(&format!("<tr><th scope=\"row\">{label}</th>"));
        for (series, next) in chart.series.iter().zip(&mut next) {
            let here = series.points.get(*next).filter(|p| same_x(&p.x, &x));
            let point = here.or_else(|| series.points.iter().find(|p| same_x(&p.x, &x)));
            if here.is_some() {
                *next += 1;
            }
            let show = |v: Option<f64>| {
                v.map_or_else(
                    || "<td class=\"unknown\">–</td>".to_owned(),
                    |v| format!("<td class=\"n\">{}</td>", number(v)),
                )
            };
            out.push_str(&show(point.and_then(|p| p.y)));
            if intervals(series) {
                out.push_str(&show(point.and_then(|p| p.low)));
                out.push_str(&show(point.and_then(|p| p.high)));
            }
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}
