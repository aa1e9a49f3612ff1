//! Mishaps of an operator: refused imports, moved devices, unlike groups, taken ports, interrupted
//! commands.

mod common;

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};

use common::{Scratch, Server};

const MIB: u64 = 1 << 20;

/// Hashes of the files that are there.
fn hashes(scratch: &Scratch, files: &[&str]) -> BTreeMap<String, String> {
    let there = files.iter().filter(|file| scratch.0.join(file).exists());
    let output = Command::new("sha256sum").args(there).current_dir(&scratch.0).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let pair = |line: &str| line.split_once("  ").map(|(hash, name)| (name.into(), hash.into()));
    text.lines().filter_map(pair).collect()
}

/// A pool that was being served when its server was killed.
fn killed(scratch: &Scratch, create: &str) {
    scratch.run(create);
    scratch.run("volume create -V 16M tank/vol0");
    let server = scratch.server("serve tank");
    let uri = scratch.uri("tank/vol0");
    scratch.run(&format!("bench nbd {uri} --overwrite --fua --seconds 1 --json"));
    server.kill();
}

#[test]
fn refused_import_changes_no_device() {
    const FILES: [&str; 6] = ["d0", "d1", "d2", "d3", "l0", "l1"];
    let scratch = Scratch::with_devices("refused", &FILES);
    killed(&scratch, "pool create tank raidz1 d0 d1 d2 d3 log mirror l0 l1");
    let refused = |gone: &[&str], words: &[&str], hint: &str| {
        scratch.hide(gone);
        let before = hashes(&scratch, &FILES);
        assert_eq!(before.len(), FILES.len() - gone.len());
        for words in words {
            scratch.refused(words, 1, hint);
        }
        if words.contains(&"serve tank") {
            let text = scratch.unavailable("pool status tank", hint);
            for (at, file) in FILES.iter().enumerate() {
                let state = if gone.contains(file) { "UNAVAIL" } else { "ONLINE" };
                let line = text.lines().find(|line| line.contains(&format!("/{file} ")));
                assert!(line.is_some_and(|line| line.contains(state)), "{at}:\n{text}");
            }
        }
        assert_eq!(hashes(&scratch, &FILES), before, "{words:?}");
        scratch.show(gone);
    };
    // As a known pool, by every command, and as a pool that is searched for.
    let known = ["serve tank", "pool export tank", "pool import -F tank", "volume list tank"];
    refused(&["d0", "d1"], &known, "needs 3 of them");
    refused(&["l0", "l1"], &known, "its log device is missing");
    std::fs::rename(scratch.state(), scratch.0.join("state")).unwrap();
    refused(&["d0", "d1"], &["pool import -d . tank", "pool import -f -d . tank"], "needs 3");
    refused(&["l0", "l1"], &["pool import -d . tank"], "its log device is missing");
    std::fs::remove_dir_all(scratch.state()).unwrap();
    std::fs::rename(scratch.0.join("state"), scratch.state()).unwrap();
    // What was said about -m holds for a pool that is known, too.
    scratch.hide(&["l0", "l1"]);
    scratch.run("pool import -m tank");
    let status = scratch.run("pool status tank");
    assert!(status.contains("FAULTED"), "{status}");
    assert!(scratch.run("pool scrub tank").contains("with 0 errors"));
    scratch.show(&["l0", "l1"]);
    scratch.run("pool remove tank mirror-1");
    scratch.run("pool add -f tank log mirror l0 l1");
    assert_eq!(scratch.run("pool list -H -o health"), "ONLINE\n");
    // Exported, nothing is lost without the log, and it is asked for all the same.
    scratch.run("pool export tank");
    refused(&["l0", "l1"], &["pool import -d . tank"], "no data is lost with it");
    scratch.hide(&["l0", "l1"]);
    let listed = scratch.run("pool import -d .");
    assert!(listed.contains("import with -m"), "{listed}");
    scratch.run("pool import -m -d . tank");
    scratch.run("pool destroy tank");
}

#[test]
fn old_half_of_known_pool_is_refused() {
    const FILES: [&str; 2] = ["d0", "d1"];
    let scratch = Scratch::with_devices("halves", &FILES);
    scratch.run("pool create tank mirror d0 d1");
    scratch.hide(&["d1"]);
    // The other half is changed alone, and then is missing.
    scratch.run("volume create -V 16M tank/vol0");
    assert_eq!(scratch.run("volume list -H -o name"), "tank/vol0\n");
    scratch.show(&["d1"]);
    scratch.hide(&["d0"]);
    let before = hashes(&scratch, &FILES);
    for words in ["volume list tank", "serve tank", "pool import -m tank"] {
        scratch.refused(words, 1, "may hold newer data");
    }
    assert_eq!(hashes(&scratch, &FILES), before);
    scratch.show(&["d0"]);
    assert_eq!(scratch.run("volume list -H -o name"), "tank/vol0\n");
    scratch.run("pool resilver -w tank");
    // With -f the import goes back to the old half.
    scratch.hide(&["d1"]);
    scratch.run("pool import -f tank");
    scratch.run("pool status tank");
}

#[test]
fn stale_side_is_reported_when_other_side_is_missing() {
    let scratch = Scratch::new("behind");
    // Several segments: a command that opens the pool resilvers one of them at most.
    ["d0", "d1"].iter().for_each(|file| scratch.file(file, 512 * MIB));
    // Each command that opens the pool resilvers it for a while: the rate keeps that short.
    scratch.run("pool create -o scan_rate=1M tank mirror d0 d1");
    scratch.run("volume create -V 200M tank/vol0");
    loop {
        scratch.hide(&["d0"]);
        let server = scratch.server("serve tank");
        let uri = scratch.uri("tank/vol0");
        let load = "--overwrite --pattern sequential --block-size 1M --count 160 --json";
        scratch.run(&format!("bench nbd {uri} {load}"));
        server.interrupt();
        // It comes back stale, and the other side is hidden before the resilver is done.
        scratch.show(&["d0"]);
        let status = scratch.run("pool status tank");
        let is_behind =
            ["(awaiting resilver)", "(resilvering)"].iter().any(|word| status.contains(word));
        assert!(status.contains("/d0  ONLINE") && is_behind, "{status}");
        scratch.hide(&["d1"]);
        if !scratch.forebay("volume list tank").status.success() {
            break;
        }
        // The resilver has rebuilt the segment with the map already, which an import needs.
        scratch.show(&["d1"]);
        scratch.run("pool set scan_rate=1T tank");
        scratch.run("pool resilver -w tank");
        scratch.run("pool set scan_rate=1M tank");
    }
    scratch.refused("volume list tank", 1, "behind the others, and not rebuilt yet: ");
    // It lacks the map, or only data if the segment with the map was rebuilt: two hints.
    let text = scratch.unavailable("pool status tank", "/d0; bring");
    let ends = |device: &str, state: &str| {
        text.lines().any(|line| line.contains(device) && line.ends_with(state))
    };
    assert!(ends("/d0 ", "(awaiting resilver)") && ends("/d1 ", "UNAVAIL   (missing)"), "{text}");
    scratch.show(&["d1"]);
    scratch.run("pool set scan_rate=1T tank");
    scratch.run("pool resilver -w tank");
    assert_eq!(scratch.run("pool list -H -o health"), "ONLINE\n");
}

#[test]
fn known_pool_is_found_where_its_devices_moved() {
    let scratch = Scratch::with_devices("moved", &["d0", "d1", "l0"]);
    scratch.run("pool create tank mirror d0 d1 log l0");
    scratch.refused("pool import -d . tank", 1, "'forebay serve tank' serves it");
    scratch.hide(&["d0", "d1", "l0"]);
    scratch.unavailable("pool status tank", "none of the devices of 'tank'");
    scratch.refused("pool import -d . tank", 1, "name the folder of its devices with -d");
    scratch.run("pool import -d hidden tank");
    assert!(scratch.run("pool status tank").contains("/hidden/l0"));
    let server = scratch.server("serve tank");
    scratch.refused("pool import -F tank", 1, "served by process");
    assert!(server.interrupt().success());
}

#[test]
fn disks_that_swapped_names_with_another_pool_are_found() {
    let scratch = Scratch::with_devices("swapped", &["d0", "d1", "d3"]);
    for (pool, devices) in [("one", "mirror d0 d3"), ("two", "d1")] {
        scratch.run(&format!("pool create {pool} {devices}"));
        scratch.run(&format!("volume create -V 16M {pool}/of-{pool}"));
    }
    let swap = || {
        for (from, to) in [("d0", "d2"), ("d1", "d0"), ("d2", "d1")] {
            std::fs::rename(scratch.0.join(from), scratch.0.join(to)).unwrap();
        }
    };
    swap();
    let whole = || {
        for pool in ["one", "two"] {
            let volumes = scratch.run(&format!("volume list -H -o name {pool}"));
            assert_eq!(volumes, format!("{pool}/of-{pool}\n"));
            assert_eq!(scratch.run(&format!("pool list -H -o health {pool}")), "ONLINE\n");
        }
    };
    whole();
    // In one process, which has one of them open when it comes to the other.
    swap();
    let server = scratch.server("serve");
    whole();
    assert!(server.interrupt().success());
    swap();
    scratch.run("pool import -d . one");
    whole();
    scratch.refused("pool import -d . one", 1, "imported already");
    scratch.refused("pool import one", 1, "imported already");
}

#[test]
fn pool_without_devices_can_be_forgotten() {
    let scratch = Scratch::with_devices("gone", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.hide(&["d0"]);
    for words in ["volume list tank", "pool export tank", "pool destroy -f tank"] {
        scratch.refused(words, 1, "'forebay pool export -f tank'");
    }
    let text = scratch.unavailable("pool status -x", "'forebay pool export -f tank'");
    assert!(text.lines().any(|line| line.ends_with("/d0  UNAVAIL   (missing)")), "{text}");
    let json: serde_json::Value =
        serde_json::from_slice(&scratch.forebay("pool status --json").stdout).unwrap();
    assert_eq!(json["unavailable"][0]["name"], "tank");
    assert_eq!(json["unavailable"][0]["groups"][0]["state"], "UNAVAIL");
    let output = scratch.forebay("pool export -f tank");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no longer known"));
    assert_eq!(scratch.run("pool list -H"), "");
    scratch.show(&["d0"]);
    scratch.run("pool import -d . tank");
}

#[test]
fn unlike_groups_need_force() {
    let scratch = Scratch::with_devices("alike", &["d0", "d1", "d2", "d3", "d4"]);
    let mixed = "pool create tank mirror d0 d1 raidz1 d2 d3 d4";
    scratch.refused(mixed, 1, "groups of different kinds (mirror, raidz1)");
    scratch.refused("pool create tank mirror d0 d1 mirror d2 d3 d4", 1, "one group would survive");
    scratch.run("pool create tank mirror d0 d1");
    scratch.refused("pool add tank d2", 1, "groups of different kinds (raid0, mirror)");
    scratch.refused("pool add tank raidz1 d2 d3 d4", 1, "use -f");
    scratch.run("pool add -f tank raidz1 d2 d3 d4");
    scratch.refused("pool remove tank mirror-7", 1, "has no device or group 'mirror-7'");
    scratch.refused("pool remove tank raidz1-1", 1, "raidz1-1 is a group of data devices");
    scratch.refused("pool detach tank d2", 1, "/d2 is part of a raidz1");
    scratch.run("pool offline tank d0");
    scratch.refused("pool offline tank d1", 1, "/d1 is needed");
    scratch.run("pool clear tank");
    scratch.refused("pool clear tank d9", 1, "has no device");
    assert_eq!(scratch.run("pool list -H -o health"), "DEGRADED\n", "offline is no error");
}

#[test]
fn side_of_mirrored_log_is_detached_not_removed() {
    let scratch = Scratch::with_devices("sides", &["d0", "l0", "l1"]);
    scratch.run("pool create tank d0 log mirror l0 l1");
    scratch.refused("pool remove tank l0", 1, "'forebay pool detach tank");
    assert!(scratch.run("pool status tank").contains("mirror-1"));
    scratch.run("pool detach tank l0");
    scratch.run("pool attach tank l1 l0");
    assert!(scratch.run("pool status tank").contains("mirror-1"));
}

#[test]
fn scrub_is_shown_at_once_and_after_restart() {
    let scratch = Scratch::with_devices("scrubbed", &["d0", "d1"]);
    scratch.run("pool create tank mirror d0 d1");
    assert!(!scratch.run("pool status tank").contains("scan:"));
    let server = scratch.server("serve tank");
    scratch.run("pool scrub tank");
    assert!(scratch.run("pool status tank").contains("scan: scrub"));
    scratch.run("pool resilver -w tank");
    assert!(server.interrupt().success());
    let status = scratch.run("pool status tank");
    assert!(status.contains("scan: "), "{status}");
}

#[test]
fn taken_port_leaves_pool_closed() {
    let scratch = Scratch::with_devices("ports", &["d0", "d1"]);
    scratch.run("pool create one d0");
    scratch.run("pool create two d1");
    let first = scratch.server("serve one --listen tcp:127.0.0.1:0");
    let hello = scratch.run("pool list -H -o name");
    assert_eq!(hello, "one\ntwo\n");
    let port = port_of(&first);
    scratch.refused_late(&format!("serve two --listen tcp:127.0.0.1:{port}"), "another server");
    assert_eq!(scratch.run("pool list -H -o name,health two"), "two\tONLINE\n");
    assert!(first.interrupt().success());
}

/// The TCP port that a server listens on, as the kernel has it.
fn port_of(server: &Server) -> u16 {
    let listening = server.said.iter().find_map(|line| line.strip_prefix("listening on tcp:"));
    listening.and_then(|address| address.rsplit(':').next()?.parse().ok()).expect("it said so")
}

#[test]
fn refused_or_interrupted_up_leaves_nothing() {
    let scratch = Scratch::with_devices("up-ends", &[]);
    let server = scratch.server("up --size 64M --dir first --listen unix:a.sock");
    scratch.refused("up --size 64M --dir second --listen unix:b.sock", 1, "is known already");
    assert!(!scratch.0.join("second").exists());
    assert!(server.interrupt().success());
    // Interrupted while it writes its log files.
    let other = Scratch::new("up-cut");
    let mut up = other.command("up --size 8G --dir made --listen unix:c.sock");
    let mut child = other.spawn(up.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut said = String::new();
    let mut out = child.stdout.take().unwrap();
    while !said.contains("through once") {
        let mut chunk = [0u8; 4096];
        let got = out.read(&mut chunk).unwrap();
        assert!(got > 0, "it ended early, after\n{said}");
        said.push_str(&String::from_utf8_lossy(&chunk[..got]));
    }
    child.signal("-INT");
    let mut line = String::new();
    child.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{line}");
    assert!(line.contains("run it again"), "{line}");
    let left: Vec<_> = std::fs::read_dir(other.0.join("made")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(other.run("pool list -H"), "");
}

#[test]
fn stopping_server_names_sender_of_signal() {
    let scratch = Scratch::with_devices("asked", &["d0"]);
    scratch.run("pool create tank d0");
    let mut server = scratch.server("serve tank");
    let status = Command::new("sh")
        .args(["-c", &format!("echo $$; exec kill -TERM {}", server.pid())])
        .output()
        .unwrap();
    let sender = String::from_utf8(status.stdout).unwrap();
    let said = server.read_until("stopping").pop().unwrap();
    assert!(said.contains(&format!("SIGTERM of process {}", sender.trim())), "{said}");
}

#[test]
fn repeated_signal_counts_once() {
    let scratch = Scratch::with_devices("double", &["d0"]);
    scratch.run("pool create tank d0");
    for round in 0..20 {
        let server = scratch.server("serve tank --listen unix:s.sock");
        let pid = server.pid();
        // As timeout(1) does it: to the process, and again to its group.
        let twice = format!("kill -INT {pid}; kill -TERM {pid}");
        Command::new("sh").args(["-c", &twice]).status().unwrap();
        let ended = server.wait();
        assert_eq!(ended.code(), Some(0), "round {round}: {ended}");
    }
}

#[test]
fn hangup_of_process_does_not_end_server_without_terminal() {
    let scratch = Scratch::with_devices("hangup", &["d0"]);
    scratch.run("pool create tank d0");
    let mut server = scratch.server_without_terminal("serve tank --listen unix:s.sock");
    server.signal("-HUP");
    server.signal("-TERM");
    let said = server.read_until("stopping").pop().unwrap();
    assert!(said.contains("SIGTERM of process"), "{said}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn long_wait_is_shown_on_terminal() {
    if !Command::new("script").arg("--version").output().is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: 'script' (bsdutils) makes the terminal");
        return;
    }
    let scratch = Scratch::with_devices("long", &["d0"]);
    scratch.run("pool create tank d0");
    let server = scratch.server("serve tank --listen unix:s.sock");
    // A stopped server: a command that asks it something waits.
    server.signal("-STOP");
    let binary = env!("CARGO_BIN_EXE_forebay");
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", &format!("{binary} pool list -H -o name"), "/dev/null"]);
    terminal.env("FOREBAY_STATE_DIR", scratch.state()).current_dir(&scratch.0);
    let mut child = scratch.spawn(terminal.stdin(Stdio::null()).stdout(Stdio::piped()));
    let mut out = child.stdout.take().unwrap();
    let mut said = String::new();
    let mut more = |said: &mut String| {
        let mut chunk = [0u8; 4096];
        let got = out.read(&mut chunk).unwrap();
        said.push_str(&String::from_utf8_lossy(&chunk[..got]));
        got > 0
    };
    let waiting = format!("waiting for the server (process {}): 00:00:0", server.pid());
    while !said.contains(&waiting) {
        assert!(more(&mut said), "it ended without a word of waiting: {said}");
    }
    server.signal("-CONT");
    while more(&mut said) {}
    assert!(said.ends_with("tank\r\n"), "and then the answer: {said:?}");
    assert!(child.finish().status.success());
    assert!(server.interrupt().success());
}

/// Bytes that a file takes on its file system.
fn taken_bytes(scratch: &Scratch, file: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(scratch.0.join(file)).unwrap().blocks() * 512
}

/// Runs a command, interrupts it when it has begun to fill `file`, and gives what it said.
fn interrupted(scratch: &Scratch, words: &str, file: &str) -> String {
    let before = taken_bytes(scratch, file);
    let mut child = scratch.spawn(scratch.command(words).stderr(Stdio::piped()));
    while taken_bytes(scratch, file) < before + 16 * MIB {
        assert!(child.try_wait().unwrap().is_none(), "{words} ended early");
        #[allow(clippy::disallowed_methods, reason = "another process is waited for")]
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.signal("-INT");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{words}: {said}");
    assert_eq!(said.matches('\n').count(), 1, "{words}: {said}");
    said
}

#[test]
fn interrupt_while_log_is_written_leaves_devices_unchanged() {
    // More than can be written before the signal arrives.
    const LOG: u64 = 16 << 30;
    /// What is left of a device that was cleared: zeros where labels were.
    const LITTLE: u64 = 4 * MIB;
    let scratch = Scratch::with_devices("cut", &["d0", "d1", "old"]);
    for log in ["l0", "l1"] {
        scratch.file(log, LOG);
    }
    scratch.run("pool create other old");
    scratch.run("pool export other");
    let before = hashes(&scratch, &["d0", "old"]);
    for words in ["pool create tank d0 log l0", "pool create -f tank old log mirror l0 l1"] {
        let said = interrupted(&scratch, words, "l0");
        assert!(said.contains("interrupted: no pool has changed"), "{said}");
        assert!(taken_bytes(&scratch, "l0") <= LITTLE && taken_bytes(&scratch, "l1") <= LITTLE);
    }
    assert_eq!(hashes(&scratch, &["d0", "old"]), before, "the data devices were not touched");
    assert_eq!(scratch.run("pool list -H"), "");
    scratch.run("pool import -d old other");
    scratch.run("pool create tank d0 log d1");
    for words in ["pool add tank log l0", "pool attach tank d1 l0"] {
        let said = interrupted(&scratch, words, "l0");
        assert!(said.contains("interrupted: no pool has changed"), "{said}");
        assert!(taken_bytes(&scratch, "l0") <= LITTLE, "{words}");
        assert_eq!(scratch.run("pool list -H -o health tank"), "ONLINE\n");
        assert!(!scratch.run("pool status tank").contains("l0"));
    }
    // A server goes on with the request of an interrupted command; told to stop, it gives it up.
    let server = scratch.server("serve tank --listen unix:s.sock");
    let said = interrupted(&scratch, "pool add tank log l0", "l0");
    assert!(said.contains("goes on with it"), "{said}");
    assert!(server.interrupt().success());
    assert!(taken_bytes(&scratch, "l0") <= LITTLE);
    assert!(!scratch.run("pool status tank").contains("l0"));
}

#[test]
fn diverged_halves_need_keep() {
    let scratch = Scratch::with_devices("apart", &["d0", "d1"]);
    scratch.run("pool create tank mirror d0 d1");
    for (gone, volume) in [("d1", "first"), ("d0", "second")] {
        scratch.hide(&[gone]);
        scratch.run("pool import -f tank");
        scratch.run(&format!("volume create -V 16M tank/{volume}"));
        scratch.show(&[gone]);
    }
    for words in ["pool list tank", "serve tank", "pool import -f tank"] {
        scratch.refused(words, 1, "pool import --keep");
    }
    scratch.unavailable("pool status tank", "pool import --keep");
    scratch.refused("pool import --keep d9 tank", 1, "d9 is no data device");
    scratch.run("pool import --keep d0 tank");
    assert_eq!(scratch.run("volume list -H -o name"), "tank/first\n");
    scratch.refused("pool online tank d1", 1, "'forebay pool replace tank");
    scratch.run("pool replace -w tank d1");
    assert_eq!(scratch.run("pool list -H -o health"), "ONLINE\n");
    scratch.hide(&["d0"]);
    scratch.run("pool import -f tank");
    assert_eq!(scratch.run("volume list -H -o name"), "tank/first\n");
}

/// Writes 16 MiB to a volume of the pool `tank`, which is not served before and after.
fn fill(scratch: &Scratch) {
    scratch.run("volume create -V 20M tank/vol0");
    let server = scratch.server("serve tank");
    let uri = scratch.uri("tank/vol0");
    let load = "--overwrite --pattern sequential --block-size 1M --count 16 --json";
    scratch.run(&format!("bench nbd {uri} {load}"));
    assert!(server.interrupt().success());
}

#[test]
fn interrupted_scrub_stays_paused() {
    let scratch = Scratch::with_devices("paused", &["d0", "d1"]);
    scratch.run("pool create tank mirror d0 d1");
    fill(&scratch);
    scratch.run("pool set scan_rate=1M tank");
    let mut child = scratch.spawn(scratch.command("pool scrub tank").stderr(Stdio::piped()));
    let mut stderr = child.stderr.take().unwrap();
    let mut said = [0u8; 64];
    stderr.read_exact(&mut said).unwrap();
    child.signal("-INT");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{rest}");
    assert!(rest.contains("the scrub of 'tank' is paused"), "{rest}");
    let scan = || {
        let status: serde_json::Value =
            serde_json::from_str(&scratch.run("pool status --json tank")).unwrap();
        status["pools"][0]["scan"].clone()
    };
    let before = scan();
    assert_eq!((&before["kind"], &before["state"]), (&"scrub".into(), &"paused".into()));
    scratch.run("volume list tank");
    assert_eq!(scan(), before, "no command goes on with it");
    scratch.run("pool set scan_rate=1T tank");
    assert!(scratch.run("pool scrub tank").contains("scrub repaired"));
    assert_eq!(scan()["state"], "completed");
}

#[test]
fn importable_pool_shows_its_replacement() {
    let scratch = Scratch::with_devices("replacing", &["d0", "d1", "d2"]);
    scratch.run("pool create -o scan_rate=1M tank mirror d0 d1");
    fill(&scratch);
    scratch.run("pool replace tank d1 d2");
    scratch.run("pool export tank");
    let found = scratch.run("pool import -d .");
    for word in ["replacing-1", "/d1 ", "/d2 "] {
        assert!(found.contains(word), "no '{word}' in\n{found}");
    }
}

#[test]
fn missing_device_shows_its_reason() {
    let scratch = Scratch::with_devices("reasons", &["d0", "d1"]);
    scratch.run("pool create tank mirror d0 d1");
    scratch.hide(&["d1"]);
    let status = |reason: &str| {
        let text = scratch.run("pool status tank");
        assert!(text.lines().any(|l| l.contains("/d1 ") && l.ends_with(reason)), "{text}");
    };
    status("(missing)");
    scratch.file("d1", 64 * MIB);
    status("(no label of a pool)");
    scratch.run("pool create other d1");
    status("(label of pool 'other')");
}

#[test]
fn doctor_looks_at_pools_that_are_served_or_not() {
    let scratch = Scratch::with_devices("doctor", &["d0", "d1", "l0"]);
    scratch.run("pool create tank mirror d0 d1 log l0");
    let looked_at = |scratch: &Scratch| {
        let output = scratch.forebay("doctor --json tank l0");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let worst = found["worst"].as_str().unwrap().to_owned();
        // The machine that runs this test may have its flaws.
        assert_eq!(output.status.success(), matches!(worst.as_str(), "ok" | "advice"), "{found}");
        let findings = found["findings"].as_array().unwrap().clone();
        findings.iter().map(|f| f["subject"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let path = |name: &str| scratch.0.join(name).display().to_string();
    let wanted =
        [format!("data {}", path("d1")), format!("log {}", path("l0")), "device l0".into()];
    let before = scratch.run("pool history tank");
    for served in [false, true] {
        let server = served.then(|| scratch.server("serve tank"));
        let subjects = looked_at(&scratch);
        assert!(wanted.iter().all(|subject| subjects.contains(subject)), "{subjects:?}");
        drop(server);
    }
    assert_eq!(scratch.run("pool history tank"), before, "it leaves no trace");
    scratch.refused("doctor ./nothing", 1, "no such device");
    scratch.refused("doctor nothing", 1, "no pool named 'nothing' is known");
}
