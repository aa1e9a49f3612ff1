//! Real traces replayed on models of devices: what is issued is what the traces' own figures say,
//! at their own pace, stretched, and as fast as the device answers.

#![allow(clippy::disallowed_methods, reason = "a test reads the traces' figures itself")]

mod common;

use std::path::PathBuf;

use common::Scratch;
use serde_json::Value;

/// A small model: the requests of a trace are folded into it.
const MODEL: &str = "--scale 4096 --wrap sim:samsung-pm9a3-1920gb";

/// The shared traces, when they are here.
fn traces() -> Option<PathBuf> {
    let shared = "../../../shared/data/traces/real";
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(shared);
    folder.is_dir().then_some(folder)
}

fn replay(scratch: &Scratch, file: &str, options: &str) -> Value {
    let words = format!("trace replay --json {options} {file} {MODEL}");
    serde_json::from_str(&scratch.run(&words)).unwrap_or_else(|e| panic!("{words}: {e}"))
}

#[test]
fn real_traces_run_on_a_model_whole() {
    let Some(folder) = traces() else { return };
    let scratch = Scratch::new("trace-models");
    let figures = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let figures: serde_json::Map<String, Value> = serde_json::from_str(&figures).unwrap();
    assert_eq!(figures.len(), 6);
    for (name, want) in &figures {
        let file = folder.join(want["file"].as_str().unwrap()).display().to_string();
        let got = replay(&scratch, &file, "--speed max");
        assert_eq!(got["left_out"]["unaligned"], 0, "{name}");
        assert_eq!(got["left_out"]["beyond_end"], 0, "{name}");
        let long = got["left_out"]["other"].as_u64().unwrap();
        for (letter, kind) in [("R", "read"), ("W", "write")] {
            let count = |of: &Value| of.as_u64().unwrap_or(0);
            let issued = &got["summary"][kind];
            assert_eq!(count(&issued["count"]), count(&want["ops"][letter]), "{name}: {kind}");
            assert_eq!(count(&issued["bytes"]), count(&want["bytes"][letter]), "{name}: {kind}");
            if count(&issued["count"]) > 0 {
                assert!(issued["latency_ns"]["mean"].as_f64().unwrap() > 0.0, "{name}: {kind}");
            }
        }
        // Discards of more bytes than the small model has are left out, nothing else.
        let discards = want["ops"]["D"].as_u64().unwrap_or(0);
        assert!(long <= discards, "{name}: {long} of {discards} discards");
    }
}

#[test]
fn a_model_keeps_the_pace_of_a_trace() {
    let Some(folder) = traces() else { return };
    let scratch = Scratch::new("trace-pace");
    let figures = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    let figures: serde_json::Map<String, Value> = serde_json::from_str(&figures).unwrap();
    let want = &figures["wsrch-small"];
    let span_s = want["span_ns"].as_f64().unwrap() / 1e9;
    let file = folder.join(want["file"].as_str().unwrap()).display().to_string();
    for speed in [1.0, 0.5, 4.0] {
        let got = replay(&scratch, &file, &format!("--speed {speed}"));
        // From the first request to the last completion.
        let over_s = got["seconds"].as_f64().unwrap() - span_s / speed;
        assert!((0.0..0.01).contains(&over_s), "{speed}: {over_s} s more than the trace");
        assert_eq!(got["max_delay_ns"], 0, "virtual time is never late");
        assert_eq!(got["summary"]["read"]["count"], want["ops"]["R"]);
    }
    let fast = replay(&scratch, &file, "--speed max");
    assert!(fast["seconds"].as_f64().unwrap() < span_s / 10.0);
    let narrow = replay(&scratch, &file, "--speed max --queue-depth 1");
    assert!(narrow["seconds"].as_f64().unwrap() > fast["seconds"].as_f64().unwrap() * 2.0);
}
