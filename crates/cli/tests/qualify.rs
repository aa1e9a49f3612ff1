//! `forebay qualify` and `forebay report` from outside: guards, a run, taking it up again, pages.

#![allow(clippy::disallowed_methods, reason = "a test makes the files itself")]

mod common;

use common::Scratch;

/// A whole quick run on a model, at a hundredth of its times.
const MODEL: &str = "qualify sim:ddrdrive-x1 --shrink 100";

/// What a command that must fail says.
fn refusal(scratch: &Scratch, words: &str) -> String {
    let output = scratch.forebay(words);
    assert!(!output.status.success(), "{words}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn model_is_qualified_and_its_results_are_shown() {
    let scratch = Scratch::new("qualify-model");
    let got = json(&scratch.run(&format!("{MODEL} --json --out a.fbq")));
    assert_eq!((&got["command"], &got["complete"]), (&"qualify".into(), &true.into()));
    let steps = got["qualification"]["plan"]["steps"].as_array().unwrap().len();
    assert_eq!(got["qualification"]["outcomes"].as_array().unwrap().len(), steps);
    assert_eq!(got["qualification"]["conditions"]["protection"], "user_data");
    let flush = got["findings"].as_array().unwrap().iter();
    let flush = flush.filter(|f| f["detector"] == "ignored_flush").collect::<Vec<_>>();
    assert_eq!(flush[0]["sign"], "clear", "{flush:?}");
    // The same seed gives the same log.
    scratch.run(&format!("{MODEL} --out b.fbq"));
    let read = |name: &str| std::fs::read_to_string(scratch.0.join(name)).unwrap();
    assert_eq!(read("a.fbq"), read("b.fbq"));
    assert_eq!(scratch.run("report a.fbq"), "a.html\n");
    let page = read("a.html");
    assert!(page.contains("<!doctype html>") && page.contains("Steady state"), "a page");
    let results = json(&scratch.run("report --json a.fbq b.fbq"));
    assert_eq!(results["schema"], "forebay-results/1");
    assert_eq!(results["experiments"][1]["id"], "difference");
    assert!(scratch.run("report --markdown a.fbq").contains("## Verdict"));
    assert!(scratch.run("report --csv a.fbq").starts_with("experiment,kind,id,"));
    let refused = refusal(&scratch, "report a.fbq");
    assert!(refused.contains("a.html exists already; --force replaces it"), "{refused}");
}

#[test]
fn existing_content_is_guarded_and_stays() {
    let scratch = Scratch::new("qualify-guard");
    let path = scratch.0.join("disk.img");
    let mut bytes = vec![7; 32 << 20];
    bytes[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    std::fs::write(&path, &bytes).unwrap();
    let refused = refusal(&scratch, "qualify disk.img --shrink 1000");
    assert!(refused.contains("which holds an ext2, ext3 or ext4 file system"), "{refused}");
    assert!(refused.contains("--destroy disk.img allows it"), "{refused}");
    let refused = refusal(&scratch, "qualify disk.img --shrink 1000 --destroy other.img");
    assert!(refused.contains("--destroy names other.img"), "{refused}");
    assert!(!scratch.0.join("qualify-disk.img.fbq").exists(), "no log of a refusal");
    let got = json(&scratch.run("qualify disk.img --shrink 1000 --read-only --json"));
    assert_eq!(got["verdict"]["answer"], "undecided");
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was written");
}

#[test]
fn file_that_does_not_exist_is_created_and_removed() {
    let scratch = Scratch::new("qualify-file");
    let plan = scratch.run("qualify new.img --size 32M --plan");
    assert!(plan.contains("quick profile for forebay"), "{plan}");
    let limits = "p99 of durable writes at QD1 at most 1000 µs";
    assert!(
        plan.contains(limits) && plan.contains("writes of 4K, in order, durable by FUA"),
        "{plan}"
    );
    let got = json(&scratch.run("qualify new.img --size 32M --plan --json --rated-tb 10"));
    let share = got["max_bytes"].as_f64().unwrap() / 1e13 * 100.0;
    assert_eq!((&got["command"], &got["target"]), (&"qualify".into(), &"new.img".into()));
    assert!((got["max_rated_percent"].as_f64().unwrap() / share - 1.0).abs() < 1e-9, "{got}");
    let first = &got["limits"][0];
    assert_eq!((&first["limit"], &first["is_least"]), (&1000.0.into(), &false.into()));
    assert!(!scratch.0.join("new.img").exists());
    let text = scratch.run("qualify new.img --size 32M --shrink 1000");
    assert!(text.contains("verdict") && text.contains("write + flush, QD64"), "{text}");
    assert!(!scratch.0.join("new.img").exists(), "removed at the end");
    let refused = refusal(&scratch, "qualify new.img --size 32M --shrink 1000");
    assert!(refused.contains("--resume goes on with it"), "{refused}");
    let done = "qualify-new.img.fbq is complete: there is nothing to resume";
    let refused = refusal(&scratch, "qualify new.img --size 32M --shrink 1000 --resume");
    assert!(refused.contains(done), "{refused}");
    let refused = refusal(&scratch, "qualify other.img --resume");
    assert!(refused.contains("qualify-other.img.fbq: No such file"), "{refused}");
    assert!(!scratch.0.join("new.img").exists(), "a refusal leaves no file");
    for size in ["0", "1M"] {
        let small = refusal(&scratch, &format!("qualify new.img --size {size} --force"));
        let why = format!("'{size}' for '--size <SIZE>': a qualification needs 16M or more");
        assert!(small.contains(&why), "{small}");
    }
    assert!(!scratch.0.join("new.img").exists(), "a refusal leaves no file");
}

#[test]
fn figures_that_make_no_sense_are_refused() {
    let scratch = Scratch::new("qualify-figures");
    for words in ["--price nan", "--price 0", "--price=-5", "--rated-tb inf", "--rated-tb 1e999"] {
        let refused = refusal(&scratch, &format!("qualify new.img --plan {words}"));
        assert!(refused.contains("it must be above 0"), "{words}: {refused}");
    }
    refusal(&scratch, "qualify sim:ddrdrive-x1 --plan --scale 0");
}

#[test]
fn cut_log_is_taken_up_again_by_the_same_plan_alone() {
    let scratch = Scratch::new("qualify-resume");
    let path = scratch.0.join("disk.img");
    std::fs::write(&path, vec![0; 32 << 20]).unwrap();
    let run = "qualify disk.img --destroy disk.img --shrink 1000 --out log.fbq";
    scratch.run(run);
    let log = scratch.0.join("log.fbq");
    let whole = std::fs::read(&log).unwrap();
    let ends: Vec<usize> =
        (0..whole.len()).filter(|at| whole[*at] == b'\n').map(|at| at + 1).collect();
    let refused = refusal(&scratch, &format!("{run} --resume"));
    assert!(refused.contains("is complete"), "{refused}");
    // The process was killed in the middle of the eleventh line.
    std::fs::write(&log, &whole[..ends[9] + 20]).unwrap();
    let refused = refusal(&scratch, &format!("{run} --resume --for zil"));
    assert!(refused.contains("another plan"), "{refused}");
    let got = json(&scratch.run(&format!("{run} --resume --json")));
    assert_eq!(got["complete"], true);
    assert_eq!(got["qualification"]["resumed_s"].as_array().unwrap().len(), 1);
    let outcomes = got["qualification"]["outcomes"].as_array().unwrap().len();
    assert_eq!(outcomes, got["qualification"]["plan"]["steps"].as_array().unwrap().len());
    let after = std::fs::read(&log).unwrap();
    assert_eq!(after[..ends[9]], whole[..ends[9]], "what was done is kept");
    assert!(path.exists(), "the operator's own file stays");
    let again = json(&scratch.run("report --json log.fbq"));
    assert_eq!(again["experiments"][0]["id"], "verdict");
}

#[test]
fn procedure_of_a_talk_is_repeated_on_a_model() {
    let scratch = Scratch::new("qualify-procedure");
    let run = "qualify sim:vertex-2-pro --procedure ddrdrive-2012 --shrink 1000 --out p.fbq";
    let text = scratch.run(run);
    assert!(text.contains("procedure    ddrdrive-2012"), "{text}");
    assert!(text.contains("random writes, aligned, first second"), "{text}");
    let results = json(&scratch.run("report --json p.fbq"));
    let all = results["experiments"].as_array().unwrap();
    let shown = all.iter().find(|e| e["id"] == "procedure").unwrap();
    assert_eq!(shown["charts"].as_array().unwrap().len(), 1);
    // One point for the first second, and one for each of 80 minutes.
    assert_eq!(shown["charts"][0]["series"][0]["points"].as_array().unwrap().len(), 81);
    let refused = refusal(&scratch, "qualify sim:vertex-2-pro --procedure ddrdrive-2012 --for zil");
    assert!(refused.contains("cannot be used with"), "{refused}");
}

#[test]
fn log_that_is_none_is_refused() {
    let scratch = Scratch::new("qualify-nolog");
    std::fs::write(scratch.0.join("x.fbq"), "hello\n").unwrap();
    let refused = refusal(&scratch, "report x.fbq");
    assert!(refused.contains("x.fbq: this is no result of a qualification"), "{refused}");
    let unknown = refusal(&scratch, "qualify sim:none-such");
    assert!(unknown.contains("none-such"), "{unknown}");
    let resumed = refusal(&scratch, "qualify sim:ddrdrive-x1 --resume");
    assert!(resumed.contains("forgets its state"), "{resumed}");
}

#[test]
fn purge_of_what_is_no_drive_is_refused_and_discards_are_taken() {
    let scratch = Scratch::new("qualify-purge");
    let path = scratch.0.join("disk.img");
    std::fs::write(&path, vec![7; 32 << 20]).unwrap();
    for way in ["nvme-format", "nvme-sanitize", "ata-secure-erase"] {
        let run = format!("qualify disk.img --shrink 1000 --purge {way} --destroy disk.img");
        scratch.refused(&run, 1, "disk.img is no drive; --purge discard is for files");
    }
    scratch.refused("qualify sim:ddrdrive-x1 --purge nvme-format", 1, "is no drive");
    scratch.refused("qualify disk.img --purge discard --read-only", 2, "cannot be used with");
    assert!(std::fs::read(&path).unwrap() == vec![7; 32 << 20], "a refusal writes nothing");
    let guarded = refusal(&scratch, "qualify disk.img --shrink 1000 --purge discard");
    assert!(guarded.contains("--destroy disk.img allows it"), "{guarded}");
    let run = "qualify disk.img --shrink 1000 --only durable --purge discard --destroy disk.img";
    let got = json(&scratch.run(&format!("{run} --json")));
    let outcomes = got["qualification"]["outcomes"].as_array().unwrap();
    assert_eq!((&outcomes[0]["kind"], outcomes.len()), (&"discard".into(), 16));
    assert_eq!(outcomes[0]["measured"]["ended"], "time");
    assert_ne!(got["verdict"]["answer"], "fit", "a part does not judge");
    let details = &got["qualification"]["conditions"]["details"];
    assert!(details["counters"].is_string() && details["sensors"].is_string(), "{details}");
    // Another way to wait is another plan.
    let refused = refusal(&scratch, &format!("{run} --wait sleep --resume"));
    assert!(refused.contains("another plan"), "{refused}");
}
