//! Real traces against figures that another program computed (`expected.py` beside them).

#![allow(clippy::disallowed_methods, reason = "a test opens the traces itself")]

mod common;

use std::path::Path;

use common::{events, open, traces};
use forebay_trace::{
    CacheStudy, Event, Policy, SeekKey, SeekOptions, Seeks, Stage, Summary, SummaryBuilder,
};
use serde_json::Value;

fn summary(events: &[Event]) -> Summary {
    let mut builder = SummaryBuilder::new(Stage::Request);
    for event in events {
        builder.event(event);
    }
    builder.finish()
}

/// Rounded to `digits` decimals, half to even, as Python's `round` nearly always does.
fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.digits$}").parse().unwrap()
}

fn check_summary(name: &str, path: &Path, events: &[Event], want: &Value) {
    let got = summary(events);
    let int = |key: &str| want[key].as_u64().unwrap();
    let same = |key: &str, value: u64| assert_eq!(value, int(key), "{name}: {key}");
    same("records", got.records);
    same("first_time_ns", got.first_time_ns);
    same("last_time_ns", got.last_time_ns);
    same("span_ns", got.span_ns);
    same("time_goes_back", got.time_goes_back);
    same("zero_length", got.zero_length);
    same("unaligned_4k", got.unaligned_4k);
    same("immediate_duplicates", got.immediate_repeats);
    same("sequential", got.sequential);
    same("devices", got.device_records.len() as u64);
    let pct = |of: u64| rounded(100.0 * got.sequential as f64 / of as f64, 4);
    assert_eq!(pct(got.records), want["sequential_pct_of_records"], "{name}");
    assert_eq!(pct(got.pairs), want["sequential_pct_of_pairs"], "{name}");
    for (op, letter) in [(&got.read, "R"), (&got.write, "W"), (&got.discard, "D")] {
        assert_eq!(op.count, want["ops"][letter].as_u64().unwrap_or(0), "{name}: {letter}");
        assert_eq!(op.bytes, want["bytes"][letter].as_u64().unwrap_or(0), "{name}: {letter}");
    }
    let mut source = open(path);
    source.by_ref().for_each(drop);
    for (at, device) in source.names().devices().iter().enumerate() {
        assert_eq!(got.device_records[at], want["per_device"][device], "{name}: device {device}");
    }
    for (event, row) in events.iter().zip(want["first5"].as_array().unwrap()) {
        assert_eq!(event.time.0, row[0], "{name}");
        assert_eq!(source.names().device_name(event.device), row[1].to_string(), "{name}");
        assert_eq!(event.op.letter().to_string(), row[2], "{name}");
        assert_eq!(event.offset_bytes / 512, row[3], "{name}");
        assert_eq!(event.len_bytes / 512, row[4], "{name}");
    }
}

fn check_seeks(name: &str, events: &[Event], want: &Value) {
    // The sources have no threads, and no position 0: both keys count the same.
    for key in [SeekKey::Device, SeekKey::ThreadAndDevice] {
        let (stage, only) = (Stage::Request, None);
        let options = SeekOptions { key, is_signed: false, stage, only, counts_empty: false };
        let mut seeks = Seeks::new(options);
        events.iter().for_each(|event| seeks.event(event));
        let total = seeks.total();
        let filled: Vec<_> = total.iter().filter(|bucket| bucket.count > 0).collect();
        let wanted = want["seeksize"].as_object().unwrap();
        assert_eq!(filled.len(), wanted.len(), "{name}: {key:?}");
        for bucket in filled {
            let count = &wanted[&bucket.sectors.to_string()];
            assert_eq!(bucket.count, *count, "{name}: {key:?} bucket {}", bucket.sectors);
        }
    }
}

fn check_caches(name: &str, events: &[Event], want: &Value, reads_only: bool) {
    let mut study = CacheStudy::new(4096, Stage::Request, reads_only);
    events.iter().for_each(|event| study.number_blocks(event));
    assert_eq!(study.footprint_blocks(), want["footprint_blocks"], "{name}");
    for pct in [1, 10] {
        let capacity = (study.footprint_blocks() * pct / 100).max(1);
        assert_eq!(capacity, want["capacity"][pct.to_string()], "{name}");
        Policy::ALL.into_iter().for_each(|policy| study.add_cache(policy, capacity));
    }
    events.iter().for_each(|event| study.access(event));
    assert_eq!(study.accesses(), want["accesses"], "{name}");
    for (at, got) in study.misses().into_iter().enumerate() {
        let pct = if at < Policy::ALL.len() { 1 } else { 10 };
        let label = match got.policy {
            Policy::S3FifoOne => format!("S3FIFO-thr1@{pct}%"),
            policy => format!("{}@{pct}%", policy.name().to_uppercase()),
        };
        assert_eq!(got.misses, want["misses"][&label], "{name}: {label}");
        let ratio = rounded(got.misses as f64 / study.accesses() as f64, 6);
        assert_eq!(ratio, want["miss_ratio"][&label], "{name}: {label}");
        // The second opinion of libCacheSim; its S3-FIFO is another algorithm of that name, and
        // it has no caches of less than 20 blocks.
        let second = &want["libcachesim_miss_ratio"][&label];
        if !label.starts_with("S3FIFO") && second.is_number() {
            assert_eq!(ratio, *second, "{name}: {label} of libCacheSim");
        }
    }
}

#[test]
fn real_traces_have_the_expected_figures() {
    let Some(folder) = traces() else { return };
    let folder = folder.join("real");
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let traces = expected.as_object().unwrap();
    assert_eq!(traces.len(), 6, "the list of traces was read");
    for (name, want) in traces {
        let path = folder.join(want["file"].as_str().unwrap());
        let events = events(&path);
        check_summary(name, &path, &events, want);
        check_seeks(name, &events, want);
        check_caches(name, &events, &want["cache"]["all"], false);
        check_caches(name, &events, &want["cache"]["reads"], true);
    }
}
