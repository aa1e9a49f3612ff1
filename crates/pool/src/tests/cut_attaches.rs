//! A copy that is attached while clients write, and a pool that is closed or crashes meanwhile.

use std::rc::Rc;

use forebay_device::{Device, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::copies::scrub;
use super::rack::{Rack, paced};
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::ScanPhase;

const ALL: &[&str] = &["a", "b", "l"];

/// Writes blocks all over the volume until it is closed.
async fn write_on(v: Device, rounds: u64) {
    for round in 0..rounds {
        let at = round * 7919 % 3000 * 4096;
        if v.write(at, stamp(4096, round), round % 3 == 0).await.is_err() {
            return;
        }
        rt::sleep(Nanos::from_millis(5)).await;
    }
}

/// Attaches `b` to `a` beside a writer, and ends after `millis`.
async fn begin(rack: Rc<Rack>, millis: u64, exports: bool) {
    let options = spec(Layout::Raid0, &["a"], &["l"]);
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..12 {
        v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool.set("scan_rate", "4M").await.unwrap();
    pool.attach("a", "b", false).await.unwrap();
    let writing = rt::spawn(write_on(v, 10_000));
    rt::sleep(Nanos::from_millis(millis)).await;
    if exports {
        pool.export().await.unwrap();
    }
    drop(writing);
}

#[test]
fn a_copy_is_whole_although_the_pool_was_closed_meanwhile() {
    for (step, exports) in (0..9).flat_map(|step| [(step, false), (step, true)]) {
        let rack = Rack::new(ALL, 64 << 20);
        Runtime::simulated(step).block_on(begin(rack.clone(), step * 450, exports));
        Runtime::simulated(100 + step).block_on(async move {
            let options = ImportOptions::default();
            let pool = Pool::import(rack.locked(), &names(ALL), "tank", &options).await.unwrap();
            write_on(pool.open_volume("v").unwrap(), 200).await;
            while pool.status().scan.is_some_and(|scan| scan.state != ScanPhase::Completed) {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            pool.set("scan_rate", "auto").await.unwrap();
            assert_eq!(scrub(&pool).await, (0, 0), "step {step}, exported: {exports}");
            pool.export().await.unwrap();
        });
    }
}

/// The segments are rebuilt in two steps, and the pool may be closed between them.
fn a_copy_is_cut_short(millis: u64) {
    let rack = Rack::new(&["a", "b"], 16 << 30);
    let before = rack.clone();
    Runtime::simulated(millis).block_on(async move {
        let pace = |name: &str, operation: Operation, _| {
            (name == "a" && operation == Operation::Read).then_some(Nanos::from_millis(50))
        };
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(paced(before.locked(), pace), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..12 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert!(pool.store.array.groups()[0].column_bytes > 1 << 20, "one step is enough");
        pool.attach("a", "b", false).await.unwrap();
        rt::sleep(Nanos::from_millis(millis)).await;
        pool.export().await.unwrap();
    });
    Runtime::simulated(millis + 1).block_on(async move {
        let options = ImportOptions::default();
        let pool =
            Pool::import(rack.locked(), &names(&["a", "b"]), "tank", &options).await.unwrap();
        while pool.status().scan.is_some_and(|scan| scan.state != ScanPhase::Completed) {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        assert_eq!(scrub(&pool).await, (0, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_segment_whose_copy_was_cut_short_is_copied_again() {
    (40..700).step_by(45).for_each(a_copy_is_cut_short);
}
