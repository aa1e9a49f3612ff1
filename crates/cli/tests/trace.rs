//! `forebay trace` from outside: what it prints, what it refuses, pipes.

#![allow(clippy::disallowed_methods, reason = "a test writes the traces itself")]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::Scratch;

/// Two writes behind each other, a flush, a read elsewhere; a second device.
const TABLE: &str = "time_ns,device,op,start_sector,sectors,flags\n\
    0,0,W,0,8,\n1000000,0,W,8,8,F\n2000000,0,F,0,0,\n3000000,0,R,1000,16,\n\
    2500000000,1,W,64,8,\n";

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    std::fs::write(scratch.0.join("t.csv"), TABLE).unwrap();
    scratch
}

fn json(scratch: &Scratch, words: &str) -> serde_json::Value {
    serde_json::from_str(&scratch.run(words)).unwrap_or_else(|e| panic!("{words}: {e}"))
}

#[test]
fn iopattern_prints_a_line_for_each_second() {
    let scratch = scratch("trace-iopattern");
    let want = "%RAN %SEQ  COUNT    MIN    MAX    AVG     KR     KW\n  \
        33   67      3   4096   8192   5461      8      8\n   \
        0    0      0      0      0      0      0      0\n \
        100    0      1   4096   4096   4096      0      4\n";
    assert_eq!(scratch.run("trace iopattern t.csv"), want);
    let first: String = want.lines().take(2).map(|line| format!("{line}\n")).collect();
    assert_eq!(scratch.run("trace iopattern t.csv 1 1"), first);
    let got = json(&scratch, "trace iopattern --total --count-flushes --json t.csv");
    let row = &got["intervals"][0];
    assert_eq!((&row["count"], &row["random"]), (&5.into(), &3.into()));
    assert_eq!((&got["command"], &got["complete"]), (&"trace iopattern".into(), &true.into()));
    let got = json(&scratch, "trace iopattern --as bcc --json t.csv");
    assert_eq!(
        got["intervals"].as_array().unwrap().len(),
        1,
        "device 1 has its first request only"
    );
    assert_eq!(got["intervals"][0]["device"], "0");
}

#[test]
fn other_analyses_print_text_and_json() {
    let scratch = scratch("trace-analyses");
    let seeks = scratch.run("trace seeksize t.csv");
    assert!(seeks.contains("PID  CMD") && seeks.contains("-- Distribution --"), "{seeks}");
    let got = json(&scratch, "trace seeksize --json --device 0 t.csv");
    let total = got["total"].as_array().unwrap();
    assert_eq!(total.first().unwrap()["count"], 1, "one request follows the one before");
    assert_eq!(total.last().unwrap()["sectors"], 512, "984 sectors");
    let got = json(&scratch, "trace summary --json t.csv");
    assert_eq!(got["summary"]["records"], 5);
    assert_eq!(got["summary"]["fua"], 1);
    assert_eq!(got["devices"][1]["records"], 1);
    let table = scratch.run("trace summary t.csv");
    assert!(table.contains("1 FUA"), "{table}");
    let got = json(&scratch, "trace cache --json --size 100%,4K --policy lru t.csv");
    assert_eq!((&got["accesses"], &got["footprint_blocks"]), (&5.into(), &5.into()));
    assert_eq!(got["caches"][1]["capacity_blocks"], 1);
    assert!(scratch.run("trace cache t.csv").contains("S3FIFO"));
}

#[test]
fn converted_traces_say_the_same() {
    let scratch = scratch("trace-convert");
    let want = scratch.run("trace summary --json t.csv").replace("t.csv", "x");
    let same = |file: &str| {
        let got = scratch.run(&format!("trace summary --json {file}")).replace(file, "x");
        assert_eq!(got.replace("\"forebay\"", "\"opencas\""), want, "{file}");
    };
    assert_eq!(scratch.run("trace convert t.csv t.fbt"), "");
    same("t.fbt");
    scratch.run("trace convert --to csv t.fbt again.csv");
    assert_eq!(std::fs::read_to_string(scratch.0.join("again.csv")).unwrap(), TABLE);
    scratch.refused("trace convert t.csv t.fbt", 2, "--force");
    scratch.run("trace convert --force t.csv t.fbt");
    scratch.refused("trace convert --force t.fbt t.fbt", 2, "the trace itself");
    scratch.refused("trace replay --overwrite t.fbt ./t.fbt", 2, "the trace itself");
    let got = json(&scratch, "trace convert --to disksim --json t.csv t.ascii");
    assert_eq!((&got["written"], &got["left_out"]), (&4.into(), &1.into()));
    let iolog = scratch.run("trace convert --to fio t.csv -");
    assert!(iolog.starts_with("fio version 3 iolog\n0 0 add\n"), "{iolog}");
}

#[test]
fn standard_input_and_files_of_each_processor_are_read() {
    let scratch = scratch("trace-stdin");
    for words in ["trace cache --json -", "trace iopattern --json -"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(words.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(TABLE.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let want = json(&scratch, &format!("{} t.csv", words.strip_suffix(" -").unwrap()));
        let without_source = |mut value: serde_json::Value| {
            value["source"] = "".into();
            value
        };
        assert_eq!(without_source(got), without_source(want), "{words}");
    }
    for cpu in 0..2 {
        std::fs::copy(scratch.0.join("t.csv"), scratch.0.join(format!("t.blktrace.{cpu}")))
            .unwrap();
    }
    assert_eq!(json(&scratch, "trace summary --json t")["summary"]["records"], 10);
}

#[test]
fn what_is_no_trace_is_refused_and_damage_is_reported() {
    let scratch = scratch("trace-refused");
    std::fs::write(scratch.0.join("letter"), "Dear reader,\nthis is no trace.\n").unwrap();
    std::fs::write(scratch.0.join("empty"), "").unwrap();
    scratch.refused("trace summary letter", 1, "--format takes one of");
    scratch.refused("trace summary empty", 1, "empty");
    scratch.refused("trace summary missing", 1, "missing");
    scratch.refused("trace summary .", 2, "a folder");
    scratch.refused("trace iopattern t.csv 0", 2, "interval");
    scratch.refused("trace cache --size 0% t.csv", 2, "share");
    scratch.refused("trace cache --policy best t.csv", 2, "lru");
    scratch.refused("trace summary --at queue --format forebay t.csv", 1, "does not begin like");
    scratch.run("trace convert t.csv t.fbt");
    let whole = std::fs::read(scratch.0.join("t.fbt")).unwrap();
    std::fs::write(scratch.0.join("cut.fbt"), &whole[..whole.len() - 10]).unwrap();
    let output = scratch.forebay("trace summary --json cut.fbt");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("ends within the record") && stderr.contains("5 events"), "{stderr}");
    let got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&got["complete"], &got["summary"]["records"]), (&false.into(), &5.into()));
}

#[test]
fn a_closed_pipe_ends_the_command_without_a_message() {
    let scratch = Scratch::new("trace-pipe");
    let rows: String =
        (0u64..200_000).map(|at| format!("{},0,W,{at},8,\n", at * 1_000_000)).collect();
    std::fs::write(scratch.0.join("long.csv"), rows).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["trace", "iopattern", "long.csv", "0.01"])
        .current_dir(&scratch.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn replay_writes_only_when_told_and_only_what_the_trace_wrote() {
    let scratch = scratch("trace-replay");
    scratch.file("disk", 1 << 20);
    scratch.refused("trace replay t.csv disk", 2, "--overwrite");
    scratch.refused("trace replay --overwrite t.csv missing", 1, "missing");
    scratch.refused("trace replay --overwrite --speed 0 t.csv disk", 2, "factor");
    let words = "trace replay --speed max --json";
    let got = json(&scratch, &format!("{words} --reads t.csv disk"));
    assert_eq!(
        (&got["summary"]["read"]["count"], &got["left_out"]["other"]),
        (&1.into(), &4.into())
    );
    let content = || std::fs::read(scratch.0.join("disk")).unwrap();
    assert!(content().iter().all(|byte| *byte == 0), "reads change nothing");
    let got = json(&scratch, &format!("{words} --overwrite t.csv disk"));
    assert_eq!(got["summary"]["write"]["count"], 3);
    assert_eq!(got["summary"]["flush"]["count"], 1);
    assert_eq!(got["summary"]["fua"], 1);
    let is_written = |block: &usize| content()[block * 4096..][..4096].iter().any(|b| *b != 0);
    assert_eq!((0..256).filter(is_written).collect::<Vec<_>>(), [0, 1, 8]);
}

#[test]
fn an_interrupt_ends_the_trace_and_what_was_read_is_shown() {
    for words in ["trace seeksize --json -", "trace summary --json -"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(words.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The pipe stays open: only the interrupt can end the command. It is sent when all but the
        // pipe's own 64 KiB was read, so the command has its signals in hand.
        let mut stdin = child.stdin.take().unwrap();
        let rows: String = (0..40_000).map(|at| format!("{at},0,W,{},8,\n", at * 8)).collect();
        stdin.write_all(rows.as_bytes()).unwrap();
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(1), "{words}");
        let got: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(got["complete"], false, "{words}");
        assert!(got["events"].as_u64().unwrap() > 1000, "{words}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.contains("interrupted"), "{words}: {line}");
    }
}

/// The chart of this name of a results document.
fn chart<'a>(results: &'a serde_json::Value, experiment: &str, id: &str) -> &'a serde_json::Value {
    let named = |all: &'a serde_json::Value, id: &str| {
        let found = all.as_array().unwrap().iter().find(|each| each["id"] == id);
        found.unwrap_or_else(|| panic!("{id} of {all}"))
    };
    let experiment = named(&results["experiments"], experiment);
    named(&experiment["charts"], id)
}

#[test]
fn a_page_has_pattern_seeks_and_sizes_of_traces() {
    let scratch = scratch("trace-page");
    scratch.run("trace convert t.csv t.fbt");
    let results = json(&scratch, "report --json t.csv t.fbt");
    assert_eq!(results["title"], "Trace: t.csv, t.fbt");
    // Both say the same of the same requests: %RAN as iopattern has it, the seeks of seeksize.
    for at in 0..2 {
        let random = &chart(&results, "access-pattern", "random")["series"][at]["points"];
        let value = |axis: &str| random[0][axis].as_f64().unwrap();
        assert_eq!(value("x"), 0.0);
        assert_eq!(value("y"), 33.33, "{random}");
        let seeks = &chart(&results, "seeks", "distances")["series"][at]["points"];
        let seeks = seeks.as_array().unwrap();
        let named = |x: &str| seeks.iter().find(|point| point["x"] == x).unwrap()["y"].as_f64();
        assert_eq!((named("0"), named("+256K")), (Some(50.0), Some(50.0)), "{seeks:?}");
        let sizes = &chart(&results, "sizes", "sizes")["series"];
        assert_eq!(sizes.as_array().unwrap().len(), 4, "reads and writes of two traces");
    }
    let figures = &results["experiments"][0]["tables"][0]["rows"];
    let row = |name: &str| {
        let rows = figures.as_array().unwrap();
        rows.iter().find(|row| row[0]["value"] == name).unwrap().as_array().unwrap()
    };
    assert_eq!(row("requests")[1]["value"], 5.0);
    assert_eq!(row("%RAN of iopattern, as completed")[1]["value"], 50.0);
    assert_eq!((&row("flushes")[2]["value"], row("reads").len()), (&1.0.into(), 3));
    assert_eq!(scratch.run("report t.csv"), "t.html\n");
    let page = std::fs::read_to_string(scratch.0.join("t.html")).unwrap();
    assert!(page.contains("Requests by seek distance") && !page.contains("seed 0"), "a page");
    assert!(scratch.run("report --csv t.csv").contains("seeks,chart,distances,t.csv,+256K,%,50"));
    // Logs and traces stand on one page.
    scratch.run("qualify sim:ddrdrive-x1 --shrink 1000 --out a.fbq");
    let both = json(&scratch, "report --json a.fbq t.csv");
    assert!(both["title"].as_str().unwrap().ends_with(", and trace: t.csv"), "{}", both["title"]);
    assert_eq!(both["experiments"][0]["id"], "verdict");
    chart(&both, "seeks", "distances");
}

#[test]
fn what_makes_no_page_is_refused_and_a_cut_trace_says_so() {
    let scratch = scratch("trace-no-page");
    std::fs::write(scratch.0.join("letter"), "Dear reader,\nthis is no trace.\n").unwrap();
    std::fs::write(scratch.0.join("w"), "forebay-witness/1 0 00000000 {}\n").unwrap();
    scratch.refused("report letter", 1, "--format takes one of");
    scratch.refused("report w", 2, "'forebay witness w --show' prints it");
    scratch.refused("report .", 2, "a folder");
    scratch.refused("report missing", 1, "missing");
    scratch.refused("report -", 2, "needs a name");
    std::fs::copy(scratch.0.join("t.csv"), scratch.0.join("t.html")).unwrap();
    scratch.refused("report --force t.html", 2, "the name of the page, too");
    std::fs::hard_link(scratch.0.join("t.csv"), scratch.0.join("link")).unwrap();
    for page in ["t.csv", "link"] {
        let words = format!("report --force --markdown t.html t.csv -o {page}");
        scratch.refused(&words, 2, "one of the results");
        assert_eq!(std::fs::read_to_string(scratch.0.join("t.csv")).unwrap(), TABLE);
    }
    scratch.run("trace convert t.csv t.fbt");
    let whole = std::fs::read(scratch.0.join("t.fbt")).unwrap();
    std::fs::write(scratch.0.join("cut.fbt"), &whole[..whole.len() - 10]).unwrap();
    let output = scratch.forebay("report --markdown cut.fbt");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not whole: the source ends within the record"), "{text}");
}

/// A file system of so few KiB at `small`, in a mount namespace of its own; exit code and what is
/// in the folder afterwards. `None` where there may be no namespace.
fn on_full_disk(scratch: &Scratch, words: &str) -> Option<(i32, String)> {
    let program = env!("CARGO_BIN_EXE_forebay");
    let script = format!(
        "mkdir -p small && mount -t tmpfs -o size=64k none small || exit 99\n\
         printf old >small/page\n{program} {words} 2>&1; echo \"code $?\"\ncat small/page\n\
         ls -A small"
    );
    let mut shell = Command::new("unshare");
    let shell = shell.args(["--mount", "sh", "-c", &script]).current_dir(&scratch.0);
    let output = shell.env("FOREBAY_STATE_DIR", scratch.state()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let code = text.split("code ").nth(1)?.lines().next()?.parse().ok()?;
    Some((code, text))
}

#[test]
fn file_that_cannot_be_written_whole_leaves_the_old_one() {
    let scratch = scratch("trace-full");
    let row = |at: u64| format!("{},0,W,{},8,\n", at * 1_000_003, at * 7_919 % 999_983 * 8);
    let table: String = (0..40_000).map(row).collect();
    std::fs::write(scratch.0.join("long.csv"), table).unwrap();
    for words in ["trace convert -f long.csv small/page", "report -f long.csv -o small/page"] {
        let Some((code, text)) = on_full_disk(&scratch, words) else {
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: no mount namespace here\n");
            return;
        };
        assert!(text.contains("No space left on device"), "{text}");
        assert_eq!(code, 1, "{words}");
        assert!(text.ends_with("\noldpage\n"), "{words}: {text}");
    }
}

#[test]
fn file_that_exists_is_refused_alike_by_all() {
    let scratch = scratch("trace-exists");
    for name in ["t.html", "t.fbt"] {
        std::fs::write(scratch.0.join(name), "mine").unwrap();
    }
    scratch.refused("report t.csv", 2, "t.html exists already; --force replaces it");
    scratch.refused("trace convert t.csv t.fbt", 2, "t.fbt exists already; --force replaces it");
    scratch.run("trace convert -f t.csv t.fbt");
    assert_eq!(json(&scratch, "trace summary --json t.fbt")["summary"]["write"]["count"], 3);
    let inner = std::fs::read_dir(&scratch.0).unwrap().flatten();
    let left = inner.filter(|entry| entry.file_name().to_string_lossy().contains("tmp")).count();
    assert_eq!(left, 0, "nothing is left beside it");
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    let scratch = scratch("trace-ignored");
    scratch.file("disk", 1 << 20);
    let replay = "trace replay --overwrite --speed max t.csv disk --scale 8";
    scratch.refused(replay, 2, "--scale belongs to sim:NAME");
    assert!(std::fs::read(scratch.0.join("disk")).unwrap().iter().all(|byte| *byte == 0));
    scratch.refused("qualify new.img --scale 8", 2, "--scale belongs to sim:NAME");
    scratch.refused("trace iopattern t.csv 1e300", 2, "between 0.001 and 1000000000 seconds");
}
