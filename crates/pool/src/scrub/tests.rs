//! What a scan says of itself, while it runs, pauses, ends, and after an import.

use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_map::{DEDUP_VOLUME, PACKED_VOLUME};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Lba, Nanos};

use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{Health, PoolEvent, ScanKind, ScanPhase, ScanStatus};
use crate::tests::rack::{Rack, paced};
use crate::tests::{expect, names, spec, stamp, volume};
use written::{spoil, until, written, written_on};

pub(in crate::scrub) mod written;

async fn secs(count: u64) {
    rt::sleep(Nanos::from_secs(count)).await;
}

fn has_ended(scan: &ScanStatus) -> bool {
    scan.state != ScanPhase::InProgress
}

/// All that [`written_on`] has written, of which [`spoil`] spoils 64 blocks.
fn all_parts() -> Vec<forebay_device::IoBytes> {
    (0..4).map(|at| stamp(1 << 20, at)).collect()
}

async fn imported(rack: &Rc<Rack>, paths: &[&str]) -> Rc<Pool> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::import(rack.host(1), &names(paths), "tank", &options).await.unwrap()
}

/// A mirror of `a` and `b` with as much as [`written_on`] writes, whose scans read as slowly.
async fn mirrored(rack: &Rc<Rack>) -> Rc<Pool> {
    let mut options = spec(Layout::Mirror, &["a", "b"], &[]);
    options.properties.insert("scan_rate".to_owned(), "1M".to_owned());
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for (at, part) in (0..).zip(all_parts()) {
        v.write(at << 20, part, false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

/// Takes `b` offline, and writes what it misses.
async fn leave_b_behind(pool: &Rc<Pool>) {
    pool.offline("b").await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(5 << 20, stamp(1 << 20, 50), false).await.unwrap();
    pool.sync().await.unwrap();
}

#[test]
fn a_scrub_says_how_far_it_is_and_how_long_it_took() {
    Runtime::simulated(7200).block_on(async {
        let pool = written().await;
        for number in 1..3 {
            secs(100).await;
            let begun = rt::now();
            pool.scrub().await.unwrap();
            let scan = pool.scan_status().unwrap();
            assert_eq!((scan.kind, scan.state), (ScanKind::Scrub, ScanPhase::InProgress));
            let figures = (scan.elapsed_secs, scan.done_bytes, scan.repaired_bytes, scan.errors);
            assert_eq!(figures, (0, 0, 0, 0));
            assert!((4 << 20..16 << 20).contains(&scan.total_bytes), "what is in use: {scan:?}");
            let scan = until(&pool, has_ended).await;
            let took_secs = rt::now().since(begun).0 / 1_000_000_000;
            assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, 0));
            assert_eq!(scan.done_bytes, scan.total_bytes);
            assert!((took_secs - 1..=took_secs).contains(&scan.elapsed_secs), "{scan:?}");
            assert!(took_secs >= 4, "{took_secs}");
            let events = pool.events();
            let began = |event: &&PoolEvent| **event == PoolEvent::ScanBegan(ScanKind::Scrub);
            assert_eq!(events.iter().filter(began).count(), number);
            let (kind, phase) = (ScanKind::Scrub, ScanPhase::Completed);
            let end = PoolEvent::ScanEnded { kind, phase, repaired_bytes: 0, errors: 0 };
            assert_eq!(events.iter().filter(|event| **event == end).count(), number);
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_scrub_that_pauses_meets_each_segment_once_and_counts_no_pause() {
    Runtime::simulated(7201).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let pool = written_on(rack.host(1)).await;
        let spoiled = spoil(&rack.device("a"), &all_parts()).await;
        let mut pauses = 0;
        loop {
            pool.scrub().await.unwrap();
            rt::sleep(Nanos::from_millis(1300)).await;
            if pool.scrub_pause().await.is_err() {
                break;
            }
            pauses += 1;
            secs(100).await;
        }
        assert!(pauses > 1);
        let scan = pool.scan_status().unwrap();
        assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, spoiled));
        assert_eq!(pool.status().lost_count, spoiled);
        assert!((3..10).contains(&scan.elapsed_secs), "{scan:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_scrub_goes_on_after_an_import_with_what_it_had() {
    Runtime::simulated(7202).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let pool = written_on(rack.host(1)).await;
        let spoiled = spoil(&rack.device("a"), &[stamp(64 << 10, 0)]).await;
        secs(1000).await;
        pool.scrub().await.unwrap();
        until(&pool, |scan| scan.errors > 0).await;
        // A root has what is known by then, and the last one what follows.
        pool.sync().await.unwrap();
        secs(2).await;
        let before = pool.scan_status().unwrap();
        pool.export().await.unwrap();
        drop(pool);
        secs(1000).await;
        let pool = imported(&rack, &["a"]).await;
        let after = pool.scan_status().unwrap();
        assert_eq!(after.state, ScanPhase::InProgress);
        assert!(after.done_bytes >= before.done_bytes, "{before:?}, then {after:?}");
        let scan = until(&pool, has_ended).await;
        assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, spoiled));
        assert!(scan.elapsed_secs < 20, "{scan:?}");
        pool.export().await.unwrap();
    });
}

/// What an import finds of a scrub that ran, paused, went on and was stopped, up to a crash.
fn state_after(commands: &'static [&'static str]) -> ScanPhase {
    let rack = Rack::new(&["a"], 64 << 20);
    let mine = rack.clone();
    let first = Runtime::simulated(7203);
    first.block_on(async move {
        let pool = written_on(mine.host(1)).await;
        for command in commands {
            match *command {
                "scrub" => pool.scrub().await.unwrap(),
                "pause" => pool.scrub_pause().await.unwrap(),
                _ => pool.scrub_stop().await.unwrap(),
            }
            pool.sync().await.unwrap();
            rt::sleep(Nanos::from_millis(500)).await;
        }
    });
    drop(first);
    Runtime::simulated(7204).block_on(async move {
        let pool = imported(&rack, &["a"]).await;
        let found = pool.scan_status().expect("there is one").state;
        pool.export().await.unwrap();
        found
    })
}

#[test]
fn what_an_operator_told_a_scrub_holds_after_a_crash() {
    assert_eq!(state_after(&["scrub"]), ScanPhase::InProgress);
    assert_eq!(state_after(&["scrub", "pause"]), ScanPhase::Paused);
    assert_eq!(state_after(&["scrub", "pause", "scrub"]), ScanPhase::InProgress);
    assert_eq!(state_after(&["scrub", "pause", "stop"]), ScanPhase::Stopped);
}

#[test]
fn a_scrub_after_a_resilver_begins_at_the_first_segment() {
    Runtime::simulated(7205).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let pool = mirrored(&rack).await;
        pool.scrub().await.unwrap();
        secs(3).await;
        pool.scrub_pause().await.unwrap();
        leave_b_behind(&pool).await;
        pool.online("b").await.unwrap();
        let resilver = until(&pool, has_ended).await;
        assert_eq!((resilver.kind, resilver.errors), (ScanKind::Resilver, 0));
        let spoiled = spoil(&rack.device("a"), &all_parts()).await;
        pool.scrub().await.unwrap();
        let scan = until(&pool, has_ended).await;
        assert_eq!((scan.repaired_bytes, scan.errors), (spoiled * 4096, 0));
        pool.export().await.unwrap();
    });
}

// The scan reads a segment to its end before it notices.
#[test]
fn what_is_read_for_a_scrub_that_was_stopped_is_told_of_no_other() {
    for millis in (700..4000).step_by(370) {
        Runtime::simulated(7206).block_on(async move {
            let rack = Rack::new(&["a"], 64 << 20);
            let pool = written_on(rack.host(1)).await;
            let spoiled = spoil(&rack.device("a"), &all_parts()).await;
            rack.switches.reads_take.set(Nanos::from_millis(200));
            let stop = async || {
                pool.scrub().await.unwrap();
                rt::sleep(Nanos::from_millis(millis)).await;
                pool.scrub_stop().await.unwrap();
            };
            stop().await;
            let stopped = pool.scan_status();
            secs(5).await;
            assert_eq!(pool.scan_status(), stopped, "after {millis} ms");
            stop().await;
            pool.scrub().await.unwrap();
            let scan = until(&pool, has_ended).await;
            assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, spoiled));
            assert_eq!(pool.status().lost_count, spoiled);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_a_paused_scrub_still_reads_is_not_told_of_a_resilver() {
    for millis in (500..4000).step_by(470) {
        Runtime::simulated(7207).block_on(async move {
            // Large enough for a segment to take several steps, between which roots are written.
            let rack = Rack::new(&["a", "b"], 1 << 30);
            let pool = mirrored(&rack).await;
            leave_b_behind(&pool).await;
            // These segments are full, and `b` misses none of them.
            spoil(&rack.device("a"), &all_parts()[..3]).await;
            rack.switches.reads_take.set(Nanos::from_millis(200));
            pool.scrub().await.unwrap();
            rt::sleep(Nanos::from_millis(millis)).await;
            pool.scrub_pause().await.unwrap();
            pool.online("b").await.unwrap();
            let is_over = |scan: &ScanStatus| scan.kind == ScanKind::Resilver && has_ended(scan);
            assert_eq!(until(&pool, is_over).await.errors, 0, "after {millis} ms");
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_resilver_waits_for_the_scrub_that_runs() {
    Runtime::simulated(7208).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let pool = mirrored(&rack).await;
        leave_b_behind(&pool).await;
        pool.scrub().await.unwrap();
        secs(1).await;
        pool.online("b").await.unwrap();
        let scan = pool.scan_status().unwrap();
        assert_eq!((scan.kind, scan.state), (ScanKind::Scrub, ScanPhase::InProgress));
        until(&pool, |scan| scan.kind == ScanKind::Resilver && has_ended(scan)).await;
        let is_done = |event: &PoolEvent| {
            let (kind, phase) = (ScanKind::Scrub, ScanPhase::Completed);
            *event == PoolEvent::ScanEnded { kind, phase, repaired_bytes: 0, errors: 0 }
        };
        assert!(pool.events().iter().any(is_done), "{:?}", pool.events());
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_resilver_that_goes_on_says_how_much_is_left() {
    Runtime::simulated(7209).block_on(async {
        let pool = written().await;
        let segment = pool.segment_data_bytes();
        for (left, total, done) in [(4, 4, 0), (1, 4, 3), (9, 9, 0), (2, 9, 7)] {
            pool.begin_resilver(left);
            let scan = pool.scan_status().unwrap();
            assert_eq!((scan.kind, scan.state), (ScanKind::Resilver, ScanPhase::InProgress));
            assert_eq!((scan.total_bytes, scan.done_bytes), (total * segment, done * segment));
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_resilver_begins_when_it_is_asked_for() {
    Runtime::simulated(7210).block_on(async {
        let pool = written().await;
        secs(100).await;
        pool.resilver();
        secs(1).await;
        let scan = pool.scan_status().expect("it ran");
        assert_eq!((scan.kind, scan.state), (ScanKind::Resilver, ScanPhase::Completed));
        pool.export().await.unwrap();
    });
}

#[test]
fn scans_stop_with_a_pool_that_is_suspended() {
    for kind in [ScanKind::Scrub, ScanKind::Resilver] {
        Runtime::simulated(7211).block_on(async move {
            let rack = Rack::new(&["a", "b"], 64 << 20);
            let pool = mirrored(&rack).await;
            pool.offline("b").await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for at in 0..4 {
                v.write(at << 20, stamp(1 << 20, 60 + at), false).await.unwrap();
            }
            pool.sync().await.unwrap();
            match kind {
                ScanKind::Scrub => pool.scrub().await.unwrap(),
                ScanKind::Resilver => pool.online("b").await.unwrap(),
            }
            secs(1).await;
            rack.switches.works_for.set(Some(0));
            let _ = pool.sync().await;
            assert!(pool.is_resumable(), "it is suspended");
            secs(1).await;
            let scan = pool.scan_status().unwrap();
            assert_eq!((scan.kind, scan.state), (kind, ScanPhase::Stopped));
            let _ = pool.end().await;
        });
    }
}

#[test]
fn a_resilver_whose_last_root_fails_is_not_called_complete() {
    Runtime::simulated(7212).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let pool = mirrored(&rack).await;
        leave_b_behind(&pool).await;
        pool.online("b").await.unwrap();
        while pool.scan_status().is_some_and(|scan| scan.done_bytes < scan.total_bytes) {
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert!(!has_ended(&pool.scan_status().unwrap()), "it waits for its pace");
        rack.switches.works_for.set(Some(0));
        assert_eq!(until(&pool, has_ended).await.state, ScanPhase::Stopped);
        let _ = pool.end().await;
    });
}

#[test]
fn an_export_ends_a_scrub_with_the_segment_that_it_is_in() {
    Runtime::simulated(7213).block_on(async {
        let pool = written().await;
        pool.scrub().await.unwrap();
        rt::sleep(Nanos::from_millis(600)).await;
        let begun = rt::now();
        pool.export().await.unwrap();
        assert!(rt::now().since(begun) < Nanos::from_secs(2), "the scrub would take four");
        let scan = pool.scan_config().unwrap();
        assert!(scan.done_bytes < scan.total_bytes / 2, "{scan:?}");
    });
}

// The roots that say so come before the word.
#[test]
fn a_device_that_is_called_whole_is_enough_for_an_import() {
    let rack = Rack::new(&["a", "b", "l"], 64 << 20);
    let mine = rack.clone();
    let first = Runtime::simulated(7214);
    first.block_on(async move {
        let pace = |_: &str, operation: Operation, _: u64| {
            (operation == Operation::Write).then_some(Nanos::from_millis(5))
        };
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(paced(mine.host(1), pace), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        leave_b_behind(&pool).await;
        pool.online("b").await.unwrap();
        while !pool.scan_status().is_some_and(|scan| scan.state == ScanPhase::Completed) {
            rt::sleep(Nanos::from_millis(1)).await;
        }
    });
    drop(first);
    rack.pull(&["a"]);
    Runtime::simulated(7215).block_on(async move {
        let pool = imported(&rack, &["b", "l"]).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 5 << 20, &stamp(1 << 20, 50)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

// The log lies on the data devices.
#[test]
fn a_replacement_has_the_log_as_well() {
    let rack = Rack::new(&["a", "b", "c"], 64 << 20);
    let mine = rack.clone();
    let first = Runtime::simulated(7216);
    first.block_on(async move {
        let pool = mirrored(&mine).await;
        pool.replace("a", Some("c"), false).await.unwrap();
        until(&pool, has_ended).await;
        assert_eq!(pool.status().groups[0].children.len(), 2, "the original has left");
        let v = pool.open_volume("v").unwrap();
        v.write(6 << 20, stamp(8192, 61), true).await.unwrap();
    });
    drop(first);
    rack.pull(&["a", "b"]);
    Runtime::simulated(7217).block_on(async move {
        let pool = imported(&rack, &["c"]).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 6 << 20, &stamp(8192, 61)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn lost_blocks_are_listed_whatever_they_belong_to_and_stay_so_after_a_crash() {
    let rack = Rack::new(&["a"], 64 << 20);
    let mine = rack.clone();
    let first = Runtime::simulated(7218);
    first.block_on(async move {
        let pool = written_on(mine.host(1)).await;
        assert_eq!(spoil(&mine.device("a"), &[stamp(64 << 10, 0)]).await, 1);
        pool.sync().await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.read(0, IoBuf::zeroed(4096)).await.unwrap_err();
        assert_eq!(pool.status().lost_count, 1);
        pool.sync().await.unwrap();
    });
    drop(first);
    Runtime::simulated(7219).block_on(async move {
        let pool = imported(&rack, &["a"]).await;
        assert_eq!(pool.status().lost_count, 1);
        pool.note_lost_block(DEDUP_VOLUME, Lba(5));
        pool.note_lost_block(PACKED_VOLUME, Lba(6));
        let (named, count) = pool.lost();
        assert_eq!((named.len(), count), (3, 3), "{named:?}");
        pool.export().await.unwrap();
    });
}

/// Waits until a scrub has read its last segment.
async fn all_is_read(pool: &Rc<Pool>) {
    let last = *pool.segments_in_use().last().unwrap();
    pool.scrub().await.unwrap();
    while pool.scan.next.get() <= last.0 {
        rt::sleep(Nanos::from_millis(1)).await;
    }
    assert!(!has_ended(&pool.scan_status().unwrap()), "it waits for its pace");
}

#[test]
fn a_scrub_that_pauses_behind_its_last_segment_stays_so() {
    Runtime::simulated(7220).block_on(async {
        let pool = written().await;
        all_is_read(&pool).await;
        pool.scrub_pause().await.unwrap();
        secs(5).await;
        assert_eq!(pool.scan_status().unwrap().state, ScanPhase::Paused);
        pool.scrub().await.unwrap();
        let scan = until(&pool, has_ended).await;
        assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_scrub_that_a_suspension_ends_forgets_no_lost_block() {
    Runtime::simulated(7221).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let pool = written_on(rack.host(1)).await;
        let v = pool.volume_named("v").unwrap().id;
        pool.note_lost_block(v, Lba(1));
        all_is_read(&pool).await;
        rack.switches.works_for.set(Some(0));
        let _ = pool.sync().await;
        assert!(pool.is_resumable(), "it is suspended");
        let scan = until(&pool, has_ended).await;
        assert_eq!((scan.state, pool.lost().1), (ScanPhase::Stopped, 1));
        let _ = pool.end().await;
    });
}

#[test]
fn segments_whose_source_is_away_are_errors_of_their_resilver() {
    Runtime::simulated(7222).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let pool = mirrored(&rack).await;
        leave_b_behind(&pool).await;
        rack.switches.reads_take.set(Nanos::from_millis(100));
        pool.online("b").await.unwrap();
        rt::sleep(Nanos::from_millis(10)).await;
        rack.pull(&["a"]);
        let scan = until(&pool, has_ended).await;
        let events = pool.events();
        let failed = events.iter().filter(|event| matches!(event, PoolEvent::ResilverFailed(_)));
        assert!(scan.errors > 0, "{events:?}");
        assert_eq!(scan.errors, failed.count() as u64, "{events:?}");
        let _ = pool.end().await;
    });
}
