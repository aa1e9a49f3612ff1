//! A scan, or an export, must leave a map journal that an import can read.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos, SegmentId};

use super::rack::{Rack, paced};
use super::{names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::{PoolEvent, ScanPhase};
use crate::{AdminError, CloseError, CommitError, Pool, SuspendReason};

const SIZE: u64 = 480 << 20;
const VOLUME: u64 = 320 << 20;

/// A pool of one device with so many scattered blocks that the map takes several roots.
async fn with_a_long_map(rack: &Rc<Rack>) -> (Rc<Pool>, Device) {
    let mut options = spec(Layout::Raid0, &["a"], &[]);
    options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    pool.create_volume(&volume(VOLUME)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let blocks = VOLUME / 4096;
    let data = stamp(4096, 1);
    for i in 0..blocks {
        // A stride that is coprime to the number of blocks.
        v.write(i * 7919 % blocks * 4096, data.clone(), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    (pool, v)
}

/// Damages the first frame of the map journal, wherever it is.
async fn spoil_the_journal(rack: &Rack) {
    const STEP: u64 = 1 << 20;
    let a = rack.device("a");
    let junk = IoBuf::copy_of(&[0xaa; 4096]).freeze();
    let mut frame: Option<Vec<u8>> = None;
    for at in (5 << 20..SIZE - STEP).step_by(STEP as usize) {
        let held = a.read(at, IoBuf::zeroed(STEP as usize)).await.unwrap();
        for (block, bytes) in held.chunks(4096).enumerate() {
            if bytes.starts_with(b"FBAYJRNL") && frame.as_ref().is_none_or(|first| first == bytes) {
                frame = Some(bytes.to_vec());
                a.write(at + block as u64 * 4096, junk.clone(), false).await.unwrap();
            }
        }
    }
    assert!(frame.is_some(), "there is no frame");
}

async fn scrub_ended(pool: &Pool) -> ScanPhase {
    loop {
        let state = pool.scan_status().unwrap().state;
        if state != ScanPhase::InProgress {
            return state;
        }
        rt::sleep(Nanos::from_millis(100)).await;
    }
}

async fn comes_back(rack: &Rc<Rack>) {
    let paths = names(&["a"]);
    let options = ImportOptions::default();
    let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let held = v.read(VOLUME / 2, IoBuf::zeroed(4096)).await.unwrap();
    assert!(held[..] == stamp(4096, 1)[..]);
    pool.export().await.unwrap();
}

#[test]
fn an_export_waits_for_a_map_that_is_being_written_anew() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, v) = with_a_long_map(&rack).await;
        spoil_the_journal(&rack).await;
        pool.scrub().await.unwrap();
        // The scrub has found the damage, and the map will be written anew.
        while !pool.scan.journal_damaged.get() {
            assert_eq!(pool.scan_status().unwrap().state, ScanPhase::InProgress);
            rt::yield_now().await;
        }
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        comes_back(&rack).await;
    });
}

/// Leaves two free segments, as in a pool whose cleaner finds no victim.
fn take_all_but_two(pool: &Pool) -> Vec<SegmentId> {
    let all = (0..pool.store.table.count()).map(SegmentId);
    all.filter(|segment| pool.store.table.free_count() > 2 && pool.store.table.hold(*segment))
        .collect()
}

#[test]
fn a_scrub_gives_up_when_there_is_no_room_for_the_map() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, _v) = with_a_long_map(&rack).await;
        spoil_the_journal(&rack).await;
        let held = take_all_but_two(&pool);
        let before = pool.sync.commit.get().0;
        pool.scrub().await.unwrap();
        let ended = rt::timeout(Nanos::from_secs(600), scrub_ended(&pool)).await;
        let roots = pool.sync.commit.get().0 - before;
        assert!(ended.is_ok() && !pool.is_stopped(), "{roots} roots; {:?}", pool.events());
        assert!(pool.scan_status().unwrap().errors > 0);
        assert!(pool.events().contains(&PoolEvent::JournalNotRenewed), "{:?}", pool.events());
        // With room again, another scrub repairs everything.
        held.into_iter().for_each(|segment| pool.store.table.let_go(segment));
        pool.scrub().await.unwrap();
        assert_eq!(scrub_ended(&pool).await, ScanPhase::Completed);
        assert_eq!(pool.scan_status().unwrap().errors, 0);
        pool.export().await.unwrap();
        drop(pool);
        comes_back(&rack).await;
    });
}

#[test]
fn export_is_refused_while_the_only_map_is_in_memory() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, v) = with_a_long_map(&rack).await;
        spoil_the_journal(&rack).await;
        let held = take_all_but_two(&pool);
        pool.scrub().await.unwrap();
        scrub_ended(&pool).await;
        let refused = pool.export().await.unwrap_err();
        assert_eq!(refused, CloseError::JournalDamaged { pool: "tank".into() });
        assert!(!pool.has_ended() && !pool.is_stopped());
        v.write(VOLUME / 2, stamp(4096, 1), true).await.unwrap();
        // With room again, the same export writes the map.
        held.into_iter().for_each(|segment| pool.store.table.let_go(segment));
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        comes_back(&rack).await;
    });
}

#[test]
fn a_pool_without_room_for_its_map_can_be_destroyed_and_its_process_may_end() {
    for destroy in [true, false] {
        Runtime::simulated(2).block_on(async move {
            let rack = Rack::new(&["a"], SIZE);
            let (pool, _) = with_a_long_map(&rack).await;
            spoil_the_journal(&rack).await;
            let _held = take_all_but_two(&pool);
            pool.scrub().await.unwrap();
            scrub_ended(&pool).await;
            match destroy {
                true => pool.destroy().await.unwrap(),
                false => {
                    let reason = CommitError::JournalDamaged.into();
                    let error = CloseError::Suspended { pool: "tank".into(), reason };
                    assert_eq!(pool.end().await, Err(error));
                }
            }
            assert!(pool.has_ended());
        });
    }
}

#[test]
fn a_scrub_can_be_stopped_while_the_map_is_written_anew() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, _v) = with_a_long_map(&rack).await;
        spoil_the_journal(&rack).await;
        let held = take_all_but_two(&pool);
        pool.scrub().await.unwrap();
        while !pool.scan.journal_damaged.get() {
            rt::yield_now().await;
        }
        let now = rt::now();
        pool.scrub_stop().await.unwrap();
        assert_eq!(scrub_ended(&pool).await, ScanPhase::Stopped);
        assert!(rt::now().since(now) < Nanos::from_secs(5));
        held.into_iter().for_each(|segment| pool.store.table.let_go(segment));
        // The export completes what the scrub began.
        pool.export().await.unwrap();
        drop(pool);
        comes_back(&rack).await;
    });
}

// A segment may take seconds to read, and groups need the lock that keeps it in place.
#[test]
fn groups_are_committed_between_the_rows_of_a_resilver() {
    Runtime::simulated(4).block_on(async {
        // Large enough for a segment to take more than one step.
        let inner = Rack::new(&["a", "b"], 16 << 30);
        let slow = Rc::new(Cell::new(false));
        let pace = {
            let slow = slow.clone();
            move |_: &str, operation: Operation, at: u64| {
                let body = operation == Operation::Read && at >= 1 << 20;
                (body && slow.get()).then(|| Nanos::from_secs(4))
            }
        };
        let opener = paced(inner.host(1), pace);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        let column = pool.store.array.geometry_of(SegmentId(0)).unwrap().column_bytes;
        assert!(column > 1 << 20, "{column}");
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        pool.offline("b").await.unwrap();
        for at in (0..8u64 << 20).step_by(1 << 20) {
            v.write(at, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        slow.set(true);
        pool.online("b").await.unwrap();
        let (mut longest, mut groups) = (Nanos(0), 0u64);
        while pool.scan_status().is_some_and(|scan| scan.state == ScanPhase::InProgress) {
            let begun = rt::now();
            v.write(0, stamp(4096, groups), false).await.unwrap();
            pool.sync().await.unwrap();
            longest = longest.max(rt::now().since(begun));
            groups += 1;
            rt::sleep(Nanos::from_millis(300)).await;
        }
        slow.set(false);
        // One read for the back references, and one for a step.
        assert!(groups > 3 && longest < Nanos::from_secs(10), "{groups} groups, {longest:?}");
        assert!(pool.store.array.stale_segments().is_empty());
        // The other side has all of the segment now.
        inner.pull(&["a"]);
        super::expect(&v, 0, &stamp(4096, groups - 1)).await;
        for at in (1 << 20..8u64 << 20).step_by(1 << 20) {
            super::expect(&v, at, &stamp(1 << 20, at)).await;
        }
    });
}

// An export may take longer than another machine's activity check.
#[test]
fn a_pool_that_takes_long_to_export_is_seen_to_be_in_use() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let slow = Rc::new(Cell::new(false));
        let pace = {
            let slow = slow.clone();
            move |_: &str, operation: Operation, at: u64| {
                let body = operation == Operation::Write && at >= 1 << 20;
                (body && slow.get()).then(|| Nanos::from_secs(20))
            }
        };
        let opener = paced(rack.host(1), pace);
        let pool = Pool::create(opener, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(65536, 1), false).await.unwrap();
        slow.set(true);
        let leaving = rt::spawn({
            let pool = pool.clone();
            async move { pool.export().await }
        });
        rt::sleep(Nanos::from_secs(2)).await;
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let other = Pool::import(rack.host(2), &names(&["a"]), "tank", &options).await;
        let error = other.err().expect("two machines have the pool");
        assert_kind!(error.kind, InUseElsewhere { .. });
        assert!(!leaving.is_finished());
        leaving.await.unwrap();
        slow.set(false);
        drop((v, pool));
        let options = ImportOptions::default();
        let other = Pool::import(rack.host(2), &names(&["a"]), "tank", &options).await.unwrap();
        let v = other.open_volume("v").unwrap();
        super::expect(&v, 0, &stamp(65536, 1)).await;
        other.export().await.unwrap();
    });
}

#[test]
fn devices_are_free_as_soon_as_a_pool_is_exported() {
    for seed in 0..20 {
        Runtime::simulated(seed).block_on(async move {
            let rack = Rack::new(&["a", "b", "l"], 64 << 20);
            let opener = paced(rack.locked(), |_, operation, _| {
                (operation == Operation::Read).then_some(Nanos::from_millis(20))
            });
            let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            rt::sleep(Nanos::from_millis(100 * seed)).await;
            pool.export().await.unwrap();
            drop(pool);
            rt::sleep(Nanos::from_micros(1)).await;
            for device in ["a", "b", "l"] {
                rack.locked().open(device).await.unwrap();
            }
        });
    }
}

#[test]
fn the_journal_does_not_outgrow_its_map() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, v) = with_a_long_map(&rack).await;
        let blocks = VOLUME / 4096;
        let mut longest = 0;
        for group in 0..64 {
            for i in 0..6000 {
                let at = (group * 6000 + i) * 7919 % blocks * 4096;
                v.write(at, stamp(4096, group), false).await.unwrap();
            }
            pool.sync().await.unwrap();
            longest = longest.max(pool.writers.lock().await.journal.segments() as u64);
        }
        // From there on a checkpoint is urgent, and it takes some groups.
        let worth = pool.checkpoint_worth();
        assert!(longest > worth && longest <= worth * 7 / 4, "{longest}, worth {worth}");
        drop(v);
        pool.export().await.unwrap();
    });
}

// A write of a part of a block reads the rest of it first. Nothing commits what it absorbs after
// the last group.
#[test]
fn a_write_that_meets_an_export_is_kept_or_refused() {
    let mut refused = 0;
    for delay_ms in [1, 100, 5_000] {
        refused += u32::from(Runtime::simulated(7).block_on(async move {
            let rack = Rack::new(&["a"], 64 << 20);
            let slow = Rc::new(Cell::new(false));
            let pace = {
                let slow = slow.clone();
                move |_: &str, operation: Operation, at: u64| {
                    let body = operation == Operation::Read && at >= 1 << 20;
                    (body && slow.get()).then(|| Nanos::from_millis(delay_ms))
                }
            };
            let opener = paced(rack.host(1), pace);
            let options = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(4096, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            slow.set(true);
            let writing = rt::spawn(async move { v.write(512, stamp(512, 2), false).await });
            rt::sleep(Nanos::from_micros(10)).await;
            pool.export().await.unwrap();
            drop(pool);
            let outcome = writing.await;
            slow.set(false);
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&["a"]), "tank", &options).await.unwrap();
            if outcome.is_ok() {
                super::expect(&pool.open_volume("v").unwrap(), 512, &stamp(512, 2)).await;
            }
            pool.export().await.unwrap();
            outcome.is_err()
        }));
    }
    assert!(refused > 0, "no write was under way for long enough");
}

#[test]
fn a_scrub_that_has_not_begun_to_read_is_stopped_with_its_pool() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let (pool, _v) = with_a_long_map(&rack).await;
        pool.scrub().await.unwrap();
        pool.stop(SuspendReason::TakenOver);
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(pool.scan_status().unwrap().state, ScanPhase::Stopped);
    });
}

#[test]
fn a_pool_that_ends_takes_no_more_commands_and_ends_once() {
    Runtime::simulated(126).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        let export = rt::spawn({
            let pool = pool.clone();
            async move { pool.export().await }
        });
        while !pool.has_ended() {
            rt::sleep(Nanos::from_micros(1)).await;
        }
        let waiting = pool.set("comment", "late").await;
        assert_eq!(waiting, Err(AdminError::Closing { pool: "tank".into() }));
        export.await.unwrap();
        let closing = CloseError::Closing { pool: "tank".into() };
        assert_eq!(pool.export().await, Err(closing.clone()));
        assert_eq!(pool.destroy().await, Err(closing));
        let changes = rack.changes();
        let late = pool.set("comment", "late").await;
        assert_eq!(late, Err(AdminError::Closing { pool: "tank".into() }));
        assert_eq!(rack.changes(), changes);
        assert!(pool.open_volume("v").is_none() && pool.open_snapshot("v@a").is_none());
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&["a"]), "tank", &options).await.unwrap();
        assert_eq!(pool.get()["comment"], "-");
        pool.export().await.unwrap();
    });
}

#[test]
fn commands_on_a_suspended_pool_and_its_devices_change_nothing() {
    Runtime::simulated(127).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "m"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        rack.switches.works_for.set(Some(0));
        let _ = pool.set("comment", "none").await;
        assert!(pool.is_stopped());
        rack.switches.works_for.set(None);
        let changes = rack.changes();
        for outcome in [
            pool.set("comment", "late").await,
            pool.add(&spec(Layout::Raid0, &[], &["c"])).await,
            pool.attach("a", "c", false).await,
            pool.replace("a", Some("c"), false).await,
            pool.detach("b").await,
            pool.offline("b").await,
            pool.online("b").await,
            pool.remove("mirror-1").await,
            pool.upgrade().await.map(drop),
        ] {
            assert!(matches!(outcome, Err(AdminError::Suspended { .. })), "{outcome:?}");
        }
        assert_eq!(rack.changes(), changes);
    });
}
