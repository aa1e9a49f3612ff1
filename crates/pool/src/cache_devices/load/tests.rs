//! Which entries of an earlier import count, and which path a cache device is found at.

use forebay_rt::Runtime;
use forebay_units::{BlockAddr, Layout, SegmentId};

use super::*;
use crate::spec::PoolSpec;
use crate::tests::rack::memory;
use crate::tests::{names, spec};

#[test]
fn entries_of_segments_that_are_gone_or_were_used_again_do_not_count() {
    Runtime::simulated(4331).block_on(async {
        let made = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(memory(&["a"], 64 << 20), "tank", &made).await.unwrap();
        let (count, birth) = (pool.store.table.count(), pool.store.table.get(SegmentId(1)).birth);
        let is_current = |segment, birth| {
            let addr = BlockAddr::new(SegmentId(segment), 3);
            pool.is_current(&CacheEntry { addr, birth, sum: 1 })
        };
        assert!(is_current(1, birth) && !is_current(1, birth + 1));
        // A rewind may go back to before a group was added.
        assert!(!is_current(count, birth) && !is_current(count + 7, birth));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_new_path_is_noted_for_the_device_that_is_there() {
    Runtime::simulated(4332).block_on(async {
        let shelf = memory(&["a", "k1", "k2"], 64 << 20);
        let made = PoolSpec { caches: names(&["k1", "k2"]), ..spec(Layout::Raid0, &["a"], &[]) };
        let pool = Pool::create(shelf, "tank", &made).await.unwrap();
        pool.sync().await.unwrap();
        let caches = pool.config.borrow().caches.clone();
        let header = |at: usize| CacheHeader {
            pool: pool.guid,
            pool_name: "tank".into(),
            device: caches[at].device,
            nonce: caches[at].nonce,
            shape: CacheShape::of(64 << 20),
        };
        let noted = |header: CacheHeader, path: &str| {
            pool.note_cache_paths(&[(header, path.to_owned())]);
            let paths =
                pool.config.borrow().caches.iter().map(|cache| cache.path.clone()).collect();
            let paths: Vec<String> = paths;
            (paths, pool.sync.config_dirty.get())
        };
        let old = || (names(&["k1", "k2"]), false);
        assert_eq!(noted(CacheHeader { pool: pool.guid + 1, ..header(1) }, "x"), old());
        assert_eq!(noted(CacheHeader { nonce: caches[1].nonce + 1, ..header(1) }, "x"), old());
        assert_eq!(noted(CacheHeader { nonce: caches[0].nonce, ..header(1) }, "x"), old());
        assert_eq!(noted(header(1), "k2"), old());
        assert_eq!(noted(header(1), "x"), (names(&["k1", "x"]), true));
        drop(pool);
    });
}
