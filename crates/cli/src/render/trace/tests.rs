use forebay_report::Value;
use forebay_trace::{Bucket, Names, PatternRow, Rules, Stage, SummaryBuilder};
use forebay_units::Nanos;

use super::{
    SeekReport, TraceDigest, TraceHead, TraceRows, iopattern_heading, iopattern_line, seek_text,
    trace_experiments,
};

fn row() -> PatternRow {
    PatternRow {
        end: Nanos::from_secs(3725),
        random: 2,
        count: 3,
        min_bytes: 512,
        max_bytes: 131_072,
        read_bytes: 8192,
        written_bytes: 512,
        transfers: 3,
        ..PatternRow::default()
    }
}

#[test]
fn lines_have_the_columns_of_the_originals() {
    let names = Names::default();
    let text = iopattern_heading(Rules::Dtrace, false)
        + &iopattern_line(&row(), Rules::Dtrace, false, &names);
    assert_eq!(
        text,
        "%RAN %SEQ  COUNT    MIN    MAX    AVG     KR     KW\n  \
         66   34      3    512 131072   2901      8      0\n"
    );
    let text =
        iopattern_heading(Rules::Bcc, false) + &iopattern_line(&row(), Rules::Bcc, false, &names);
    assert_eq!(
        text,
        "TIME      DISK     %RND  %SEQ    COUNT     KBYTES\n\
         01:02:05  all        67    33        3          8\n"
    );
    let text = iopattern_line(&row(), Rules::Dtrace, true, &names);
    assert!(text.starts_with("+3725                  66   34"), "{text}");
}

/// A histogram of the DTrace toolkit's own example, with 56 of 73 seeks of length 0.
#[test]
fn a_histogram_looks_as_quantize_prints_it() {
    let names = Names::default();
    let bucket = |sectors, count| Bucket { sectors, count };
    let total = vec![bucket(0, 56), bucket(1, 0), bucket(2, 17)];
    let report =
        SeekReport { rules: Rules::Dtrace, is_signed: false, total, groups: vec![], names: &names };
    let want = [
        "",
        "           value  ------------- Distribution ------------- count    ",
        "              -1 |                                         0        ",
        "               0 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@          56       ",
        "               1 |                                         0        ",
        "               2 |@@@@@@@@@                                17       ",
        "               4 |                                         0        ",
        "",
    ];
    assert_eq!(seek_text(&report), want.join("\n"));
}

#[test]
fn negative_buckets_mirror_the_positive_ones() {
    let below = |sectors| super::lower(sectors);
    assert_eq!([below(8), below(1), below(0), below(-1), below(-8)], [4, 0, -1, -2, -16]);
    let names = Names::default();
    let total = vec![Bucket { sectors: -8, count: 1 }];
    let report =
        SeekReport { rules: Rules::Bcc, is_signed: true, total, groups: vec![], names: &names };
    let text = seek_text(&report);
    let values: Vec<&str> =
        text.lines().skip(2).filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(values, ["-16", "-8", "-4"]);
}

#[test]
fn counts_of_a_page_are_exact() {
    let mut summary = SummaryBuilder::new(Stage::Request).finish();
    summary.records = 36_377_958;
    let head = TraceHead {
        source: "/traces/t.csv.gz".to_owned(),
        format: "msr",
        stage: "request",
        events: summary.records,
        complete: true,
        remark: None,
    };
    let rows = TraceRows { at_issue: row(), at_completion: row() };
    let (devices, timeline, seeks) = (Vec::new(), None, Vec::new());
    let digest = TraceDigest { head, devices, summary, rows, timeline, seeks };
    let shown = trace_experiments(&[digest]);
    let table = &shown[0].tables[0];
    assert_eq!(table.columns[1].name, "t.csv");
    let records = table.rows.iter().find(|row| row[0].value == Value::Text("requests".to_owned()));
    assert_eq!(records.unwrap()[1].value, Value::Text("36377958".to_owned()));
}
