//! `forebay trace record` on a loop device. Needs root, losetup and tracefs; skips loudly without.

#![allow(clippy::disallowed_methods, reason = "a test writes the trace itself")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::Scratch;

/// A loop device on a file of the scratch folder, detached at the end.
struct Loop(String);

impl Loop {
    fn new(scratch: &Scratch) -> Option<Self> {
        scratch.file("disk", 16 << 20);
        let disk = scratch.0.join("disk");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(disk).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && !name.is_empty()).then_some(Self(name))
    }

    /// Writes `count` blocks of 4 KiB from `block` on, each with a request of its own.
    fn write(&self, block: u64, count: u64) {
        let status = Command::new("dd")
            .args(["if=/dev/zero", "bs=4k", "oflag=direct", "conv=notrunc", "status=none"])
            .args([format!("of={}", self.0), format!("seek={block}"), format!("count={count}")])
            .status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Makes tracefs visible; it may be mounted already.
const MOUNT: &str = "[ -e /sys/kernel/tracing/instances ] || \
    mount -t tracefs nodev /sys/kernel/tracing";

/// The binary with tracefs mounted in a namespace of its own; `None` where that is not possible.
fn with_tracefs(scratch: &Scratch, words: &str) -> Option<Command> {
    let mount = MOUNT;
    let can = Command::new("unshare").args(["--mount", "sh", "-c", mount]).status().ok()?;
    let mut command = Command::new("unshare");
    let forebay = PathBuf::from(env!("CARGO_BIN_EXE_forebay"));
    let script = format!("({mount}) && exec {} {words}", forebay.display());
    command.args(["--mount", "sh", "-c", &script]).current_dir(&scratch.0);
    can.success().then_some(command)
}

/// Starts a recording, and returns when the kernel records.
fn start(mut command: Command) -> (Child, BufReader<impl Read>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut notices = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    notices.read_line(&mut line).unwrap();
    assert!(line.contains("recording") || line.contains("Tracing"), "{line}");
    (child, notices)
}

fn interrupt(child: Child) -> String {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).unwrap()
}

/// Says it past the test harness, which shows nothing that a test prints when it passes.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}\n");
}

#[test]
fn requests_of_a_loop_device_are_recorded_in_their_order() {
    let scratch = Scratch::new("trace-live");
    let Some(device) = Loop::new(&scratch) else {
        skipped("losetup gives no loop device here; nothing was recorded");
        return;
    };
    let words = format!("trace record {} --out t.fbt", device.0);
    let Some(command) = with_tracefs(&scratch, &words) else {
        skipped("tracefs cannot be mounted here; nothing was recorded");
        return;
    };
    let (child, _notices) = start(command);
    let places = [(100, 3), (7, 1), (1000, 2)];
    places.iter().for_each(|(block, count)| device.write(*block, *count));
    let text = interrupt(child);
    assert!(text.contains("events of") && text.ends_with(": t.fbt\n"), "{text}");

    for stage in ["queue", "issue"] {
        let table = scratch.run(&format!("trace convert --at {stage} --to csv t.fbt -"));
        let written: Vec<u64> = table
            .lines()
            .filter_map(|line| line.split(',').collect::<Vec<_>>().try_into().ok())
            .filter(|row: &[&str; 6]| row[2] == "W" && row[4] != "0")
            .map(|row| row[3].parse::<u64>().unwrap() / 8)
            .collect();
        assert_eq!(written, [100, 101, 102, 7, 1000, 1001], "{stage}");
    }
    refuses_what_it_cannot_do(&scratch, &device.0);
    let summary = scratch.run("trace summary --json t.fbt");
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["summary"]["write"]["latency_ns"]["count"], 6);
    assert_eq!(summary["complete"], true);

    let words = format!("trace seeksize --as bcc {}", device.0);
    let (child, _notices) = start(with_tracefs(&scratch, &words).unwrap());
    device.write(0, 2);
    let text = interrupt(child);
    assert!(text.contains("Distribution"), "{text}");
    let leftover = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg(format!("({MOUNT}) && ls /sys/kernel/tracing/instances"))
        .output()
        .unwrap();
    let leftover = String::from_utf8(leftover.stdout).unwrap();
    assert!(!leftover.contains("forebay-"), "the instance is removed: {leftover}");
}

/// A device is no trace, and no file to replace; and nothing else is in a trace on a pipe.
fn refuses_what_it_cannot_do(scratch: &Scratch, device: &str) {
    let hint = format!("'forebay trace record {device}' records one of it");
    for words in ["trace convert DEV x.fbt", "trace cache DEV", "report DEV"] {
        scratch.refused(&words.replace("DEV", device), 2, &hint);
    }
    scratch.refused(&format!("trace summary -d loop99 {device}"), 2, "--device chooses among");
    let onto = "is a block device, and no file to replace";
    scratch.refused(&format!("trace convert -f t.fbt {device}"), 1, onto);
    let record = |more: &str| {
        let words = format!("trace record {device} --seconds 0.2 {more}");
        with_tracefs(scratch, &words).unwrap().output().unwrap()
    };
    let said = String::from_utf8(record(&format!("-f --out {device}")).stderr).unwrap();
    assert!(said.contains(onto), "{said}");
    let said = String::from_utf8(record("-f --out disk").stderr).unwrap();
    assert!(said.contains("the file is in use"), "{said}");
    assert_eq!(record("--json --out -").status.code(), Some(2));
    let output = record("--out -");
    std::fs::write(scratch.0.join("pipe.fbt"), output.stdout).unwrap();
    let summary = scratch.run("trace summary --json pipe.fbt");
    assert!(summary.contains("\"complete\": true"), "{summary}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 events of"));
}
