//! Snapshots that are more than one frame of the map journal takes, and rollbacks that are more
//! than one group takes.

use std::rc::Rc;

use forebay_rt::Runtime;
use forebay_units::{Layout, VolumeId};

use super::rack::memory;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::SnapshotStatus;
use crate::{Opener, Pool};

/// Names of 150 to 200 bytes: their records take more than two frames, and end anywhere in them.
fn many() -> Vec<String> {
    (0..1300).map(|at| format!("v@{at:0width$}", width = 150 + at * 7 % 51)).collect()
}

async fn imported(shelf: &Rc<dyn Opener>) -> Rc<Pool> {
    let options = ImportOptions::default();
    Pool::import(shelf.clone(), &names(&["a"]), "tank", &options).await.unwrap()
}

/// Has the whole map written once more.
async fn write_checkpoint(pool: &Rc<Pool>) {
    pool.scan.checkpoint_wanted.set(true);
    while pool.scan.checkpoint_wanted.get() || pool.writers.lock().await.checkpoint.is_some() {
        pool.sync().await.unwrap();
    }
}

#[test]
fn many_snapshots_are_there_after_a_crash() {
    let shelf: Rc<dyn Opener> = memory(&["a"], 64 << 20);
    let opener = shelf.clone();
    let taken: Vec<SnapshotStatus> = Runtime::simulated(1).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&VolumeSpec { sparse: true, ..volume(4 << 20) }).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        pool.take_snapshots(&many()).await.unwrap();
        pool.list_snapshots().await
    });
    assert_eq!(taken.len(), many().len());
    // What the deltas say, and then what a checkpoint says.
    for seed in [2, 3] {
        let (opener, taken) = (shelf.clone(), taken.clone());
        Runtime::simulated(seed).block_on(async move {
            let pool = imported(&opener).await;
            assert!(pool.list_snapshots().await == taken, "import {seed}");
            write_checkpoint(&pool).await;
        });
    }
    Runtime::simulated(4).block_on(async move {
        let pool = imported(&shelf).await;
        assert!(pool.list_snapshots().await == taken);
        pool.destroy_snapshots(&many()[1..]).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = imported(&shelf).await;
        assert!(pool.list_snapshots().await == taken[..1]);
        expect(&pool.open_snapshot(&many()[0]).unwrap(), 0, &stamp(8192, 1)).await;
        pool.export().await.unwrap();
    });
}

const LEAF_BYTES: u64 = 2 << 20;
/// More than several groups take back or let go of.
const LEAVES: u64 = 700;

/// A pool whose volume has a block in each leaf, and so have two snapshots of it, all different.
async fn scattered() -> (Rc<Pool>, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&["a"], 64 << 20);
    let options = spec(Layout::Raid0, &["a"], &[]);
    let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
    let size = LEAVES * LEAF_BYTES;
    pool.create_volume(&VolumeSpec { sparse: true, ..volume(size) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for (salt, taken) in [(1, Some("v@a")), (2, Some("v@b")), (3, None)] {
        for leaf in 0..LEAVES {
            v.write(leaf * LEAF_BYTES, stamp(4096, salt << 32 | leaf), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        if let Some(name) = taken {
            pool.take_snapshots(&names(&[name])).await.unwrap();
        }
    }
    (pool, shelf)
}

#[test]
fn a_rollback_in_parts_beside_a_dying_snapshot_brings_all_back() {
    Runtime::simulated(5).block_on(async {
        let (pool, shelf) = scattered().await;
        let state = pool.volumes.borrow().values().next().expect("it has one").clone();
        let [(_, a), (_, b)] = ["v@a", "v@b"].map(|name| pool.snapshot_named(name).unwrap());
        // As after a crash: it is being destroyed, and has all of its blocks.
        let dying = b.clone();
        pool.snapshots.insert(forebay_format::snapshot::Snapshot { is_dying: true, ..dying });
        pool.link_versions(state.id);
        let entries = |id: VolumeId| pool.store.map.borrow().entries(id);
        assert_eq!((entries(a.id), entries(b.id)), (LEAVES, LEAVES));
        pool.snapshots.wanted.borrow_mut().partly_rolled_back.push(state.id);
        pool.sync().await.unwrap();
        let left = entries(b.id);
        assert!((1..LEAVES).contains(&left), "{left}: one group takes a part");
        pool.go_back_in_parts(&state, &a).await.unwrap();
        let check = async |pool: &Rc<Pool>| {
            assert_eq!(pool.summary().alloc_bytes, LEAVES * 4096);
            assert_eq!(pool.get_volume("v").unwrap().used_by_snapshots_bytes, 0);
            let (v, a) = (pool.open_volume("v").unwrap(), pool.open_snapshot("v@a").unwrap());
            for leaf in 0..LEAVES {
                let was = stamp(4096, 1 << 32 | leaf);
                expect(&v, leaf * LEAF_BYTES, &was).await;
                expect(&a, leaf * LEAF_BYTES, &was).await;
            }
        };
        check(&pool).await;
        pool.export().await.unwrap();
        drop((pool, state));
        let pool = imported(&shelf).await;
        check(&pool).await;
        pool.export().await.unwrap();
    });
}
