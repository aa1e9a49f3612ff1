//! The binary without a pool: help, wrong usage, bad devices, the state folder, pages.

mod common;

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use common::{Scratch, text};

#[test]
fn help_needs_no_state_and_shows_examples() {
    let scratch = Scratch::new("help");
    for words in [
        "--help",
        "up --help",
        "serve --help",
        "pool --help",
        "pool create --help",
        "pool iostat --help",
        "volume create --help",
        "help pool scrub",
    ] {
        let help = text(&scratch.forebay(words));
        assert!(help.contains("Example"), "{words}:\n{help}");
        assert!(help.contains("forebay "), "{words}:\n{help}");
    }
    assert!(text(&scratch.forebay("--version")).starts_with("forebay "));
    assert!(!scratch.state().exists(), "help makes no folder");
}

#[test]
fn command_without_verb_shows_help_and_fails() {
    let scratch = Scratch::new("bare");
    for words in ["", "pool", "volume"] {
        let output = scratch.forebay(words);
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: forebay"), "{words}");
    }
}

#[test]
fn wrong_usage_is_one_line_and_exit_code_2() {
    let scratch = Scratch::new("usage");
    scratch.refused("pol", 2, "forebay --help");
    scratch.refused("pool list --frob", 2, "forebay pool list --help");
    scratch.refused("pool create tank", 2, "forebay pool create --help");
    scratch.refused("pool create tank mirror a", 2, "mirror needs 2 devices");
    scratch.refused("pool create tank log a", 2, "data device");
    scratch.refused("pool create tank raidz4 a b", 2, "'raidz4' is not a kind of group");
    scratch.refused("pool create -o x tank a", 2, "property=value");
    scratch.refused("volume create -V 1X tank/v", 2, "not a size");
    scratch.refused("volume create -V 1G tank", 2, "POOL/VOL");
    scratch.refused("serve --listen 0.0.0.0:1", 2, "tcp:HOST:PORT");
    scratch.refused("pool iostat 0", 2, "interval");
    scratch.refused("pool list -o frob", 2, "is not a field");
}

#[test]
fn bad_devices_are_refused_and_unchanged() {
    let scratch = Scratch::new("devices");
    scratch.file("small", (64 << 20) - 512);
    scratch.file("good", 64 << 20);
    std::fs::hard_link(scratch.0.join("good"), scratch.0.join("same")).unwrap();
    scratch.refused("pool create tank missing", 1, "no such device");
    scratch.refused("pool create tank small", 1, "64M");
    scratch.refused("pool create tank good good", 1, "named twice");
    scratch.refused("pool create tank good ./good", 1, "the same device");
    scratch.refused("pool create tank good same", 1, "the same device");
    scratch.refused("pool create tank .", 1, "neither a file nor a block device");
    assert_eq!(text(&scratch.forebay("pool list")), "no pools available\n");
    let untouched = std::fs::metadata(scratch.0.join("good")).unwrap();
    assert_eq!(untouched.blocks(), 0, "nothing was written");
}

#[test]
fn device_with_other_data_needs_force() {
    let scratch = Scratch::new("foreign");
    for name in ["ext4", "empty"] {
        scratch.file(name, 64 << 20);
    }
    let mut file = std::fs::OpenOptions::new().write(true).open(scratch.0.join("ext4")).unwrap();
    file.seek(SeekFrom::Start(0x438)).unwrap();
    file.write_all(&[0x53, 0xef]).unwrap();
    scratch.refused("pool create tank empty ext4", 1, "ext4 holds an ext2, ext3 or ext4 file");
    scratch.run("pool create tank empty");
    scratch.refused("pool add tank log ext4", 1, "use -f");
    scratch.refused("pool attach tank empty ext4", 1, "use -f");
    scratch.run("pool attach -f -w tank empty ext4");
    assert_eq!(scratch.run("pool list -H -o health"), "ONLINE\n");
}

#[test]
fn unknown_pools_and_bad_sizes_are_refused() {
    let scratch = Scratch::new("unknown");
    for words in [
        "pool status tank",
        "pool export tank",
        "pool destroy tank",
        "pool set x=y tank",
        "pool scrub tank",
        "pool stats tank",
        "pool history tank",
        "pool events tank",
        "volume list tank",
        "volume create -V 1G tank/v",
        "serve tank",
    ] {
        scratch.refused(words, 1, "no pool named 'tank' is known");
    }
    scratch.refused("volume create -V 0 tank/v", 1, "multiple of 4096");
    scratch.refused("volume create -V 4097 tank/v", 1, "multiple of 4096");
    scratch.refused("up --size 1M", 1, "between 64M and 64T");
    scratch.file("file", 1);
    scratch.refused("up --dir file", 1, "is not a folder");
    scratch.refused("pool import -d missing", 1, "missing");
    assert!(!scratch.0.join("forebay-data").exists());
}

#[test]
fn catalogue_has_json() {
    let scratch = Scratch::new("catalogue");
    let text = scratch.run("simulate --list --json");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["version"], &json["command"]), (&1.into(), &"simulate --list".into()));
    let devices = json["devices"].as_array().unwrap();
    // Two lines below the table explain its marks.
    let table = scratch.run("simulate --list");
    let is_listed = |device: &serde_json::Value| {
        let name = device["id"].as_str().unwrap();
        table.lines().any(|line| line.split_whitespace().next() == Some(name))
    };
    assert!(devices.len() > 50 && devices.iter().all(is_listed), "{table}");
    assert!(devices.iter().all(|device| device["facts"]["medium"].is_string()));
    scratch.refused("simulate --show intel-320-40gb --json", 2, "--list --json");
}

#[test]
fn empty_state_lists_nothing() {
    let scratch = Scratch::new("empty");
    assert_eq!(text(&scratch.forebay("pool list")), "no pools available\n");
    assert_eq!(text(&scratch.forebay("pool list -H")), "");
    assert_eq!(text(&scratch.forebay("pool status")), "no pools available\n");
    assert_eq!(text(&scratch.forebay("volume list")), "no volumes available\n");
    assert_eq!(text(&scratch.forebay("pool iostat")), "no pools available\n");
    let json = text(&scratch.forebay("pool list --json"));
    assert_eq!(
        json.split_whitespace().collect::<String>(),
        "{\"version\":1,\"command\":\"poollist\",\"pools\":[],\"unavailable\":[]}"
    );
    let mode = std::fs::metadata(scratch.state()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn closed_pipe_ends_command_without_message() {
    let scratch = Scratch::new("pipe");
    for words in ["completions bash", "simulate --list --json", "simulate --list"] {
        // The reader is gone before the first byte, so that no buffer of the pipe hides it.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_forebay"))
            .args(words.split(' '))
            .env("FOREBAY_STATE_DIR", scratch.state())
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
    }
}

#[test]
fn output_that_was_closed_at_the_start_is_a_failure() {
    let scratch = Scratch::with_devices("no-stdout", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 16M tank/vol0");
    let without_stdout = |words: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" >&-", env!("CARGO_BIN_EXE_forebay")]);
        shell.args(words.split(' ')).env("FOREBAY_STATE_DIR", scratch.state());
        shell.current_dir(&scratch.0).output().unwrap()
    };
    let silent = without_stdout("volume snapshot tank/vol0@a");
    assert!(silent.status.success(), "it prints nothing: {silent:?}");
    let words = ["volume send tank/vol0@a", "pool list", "simulate --list", "man", "pool --help"];
    for words in words {
        let output = without_stdout(words);
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {line}");
        assert!(line.contains("standard output: Bad file descriptor"), "{words}: {line}");
    }
}

#[test]
fn man_pages_cover_every_command() {
    let scratch = Scratch::new("pages");
    let said = text(&scratch.forebay("man pages"));
    let pages: Vec<String> = std::fs::read_dir(scratch.0.join("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(said.contains(&format!("{} pages", pages.len())), "{said}");
    for page in ["forebay.1", "forebay-up.1", "forebay-pool-create.1", "forebay-volume-resize.1"] {
        assert!(pages.iter().any(|p| p == page), "{page} is missing among {pages:?}");
    }
    assert!(text(&scratch.forebay("man")).contains(".TH forebay 1"));
    let create = std::fs::read_to_string(scratch.0.join("pages/forebay-pool-create.1")).unwrap();
    for part in ["[OPTIONS] <POOL> <VDEV>...", ".SH EXAMPLES\n", ".BR forebay\\-pool (1)"] {
        assert!(create.contains(part), "no '{part}' in\n{create}");
    }
    for part in [".SH \"EXIT STATUS\"", ".SH ENVIRONMENT", ".SH FILES", "forebay\\-properties (7)"]
    {
        assert!(create.contains(part), "no '{part}' in\n{create}");
    }
    let properties = scratch.0.join("pages/forebay-properties.7");
    let properties = std::fs::read_to_string(properties).unwrap();
    assert!(properties.contains("\\fBtxg_timeout\\fR="), "{properties}");
    assert!(text(&scratch.forebay("volume set --help")).contains("\n  reservation "));
}
