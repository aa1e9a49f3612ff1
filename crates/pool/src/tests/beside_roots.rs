//! Groups that follow each other without a pause, because roots in object stores take long: what
//! comes between two of them all the same.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, Layer, MemoryDevice, ObjectStats, Operation};
use forebay_format::label::LABEL_BYTES;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::paced;
use super::{expect, names, spec, stamp, volume};
use crate::spec::VolumeSpec;
use crate::{OpenWith, Pool};

/// A device that says of itself that it is in an object store.
struct Stored(MemoryDevice);

impl Layer for Stored {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }
    fn objects(&self) -> Option<ObjectStats> {
        Some(ObjectStats::default())
    }
}

/// A pool on one such device, whose labels take a second from here on. A group is large with 2 MiB.
async fn pool_in_store(size_bytes: u64) -> Rc<Pool> {
    let device = Rc::new(Stored(MemoryDevice::new("a", size_bytes)));
    let opener = OpenWith::new(1, move |_| Ok(device.clone() as Device));
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let opener = paced(opener, move |_: &str, operation: Operation, at: u64| match operation {
        Operation::Write if at < LABEL_BYTES && told.get() => Some(Nanos::from_secs(1)),
        Operation::Write => Some(Nanos::from_micros(100)),
        _ => None,
    });
    let mut options = spec(Layout::Raid0, &["a"], &[]);
    options.properties.insert("dirty_limit".to_owned(), "6M".to_owned());
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    is_slow.set(true);
    pool
}

/// Overwrites a volume of 8 MiB until it is told to stop.
async fn overwrite(v: Device, has_ended: Rc<Cell<bool>>) {
    let data = stamp(1 << 20, 1);
    for at in (0..8).cycle() {
        v.write(at << 20, data.clone(), false).await.unwrap();
        if has_ended.get() {
            return;
        }
    }
}

/// Groups that are closed and not under a root.
fn under_way(pool: &Pool) -> u64 {
    pool.dirty.groups.borrow().open_txg().0 - pool.sync.committed.get().0 - 1
}

/// Waits until a group is in segments while the root of the one before is on its way.
async fn until_beside(pool: &Pool) {
    while under_way(pool) < 2 {
        rt::sleep(Nanos::from_millis(1)).await;
    }
}

/// Runs `command` beside a client that overwrites a volume. Returns after how many groups it ended,
/// at most `most`.
async fn groups_until<F: Future<Output = ()> + 'static>(
    pool: &Rc<Pool>,
    most: u64,
    command: F,
) -> u64 {
    until_beside(pool).await;
    let before = pool.sync.committed.get();
    let command = rt::spawn(command);
    let groups = || pool.sync.committed.get().0 - before.0;
    while !command.is_finished() && groups() < most {
        rt::sleep(Nanos::from_millis(10)).await;
    }
    groups()
}

#[test]
fn commands_do_not_wait_for_all_groups_that_follow_each_other() {
    Runtime::simulated(1).block_on(async {
        let pool = pool_in_store(128 << 20).await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let other = VolumeSpec { name: "w".into(), ..volume(4 << 20) };
        pool.create_volume(&other).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let has_ended = Rc::new(Cell::new(false));
        let client = rt::spawn(overwrite(v, has_ended.clone()));
        const MOST: u64 = 12;
        let (of_log, of_volume) = (pool.clone(), pool.clone());
        let restarted = async move { of_log.restart_log(true).await.unwrap() };
        assert!(groups_until(&pool, MOST, restarted).await < MOST, "the log starts anew");
        let destroyed = async move { of_volume.destroy_volume("w", false).await.unwrap() };
        assert!(groups_until(&pool, MOST, destroyed).await < MOST, "a volume is destroyed");
        has_ended.set(true);
        client.await;
        pool.export().await.unwrap();
    });
}

// Until the snapshot is in the map, what is overwritten takes room beside what it holds.
#[test]
fn a_volume_is_shared_from_the_end_of_a_group_with_its_snapshot_until_its_root() {
    Runtime::simulated(2).block_on(async {
        let pool = pool_in_store(128 << 20).await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let has_ended = Rc::new(Cell::new(false));
        let client = rt::spawn(overwrite(v, has_ended.clone()));
        let state = pool.volumes.borrow().values().next().expect("it has one").clone();
        until_beside(&pool).await;
        let taking = rt::spawn({
            let pool = pool.clone();
            async move { pool.take_snapshots(&names(&["v@s"])).await.unwrap() }
        });
        let mut looks = 0;
        while !taking.is_finished() {
            if !pool.snapshots.syncing.borrow().taken.is_empty() {
                assert!(state.is_being_shared.get(), "it would take no room for the snapshot");
                looks += 1;
            }
            rt::sleep(Nanos::from_micros(50)).await;
        }
        assert!(looks > 0, "it was not seen");
        has_ended.set(true);
        client.await;
        pool.export().await.unwrap();
    });
}

// A group that finds no room for its blocks suspends the pool.
#[test]
fn a_full_pool_in_a_store_is_cleaned_between_groups() {
    Runtime::simulated(3).block_on(async {
        let pool = pool_in_store(64 << 20).await;
        let size = pool.summary().size_bytes >> 16 << 16;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let (parts, mut most) = (size >> 16, 0);
        let mut newest = vec![0; parts as usize];
        for salt in 1..=2 * parts {
            let part = if salt <= parts { salt - 1 } else { rt::random_below(parts) };
            newest[part as usize] = salt;
            v.write(part << 16, stamp(1 << 16, salt), false).await.unwrap();
            most = most.max(under_way(&pool));
        }
        assert_eq!(most, 2, "no group went to segments beside a root");
        for (part, salt) in newest.into_iter().enumerate() {
            expect(&v, (part as u64) << 16, &stamp(1 << 16, salt)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

// A device that misses them is not whole, although it has all of the root before.
#[test]
fn blocks_beside_a_root_belong_to_the_root_that_brings_them() {
    Runtime::simulated(4).block_on(async {
        let pool = pool_in_store(128 << 20).await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let has_ended = Rc::new(Cell::new(false));
        let client = rt::spawn(overwrite(v, has_ended.clone()));
        until_beside(&pool).await;
        rt::sleep(Nanos::from_millis(200)).await;
        assert_eq!(under_way(&pool), 2, "the root is still on its way");
        let mut newest = 0;
        pool.store.table.for_each(|_, info| newest = newest.max(info.last));
        assert_eq!(newest, pool.sync.commit.get().0 + 2);
        has_ended.set(true);
        client.await;
        pool.export().await.unwrap();
    });
}
