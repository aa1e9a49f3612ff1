use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::spec::VolumeSpec;
use crate::tests::rack::memory;
use crate::tests::{expect, spec, stamp, volume};

async fn made() -> Rc<Pool> {
    let shelf = memory(&["a", "l"], 64 << 20);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap();
    let wanted = VolumeSpec { sparse: true, ..volume(16 << 20) };
    pool.create_volume(&wanted).await.unwrap();
    pool
}

fn state_of(pool: &Pool) -> Rc<VolumeState> {
    pool.volumes.borrow().values().next().unwrap().clone()
}

#[test]
fn writes_are_durable_ones_for_the_throttle_shortly_after_a_flush() {
    Runtime::simulated(6110).block_on(async {
        let pool = made().await;
        let v = pool.open_volume("v").unwrap();
        let state = state_of(&pool);
        let is_durable = |bytes, fua| state.demand(bytes, fua).is_durable;
        assert!(!is_durable(4096, false) && is_durable(4096, true));
        v.flush().await.unwrap();
        rt::sleep(FLUSHED_WITHIN).await;
        assert!(is_durable(4096, false));
        rt::sleep(Nanos(1)).await;
        assert!(!is_durable(4096, false));
        // So many bytes since the flush and no more.
        v.flush().await.unwrap();
        assert!(is_durable(FLUSHED_WITHIN_BYTES / 2, false));
        assert!(is_durable(FLUSHED_WITHIN_BYTES / 2, false));
        assert!(!is_durable(1, false));
        v.flush().await.unwrap();
        assert!(is_durable(FLUSHED_WITHIN_BYTES, false));
        v.flush().await.unwrap();
        assert!(!is_durable(FLUSHED_WITHIN_BYTES + 1, false));
        pool.export().await.unwrap();
    });
}

#[test]
fn what_sync_says_of_writes_holds_for_the_throttle() {
    Runtime::simulated(6111).block_on(async {
        let pool = made().await;
        let state = state_of(&pool);
        let v = pool.open_volume("v").unwrap();
        let shown = || pool.get_volume("v").unwrap().sync;
        assert_eq!(shown(), "standard");
        pool.set_volume("v", "sync", "always").await.unwrap();
        assert_eq!(shown(), "always");
        assert!(state.demand(4096, false).is_durable);
        pool.set_volume("v", "sync", "disabled").await.unwrap();
        v.flush().await.unwrap();
        assert!(!state.demand(4096, true).is_durable && !state.demand(4096, false).is_durable);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn pending_bytes_are_those_of_the_writes_that_no_group_has_committed() {
    Runtime::simulated(6112).block_on(async {
        let pool = made().await;
        pool.set("txg_timeout", "600").await.unwrap();
        let (v, state) = (pool.open_volume("v").unwrap(), state_of(&pool));
        v.write(0, stamp(64 << 10, 1), false).await.unwrap();
        v.write(1 << 20, stamp(4096, 2), false).await.unwrap();
        v.discard(2 << 20, 1 << 20, false).await.unwrap();
        assert_eq!(state.pending_bytes.get(), (64 << 10) + 4096);
        pool.sync().await.unwrap();
        assert_eq!((state.pending_bytes.get(), state.pending.borrow().len()), (0, 0));
        v.write(0, stamp(8192, 3), false).await.unwrap();
        assert_eq!(state.pending_bytes.get(), 8192);
        v.flush().await.unwrap();
        assert_eq!(state.pending_bytes.get(), 0);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn only_reads_and_writes_use_the_bandwidth_and_flushes_no_requests() {
    Runtime::simulated(6113).block_on(async {
        let pool = made().await;
        let v = pool.open_volume("v").unwrap();
        pool.set_volume("v", "bandwidth_limit", "1M").await.unwrap();
        let begun = rt::now();
        for _ in 0..4 {
            v.discard(0, 16 << 20, false).await.unwrap();
            v.write_zeroes(0, 16 << 20, ZeroOptions::default()).await.unwrap();
        }
        assert!(rt::now().since(begun) < Nanos::from_secs(1));
        pool.set_volume("v", "bandwidth_limit", "none").await.unwrap();
        pool.set_volume("v", "iops_limit", "10").await.unwrap();
        let begun = rt::now();
        for _ in 0..100 {
            v.flush().await.unwrap();
        }
        assert!(rt::now().since(begun) < Nanos::from_secs(1));
        for at in 0..50 {
            v.discard(at << 12, 4096, false).await.unwrap();
        }
        let took = rt::now().since(begun).as_secs_f64();
        assert!((4.5..6.0).contains(&took), "{took}");
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn zeroes_that_may_not_be_holes_are_as_durable_as_asked() {
    Runtime::simulated(6115).block_on(async {
        let pool = made().await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let fuas = || pool.stats().since_import.fuas.count;
        let options = ZeroOptions { fua: true, no_hole: true, ..ZeroOptions::default() };
        v.write_zeroes(512, (3 << 20) + 1024, options).await.unwrap();
        // The last part makes those before it durable.
        assert_eq!(fuas(), 1);
        let mut wanted = stamp(4 << 20, 1).to_vec();
        wanted[512..(3 << 20) + 1536].fill(0);
        expect(&v, 0, &wanted).await;
        let options = ZeroOptions { no_hole: true, ..ZeroOptions::default() };
        v.write_zeroes(0, 2 << 20, options).await.unwrap();
        assert_eq!(fuas(), 1);
        let trims = pool.stats().since_import.trims;
        v.write_zeroes(0, 8192, ZeroOptions::default()).await.unwrap();
        let now = pool.stats().since_import.trims;
        assert_eq!((now.count - trims.count, now.bytes - trims.bytes), (1, 8192));
        let geometry = v.geometry();
        assert!(geometry.volatile_cache && !geometry.read_only);
        assert_eq!(v.name(), "tank/v");
        drop(v);
        pool.export().await.unwrap();
    });
}
