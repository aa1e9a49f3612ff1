//! De-duplication: what is refused, what it saves, and how it finds contents with little memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_map::{DEDUP_VOLUME, PACKED_VOLUME};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Lba, Nanos};

use super::rack::memory;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::{ImportErrorKind, MapLoadError, Opener, Pool, VolumeError};

const MIB: u64 = 1 << 20;

fn sparse(name: &str, size_bytes: u64, dedup: &str) -> VolumeSpec {
    let properties = BTreeMap::from([("dedup".to_owned(), dedup.to_owned())]);
    VolumeSpec { name: name.into(), sparse: true, properties, ..volume(size_bytes) }
}

async fn pool_of(
    volumes: &[VolumeSpec],
    properties: &[(&str, &str)],
) -> (Rc<Pool>, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&["a", "b", "l"], 256 << 20);
    let mut spec = spec(Layout::Raid0, &["a", "b"], &["l"]);
    spec.properties.extend(properties.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
    let pool = Pool::create(shelf.clone(), "tank", &spec).await.unwrap();
    for volume in volumes {
        pool.create_volume(volume).await.unwrap();
    }
    (pool, shelf)
}

/// Different blocks, the first of them number `first`.
fn image(first: u64, bytes: u64) -> IoBytes {
    let blocks = (first..first + bytes / 4096).flat_map(|block| stamp(4096, block).to_vec());
    IoBuf::copy_of(&blocks.collect::<Vec<u8>>()).freeze()
}

async fn write_all(device: &Device, offset: u64, data: &IoBytes) {
    for at in (0..data.len()).step_by(MIB as usize) {
        let len = (MIB as usize).min(data.len() - at);
        device.write(offset + at as u64, data.slice(at, len), false).await.unwrap();
    }
}

async fn imported_again(pool: Rc<Pool>, shelf: &Rc<dyn Opener>) -> Rc<Pool> {
    pool.export().await.unwrap();
    drop(pool);
    let paths = names(&["a", "b", "l"]);
    Pool::import(shelf.clone(), &paths, "tank", &ImportOptions::default()).await.unwrap()
}

#[test]
fn ten_copies_take_the_space_of_one() {
    Runtime::simulated(1).block_on(async {
        let (mut pool, shelf) = pool_of(&[sparse("v", 200 * MIB, "on")], &[]).await;
        let data = image(0, 8 * MIB);
        for copy in 0..10 {
            write_all(&pool.open_volume("v").unwrap(), copy * 20 * MIB, &data).await;
            if copy == 4 {
                // The index is as it was, after an export and an import.
                pool = imported_again(pool, &shelf).await;
            }
        }
        pool.sync().await.unwrap();
        let stats = pool.stats().dedup;
        assert_eq!((stats.referenced_bytes, stats.stored_bytes), (80 * MIB, 8 * MIB));
        assert_eq!(pool.summary().alloc_bytes, 8 * MIB);
        assert_eq!(pool.get_volume("v").unwrap().used_bytes, 80 * MIB);
        let pool = imported_again(pool, &shelf).await;
        let v = pool.open_volume("v").unwrap();
        for copy in 0..10 {
            for at in (0..8 * MIB).step_by(MIB as usize) {
                expect(&v, copy * 20 * MIB + at, &data[at as usize..][..MIB as usize]).await;
            }
            // Only the last copy frees the space.
            v.discard(copy * 20 * MIB, 8 * MIB, false).await.unwrap();
            pool.sync().await.unwrap();
            let left = if copy == 9 { 0 } else { 8 * MIB };
            assert_eq!(pool.summary().alloc_bytes, left);
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn the_index_grows_within_a_group() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) = pool_of(&[sparse("v", 200 * MIB, "on")], &[]).await;
        let data = image(0, 56 * MIB);
        for copy in 0..2 {
            write_all(&pool.open_volume("v").unwrap(), copy * 60 * MIB, &data).await;
            pool.sync().await.unwrap();
        }
        let stats = pool.stats().dedup;
        assert_eq!((stats.referenced_bytes, stats.stored_bytes), (112 * MIB, 56 * MIB));
        assert_eq!((stats.new_blocks, stats.found_blocks), (56 * 256, 56 * 256));
        assert_eq!(stats.index_entries, 56 * 256);
        // A checkpoint takes as much of it with a group as it may, and not all at once.
        let mut writers = pool.writers.lock().await;
        let commit = pool.sync.commit.get().next();
        let next = pool.append_index(&mut writers, 0, 1, commit).await.unwrap();
        assert!(next.is_some(), "one byte of it was asked for");
        drop(writers);
        pool.export().await.unwrap();
    });
}

#[test]
fn copies_in_order_are_found_by_a_sample() {
    Runtime::simulated(1).block_on(async {
        let small = [("dedup_index_size", "1M"), ("dirty_limit", "16M")];
        let volumes = [sparse("v", 220 * MIB, "on"), sparse("w", 220 * MIB, "verify")];
        let (pool, shelf) = pool_of(&volumes, &small).await;
        let data = image(0, 220 * MIB);
        write_all(&pool.open_volume("v").unwrap(), 0, &data).await;
        pool.sync().await.unwrap();
        let pool = imported_again(pool, &shelf).await;
        let stats = pool.stats().dedup;
        assert!(stats.index_one_in >= 2, "56,320 fingerprints do not fit into a MiB");
        write_all(&pool.open_volume("w").unwrap(), 0, &data).await;
        pool.sync().await.unwrap();
        let stats = pool.stats().dedup;
        assert!(stats.stored_bytes < 225 * MIB, "{stats:?}");
        for at in (0..220 * MIB).step_by(MIB as usize) {
            let w = pool.open_volume("w").unwrap();
            expect(&w, at, &data[at as usize..][..MIB as usize]).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn an_index_in_a_checkpoint_is_whole() {
    Runtime::simulated(4711).block_on(async {
        let (pool, shelf) = pool_of(&[sparse("v", 64 * MIB, "on")], &[]).await;
        let data = image(0, 12 * MIB);
        write_all(&pool.open_volume("v").unwrap(), 0, &data).await;
        pool.sync().await.unwrap();
        // The second one leaves nothing of what was written before the first.
        for _ in 0..2 {
            pool.scan.checkpoint_wanted.set(true);
            while pool.scan.checkpoint_wanted.get()
                || pool.writers.lock().await.checkpoint.is_some()
            {
                pool.commit_all().await.unwrap();
            }
        }
        let pool = imported_again(pool, &shelf).await;
        assert_eq!(pool.stats().dedup.index_entries, 12 * 256);
        write_all(&pool.open_volume("v").unwrap(), 20 * MIB, &data).await;
        pool.sync().await.unwrap();
        let stats = pool.stats().dedup;
        assert_eq!((stats.referenced_bytes, stats.stored_bytes), (24 * MIB, 12 * MIB));
        assert_eq!((stats.found_blocks, stats.new_blocks), (12 * 256, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_content_that_comes_again_after_it_was_freed_is_stored_again() {
    Runtime::simulated(4712).block_on(async {
        let (pool, _) = pool_of(&[sparse("v", MIB, "on")], &[]).await;
        let v = pool.open_volume("v").unwrap();
        for round in 1..4 {
            v.write(0, stamp(4096, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            expect(&v, 0, &stamp(4096, 1)).await;
            assert_eq!(pool.stats().dedup.new_blocks, round);
            v.discard(0, 4096, false).await.unwrap();
            pool.sync().await.unwrap();
            assert_eq!(pool.summary().alloc_bytes, 0);
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn numbers_are_not_given_twice() {
    Runtime::simulated(1).block_on(async {
        let (pool, shelf) = pool_of(&[sparse("v", MIB, "on")], &[]).await;
        let mut pool = pool;
        for round in 0..6 {
            let v = pool.open_volume("v").unwrap();
            // What had the highest number is gone before each import, and its fingerprint is in the
            // journal still.
            v.write(0, stamp(4096, round), true).await.unwrap();
            pool.sync().await.unwrap();
            v.discard(0, 4096, false).await.unwrap();
            pool.sync().await.unwrap();
            drop(v);
            pool = imported_again(pool, &shelf).await;
            let v = pool.open_volume("v").unwrap();
            v.write(4096, stamp(4096, 100 + round), true).await.unwrap();
            v.write(8192, stamp(4096, round), true).await.unwrap();
            pool.sync().await.unwrap();
            expect(&v, 4096, &stamp(4096, 100 + round)).await;
            expect(&v, 8192, &stamp(4096, round)).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn volumes_with_space_set_aside_are_not_deduplicated() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) =
            pool_of(&[sparse("v", MIB, "on"), VolumeSpec { name: "t".into(), ..volume(MIB) }], &[])
                .await;
        let thick = VolumeSpec { sparse: false, ..sparse("x", MIB, "on") };
        let refused = |error| matches!(error, VolumeError::DedupNeedsSparse { .. });
        assert!(refused(pool.create_volume(&thick).await.unwrap_err()));
        assert!(refused(pool.set_volume("t", "dedup", "on").await.unwrap_err()));
        assert!(refused(pool.set_volume("v", "reservation", "auto").await.unwrap_err()));
        // Blocks that are de-duplicated stay so when it ends.
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.set_volume("v", "dedup", "off").await.unwrap();
        assert!(refused(pool.set_volume("v", "reservation", "auto").await.unwrap_err()));
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        // A rollback would bring them back.
        assert!(refused(pool.set_volume("v", "reservation", "auto").await.unwrap_err()));
        pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
        while pool.snapshots.has_dying() {
            rt::sleep(Nanos::from_millis(20)).await;
        }
        pool.set_volume("v", "reservation", "auto").await.unwrap();
        assert!(refused(pool.set_volume("v", "dedup", "on").await.unwrap_err()));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_full_pool_takes_no_block_that_it_cannot_store() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) = pool_of(&[sparse("v", 4096 * MIB, "on")], &[]).await;
        let v = pool.open_volume("v").unwrap();
        let copies = image(0, MIB);
        // As many copies as there is room for a hundred times.
        for at in 0..600 {
            v.write(at * MIB, copies.clone(), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        // Then blocks that are not alike, over the copies, until nothing more fits.
        let mut at = 0;
        loop {
            let data = image(1_000_000 + at * 256, MIB);
            if v.write(at * MIB, data, true).await.is_err() {
                break;
            }
            at += 1;
            assert!(at < 600, "more than the devices hold");
        }
        for known in 0..at {
            let data = image(1_000_000 + known * 256, MIB);
            expect(&v, known * MIB, &data).await;
        }
        expect(&v, 599 * MIB, &copies).await;
        // It stays readable and trimmable.
        v.discard(0, 300 * MIB, false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(0, image(9, MIB), true).await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A pool without log or timeout, so that a group ends when a test says so.
async fn one_group_at_a_time(volumes: &[VolumeSpec]) -> Rc<Pool> {
    pool_of(volumes, &[("txg_timeout", "60"), ("dirty_limit", "128M")]).await.0
}

#[test]
fn a_group_of_several_volumes_gives_each_extent_its_own_fingerprints() {
    Runtime::simulated(3).block_on(async {
        let volumes = [("v", "on"), ("w", "off"), ("x", "verify")];
        let volumes = volumes.map(|(name, dedup)| sparse(name, 8 * MIB, dedup));
        let pool = one_group_at_a_time(&volumes).await;
        // Extents of one to three blocks with gaps and zeros between, several batches of them.
        let len = |at: u64| 4096 * (1 + at % 3);
        for name in ["v", "w", "x"] {
            let device = pool.open_volume(name).unwrap();
            for at in 0..300 {
                let data = image(100 * (at % 50), len(at));
                device.write(at * 20480, data, false).await.unwrap();
                device.discard(at * 20480 + 16384, 4096, false).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        // What is alike in two volumes, and in one, is stored once.
        let stats = pool.stats().dedup;
        let different = (0..50).map(|kind| (0..300).filter(|at| at % 50 == kind).map(len).max());
        let different: u64 = different.flatten().sum();
        assert_eq!((stats.stored_bytes, stats.new_blocks), (different, different / 4096));
        let all: u64 = (0..300).map(len).sum();
        assert_eq!(stats.referenced_bytes, 2 * all);
        for name in ["v", "w", "x"] {
            let device = pool.open_volume(name).unwrap();
            for at in 0..300 {
                let data = image(100 * (at % 50), len(at));
                expect(&device, at * 20480, &data).await;
            }
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn several_batches_of_a_group_are_hashed_at_a_time() {
    let took = |dedup: &'static str| {
        Runtime::simulated(4).block_on(async move {
            let pool = one_group_at_a_time(&[sparse("v", 64 * MIB, dedup)]).await;
            write_all(&pool.open_volume("v").unwrap(), 0, &image(0, 32 * MIB)).await;
            let begun = rt::now();
            pool.sync().await.unwrap();
            rt::now().since(begun)
        })
    };
    // Hashing a block takes two microseconds here, and writing to memory none.
    let hashing = 2000 * (32 * MIB / 4096);
    let (with, without) = (took("on"), took("off"));
    assert!(with.0 > without.0 && with.0 - without.0 < hashing / 4, "{with:?}, {without:?}");
}

#[test]
fn a_content_that_cannot_be_read_is_stored_again_where_contents_are_compared() {
    Runtime::simulated(5).block_on(async {
        let (pool, shelf) = pool_of(&[sparse("v", MIB, "verify")], &[]).await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        for _ in 0..2 {
            pool.sync().await.unwrap();
        }
        let mut struck = 0;
        for name in ["a", "b"] {
            let device = shelf.open(name).await.unwrap();
            for at in (5 * MIB..255 * MIB).step_by(4096) {
                let held = device.read(at, IoBuf::zeroed(4096)).await.unwrap();
                if held[..] == stamp(4096, 1)[..] {
                    device.write(at, stamp(4096, 2), false).await.unwrap();
                    struck += 1;
                }
            }
        }
        assert_eq!(struck, 1);
        v.write(8192, stamp(4096, 1), false).await.unwrap();
        for _ in 0..2 {
            pool.sync().await.unwrap();
        }
        expect(&v, 8192, &stamp(4096, 1)).await;
        assert!(v.read(0, IoBuf::zeroed(4096)).await.is_err(), "the first copy is lost");
        drop(v);
        pool.export().await.unwrap();
    });
}

/// Loses all contents of a hidden volume from the map, as damaged memory might, and imports what
/// was written then.
fn import_without(hidden: forebay_units::VolumeId, property: (&str, &str)) -> ImportErrorKind {
    let property = (property.0.to_owned(), property.1.to_owned());
    let shelf: Rc<dyn Opener> = memory(&["a", "b", "l"], 256 << 20);
    let kept = shelf.clone();
    let world = Runtime::simulated(6);
    world.block_on(async move {
        let options = spec(Layout::Raid0, &["a", "b"], &["l"]);
        let pool = Pool::create(kept, "tank", &options).await.unwrap();
        let properties = BTreeMap::from([property]);
        let v = VolumeSpec { sparse: true, properties, ..volume(MIB) };
        pool.create_volume(&v).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, IoBuf::zeroed(64 << 10).freeze(), false).await.unwrap();
        pool.sync().await.unwrap();
        let mut lost = 0;
        let mut freed = |_, blocks: u32| lost += blocks;
        pool.store.map.borrow_mut().clear(hidden, Lba(0), 1 << 20, &mut freed).unwrap();
        assert!(lost > 0);
        pool.scan.checkpoint_wanted.set(true);
        while pool.scan.checkpoint_wanted.get() || pool.writers.lock().await.checkpoint.is_some() {
            pool.commit_all().await.unwrap();
        }
    });
    drop(world);
    Runtime::simulated(7).block_on(async move {
        let (paths, options) = (names(&["a", "b", "l"]), ImportOptions::default());
        let pool = Pool::import(shelf, &paths, "tank", &options).await;
        pool.err().expect("it is refused").kind
    })
}

#[test]
fn a_map_that_refers_to_what_is_not_there_is_refused() {
    let is = |kind: ImportErrorKind, what: fn(&MapLoadError) -> bool| match kind {
        ImportErrorKind::Map { error, .. } => assert!(what(&error), "{error}"),
        other => panic!("refused for another reason: {other}"),
    };
    let kind = import_without(DEDUP_VOLUME, ("dedup", "on"));
    is(kind, |error| matches!(error, MapLoadError::NoContent { .. }));
    let kind = import_without(PACKED_VOLUME, ("compression", "lz4"));
    is(kind, |error| matches!(error, MapLoadError::NoPackedBlock { .. }));
}
