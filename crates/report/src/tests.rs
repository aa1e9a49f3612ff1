use crate::*;
use proptest::prelude::*;

fn sample() -> Results {
    let chart = Chart {
        id: "fall".into(),
        title: "IOPS <after> secure erase".into(),
        kind: ChartKind::Line,
        x: Axis::linear("Time", "min"),
        y: Axis::linear("IOPS", "1/s"),
        series: vec![
            Series {
                name: "A & B".into(),
                points: vec![Point::at(0.0, 1234.5), Point::at(1.0, 10.0)],
                ..Series::default()
            },
            Series {
                name: "printed".into(),
                role: Role::Published,
                points: vec![Point::at(1.0, 11.0).between(9.0, 12.0)],
                ..Series::default()
            },
        ],
        seed: 42,
        config_hash: "abcd".into(),
        ..Chart::default()
    };
    Results {
        schema: SCHEMA.into(),
        title: "Lab".into(),
        generator: "test 1".into(),
        seed: 42,
        experiments: vec![Experiment {
            id: "degradation".into(),
            title: "Degradation".into(),
            seed: 42,
            config_hash: "abcd".into(),
            findings: vec![Finding {
                text: "</script><script>alert(1)</script>".into(),
                basis: Basis::Predicted,
            }],
            checks: vec![Check::relative("x", "", (100.0, 104.0), 0.05, Basis::Fitted, "book")],
            charts: vec![chart],
            tables: vec![Table {
                id: "t".into(),
                title: "T".into(),
                columns: vec![Column::new("device"), Column::with_unit("price", "$")],
                rows: vec![vec![Cell::text("a"), Cell::unknown()]],
                ..Table::default()
            }],
            ..Experiment::default()
        }],
    }
}

#[test]
fn json_round_trip_keeps_results() {
    let text = to_json(&sample());
    assert_eq!(from_json(&text).expect("reads back"), sample());
    assert_eq!(text, to_json(&from_json(&text).expect("reads back")));
}

#[test]
fn another_layout_version_is_refused() {
    let text = to_json(&sample()).replace(SCHEMA, "forebay-results/9");
    let error = from_json(&text).expect_err("must refuse");
    assert!(matches!(&error, ReadError::Version { found } if found == "forebay-results/9"));
    let line = "these results have layout 'forebay-results/9', this program reads \
                'forebay-results/1'; make the report with the version that wrote them";
    assert_eq!(error.to_string(), line);
    assert!(from_json("[1]").is_err() && from_json("{").is_err());
}

#[test]
fn text_of_results_is_escaped() {
    let page = render(&sample());
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("&lt;script&gt;alert"));
    assert!(page.contains("IOPS &lt;after&gt; secure erase"));
}

#[test]
fn page_loads_nothing_from_outside() {
    let page = render(&sample());
    // The chart library names its own licence and XML namespaces in text; what must not be there
    // is an attribute or a rule that would make a browser fetch something.
    for fetch in ["<link", "<img", "<iframe", "src=\"", "@import", "url("] {
        let own: Vec<&str> = page.split("<script>").take(1).collect();
        assert!(!own[0].contains(fetch), "found {fetch}");
    }
    assert!(page.contains("echarts") && page.contains("Apache License 2.0"));
}

#[test]
fn sources_become_links_and_nothing_else_does() {
    let text = "anandtech.com/show/4902 p3, <b> at x.y; https://a.org/?a=1&b=2.";
    let link = crate::html::linked(text);
    let expected = "<a href=\"https://anandtech.com/show/4902\">anandtech.com/show/4902</a> p3, \
                    &lt;b&gt; at x.y; <a href=\"https://a.org/?a=1&amp;b=2\">\
                    https://a.org/?a=1&amp;b=2</a>.";
    assert_eq!(link, expected);
    assert_eq!(crate::html::linked("javascript:alert(1).com"), "javascript:alert(1).com");
}

#[test]
fn recommendation_stands_before_the_experiments() {
    let mut results = sample();
    let advice = Finding { text: "Choose <it> if".into(), basis: Basis::Input };
    results.experiments[0].advice = vec![advice];
    let page = render(&results);
    let at = |text: &str| page.find(text).expect(text);
    assert!(at("Choose &lt;it&gt; if") < at("id=\"degradation\""));
    assert!(!render(&sample()).contains("Recommendation"));
}

#[test]
fn histogram_is_a_table_and_lines_of_csv() {
    let mut results = sample();
    let counts = vec![(0, 7), (2, 12_345)];
    results.experiments[0].charts[0].histogram = Some(Histogram {
        of: "writes".into(),
        edges: vec![0.1, 0.2, 0.4, 0.8],
        columns: vec![HistogramColumn { from: 2.0, to: 3.0, counts }],
    });
    let page = render(&results);
    let row = "<th scope=\"row\">2 to 3</th><td class=\"n\">7</td><td class=\"n\">0</td>\
               <td class=\"n\">12\u{202f}345</td>";
    assert!(page.contains("Histogram of writes") && page.contains(row));
    assert!(page.contains("below 0.8 <small>1/s</small>"));
    let csv = to_csv(&results);
    let lines: Vec<&str> = csv.lines().filter(|line| line.contains(",count,")).collect();
    let wanted = ["degradation,count,fall,3,0.2,1/s,7", "degradation,count,fall,3,0.8,1/s,12345"];
    assert_eq!(lines, wanted);
    assert_eq!(from_json(&to_json(&results)).expect("reads back"), results);
}

#[test]
fn every_chart_has_table_and_seed() {
    let page = render(&sample());
    assert!(page.contains("seed 42") && page.contains("configuration abcd"));
    assert!(page.contains("1\u{202f}23") && page.contains("<summary>Data</summary>"), "table");
    assert!(page.contains("unknown"));
}

#[test]
fn check_passes_within_relative_tolerance_only() {
    let check = |got| Check::relative("x", "", (100.0, got), 0.05, Basis::Fitted, "").pass;
    assert!(check(105.0) && check(95.0));
    assert!(!check(105.1) && !check(94.9) && !check(f64::NAN));
}

#[test]
fn one_sided_check_passes_from_zero_to_its_limit() {
    let check = |got| Check::at_most("x", "", (1.0, got), Basis::Invariant, "").pass;
    assert!(check(0.0) && check(1.0));
    assert!(!check(-0.001) && !check(1.001) && !check(f64::NAN));
}

#[test]
fn nan_does_not_survive_json() {
    let mut results = sample();
    results.experiments[0].checks[0].got = f64::NAN;
    assert!(from_json(&to_json(&results)).is_err());
}

proptest! {
    #[test]
    fn rounding_is_idempotent_and_close(v in proptest::num::f64::NORMAL) {
        let once = round_significant(v);
        prop_assert_eq!(once, round_significant(once));
        prop_assert!((once - v).abs() <= v.abs() * 5.1e-7);
    }

    #[test]
    fn any_text_survives_json_and_page(text in ".*") {
        let mut results = sample();
        results.experiments[0].question.clone_from(&text);
        let read = from_json(&to_json(&results)).expect("reads");
        prop_assert_eq!(&read.experiments[0].question, &text);
        let page = render(&results);
        prop_assert_eq!(page.matches("</html>").count(), 1);
    }
}

#[test]
fn markdown_and_csv_have_every_value_and_stay_in_their_cells() {
    let mut results = sample();
    let table = &mut results.experiments[0].tables[0];
    table.rows.push(vec![Cell::text("b|\"c\", d"), Cell::number(0.25)]);
    let markdown = to_markdown(&results);
    assert!(markdown.contains("| b\\|\"c\", d | 0.25 |\n"), "{markdown}");
    assert!(markdown.contains("| a | unknown |\n"), "{markdown}");
    assert!(markdown.contains("| A & B | 0 | 1\u{202f}234 |\n"), "{markdown}");
    assert!(markdown.contains("| x | near 100 | 104 | yes |\n"), "{markdown}");
    let csv = to_csv(&results);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "experiment,kind,id,row,column,unit,value");
    assert!(lines.contains(&"degradation,chart,fall,A & B,0,1/s,1234.5"), "{csv}");
    assert!(lines.contains(&"degradation,table,t,\"b|\"\"c\"\", d\",price,$,0.25"), "{csv}");
    assert!(lines.contains(&"degradation,table,t,a,price,$,"), "unknown is empty: {csv}");
    assert!(lines.contains(&"degradation,check,,x,got,,104"), "{csv}");
}

#[test]
fn one_sided_checks_hold_on_their_limit() {
    assert!(Check::at_most("x", "", (10.0, 10.0), Basis::Measured, "").pass);
    assert!(!Check::at_most("x", "", (10.0, 10.1), Basis::Measured, "").pass);
    assert!(Check::at_least("x", "", (10.0, 10.0), Basis::Measured, "").pass);
    assert!(!Check::at_least("x", "", (10.0, 9.9), Basis::Measured, "").pass);
}

/// Every number of a JSON value that is one of the results.
fn figures(results: &Results) -> Vec<f64> {
    let mut all = Vec::new();
    for e in &results.experiments {
        all.extend(e.checks.iter().flat_map(|c| [c.expected, c.got]));
        let cells = e.tables.iter().flat_map(|t| &t.rows).flat_map(|row| row.iter().skip(1));
        all.extend(cells.filter_map(|cell| match cell.value {
            Value::Number(value) => Some(value),
            _ => None,
        }));
        for point in e.charts.iter().flat_map(|c| &c.series).flat_map(|s| &s.points) {
            all.extend([point.y, point.low, point.high].into_iter().flatten());
        }
    }
    all
}

#[test]
fn json_csv_and_markdown_have_the_same_numbers() {
    let mut results = sample();
    let e = &mut results.experiments[0];
    e.tables[0].rows.push(vec![Cell::text("third"), Cell::number(1e5 / 3.0)]);
    e.checks[0].got = 100.0 + 1.0 / 3.0;
    e.charts[0].series[1].points.push(Point::at(2.0, 2.0 / 3.0).between(1.0 / 3.0, 4.0 / 3.0));
    let read = from_json(&to_json(&results)).expect("reads back");
    let wanted = figures(&read);
    let csv = to_csv(&results);
    let got = csv.lines().skip(1).filter_map(|line| line.rsplit(',').next()?.parse::<f64>().ok());
    assert_eq!(got.collect::<Vec<_>>(), wanted, "{csv}");
    let markdown = to_markdown(&results);
    for value in wanted {
        let shown = crate::html::number(value);
        assert!(markdown.contains(&shown), "{shown} of {markdown}");
    }
    assert!(markdown.contains("0.667 (0.333 to 1.333)"), "{markdown}");
}
