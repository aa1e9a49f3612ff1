//! Commands on devices, and the space of a pool.

use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind};
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::{Health, PoolCondition, PoolEvent, ScanKind, ScanPhase, VdevNote};
use crate::{AdminError, Pool};

const SIZE: u64 = 64 << 20;
const OPTIONS: ImportOptions = ImportOptions {
    for_command: false,
    force: false,
    known: None,
    accept_log_loss: false,
    rewind_groups: 0,
    keep: None,
};

#[test]
fn one_side_of_a_mirrored_log_is_detached_and_not_removed() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let spec = spec(Layout::Raid0, &["a"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for side in ["l", "m"] {
            let error = pool.remove(side).await.unwrap_err();
            let (pool, device) = ("tank".to_owned(), side.to_owned());
            assert_eq!(error, AdminError::SideOfLog { pool, device, mirror: 1 });
        }
        assert_eq!(pool.status().logs[0].children.len(), 2, "nothing changed");
        pool.detach("l").await.unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        let error = pool.detach("m").await.unwrap_err();
        assert_eq!(error, AdminError::OnlySide { device: "m".into() });
        pool.attach("m", "l", false).await.unwrap();
        v.write(0, stamp(4096, 2), true).await.unwrap();
        assert_eq!(pool.status().logs[0].children.len(), 2);
        assert_eq!(pool.status().logs[0].name, "mirror-1", "data groups are counted first");
        pool.remove("mirror-0").await.unwrap_err();
        pool.remove("mirror-1").await.unwrap();
        assert!(pool.status().logs.is_empty());
        v.write(0, stamp(4096, 3), true).await.unwrap();
        expect(&v, 0, &stamp(4096, 3)).await;
        // Both devices are free again.
        let add = super::spec(Layout::Raid0, &[], &["m"]);
        let add = crate::spec::PoolSpec { groups: vec![], ..add };
        pool.add(&add).await.unwrap();
        // A log that is no mirror is removed by its device's name.
        pool.remove("m").await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn group_names_are_unique() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "l", "m", "n", "o"], SIZE);
        let mut spec = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        spec.logs.extend(super::spec(Layout::Raid0, &[], &["n", "o"]).logs);
        spec.groups.extend(super::spec(Layout::Mirror, &["c", "d"], &[]).groups);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        let called = || {
            let status = pool.status();
            let all = status.groups.iter().chain(&status.logs).map(|vdev| vdev.name.clone());
            all.collect::<Vec<_>>()
        };
        assert_eq!(called(), ["mirror-0", "mirror-1", "mirror-2", "mirror-3"]);
        let error = pool.remove("mirror-1").await.unwrap_err();
        assert_eq!(error, AdminError::DataGroup { group: "mirror-1".to_owned() });
        pool.remove("mirror-2").await.unwrap();
        assert_eq!(called(), ["mirror-0", "mirror-1", "mirror-3"], "the others keep their names");
        pool.export().await.unwrap();
        drop(pool);
        let paths = names(&["a", "b", "c", "d", "n", "o"]);
        let found = Pool::discover(rack.host(1), &paths).await;
        assert_eq!(found[0].logs[0].name, "mirror-3");
    });
}

#[test]
fn sparse_volumes_fill_the_pool_to_its_last_block_and_no_further() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], SIZE);
        let spec = spec(Layout::Raidz1, &["a", "b", "c"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        for name in ["v", "w"] {
            let sparse = VolumeSpec { name: name.into(), sparse: true, ..volume(1 << 30) };
            pool.create_volume(&sparse).await.unwrap();
        }
        let (v, w) = (pool.open_volume("v").unwrap(), pool.open_volume("w").unwrap());
        let room = pool.summary().free_bytes / 4096;
        assert!(room > 1000);
        let mut written = 0;
        let full = loop {
            let device = if written % 2 == 0 { &v } else { &w };
            match device.write(written / 2 * 4096, stamp(4096, written), written % 500 == 0).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
            assert!(written <= room, "more than there is");
        };
        assert_eq!(full.kind, ErrorKind::NoSpace, "{full}");
        assert_eq!(written, room, "every block that was said to be free could be had");
        pool.sync().await.unwrap();
        // A full pool still takes reads, overwrites and trims, and nothing else.
        for at in (0..written).step_by(97) {
            let device = if at % 2 == 0 { &v } else { &w };
            expect(device, at / 2 * 4096, &stamp(4096, at)).await;
        }
        for round in 0..3 {
            for at in 0..written / 2 {
                v.write(at * 4096, stamp(4096, at + round), false).await.unwrap();
            }
            assert!(w.write(written * 4096, stamp(4096, 1), false).await.is_err());
        }
        w.discard(0, 40 * 4096, true).await.unwrap();
        pool.sync().await.unwrap();
        for at in 0..40 {
            v.write((room + at) * 4096, stamp(4096, at), true).await.unwrap();
        }
        let more = v.write((room + 40) * 4096, stamp(4096, 0), true).await.unwrap_err();
        assert_eq!(more.kind, ErrorKind::NoSpace);
        pool.export().await.unwrap();
        drop((v, w, pool));
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        let (v, w) = (pool.open_volume("v").unwrap(), pool.open_volume("w").unwrap());
        expect(&v, (room + 39) * 4096, &stamp(4096, 39)).await;
        expect(&w, 39 * 4096, &[0; 4096]).await;
        expect(&v, 4096, &stamp(4096, 3)).await;
        assert!(w.write(0, stamp(4096, 0), false).await.is_err(), "still full");
        pool.export().await.unwrap();
    });
}

/// A raidz1 of three with `blocks` blocks on its devices.
async fn filled(rack: &Rc<Rack>, blocks: u64) -> Rc<Pool> {
    let mut spec = spec(Layout::Raidz1, &["a", "b", "c"], &["l"]);
    // Every read is one of the devices.
    spec.properties.insert("cache_size".to_owned(), "off".to_owned());
    let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(64 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..blocks {
        v.write(at * 4096, stamp(4096, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

fn fail_reads(rack: &Rack, name: &str, failing: bool) {
    let mut all = rack.switches.unreadable.borrow_mut();
    if failing {
        all.insert(name.to_owned());
    } else {
        all.remove(name);
    }
}

/// The row of a device in `pool status`.
fn line(pool: &Pool, name: &str) -> crate::status::VdevStatus {
    let status = pool.status();
    let all = status.groups.into_iter().flat_map(|group| group.children);
    all.chain(status.logs).find(|vdev| vdev.name == name).expect("it is listed")
}

async fn pass(seconds: u64) {
    forebay_rt::sleep(forebay_units::Nanos::from_secs(seconds)).await;
}

async fn scan_ended(pool: &Pool) {
    while pool.status().scan.is_some_and(|s| s.state == ScanPhase::InProgress) {
        pass(1).await;
    }
}

/// Reads blocks of a volume that [`filled`] wrote, one by one.
async fn read(v: &Device, blocks: Range<u64>) {
    for at in blocks {
        expect(v, at * 4096, &stamp(4096, at)).await;
    }
}

#[test]
fn device_is_faulted_by_many_read_errors_at_once_and_not_over_time() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l"], SIZE);
        let pool = filled(&rack, 4000).await;
        let v = pool.open_volume("v").unwrap();
        fail_reads(&rack, "b", true);
        // A few errors over time are counted and shown; the device stays in use.
        let mut at = 0;
        while line(&pool, "b").read_errors < 5 {
            read(&v, at..at + 1).await;
            at += 1;
        }
        pass(1).await;
        assert_eq!(line(&pool, "b").state, Health::Online);
        assert_eq!(pool.condition(), PoolCondition::DeviceErrors);
        pass(700).await;
        let before = line(&pool, "b").read_errors;
        while line(&pool, "b").read_errors < before + 9 {
            read(&v, at..at + 1).await;
            at += 1;
        }
        pass(1).await;
        assert_eq!(line(&pool, "b").state, Health::Online, "those before were long ago");
        // As many errors at once take the device out.
        read(&v, at..at + 400).await;
        pass(1).await;
        let b = line(&pool, "b");
        assert_eq!(b.state, Health::Faulted, "{b:?}");
        assert!(b.read_errors >= 10 && b.write_errors == 0, "{b:?}");
        assert_eq!(pool.summary().health, Health::Degraded);
        let events = pool.events();
        assert!(events.contains(&PoolEvent::TakenOut { device: "b".into() }), "{events:?}");
        read(&v, 0..4000).await;
        v.write(0, stamp(4096, 0), true).await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A raidz1 whose device `b` was faulted after read errors, and whose device `c` is needed in spite
/// of its read errors. Both can be read again now.
async fn with_failed_reads(rack: &Rc<Rack>) -> (Rc<Pool>, Device) {
    let pool = filled(rack, 4000).await;
    let v = pool.open_volume("v").unwrap();
    fail_reads(rack, "b", true);
    read(&v, 0..4000).await;
    pass(1).await;
    assert_eq!(line(&pool, "b").state, Health::Faulted);
    fail_reads(rack, "c", true);
    for at in 0..100 {
        let _ = v.read(at * 4096 + 4096, forebay_device::IoBuf::zeroed(4096)).await;
    }
    pass(1).await;
    let c = line(&pool, "c");
    assert_eq!((c.state, c.note), (Health::Degraded, Some(VdevNote::TooManyErrors)));
    fail_reads(rack, "c", false);
    fail_reads(rack, "b", false);
    (pool, v)
}

#[test]
fn clear_takes_back_only_the_named_device_or_all() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l"], SIZE);
        let (pool, _v) = with_failed_reads(&rack).await;
        assert!(pool.clear(Some("x")).await.is_err());
        pool.clear(Some("c")).await.unwrap();
        assert_eq!((line(&pool, "c").state, line(&pool, "c").read_errors), (Health::Online, 0));
        assert_eq!(line(&pool, "b").state, Health::Faulted, "only what was named");
        pool.clear(None).await.unwrap();
        scan_ended(&pool).await;
        let b = line(&pool, "b");
        assert_eq!((b.state, b.read_errors, b.note), (Health::Online, 0, None));
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn unreadable_blocks_stay_listed_until_a_whole_scrub_has_read_them() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l"], SIZE);
        let (pool, v) = with_failed_reads(&rack).await;
        pool.clear(None).await.unwrap();
        scan_ended(&pool).await;
        let known = pool.status();
        assert!(known.lost_count > 0);
        pool.export().await.unwrap();
        drop((v, pool));
        // A later import lists them too.
        let paths = names(&["a", "b", "c", "l"]);
        let import = || Pool::import(rack.host(1), &paths, "tank", &OPTIONS);
        let pool = import().await.unwrap();
        let again = pool.status();
        assert_eq!((again.lost_count, &again.lost), (known.lost_count, &known.lost));
        assert_eq!(pool.condition(), PoolCondition::DataLost);
        // A scrub that was cut short has not read everything.
        pool.scrub().await.unwrap();
        pool.scrub_stop().await.unwrap();
        pass(1).await;
        assert_eq!(pool.status().lost, known.lost);
        pool.scrub().await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(pool.status().lost_count, 0);
        assert_eq!(pool.condition(), PoolCondition::Well);
        let v = pool.open_volume("v").unwrap();
        read(&v, 1..4000).await;
        pool.export().await.unwrap();
        drop((v, pool));
        let pool = import().await.unwrap();
        assert_eq!(pool.status().lost_count, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_scrub_is_remembered_over_an_export_and_goes_on_where_it_was() {
    let rack = Rack::new(&["a", "b", "c", "l"], SIZE);
    let paths = names(&["a", "b", "c", "l"]);
    let (mine, its) = (rack.clone(), paths.clone());
    Runtime::simulated(4).block_on(async move {
        let (rack, paths) = (mine, its);
        let pool = filled(&rack, 14000).await;
        pool.set("scan_rate", "1M").await.unwrap();
        let scan = |pool: &Pool| pool.status().scan.expect("there is one");
        assert!(pool.status().scan.is_none());
        pool.scrub().await.unwrap();
        assert_eq!(scan(&pool).state, ScanPhase::InProgress, "at once");
        assert!(pool.scrub().await.is_err());
        forebay_rt::sleep(forebay_units::Nanos::from_secs(10)).await;
        pool.scrub_pause().await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(5)).await;
        let paused = scan(&pool);
        assert_eq!(paused.state, ScanPhase::Paused);
        assert!(paused.done_bytes > 0 && paused.done_bytes < paused.total_bytes, "{paused:?}");
        assert!((9..=12).contains(&paused.elapsed_secs), "{paused:?}");
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(100)).await;
        assert_eq!(scan(&pool), paused, "paused it stays");
        pool.scrub().await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(3)).await;
        let more = scan(&pool);
        assert_eq!((more.state, more.started_at), (ScanPhase::InProgress, paused.started_at));
        assert!(more.done_bytes >= paused.done_bytes, "{more:?}");
        assert!((12..=16).contains(&more.elapsed_secs), "{more:?}");
        pool.export().await.unwrap();
        drop(pool);
        // Cut short by an export, the scrub continues by itself and reads each segment once in all.
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        assert_eq!(scan(&pool).state, ScanPhase::InProgress);
        let mut rounds = 0;
        while scan(&pool).state == ScanPhase::InProgress {
            forebay_rt::sleep(forebay_units::Nanos::from_secs(1)).await;
            rounds += 1;
            assert!(rounds < 200, "{:?}", scan(&pool));
        }
        let done = scan(&pool);
        assert_eq!((done.state, done.errors, done.repaired_bytes), (ScanPhase::Completed, 0, 0));
        // A scrub that is paused before its first read can be stopped.
        pool.scrub().await.unwrap();
        pool.scrub_pause().await.unwrap();
        assert_eq!(scan(&pool).state, ScanPhase::Paused);
        pool.scrub_stop().await.unwrap();
        assert_eq!(scan(&pool).state, ScanPhase::Stopped);
        assert!(pool.scrub_stop().await.is_err());
        pool.scrub().await.unwrap();
        // Long enough for its progress to reach the devices.
        forebay_rt::sleep(forebay_units::Nanos::from_secs(45)).await;
        assert_eq!(scan(&pool).state, ScanPhase::InProgress);
    });
    // After a crash the scrub continues from a little before.
    Runtime::simulated(5).block_on(async move {
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        let scan = pool.status().scan.unwrap();
        assert_eq!((scan.kind, scan.state), (ScanKind::Scrub, ScanPhase::InProgress));
        assert!(scan.elapsed_secs >= 30 && scan.done_bytes > 0, "{scan:?}");
        pool.set("scan_rate", "auto").await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(60)).await;
        assert_eq!(pool.status().scan.unwrap().state, ScanPhase::Completed);
        pool.export().await.unwrap();
    });
}

#[test]
fn sizes_are_counted_as_zpool_counts_them() {
    Runtime::simulated(6).block_on(async {
        for (layout, devices, times) in [
            (Layout::Raid0, &["a", "b", "c"][..], 3.0),
            (Layout::Mirror, &["a", "b", "c"][..], 1.0),
            (Layout::Raidz2, &["a", "b", "c", "d"][..], 4.0),
        ] {
            let rack = Rack::new(devices, SIZE);
            let spec = spec(layout, devices, &[]);
            let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
            let of = |bytes: u64| bytes as f64 / SIZE as f64;
            let empty = pool.summary();
            // Labels and the region of the log do not count.
            let size = of(empty.raw_size_bytes);
            assert!(size < times && size > 0.85 * times, "{layout:?}: {empty:?}");
            assert_eq!((empty.raw_alloc_bytes, empty.raw_free_bytes), (0, empty.raw_size_bytes));
            assert!(empty.size_bytes < empty.raw_size_bytes);
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for at in 0..1024 {
                v.write(at * 4096, stamp(4096, at), false).await.unwrap();
            }
            pool.sync().await.unwrap();
            let full = pool.summary();
            assert_eq!(full.alloc_bytes, 4 << 20);
            let parity = match layout {
                Layout::Raidz2 => 2.0,
                _ => 1.0,
            };
            let share = full.raw_alloc_bytes as f64 / full.alloc_bytes as f64;
            assert!(share >= parity && share < parity * 1.1, "{layout:?}: {full:?}");
            assert_eq!(full.raw_alloc_bytes + full.raw_free_bytes, full.raw_size_bytes);
            assert_eq!(pool.get()["size"], full.raw_size_bytes.to_string());
            assert_eq!(pool.get()["available"], full.available_bytes.to_string());
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn condition_follows_the_state_of_the_devices() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "l"], SIZE);
        let pool = filled(&rack, 4000).await;
        pool.offline("b").await.unwrap();
        assert_eq!(pool.status().state, Health::Degraded);
        assert_eq!(pool.condition(), PoolCondition::DevicesOffline);
        pool.sync().await.unwrap();
        let last = pool.events().pop();
        let is_of_b =
            matches!(&last, Some(PoolEvent::StateChanged { device, .. }) if device == "b");
        assert!(is_of_b, "by its path: {last:?}");
        pool.replace("b", Some("d"), false).await.unwrap();
        pool.offline("b").await.unwrap();
        assert_eq!(pool.condition(), PoolCondition::DevicesOffline);
        pool.detach("b").await.unwrap();
        assert_eq!(pool.status().state, Health::Degraded);
        assert_eq!(pool.condition(), PoolCondition::Rebuilding);
        while pool.status().state != Health::Online {
            forebay_rt::sleep(forebay_units::Nanos::from_secs(1)).await;
        }
        assert_eq!(pool.condition(), PoolCondition::Well);
    });
}

#[test]
fn groups_and_logs_report_their_space() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "e", "f", "l"], SIZE);
        let pool = filled(&rack, 4000).await;
        let empty = spec(Layout::Raidz1, &["d", "e", "f"], &[]);
        pool.add(&empty).await.unwrap();
        let (status, summary) = (pool.status(), pool.summary());
        let space = |at: usize| status.groups[at].space.expect("a group has space");
        assert_eq!(space(1).raw_alloc_bytes, Some(0), "the new one is empty");
        let held = space(0).raw_alloc_bytes.unwrap();
        assert!(held > 4000 * 4096 * 3 / 2, "with its parity: {held}");
        assert_eq!(space(0).raw_size_bytes + space(1).raw_size_bytes, summary.raw_size_bytes);
        assert_eq!(status.groups[0].children[0].space, None, "devices have none of their own");
        let log = status.logs[0].space.unwrap();
        assert!(log.raw_size_bytes > 0 && log.raw_alloc_bytes < Some(log.raw_size_bytes));
        // Space reserved for one volume is not available to another, written or not.
        let usable = summary.size_bytes;
        assert_eq!(summary.available_bytes, usable - (64 << 20));
        assert_eq!(summary.free_bytes, usable - 4000 * 4096);
        let found = pool.get();
        assert_eq!(found["available"], summary.available_bytes.to_string());
    });
}

#[test]
fn log_devices_are_added_and_removed_without_limit() {
    let rack = Rack::new(&["a", "l", "m"], SIZE);
    let there = rack.clone();
    Runtime::simulated(7).block_on(async move {
        let rack = there;
        let both = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &both).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for round in 0..40u64 {
            let (new, old) = if round % 2 == 0 { ("m", "l") } else { ("l", "m") };
            v.write(0, stamp(4096, round), true).await.unwrap();
            let add = spec(Layout::Raid0, &[], &[new]);
            let add = crate::spec::PoolSpec { groups: vec![], force: true, ..add };
            pool.add(&add).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
            v.write(4096, stamp(4096, round + 100), true).await.unwrap();
            pool.remove(old).await.unwrap();
        }
        v.write(0, stamp(4096, 40), true).await.unwrap();
        let held = pool.status().logs[0].space.unwrap().raw_alloc_bytes;
        assert!(held > Some(0), "the newest write waits in the log");
    });
    // After a crash, frames are found on a ring whose number had been used before.
    Runtime::simulated(8).block_on(async move {
        let paths = names(&["a", "l", "m"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &OPTIONS).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, 40)).await;
        expect(&v, 4096, &stamp(4096, 139)).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn each_log_device_reports_its_used_space() {
    Runtime::simulated(8).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let mut all = spec(Layout::Raid0, &["a"], &["l"]);
        all.logs.push(crate::spec::LogSpec { devices: vec!["m".into()] });
        let pool = Pool::create(rack.host(1), "tank", &all).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..32 {
            v.write(at * 4096, stamp(4096, at), true).await.unwrap();
        }
        let (status, stats) = (pool.status(), pool.stats());
        let space = |at: usize| status.logs[at].space.expect("a log has space");
        let held = |at: usize| space(at).raw_alloc_bytes.expect("each for itself");
        assert!(held(0) > 0 && held(1) > 0, "both take writes: {} {}", held(0), held(1));
        assert_eq!(held(0) + held(1), stats.log_used_bytes);
        assert_eq!(space(0).raw_size_bytes + space(1).raw_size_bytes, stats.log_capacity_bytes);
        pool.export().await.unwrap();
    });
}
