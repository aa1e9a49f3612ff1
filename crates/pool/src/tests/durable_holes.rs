//! Trims and zeroes that are durable at once, ones that are refused, and volumes that wait for
//! nothing.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, ZeroOptions};
use forebay_format::superblock::VERSION;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::imports::until_crash;
use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{ImportOptions, VolumeSpec};

const DATA_BYTES: usize = 64 << 10;

/// A pool whose groups end when they are asked to, and its volume.
async fn pool_with(rack: &Rc<Rack>, sync: &str) -> (Rc<Pool>, Device) {
    pool_of(rack, volume(8 << 20), sync).await
}

async fn pool_of(rack: &Rc<Rack>, volume: VolumeSpec, sync: &str) -> (Rc<Pool>, Device) {
    let mut options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
    let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
    let properties = BTreeMap::from([("sync".to_owned(), sync.to_owned())]);
    pool.create_volume(&VolumeSpec { properties, ..volume }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

async fn import(rack: &Rc<Rack>) -> Rc<Pool> {
    let paths = names(&["a", "b", "l"]);
    Pool::import(rack.locked(), &paths, "tank", &ImportOptions::default()).await.unwrap()
}

// From the middle of the first block to the middle of the last: a trim leaves these two alone.
#[test]
fn durable_holes_survive_a_crash() {
    let (from, to) = (512u64, 9 * 4096 + 1024);
    for (is_trim, sync, fua) in [
        (true, "standard", true),
        (true, "always", false),
        (false, "standard", true),
        (false, "always", false),
    ] {
        let rack = Rack::new(&["a", "b", "l"], 64 << 20);
        let mine = rack.clone();
        until_crash(async move {
            let (pool, v) = pool_with(&mine, sync).await;
            v.write(0, stamp(DATA_BYTES, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            match is_trim {
                true => v.discard(from, to - from, fua).await.unwrap(),
                false => {
                    let options = ZeroOptions { fua, ..ZeroOptions::default() };
                    v.write_zeroes(from, to - from, options).await.unwrap();
                }
            }
        });
        Runtime::simulated(2).block_on(async move {
            let pool = import(&rack).await;
            let zeros = if is_trim { 4096..9 * 4096 } else { from as usize..to as usize };
            let mut data = stamp(DATA_BYTES, 1).to_vec();
            data[zeros].fill(0);
            let v = pool.open_volume("v").unwrap();
            expect(&v, 0, &data).await;
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

// More than what is written at a time where zeroes must keep their space.
#[test]
fn zeroes_and_trims_past_the_end_change_nothing() {
    const DATA: u64 = 3 << 20;
    for sparse in [false, true] {
        Runtime::simulated(3).block_on(async move {
            let rack = Rack::new(&["a", "b", "l"], 64 << 20);
            let spec = VolumeSpec { sparse, ..volume(8 << 20) };
            let (pool, v) = pool_of(&rack, spec, "standard").await;
            let last = (8 << 20) - DATA;
            v.write(last, stamp(DATA as usize, 1), false).await.unwrap();
            for no_hole in [false, true] {
                let options = ZeroOptions { no_hole, ..ZeroOptions::default() };
                let refused = v.write_zeroes(last + 512, DATA, options).await.unwrap_err();
                assert!(matches!(refused.kind, ErrorKind::OutOfRange { .. }), "{refused}");
            }
            let refused = v.discard(last + 512, DATA, false).await.unwrap_err();
            assert!(matches!(refused.kind, ErrorKind::OutOfRange { .. }), "{refused}");
            expect(&v, last, &stamp(DATA as usize, 1)).await;
            pool.export().await.unwrap();
        });
    }
}

// One record of the log has at most 8 TiB of zeroes.
#[test]
fn a_durable_hole_of_many_tebibytes_survives_a_crash() {
    const TIB: u64 = 1 << 40;
    let written = [0, 7 * TIB, 9 * TIB, 18 * TIB - 4096, 18 * TIB];
    let rack = Rack::new(&["a", "b", "l"], 64 << 20);
    let mine = rack.clone();
    until_crash(async move {
        let spec = VolumeSpec { sparse: true, ..volume(20 * TIB) };
        let (pool, v) = pool_of(&mine, spec, "standard").await;
        for at in written {
            v.write(at, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        v.discard(0, 18 * TIB, true).await.unwrap();
    });
    Runtime::simulated(6).block_on(async move {
        let pool = import(&rack).await;
        let v = pool.open_volume("v").unwrap();
        for at in &written[..4] {
            expect(&v, *at, &[0; 4096]).await;
        }
        expect(&v, 18 * TIB, &stamp(4096, 18 * TIB)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

// What a log never takes must not be kept for it either.
#[test]
fn a_volume_that_waits_for_nothing_keeps_nothing_for_the_log() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(&["a", "b", "l"], 64 << 20);
        let (pool, v) = pool_with(&rack, "disabled").await;
        let before = (pool.log.stats().frame_bytes, pool.sync.committed.get());
        for at in 0..32u64 {
            v.write(at << 16, stamp(DATA_BYTES, at), true).await.unwrap();
        }
        v.write(512, stamp(1024, 99), true).await.unwrap();
        v.discard(1 << 20, 8192, true).await.unwrap();
        v.flush().await.unwrap();
        let state = pool.volume_named("v").unwrap();
        assert_eq!((state.pending.borrow().len(), state.pending_bytes.get()), (0, 0));
        assert_eq!((pool.log.stats().frame_bytes, pool.sync.committed.get()), before);
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 31 << 16, &stamp(DATA_BYTES, 31)).await;
        expect(&v, 512, &stamp(1024, 99)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_newer_format_stays_after_a_crash() {
    let rack = Rack::new(&["a", "b", "l"], 64 << 20);
    let mine = rack.clone();
    until_crash(async move {
        let (pool, _v) = pool_with(&mine, "standard").await;
        let newest = pool.sync.version.replace(8);
        pool.commit_config().await.unwrap();
        assert_eq!(pool.upgrade().await.unwrap(), 8);
        assert_eq!(pool.sync.version.get(), newest);
    });
    Runtime::simulated(5).block_on(async move {
        let pool = import(&rack).await;
        assert_eq!(pool.sync.version.get(), VERSION);
        pool.export().await.unwrap();
    });
}
