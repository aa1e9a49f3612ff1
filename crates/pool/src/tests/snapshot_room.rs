//! Room for what snapshots of volumes with a reservation will hold.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::spec::VolumeSpec;
use crate::{CommitError, Pool, VolumeError};

const KIB: u64 = 1 << 10;

/// A pool whose volume is full and has a snapshot, so that about 512 KiB are left. While the cell
/// is set, each write to the data device takes 50 ms.
async fn almost_full() -> (Rc<Pool>, Device, Rc<Cell<bool>>) {
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let pace = move |name: &str, operation: Operation, _: u64| match operation {
        Operation::Write if told.get() && name == "a" => Some(Nanos::from_millis(50)),
        _ => None,
    };
    let shelf = paced(memory(&["a", "l"], 64 << 20), pace);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap();
    pool.set("txg_timeout", "600").await.unwrap();
    let size = (pool.summary().size_bytes / 2 - 256 * KIB) / 4096 * 4096;
    pool.create_volume(&volume(size)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in (0..size).step_by(256 << 10) {
        let len = (size - at).min(256 * KIB) as usize;
        v.write(at, stamp(len, at), false).await.unwrap();
    }
    pool.take_snapshots(&names(&["v@a"])).await.unwrap();
    pool.sync().await.unwrap();
    (pool, v, is_slow)
}

async fn take(pool: &Rc<Pool>) -> Result<(), VolumeError> {
    pool.take_snapshots(&names(&["v@b"])).await
}

/// Begins `v@b` while a group is on its way, overwrites `bytes` meanwhile, and waits for it and for
/// all writes.
async fn take_beside_writes(bytes: u64) -> (Rc<Pool>, u64, Result<(), VolumeError>) {
    let (pool, free, taken) = end_beside_writes(bytes).await;
    pool.sync().await.unwrap();
    (pool, free, taken)
}

/// Begins a group, and `v@b` while that is on its way.
async fn begun_beside_a_group(
    pool: &Rc<Pool>,
) -> (rt::JoinHandle<Result<(), CommitError>>, rt::JoinHandle<Result<(), VolumeError>>) {
    let mine = pool.clone();
    let group = rt::spawn(async move { mine.sync().await });
    rt::sleep(Nanos::from_millis(10)).await;
    let mine = pool.clone();
    let snapshot = rt::spawn(async move { take(&mine).await });
    rt::sleep(Nanos::from_millis(1)).await;
    (group, snapshot)
}

/// Begins `v@b` while a group is on its way, overwrites `bytes` meanwhile, and waits for it.
async fn end_beside_writes(bytes: u64) -> (Rc<Pool>, u64, Result<(), VolumeError>) {
    let (pool, v, is_slow) = almost_full().await;
    let free = pool.free_blocks();
    v.write(0, stamp(4096, 1), false).await.unwrap();
    is_slow.set(true);
    let (group, snapshot) = begun_beside_a_group(&pool).await;
    for at in (0..bytes).step_by(64 << 10) {
        v.write((1 << 20) + at, stamp(64 << 10, at), false).await.unwrap();
    }
    assert_eq!(pool.overdrawn_blocks(), 0, "a snapshot without room is not taken");
    group.await.unwrap();
    let taken = snapshot.await;
    is_slow.set(false);
    (pool, free, taken)
}

#[test]
fn overwrites_that_no_root_has_yet_count_against_the_next_snapshot() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = almost_full().await;
        let free = pool.free_blocks();
        for at in (0..1024 * KIB).step_by(64 << 10) {
            v.write(at, stamp(64 << 10, at + 1), false).await.unwrap();
        }
        let refused = take(&pool).await.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        pool.sync().await.unwrap();
        assert_eq!(pool.free_blocks(), free);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_command_without_room_says_what_needs_it() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = almost_full().await;
        for at in (0..1024 * KIB).step_by(64 << 10) {
            v.write(at, stamp(64 << 10, at + 1), false).await.unwrap();
        }
        let refused = take(&pool).await.unwrap_err().to_string();
        assert!(refused.contains("the snapshot needs"), "{refused}");
        let sparse = VolumeSpec { name: "w".into(), sparse: true, ..volume(1024 * KIB) };
        pool.create_volume(&sparse).await.unwrap();
        let refused = pool.set_volume("w", "reservation", "auto").await.unwrap_err().to_string();
        assert!(refused.contains("the reservation needs"), "{refused}");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_is_refused_when_writes_beside_it_leave_too_little_room() {
    Runtime::simulated(1).block_on(async {
        let (pool, free, taken) = take_beside_writes(1024 * KIB).await;
        let refused = taken.unwrap_err();
        let VolumeError::NoSpace { needed_bytes, .. } = refused else { panic!("{refused}") };
        assert_eq!(needed_bytes, 1024 * KIB + 4096);
        assert_eq!(pool.free_blocks(), free);
        assert_eq!(pool.snapshots_of_spec("v@%").unwrap(), ["v@a"]);
        pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
        take(&pool).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn writes_beside_a_snapshot_take_room_for_it() {
    Runtime::simulated(1).block_on(async {
        let (pool, free, taken) = take_beside_writes(256 * KIB).await;
        taken.unwrap();
        assert_eq!(pool.free_blocks(), free - 1 - 64);
        pool.export().await.unwrap();
    });
}

/// Gives a new sparse volume all that is free, and overwrites `bytes` of the other one.
async fn fill(pool: &Rc<Pool>, v: &Device, bytes: u64) -> Device {
    let size_bytes = pool.free_blocks() * 4096;
    let sparse = VolumeSpec { name: "s".into(), sparse: true, ..volume(size_bytes) };
    pool.create_volume(&sparse).await.unwrap();
    let s = pool.open_volume("s").unwrap();
    s.write(0, stamp(size_bytes as usize, 1), false).await.unwrap();
    for at in (0..bytes).step_by(4096) {
        v.write(at, stamp(4096, at + 1), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    assert_eq!(pool.free_blocks(), 0);
    s
}

#[test]
fn a_snapshot_waits_for_what_others_give_back() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = almost_full().await;
        let s = fill(&pool, &v, 64 * KIB).await;
        take(&pool).await.unwrap_err();
        s.discard(0, 64 * KIB, false).await.unwrap();
        assert_eq!(pool.free_blocks(), 0, "a power cut may bring it back");
        take(&pool).await.unwrap();
        assert_eq!((pool.free_blocks(), pool.overdrawn_blocks()), (0, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_rollback_to_a_larger_size_waits_for_what_others_give_back() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = almost_full().await;
        let size = v.geometry().size_bytes;
        pool.resize_volume("v", size - 64 * KIB, true).await.unwrap();
        let s = fill(&pool, &v, 0).await;
        pool.roll_back_volume("v@a", false).await.unwrap_err();
        s.discard(0, 64 * KIB, false).await.unwrap();
        pool.roll_back_volume("v@a", false).await.unwrap();
        assert_eq!((v.geometry().size_bytes, pool.free_blocks()), (size, 0));
        assert_eq!(pool.overdrawn_blocks(), 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn two_snapshots_of_a_volume_at_one_instant_need_room_once() {
    Runtime::simulated(1).block_on(async {
        let (pool, v, _) = almost_full().await;
        let free = pool.free_blocks();
        let bytes = free * 4096 / 4 * 3 / 4096 * 4096;
        for at in (0..bytes).step_by(4096) {
            v.write(at, stamp(4096, at + 1), false).await.unwrap();
        }
        pool.take_snapshots(&names(&["v@b", "v@c"])).await.unwrap();
        assert_eq!(pool.free_blocks(), free - bytes / 4096);
        for at in (0..bytes).step_by(4096) {
            v.write(at, stamp(4096, at + 2), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert_eq!(pool.free_blocks(), free - bytes / 4096);
        assert_eq!(pool.overdrawn_blocks(), 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_that_is_refused_at_the_end_of_its_group_gives_its_room_back_once() {
    Runtime::simulated(1).block_on(async {
        let (pool, free, taken) = end_beside_writes(1024 * KIB).await;
        let refused = taken.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        assert_eq!(pool.free_blocks(), free);
        pool.export().await.unwrap();
    });
}

// An overwrite takes other blocks than those that the snapshot has.
#[test]
fn a_reservation_needs_room_beside_what_a_snapshot_shares() {
    Runtime::simulated(2).block_on(async {
        let (pool, ..) = almost_full().await;
        let size = pool.get_volume("v").unwrap().size_bytes;
        pool.set_volume("v", "reservation", "none").await.unwrap();
        pool.create_volume(&VolumeSpec { name: "w".into(), ..volume(size) }).await.unwrap();
        let refused = pool.set_volume("v", "reservation", "auto").await.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
        while pool.snapshots.has_dying() {
            rt::sleep(Nanos::from_millis(20)).await;
        }
        pool.set_volume("v", "reservation", "auto").await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn other_volumes_do_not_take_the_room_of_a_snapshot_that_waits_for_its_group() {
    Runtime::simulated(3).block_on(async {
        let (pool, v, is_slow) = almost_full().await;
        let sparse = VolumeSpec { name: "w".into(), sparse: true, ..volume(1024 * KIB) };
        pool.create_volume(&sparse).await.unwrap();
        let w = pool.open_volume("w").unwrap();
        v.write(0, stamp(128 << 10, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(0, stamp(4096, 2), false).await.unwrap();
        is_slow.set(true);
        let (group, snapshot) = begun_beside_a_group(&pool).await;
        let mut taken = 0;
        while w.write(taken * 4096, stamp(4096, taken), false).await.is_ok() {
            taken += 1;
        }
        assert!(taken > 0 && pool.free_blocks() == 0, "{taken}");
        is_slow.set(false);
        group.await.unwrap();
        snapshot.await.unwrap();
        assert_eq!(pool.overdrawn_blocks(), 0);
        for at in 0..taken {
            expect(&w, at * 4096, &stamp(4096, at)).await;
        }
        drop((v, w));
        pool.export().await.unwrap();
    });
}
