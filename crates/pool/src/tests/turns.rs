//! Long parts of a commit give way to other tasks of the thread.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::Layout;

use super::rack::Rack;
use super::{spec, stamp, volume};
use crate::Pool;

const BLOCKS: u64 = 4096;

/// How often another task had a turn while a committed group of [`BLOCKS`] extents was let go of.
async fn turns_beside_a_commit() -> u64 {
    let rack = Rack::new(&["a"], 512 << 20);
    let mut spec = spec(Layout::Raid0, &["a"], &[]);
    for (name, value) in [("txg_timeout", "60"), ("dirty_limit", "64M")] {
        spec.properties.insert(name.to_owned(), value.to_owned());
    }
    let pool = Pool::create(rack.locked(), "tank", &spec).await.unwrap();
    pool.create_volume(&volume((2 * BLOCKS) << 12)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    // With gaps, so that each block is an extent of its own.
    for block in 0..BLOCKS {
        v.write((2 * block) << 12, stamp(4096, block), false).await.unwrap();
    }
    let txg = pool.dirty.groups.borrow().open_txg();
    assert_eq!(pool.dirty.groups.borrow().open().data_blocks(), BLOCKS, "one group has all");
    let (turns, is_over) = (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(false)));
    let observer = rt::spawn({
        let (pool, turns, is_over) = (pool.clone(), turns.clone(), is_over.clone());
        async move {
            while !is_over.get() {
                let is_committed = pool.sync.committed.get() >= txg;
                if is_committed && pool.writers.try_lock().is_none() {
                    turns.set(turns.get() + 1);
                }
                rt::yield_now().await;
            }
        }
    });
    pool.sync().await.unwrap();
    drop(pool.writers.lock().await);
    is_over.set(true);
    observer.await;
    turns.get()
}

#[test]
fn memory_of_a_committed_group_is_let_go_of_in_parts() {
    let turns = (0..8).map(|seed| Runtime::simulated(seed).block_on(turns_beside_a_commit()));
    let turns: Vec<u64> = turns.collect();
    assert!(turns.iter().sum::<u64>() >= 8, "others had {turns:?} turns");
}
