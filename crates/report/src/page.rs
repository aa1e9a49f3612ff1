//! HTML page: one file with everything in it.

use crate::html::{chart_table, escape, escape_script, histogram_table, linked, number, table};
use crate::{Basis, Bound, Chart, Check, Experiment, Results, Table, to_json};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const ECHARTS: &str = include_str!("../vendor/echarts-5.6.0/echarts.common.min.js");

fn basis_word(basis: Basis) -> (&'static str, &'static str) {
    match basis {
        Basis::Input => ("input", "The description of the device says so"),
        Basis::Fitted => ("fitted", "A model parameter was chosen so that this figure comes out"),
        Basis::Predicted => ("predicted", "Follows from the model; nothing was adjusted to it"),
        Basis::Invariant => ("invariant", "Must hold for any model"),
        Basis::Formula => ("formula", "Follows from a formula"),
        Basis::Published => ("published", "Printed by others"),
        Basis::Measured => ("measured", "Measured on the device itself"),
    }
}

fn basis_tag(basis: Basis) -> String {
    let (word, why) = basis_word(basis);
    format!("<span class=\"tag {word}\" title=\"{why}\">{word}</span>")
}

fn passed(checks: &[Check]) -> usize {
    checks.iter().filter(|c| c.pass).count()
}

fn verdict(experiment: &Experiment) -> (&'static str, String) {
    if experiment.refusal.is_some() {
        return ("none", "not run".into());
    }
    let (all, good) = (experiment.checks.len(), passed(&experiment.checks));
    match (all, good) {
        (0, _) => ("none", String::new()),
        (all, good) if all == good => ("pass", format!("{good} of {all} checks hold")),
        (all, good) => ("fail", format!("{good} of {all} checks hold")),
    }
}

/// Where figures come from; nothing for what was recorded and not run.
fn provenance(seed: u64, config_hash: &str) -> String {
    if config_hash.is_empty() {
        return String::new();
    }
    format!("<span>seed {seed}</span><span>configuration {}</span>", escape(config_hash))
}

fn navigation(results: &Results) -> String {
    let mut out = String::from("<nav aria-label=\"Experiments\"><ol>");
    for e in &results.experiments {
        let (class, text) = verdict(e);
        let dot = if text.is_empty() { String::new() } else { format!(" title=\"{text}\"") };
        out.push_str(&format!(
            "<li><a href=\"#{id}\"><span class=\"dot {class}\"{dot}></span>\
             {title}</a></li>",
            id = escape(&e.id),
            title = escape(&e.title),
        ));
    }
    out.push_str("</ol></nav>");
    out
}

fn overview(results: &Results) -> String {
    let mut out = String::from("<section class=\"cards\" aria-label=\"Overview\">");
    for e in &results.experiments {
        let (class, text) = verdict(e);
        let line = e
            .refusal
            .as_deref()
            .or_else(|| e.advice.iter().chain(&e.findings).next().map(|f| f.text.as_str()))
            .unwrap_or(&e.question);
        out.push_str(&format!(
            "<a class=\"card\" href=\"#{id}\"><h3>{title}</h3><p>{line}</p>\
             {text}</a>",
            id = escape(&e.id),
            title = escape(&e.title),
            line = escape(line),
            text = match text.as_str() {
                "" => String::new(),
                text => format!("<p class=\"verdict {class}\">{text}</p>"),
            },
        ));
    }
    out.push_str("</section>");
    out
}

/// What the experiments recommend, first of all.
fn advice(results: &Results) -> String {
    let all = || results.experiments.iter().flat_map(|e| e.advice.iter().map(move |f| (e, f)));
    if all().next().is_none() {
        return String::new();
    }
    let mut out = String::from("<section class=\"advice\"><h2>Recommendation</h2><ul>");
    for (e, finding) in all() {
        out.push_str(&format!(
            "<li>{} {} <a href=\"#{}\">{}</a></li>",
            escape(&finding.text),
            basis_tag(finding.basis),
            escape(&e.id),
            escape(&e.title),
        ));
    }
    out.push_str("</ul></section>");
    out
}

fn check_rows(checks: &[Check]) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Check</th><th scope=\"col\">\
         Expected</th><th scope=\"col\">Got</th><th scope=\"col\">Off by</th><th scope=\"col\">\
         Allowed</th><th scope=\"col\">Basis</th><th scope=\"col\">Source</th></tr></thead><tbody>",
    );
    for c in checks {
        let off = if c.expected == 0.0 {
            number(c.got - c.expected)
        } else {
            format!("{:+.2} %", (c.got / c.expected - 1.0) * 100.0).replace('-', "−")
        };
        let allowed = match c.bound {
            Bound::AtMost => "at most".to_owned(),
            Bound::AtLeast => "at least".to_owned(),
            Bound::Near if c.expected == 0.0 => number(c.tolerance),
            Bound::Near => format!("± {} %", number(c.tolerance * 100.0)),
        };
        let (class, mark) = if c.pass { ("good", "✓") } else { ("bad", "✗") };
        let unit = escape(&c.unit);
        out.push_str(&format!(
            "<tr><th scope=\"row\" class=\"{class}\"><i>{mark}</i> {}</th><td class=\"n\">{} \
             <small>{unit}</small></td><td class=\"n\">{} <small>{unit}</small></td>\
             <td class=\"n\">{off}</td><td class=\"n\">{allowed}</td><td>{}</td><td>{}</td></tr>",
            escape(&c.name),
            number(c.expected),
            number(c.got),
            basis_tag(c.basis),
            linked(&c.source),
        ));
    }
    out.push_str("</tbody></table></div>");
    out
}

/// The table of response times below a chart.
fn responses(times: &Table) -> String {
    format!(
        "<details class=\"responses\"><summary>{}</summary><p>{}</p>{}</details>",
        escape(&times.title),
        escape(&times.caption),
        table(times),
    )
}

/// The counts behind the lines of a chart, below it.
fn histogram(chart: &Chart) -> String {
    chart.histogram.as_ref().map_or_else(String::new, |histogram| {
        format!(
            "<details class=\"histogram\"><summary>Histogram of {}</summary>{}</details>",
            escape(&histogram.of),
            histogram_table(chart, histogram),
        )
    })
}

fn chart(experiment: &Experiment, index: usize, chart: &Chart) -> String {
    let id = format!("{}-{}", escape(&experiment.id), escape(&chart.id));
    format!(
        "<figure id=\"{id}\"><figcaption><h3>{title}</h3><p>{caption}</p></figcaption>\
         <div class=\"chart\" data-experiment=\"{exp}\" data-chart=\"{index}\" role=\"group\" \
         aria-label=\"{title}. The values are in the table below.\"></div>\
         <p class=\"provenance\">{provenance}\
         <button type=\"button\" class=\"scale\" data-experiment=\"{exp}\" data-chart=\"{index}\">\
         {scale}</button>\
         <button type=\"button\" class=\"csv\" data-experiment=\"{exp}\" data-chart=\"{index}\">\
         Save as CSV</button></p>\
         {responses}{histogram}<details><summary>Data</summary>{rows}</details></figure>",
        title = escape(&chart.title),
        caption = escape(&chart.caption),
        exp = escape(&experiment.id),
        provenance = provenance(chart.seed, &chart.config_hash),
        responses = chart.responses.as_ref().map_or_else(String::new, responses),
        histogram = histogram(chart),
        scale = if chart.y.log { "Linear axis" } else { "Logarithmic axis" },
        rows = chart_table(chart),
    )
}

/// How it was run, folded; nothing where there is nothing to say.
fn method(e: &Experiment) -> String {
    if e.method.is_empty() && e.config.is_empty() && e.config_hash.is_empty() {
        return String::new();
    }
    let mut out = String::from("<details class=\"method\"><summary>");
    out.push_str(if e.config.is_empty() { "Method" } else { "Method and configuration" });
    out.push_str(&format!("</summary><p>{}</p><dl>", escape(&e.method)));
    let mut row = |key: &str, value: &str| {
        out.push_str(&format!("<dt>{}</dt><dd>{}</dd>", escape(key), escape(value)));
    };
    e.config.iter().for_each(|(key, value)| row(key, value));
    if !e.config_hash.is_empty() {
        row("seed", &e.seed.to_string());
        row("configuration hash", &e.config_hash);
    }
    out.push_str("</dl></details>");
    out
}

fn section(e: &Experiment) -> String {
    let mut out = format!(
        "<section class=\"experiment\" id=\"{id}\"><h2>{title}</h2><p class=\"question\">{q}</p>",
        id = escape(&e.id),
        title = escape(&e.title),
        q = escape(&e.question),
    );
    if let Some(why) = &e.refusal {
        out.push_str(&format!("<p class=\"refusal\">{}</p></section>", escape(why)));
        return out;
    }
    if !e.findings.is_empty() {
        out.push_str("<ul class=\"findings\">");
        for f in &e.findings {
            out.push_str(&format!("<li>{} {}</li>", escape(&f.text), basis_tag(f.basis)));
        }
        out.push_str("</ul>");
    }
    for t in &e.tables {
        out.push_str(&format!(
            "<figure id=\"{}-{}\"><figcaption><h3>{}</h3><p>{}</p></figcaption>{}\
             <p class=\"provenance\">{}</p></figure>",
            escape(&e.id),
            escape(&t.id),
            escape(&t.title),
            escape(&t.caption),
            table(t),
            provenance(e.seed, &e.config_hash),
        ));
    }
    for (i, c) in e.charts.iter().enumerate() {
        out.push_str(&chart(e, i, c));
    }
    if !e.checks.is_empty() {
        let (class, text) = verdict(e);
        let open = if class == "fail" { " open" } else { "" };
        out.push_str(&format!(
            "<details class=\"checks\"{open}><summary><span class=\"dot {class}\"></span>{text}\
             </summary>{}</details>",
            check_rows(&e.checks)
        ));
    }
    out.push_str(&method(e));
    out.push_str("</section>");
    out
}

/// The page. Opens without a network; light and dark follow the reader's setting or the button.
#[must_use]
pub fn render(results: &Results) -> String {
    let checks: usize = results.experiments.iter().map(|e| e.checks.len()).sum();
    let good: usize = results.experiments.iter().map(|e| passed(&e.checks)).sum();
    let charts: usize = results.experiments.iter().map(|e| e.charts.len()).sum();
    let mut body = String::new();
    for e in &results.experiments {
        body.push_str(&section(e));
    }
    let is_seeded = results.experiments.iter().any(|e| !e.config_hash.is_empty());
    let single = results.experiments.len() < 2;
    let shape = if single { "single" } else { "many" };
    format!(
        "<!doctype html>\n<html lang=\"en\" class=\"{shape}\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>{title}</title>\
         <style>{STYLE}</style></head><body>{skip}\
         <header><div><h1>{title}</h1><p class=\"provenance\">{seed}\
         <span>{generator}</span><span id=\"written\"></span><span>{charts} charts</span>\
         {held}</p></div>\
         <div class=\"tools\"><button type=\"button\" id=\"save\">Save results as JSON</button>\
         <button type=\"button\" id=\"theme\" aria-label=\"Switch light and dark\">◐</button>\
         </div></header><div class=\"page\">{nav}\
         <main id=\"main\" tabindex=\"-1\">{advice}{cards}{body}</main></div>\
         <footer><p>Everything on this page is inside this file. Charts are drawn with Apache \
         ECharts 5.6.0 (Apache License 2.0; © The Apache Software Foundation; parts from \
         d3, BSD-3-Clause).\
         </p></footer>\
         <script type=\"application/json\" id=\"results\">{data}</script>\
         <script>{ECHARTS}</script><script>{SCRIPT}</script></body></html>\n",
        title = escape(&results.title),
        seed =
            if is_seeded { format!("<span>seed {}</span>", results.seed) } else { String::new() },
        held = match checks {
            0 => String::new(),
            _ => format!("<span>{good} of {checks} checks hold</span>"),
        },
        generator = escape(&results.generator),
        advice = advice(results),
        skip = if single { "" } else { "<a class=\"skip\" href=\"#main\">Skip the list</a>" },
        nav = if single { String::new() } else { navigation(results) },
        cards = if single { String::new() } else { overview(results) },
        data = escape_script(&to_json(results)),
    )
}
