//! Commands of a new user: lists with devices, fields for scripts, odd file names, several names
//! of one device, taken addresses, properties.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::process::Stdio;

use common::Scratch;

const MIB: u64 = 1 << 20;

#[test]
fn devices_are_listed_with_their_space() {
    let scratch = Scratch::with_devices("verbose", &["d0", "d1", "d2", "d3", "l0"]);
    scratch.run("pool create tank mirror d0 d1 mirror d2 d3 log l0");
    scratch.run("volume create -V 40M tank/vol0");
    let server = scratch.server("serve tank");
    let uri = scratch.uri("tank/vol0");
    scratch.run(&format!(
        "bench nbd {uri} --overwrite --pattern sequential --block-size 1M --count 40 --json"
    ));
    // The end of a group is the beginning of the next: an export in between is sure to commit.
    assert!(server.interrupt().success());
    let alloc = |line: &str| line.split('\t').nth(1).unwrap().parse::<u64>().unwrap();
    let text = scratch.run("pool list -Hpv -o name,alloc,free,health");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 9, "pool, two groups, four sides, logs, one log device:\n{text}");
    assert!(lines[1].starts_with("mirror-0\t") && lines[4].starts_with("mirror-1\t"), "{text}");
    assert!(lines[2].ends_with("/d0\t-\t-\tONLINE"), "{text}");
    assert_eq!(lines[7], "logs\t-\t-\t-");
    assert!(alloc(lines[0]) > 40 * MIB, "{text}");
    let groups = alloc(lines[1]) + alloc(lines[4]);
    assert!(groups.abs_diff(alloc(lines[0])) < MIB, "groups sum up to the pool:\n{text}");
    let json: serde_json::Value =
        serde_json::from_str(&scratch.run("pool list -v --json")).unwrap();
    let group = &json["pools"][0]["groups"][0];
    assert_eq!(group["raw_alloc_bytes"], alloc(lines[1]));
    assert_eq!(group["children"][0]["device_bytes"], 64 * MIB);
    assert!(scratch.run("pool list -v").contains("\n  mirror-0 "));
    let iostat = scratch.run("pool iostat -v -H -p");
    assert!(iostat.contains(&format!("\nmirror-0\t{}\t", alloc(lines[1]))), "{iostat}");
}

#[test]
fn scripts_get_chosen_fields_and_exact_numbers() {
    let scratch = Scratch::with_devices("fields", &["d0"]);
    assert_eq!(scratch.run("pool history"), "no pools available\n");
    assert_eq!(scratch.run("pool get all"), "no pools available\n");
    assert_eq!(scratch.run("volume get all"), "no volumes available\n");
    let json: serde_json::Value = serde_json::from_str(&scratch.run("pool iostat --json")).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), 0);
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 16M tank/thick");
    assert_eq!(scratch.run("pool get -H -o value health tank"), "ONLINE\n");
    assert_eq!(scratch.run("volume get -Hp -o name,value volsize"), "tank/thick\t16777216\n");
    scratch.refused("volume get -o frob volsize", 2, "name, property, value, source");
    scratch.refused("pool list -o name,", 2, "separated by single commas");
    let json = scratch.run("volume get --json volsize");
    assert!(json.contains("\"volsize\": \"16777216\""), "programs get exact numbers: {json}");
    // Space that is set aside for one volume is not available to another.
    let number = |words: &str| scratch.run(words).trim().parse::<u64>().unwrap();
    let usable = number("pool list -Hp -o usable");
    assert_eq!(number("pool list -Hp -o available"), usable - 16 * MIB);
    assert_eq!(number("pool get -Hp -o value available tank"), usable - 16 * MIB);
    let larger = usable.next_multiple_of(4096);
    scratch.refused(&format!("volume create -V {larger} tank/two"), 1, "make it smaller");
    // Without a server, what the command does to open the pool is not shown as traffic.
    let idle = scratch.forebay("pool iostat -Hp tank");
    assert!(common::text(&idle).ends_with("\t0\t0\t0\t0\n"), "{}", common::text(&idle));
    assert!(String::from_utf8_lossy(&idle.stderr).contains("'tank' is not being served"));
}

#[test]
fn wrong_fields_are_refused_before_a_pool_is_opened() {
    let scratch = Scratch::with_devices("fields", &["d0"]);
    for words in ["volume list -o WRONG", "volume list -s WRONG", "pool get -o WRONG all"] {
        scratch.refused(words, 2, "WRONG");
    }
    scratch.run("pool create tank d0");
    scratch.hide(&["d0"]);
    for words in [
        "pool list -o WRONG tank",
        "pool get -o WRONG all tank",
        "volume list -o name,WRONG tank",
        "volume list -S WRONG -t all tank",
        "volume get -o WRONG all tank",
        "pool list -o name,WRONG --json tank",
    ] {
        scratch.refused(words, 2, "WRONG");
    }
}

#[test]
fn wrong_name_among_several_changes_nothing() {
    let scratch = Scratch::with_devices("half", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 4M tank/vol0");
    scratch.refused("volume set sync=always tank/vol0 tank/none", 1, "tank/none");
    assert_eq!(scratch.run("volume get -H -o value sync tank/vol0"), "standard\n");
    scratch.refused("volume set volsize=1M tank/vol0", 1, "'forebay volume resize -f'");
    scratch.refused("volume create -V -1 tank/x", 2, "'-1' is not a size");
    scratch.refused("volume create -V 4097 tank/x", 1, "such as 8192");
    scratch.refused("volume destroy tank/x", 1, "'forebay volume list tank'");
    scratch.refused("pool set tank comment=x", 2, "for example comment=lab");
    scratch.refused("pool offline tank raidz1-0", 1, "no device or group 'raidz1-0'");
    for name in ["0", "1e5", "12"] {
        scratch.refused(&format!("pool create -f {name} d0"), 1, "begins with a letter");
    }
    scratch.refused("pool set comment=\u{1b}[31m tank", 1, "'\\u{1b}[31m' is no value");
}

#[test]
fn device_is_found_by_every_path_that_leads_to_it() {
    let scratch = Scratch::with_devices("names", &["d0", "d1", "d2"]);
    symlink("d0", scratch.0.join("link")).unwrap();
    scratch.run("pool create tank mirror link d1");
    scratch.run("pool offline tank d0");
    assert!(scratch.run("pool status tank").contains("/link  OFFLINE"));
    scratch.run("pool online -w tank d0");
    for words in ["pool attach -f tank d1 d0", "pool add -f tank d1", "pool replace -f tank d0 d1"]
    {
        scratch.refused(words, 1, "is part of 'tank' already");
    }
    scratch.run("pool replace -w tank d0 d2");
    assert!(!scratch.run("pool status tank").contains("/link"));
}

#[test]
fn path_may_have_any_characters() {
    let scratch = Scratch::with_devices("odd", &["d0"]);
    let odd = "new\nline\t\u{1b}[31m d1";
    scratch.file(odd, 64 * MIB);
    let mut create = scratch.command("pool create tank mirror d0");
    let output = create.arg(odd).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = "/new\\nline\\t\\u{1b}[31m d1";
    for words in ["pool status", "pool list -v", "pool iostat -v -H", "pool stats tank"] {
        let text = scratch.run(words);
        assert!(text.contains(shown) && !text.contains(odd), "{words}:\n{text}");
    }
    scratch.run("pool export tank");
    assert!(scratch.run("pool import -d .").contains(shown));
    scratch.run("pool import -d . tank");
    let refused = scratch.command("pool create x").arg("\u{1b}[31m").output().unwrap();
    let line = String::from_utf8(refused.stderr).unwrap();
    assert!(line.contains("\\u{1b}[31m: no such device") && !line.contains('\u{1b}'), "{line}");
}

#[test]
fn taken_address_is_refused_before_anything_is_created() {
    let scratch = Scratch::with_devices("taken", &["d0"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let up = format!("up --dir data --size 64M --listen tcp:127.0.0.1:{port}");
    scratch.refused(&up, 1, "another server has it");
    scratch.refused("up --dir data --listen unix:/none/there/x.sock", 1, "No such file");
    let long = format!("/{}", "x".repeat(120));
    scratch.refused(&format!("up --dir data --listen unix:{long}"), 1, "121 bytes");
    assert!(!scratch.0.join("data").exists());
    assert_eq!(scratch.run("pool list -H"), "");
    scratch.run("pool create tank d0");
    scratch.refused(&format!("serve --listen tcp:127.0.0.1:{port}"), 1, "another server has it");
}

#[test]
fn log_target_waits_for_the_listener_of_a_killed_process() {
    let scratch = Scratch::with_devices("dying", &["side"]);
    let dying = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = dying.local_addr().unwrap().port();
    #[allow(clippy::disallowed_methods, reason = "the kernel's part, beside a blocking wait")]
    let end = std::thread::spawn(move || drop((dying.accept().unwrap(), dying)));
    let words = format!("log-target --listen tcp:127.0.0.1:{port} side=side");
    let target = scratch.server(&words);
    end.join().unwrap();
    scratch.refused(&words, 1, "another server has it");
    assert!(target.interrupt().success());
}

#[test]
fn devices_of_another_process_are_reported_in_use() {
    let scratch = Scratch::with_devices("held", &["d0"]);
    scratch.run("pool create tank d0");
    let server = scratch.server("serve tank");
    let elsewhere = |words: &str| {
        let mut command = scratch.command(words);
        command.env("FOREBAY_STATE_DIR", scratch.0.join("elsewhere")).output().unwrap()
    };
    let listed = common::text(&elsewhere("pool import -d ."));
    assert!(listed.ends_with("; 1 device there is in use by another process\n"), "{listed}");
    // The same list of pools, without its server.
    let list = std::fs::OpenOptions::new().read(true).open(scratch.state().join("pools.json"));
    let to = scratch.0.join("elsewhere/pools.json");
    let mut copy = std::fs::OpenOptions::new().create_new(true).write(true).open(to).unwrap();
    std::io::copy(&mut list.unwrap(), &mut copy).unwrap();
    let output = elsewhere("pool status tank");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("/d0  UNAVAIL   (in use)\n"), "{shown}");
    for words in ["serve tank", "volume list tank", "pool list"] {
        let output = elsewhere(words);
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words}: {line}");
        let by = format!("'tank' are in use by process {} (forebay serve tank", server.pid());
        assert!(line.contains(&by), "{words}: {line}");
    }
    assert!(server.interrupt().success());
    assert_eq!(common::text(&elsewhere("pool list -H -o health")), "ONLINE\n");
}

#[test]
fn server_waits_for_the_command_that_has_its_pool_open() {
    let scratch = Scratch::with_devices("wait", &["d0"]);
    scratch.run("pool create tank d0");
    // As a command does that has opened the pool itself.
    let held = std::fs::OpenOptions::new().read(true).open(scratch.0.join("d0")).unwrap();
    held.try_lock().unwrap();
    let server = scratch.spawn_logged(scratch.command("serve tank --listen unix:s.sock"));
    let whom = format!("waiting for process {} (user", std::process::id());
    assert!(scratch.log_says(&whom), "it says for whom it waits");
    // Longer than a lock outlives a killed process.
    #[allow(clippy::disallowed_methods, reason = "another process is waited for")]
    std::thread::sleep(std::time::Duration::from_secs(2));
    held.unlock().unwrap();
    assert!(scratch.log_says(" info: ready: "));
    server.signal("-INT");
    assert!(server.finish().status.success());
}

#[test]
fn server_of_every_pool_takes_pool_back_and_reports_health() {
    let scratch = Scratch::with_devices("back", &["a0", "b0", "b1"]);
    scratch.run("pool create alpha a0");
    scratch.run("pool create beta mirror b0 b1");
    std::fs::rename(scratch.0.join("a0"), scratch.0.join("away")).unwrap();
    let child = scratch.spawn_logged(scratch.command("serve"));
    assert!(scratch.log_says("none of the devices of 'alpha'"));
    std::fs::rename(scratch.0.join("away"), scratch.0.join("a0")).unwrap();
    let beta = || scratch.forebay("pool iostat beta 0.1 1").status.success();
    assert!((0..300).any(|_| beta()), "it serves the other one");
    scratch.run("pool import alpha");
    scratch.run("pool iostat alpha 0.1 1");
    scratch.refused("pool import alpha", 1, "served by process");
    scratch.run("pool offline beta b0");
    assert!(scratch.log_says("pool 'beta' went from ONLINE to DEGRADED: "));
    scratch.run("pool online -w beta b0");
    assert!(scratch.log_says("pool 'beta' went from DEGRADED to ONLINE$"));
    child.signal("-INT");
    assert!(child.finish().status.success());
}

#[test]
fn server_of_every_pool_waits_for_the_only_one() {
    let scratch = Scratch::with_devices("only", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.hide(&["d0"]);
    let child = scratch.spawn_logged(scratch.command("serve"));
    assert!(scratch.log_says("none of the devices of 'tank'"));
    assert!(scratch.log_says("ready: serving no pool yet"));
    scratch.show(&["d0"]);
    assert!(scratch.log_says("pool 'tank' can be opened now"));
    child.signal("-INT");
    assert!(child.finish().status.success());
}

#[test]
fn one_of_two_ups_in_one_folder_is_refused() {
    let scratch = Scratch::with_devices("twice", &[]);
    let up = |port: &str| {
        let mut command = scratch.command("up --dir data --size 64M --listen");
        command.arg(format!("unix:{}", scratch.0.join(port).display()));
        scratch.spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let mut both = [up("a.sock"), up("b.sock")];
    // One of them is refused, and the other one serves.
    let over = |child: &mut common::Running| child.try_wait().unwrap();
    let at = loop {
        match both.iter_mut().position(|child| over(child).is_some()) {
            Some(at) => break at,
            None => assert!(scratch.forebay("pool list").status.success()),
        }
    };
    let [first, second] = both;
    let (lost, mut won) = if at == 0 { (first, second) } else { (second, first) };
    let lost = lost.finish();
    let line = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert_eq!(lost.status.code(), Some(1), "{line}");
    assert!(line.contains("making a pool") || line.contains("being served"), "{line}");
    let mut said = BufReader::new(won.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("ready: ")), "it serves");
    assert_eq!(scratch.run("volume list -H -o name"), "forebay/vol0\n");
    assert!(!scratch.0.join("data/unfinished").exists());
    won.signal("-INT");
    assert!(won.finish().status.success());
    // Without the folder, the next start creates a new pool.
    std::fs::remove_dir_all(scratch.0.join("data")).unwrap();
    let server = scratch.server("up --dir data --size 64M");
    assert!(server.said.iter().any(|line| line.ends_with("are gone")), "{:?}", server.said);
    assert!(server.interrupt().success());
    // The volume exists: another --size is reported and not applied.
    let server = scratch.server("up --dir data --size 128M");
    let told = "forebay/vol0 has 64M and keeps it, whatever --size says; 'forebay volume resize \
                -V 128M forebay/vol0' changes it";
    assert!(server.said.iter().any(|line| line.contains(told)), "{:?}", server.said);
    assert!(server.interrupt().success());
    let server = scratch.server("up --dir data");
    assert!(!server.said.iter().any(|line| line.contains("--size")), "{:?}", server.said);
    assert!(server.interrupt().success());
}

#[test]
fn read_only_properties_are_refused() {
    let scratch = Scratch::with_devices("tell", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 16M tank/vol0");
    for property in ["size", "capacity", "health", "name"] {
        let words = format!("pool set {property}=1 tank");
        scratch.refused(&words, 1, &format!("'{property}' is read-only"));
    }
    for property in ["used", "referenced", "refreservation"] {
        let words = format!("volume set {property}=1 tank/vol0");
        scratch.refused(&words, 1, &format!("'{property}' is read-only"));
    }
    scratch.refused("volume set used=1 tank/none", 1, "tank/none");
    scratch.refused("pool set size=1 none", 1, "no pool named 'none'");
}

#[test]
fn volumes_are_sorted_by_fields() {
    let scratch = Scratch::with_devices("sorted", &["d0"]);
    scratch.run("pool create tank d0");
    for (name, size, sync) in
        [("a", "128M", "standard"), ("b", "16M", "always"), ("c", "1G", "standard")]
    {
        scratch.run(&format!("volume create -s -V {size} -o sync={sync} tank/{name}"));
    }
    let names = |words: &str| {
        let text = scratch.run(&format!("volume list -H -o name {words}"));
        text.lines().map(|name| name.trim_start_matches("tank/")).collect::<String>()
    };
    assert_eq!(names(""), "abc");
    assert_eq!(names("-s volsize"), "bac", "by how large they are, not as text");
    assert_eq!(names("-S volsize"), "cab");
    assert_eq!(names("-s sync -s volsize"), "bac");
    assert_eq!(names("-S sync"), "acb");
    scratch.refused("volume list -s frob", 2, "is not a field");
    scratch.refused("volume list -s name -S used", 2, "cannot be used with");
}

#[test]
fn label_in_use_is_not_cleared() {
    let scratch = Scratch::with_devices("clear", &["d0", "d1", "d2"]);
    scratch.run("pool create tank mirror d0 d1");
    scratch.refused("pool labelclear d2", 1, "no label of a pool");
    scratch.refused("pool labelclear d0", 1, "belongs to pool 'tank'; use -f");
    let server = scratch.server("serve tank");
    scratch.refused("pool labelclear -f d0", 1, "in use");
    assert!(server.interrupt().success());
    scratch.run("pool detach tank d1");
    scratch.refused("pool labelclear d1", 1, "no label of a pool");
    scratch.run("pool export tank");
    scratch.refused("pool labelclear d0", 1, "belongs to pool 'tank'");
    scratch.run("pool labelclear -f d0");
    assert!(scratch.run("pool import -d .").starts_with("no pools available"));
    scratch.run("pool create other d0");
}

#[test]
fn sync_empties_log_and_wait_ends() {
    let scratch = Scratch::with_devices("sync", &["d0", "d1", "l0"]);
    scratch.run("pool create -o txg_timeout=600 tank mirror d0 d1 log l0");
    scratch.run("volume create -V 16M tank/vol0");
    let server = scratch.server("serve tank");
    let uri = scratch.uri("tank/vol0");
    scratch.run(&format!("bench nbd {uri} --overwrite --fua --count 50 --json"));
    let log = || {
        let stats: serde_json::Value =
            serde_json::from_str(&scratch.run("pool stats --json tank")).unwrap();
        stats["pools"][0]["dirty_bytes"].as_u64().unwrap()
    };
    assert!(log() > 0, "nothing makes it commit");
    scratch.run("pool sync");
    assert_eq!(log(), 0);
    assert!(!scratch.run("pool history tank").contains("pool sync"), "as zpool has it");
    scratch.run("pool scrub tank");
    scratch.run("pool wait -t scrub tank");
    assert!(scratch.run("pool status tank").contains("scan: scrub repaired"));
    scratch.run("pool wait tank");
    scratch.refused("pool wait -t trim tank", 2, "is not an activity");
    assert!(server.interrupt().success());
    scratch.run("pool sync tank");
    scratch.run("pool wait tank");
}

#[test]
fn dry_run_creates_nothing() {
    let scratch = Scratch::with_devices("dry", &["d0", "d1", "d2", "l0", "l1"]);
    let said = scratch.run("pool create -n tank raidz1 d0 d1 d2 log mirror l0 l1");
    let at = |name: &str| scratch.0.join(name).display().to_string();
    let expected = format!(
        "would create 'tank' with the following layout:\n\n\ttank\n\t  raidz1\n\t    {}\n\t    {}\n\
         \t    {}\n\tlogs\n\t  mirror\n\t    {}\n\t    {}\n",
        at("d0"),
        at("d1"),
        at("d2"),
        at("l0"),
        at("l1")
    );
    assert_eq!(said, expected);
    assert_eq!(scratch.run("pool list -H"), "");
    for file in ["d0", "l0"] {
        let meta = std::fs::metadata(scratch.0.join(file)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&meta), 0, "nothing was written");
    }
    scratch.run("pool create tank mirror d0 d1");
    scratch.refused("pool create -n other d1", 1, "belongs to pool 'tank'; use -f");
    scratch.refused("pool create -n 1st d2", 1, "begins with a letter");
    scratch.refused("pool create -n -o txg_timeout=x other d2", 1, "txg_timeout");
    scratch.refused("pool create -n tank d2", 1, "exists already");
}

#[test]
fn listings_show_the_serving_process() {
    let scratch = Scratch::with_devices("who", &["d0", "d1"]);
    scratch.run("pool create one d0");
    scratch.run("pool create two d1");
    let server = scratch.server("serve one");
    let pid = server.pid();
    assert_eq!(scratch.run("pool list -H -o name,server"), format!("one\t{pid}\ntwo\t-\n"));
    assert!(scratch.run("pool status one").contains(&format!("served: by process {pid}\n")));
    assert!(scratch.run("pool status two").contains("served: no\n"));
    let stats = scratch.run("pool stats");
    assert!(stats.contains("pool one, ") && stats.contains("pool two, "), "{stats}");
    let exported = scratch.run("pool export one");
    assert!(exported.contains(&format!("process {pid} serves it no more")), "{exported}");
    assert!(server.interrupt().success());
    let imported = scratch.run("pool import -d . one");
    assert!(imported.starts_with("imported 'one' (ONLINE); it is known here"), "{imported}");
}

#[test]
fn reservation_makes_volume_thick_or_thin() {
    let scratch = Scratch::with_devices("thick", &["d0"]);
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 16M tank/vol0");
    let get = |property: &str| {
        let words = format!("volume get -Hp -o value {property} tank/vol0");
        scratch.run(&words).trim().to_owned()
    };
    let available = || scratch.run("pool list -Hp -o available").trim().parse::<u64>().unwrap();
    let (thick, reserved) = (available(), get("refreservation"));
    assert_eq!((get("reservation").as_str(), reserved.as_str()), ("auto", "16777216"));
    scratch.run("volume set reservation=none tank/vol0");
    assert_eq!((get("reservation").as_str(), get("refreservation").as_str()), ("none", "0"));
    assert_eq!(available(), thick + 16 * MIB);
    scratch.run("volume set reservation=auto tank/vol0");
    assert_eq!((get("refreservation"), available()), (reserved, thick));
    scratch.refused("volume set reservation=some tank/vol0", 1, "auto or none");
    scratch.run("volume create -V 10G -o reservation=none tank/thin");
    scratch.refused("volume set reservation=auto tank/thin", 1, "the reservation needs 10G");
}

#[test]
fn shells_complete_names_of_pools_volumes_and_devices() {
    let scratch = Scratch::with_devices("complete", &["d0"]);
    let complete = |words: &str| {
        let mut command = scratch.command(&format!("-- forebay {words}"));
        let output = command.env("COMPLETE", "fish").output().unwrap();
        common::text(&output)
    };
    assert!(complete("pool resil").contains("resilver"));
    assert_eq!(complete("pool scrub t"), "", "no pool is known");
    assert!(!scratch.state().exists(), "no folder is created");
    scratch.run("pool create tank d0");
    scratch.run("volume create -V 16M tank/vol0");
    assert!(complete("pool scrub t").contains("tank"));
    let device = scratch.0.join("d0").display().to_string();
    assert!(complete(&format!("pool offline tank {}", &device[..4])).contains(&device));
    let server = scratch.server("serve tank");
    assert!(complete("volume destroy tank/").contains("tank/vol0"));
    assert!(server.interrupt().success());
    for shell in ["bash", "zsh", "fish"] {
        assert!(scratch.run(&format!("completions {shell}")).contains("COMPLETE"), "{shell}");
    }
}
