//! What the cleaner leaves: a segment that it has emptied holds nothing once the root is written.

use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::Layout;

use super::rack::memory;
use super::{expect, spec, stamp, volume};
use crate::Pool;
use crate::spec::VolumeSpec;

const BLOCK: u64 = 4096;

/// Segments that count as emptied, of which the map still has blocks. The cleaner leaves them
/// alone until a scrub, so what dies in them would stay taken.
fn half_empty(pool: &Pool) -> Vec<u32> {
    let mut found = Vec::new();
    pool.store.table.for_each(|segment, info| {
        let is_full = info.state == SegmentState::Full && info.kind == SegmentKind::Data;
        if is_full && info.cleaning && info.live > 0 {
            found.push(segment.0);
        }
    });
    found
}

/// Overwrites a pool of which `percent` is full. With snapshots, one is taken every few groups, and
/// the oldest one destroyed.
async fn overwrites(percent: u64, has_snapshots: bool) {
    let options = spec(Layout::Raid0, &["a"], &[]);
    let pool = Pool::create(memory(&["a"], 64 << 20), "tank", &options).await.unwrap();
    pool.set("txg_timeout", "600").await.unwrap();
    let blocks = pool.summary().size_bytes * percent / 100 / BLOCK;
    let spec = VolumeSpec { sparse: true, ..volume(blocks * BLOCK) };
    pool.create_volume(&spec).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let mut salts = vec![0; blocks as usize];
    for round in 0..150u64 {
        for turn in 0..400 {
            let at =
                if round < blocks / 400 { round * 400 + turn } else { rt::random_below(blocks) };
            let salt = (round << 16) + turn + 1;
            v.write(at * BLOCK, stamp(BLOCK as usize, salt), false).await.unwrap();
            salts[at as usize] = salt;
        }
        if has_snapshots && round % 8 == 7 {
            pool.take_snapshots(&[format!("v@{round}")]).await.unwrap();
            if round > 8 {
                pool.destroy_snapshots(&[format!("v@{}", round - 8)]).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        drop(pool.writers.lock().await);
        assert_eq!(half_empty(&pool), [0; 0], "{percent} %, round {round}");
    }
    assert!(pool.stats().segments.cleaned > 100, "{:?}", pool.stats().segments);
    for (at, salt) in (0..).zip(salts) {
        if salt > 0 {
            expect(&v, at * BLOCK, &stamp(BLOCK as usize, salt)).await;
        }
    }
    drop(v);
    pool.export().await.unwrap();
}

#[test]
fn a_segment_that_was_emptied_has_no_block_that_is_in_the_map() {
    for (seed, (percent, has_snapshots)) in [(85, false), (40, true)].into_iter().enumerate() {
        Runtime::simulated(seed as u64).block_on(overwrites(percent, has_snapshots));
    }
}
