//! Writes that must be durable at once: those of clients, and heartbeats and log marks that fail.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation, ZeroOptions};
use forebay_format::label::{
    HEARTBEAT_OFFSET_BYTES, LABEL_BYTES, LOG_MARK_BYTES, LOG_MARK_OFFSET_BYTES,
};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::imports::until_crash;
use super::rack::{Rack, memory, paced, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::{Health, PoolEvent};
use crate::{Pool, SuspendReason, SyncMode};

const HEARTBEAT: Range<u64> = HEARTBEAT_OFFSET_BYTES..HEARTBEAT_OFFSET_BYTES + 4096;
const LOG_MARKS: Range<u64> = LOG_MARK_OFFSET_BYTES..LOG_MARK_OFFSET_BYTES + 2 * LOG_MARK_BYTES;

/// A device whose next write to a range fails once.
struct FailsOnce {
    device: &'static str,
    range: Range<u64>,
    is_armed: Cell<bool>,
}

impl Script for FailsOnce {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_meant = command.device == self.device
            && command.operation == Operation::Write
            && self.range.contains(&command.offset_bytes);
        let decision = match is_meant && self.is_armed.take() {
            true => Decision::Fail(ErrorKind::Os { errno: 5 }),
            false => Decision::Run,
        };
        Box::pin(std::future::ready(decision))
    }
}

/// A pool with a log, one of whose devices fails one write to `range`. Returns it afterwards.
async fn pool_after_failure(device: &'static str, range: Range<u64>, layout: Layout) -> Rc<Pool> {
    let rack = Rack::new(&["a", "b", "c", "l"], 64 << 20);
    let fails = Rc::new(FailsOnce { device, range, is_armed: Cell::new(false) });
    let members: &[&str] = if layout == Layout::Raid0 { &["a"] } else { &["a", "b", "c"] };
    let opener = scripted(rack.locked(), fails.clone());
    let pool = Pool::create(opener, "tank", &spec(layout, members, &["l"])).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    pool.sync().await.unwrap();
    let v = pool.open_volume("v").unwrap();
    fails.is_armed.set(true);
    for at in 0..200u64 {
        if !fails.is_armed.get() {
            break;
        }
        v.write((at % 64) << 12, stamp(4096, at), true).await.unwrap();
        rt::sleep(Nanos::from_millis(100)).await;
    }
    assert!(!fails.is_armed.get(), "no write came to {:?}", fails.range);
    rt::sleep(Nanos::from_secs(10)).await;
    pool
}

#[test]
fn device_that_fails_a_heartbeat_or_a_log_mark_once_is_faulted() {
    for range in [HEARTBEAT, LOG_MARKS] {
        Runtime::simulated(1).block_on(async {
            let pool = pool_after_failure("a", range, Layout::Raidz1).await;
            let device = &pool.status().groups[0].children[0];
            assert_eq!((device.state, device.write_errors), (Health::Faulted, 1));
            assert_eq!(pool.summary().health, Health::Degraded);
        });
    }
}

#[test]
fn only_device_that_fails_a_log_mark_once_is_degraded() {
    Runtime::simulated(2).block_on(async {
        let pool = pool_after_failure("a", LOG_MARKS, Layout::Raid0).await;
        let device = &pool.status().groups[0];
        assert_eq!((device.state, device.write_errors), (Health::Degraded, 1));
    });
}

#[test]
fn a_device_that_goes_is_told_of_although_nothing_is_written() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b", "c"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        rack.pull(&["c"]);
        rack.switches.reads_take.set(Nanos::from_millis(1));
        // Many are on their way to it when the first says that it is gone.
        let reads = (0..256).map(|at| v.read((at * 37 % 256) << 12, IoBuf::zeroed(4096)));
        rt::join_all(reads).await.into_iter().for_each(|read| drop(read.unwrap()));
        let tells = |event: &PoolEvent| match event {
            PoolEvent::StateChanged { device, .. } => device == "c",
            _ => false,
        };
        for _ in 0..1000 {
            if pool.events().iter().any(tells) {
                break;
            }
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert!(pool.events().iter().any(tells), "{:?}", pool.events());
        assert_eq!(pool.status().groups[0].children[2].state, Health::Unavail);
        pool.export().await.unwrap();
    });
}

/// A pool with its log in it, where a group ends only when a flush or a full memory asks for it.
async fn with_long_groups(rack: &Rc<Rack>, sparse: bool) -> (Rc<Pool>, Device) {
    let mut options = spec(Layout::Mirror, &["a", "b", "c"], &[]);
    for (name, value) in [("txg_timeout", "600"), ("dirty_limit", "24M")] {
        options.properties.insert(name.to_owned(), value.to_owned());
    }
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    pool.create_volume(&VolumeSpec { sparse, ..volume(16 << 20) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

#[test]
fn a_flush_of_much_commits_and_one_of_little_goes_to_the_log() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 256 << 20);
        let (pool, v) = with_long_groups(&rack, false).await;
        let much = pool.direct_limit_bytes() + (1 << 20);
        assert!(much < pool.limits.get().txg_bytes, "no group is large");
        let seen = || (pool.sync.committed.get(), pool.log.stats().frame_bytes);
        for round in 0..3 {
            let (committed, logged) = seen();
            for at in (0..much).step_by(1 << 20) {
                v.write(at, stamp(1 << 20, round), false).await.unwrap();
            }
            v.flush().await.unwrap();
            assert!(seen().0 > committed && seen().1 < logged + much / 2, "round {round}");
            // What was committed is pending no longer.
            let (committed, logged) = seen();
            v.write(0, stamp(4096, round), false).await.unwrap();
            v.flush().await.unwrap();
            assert!(seen().0 == committed && seen().1 > logged, "round {round}");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn durable_zeroes_that_are_written_as_data_survive_a_crash() {
    for len_bytes in [4096, 2 << 20] {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let mine = rack.clone();
        until_crash(async move {
            let (pool, v) = with_long_groups(&mine, true).await;
            v.write(0, stamp(3 << 20, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            let options = ZeroOptions { fua: true, no_hole: true, ..ZeroOptions::default() };
            v.write_zeroes(0, len_bytes, options).await.unwrap();
        });
        Runtime::simulated(5).block_on(async move {
            let (paths, options) = (names(&["a", "b", "c"]), ImportOptions::default());
            let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            expect(&v, 0, &vec![0; len_bytes as usize]).await;
            let rest = len_bytes as usize..3 << 20;
            expect(&v, len_bytes, &stamp(3 << 20, 1)[rest]).await;
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_data_device_that_fails_a_write_of_the_log_is_faulted_and_named() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let range = LABEL_BYTES..LABEL_BYTES + (4 << 20);
        let fails = Rc::new(FailsOnce { device: "a", range, is_armed: Cell::new(false) });
        let opener = scripted(rack.locked(), fails.clone());
        let options = spec(Layout::Mirror, &["a", "b", "c"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        fails.is_armed.set(true);
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        assert!(!fails.is_armed.get(), "the log has written to it");
        rt::sleep(Nanos::from_secs(1)).await;
        let names_it = |event: &PoolEvent| match event {
            PoolEvent::LogMemberFailed { device, .. } => device == "a",
            _ => false,
        };
        assert_eq!(pool.events().iter().filter(|event| names_it(event)).count(), 1);
        assert_eq!(pool.status().groups[0].children[0].state, Health::Faulted);
        expect(&v, 0, &stamp(4096, 1)).await;
    });
}

#[test]
fn a_large_group_is_committed_before_it_is_old() {
    Runtime::simulated(7).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 256 << 20);
        let (pool, v) = with_long_groups(&rack, false).await;
        let before = pool.sync.committed.get();
        let large = pool.limits.get().txg_bytes;
        assert!(large < pool.dirty.throttle.limit_bytes() / 2, "no writer waits for memory");
        for at in (0..large + (1 << 20)).step_by(1 << 20) {
            v.write(at, stamp(1 << 20, at), false).await.unwrap();
        }
        rt::sleep(Nanos::from_secs(5)).await;
        assert!(pool.sync.committed.get() > before);
        drop(v);
        pool.export().await.unwrap();
    });
}

/// Notes where each log mark is written, and whether to be durable.
#[derive(Default)]
struct LogMarks(RefCell<Vec<(u64, bool)>>);

impl Script for LogMarks {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        if command.operation == Operation::Write && LOG_MARKS.contains(&command.offset_bytes) {
            self.0.borrow_mut().push((command.offset_bytes, command.fua));
        }
        Box::pin(std::future::ready(Decision::Run))
    }
}

/// The marks of a log that durable writes go to.
fn log_marks(layout: Layout, disks: &'static [&'static str]) -> Vec<(u64, bool)> {
    Runtime::simulated(7).block_on(async move {
        let marks = Rc::new(LogMarks::default());
        let opener = scripted(memory(&["a", "b", "l"], 64 << 20), marks.clone());
        let pool = Pool::create(opener, "tank", &spec(layout, disks, &["l"])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.set("log_witness", "always").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..20 {
            v.write(at << 12, stamp(4096, at), true).await.unwrap();
        }
        let seen = marks.0.take();
        drop(v);
        pool.export().await.unwrap();
        seen
    })
}

// What a mark says of the log is relied on as soon as it is written.
#[test]
fn log_marks_are_durable_when_they_count() {
    let seen = log_marks(Layout::Mirror, &["a", "b"]);
    assert!(seen.len() >= 5 && seen.iter().all(|(_, fua)| *fua), "{seen:?}");
}

// A power cut in the middle of one leaves the one before.
#[test]
fn log_marks_of_a_device_go_to_its_two_slots_by_turns() {
    let seen = log_marks(Layout::Raid0, &["a"]);
    assert!(seen.len() >= 5 && seen.windows(2).all(|two| two[0].0 != two[1].0), "{seen:?}");
}

// What was written while the volume needed no log is on no list. It is durable with its group.
#[test]
fn flushes_after_sync_is_on_again_wait_for_what_was_written_without_a_log() {
    Runtime::simulated(8).block_on(async {
        let pace = |name: &str, operation: Operation, _: u64| match operation {
            Operation::Write if name == "a" => Some(Nanos::from_millis(20)),
            _ => None,
        };
        let shelf = paced(memory(&["a", "l"], 64 << 20), pace);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.set_volume("v", "sync", "disabled").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        let setting = rt::spawn({
            let pool = pool.clone();
            async move { pool.set_volume("v", "sync", "always").await.unwrap() }
        });
        while pool.dirty.groups.borrow().syncing().is_none() {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        v.write(4096, stamp(4096, 2), false).await.unwrap();
        let group = pool.dirty.groups.borrow().open_txg();
        let state = pool.volumes.borrow().values().next().expect("it has one").clone();
        while state.sync.get() != SyncMode::Always {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        assert!(pool.sync.committed.get() < group, "the first write was committed alone");
        v.flush().await.unwrap();
        assert!(pool.sync.committed.get() >= group, "a power cut would take the second write");
        setting.await;
        pool.export().await.unwrap();
    });
}

// The cleaner has roots of its own, also while the log waits to be started anew.
#[test]
fn a_root_without_a_group_keeps_what_the_log_holds_of_that_group() {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let before = rack.clone();
    let first = Runtime::simulated(9);
    first.block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(before.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let mut writers = pool.writers.lock().await;
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.restart_log_wanted();
        pool.quiet_log().await;
        let committed = pool.sync.committed.get();
        pool.write_root(&mut writers, committed, false).await.unwrap();
    });
    drop(first);
    Runtime::simulated(10).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "l"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 1)).await;
        pool.export().await.unwrap();
    });
}

/// Log marks that take a while: how many have begun, and how many were written.
#[derive(Default)]
struct SlowMarks {
    is_slow: Cell<bool>,
    begun: Cell<u32>,
    written: Cell<u32>,
}

impl Script for SlowMarks {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_mark = command.operation == Operation::Write
            && self.is_slow.get()
            && LOG_MARKS.contains(&command.offset_bytes);
        Box::pin(async move {
            if is_mark {
                self.begun.set(self.begun.get() + 1);
                rt::sleep(Nanos::from_millis(50)).await;
                self.written.set(self.written.get() + 1);
            }
            Decision::Run
        })
    }
}

#[test]
fn a_frame_that_became_durable_beside_a_mark_waits_for_the_next_mark() {
    Runtime::simulated(11).block_on(async {
        let marks = Rc::new(SlowMarks::default());
        let opener = scripted(memory(&["a", "l"], 64 << 20), marks.clone());
        let spec = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(opener, "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.set("log_witness", "always").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        marks.is_slow.set(true);
        let first = rt::spawn({
            let v = v.clone();
            async move { v.write(0, stamp(4096, 1), true).await.unwrap() }
        });
        while marks.begun.get() == 0 {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        let begun = marks.begun.get();
        v.write(4096, stamp(4096, 2), true).await.unwrap();
        assert!(marks.written.get() > begun, "no mark says that the second write is in the log");
        first.await;
        drop(v);
        pool.export().await.unwrap();
    });
}

// The log alone has it, and the log device may come back without its last frames.
#[test]
fn a_write_that_waits_for_a_mark_is_not_durable_without_one() {
    Runtime::simulated(12).block_on(async {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let spec = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.set("log_witness", "always").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        rack.switches.unwritable.borrow_mut().insert("a".to_owned());
        let write = Box::pin(v.write(4096, stamp(4096, 2), true));
        let outcome = rt::timeout(Nanos::from_secs(60), write).await;
        assert!(outcome.is_err(), "no device has its mark: {outcome:?}");
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

// Its writes are in the frame of another flush, which the end of the log leaves unfinished.
#[test]
fn a_flush_that_waits_for_another_fails_with_it_when_the_pool_is_suspended() {
    for seed in 0..64 {
        Runtime::simulated(seed).block_on(async move {
            let is_slow = Rc::new(Cell::new(false));
            let told = is_slow.clone();
            let opener =
                paced(memory(&["a", "l"], 64 << 20), move |name: &str, operation: Operation, _| {
                    let waits = told.get() && name == "l" && operation == Operation::Write;
                    waits.then_some(Nanos::from_secs(1))
                });
            let mut options = spec(Layout::Raid0, &["a"], &["l"]);
            options.properties.insert("failmode".to_owned(), "continue".to_owned());
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(4 << 20)).await.unwrap();
            pool.sync().await.unwrap();
            let v = pool.open_volume("v").unwrap();
            is_slow.set(true);
            let flushes: Vec<_> = (0..4)
                .map(|at| {
                    let v = v.clone();
                    rt::spawn(async move {
                        if at == 0 {
                            v.write(0, stamp(4096, 1), false).await.unwrap();
                        }
                        rt::sleep(Nanos::from_micros(at)).await;
                        v.flush().await
                    })
                })
                .collect();
            rt::sleep(Nanos::from_millis(1)).await;
            assert!(flushes.iter().all(|flush| !flush.is_finished()));
            pool.stop(SuspendReason::TakenOver);
            for flush in flushes {
                assert!(flush.await.is_err(), "seed {seed}: nothing made the write durable");
            }
        });
    }
}

// The records of the write are on no list any more, and no flush would find them.
#[test]
fn a_pool_whose_log_took_no_record_is_suspended() {
    Runtime::simulated(11).block_on(async {
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        options.properties.insert("failmode".to_owned(), "continue".to_owned());
        let pool = Pool::create(memory(&["a", "l"], 64 << 20), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        pool.sync().await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.log.close();
        v.write(0, stamp(4096, 2), true).await.unwrap_err();
        assert_eq!(pool.summary().health, Health::Suspended);
        v.write(4096, stamp(4096, 3), false).await.unwrap_err();
    });
}

// What was written before it is on no list any more, and in no group that is committed.
#[test]
fn a_flush_waits_for_the_log_to_take_what_another_has_given_it() {
    Runtime::simulated(6160).block_on(async {
        let shelf = paced(memory(&["a", "l"], 64 << 20), |name, operation, _| {
            let is_of_log = name == "l" && operation == Operation::Write;
            is_of_log.then_some(Nanos::from_secs(1))
        });
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap();
        pool.set("txg_timeout", "600").await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        let flush = || {
            let v = v.clone();
            rt::spawn(async move { v.flush().await })
        };
        let first = flush();
        rt::sleep(Nanos::from_millis(10)).await;
        let begun = rt::now();
        flush().await.unwrap();
        assert!(rt::now().since(begun) > Nanos::from_millis(900));
        first.await.unwrap();
        pool.export().await.unwrap();
    });
}
