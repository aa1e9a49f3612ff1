//! What a scan does beside commits, and at the end of the pool.

use forebay_device::IoBytes;
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::Nanos;

use crate::scrub::tests::written::{segment, spoil, until, written, written_on};
use crate::status::ScanPhase;
use crate::tests::rack::Rack;
use crate::tests::{names, stamp};
use crate::{Pool, ScrubError, spec::ImportOptions};

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
        pool.lifecycle.closing.set(true);
        let refused = pool.scrub().await;
        assert!(matches!(refused, Err(ScrubError::NotRunning { .. })), "{refused:?}");
        pool.lifecycle.closing.set(false);
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
