//! `forebay witness` and `forebay qualify power-cut` from outside: another
//! process keeps what was acknowledged, and a verification compares the device with it.

#![allow(clippy::disallowed_methods, reason = "a test makes and damages the files itself")]

mod common;

use std::os::unix::fs::FileExt;

use common::Scratch;

fn json(bytes: &[u8]) -> serde_json::Value {
    let text = String::from_utf8_lossy(bytes);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Starts a witness, and returns it with its address.
fn start_witness(scratch: &Scratch, more: &str) -> (common::Running, String) {
    let witness = scratch
        .spawn_logged(scratch.command(&format!("witness keep.fbw --listen 127.0.0.1:0 {more}")));
    assert!(scratch.log_says("listening on tcp:"), "the witness listens");
    let log = std::fs::read_to_string(scratch.0.join("log")).unwrap();
    let line = log.lines().find(|line| line.starts_with("listening on tcp:")).unwrap();
    let address = line["listening on tcp:".len()..].split(';').next().unwrap().to_owned();
    (witness, address)
}

#[test]
fn damage_is_found_by_what_the_witness_kept() {
    let scratch = Scratch::new("power-cut");
    scratch.file("disk.img", 4 << 20);
    let (_witness, address) = start_witness(&scratch, "--cut-after 0 --cut-command ./cut");
    // The supply of the drive: the process that writes is killed.
    std::fs::write(scratch.0.join("cut"), "#!/bin/sh\nkill -9 $(cat writer)\n").unwrap();
    let mut shell = std::process::Command::new("chmod");
    assert!(shell.arg("+x").arg(scratch.0.join("cut")).status().unwrap().success());
    let run = format!("qualify power-cut disk.img --witness {address} --destroy disk.img");
    let mut writer = scratch.command(&run).spawn().unwrap();
    std::fs::write(scratch.0.join("writer"), writer.id().to_string()).unwrap();
    assert!(!writer.wait().unwrap().success(), "it was killed");
    assert!(scratch.log_says("cycle 1: the cut command starts"));
    let verify = format!("qualify power-cut verify disk.img --witness {address} --json");
    let got = json(scratch.run(&verify).as_bytes());
    assert_eq!(got["last"]["findings"]["checked"], 256, "{got}");
    assert_eq!((&got["last"]["is_cut"], &got["tally"]["not_cut"]), (&false.into(), &1.into()));
    let again = scratch.forebay(&verify);
    assert!(!again.status.success() && json(&again.stdout)["error"]["code"] == "qualify");
    // Another cycle, of which the drive loses a place and damages another.
    let mut writer = scratch.command(&run).spawn().unwrap();
    std::fs::write(scratch.0.join("writer"), writer.id().to_string()).unwrap();
    assert!(!writer.wait().unwrap().success(), "it was killed");
    let disk = std::fs::File::options().write(true).open(scratch.0.join("disk.img")).unwrap();
    disk.write_all_at(&[0; 16384], 16384 * 5).unwrap();
    disk.write_all_at(&[0x55; 4], 16384 * 9 + 700).unwrap();
    let output = scratch.forebay(&format!("{verify} --drive-only"));
    assert_eq!(output.status.code(), Some(1), "something is lost");
    let got = json(&output.stdout);
    assert_eq!(got["last"]["findings"]["damages"], serde_json::json!({"missing": 1, "corrupt": 1}));
    assert_eq!((&got["tally"]["cuts"], &got["tally"]["failed"]), (&1.into(), &1.into()));
    let shown = json(scratch.run("witness keep.fbw --show --json").as_bytes());
    assert_eq!((&shown["cycles"], &shown["tally"]["failed"]), (&2.into(), &1.into()));
    assert!(scratch.run("witness keep.fbw --show").contains("1 verified, 1 lost data"));
}

#[test]
fn devices_and_witnesses_are_not_taken_for_others() {
    let scratch = Scratch::new("power-cut-guards");
    scratch.file("disk.img", 4 << 20);
    scratch.file("other.img", 8 << 20);
    let refusal = |words: &str| {
        let output = scratch.forebay(words);
        assert!(!output.status.success(), "{words}");
        String::from_utf8(output.stderr).unwrap()
    };
    let lost = refusal("qualify power-cut disk.img --witness 127.0.0.1:1 --destroy disk.img");
    assert!(lost.contains("the witness at 127.0.0.1:1"), "{lost}");
    let (witness, address) = start_witness(&scratch, "");
    let guarded = refusal(&format!("qualify power-cut disk.img --witness {address}"));
    assert!(guarded.contains("--destroy disk.img allows it"), "{guarded}");
    let none = refusal(&format!("qualify power-cut verify disk.img --witness {address}"));
    assert!(none.contains("no cycle that is not verified"), "{none}");
    let mut writer = scratch
        .command(&format!("qualify power-cut disk.img --witness {address} --destroy disk.img"))
        .spawn()
        .unwrap();
    assert!(scratch.log_says("cycle 1: each place is written"));
    // Ctrl-C ends a cycle without a cut.
    let mut kill = std::process::Command::new("kill");
    assert!(kill.args(["-INT", &writer.id().to_string()]).status().unwrap().success());
    assert!(writer.wait().unwrap().success());
    assert!(scratch.log_says("cycle 1 ended without a cut"));
    let other =
        refusal(&format!("qualify power-cut other.img --witness {address} --destroy other.img"));
    assert!(other.contains("about another device: disk.img, 4M"), "{other}");
    drop(witness);
    // A witness that starts again knows what the one before it kept.
    std::fs::remove_file(scratch.0.join("log")).unwrap();
    let (_witness, address) = start_witness(&scratch, "");
    let verify = format!("qualify power-cut verify disk.img --witness {address} --drive-only");
    let text = scratch.run(&verify);
    assert!(text.contains("no power cut; 256 places checked, 0 damaged"), "{text}");
    let little = format!("qualify power-cut disk.img --witness {address} --destroy disk.img");
    scratch.refused(&format!("{little} --span 100K"), 2, "--span 100K is too little");
    let none = refusal("witness disk.img --show");
    assert!(none.contains("disk.img is no file of a witness"), "{none}");
    let usage = refusal("witness --cut-after 9-3");
    assert!(usage.contains("write it as FROM-TO in seconds"), "{usage}");
}

#[test]
fn witness_takes_reports_of_the_keys_holder_alone() {
    let scratch = Scratch::new("power-cut-key");
    scratch.file("disk.img", 4 << 20);
    scratch.refused("witness --listen 0.0.0.0:0", 2, "other machines reach it");
    let keep = |name: &str, mode: u32, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = scratch.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    keep("key", 0o600, "c2l4dGVlbiBieXRlcyBvciBtb3Jl\n");
    keep("open", 0o644, "c2l4dGVlbiBieXRlcyBvciBtb3Jl\n");
    keep("short", 0o600, "short\n");
    keep("other", 0o600, "YSBrZXkgb2YgYW5vdGhlciB0ZXN0\n");
    scratch.refused("witness --key-file open", 2, "is open to other users (mode 644)");
    scratch.refused("witness --key-file short", 2, "a key of 5 bytes is too short");
    scratch.refused("witness --key-file none", 1, "none: ");
    let (witness, address) = start_witness(&scratch, "--key-file key");
    let run = format!("qualify power-cut disk.img --witness {address} --destroy disk.img");
    scratch.refused(&run, 1, "a key is asked for, and none was given");
    scratch.refused(&format!("{run} --key-file other"), 1, "the peer has another key");
    assert!(scratch.log_says("is refused: a key is asked for"));
    // The environment has it as well, and the same text is the same key.
    let mut writer = scratch.command(&run);
    writer.env("FOREBAY_WITNESS_KEY", "c2l4dGVlbiBieXRlcyBvciBtb3Jl");
    let mut writer = writer.spawn().unwrap();
    assert!(scratch.log_says("cycle 1: each place is written"));
    let mut kill = std::process::Command::new("kill");
    assert!(kill.args(["-INT", &writer.id().to_string()]).status().unwrap().success());
    assert!(writer.wait().unwrap().success());
    let verify = format!("qualify power-cut verify disk.img --witness {address}");
    let text = scratch.run(&format!("{verify} --key-file key"));
    assert!(text.contains("256 places checked, 0 damaged"), "{text}");
    drop(witness);
    std::fs::remove_file(scratch.0.join("log")).unwrap();
    let (_witness, address) = start_witness(&scratch, "");
    let verify = format!("qualify power-cut verify disk.img --witness {address} --key-file key");
    scratch.refused(&verify, 1, "a key was given, and the peer has none");
}

#[test]
fn damage_before_a_new_cycle_is_in_its_exit_code_and_json() {
    let scratch = Scratch::new("power-cut-code");
    scratch.file("disk.img", 4 << 20);
    let (_witness, address) = start_witness(&scratch, "");
    let run = format!("qualify power-cut disk.img --witness {address} --destroy disk.img");
    let disk = std::fs::File::options().write(true).open(scratch.0.join("disk.img")).unwrap();
    let cycle = |number: u32, signal: &str| {
        let mut command = scratch.command(&format!("{run} --json --drive-only"));
        let writer = scratch.spawn(command.stdout(std::process::Stdio::piped()));
        assert!(scratch.log_says(&format!("cycle {number}: each place is written")));
        writer.signal(signal);
        writer.finish()
    };
    cycle(1, "-KILL");
    disk.write_all_at(&[0; 16384], 16384 * 5).unwrap();
    let ended = cycle(2, "-INT");
    assert_eq!(ended.status.code(), Some(1), "something durable was lost");
    let got = json(&ended.stdout);
    assert_eq!(got["last"]["findings"]["damages"], serde_json::json!({"missing": 1}));
    assert_eq!((&got["tally"]["cuts"], &got["tally"]["failed"]), (&1.into(), &1.into()));
    let ended = cycle(3, "-INT");
    assert_eq!(ended.status.code(), Some(0), "cycle 2 was ended, and is whole");
    let last = scratch.forebay(&format!("{run} --cuts 1"));
    let text = String::from_utf8_lossy(&last.stdout).into_owned();
    assert!(text.contains("256 places checked, 0 damaged") && last.stderr.is_empty(), "{text}");
}
