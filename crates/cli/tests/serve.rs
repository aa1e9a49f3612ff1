//! The binary on real files: pools with and without a server, clients, signals, crashes.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
// A client that shares no code with the server.
#[allow(clippy::disallowed_types, reason = "the test is a foreign client")]
use std::os::unix::net::UnixStream;

use common::Scratch;
use forebay_device::{BlockDevice, IoBuf};
use forebay_nbd::Client;
use forebay_rt::Runtime;

const MIB: u64 = 1 << 20;

fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    for file in ["d0", "d1", "d2", "d3", "l0", "l1"] {
        scratch.file(file, 256 * MIB);
    }
    scratch
}

const CREATE: &str = "pool create tank raidz1 d0 d1 d2 d3 log mirror l0 l1";

/// A block whose every byte is `fill`.
fn block(fill: u8) -> IoBuf {
    IoBuf::copy_of(&[fill; 4096])
}

/// Writes one block for each of `fills`, each durable before the next.
fn write_blocks(uri: &str, fills: std::ops::Range<u8>) {
    let uri = uri.to_owned();
    Runtime::real().unwrap().block_on(async move {
        let client = Client::connect(&uri).await.unwrap();
        for fill in fills {
            client.write(u64::from(fill) * 4096, block(fill).freeze(), true).await.unwrap();
        }
    });
}

fn check_blocks(uri: &str, fills: std::ops::Range<u8>) {
    let uri = uri.to_owned();
    Runtime::real().unwrap().block_on(async move {
        let client = Client::connect(&uri).await.unwrap();
        for fill in fills {
            let read = client.read(u64::from(fill) * 4096, IoBuf::zeroed(4096)).await.unwrap();
            assert!(read.iter().all(|byte| *byte == fill), "block {fill} is another one");
        }
    });
}

#[test]
fn pool_works_without_server() {
    let scratch = scratch("offline");
    assert_eq!(scratch.run(CREATE), "", "as zpool: nothing to say");
    assert!(scratch.run("pool list -H -o name,health").starts_with("tank\tONLINE"));
    let status = scratch.run("pool status");
    for word in ["  pool: tank", " state: ONLINE", "raidz1-0", "logs", "/l1", "No known data"] {
        assert!(status.contains(word), "no '{word}' in\n{status}");
    }
    scratch.run("volume create -V 64M -o sync=always tank/vol0");
    scratch.run("volume create -s -V 10G tank/thin");
    assert_eq!(
        scratch.run("volume list -Hp -o name,volsize,sync"),
        "tank/thin\t10737418240\tstandard\ntank/vol0\t67108864\talways\n"
    );
    scratch.run("volume set sync=disabled tank/vol0");
    assert_eq!(scratch.run("volume get -H sync tank/vol0"), "tank/vol0\tsync\tdisabled\tlocal\n");
    scratch.run("volume resize -V 128M tank/vol0");
    scratch.run("volume set volsize=256M tank/vol0");
    scratch.refused("volume resize -V 64M tank/vol0", 1, "-f");
    assert_eq!(scratch.run("volume list -Hp -o volsize tank/vol0"), "268435456\n");
    scratch.run("volume destroy tank/thin");
    scratch.run("pool set comment=lab tank");
    assert_eq!(scratch.run("pool get -H comment tank"), "tank\tcomment\tlab\tlocal\n");
    let history = scratch.run("pool history tank");
    for line in [CREATE, "volume create -V 64M -o sync=always tank/vol0", "pool set comment=lab"] {
        assert!(history.contains(&format!(" forebay {line}")), "no '{line}' in\n{history}");
    }
    let stats: serde_json::Value =
        serde_json::from_str(&scratch.run("pool stats --json tank")).unwrap();
    assert_eq!(stats["version"], 1);
    assert_eq!(stats["pools"][0]["name"], "tank");
}

#[test]
fn bad_input_is_one_line_and_changes_nothing() {
    let scratch = scratch("refusals");
    scratch.run(CREATE);
    scratch.file("d9", 64 * MIB);
    scratch.refused("pool create tank d9", 1, "exists already");
    scratch.refused("pool create other raidz1 d0 d1", 1, "-f");
    scratch.refused("pool create mirror d9", 1, "reserved");
    scratch.refused("pool create -o frob=1 other d9", 1, "frob");
    scratch.refused("pool create -o txg_timeout=0 other d9", 1, "txg_timeout");
    scratch.refused("pool set frob=1 tank", 1, "frob");
    scratch.refused("pool get frob tank", 1, "frob");
    scratch.refused("volume create -V 100T tank/vol0", 1, "");
    scratch.refused("volume create -V 64M -o sync=maybe tank/vol0", 1, "sync");
    scratch.refused("volume destroy tank/none", 1, "none");
    scratch.refused("volume list tank/none", 1, "none");
    scratch.refused("pool offline tank d9", 1, "d9");
    scratch.refused("pool replace tank /nowhere d9", 1, "/nowhere");
    scratch.refused("pool attach tank l0 d0", 1, "");
    scratch.refused("pool iostat tank 1", 1, "not being served");
    scratch.refused("attach tank/vol0 --json", 1, "start 'forebay serve tank'");
    scratch.refused("attach none/vol0", 1, "no pool named 'none'");
    scratch.refused("attach tank", 2, "name a volume as POOL/VOL");
    scratch.refused("detach tank/vol0 --json", 1, "'tank/vol0' is not attached");
    scratch.refused("detach /dev/null", 1, "is no device that a volume is attached as");
    assert_eq!(scratch.run("volume list -H"), "");
    assert_eq!(scratch.run("pool list -H -o name,health"), "tank\tONLINE\n");
    assert_eq!(std::fs::metadata(scratch.0.join("d9")).unwrap().blocks(), 0, "untouched");
}

#[test]
fn pool_is_exported_imported_and_destroyed() {
    let scratch = scratch("moves");
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    scratch.run("pool export tank");
    assert_eq!(scratch.run("pool list -H"), "");
    assert!(scratch.run("pool import -d .").contains("   pool: tank\n"));
    let found: serde_json::Value =
        serde_json::from_str(&scratch.run("pool import --json -d .")).unwrap();
    let guid = found["pools"][0]["guid"].as_u64().unwrap();
    // Elsewhere: under another path, by its number.
    std::fs::create_dir(scratch.0.join("moved")).unwrap();
    for file in ["d0", "d1", "d2", "d3", "l0", "l1"] {
        std::fs::rename(scratch.0.join(file), scratch.0.join("moved").join(file)).unwrap();
    }
    scratch.refused("pool import -d . tank", 1, "no pool 'tank' was found");
    scratch.run(&format!("pool import -d moved {guid}"));
    assert!(scratch.run("pool status").contains("/moved/d0"));
    scratch.refused("pool import -d moved tank", 1, "imported already");
    // A missing data device: degraded, and it says so. A missing log device: refused by name.
    std::fs::rename(scratch.0.join("moved/d1"), scratch.0.join("away")).unwrap();
    assert_eq!(scratch.run("pool list -H -o health"), "DEGRADED\n");
    assert!(scratch.run("pool status").contains("UNAVAIL"));
    std::fs::rename(scratch.0.join("away"), scratch.0.join("moved/d1")).unwrap();
    scratch.run("pool destroy tank");
    assert_eq!(scratch.run("pool list -H"), "");
    scratch.run("pool create other moved/d0 moved/d1");
}

#[test]
fn served_pool_is_reached_through_its_server() {
    let scratch = scratch("served");
    scratch.run(CREATE);
    let server = scratch.server("serve");
    let sockets: Vec<_> = std::fs::read_dir(scratch.state())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_str().unwrap().ends_with(".sock"))
        .collect();
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    for socket in sockets {
        assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o600, "{socket:?}");
    }
    scratch.run("volume create -V 64M tank/vol0");
    write_blocks(&scratch.uri("tank/vol0"), 1..9);
    let stats: serde_json::Value =
        serde_json::from_str(&scratch.run("pool stats --json tank")).unwrap();
    assert_eq!(stats["pools"][0]["since_import"]["fuas"]["count"], 8, "the server's own figures");
    assert_eq!(scratch.run("pool iostat -Hy tank 0.05 3").lines().count(), 3);
    scratch.refused("serve tank", 1, &format!("process {}", server.pid()));
    // Pools that are created later are served too; an exported pool is not served any more.
    scratch.file("e0", 64 * MIB);
    scratch.file("e1", 64 * MIB);
    scratch.run("pool create more mirror e0 e1");
    scratch.run("volume create -s -V 64M more/vol1");
    write_blocks(&scratch.uri("more/vol1"), 1..3);
    scratch.run("pool export more");
    scratch.run("pool import -d . more");
    check_blocks(&scratch.uri("more/vol1"), 1..3);
    scratch.run("pool destroy more");
    assert!(server.interrupt().success());
    assert!(!scratch.state().join("nbd.sock").exists(), "the socket goes with the server");
    // Without a server, the same words work here.
    assert_eq!(scratch.run("pool list -H -o name"), "tank\n");
    let server = scratch.server("serve tank");
    check_blocks(&scratch.uri("tank/vol0"), 1..9);
    assert!(server.end("-TERM").success());
}

/// Enters the transmission phase of `export` by hand, with the oldest of the options.
#[allow(clippy::disallowed_types, reason = "the test is a foreign client")]
fn enter(stream: &mut UnixStream, export: &str) {
    let mut greeting = [0u8; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT").unwrap();
    stream.write_all(&1u32.to_be_bytes()).unwrap();
    stream.write_all(&(export.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(export.as_bytes()).unwrap();
    let mut size_and_flags = [0u8; 10];
    stream.read_exact(&mut size_and_flags).unwrap();
}

#[test]
#[allow(clippy::disallowed_types, reason = "the test is a foreign client")]
fn volume_in_use_is_kept_unless_forced() {
    let scratch = scratch("in-use");
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    let server = scratch.server("serve");
    let uri = scratch.uri("tank/vol0");
    let scratch = std::rc::Rc::new(scratch);
    let held = scratch.clone();
    Runtime::real().unwrap().block_on(async move {
        let client = Client::connect(&uri).await.unwrap();
        client.write(0, block(1).freeze(), true).await.unwrap();
        let me =
            format!("'tank' is busy: clients hold tank/vol0 by process {}", std::process::id());
        held.refused("pool export tank", 1, &me);
        held.refused("pool destroy tank", 1, &me);
        held.refused("volume destroy tank/vol0", 1, "'tank/vol0' is busy");
        client.write(0, block(2).freeze(), true).await.unwrap();
        // Forced, the volume goes, and the client is told.
        held.run("volume destroy -f tank/vol0");
        assert!(client.write(0, block(3).freeze(), true).await.is_err());
        held.run("volume create -V 64M tank/vol0");
        let again = Client::connect(&uri).await.unwrap();
        let read = again.read(0, IoBuf::zeroed(4096)).await.unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "a new volume is empty");
        // Forced, the pool goes, and the connection with it: the client sees its end.
        let mut raw = UnixStream::connect(held.state().join("nbd.sock")).unwrap();
        enter(&mut raw, "tank/vol0");
        held.run("pool export -f tank");
        assert_eq!(raw.read_to_end(&mut Vec::new()).unwrap(), 0, "the connection has ended");
        assert!(again.read(0, IoBuf::zeroed(4096)).await.is_err());
    });
    assert_eq!(scratch.run("pool list -H"), "");
    assert!(server.interrupt().success());
}

/// States by name in `pool status`.
fn states(scratch: &Scratch) -> std::collections::BTreeMap<String, String> {
    let status: serde_json::Value =
        serde_json::from_str(&scratch.run("pool status --json tank")).unwrap();
    fn walk(vdev: &serde_json::Value, out: &mut std::collections::BTreeMap<String, String>) {
        let name = vdev["name"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        out.insert(name, vdev["state"].as_str().unwrap().to_owned());
        vdev["children"].as_array().unwrap().iter().for_each(|child| walk(child, out));
    }
    let mut out = std::collections::BTreeMap::new();
    let pool = &status["pools"][0];
    out.insert("tank".to_owned(), pool["state"].as_str().unwrap().to_owned());
    for list in ["groups", "logs"] {
        pool[list].as_array().unwrap().iter().for_each(|vdev| walk(vdev, &mut out));
    }
    out
}

/// Every change of devices, with and without a server: the words are the same.
fn change_devices(scratch: &Scratch) {
    let is = |name: &str, state: &str| {
        let all = states(scratch);
        assert_eq!(all.get(name).map(String::as_str), Some(state), "{name} in {all:#?}");
    };
    is("tank", "ONLINE");
    scratch.run("pool offline tank d1");
    is("d1", "OFFLINE");
    is("tank", "DEGRADED");
    scratch.refused("pool offline tank d2", 1, "");
    is("d2", "ONLINE");
    scratch.run("pool online tank d1");
    scratch.run("pool resilver -w tank");
    is("tank", "ONLINE");
    scratch.run("pool replace -w tank d2 d5");
    is("d5", "ONLINE");
    assert!(!states(scratch).contains_key("d2"));
    scratch.run("pool detach tank l1");
    assert!(!states(scratch).contains_key("l1"));
    scratch.run("pool attach -w -f tank l0 l1");
    is("l1", "ONLINE");
    scratch.run("pool remove tank mirror-1");
    assert!(!states(scratch).contains_key("l0"), "the log is in the pool now");
    scratch.run("pool add -f tank log mirror l0 l1");
    is("l0", "ONLINE");
    assert!(scratch.run("pool scrub -w tank").contains("with 0 errors"));
    scratch.run("pool replace -f -w tank d5 d2");
    is("d2", "ONLINE");
}

#[test]
#[allow(clippy::disallowed_types, reason = "the test is a foreign client")]
fn server_reports_why_it_disconnects_clients() {
    let scratch = scratch("away");
    scratch.run(CREATE);
    let server = scratch.spawn_logged(scratch.command("serve tank --listen unix:s.sock"));
    assert!(scratch.log_says(" info: ready: "));
    let mut stream = UnixStream::connect(scratch.0.join("s.sock")).unwrap();
    stream.write_all(&[0xff; 64]).unwrap();
    assert!(scratch.log_says("clients were disconnected: the owner: 1 for breaking the protocol$"));
    server.signal("-INT");
    assert!(server.finish().status.success());
}

#[test]
fn messages_under_the_journal_have_levels_and_no_time() {
    let scratch = scratch("journal");
    scratch.run(CREATE);
    let mut command = scratch.command("serve tank --listen unix:s.sock");
    scratch.file("journal", 0);
    let journal = scratch.0.join("journal");
    let meta = journal.metadata().unwrap();
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
    let stream = std::fs::OpenOptions::new().append(true).open(&journal).unwrap();
    let server = scratch.spawn(command.stdout(stream));
    let text = || std::fs::read_to_string(&journal).unwrap();
    while !text().contains("<6>ready: ") {
        #[allow(clippy::disallowed_methods, reason = "another process is waited for")]
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    server.signal("-INT");
    assert!(server.finish().status.success());
    assert!(text().lines().all(|line| line.starts_with("<6>")), "{}", text());
}

#[test]
fn devices_change_without_a_server() {
    let scratch = scratch("change");
    scratch.file("d5", 256 * MIB);
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    change_devices(&scratch);
}

#[test]
fn devices_change_under_a_server_and_its_clients() {
    let scratch = scratch("change-served");
    scratch.file("d5", 256 * MIB);
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    let server = scratch.server("serve");
    let uri = scratch.uri("tank/vol0");
    write_blocks(&uri, 1..100);
    let mut load = scratch
        .command(&format!(
            "bench nbd {uri} --overwrite --fua --queue-depth 4 --span 32M --seconds 60 --json"
        ))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    change_devices(&scratch);
    // Interrupted, the load generator gives its figures: it had no error to the end.
    std::process::Command::new("kill").args(["-INT", &load.id().to_string()]).status().unwrap();
    let mut figures = String::new();
    load.stdout.take().unwrap().read_to_string(&mut figures).unwrap();
    assert!(load.wait().unwrap().success(), "{figures}");
    write_blocks(&uri, 100..120);
    assert!(server.interrupt().success());
    let server = scratch.server("serve");
    check_blocks(&uri, 100..120);
    assert!(server.interrupt().success());
    // What the load wrote is readable to the last block.
    let said = scratch.run("pool scrub tank");
    assert!(said.contains("with 0 errors"), "{said}");
    assert!(scratch.run("pool status").contains("No known data errors"));
}

#[test]
fn bench_nbd_writes_to_a_volume_only_with_overwrite() {
    let scratch = scratch("bench");
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    let server = scratch.server("serve");
    let uri = scratch.uri("tank/vol0");
    write_blocks(&uri, 1..100);
    scratch.refused(&format!("bench nbd {uri} --count 500"), 1, "--overwrite");
    scratch.refused(&format!("bench nbd {uri} --read-percent 99 --count 500"), 1, "of data there");
    check_blocks(&uri, 1..100);
    scratch.run(&format!("bench nbd {uri} --read-percent 100 --count 500"));
    check_blocks(&uri, 1..100);
    scratch.run(&format!("bench nbd {uri} --overwrite --count 500"));
    assert!(server.interrupt().success());
}

#[test]
fn durable_writes_survive_kill() {
    let scratch = scratch("kill");
    scratch.run(CREATE);
    scratch.run("volume create -V 64M tank/vol0");
    for round in 0..3 {
        let server = scratch.server("serve");
        let uri = scratch.uri("tank/vol0");
        check_blocks(&uri, 1..1 + round * 20);
        write_blocks(&uri, 1 + round * 20..21 + round * 20);
        server.kill();
    }
    // The sockets of killed servers do not disturb the next one.
    let server = scratch.server("serve");
    check_blocks(&scratch.uri("tank/vol0"), 1..61);
    assert!(server.interrupt().success());
    assert!(scratch.run("pool status").contains("No known data errors"));
}

#[test]
#[allow(clippy::disallowed_types, reason = "the test is a foreign client")]
fn broken_control_request_harms_its_connection_only() {
    let scratch = scratch("control");
    scratch.run(CREATE);
    let server = scratch.server("serve");
    let path = scratch.state().join(format!("control-{}.sock", server.pid()));
    let good = b"{\"version\":1,\"pool\":\"\",\"action\":{\"do\":\"hello\"}}";
    for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\0", b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\x05"] {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A reset is as good an end as any.
        let _ = stream.read_to_end(&mut answer);
    }
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(&(good.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(good).unwrap();
    let mut prefix = [0u8; 4];
    stream.read_exact(&mut prefix).unwrap();
    let mut body = vec![0u8; u32::from_be_bytes(prefix) as usize];
    stream.read_exact(&mut body).unwrap();
    let hello: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(hello["ok"]["hello"]["pid"], server.pid());
    assert_eq!(hello["ok"]["hello"]["pools"][0], "tank");
    drop(stream);
    assert!(server.interrupt().success());
}

#[test]
fn taken_and_exposed_listeners_are_refused() {
    let scratch = scratch("listen");
    scratch.run(CREATE);
    scratch.refused("serve --listen unix:d0", 1, "not a socket");
    scratch.refused("serve --listen unix:/nowhere/x.sock", 1, "cannot listen");
    let first = scratch.server("serve tank --listen unix:one.sock --listen tcp:127.0.0.1:0");
    scratch.file("e0", 64 * MIB);
    scratch.run("pool create more e0");
    scratch.refused("serve more --listen unix:one.sock", 1, "another server has it");
    assert!(first.interrupt().success());
    scratch.refused("serve tank --listen tcp:0.0.0.0:0", 2, "--plaintext");
    let exposed = scratch
        .command("serve tank --plaintext --listen tcp:0.0.0.0:0")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut exposed = exposed;
    // The time of the log, 24 characters, and the level.
    let mut warning = [0u8; 33];
    exposed.stderr.as_mut().unwrap().read_exact(&mut warning).unwrap();
    assert_eq!(&warning[24..], b" warning:");
    exposed.kill().unwrap();
    exposed.wait().unwrap();
}

#[test]
fn up_creates_pool_once_and_serves_it_again() {
    let scratch = Scratch::new("up");
    let words = "up --size 64M --listen unix:nbd.sock";
    let uri = format!("nbd+unix:///forebay/vol0?socket={}", scratch.0.join("nbd.sock").display());
    let mut child = scratch.command(words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut out = child.stdout.take().unwrap();
    while !said.contains("ready: ") {
        let mut chunk = [0u8; 4096];
        let got = out.read(&mut chunk).unwrap();
        assert!(got > 0, "it ended early, after\n{said}");
        said.push_str(&String::from_utf8_lossy(&chunk[..got]));
    }
    for word in ["nbdinfo", "qemu-img", "fio", "nbdfuse", "forebay/vol0", "log files through once"]
    {
        assert!(said.contains(word), "no '{word}' in\n{said}");
    }
    assert!(!said.contains('\x1b'), "no live line when it is no terminal");
    write_blocks(&uri, 1..9);
    child.kill().unwrap();
    child.wait().unwrap();
    let server = scratch.server(words);
    check_blocks(&uri, 1..9);
    scratch.refused(words, 1, "being served already");
    assert!(server.interrupt().success());
    assert_eq!(scratch.run("volume list -Hp -o name,volsize"), "forebay/vol0\t67108864\n");
    // A start that did not finish is begun again; it leaves nothing of the old pool behind.
    scratch.file("forebay-data/unfinished", 0);
    let server = scratch.server(words);
    check_blocks(&uri, 0..0);
    assert!(server.interrupt().success());
    assert!(!scratch.0.join("forebay-data/unfinished").exists());
    // Device files without a pool may be of any origin: they are left alone.
    let mine = Scratch::new("up-mine");
    std::fs::create_dir(mine.0.join("forebay-data")).unwrap();
    mine.file("forebay-data/data0.img", 64 * MIB);
    mine.refused(words, 1, "no pool was found on them");
    assert!(mine.0.join("forebay-data/data0.img").exists());
}
