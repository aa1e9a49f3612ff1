//! A pool whose devices stop taking writes is suspended, and goes on where they take them again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation, ZeroOptions};
use forebay_format::label::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, paced, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::Health;
use crate::{Opener, Pool, ResumeError};

const DEVICES: &[&str] = &["a", "b", "c", "l", "m"];
const BLOCK: u64 = 4096;

async fn create(rack: &Rc<Rack>, failmode: &str) -> Rc<Pool> {
    let mut options = spec(Layout::Raidz1, &["a", "b", "c"], &["l", "m"]);
    options.properties.insert("failmode".to_owned(), failmode.to_owned());
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    pool
}

/// Everything fails until the switch is taken back.
async fn suspended(rack: &Rack, pool: &Pool) {
    rack.switches.works_for.set(Some(0));
    let _ = pool.sync().await;
    assert_eq!(pool.summary().health, Health::Suspended);
}

#[test]
fn requests_wait_while_the_pool_is_suspended_and_nothing_is_lost() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = create(&rack, "wait").await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        v.write(1 << 20, stamp(65536, 2), true).await.unwrap();
        pool.sync().await.unwrap();
        v.write(4096, stamp(4096, 3), false).await.unwrap();
        v.discard((1 << 20) + 4096, 8192, false).await.unwrap();
        v.write(2 << 20, stamp(4096, 4), true).await.unwrap();
        suspended(&rack, &pool).await;
        // What is in memory, and what is on the devices, can be read.
        expect(&v, 4096, &stamp(4096, 3)).await;
        expect(&v, 0, &stamp(8192, 1)[..4096]).await;
        let writes = |at: u64, fua: bool| {
            let v = v.clone();
            rt::spawn(async move { v.write(at, stamp(4096, at), fua).await })
        };
        let waiting = [writes(3 << 20, true), writes((4 << 20) + 512, false)];
        let flushing = rt::spawn({
            let v = v.clone();
            async move { v.flush().await }
        });
        rt::sleep(Nanos::from_secs(3600)).await;
        assert!(!flushing.is_finished() && waiting.iter().all(|write| !write.is_finished()));
        // It cannot go on yet, and keeps what it has.
        let error = pool.resume(&names(DEVICES)).await.err().unwrap();
        assert!(matches!(error, ResumeError::Import(_)), "{error}");
        assert!(pool.is_resumable());
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(DEVICES)).await.unwrap();
        let again = pool.resume(&names(DEVICES)).await.err().unwrap();
        assert_eq!(again, ResumeError::NotSuspended { pool: "tank".into() });
        for write in waiting {
            write.await.unwrap();
        }
        flushing.await.unwrap();
        drop(pool);
        let check = async |v: &Device| {
            expect(v, 0, &stamp(8192, 1)[..4096]).await;
            expect(v, 4096, &stamp(4096, 3)).await;
            expect(v, (1 << 20) + 4096, &[0; 8192]).await;
            expect(v, (1 << 20) + 12288, &stamp(65536, 2)[12288..]).await;
            expect(v, 2 << 20, &stamp(4096, 4)).await;
            expect(v, 3 << 20, &stamp(4096, 3 << 20)).await;
            expect(v, (4 << 20) + 512, &stamp(4096, (4 << 20) + 512)).await;
        };
        check(&v).await;
        // The volume that was open all the time goes on.
        v.write(5 << 20, stamp(4096, 5), true).await.unwrap();
        drop(v);
        assert_eq!(next.summary().health, Health::Online);
        next.export().await.unwrap();
        drop(next);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.locked(), &names(DEVICES), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        check(&v).await;
        expect(&v, 5 << 20, &stamp(4096, 5)).await;
    });
}

#[test]
fn requests_fail_with_failmode_continue_and_the_pool_goes_on_all_the_same() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = create(&rack, "continue").await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        suspended(&rack, &pool).await;
        v.write(0, stamp(4096, 2), false).await.unwrap_err();
        v.flush().await.unwrap_err();
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(DEVICES)).await.unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        v.write(0, stamp(4096, 3), true).await.unwrap();
        expect(&v, 0, &stamp(4096, 3)).await;
        drop(v);
        next.export().await.unwrap();
    });
}

#[test]
fn requests_that_wait_fail_when_the_process_ends() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = create(&rack, "wait").await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        suspended(&rack, &pool).await;
        let write = rt::spawn(async move { v.write(0, stamp(4096, 2), true).await });
        rt::sleep(Nanos::from_secs(60)).await;
        assert!(!write.is_finished());
        pool.give_up();
        rt::sleep(Nanos::from_millis(1)).await;
        assert!(write.is_finished());
        pool.end().await.unwrap_err();
        assert!(matches!(write.await.unwrap_err().kind, ErrorKind::Layer(_)));
    });
}

#[test]
fn a_pool_that_another_owner_has_used_meanwhile_is_not_resumed() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let mut options = spec(Layout::Raidz1, &["a", "b", "c"], &["l", "m"]);
        options.properties.insert("failmode".to_owned(), "wait".to_owned());
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        suspended(&rack, &pool).await;
        rack.switches.works_for.set(None);
        let force = ImportOptions { force: true, ..ImportOptions::default() };
        let other = Pool::import(rack.host(2), &names(DEVICES), "tank", &force).await.unwrap();
        let theirs = other.open_volume("v").unwrap();
        theirs.write(0, stamp(4096, 7), true).await.unwrap();
        drop(theirs);
        other.export().await.unwrap();
        drop(other);
        let error = pool.resume(&names(DEVICES)).await.err().unwrap();
        let ResumeError::Import(error) = error else { panic!("{error}") };
        assert_kind!(error.kind, OwnedMeanwhile);
        let found = Pool::import(rack.host(2), &names(DEVICES), "tank", &force).await.unwrap();
        expect(&found.open_volume("v").unwrap(), 0, &stamp(4096, 7)).await;
    });
}

/// A pool with one log device is suspended and goes on without it. The power fails after `changes`
/// changes of that.
async fn goes_on_without_log(rack: Rc<Rack>, changes: u64) {
    let mut options = spec(Layout::Raidz1, &["a", "b", "c"], &["l"]);
    options.properties.insert("failmode".to_owned(), "wait".to_owned());
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(0, stamp(4096, 1), true).await.unwrap();
    suspended(&rack, &pool).await;
    rack.switches.works_for.set(None);
    rack.pull(&["l"]);
    rack.switches.power.set(Some(changes));
    let _ = pool.resume(&names(DEVICES)).await;
}

#[test]
fn durable_writes_survive_a_power_cut_while_a_pool_goes_on_without_its_log() {
    for changes in 0..60 {
        let rack = Rack::new(DEVICES, 64 << 20);
        Runtime::simulated(changes).block_on(goes_on_without_log(rack.clone(), changes));
        rack.put_back(&["l"]);
        rack.switches.power.set(None);
        Runtime::simulated(changes).block_on(async move {
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(DEVICES), "tank", &options).await.unwrap();
            expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 1)).await;
        });
    }
}

#[test]
fn a_pool_does_not_go_on_from_a_root_before_its_last_one() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = mirror_of_three(rack.locked()).await;
        pool.sync().await.unwrap();
        // The next root is on one device only, and memory lets go of what it has.
        rack.switches.unwritable.borrow_mut().extend(names(&["a", "b"]));
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(4096, stamp(4096, 2), false).await.unwrap();
        suspended(&rack, &pool).await;
        rack.switches.works_for.set(None);
        rack.switches.unwritable.borrow_mut().clear();
        rack.pull(&["c"]);
        let error = pool.resume(&names(DEVICES)).await.err().unwrap();
        let ResumeError::Import(error) = error else { panic!("{error}") };
        assert_kind!(error.kind, RootNotNewest { .. });
        rack.put_back(&["c"]);
        let next = pool.resume(&names(DEVICES)).await.unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        expect(&v, 4096, &stamp(4096, 2)).await;
        drop(v);
        next.export().await.unwrap();
    });
}

async fn mirror_of_three(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let mut options = spec(Layout::Mirror, &["a", "b", "c"], &[]);
    options.properties.insert("failmode".to_owned(), "wait".to_owned());
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

/// Exports `pool`, imports it from all its devices, and finds the writes 1 and 2.
async fn both_outlive_an_export(pool: Rc<Pool>, opener: Rc<dyn Opener>) {
    pool.export().await.unwrap();
    drop(pool);
    let options = ImportOptions::default();
    let pool = Pool::import(opener, &names(DEVICES), "tank", &options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    expect(&v, 0, &stamp(4096, 1)).await;
    expect(&v, 4096, &stamp(4096, 2)).await;
}

/// Lets `dies` take one write at `last_write`, and answer nothing from then on.
pub(super) struct Dying {
    dies: &'static str,
    last_write: Range<u64>,
    is_armed: Cell<bool>,
    is_dead: Cell<bool>,
}

impl Dying {
    pub(super) fn new(dies: &'static str, last_write: Range<u64>) -> Rc<Self> {
        Rc::new(Self { dies, last_write, is_armed: false.into(), is_dead: false.into() })
    }

    pub(super) fn arms(&self, is_armed: bool) {
        self.is_armed.set(is_armed);
        self.is_dead.set(false);
    }
}

impl Script for Dying {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let decision = match command.device == self.dies && self.is_armed.get() {
            true if self.is_dead.get() => Decision::Fail(ErrorKind::Gone),
            true => {
                let is_last = self.last_write.contains(&command.offset_bytes);
                self.is_dead.set(is_last && command.operation == Operation::Write);
                Decision::Run
            }
            false => Decision::Run,
        };
        Box::pin(std::future::ready(decision))
    }
}

#[test]
fn a_device_with_a_root_that_was_not_answered_does_not_diverge() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let roots_bytes = SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES;
        let dying = Dying::new("a", SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + roots_bytes);

        let opener = || scripted(rack.locked(), dying.clone());
        let (pool, v) = mirror_of_three(opener()).await;
        pool.sync().await.unwrap();
        // The next root is on `a` alone, calls the others left behind, and is not answered.
        rack.switches.unwritable.borrow_mut().extend(names(&["b", "c"]));
        dying.arms(true);
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.sync().await.unwrap_err();
        assert!(dying.is_dead.get());
        rack.switches.unwritable.borrow_mut().clear();
        rack.pull(&["a"]);
        let next = pool.resume(&names(DEVICES)).await.unwrap();
        drop(pool);
        v.write(4096, stamp(4096, 2), true).await.unwrap();
        drop(v);
        next.export().await.unwrap();
        drop(next);
        dying.arms(false);
        rack.put_back(&["a"]);
        let options = ImportOptions::default();
        let pool = Pool::import(opener(), &names(DEVICES), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        expect(&v, 4096, &stamp(4096, 2)).await;
    });
}

/// The only device with the newest root vanishes in an attempt to resume, and after `changes` more
/// changes nothing works. Then everything is well again. Returns whether the attempt failed.
async fn attempt_that_fails_after(changes: u64) -> bool {
    let rack = Rack::new(DEVICES, 64 << 20);
    let dying = Dying::new("a", 0..u64::MAX);
    let opener = scripted(rack.locked(), dying.clone());
    let (pool, v) = mirror_of_three(opener).await;
    v.write(0, stamp(4096, 1), false).await.unwrap();
    pool.sync().await.unwrap();
    // The others miss the root, and nothing else.
    rack.switches.unconfigurable.borrow_mut().extend(names(&["b", "c"]));
    pool.set("comment", "one").await.unwrap();
    v.write(4096, stamp(4096, 2), false).await.unwrap();
    suspended(&rack, &pool).await;
    rack.switches.unconfigurable.borrow_mut().clear();
    dying.arms(true);
    rack.switches.works_for.set(Some(changes));
    let outcome = pool.resume(&names(DEVICES)).await;
    dying.arms(false);
    rack.switches.works_for.set(None);
    let is_failed = outcome.is_err();
    let next = match outcome {
        Ok(next) => next,
        Err(_) => pool.resume(&names(DEVICES)).await.unwrap(),
    };
    expect(&v, 0, &stamp(4096, 1)).await;
    expect(&v, 4096, &stamp(4096, 2)).await;
    drop((v, pool));
    both_outlive_an_export(next, rack.locked()).await;
    is_failed
}

/// A device takes a root of an attempt to resume, and vanishes. After `changes` changes nothing
/// works. The next attempt does without the device. Returns whether the first attempt failed, and
/// the next did not.
async fn attempt_with_an_unanswered_root(changes: u64) -> bool {
    let rack = Rack::new(DEVICES, 64 << 20);
    let roots_bytes = SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES;
    let dying = Dying::new("a", SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + roots_bytes);
    let opener = scripted(rack.locked(), dying.clone());
    let (pool, v) = mirror_of_three(opener).await;
    v.write(0, stamp(4096, 1), false).await.unwrap();
    suspended(&rack, &pool).await;
    // The attempt's root calls the others left behind.
    rack.switches.unwritable.borrow_mut().extend(names(&["b", "c"]));
    dying.arms(true);
    rack.switches.works_for.set(Some(changes));
    let first = pool.resume(&names(DEVICES)).await;
    let is_failed = first.is_err();
    rack.switches.unwritable.borrow_mut().clear();
    rack.switches.works_for.set(None);
    dying.arms(false);
    rack.pull(&["a"]);
    let second = match first {
        Ok(next) => Ok(next),
        Err(_) => pool.resume(&names(DEVICES)).await,
    };
    rack.put_back(&["a"]);
    let is_without = second.is_ok();
    let next = match second {
        Ok(next) => next,
        Err(_) => pool.resume(&names(DEVICES)).await.unwrap(),
    };
    v.write(4096, stamp(4096, 2), true).await.unwrap();
    drop((v, pool));
    both_outlive_an_export(next, rack.locked()).await;
    is_failed && is_without
}

#[test]
fn a_device_with_a_root_of_a_failed_attempt_does_not_diverge() {
    let repeated = (0..60).filter(|changes| {
        Runtime::simulated(*changes).block_on(attempt_with_an_unanswered_root(*changes))
    });
    let repeated = repeated.count();
    assert!(repeated >= 10, "{repeated} of 60 attempts were repeated without the device");
}

#[test]
fn an_attempt_that_fails_at_any_command_may_be_repeated() {
    let failed = (0..60).filter(|changes| {
        Runtime::simulated(*changes).block_on(attempt_that_fails_after(*changes))
    });
    let failed = failed.count();
    assert!((10..60).contains(&failed), "{failed} of 60 attempts failed");
}

#[test]
fn a_pool_does_not_go_on_without_the_source_of_a_rebuild() {
    // The source goes away before, during and after the reads of the rebuild.
    for seed in 0..40 {
        Runtime::simulated(seed).block_on(without_the_source_of_a_rebuild());
    }
}

async fn without_the_source_of_a_rebuild() {
    let rack = Rack::new(DEVICES, 64 << 20);
    let mut options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
    options.properties.insert("failmode".to_owned(), "wait".to_owned());
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    rack.pull(&["b"]);
    v.write(0, stamp(65536, 1), false).await.unwrap();
    pool.sync().await.unwrap();
    // `b` returns, nothing is rebuilt yet, and the only device with the data goes away.
    rack.switches.unreadable.borrow_mut().extend(names(&["a"]));
    rack.put_back(&["b"]);
    pool.online("b").await.unwrap();
    rack.pull(&["a"]);
    // The write waits if the pool is suspended by now.
    let writing = rt::spawn({
        let v = v.clone();
        async move { v.write(1 << 20, stamp(4096, 2), false).await }
    });
    rt::sleep(Nanos::from_secs(1)).await;
    pool.sync().await.unwrap_err();
    assert_eq!(pool.summary().health, Health::Suspended);
    rack.switches.unreadable.borrow_mut().clear();
    rack.put_back(&["a"]);
    let next = pool.resume(&names(DEVICES)).await.unwrap();
    writing.await.unwrap();
    expect(&v, 0, &stamp(65536, 1)).await;
    expect(&v, 1 << 20, &stamp(4096, 2)).await;
    drop((v, pool));
    next.export().await.unwrap();
}

/// The last write that was answered, by block; nothing where zeroes were.
type Model = RefCell<BTreeMap<u64, u64>>;

/// Writes, trims and zeroes, as one client that waits for each answer. Every second one asks for
/// nothing to be durable, so that all it has written is in memory alone.
async fn work(v: Device, seed: u64, model: Rc<Model>) {
    for step in 0..60u64 {
        let at = (seed * 31 + step * 7) % 64;
        let salt = seed << 32 | step;
        let offset = at * BLOCK;
        let fua = seed % 2 == 0 && step % 3 == 0;
        match step % 5 {
            4 => {
                let options = ZeroOptions { fua, ..ZeroOptions::default() };
                v.write_zeroes(offset, BLOCK, options).await.unwrap();
                model.borrow_mut().remove(&at);
            }
            3 => {
                v.discard(offset, BLOCK, fua).await.unwrap();
                model.borrow_mut().remove(&at);
            }
            _ => {
                v.write(offset, stamp(4096, salt), fua).await.unwrap();
                model.borrow_mut().insert(at, salt);
            }
        }
        if seed % 2 == 0 && step % 11 == 10 {
            v.flush().await.unwrap();
        }
    }
}

async fn check(v: &Device, model: &Model) {
    let blocks = model.borrow().clone();
    for at in 0..64u64 {
        let held = v.read(at * BLOCK, IoBuf::zeroed(4096)).await.unwrap();
        match blocks.get(&at) {
            Some(salt) => assert!(held[..] == stamp(4096, *salt)[..], "block {at}"),
            None => assert!(held.iter().all(|byte| *byte == 0), "block {at}"),
        }
    }
}

/// One client; every device fails after `works_for` changes, and is well again when the pool is
/// suspended. Returns whether it was.
async fn fails_after(works_for: u64, seed: u64) -> bool {
    let rack = Rack::new(DEVICES, 64 << 20);
    let pool = create(&rack, "wait").await;
    pool.set("txg_timeout", "1").await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let model = Rc::new(Model::default());
    rack.switches.works_for.set(Some(works_for));
    let client = rt::spawn(work(v.clone(), seed, model.clone()));
    for _ in 0..20 {
        rt::sleep(Nanos::from_millis(500)).await;
        if pool.summary().health == Health::Suspended {
            break;
        }
    }
    let is_suspended = pool.summary().health == Health::Suspended;
    rack.switches.works_for.set(None);
    let now = match is_suspended {
        true => pool.resume(&names(DEVICES)).await.unwrap(),
        false => pool.clone(),
    };
    drop(pool);
    client.await;
    check(&v, &model).await;
    v.flush().await.unwrap();
    drop((v, now));
    // What a flush answered outlives the process.
    rt::sleep(Nanos::from_secs(1)).await;
    let options = ImportOptions::default();
    let pool = Pool::import(rack.host(1), &names(DEVICES), "tank", &options).await.unwrap();
    check(&pool.open_volume("v").unwrap(), &model).await;
    is_suspended
}

#[test]
fn answered_writes_survive_failures_at_any_command() {
    let mut suspended = 0;
    for works_for in 0..60 {
        let run = Runtime::simulated(works_for);
        suspended += u32::from(run.block_on(fails_after(works_for, works_for)));
    }
    assert!(suspended >= 40, "only {suspended} of 60 were suspended");
}

// A long hole of a volume with snapshots is taken in steps.
#[test]
fn a_hole_that_goes_on_leaves_what_was_written_where_it_has_been() {
    Runtime::simulated(11).block_on(async {
        const LEN: u64 = 24 << 20;
        let rack = Rack::new(&["a", "l"], 256 << 20);
        let slow = Rc::new(Cell::new(false));
        let pace = {
            let slow = slow.clone();
            move |device: &str, operation: Operation, _| {
                let is_slow = device == "a" && operation == Operation::Write && slow.get();
                is_slow.then(|| Nanos::from_secs(1))
            }
        };
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        options.properties.insert("dirty_limit".to_owned(), "6M".to_owned());
        let opener = paced(rack.locked(), pace);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(32 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in (0..LEN).step_by(1 << 20) {
            v.write(at, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        slow.set(true);
        let trimming = rt::spawn({
            let v = v.clone();
            async move { v.discard(0, LEN, false).await }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        expect(&v, 0, &[0; 4096]).await;
        // Clients that flush need not wait behind the hole.
        v.flush().await.unwrap();
        v.write(0, stamp(4096, 7), false).await.unwrap();
        expect(&v, 0, &stamp(4096, 7)).await;
        assert!(!trimming.is_finished());
        slow.set(false);
        suspended(&rack, &pool).await;
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(&["a", "l"])).await.unwrap();
        trimming.await.unwrap();
        let kept = v.read(0, IoBuf::zeroed(4096)).await.unwrap();
        assert!(kept[..] == stamp(4096, 7)[..], "the hole came over it again");
        expect(&v, 4096, &[0; 4096]).await;
        expect(&v, LEN - 4096, &[0; 4096]).await;
        drop(v);
        next.export().await.unwrap();
    });
}
