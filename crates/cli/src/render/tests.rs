//! Golden files in `tests/golden`. `UPDATE_GOLDEN=1 cargo test -p forebay-cli` rewrites them.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

use forebay_pool::status::{
    CacheDeviceStats, CacheStats, FoundPool, Health, ImportRemark, ImportReport, Importable,
    IoCounts, Latency, LongPoll, MediaBytes, OpCount, PoolCondition, PoolStats, PoolStatus,
    PoolSummary, Protection, ScanKind, ScanPhase, ScanStatus, SegmentCounts, Traffic, VdevKind,
    VdevNote, VdevSpace, VdevStatus, VolumeStatus,
};
use forebay_units::Layout;

mod pools;
mod snapshots;

use pools::summary;

use super::*;
use crate::args::{ListedKind, Listing};
use crate::clock::local_time;
use crate::control::{Sample, StatusReport};
use crate::escape::visible;
use crate::explain::advice;
use crate::failure::{ErrorCode, Failure};

const BY_NAME: Order<'static> = Order { fields: &[], is_descending: false };

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
        return;
    }
    let mut expected = String::new();
    std::fs::OpenOptions::new()
        .read(true)
        .open(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; UPDATE_GOLDEN=1 writes it", path.display()))
        .read_to_string(&mut expected)
        .unwrap();
    assert!(text == expected, "{name} differs from its golden file; it is now:\n{text}");
}

fn io(reads: u64, writes: u64) -> IoCounts {
    IoCounts {
        reads,
        read_bytes: reads * 4096,
        writes,
        write_bytes: writes * 65_536,
        sequential_writes: writes / 2,
        flushes: 3,
        discards: 1,
        discard_bytes: 1 << 20,
    }
}

fn vdev(name: &str, kind: VdevKind, children: Vec<VdevStatus>) -> VdevStatus {
    VdevStatus {
        name: name.into(),
        kind,
        state: Health::Online,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
        size_bytes: 1 << 32,
        space: None,
        io: if children.is_empty() { io(1000, 200) } else { IoCounts::default() },
        children,
    }
}

fn disk(name: &str) -> VdevStatus {
    vdev(&format!("/srv/{name}"), VdevKind::Device, vec![])
}

/// A group or log device, and how full it is.
fn holder(name: &str, kind: VdevKind, full: (u64, u64), children: Vec<VdevStatus>) -> VdevStatus {
    let space = VdevSpace { raw_size_bytes: full.1, raw_alloc_bytes: Some(full.0) };
    VdevStatus { space: Some(space), ..vdev(name, kind, children) }
}

fn healthy() -> PoolStatus {
    let (data, log) = ((9 << 29, 18 << 30), (64 << 20, 4 << 30));
    PoolStatus {
        name: "tank".into(),
        guid: 1_234_567_890_123_456_789,
        state: Health::Online,
        scan: None,
        scrubbed_at: 0,
        groups: vec![holder(
            "raidz1-0",
            VdevKind::Group(Layout::Raidz1),
            data,
            vec![disk("d0"), disk("d1"), disk("d2")],
        )],
        logs: vec![holder(
            "mirror-1",
            VdevKind::Group(Layout::Mirror),
            log,
            vec![disk("l0"), disk("l1")],
        )],
        caches: vec![VdevStatus {
            size_bytes: 10 << 30,
            ..holder("k0", VdevKind::Device, (3 << 30, 9 << 30), vec![])
        }],
        spares: Vec::new(),
        lost: vec![],
        lost_count: 0,
        txg: 42,
        outage_reserve: None,
        store: None,
    }
}

fn degraded() -> PoolStatus {
    let mut pool = healthy();
    pool.state = Health::Degraded;
    pool.groups[0].state = Health::Degraded;
    pool.groups[0].children[1].state = Health::Unavail;
    pool.groups[0].children[1].read_errors = 1536;
    pool.groups[0].children[2].checksum_errors = 7;
    let mut old = disk("l1");
    old.state = Health::Faulted;
    let mut new = disk("l9");
    new.note = Some(VdevNote::Resilvering);
    pool.logs[0].children[1] = vdev("replacing-0", VdevKind::Replacing, vec![old, new]);
    pool.scan = Some(ScanStatus {
        kind: ScanKind::Resilver,
        state: ScanPhase::InProgress,
        started_at: 0,
        elapsed_secs: 100,
        done_bytes: 25 << 30,
        total_bytes: 100 << 30,
        repaired_bytes: 5 << 30,
        errors: 0,
    });
    pool.lost = vec!["tank/vol0 offset 4096".into()];
    pool.lost_count = 3;
    pool
}

fn open(pool: &PoolStatus) -> OpenPool {
    let condition = match pool.state {
        Health::Online => PoolCondition::Well,
        _ => PoolCondition::DevicesFailed { last: None },
    };
    let status = StatusReport {
        pool: pool.clone(),
        advice: advice(&pool.name, &condition),
        drives: Default::default(),
    };
    OpenPool { status, server_pid: Some(4321) }
}

fn ops(count: u64) -> OpCount {
    OpCount { count, bytes: count * 4096 }
}

fn traffic() -> Traffic {
    Traffic {
        reads: ops(5000),
        writes: ops(100_000),
        trims: ops(10),
        flushes: OpCount { count: 77, bytes: 0 },
        fuas: ops(90_000),
        log_writes: ops(20_000),
        log_sequential_writes: 19_990,
        media: MediaBytes {
            data: 409_600_000,
            parity: 136_533_333,
            metadata: 4_000_000,
            cleaning: 0,
            padding: 1_000,
            repair: 0,
            log: 420_000_000,
        },
        segments_cleaned: 4,
    }
}

fn cache_device() -> CacheDeviceStats {
    CacheDeviceStats {
        name: "k0".into(),
        size_bytes: 10 << 30,
        used_bytes: 3 << 30,
        memory_bytes: 55 << 20,
        hits: 123_456,
        slow_reads: 3,
        admitted: 800_000,
        refused_busy: 12,
        refused_budget: 40_000,
        loaded: 500_000,
        written_bytes: 25 << 30,
        drive_writes: 2.5,
        drive_writes_per_day: 0.31,
    }
}

fn cache() -> CacheStats {
    CacheStats {
        policy: "arc".into(),
        size_bytes: 1 << 30,
        limit_bytes: 1 << 29,
        used_bytes: 300 << 20,
        memory_bytes: 303 << 20,
        hits: 90_000,
        misses: 10_000,
        ghost_hits: 1200,
        kept: 14_000,
        evictions: 0,
        read_ahead: 4096,
        read_ahead_unused: 12,
    }
}

fn stats() -> PoolStats {
    let latency = Latency {
        count: 90_000,
        mean_us: 141.2,
        p50_us: 120.0,
        p90_us: 180.0,
        p99_us: 360.0,
        p999_us: 900.0,
        p9999_us: 2100.0,
        max_us: 15_000.0,
    };
    PoolStats {
        compression: Default::default(),
        dedup: Default::default(),
        cache: cache(),
        version: JSON_VERSION,
        name: "tank".into(),
        uptime_secs: 3725.5,
        since_import: traffic(),
        since_creation: Traffic { reads: ops(50_000), ..traffic() },
        write_amplification: 1.343,
        write_amplification_with_log: 2.368,
        segments: SegmentCounts {
            free: 100,
            open: 2,
            full: 20,
            cleaned: 4,
            journal: 0,
            live_share: 0.875,
            segment_bytes: 48 << 20,
            emptied: 3,
            held_bytes: 47 << 20,
        },
        map_memory_bytes: 1 << 20,
        cache_devices: vec![cache_device()],
        footer_cache_bytes: 64 << 10,
        dirty_bytes: 12 << 20,
        dirty_limit_bytes: 256 << 20,
        log_used_bytes: 40 << 20,
        log_capacity_bytes: 1 << 30,
        fua_latency: latency,
        flush_latency: Latency { count: 77, ..latency },
        read_latency: Latency::default(),
        devices: BTreeMap::from([
            ("/srv/d0".to_owned(), io(1000, 200)),
            ("/srv/l0".to_owned(), io(0, 40)),
        ]),
        fua_latency_since_creation: Latency { count: 1001, ..latency },
        flush_latency_since_creation: Latency { count: 177, ..latency },
        read_latency_since_creation: Latency::default(),
        devices_since_creation: BTreeMap::from([
            ("/srv/d0".to_owned(), io(5000, 1200)),
            ("/srv/l0".to_owned(), io(0, 440)),
        ]),
        last_import: ImportReport {
            seconds: 0.125,
            replay_seconds: 0.1,
            map_bytes: 1 << 20,
            log_bytes: 40 << 20,
            log_records: 9000,
            remarks: vec![ImportRemark::TornTail { frame: 9001 }],
        },
        long_polls: vec![LongPoll {
            place: "crates/pool/src/import/recovery.rs:212".to_owned(),
            count: 12,
            mean_us: 640.5,
            longest_us: 1830.0,
        }],
    }
}

fn volume(name: &str, sync: &str, reserved_bytes: u64) -> ListedVolume {
    let status = VolumeStatus {
        name: format!("tank/{name}"),
        id: 7,
        size_bytes: 8 << 30,
        used_bytes: 5 << 28,
        referenced_bytes: 1 << 30,
        written_bytes: 1 << 28,
        used_by_snapshots_bytes: 1 << 28,
        origin: (reserved_bytes == 0).then(|| "tank/vol0@monday".to_owned()),
        reserved_bytes,
        available_bytes: 10 << 30,
        compress_percent: 213,
        sync: sync.into(),
        is_receiving: false,
        resume_token: None,
        properties: BTreeMap::from([("comment".to_owned(), "x".to_owned())]),
    };
    ListedVolume { status, attached: (name == "vol0").then(|| "/dev/nbd0".to_owned()) }
}

const PLAIN: Listing = Listing { scripted: false, exact: false, json: false };
const SCRIPT: Listing = Listing { scripted: true, exact: true, json: false };
const JSON: Listing = Listing { scripted: false, exact: false, json: true };

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

fn listed(verbose: bool) -> Listed {
    let status = degraded();
    let vdevs = verbose.then(|| Vdevs::new(&status));
    Listed { summary: summary(), server_pid: Some(4321), vdevs }
}

#[test]
fn pool_list_is_as_in_golden_files_with_devices() {
    let gone = Failure::new(ErrorCode::PoolUnavailable, "a device is missing");
    let rows = [("tank".to_owned(), Ok(listed(true))), ("gone".to_owned(), Err(gone))];
    golden("pool-list-verbose.txt", &pool_list(&rows, &[], PLAIN).unwrap());
    golden("pool-list-verbose.json", &pool_list(&rows, &[], JSON).unwrap());
    let some = words(&["name", "free", "guid", "avail"]);
    let text = pool_list(&rows, &some, SCRIPT).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "tank\t14495514624\t1234567890123456789\t1073741824");
    assert_eq!(lines[1], "raidz1-0\t14495514624\t-\t-", "not indented, for scripts");
    assert_eq!(lines[2], "/srv/d0\t-\t-\t-");
}

#[test]
fn fields_of_properties_are_chosen() {
    let pools = [(summary(), BTreeMap::new())];
    let get = |fields: &[&str], listing| {
        pool_get(&pools, &words(&["free", "health"]), &words(fields), listing)
    };
    assert_eq!(get(&["value"], SCRIPT).unwrap(), "14495514624\nONLINE\n");
    assert_eq!(
        get(&["value", "name"], PLAIN).unwrap(),
        "VALUE   NAME\n13.5G   tank\nONLINE  tank\n"
    );
    assert_eq!(get(&["all"], PLAIN).unwrap(), get(&[], PLAIN).unwrap());
    let refused = get(&["frob"], PLAIN).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Usage);
    assert!(refused.hint.contains("name, property, value, source"), "{}", refused.hint);
    assert_eq!(pool_get(&[], &words(&["all"]), &[], PLAIN).unwrap(), "no pools available\n");
}

#[test]
fn control_characters_in_names_are_escaped() {
    let odd = "/srv/new\nline\ttab\u{1b}[31m";
    let shown = "/srv/new\\nline\\ttab\\u{1b}[31m";
    assert_eq!(visible(odd), shown);
    assert_eq!(visible("/srv/d 0/ä"), "/srv/d 0/ä");
    let mut pool = healthy();
    pool.groups[0].children[0].name = odd.into();
    let has = |text: &str| {
        assert!(text.contains(shown), "{text}");
        assert!(!text.contains(odd), "{text}");
    };
    has(&status_text(&open(&pool), false, false));
    let sample =
        Sample { status: pool.clone(), summary: summary(), uptime_secs: 1.0, cache: cache() };
    has(&iostat_text(&iostat_rows(None, &sample, true), true, false));
    let vdevs = Some(Vdevs::new(&pool));
    let rows = [("tank".to_owned(), Ok(Listed { summary: summary(), server_pid: None, vdevs }))];
    has(&pool_list(&rows, &[], PLAIN).unwrap());
    has(&history_text("tank", &[format!("0 forebay pool create tank '{odd}'")]));
    let mut stats = stats();
    stats.devices.insert(odd.into(), io(1, 1));
    has(&stats_text(&stats, false));
    let properties = BTreeMap::from([("comment".to_owned(), odd.to_owned())]);
    let text = pool_get(&[(summary(), properties)], &words(&["comment"]), &[], SCRIPT).unwrap();
    has(&text);
}

#[test]
fn amplification_without_writes_is_a_dash() {
    let mut stats = stats();
    stats.since_import.writes = OpCount::default();
    let text = stats_text(&stats, false);
    assert!(text.contains("write amplification  - since import (- with the log)"), "{text}");
}

#[test]
fn pool_list_is_as_in_golden_files() {
    let gone = Failure::new(ErrorCode::PoolUnavailable, "a device is missing");
    let rows = [("tank".to_owned(), Ok(listed(false))), ("gone".to_owned(), Err(gone))];
    golden("pool-list.txt", &pool_list(&rows, &[], PLAIN).unwrap());
    golden("pool-list.json", &pool_list(&rows, &[], JSON).unwrap());
    assert_eq!(
        pool_list(&rows, &words(&["name", "free", "cap"]), SCRIPT).unwrap(),
        "tank\t14495514624\t25\ngone\t-\t-\n"
    );
    for listing in [PLAIN, JSON] {
        let frob = pool_list(&rows, &words(&["frob"]), listing);
        assert_eq!(frob.unwrap_err().code, ErrorCode::Usage);
    }
    assert_eq!(pool_list(&[], &[], PLAIN).unwrap(), "no pools available\n");
    assert_eq!(pool_list(&[], &[], SCRIPT).unwrap(), "");
}

#[test]
fn pool_status_is_as_in_golden_files() {
    golden("pool-status.txt", &status_text(&open(&healthy()), false, false));
    golden("pool-status.json", &status_json(&[open(&degraded())], &[]));
    // The time of day depends on where the test runs; everything else does not.
    let text = status_text(&open(&degraded()), false, true);
    let text = text.replace(&local_time(0), "Thu Jan  1 00:00:00 1970");
    golden("pool-status-degraded.txt", &text);
    assert!(status_text(&open(&degraded()), true, false).contains(" 1536 "), "exact numbers");
}

#[test]
fn scan_that_does_not_run_shows_its_result() {
    let mut pool = healthy();
    let scan = |kind: ScanKind, state: ScanPhase| ScanStatus {
        kind,
        state,
        started_at: 0,
        elapsed_secs: 3661,
        done_bytes: 1 << 30,
        total_bytes: 2 << 30,
        repaired_bytes: 8192,
        errors: 1,
    };
    for (kind, state, expected) in [
        (ScanKind::Scrub, ScanPhase::Completed, "scrub repaired 8K in 01:01:01 with 1 errors on "),
        (ScanKind::Resilver, ScanPhase::Completed, "resilvered 8K in 01:01:01 with 1 errors on "),
        (ScanKind::Scrub, ScanPhase::Paused, "scrub paused, begun on "),
        (ScanKind::Scrub, ScanPhase::Stopped, "scrub stopped on "),
    ] {
        pool.scan = Some(scan(kind, state));
        let text = status_text(&open(&pool), false, false);
        assert!(text.contains(&format!("  scan: {expected}")), "{text}");
    }
}

#[test]
fn history_has_local_times() {
    let lines = words(&["0 forebay pool create tank d0", "not stamped"]);
    let text = history_text("tank", &lines);
    let first = format!("{} forebay pool create tank d0", crate::clock::history_time(0));
    assert_eq!(text, format!("History for 'tank':\n{first}\nnot stamped\n"));
    assert!(first.contains("19"), "{first}");
}

#[test]
fn log_on_one_device_is_shown_as_that_device() {
    let mut pool = healthy();
    pool.logs = vec![vdev("mirror-0", VdevKind::Group(Layout::Mirror), vec![disk("l0")])];
    let text = status_text(&open(&pool), false, false);
    assert!(text.contains("\tlogs\n\t  /srv/l0"), "{text}");
}

#[test]
fn reserved_device_is_marked_beside_its_note() {
    let mut pool = healthy();
    let devices = &mut pool.groups[0].children;
    devices[0].protection = Some(Protection::Reservation);
    devices[1].protection = Some(Protection::Heartbeat);
    let [first, second] = [0, 1].map(|at| devices[at].name.clone());
    let line = |pool: &PoolStatus, name: &str| {
        let text = status_text(&open(pool), false, false);
        text.lines().find(|line| line.contains(name)).expect("its line").to_owned()
    };
    assert!(line(&pool, &first).ends_with("0  (reserved)"), "{}", line(&pool, &first));
    assert!(!line(&pool, &second).contains("reserved"));
    pool.groups[0].children[0].note = Some(VdevNote::Resilvering);
    assert!(line(&pool, &first).ends_with("  (resilvering) (reserved)"));
    let json = status_json(&[open(&pool)], &[]);
    assert!(json.contains("\"protection\": \"reservation\""), "{json}");
    assert!(json.contains("\"protection\": \"heartbeat\""), "{json}");
}

#[test]
fn pool_stats_are_as_in_golden_files() {
    golden("pool-stats.txt", &stats_text(&stats(), false));
    golden("pool-stats-polls.txt", &polls_text(&stats()));
    golden("pool-stats.json", &stats_json(&[Box::new(stats())]));
}

#[test]
fn pool_get_is_as_in_golden_files() {
    let properties = BTreeMap::from([("comment".to_owned(), "lab".to_owned())]);
    let pools = [(summary(), properties)];
    golden("pool-get.txt", &pool_get(&pools, &words(&["all"]), &[], PLAIN).unwrap());
    golden("pool-get.json", &pool_get(&pools, &words(&["all"]), &[], JSON).unwrap());
    assert_eq!(
        pool_get(&pools, &words(&["comment", "size"]), &[], SCRIPT).unwrap(),
        "tank\tcomment\tlab\tlocal\ntank\tsize\t19327352832\t-\n"
    );
    let unknown = pool_get(&pools, &words(&["frob"]), &[], PLAIN).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::PropertyUnknown);
}

#[test]
fn volume_list_and_get_are_as_in_golden_files() {
    let volumes = vec![volume("vol0", "standard", 8 << 30), volume("sparse", "always", 0)];
    let listed = Versions { volumes, snapshots: Vec::new() };
    let list = |fields: &[&str], listing| {
        volume_list(&listed, ListedKind::Volume, &words(fields), BY_NAME, listing)
    };
    golden("volume-list.txt", &list(&[], PLAIN).unwrap());
    golden("volume-list.json", &list(&[], JSON).unwrap());
    golden("volume-get.txt", &volume_get(&listed, &words(&["all"]), &[], PLAIN).unwrap());
    golden("volume-get.json", &volume_get(&listed, &words(&["all"]), &[], JSON).unwrap());
    assert_eq!(
        list(&["name", "volsize", "comment"], SCRIPT).unwrap(),
        "tank/vol0\t8589934592\tx\ntank/sparse\t8589934592\tx\n"
    );
    assert_eq!(list(&["frob"], PLAIN).unwrap_err().code, ErrorCode::Usage);
    let none = Versions::default();
    let text = volume_list(&none, ListedKind::Volume, &[], BY_NAME, PLAIN).unwrap();
    assert_eq!(text, "no volumes available\n");
}

#[test]
fn importable_pools_are_as_in_golden_files() {
    let status = degraded();
    let found = FoundPool {
        name: status.name,
        guid: status.guid,
        state: status.state,
        groups: status.groups,
        logs: status.logs,
        importable: Importable::NotExported,
        paths: words(&["/srv/d0", "/srv/d2"]),
    };
    golden("pool-import.txt", &found_text(std::slice::from_ref(&found)));
    golden("pool-import.json", &found_json(&[found]));
}

fn sample(uptime_secs: f64, scale: u64) -> Sample {
    fn scale_io(vdev: &mut VdevStatus, scale: u64) {
        vdev.io.reads *= scale;
        vdev.io.read_bytes *= scale;
        vdev.io.writes *= scale;
        vdev.io.write_bytes *= scale;
        vdev.children.iter_mut().for_each(|child| scale_io(child, scale));
    }
    let mut status = healthy();
    status.groups.iter_mut().chain(&mut status.logs).for_each(|v| scale_io(v, scale));
    let counted = cache();
    let cache = CacheStats { hits: counted.hits * scale, kept: counted.kept * scale, ..counted };
    Sample { status, summary: summary(), uptime_secs, cache }
}

#[test]
fn iostat_is_as_in_golden_files() {
    let (before, after) = (sample(10.0, 1), sample(12.0, 3));
    let rows = iostat_rows(Some(&before), &after, true);
    golden(
        "pool-iostat.txt",
        &format!("{}{}", iostat_header(&rows), iostat_text(&rows, false, false)),
    );
    golden("pool-iostat.json", &iostat_json(&rows));
    // Five devices, each with 2000 reads more in two seconds.
    assert_eq!(rows[0].reads_per_sec, 5.0 * 1000.0);
    assert_eq!(
        iostat_text(&iostat_rows(Some(&before), &after, false), true, true),
        "tank\t4831838208\t14495514624\t5000\t1000\t20480000\t65536000\n"
    );
    // Imported again since: the counters began anew, so the average since import is shown.
    let again = iostat_rows(Some(&sample(99.0, 50)), &sample(2.0, 1), false);
    assert_eq!(again[0].reads_per_sec, 5.0 * 500.0);
    assert_eq!(iostat_rows(None, &sample(0.0, 0), false)[0].reads_per_sec, 0.0);
}
