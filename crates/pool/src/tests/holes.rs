//! Zeroing beside writes of parts of the same blocks, and zeroing that goes on in a resumed pool.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation, ZeroOptions};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{memory, paced};
use super::{expect, spec, stamp, volume};
use crate::Pool;
use crate::holes::Zeroed;
use crate::spec::VolumeSpec;

/// A pool with a small dirty limit, and a volume that is not cached and begins with 12 KiB of data.
/// While the cell is set, each read of the data device takes two seconds.
async fn slow_to_read() -> (Rc<Pool>, Device, Rc<Cell<bool>>) {
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let pace = move |name: &str, operation: Operation, _: u64| match operation {
        Operation::Read if told.get() && name == "a" => Some(Nanos::from_secs(2)),
        _ => Some(Nanos::from_micros(100)),
    };
    let shelf = paced(memory(&["a", "l"], 64 << 20), pace);
    let mut options = spec(Layout::Raid0, &["a"], &["l"]);
    options.properties.insert("dirty_limit".to_owned(), "4M".to_owned());
    let pool = Pool::create(shelf, "tank", &options).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    pool.set_volume("v", "primarycache", "none").await.unwrap();
    let v = pool.open_volume("v").unwrap();
    v.write(0, stamp(12 << 10, 1), false).await.unwrap();
    pool.sync().await.unwrap();
    (pool, v, is_slow)
}

/// A change of the first block of `v` waits for room, and a write of a part of the block reads the
/// rest meanwhile. Then `data` is in the block, with or without the part.
async fn waits_for_merges<F>(data: Vec<u8>, change: impl FnOnce(Device) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let (pool, v, is_slow) = slow_to_read().await;
    let other = VolumeSpec { name: "w".into(), ..volume(32 << 20) };
    pool.create_volume(&other).await.unwrap();
    let w = pool.open_volume("w").unwrap();
    is_slow.set(true);
    let filling = rt::spawn(async move {
        for at in 0..200 {
            w.write(at << 16, stamp(64 << 10, at), false).await.unwrap();
        }
    });
    while !pool.dirty.throttle.is_full() {
        assert!(!filling.is_finished(), "there is room for all");
        rt::sleep(Nanos::from_micros(10)).await;
    }
    let changing = rt::spawn(change(v.clone()));
    rt::sleep(Nanos::from_micros(10)).await;
    // A durable write takes its room from the reserve, and does not wait.
    let part = rt::spawn({
        let v = v.clone();
        async move { v.write(512, stamp(512, 2), true).await.unwrap() }
    });
    rt::join_all([changing, part, filling]).await;
    is_slow.set(false);
    let mut block = data;
    let found = v.read(0, IoBuf::zeroed(4096)).await.unwrap();
    if found[..] != block {
        block[512..1024].copy_from_slice(&stamp(512, 2));
        assert!(found[..] == block, "neither order of both");
    }
    expect(&v, 4096, &stamp(12 << 10, 1)[4096..]).await;
    pool.export().await.unwrap();
}

// The part has read what was there before the hole. Were it written after the hole, it would bring
// that back, as no order of the two can.
#[test]
fn a_hole_that_waits_for_room_waits_for_parts_that_are_merged_meanwhile() {
    Runtime::simulated(1).block_on(waits_for_merges(vec![0; 4096], async |v: Device| {
        v.write_zeroes(0, 4096, ZeroOptions::default()).await.unwrap();
    }));
}

#[test]
fn a_block_that_waits_for_room_waits_for_parts_that_are_merged_meanwhile() {
    Runtime::simulated(1).block_on(waits_for_merges(stamp(4096, 7).to_vec(), async |v: Device| {
        v.write(0, stamp(4096, 7), false).await.unwrap();
    }));
}

// The snapshot keeps every block that the hole takes from the volume, and the map journal has to
// note them all with one root.
#[test]
fn a_hole_that_waits_for_room_beside_a_snapshot_is_charged_for_what_the_snapshot_keeps() {
    const BLOCKS: u64 = 1024;
    Runtime::simulated(3).block_on(async {
        let (pool, v, _) = slow_to_read().await;
        pool.set("txg_timeout", "600").await.unwrap();
        v.write(0, stamp((BLOCKS << 12) as usize, 3), false).await.unwrap();
        pool.sync().await.unwrap();
        let room = pool.dirty.throttle.limit_bytes() * 3 / 4;
        let demand = pool.volumes.borrow().values().next().expect("it has one").demand(room, false);
        let permit = pool.dirty.throttle.admit(demand).await.unwrap();
        let zeroing = rt::spawn({
            let v = v.clone();
            async move { v.discard(0, BLOCKS << 12, false).await.unwrap() }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        pool.take_snapshots(&["v@a".to_owned()]).await.unwrap();
        assert!(!zeroing.is_finished(), "it found room");
        drop(permit);
        zeroing.await;
        let dirty_bytes = pool.dirty.throttle.dirty_bytes();
        assert!(dirty_bytes >= BLOCKS << 10, "{dirty_bytes} bytes for {BLOCKS} blocks");
        expect(&v, 0, &[0; 4096]).await;
        expect(&pool.open_snapshot("v@a").unwrap(), 0, &stamp((BLOCKS << 12) as usize, 3)).await;
        pool.export().await.unwrap();
    });
}

// A request of a suspended pool is given up, and goes on in the pool that is resumed.
#[test]
fn an_edge_counts_as_zeroed_once_it_is() {
    Runtime::simulated(2).block_on(async {
        let (pool, v, is_slow) = slow_to_read().await;
        let state = pool.volumes.borrow().values().next().expect("it has one").clone();
        let absorbed = Zeroed::default();
        let (at, len) = (512, 8192);
        is_slow.set(true);
        let zeroing = Box::pin(pool.zero(&state, "tank/v", at, len, false, &absorbed));
        assert!(rt::timeout(Nanos::from_millis(10), zeroing).await.is_err(), "it read nothing");
        is_slow.set(false);
        pool.zero(&state, "tank/v", at, len, false, &absorbed).await.unwrap();
        let mut all = stamp(12 << 10, 1).to_vec();
        all[512..512 + 8192].fill(0);
        expect(&v, 0, &all).await;
        pool.export().await.unwrap();
    });
}

// The request waits for the log when its pool is suspended. What others have written since it was
// taken stays.
#[test]
fn a_zeroing_that_was_taken_is_not_taken_again() {
    Runtime::simulated(3).block_on(async {
        let (pool, v, _) = slow_to_read().await;
        let state = pool.volumes.borrow().values().next().expect("it has one").clone();
        let absorbed = Zeroed::default();
        let (at, len) = (512, 10_000);
        pool.zero(&state, "tank/v", at, len, false, &absorbed).await.unwrap();
        let mut all = stamp(12 << 10, 1).to_vec();
        all[512..10_512].fill(0);
        expect(&v, 0, &all).await;
        for (at, salt) in [(1024, 2), (4096, 3), (9216, 4)] {
            all[at..at + 512].copy_from_slice(&stamp(512, salt));
            v.write(at as u64, stamp(512, salt), false).await.unwrap();
        }
        pool.zero(&state, "tank/v", at, len, false, &absorbed).await.unwrap();
        expect(&v, 0, &all).await;
        pool.export().await.unwrap();
    });
}
