//! Traces of OpenZFS log devices against counts by `golden/openzfs.py`, which reads only the text
//! of blkparse.

#![allow(clippy::disallowed_methods, reason = "a test opens the traces itself")]

mod common;

use std::path::PathBuf;

use common::{events, open, traces};
use forebay_trace::{
    Bucket, Event, Pattern, PatternOptions, PatternRow, Rules, SeekKey, SeekOptions, Seeks, Stage,
    SummaryBuilder,
};
use forebay_units::Nanos;
use serde_json::Value;

const GOLDEN: &str = include_str!("golden/openzfs.json");

/// The recordings with one and with five file systems: golden counts, binary, text.
fn recordings() -> Vec<(Value, PathBuf, PathBuf)> {
    let Some(folder) = traces() else { return Vec::new() };
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let file =
        |count: &str, end: &str| folder.join(format!("openzfs_2.1.11_slog_{count}.{end}.xz"));
    let of = |count| (golden[count].clone(), file(count, "blktrace"), file(count, "blkparse.txt"));
    vec![of("1fs"), of("5fs")]
}

fn rows(events: &[Event], rules: Rules, secs: u64, counts_empty: bool) -> Vec<PatternRow> {
    let interval = (secs > 0).then(|| Nanos::from_secs(secs));
    let (stage, only) = (Stage::Completed, None);
    let mut pattern = Pattern::new(PatternOptions { rules, interval, stage, only, counts_empty });
    let mut rows = Vec::new();
    events.iter().for_each(|event| pattern.event(event, &mut rows));
    pattern.finish(&mut rows);
    rows
}

/// A row as iopattern prints it.
fn dtrace(row: &PatternRow) -> Value {
    let rules = Rules::Dtrace;
    serde_json::json!([
        row.random_pct(rules),
        row.sequential_pct(rules),
        row.count,
        row.min_bytes,
        row.max_bytes,
        row.avg_bytes(),
        row.read_bytes / 1024,
        row.written_bytes / 1024,
    ])
}

/// A row as biopattern prints it.
fn bcc(row: &PatternRow) -> Value {
    let (random, sequential) = (row.random_pct(Rules::Bcc), row.sequential_pct(Rules::Bcc));
    serde_json::json!([random, sequential, row.count, (row.read_bytes + row.written_bytes) / 1024])
}

#[test]
fn iopattern_matches_counts_of_the_text() {
    for (golden, binary, text) in recordings() {
        for path in [binary, text] {
            let events = events(&path);
            let seconds: Vec<Value> =
                rows(&events, Rules::Dtrace, 1, false).iter().map(dtrace).collect();
            assert_eq!(Value::from(seconds), golden["iopattern_1s"], "{}", path.display());
            let all: Vec<Value> =
                rows(&events, Rules::Dtrace, 0, false).iter().map(dtrace).collect();
            assert_eq!(Value::from(all), golden["iopattern"], "{}", path.display());
        }
    }
}

#[test]
fn biopattern_matches_counts_of_the_text_with_and_without_flushes() {
    for (golden, binary, _) in recordings() {
        let events = events(&binary);
        let row = rows(&events, Rules::Bcc, 0, false);
        assert_eq!((row.len(), bcc(&row[0])), (1, golden["biopattern"].clone()));
        let row = rows(&events, Rules::Bcc, 0, true);
        assert_eq!((row.len(), bcc(&row[0])), (1, golden["biopattern_with_flushes"].clone()));
    }
}

fn same_buckets(got: &[Bucket], want: &Value) {
    let filled: Vec<_> = got.iter().filter(|bucket| bucket.count > 0).collect();
    assert_eq!(filled.len(), want.as_object().unwrap().len());
    for bucket in filled {
        assert_eq!(bucket.count, want[bucket.sectors.to_string()], "bucket {}", bucket.sectors);
    }
}

fn seeks(events: &[Event], key: SeekKey, is_signed: bool, stage: Stage) -> Seeks {
    let (only, counts_empty) = (None, false);
    let mut seeks = Seeks::new(SeekOptions { key, is_signed, stage, only, counts_empty });
    events.iter().for_each(|event| seeks.event(event));
    seeks
}

#[test]
fn seek_distances_match_counts_of_the_text() {
    for (golden, binary, text) in recordings() {
        for path in [binary, text] {
            let events = events(&path);
            let by_device = seeks(&events, SeekKey::Device, true, Stage::Issued);
            same_buckets(&by_device.total(), &golden["seeks_signed"]);
            let by_device = seeks(&events, SeekKey::Device, false, Stage::Queued);
            same_buckets(&by_device.total(), &golden["seeks_at_queue"]);
            let by_thread = seeks(&events, SeekKey::ThreadAndDevice, false, Stage::Queued);
            let groups = by_thread.groups();
            let want = &golden["seeksize_by_thread"];
            assert_eq!(groups.len(), want.as_object().unwrap().len());
            for group in groups {
                same_buckets(&group.buckets, &want[group.pid.unwrap().to_string()]);
            }
        }
    }
}

#[test]
fn summary_matches_counts_of_the_text() {
    for (golden, binary, text) in recordings() {
        for path in [binary, text] {
            for (stage, letter) in
                [(Stage::Queued, "Q"), (Stage::Issued, "D"), (Stage::Completed, "C")]
            {
                let mut builder = SummaryBuilder::new(stage);
                open(&path).for_each(|event| builder.event(&event));
                let got = builder.finish();
                let writes = got.write.sizes.iter().sum::<u64>();
                assert_eq!(writes, golden["writes"][letter], "{letter}");
                assert_eq!(got.flush.count, golden["flushes"][letter], "{letter}");
                if stage == Stage::Completed {
                    let empty = got.write.count - writes;
                    assert_eq!(empty, golden["empty_completions"]);
                }
                if stage != Stage::Issued {
                    continue;
                }
                assert_eq!(got.write.bytes, golden["bytes_written"]);
                assert_eq!(got.sequential, golden["sequential"]);
                assert_eq!(got.small_forward_gaps, golden["small_forward_gaps"]);
                assert_eq!(got.backward, golden["backward"]);
                let latency = got.write.latency_ns.unwrap();
                let want = &golden["latency_ns"];
                assert_eq!(latency.count, want["count"]);
                let mean = want["sum"].as_f64().unwrap() / want["count"].as_f64().unwrap();
                assert!((latency.mean - mean).abs() < 1.0, "{} {mean}", latency.mean);
                let near = |got: u64, want: &Value| {
                    let want = want.as_f64().unwrap();
                    assert!((got as f64 - want).abs() <= want / 1000.0, "{got} {want}");
                };
                near(latency.min, &want["min"]);
                near(latency.max, &want["max"]);
            }
        }
    }
}

#[test]
fn binary_and_text_of_one_recording_are_the_same_events() {
    for (_, binary, text) in recordings() {
        let (binary, text) = (events(&binary), events(&text));
        assert_eq!(binary.len(), text.len());
        // blkparse counts from the first record, which is a remap in both recordings.
        let zero = binary[0].time.since(text[0].time);
        for (binary, text) in binary.iter().zip(&text) {
            let time = binary.time.since(zero);
            assert_eq!(Event { time, ..*binary }, *text);
        }
    }
}
