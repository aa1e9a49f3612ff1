//! What a scan does beside commits, and at the end of the pool.

use std::rc::Rc;

use forebay_rt::Runtime;
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, SegmentId};

use crate::Pool;
use crate::status::ScanPhase;
use crate::tests::rack::memory;
use crate::tests::{spec, stamp, volume};

async fn written() -> Rc<Pool> {
    let mut options = spec(Layout::Raid0, &["a"], &[]);
    options.properties.insert("scan_rate".to_owned(), "1M".to_owned());
    let pool = Pool::create(memory(&["a"], 64 << 20), "tank", &options).await.unwrap();
    pool.create_volume(&volume(8 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..4 {
        v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

/// The first segment for which `is_wanted`.
fn segment(pool: &Pool, is_wanted: fn(SegmentKind, SegmentState) -> bool) -> SegmentId {
    let mut found = None;
    pool.store.table.for_each(|segment, info| {
        if is_wanted(info.kind, info.state) {
            found.get_or_insert(segment);
        }
    });
    found.expect("there is one")
}

#[test]
fn a_scan_leaves_a_segment_that_was_freed_or_used_again() {
    Runtime::simulated(1).block_on(async {
        let pool = written().await;
        let full =
            segment(&pool, |kind, state| kind == SegmentKind::Data && state == SegmentState::Full);
        let free = segment(&pool, |_, state| state == SegmentState::Free);
        let [birth, of_free] = [full, free].map(|segment| pool.store.table.get(segment).birth);
        let still = pool.writers.lock().await;
        let still = pool.let_groups_on(still, full, birth).await.expect("it is as it was");
        assert!(pool.let_groups_on(still, full, birth + 1).await.is_none(), "used again");
        let still = pool.writers.lock().await;
        assert!(pool.let_groups_on(still, free, of_free).await.is_none(), "freed");
        pool.export().await.unwrap();
    });
}

#[test]
fn no_task_waits_for_a_scan_while_the_pool_ends() {
    Runtime::simulated(2).block_on(async {
        let pool = written().await;
        pool.scrub().await.unwrap();
        let state = || pool.scan_status().map(|scan| scan.state);
        assert_eq!(state(), Some(ScanPhase::InProgress));
        pool.lifecycle.closing.set(true);
        assert_eq!(state(), Some(ScanPhase::Stopped));
        // The next import goes on with it.
        assert_eq!(pool.scan_config().map(|scan| scan.state), Some(ScanPhase::InProgress));
        pool.lifecycle.closing.set(false);
        pool.export().await.unwrap();
    });
}
