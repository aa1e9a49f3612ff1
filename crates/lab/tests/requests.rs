//! Whole requests through the entry point: same bytes for the same request, one line for nonsense.
#![allow(clippy::disallowed_methods)] // It looks at the files the lab writes.

use forebay_lab::simulate::{Args, DEFAULT_SEED, results_of, run};
use forebay_lab::{ArgumentError, LabError, catalogue};
use forebay_report::{from_json, to_json};
use std::path::PathBuf;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("forebay-lab-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("scratch");
        Self(dir)
    }

    fn args(&self, experiment: &str, devices: &[&str]) -> Args {
        Args {
            experiment: Some(experiment.into()),
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
            out: self.0.clone(),
            seed: Some(DEFAULT_SEED),
            json: true,
            scale: Some(512),
            // The pool of this experiment costs more than models do.
            small: experiment == "zil-pattern",
            ..Args::default()
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SMALL: &str = "ocz-vertex-2-ex-50gb";

#[test]
fn results_do_not_depend_on_resume_or_threads() {
    for experiment in ["content", "power-cut", "zil-pattern"] {
        let (a, b) = (Scratch::new("once"), Scratch::new("again"));
        let first = to_json(&results_of(&a.args(experiment, &[SMALL]), experiment).expect("runs"));
        let resumed =
            to_json(&results_of(&a.args(experiment, &[SMALL]), experiment).expect("runs"));
        let one = Args { threads: Some(1), ..b.args(experiment, &[SMALL]) };
        let alone = to_json(&results_of(&one, experiment).expect("runs"));
        assert_eq!(first, resumed, "{experiment}");
        assert_eq!(first, alone, "{experiment}");
        assert!(from_json(&first).is_ok());
        let other = Args { seed: Some(2), ..b.args(experiment, &[SMALL]) };
        let other = to_json(&results_of(&other, experiment).expect("runs"));
        assert_ne!(first, other, "{experiment}: the seed must matter");
    }
}

#[test]
fn interrupted_run_resumes_and_ignores_damaged_files() {
    let s = Scratch::new("resume");
    let args = s.args("content", &[SMALL]);
    let first = to_json(&results_of(&args, "content").expect("runs"));
    let mut kept: Vec<PathBuf> = std::fs::read_dir(s.0.join("runs"))
        .expect("kept")
        .map(|e| e.expect("entry").path())
        .collect();
    kept.sort();
    assert_eq!(kept.len(), 3);
    std::fs::remove_file(&kept[0]).expect("one is gone");
    let text = std::fs::read_to_string(&kept[1]).expect("reads");
    std::fs::write(&kept[1], &text[..text.len() / 2]).expect("one is torn");
    assert_eq!(first, to_json(&results_of(&args, "content").expect("runs")));
}

/// The error of a request, which must be one line and exit code 2.
fn refusal(args: &Args) -> LabError {
    let error = run(args).expect_err("must refuse");
    assert_eq!(error.exit_code(), 2, "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
    error
}

#[test]
fn senseless_requests_are_refused_in_one_line_with_exit_code_2() {
    let s = Scratch::new("nonsense");
    let unknown = refusal(&s.args("poem", &[]));
    assert!(matches!(unknown, LabError::Arguments(ArgumentError::UnknownExperiment { .. })));
    let device = refusal(&s.args("content", &["no-such-device"]));
    assert!(matches!(device, LabError::UnknownDevice { .. }), "{device}");
    let file = refusal(&s.args("content", &["./no/such/file.toml"]));
    assert!(matches!(file, LabError::Input { .. }), "{file}");
    for (experiment, device) in [("price", "generic-disk-7200-2tb"), ("wear", "ddrdrive-x1")] {
        let error = refusal(&s.args(experiment, &[device]));
        assert!(matches!(error, LabError::NoRunnableDevice { .. }), "{error}");
    }
    let sweep = refusal(&s.args("sweep", &[]));
    let no_file = ArgumentError::NoTaskFile { experiment: "sweep" };
    assert!(matches!(&sweep, LabError::Arguments(why) if *why == no_file), "{sweep}");
    refusal(&s.args("run", &[]));
    refusal(&Args { operations: Some("ops.csv".into()), ..s.args("content", &[SMALL]) });
    refusal(&Args { scale: Some(0), ..s.args("content", &[SMALL]) });
    refusal(&Args { threads: Some(0), ..s.args("content", &[SMALL]) });
    refusal(&Args { shard: Some("1/2".into()), ..s.args("content", &[SMALL]) });
}

#[test]
fn options_that_a_task_file_would_not_obey_are_refused() {
    let s = Scratch::new("ignored");
    let file = s.0.join("task.toml");
    std::fs::write(&file, "not looked at").expect("writes");
    for experiment in ["run", "sweep"] {
        let plain = Args { file: Some(file.clone()), scale: None, ..s.args(experiment, &[]) };
        let plain = Args { seed: None, ..plain };
        for (option, args) in [
            ("--seed", Args { seed: Some(7), ..plain.clone() }),
            ("--scale", Args { scale: Some(8), ..plain.clone() }),
            ("--device", Args { devices: vec![SMALL.into()], ..plain.clone() }),
            ("--small", Args { small: true, ..plain.clone() }),
            ("--fresh", Args { fresh: true, ..plain.clone() }),
        ] {
            let why = LabError::Arguments(ArgumentError::NotBesideFile { experiment, option });
            assert_eq!(refusal(&args).to_string(), why.to_string());
        }
    }
    let run = Args { file: Some(file), scale: None, seed: None, ..s.args("run", &[]) };
    let shard = refusal(&Args { shard: Some("1/2".into()), ..run.clone() });
    assert!(matches!(shard, LabError::Arguments(ArgumentError::SweepOnly)), "{shard}");
}

#[test]
fn operations_never_replace_the_file_of_the_run() {
    let s = Scratch::new("over-task");
    let task = "name = \"x\"\ntask = \"timeline\"\n[base]\ndevice = \"ddrdrive-x1\"\nphases = []\n";
    let (file, link) = (s.0.join("task.toml"), s.0.join("link.csv"));
    std::fs::write(&file, task).expect("writes");
    std::fs::hard_link(&file, &link).expect("links");
    let run = Args { file: Some(file.clone()), scale: None, seed: None, ..s.args("run", &[]) };
    for operations in [file.clone(), link] {
        let error = refusal(&Args { operations: Some(operations), ..run.clone() });
        let over = matches!(error, LabError::Arguments(ArgumentError::OperationsOverTask { .. }));
        assert!(over, "{error}");
        assert_eq!(std::fs::read_to_string(&file).expect("there"), task);
    }
}

#[test]
fn operations_replace_another_file_only_when_told() {
    let s = Scratch::new("over-notes");
    let task = "name = \"x\"\ntask = \"timeline\"\n[base]\ndevice = \"ddrdrive-x1\"\nphases = []\n";
    let (file, notes) = (s.0.join("task.toml"), s.0.join("notes.csv"));
    std::fs::write(&file, task).expect("writes");
    std::fs::write(&notes, "mine").expect("writes");
    let plain = Args { file: Some(file.clone()), scale: None, seed: None, ..s.args("run", &[]) };
    let noting = Args { operations: Some(notes.clone()), ..plain };
    let error = refusal(&noting);
    let why = ArgumentError::OperationsExist { file: notes.clone() };
    assert_eq!(error.to_string(), why.to_string());
    refusal(&Args { force: true, ..noting.clone() });
    assert_eq!(std::fs::read_to_string(&notes).expect("there"), "mine", "there are no phases");
    std::fs::write(&file, task.replace("[]", "[\"secure-erase\"]")).expect("writes");
    run(&Args { force: true, ..noting }).expect("runs");
    let got = std::fs::read_to_string(&notes).expect("there");
    assert!(got.starts_with("phase,kind,"), "{got}");
}

#[test]
fn impossible_device_in_a_file_is_refused_with_its_field() {
    let s = Scratch::new("bad-device");
    let text = catalogue::text(SMALL).expect("built in");
    for (from, to, part) in [
        ("blocks_per_plane = 6334", "blocks_per_plane = 63", "geometry"),
        ("erase_us = 1500", "erase_us = -1500", "erase_us"),
        ("erase_us = 1500", "erase_us = nan", "erase_us"),
        ("erase_us = 1500", "erase_us = 1e12", "erase_us"),
        ("\nbytes = 0", "\nbytes = 9_000_000_000_000_000_000", "cache.bytes"),
        ("capacity_bytes = 50_000_000_000", "capacity_bytes = -5", "capacity_bytes"),
        ("program_us = 200", "program_us = \"fast\"", "program_us"),
    ] {
        assert!(text.contains(from), "{from}");
        let file = s.0.join("bad.toml");
        std::fs::write(&file, text.replace(from, to)).expect("writes");
        let answer = refusal(&s.args("content", &[file.to_str().expect("path")])).to_string();
        assert!(answer.contains(part), "{to}: {answer}");
    }
}

/// The units of charts that show a rate.
const RATES: [&str; 3] = ["1/s", "MB/s", "1/(s $)"];

/// What CI runs of `simulate all`.
#[test]
fn small_edition_runs_every_experiment_and_every_check_holds() {
    let s = Scratch::new("small");
    let args = Args { small: true, scale: None, ..s.args("all", &[]) };
    let results = results_of(&args, "all").expect("runs");
    assert!(results.experiments.len() > 10, "all of them");
    for e in &results.experiments {
        assert_eq!(e.refusal, None, "{}", e.id);
        assert!(!e.checks.is_empty() && !e.findings.is_empty(), "{}", e.id);
        for check in &e.checks {
            assert!(check.pass, "{}: {check:?}", e.id);
        }
        for chart in e.charts.iter().filter(|chart| RATES.contains(&chart.y.unit.as_str())) {
            let rows = chart.responses.as_ref().map_or(0, |table| table.rows.len());
            assert!(rows > 0, "{}: {} shows a rate without response times", e.id, chart.id);
        }
    }
    assert!(from_json(&to_json(&results)).is_ok());
}

#[test]
fn failed_check_fails_the_command_after_the_report_is_written() {
    let s = Scratch::new("failed");
    // A printed rate that no such device reaches.
    let text = catalogue::text(SMALL).expect("built in");
    let (from, to) = ("fresh_write_iops = { value = 50_000", "fresh_write_iops = { value = 5e6");
    assert!(text.contains(from));
    let file = s.0.join("boast.toml");
    std::fs::write(&file, text.replace(from, to)).expect("writes");
    let args = s.args("figures", &[file.to_str().expect("path")]);
    let error = run(&args).expect_err("a check fails");
    assert!(matches!(error, LabError::ChecksFailed { failed: 1, .. }), "{error}");
    assert_eq!(error.exit_code(), 1);
    assert!(s.0.join("figures.json").exists() && s.0.join("figures.html").exists());
}

#[test]
fn device_in_a_file_runs() {
    let s = Scratch::new("own");
    let text = catalogue::text(SMALL).expect("built in").replace("OCZ Vertex 2 EX", "Mine");
    let file = s.0.join("mine.toml");
    std::fs::write(&file, text).expect("writes");
    let args = s.args("content", &[file.to_str().expect("path")]);
    run(&args).expect("runs");
    let page = std::fs::read_to_string(s.0.join("content.html")).expect("page");
    assert!(page.contains("Mine 50 GB"));
    let json = std::fs::read_to_string(s.0.join("content.json")).expect("json");
    assert!(from_json(&json).is_ok());
}
