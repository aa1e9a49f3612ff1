use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{CommitId, Layout, Nanos, SegmentId};

use super::Trims;
use crate::commit::error::CommitError;
use crate::spec::{GroupSpec, PoolSpec, VolumeSpec};
use crate::tests::rack::{memory, scripted};
use crate::{Opener, Pool};

/// Has discards take long, and checks that they overlap no write or read.
#[derive(Default)]
struct SlowDiscards {
    discarding: RefCell<BTreeMap<u64, u64>>,
    discarded: RefCell<BTreeSet<u64>>,
    discards: Cell<u64>,
    most: Cell<usize>,
}

impl Script for SlowDiscards {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let (offset, end) = (command.offset_bytes, command.end_bytes());
        Box::pin(async move {
            if command.operation == Operation::Discard {
                self.discarding.borrow_mut().insert(offset, end);
                self.discarded.borrow_mut().insert(offset);
                self.discards.set(self.discards.get() + 1);
                self.most.set(self.most.get().max(self.discarding.borrow().len()));
                rt::sleep(Nanos::from_millis(30)).await;
                return Decision::Run;
            }
            for (from, to) in self.discarding.borrow().iter() {
                assert!(end <= *from || offset >= *to, "in use and being discarded");
            }
            Decision::Run
        })
    }

    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        if command.operation == Operation::Discard {
            self.discarding.borrow_mut().remove(&command.offset_bytes);
        }
        Box::pin(std::future::ready(()))
    }
}

/// A machine with one such device, `d`.
fn slow(size_bytes: u64) -> (Rc<dyn Opener>, Rc<SlowDiscards>) {
    let script = Rc::new(SlowDiscards::default());
    (scripted(memory(&["d"], size_bytes), script.clone()), script)
}

#[test]
fn freed_segments_are_discarded_beside_the_writers_and_never_in_use() {
    Runtime::simulated(3).block_on(async {
        let (opener, slow) = slow(256 << 20);
        let spec = PoolSpec {
            groups: vec![GroupSpec { layout: Layout::Raid0, devices: vec!["d".into()] }],
            ..PoolSpec::default()
        };
        let pool = Pool::create(opener, "tank", &spec).await.unwrap();
        let size_bytes = 24u64 << 20;
        let volume =
            VolumeSpec { name: "v".into(), size_bytes, sparse: false, properties: BTreeMap::new() };
        pool.create_volume(&volume).await.unwrap();
        let device = pool.open_volume("v").unwrap();
        let begun = slow.discards.get();
        for round in 0..20u8 {
            for at in (0..size_bytes).step_by(1 << 20) {
                let data = IoBuf::copy_of(&vec![round; 1 << 20]).freeze();
                device.write(at, data, false).await.unwrap();
            }
            device.flush().await.unwrap();
            pool.commit_all().await.unwrap();
            // Sometimes long enough for the discards, sometimes not.
            rt::sleep(Nanos::from_millis(u64::from(round) * 17 % 100)).await;
        }
        for at in (0..size_bytes).step_by(1 << 20) {
            let got = device.read(at, IoBuf::zeroed(1 << 20)).await.unwrap();
            assert!(got.iter().all(|byte| *byte == 19), "at {at}");
        }
        assert!(slow.discards.get() > begun, "the device never heard of a freed segment");
        assert!(slow.most.get() <= super::AT_ONCE);
        drop(device);
        pool.export().await.unwrap();
        assert!(slow.discarding.borrow().is_empty(), "a discard outlived the pool");
    });
}

/// A pool on one slow device, with a volume of `size_bytes` full of data.
async fn filled(opener: Rc<dyn Opener>, size_bytes: u64) -> Rc<Pool> {
    let spec = PoolSpec {
        groups: vec![GroupSpec { layout: Layout::Raid0, devices: vec!["d".into()] }],
        ..PoolSpec::default()
    };
    let pool = Pool::create(opener, "tank", &spec).await.unwrap();
    let volume =
        VolumeSpec { name: "v".into(), size_bytes, sparse: false, properties: BTreeMap::new() };
    pool.create_volume(&volume).await.unwrap();
    let device = pool.open_volume("v").unwrap();
    for at in (0..size_bytes).step_by(1 << 20) {
        let data = IoBuf::copy_of(&vec![7; 1 << 20]).freeze();
        device.write(at, data, false).await.unwrap();
    }
    pool.commit_all().await.unwrap();
    pool
}

fn full_segments(pool: &Pool) -> u64 {
    pool.store.table.count() as u64 - u64::from(pool.store.table.free_count())
}

#[test]
fn free_segments_are_discarded_while_the_pool_is_idle() {
    Runtime::simulated(4).block_on(async {
        let (opener, slow) = slow(512 << 20);
        let pool = filled(opener, 256 << 20).await;
        let (full, before) = (full_segments(&pool), slow.discards.get());
        pool.destroy_volume("v", false).await.unwrap();
        for _ in 0..2 {
            pool.commit_all().await.unwrap();
        }
        rt::sleep(Nanos::from_secs(60)).await;
        let told = slow.discards.get() - before;
        assert!(full > 128 && told + 16 > full, "{told} of {full}");
        pool.export().await.unwrap();
    });
}

#[test]
fn export_discards_free_segments_for_a_limited_time() {
    Runtime::simulated(5).block_on(async {
        let (opener, slow) = slow(512 << 20);
        let pool = filled(opener, 256 << 20).await;
        let (full, before) = (full_segments(&pool), slow.discards.get());
        pool.destroy_volume("v", false).await.unwrap();
        pool.commit_all().await.unwrap();
        let begun = rt::now();
        pool.export().await.unwrap();
        let told = slow.discards.get() - before;
        assert!(full > 128 && told + 16 > full, "{told} of {full}");
        assert!(rt::now().since(begun) < super::PATIENCE + Nanos::from_secs(3));
        assert!(slow.discarding.borrow().is_empty(), "a discard outlived the pool");
    });
}

#[test]
fn only_segments_that_stayed_free_are_discarded() {
    let trims = Trims::default();
    for id in 0..10 {
        trims.note(SegmentId(id), CommitId(u64::from(id)));
    }
    let due = trims.take(CommitId(6), 3, |segment| segment.0 != 1);
    assert_eq!(due, [SegmentId(0), SegmentId(2), SegmentId(3)]);
    // Freed again: its time starts anew.
    trims.note(SegmentId(4), CommitId(20));
    let due = trims.take(CommitId(6), 9, |_| true);
    assert_eq!(due, [SegmentId(5), SegmentId(6)]);
    assert!(trims.take(CommitId(6), 9, |_| true).is_empty());
    assert_eq!(trims.take(CommitId(20), 9, |_| false), []);
    assert_eq!(trims.take(CommitId(20), 9, |_| true), []);
}

// The devices of a suspended pool may belong to another owner.
#[test]
fn a_suspended_pool_discards_nothing_more() {
    Runtime::simulated(6).block_on(async {
        let (opener, slow) = slow(512 << 20);
        let pool = filled(opener, 256 << 20).await;
        let (full, before) = (full_segments(&pool), slow.discards.get());
        pool.destroy_volume("v", false).await.unwrap();
        pool.commit_all().await.unwrap();
        for _ in 0..1000 {
            if slow.discards.get() >= before + 8 {
                break;
            }
            rt::sleep(Nanos::from_millis(10)).await;
        }
        pool.stop(CommitError::JournalDamaged.into());
        let told = slow.discards.get();
        assert!(told - before < full / 2, "{told} of {full}");
        rt::sleep(Nanos::from_secs(60)).await;
        let more = slow.discards.get() - told;
        assert!(more <= super::AT_ONCE as u64, "{more} more");
    });
}

#[test]
fn an_export_discards_what_a_task_that_it_ends_has_left() {
    // The task is ended at another place of its list each time.
    for pause_ms in [10, 40, 100, 130] {
        Runtime::simulated(7).block_on(async move {
            let (opener, slow) = slow(512 << 20);
            let pool = filled(opener, 128 << 20).await;
            let full = full_segments(&pool);
            slow.discarded.borrow_mut().clear();
            pool.destroy_volume("v", false).await.unwrap();
            for _ in 0..2 {
                pool.commit_all().await.unwrap();
            }
            rt::sleep(Nanos::from_millis(pause_ms)).await;
            let begun = slow.discarded.borrow().len();
            pool.export().await.unwrap();
            let freed = full - full_segments(&pool);
            assert!(freed > 64 && begun > 0, "{begun} of {freed}");
            let discarded = slow.discarded.borrow().len() as u64;
            assert!(discarded >= freed, "{discarded} of {freed} after {pause_ms} ms");
        });
    }
}

#[test]
fn nothing_is_discarded_where_that_is_not_wanted() {
    Runtime::simulated(9).block_on(async {
        let (opener, slow) = slow(128 << 20);
        let spec = PoolSpec {
            groups: vec![GroupSpec { layout: Layout::Raid0, devices: vec!["d".into()] }],
            properties: [("autotrim".to_owned(), "off".to_owned())].into(),
            ..PoolSpec::default()
        };
        let pool = Pool::create(opener, "tank", &spec).await.unwrap();
        let size_bytes = 8u64 << 20;
        let volume =
            VolumeSpec { name: "v".into(), size_bytes, sparse: false, properties: BTreeMap::new() };
        pool.create_volume(&volume).await.unwrap();
        let device = pool.open_volume("v").unwrap();
        let begun = slow.discards.get();
        for round in 0..8u8 {
            for at in (0..size_bytes).step_by(1 << 20) {
                let data = IoBuf::copy_of(&[round; 1 << 20]).freeze();
                device.write(at, data, false).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        rt::sleep(Nanos::from_secs(120)).await;
        pool.export().await.unwrap();
        assert_eq!(slow.discards.get(), begun);
    });
}
