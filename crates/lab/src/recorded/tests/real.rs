//! Real traces through the phase `trace` of a timeline, against figures that another program
//! computed of the traces (`expected.json` beside them).

#![allow(clippy::disallowed_methods, reason = "a test reads the traces' figures itself")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::*;
use crate::operations::OperationLog;
use crate::timeline::{PhaseOutcome, TimelineOutcome};
use forebay_flash::DeviceSpec;

/// A device on which no place of a trace is beyond the end.
const ROOMY: &str = r#"
name = "roomy"
capacity_bytes = 4_398_046_511_104
interface = { kind = "pcie", command_us = 1, queue_depth = 4096, bit_error_rate = 0 }
[media.dram]
service_us = 1
dram_mb_s = 10_000
save_mb_s = 100
restore_mb_s = 100
backup_cycles = 100_000
energy = { full_j = 100, save_w = 5, charge_w = 0 }
"#;

/// The folder of the traces, which lies beside the repository and is no part of it, and their
/// figures by name.
fn traces() -> Option<(PathBuf, Map<String, Value>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = root.ancestors().map(|dir| dir.join("shared/data/traces/real"));
    let Some(folder) = found.into_iter().find(|dir| dir.is_dir()) else {
        // The output of a test that passes is not shown; this is.
        let message = "\nSKIPPED: shared/data/traces/real is not beside the repository\n";
        let _ = std::io::stderr().write_all(message.as_bytes());
        return None;
    };
    let text = std::fs::read_to_string(folder.join("expected.json")).expect("figures");
    let figures: Map<String, Value> = serde_json::from_str(&text).expect("figures");
    assert_eq!(figures.len(), 6);
    Some((folder, figures))
}

fn count(of: &Value) -> u64 {
    of.as_u64().unwrap_or(0)
}

fn task(folder: &Path, want: &Value, device: DeviceSpec, pace: TracePace) -> Timeline {
    let file = folder.join(want["file"].as_str().expect("a name"));
    let recorded = Recorded {
        file,
        format: None,
        pace,
        outstanding: 32,
        reads_only: false,
        wraps: true,
        digest: None,
    };
    let phases = vec![Phase::Trace(recorded)];
    Timeline { device, scale: 0, seed: 3, sample_minutes: 1.0, phases }
}

/// What every replay of a whole trace must say.
fn check_counts(name: &str, want: &Value, outcome: &TimelineOutcome) {
    let phase = &outcome.phases[0];
    assert_eq!(phase.left_out, Some(LeftOut::default()), "{name}");
    let whole = phase.whole.expect("a load");
    let (reads, writes) = (whole.responses.reads.requests, whole.responses.writes.requests);
    assert_eq!((reads, writes), (count(&want["ops"]["R"]), count(&want["ops"]["W"])), "{name}");
    assert_eq!(outcome.written_bytes as u64, count(&want["bytes"]["W"]), "{name}");
    let bytes = (count(&want["bytes"]["R"]) + count(&want["bytes"]["W"])) as f64;
    let minutes = phase.to_minute - phase.from_minute;
    let moved = whole.mib_s * f64::from(1 << 20) * minutes * 60.0;
    assert!((moved / bytes - 1.0).abs() < 1e-6, "{name}: {bytes} bytes expected, {moved} got");
    let sampled: u64 = phase.samples.iter().map(requests).sum();
    assert_eq!(sampled, reads + writes, "{name}: samples tile the trace");
    let (integrated, product) = phase.little.expect("a load");
    assert!((integrated / product - 1.0).abs() < 1e-6, "{name}: {integrated} against {product}");
}

fn requests(sample: &crate::bench::Sample) -> u64 {
    sample.responses.reads.requests + sample.responses.writes.requests
}

/// One line of the log of operations: instant, kind, first sector, sectors.
type Operation = (u64, char, u64, u64);

fn operations(path: &Path) -> Vec<Operation> {
    let text = std::fs::read_to_string(path).expect("the log");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<u64>().expect("a number");
        let kind = match fields[1] {
            "trim" => 'D',
            kind => kind.to_uppercase().chars().next().expect("a kind"),
        };
        (number(6), kind, number(2) / 512, number(3) / 512)
    };
    text.lines().skip(1).map(line).collect()
}

/// The figures of `expected.py`, by its rules, of what the device was given.
fn check_operations(name: &str, want: &Value, operations: &[Operation]) {
    assert_eq!(operations.len() as u64, count(&want["records"]), "{name}");
    for letter in ['R', 'W', 'D'] {
        let of_kind = operations.iter().filter(|o| o.1 == letter);
        let (number, sectors) = of_kind.fold((0, 0), |(n, s), o| (n + 1, s + o.3));
        let key = letter.to_string();
        assert_eq!(number, count(&want["ops"][&key]), "{name}: {letter}");
        assert_eq!(512 * sectors, count(&want["bytes"][&key]), "{name}: {letter}");
    }
    let last = operations.last().expect("requests").0;
    assert_eq!(last, count(&want["span_ns"]), "{name}: the last request");
    let first_ns = count(&want["first_time_ns"]);
    for (got, row) in operations.iter().zip(want["first5"].as_array().expect("rows")) {
        let got = (got.0 + first_ns, got.1.to_string(), got.2, got.3);
        let kind = row[2].as_str().expect("a letter").to_owned();
        assert_eq!(got, (count(&row[0]), kind, count(&row[3]), count(&row[4])), "{name}");
    }
    // Traces of several devices lie on one device here, so that their distances are others.
    if count(&want["devices"]) == 1 {
        let mut distances = BTreeMap::new();
        for pair in operations.windows(2) {
            let distance = pair[1].2.abs_diff(pair[0].2 + pair[0].3);
            let bucket = if distance == 0 { 0 } else { 1 << distance.ilog2() };
            *distances.entry(bucket).or_insert(0) += 1;
        }
        let wanted = want["seeksize"].as_object().expect("buckets");
        let wanted: BTreeMap<u64, u64> =
            wanted.iter().map(|(v, n)| (v.parse().expect("a number"), count(n))).collect();
        assert_eq!(distances, wanted, "{name}: distances");
    }
}

#[test]
fn a_device_is_given_each_request_of_a_real_trace_at_its_time_and_place() {
    let Some((folder, figures)) = traces() else { return };
    let device: DeviceSpec = toml::from_str(ROOMY).expect("TOML");
    let path = std::env::temp_dir().join(format!("forebay-real-{}.csv", std::process::id()));
    for (name, want) in &figures {
        let log = OperationLog::create(&path, true).expect("scratch");
        let own = task(&folder, want, device.clone(), TracePace::Own);
        let (outcome, log) = own.run_noting(Some(log)).expect("runs");
        log.expect("the log").finish().expect("scratch");
        check_counts(name, want, &outcome);
        check_operations(name, want, &operations(&path));
    }
    std::fs::remove_file(&path).expect("scratch");
}

#[test]
fn real_traces_run_stretched_and_at_full_speed_on_flash() {
    let Some((folder, figures)) = traces() else { return };
    let device = catalogue::find("samsung-830-128gb").expect("built in").device;
    let seconds = |phase: &PhaseOutcome| (phase.to_minute - phase.from_minute) * 60.0;
    for (name, want) in &figures {
        let run = |pace| {
            let outcome = task(&folder, want, device.clone(), pace).run().expect("runs");
            check_counts(name, want, &outcome);
            outcome.phases[0].clone()
        };
        let span_s = want["span_ns"].as_f64().expect("a number") / 1e9;
        let stretched = seconds(&run(TracePace::Times(0.5)));
        // The last response comes on top.
        assert!((2.0 * span_s..2.0 * span_s + 2.0).contains(&stretched), "{name}: {stretched} s");
        let full = run(TracePace::Max);
        // Two of the traces ask for about as much as this device can do.
        if span_s > 30.0 {
            assert!(seconds(&full) < span_s, "{name}: {} s at full speed", seconds(&full));
        }
        let (outstanding, _) = full.little.expect("a load");
        assert!((30.0..=32.0).contains(&outstanding), "{name}: {outstanding} outstanding");
    }
}
