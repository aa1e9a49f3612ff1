//! What a scan does beside commits, and at the end of the pool.

use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, Nanos, SegmentId};

use crate::status::{ScanPhase, ScanStatus};
use crate::tests::rack::{Rack, memory};
use crate::tests::{names, spec, stamp, volume};
use crate::{Opener, Pool, spec::ImportOptions};

async fn written() -> Rc<Pool> {
    written_on(memory(&["a"], 64 << 20)).await
}

async fn written_on(opener: Rc<dyn Opener>) -> Rc<Pool> {
    let mut options = spec(Layout::Raid0, &["a"], &[]);
    options.properties.insert("scan_rate".to_owned(), "1M".to_owned());
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
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

/// Spoils the first block of each 64 KiB of `written` on `device`. Returns how many there are.
async fn spoil(device: &Device, written: &[IoBytes]) -> u64 {
    let parts = written.iter().flat_map(|part| part.chunks(4096).step_by(16));
    let mut left: BTreeSet<&[u8]> = parts.collect();
    let count = left.len() as u64;
    for offset in (1 << 20..1 << 30).step_by(4096) {
        let held = device.read(offset, IoBuf::zeroed(4096)).await.unwrap();
        if left.remove(&held[..]) {
            let rot = IoBuf::copy_of(&[0xee; 4096]).freeze();
            device.write(offset, rot, false).await.unwrap();
            if left.is_empty() {
                return count;
            }
        }
    }
    panic!("{} blocks are nowhere", left.len());
}

/// Waits until the scan is as `is_wanted`.
async fn until(pool: &Pool, is_wanted: impl Fn(&ScanStatus) -> bool) -> ScanStatus {
    loop {
        let scan = pool.scan_status().expect("there is one");
        if is_wanted(&scan) {
            return scan;
        }
        rt::sleep(Nanos::from_millis(50)).await;
    }
}

// What lies before the place where it goes on is not met again.
#[test]
fn a_scrub_that_goes_on_after_a_pause_keeps_what_it_has_met_before() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let pool = written_on(rack.host(1)).await;
        let spoiled = spoil(&rack.device("a"), &[stamp(64 << 10, 0)]).await;
        pool.scrub().await.unwrap();
        until(&pool, |scan| scan.errors > 0).await;
        pool.scrub_pause().await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        pool.scrub().await.unwrap();
        let scan = until(&pool, |scan| scan.state != ScanPhase::InProgress).await;
        assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, spoiled));
        assert_eq!(pool.status().lost_count, spoiled);
        pool.export().await.unwrap();
    });
}

// The scan reads a segment to its end before it notices.
#[test]
fn a_scrub_that_was_paused_or_stopped_is_so_at_once() {
    for millis in (0..1000).step_by(90) {
        Runtime::simulated(5).block_on(async move {
            let rack = Rack::new(&["a"], 64 << 20);
            let pool = written_on(rack.host(1)).await;
            let spoiled = spoil(&rack.device("a"), &[stamp(64 << 10, 0)]).await;
            pool.scrub().await.unwrap();
            rt::sleep(Nanos::from_millis(millis)).await;
            pool.scrub_stop().await.unwrap();
            assert!(pool.scrub_pause().await.is_err(), "nothing is left to pause");
            assert!(pool.scrub_stop().await.is_err(), "nothing is left to stop");
            pool.scrub().await.expect("another one may begin");
            assert!(pool.scrub().await.is_err(), "it runs");
            pool.scrub_pause().await.unwrap();
            assert!(pool.scrub_pause().await.is_err(), "it is paused");
            pool.scrub().await.unwrap();
            let begun = rt::now();
            let scan = until(&pool, |scan| scan.state != ScanPhase::InProgress).await;
            assert_eq!((scan.state, scan.errors), (ScanPhase::Completed, spoiled));
            assert!(rt::now().since(begun) > Nanos::from_secs(3), "it read all at its rate");
            assert_eq!(pool.status().lost_count, spoiled);
            pool.export().await.unwrap();
        });
    }
}

// The part of a segment that was not read yet when the pool ended may have damage.
#[test]
fn a_scrub_that_an_export_cuts_short_goes_on_with_the_segment_that_it_was_in() {
    for millis in (20..8000).step_by(130) {
        Runtime::simulated(4).block_on(async move {
            // Large enough for a segment to take several steps, the last one as well.
            let rack = Rack::new(&["a"], 16 << 30);
            let pool = written_on(rack.host(1)).await;
            let end = stamp(1 << 20, 4);
            pool.open_volume("v").unwrap().write(4 << 20, end.clone(), false).await.unwrap();
            pool.sync().await.unwrap();
            let mut written: Vec<IoBytes> = (0..4).map(|at| stamp(1 << 20, at)).collect();
            written.push(end);
            let spoiled = spoil(&rack.device("a"), &written).await;
            rack.switches.reads_take.set(Nanos::from_millis(20));
            pool.scrub().await.unwrap();
            rt::sleep(Nanos::from_millis(millis)).await;
            pool.export().await.unwrap();
            drop(pool);
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&["a"]), "tank", &options).await.unwrap();
            until(&pool, |scan| scan.state == ScanPhase::Completed).await;
            assert_eq!(pool.status().lost_count, spoiled, "after {millis} ms");
            pool.export().await.unwrap();
        });
    }
}
