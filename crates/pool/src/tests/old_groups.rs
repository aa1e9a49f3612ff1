//! Groups that nothing asks for: they are committed when they are old.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{ImportOptions, VolumeSpec};

const BLOCK: u64 = 4096;
const DEVICES: &[&str] = &["a", "l"];

#[test]
fn writes_that_nothing_flushes_survive_a_crash_once_they_are_old() {
    let rack = Rack::new(DEVICES, 64 << 20);
    let first = Runtime::simulated(1);
    let written = Rc::new(Cell::new(0));
    let (before, count) = (rack.clone(), written.clone());
    first.block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(before.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let timeout = pool.settings.get().txg_timeout;
        let v = pool.open_volume("v").unwrap();
        // More than one group: the task goes on after each of them, and after a pause.
        for round in 0..3 {
            v.write(round * BLOCK, stamp(4096, round), false).await.unwrap();
            rt::sleep(Nanos(timeout.0 + Nanos::from_secs(1).0)).await;
            assert!(pool.dirty.groups.borrow().open().is_empty(), "group {round}");
            rt::sleep(Nanos::from_secs(30)).await;
            count.set(round + 1);
        }
    });
    drop(first);
    assert_eq!(written.get(), 3);
    Runtime::simulated(2).block_on(async move {
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(rack.host(1), &names(DEVICES), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for round in 0..3 {
            expect(&v, round * BLOCK, &stamp(4096, round)).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_changed_configuration_is_under_a_root_when_it_is_old() {
    Runtime::simulated(3).block_on(async {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(memory(DEVICES, 64 << 20), "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        // As after a command that failed on its way.
        pool.sync.config_dirty.set(true);
        pool.sync.wake.notify_all();
        let before = pool.told().generation;
        rt::sleep(Nanos::from_secs(60)).await;
        assert_eq!(pool.told().generation, before + 1);
        assert!(!pool.sync.config_dirty.get());
        // A pool that is idle writes no roots.
        let root = pool.sync.commit.get();
        rt::sleep(Nanos::from_secs(60)).await;
        assert_eq!(pool.sync.commit.get(), root);
        pool.export().await.unwrap();
    });
}

// A group lets go of 256 leaves.
#[test]
fn a_snapshot_that_is_destroyed_gives_its_space_back_without_waiting_for_the_clock() {
    const LEAF: u64 = 512 * BLOCK;
    const LEAVES: u64 = 600;
    Runtime::simulated(4).block_on(async {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(memory(DEVICES, 128 << 20), "tank", &options).await.unwrap();
        let sparse = VolumeSpec { sparse: true, ..volume(LEAVES * LEAF) };
        pool.create_volume(&sparse).await.unwrap();
        pool.set("txg_timeout", "600").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for name in ["v@a", "v@b"] {
            for leaf in 0..LEAVES {
                v.write(leaf * LEAF, stamp(4096, leaf), false).await.unwrap();
            }
            pool.take_snapshots(&names(&[name])).await.unwrap();
        }
        pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
        assert!(pool.snapshots.has_dying(), "one group is not enough");
        rt::sleep(Nanos::from_secs(5)).await;
        assert!(!pool.snapshots.has_dying());
        assert_eq!(pool.summary().alloc_bytes, LEAVES * BLOCK);
        pool.export().await.unwrap();
    });
}
