//! Volumes that go back to a snapshot, and handles of volumes that go.

use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation};
use forebay_format::label::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Lba, Nanos};

use super::rack::{Rack, memory, paced, scripted};
use super::resumes::Dying;
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::{Opener, Pool};

async fn made() -> (Rc<Pool>, Device, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&["a", "l"], 64 << 20);
    let spec = spec(Layout::Raid0, &["a"], &["l"]);
    let pool = Pool::create(shelf.clone(), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v, shelf)
}

#[test]
fn what_lies_past_the_size_of_the_snapshot_is_gone() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = made().await;
        v.write(0, stamp(8192, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.resize_volume("v", 16 << 20, false).await.unwrap();
        v.write(12 << 20, stamp(8192, 2), false).await.unwrap();
        v.write(0, stamp(4096, 3), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.roll_back_volume("v@a", false).await.unwrap();
        assert_eq!(v.geometry().size_bytes, 8 << 20);
        assert_eq!(pool.get_volume("v").unwrap().used_bytes, 8192);
        pool.resize_volume("v", 16 << 20, false).await.unwrap();
        expect(&v, 12 << 20, &[0; 8192]).await;
        expect(&v, 0, &stamp(8192, 1)).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_is_larger_again_after_a_rollback_owns_its_space() {
    Runtime::simulated(3).block_on(async {
        let (pool, _, _) = made().await;
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        let free = pool.free_blocks();
        pool.resize_volume("v", 4 << 20, true).await.unwrap();
        assert_eq!(pool.free_blocks(), free + (4 << 20 >> 12));
        pool.roll_back_volume("v@a", false).await.unwrap();
        assert_eq!(pool.free_blocks(), free);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_has_nothing_of_its_own_after_a_rollback_and_an_import() {
    Runtime::simulated(2).block_on(async {
        let (pool, v, shelf) = made().await;
        v.write(0, stamp(64 << 10, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(32 << 10, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.get_volume("v").unwrap().used_by_snapshots_bytes, 32 << 10);
        pool.roll_back_volume("v@a", false).await.unwrap();
        let figures = |pool: &Pool| {
            let volume = pool.get_volume("v").unwrap();
            (volume.used_bytes, volume.used_by_snapshots_bytes, pool.summary().alloc_bytes)
        };
        assert_eq!(figures(&pool), (64 << 10, 0, 64 << 10));
        pool.export().await.unwrap();
        drop((pool, v));
        let options = ImportOptions::default();
        let pool = Pool::import(shelf, &names(&["a", "l"]), "tank", &options).await.unwrap();
        assert_eq!(figures(&pool), (64 << 10, 0, 64 << 10));
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(64 << 10, 1)).await;
        v.write(0, stamp(4096, 3), false).await.unwrap();
        pool.sync().await.unwrap();
        expect(&pool.open_snapshot("v@a").unwrap(), 0, &stamp(64 << 10, 1)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_destroyed_volume_is_gone_for_those_who_have_it_open() {
    Runtime::simulated(3).block_on(async {
        let (pool, v, _) = made().await;
        v.write(0, stamp(8192, 1), true).await.unwrap();
        pool.destroy_volume("v", false).await.unwrap();
        let read = v.read(0, IoBuf::zeroed(4096)).await.map(|_| ());
        for outcome in
            [read, v.write(0, stamp(4096, 2), true).await, v.discard(0, 4096, true).await]
        {
            assert!(matches!(outcome.unwrap_err().kind, ErrorKind::Gone));
        }
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().alloc_bytes, 0);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn lost_blocks_of_snapshots_that_a_rollback_destroys_are_forgotten() {
    Runtime::simulated(4).block_on(async {
        let (pool, v, shelf) = made().await;
        pool.take_snapshots(&names(&["v@a", "v@b"])).await.unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        let (_, b) = pool.snapshot_named("v@b").unwrap();
        pool.note_lost_block(b.id, Lba(0));
        assert_eq!(pool.lost().1, 1);
        pool.roll_back_volume("v@a", true).await.unwrap();
        assert_eq!(pool.lost(), (Vec::new(), 0));
        pool.export().await.unwrap();
        drop((v, pool));
        let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
        let pool = Pool::import(shelf, &paths, "tank", &options).await.unwrap();
        assert_eq!(pool.lost(), (Vec::new(), 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_part_that_is_written_while_a_volume_goes_back_lies_over_the_snapshot() {
    Runtime::simulated(4).block_on(async {
        let pace = |_: &str, operation: Operation, _: u64| match operation {
            Operation::Write => Some(Nanos::from_millis(20)),
            _ => None,
        };
        let shelf = paced(memory(&["a"], 64 << 20), pace);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(4096, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(1 << 20, stamp(65536, 3), false).await.unwrap();
        let going_back = rt::spawn({
            let pool = pool.clone();
            async move { pool.roll_back_volume("v@a", false).await }
        });
        while pool.snapshots.syncing.borrow().is_empty() {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        v.write(0, stamp(512, 4), false).await.unwrap();
        going_back.await.unwrap();
        let mut expected = stamp(4096, 1).to_vec();
        expected[..512].copy_from_slice(&stamp(512, 4));
        expect(&v, 0, &expected).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

// Past the end that the last root has, a crash would lose what was answered.
#[test]
fn a_volume_that_goes_back_is_larger_once_a_root_says_so() {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let before = rack.clone();
    let first = Runtime::simulated(6);
    first.block_on(async move {
        let pace = |_: &str, operation: Operation, _: u64| match operation {
            Operation::Write => Some(Nanos::from_millis(20)),
            _ => None,
        };
        let spec = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(paced(before.host(1), pace), "tank", &spec).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.resize_volume("v", 4 << 20, true).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rt::spawn({
            let pool = pool.clone();
            async move { pool.roll_back_volume("v@a", false).await }
        });
        while let Err(error) = v.write(6 << 20, stamp(4096, 1), true).await {
            assert!(matches!(error.kind, ErrorKind::OutOfRange { .. }), "{error}");
            rt::sleep(Nanos::from_micros(100)).await;
        }
        before.switches.power.set(Some(0));
    });
    drop(first);
    rack.switches.power.set(None);
    Runtime::simulated(7).block_on(async move {
        let forced = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(rack.host(1), &names(&["a", "l"]), "tank", &forced).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        assert_eq!(v.geometry().size_bytes, 8 << 20);
        expect(&v, 6 << 20, &stamp(4096, 1)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_rollback_whose_root_was_not_answered_is_whole_after_a_resume() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let roots_bytes = SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES;
        let dying = Dying::new("a", SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + roots_bytes);
        let mut options = spec(Layout::Raid0, &["a"], &["l"]);
        options.properties.insert("failmode".to_owned(), "wait".to_owned());
        let pool = Pool::create(scripted(rack.locked(), dying.clone()), "tank", &options).await;
        let pool = pool.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(4096, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        // The rollback's own group brings this, and its root is on the device.
        v.write(4096, stamp(4096, 3), true).await.unwrap();
        dying.arms(true);
        pool.roll_back_volume("v@a", false).await.unwrap_err();
        dying.arms(false);
        let next = pool.resume(&names(&["a", "l"])).await.unwrap();
        drop(pool);
        expect(&v, 0, &stamp(8192, 1)).await;
        drop(v);
        next.export().await.unwrap();
    });
}
