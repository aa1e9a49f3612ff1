//! Compression: what it saves, what is refused, and that nothing is lost with snapshots,
//! de-duplication, trims, a failed device and the cleaner.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes, Operation};
use forebay_map::{Map, PACKED_VOLUME};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::{BLOCK_LEN, BlockAddr, Layout, Lba, Nanos, SegmentId};

use super::rack::{memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::packed::Packed;
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::status::ScanPhase;
use crate::{Opener, Pool, VolumeError};

const MIB: u64 = 1 << 20;
const DEVICES: [&str; 4] = ["a", "b", "c", "l"];

pub(crate) fn sparse(name: &str, size_bytes: u64, properties: &[(&str, &str)]) -> VolumeSpec {
    let properties = properties.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    let properties = BTreeMap::from_iter(properties);
    VolumeSpec { name: name.into(), sparse: true, properties, ..volume(size_bytes) }
}

pub(crate) async fn pool_of(
    volumes: &[VolumeSpec],
    device_bytes: u64,
) -> (Rc<Pool>, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&DEVICES, device_bytes);
    let mut spec = spec(Layout::Raidz1, &DEVICES[..3], &["l"]);
    spec.properties.insert("cache_size".to_owned(), "16M".to_owned());
    let pool = Pool::create(shelf.clone(), "tank", &spec).await.unwrap();
    for volume in volumes {
        pool.create_volume(volume).await.unwrap();
    }
    (pool, shelf)
}

/// Blocks of which `noise` bytes in 4096 have no pattern, different for each `seed`.
pub(crate) fn blocks(seed: u64, count: usize, noise: usize) -> IoBytes {
    let mut data = Vec::with_capacity(count * BLOCK_LEN);
    for block in 0..count as u64 {
        let mut state = (seed << 20) + block + 1;
        let end = data.len() + BLOCK_LEN;
        for _ in 0..noise.div_ceil(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            data.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        data.resize(end, block as u8);
    }
    IoBuf::copy_of(&data).freeze()
}

pub(super) async fn imported_again(pool: Rc<Pool>, shelf: &Rc<dyn Opener>) -> Rc<Pool> {
    pool.export().await.unwrap();
    drop(pool);
    Pool::import(shelf.clone(), &names(&DEVICES), "tank", &ImportOptions::default()).await.unwrap()
}

#[test]
fn compressed_blocks_take_what_they_need_and_give_it_back() {
    Runtime::simulated(1).block_on(async {
        let volumes = [
            sparse("lz4", 64 * MIB, &[("compression", "lz4")]),
            sparse("zstd", 64 * MIB, &[("compression", "zstd")]),
        ];
        let (mut pool, shelf) = pool_of(&volumes, 256 * MIB).await;
        for (seed, name) in ["lz4", "zstd"].into_iter().enumerate() {
            let v = pool.open_volume(name).unwrap();
            for at in 0..32 {
                // A quarter of each block has no pattern.
                v.write(at * MIB, blocks(seed as u64 * 100 + at, 256, 1024), false).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
        let stats = pool.stats().compression;
        assert_eq!((stats.referenced_bytes, stats.plain_blocks), (64 * MIB, 0));
        assert!(stats.stored_bytes < 18 * MIB, "{stats:?}");
        assert_eq!(pool.summary().alloc_bytes, stats.stored_bytes);
        assert_eq!(pool.get_volume("lz4").unwrap().used_bytes, 32 * MIB);
        pool = imported_again(pool, &shelf).await;
        assert_eq!(pool.stats().compression.stored_bytes, stats.stored_bytes);
        for (seed, name) in ["lz4", "zstd"].into_iter().enumerate() {
            let v = pool.open_volume(name).unwrap();
            for at in 0..32 {
                let data = blocks(seed as u64 * 100 + at, 256, 1024);
                expect(&v, at * MIB, &data).await;
                expect(&v, at * MIB + 37 * 4096, &data[37 * 4096..38 * 4096]).await;
                expect(&v, at * MIB + 512, &data[512..1024]).await;
            }
            v.discard(0, 32 * MIB, false).await.unwrap();
        }
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().alloc_bytes, 0);
        assert_eq!(pool.stats().compression.referenced_bytes, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_packed_after_an_import_leaves_alone_what_was_packed_before() {
    Runtime::simulated(6150).block_on(async {
        let volumes = [sparse("v", 64 * MIB, &[("compression", "lz4")])];
        let (mut pool, shelf) = pool_of(&volumes, 256 * MIB).await;
        for turn in 0..3 {
            let v = pool.open_volume("v").unwrap();
            v.write(turn * 4 * MIB, blocks(turn, 512, 1024), false).await.unwrap();
            drop(v);
            pool.sync().await.unwrap();
            pool = imported_again(pool, &shelf).await;
        }
        let v = pool.open_volume("v").unwrap();
        for turn in 0..3 {
            expect(&v, turn * 4 * MIB, &blocks(turn, 512, 1024)).await;
        }
        assert!(pool.stats().compression.stored_bytes > 6 * MIB / 4);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn incompressible_blocks_are_stored_as_they_are() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) =
            pool_of(&[sparse("v", 64 * MIB, &[("compression", "zstd-9")])], 256 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, blocks(1, 256, BLOCK_LEN), false).await.unwrap();
        // It would save less than an eighth.
        v.write(MIB, blocks(2, 256, 3700), false).await.unwrap();
        pool.sync().await.unwrap();
        let stats = pool.stats().compression;
        assert_eq!((stats.referenced_bytes, stats.plain_blocks), (0, 512));
        assert_eq!(pool.summary().alloc_bytes, 2 * MIB);
        expect(&v, 0, &blocks(1, 256, BLOCK_LEN)).await;
        expect(&v, MIB, &blocks(2, 256, 3700)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn packed_blocks_that_were_read_are_read_from_memory() {
    Runtime::simulated(4723).block_on(async {
        let volumes = [sparse("v", 4 * MIB, &[("compression", "lz4")])];
        let (pool, _) = pool_of(&volumes, 64 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        let data = blocks(1, 256, 900);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        let reads = || pool.stats().devices.values().map(|device| device.reads).sum::<u64>();
        expect(&v, 0, &data).await;
        let before = reads();
        expect(&v, 0, &data).await;
        for block in (0..256).rev() {
            expect(&v, block * 4096, &data[block as usize * 4096..][..4096]).await;
        }
        assert_eq!(reads(), before);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn volumes_with_space_set_aside_are_not_compressed() {
    Runtime::simulated(1).block_on(async {
        let lz4 = [("compression", "lz4")];
        let volumes = [sparse("v", MIB, &lz4), VolumeSpec { name: "t".into(), ..volume(MIB) }];
        let (pool, _) = pool_of(&volumes, 256 * MIB).await;
        let thick = VolumeSpec { sparse: false, ..sparse("x", MIB, &lz4) };
        let refused = |error| matches!(error, VolumeError::CompressionNeedsSparse { .. });
        assert!(refused(pool.create_volume(&thick).await.unwrap_err()));
        assert!(refused(pool.set_volume("t", "compression", "zstd").await.unwrap_err()));
        let kept = |error| matches!(error, VolumeError::DedupNeedsSparse { has_refs: true, .. });
        assert!(kept(pool.set_volume("v", "reservation", "auto").await.unwrap_err()));
        let v = pool.open_volume("v").unwrap();
        v.write(0, blocks(1, 4, 100), true).await.unwrap();
        pool.set_volume("v", "compression", "off").await.unwrap();
        assert!(kept(pool.set_volume("v", "reservation", "auto").await.unwrap_err()));
        v.write(0, blocks(2, 4, 100), true).await.unwrap();
        pool.sync().await.unwrap();
        pool.set_volume("v", "reservation", "auto").await.unwrap();
        drop(v);
        pool.export().await.unwrap();
    });
}

pub(super) async fn scan_ended(pool: &Pool) {
    while pool.status().scan.is_none_or(|scan| scan.state == ScanPhase::InProgress) {
        rt::sleep(Nanos::from_millis(50)).await;
    }
}

/// A volume or snapshot, and the seeds of its blocks.
pub(super) type Model = BTreeMap<String, Vec<Option<(u64, usize)>>>;

pub(super) async fn check(pool: &Rc<Pool>, model: &Model) {
    for (name, held) in model {
        let found = pool.open_volume(name).or_else(|| pool.open_snapshot(name));
        let volume = found.unwrap();
        for (block, written) in held.iter().enumerate() {
            let want = match written {
                Some((seed, noise)) => blocks(*seed, 1, *noise),
                None => IoBuf::zeroed(BLOCK_LEN).freeze(),
            };
            expect(&volume, (block * BLOCK_LEN) as u64, &want).await;
        }
    }
}

/// One random change of a volume. Some blocks have the same contents.
async fn change(
    volume: &Device,
    held: &mut [Option<(u64, usize)>],
    next: &mut impl FnMut() -> u64,
) {
    let first = next() as usize % held.len();
    let count = (1 + next() as usize % 24).min(held.len() - first);
    let noise = [0, 60, 700, 2000, 4096][next() as usize % 5];
    if next() % 5 == 0 {
        let (at, len) = ((first * BLOCK_LEN) as u64, (count * BLOCK_LEN) as u64);
        volume.discard(at, len, false).await.unwrap();
        held[first..first + count].fill(None);
        return;
    }
    let mut data = Vec::new();
    for slot in &mut held[first..first + count] {
        *slot = Some((next() % 200, noise));
        data.extend_from_slice(&blocks(slot.unwrap().0, 1, noise));
    }
    let fua = next() % 4 == 0;
    volume.write((first * BLOCK_LEN) as u64, IoBuf::copy_of(&data).freeze(), fua).await.unwrap();
}

#[test]
fn versions_of_compressed_volumes_keep_what_was_written() {
    for seed in 0..3 {
        Runtime::simulated(seed).block_on(async move {
            let mut state = seed + 1;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                state >> 33
            };
            let size = 96 * BLOCK_LEN as u64;
            let volumes = [
                sparse("v", size, &[("compression", "lz4"), ("cache_writes", "on")]),
                sparse("w", size, &[("compression", "zstd-1"), ("dedup", "on")]),
                sparse("x", size, &[("compression", "lz4"), ("dedup", "verify")]),
            ];
            let (mut pool, shelf) = pool_of(&volumes, 64 * MIB).await;
            let mut model: Model = BTreeMap::new();
            for name in ["v", "w", "x"] {
                model.insert(name.to_owned(), vec![None; 96]);
            }
            for round in 0..12 {
                for _ in 0..25 {
                    let names: Vec<String> =
                        model.keys().filter(|name| !name.contains('@')).cloned().collect();
                    let name = &names[next() as usize % names.len()];
                    let volume = pool.open_volume(name).unwrap();
                    change(&volume, model.get_mut(name).unwrap(), &mut next).await;
                    if next() % 6 == 0 {
                        pool.sync().await.unwrap();
                    }
                }
                if round % 3 == 0 {
                    let name = ["v", "w", "x"][round / 3 % 3];
                    let snapshot = format!("{name}@{round}");
                    pool.take_snapshots(std::slice::from_ref(&snapshot)).await.unwrap();
                    model.insert(snapshot.clone(), model[name].clone());
                    let clone = format!("c{round}");
                    let properties =
                        BTreeMap::from([("compression".to_owned(), "zstd".to_owned())]);
                    let spec = CloneSpec { name: clone.clone(), properties };
                    pool.clone_snapshot(&snapshot, &spec).await.unwrap();
                    model.insert(clone, model[&snapshot].clone());
                }
                check(&pool, &model).await;
                if round % 2 == 1 {
                    pool = imported_again(pool, &shelf).await;
                    check(&pool, &model).await;
                }
            }
            pool.set_volume("v", "compression", "off").await.unwrap();
            pool.scrub().await.unwrap();
            scan_ended(&pool).await;
            assert_eq!(pool.status().scan.unwrap().errors, 0);
            check(&pool, &model).await;
            for name in model.keys().filter(|name| name.starts_with('c')) {
                pool.destroy_volume(name, true).await.unwrap();
            }
            for name in ["v", "w", "x"] {
                pool.destroy_volume(name, true).await.unwrap();
            }
            pool.sync().await.unwrap();
            assert_eq!(pool.summary().alloc_bytes, 0, "seed {seed}");
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_full_pool_is_cleaned_under_overwrites() {
    Runtime::simulated(3).block_on(async {
        let (pool, _) =
            pool_of(&[sparse("v", 512 * MIB, &[("compression", "lz4")])], 64 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        let mut filled = 0;
        while v.write(filled * MIB, blocks(filled, 256, 3000), false).await.is_ok() {
            filled += 1;
            pool.sync().await.unwrap();
        }
        let taken = pool.summary().alloc_bytes;
        assert!(filled * MIB > taken * 6 / 5, "{filled} MiB take {taken} bytes");
        v.discard(filled / 2 * MIB, (512 - filled / 2) * MIB, false).await.unwrap();
        pool.sync().await.unwrap();
        let filled = filled / 2;
        let mut held: Vec<u64> = (0..filled).collect();
        let mut state = 5_u64;
        for round in 0..150 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let at = (state >> 33) % filled;
            held[at as usize] = 1000 + round;
            v.write(at * MIB, blocks(1000 + round, 256, 3000), false).await.unwrap();
        }
        for (at, seed) in held.into_iter().enumerate() {
            expect(&v, at as u64 * MIB, &blocks(seed, 256, 3000)).await;
        }
        v.write(0, stamp(4096, 1), true).await.unwrap();
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn packed_blocks_without_references_are_freed_after_an_import() {
    let mut map = Map::new();
    map.create_volume(PACKED_VOLUME).unwrap();
    let addr = BlockAddr::new(SegmentId(1), 0);
    map.set_run(PACKED_VOLUME, Lba(5), addr, &[1, 2], false, &mut |_, _| {}).unwrap();
    assert_eq!(Packed::restored(&map).0.take_unused(), [5, 6]);
}

/// A pool with about 512 blocks left and a volume `s` of which a group is under way: it brings 256
/// blocks from the start of the volume on, which become much smaller.
async fn group_under_way() -> (Rc<Pool>, Device, u64, rt::JoinHandle<()>) {
    let pace = |_: &str, operation: Operation, _: u64| match operation {
        Operation::Write => Some(Nanos::from_millis(5)),
        _ => None,
    };
    let shelf = paced(memory(&["a"], 64 << 20), pace);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    let rest = (pool.free_blocks() - 512) * BLOCK_LEN as u64;
    pool.create_volume(&VolumeSpec { name: "rest".into(), ..volume(rest) }).await.unwrap();
    pool.create_volume(&sparse("s", 16 * MIB, &[("compression", "lz4")])).await.unwrap();
    let free = pool.free_blocks();
    let s = pool.open_volume("s").unwrap();
    s.write(0, blocks(1, 256, 64), false).await.unwrap();
    let group = rt::spawn({
        let pool = pool.clone();
        async move { pool.sync().await.unwrap() }
    });
    while pool.dirty.groups.borrow().syncing().is_none() {
        assert!(!group.is_finished(), "it was not seen");
        rt::sleep(Nanos::from_micros(100)).await;
    }
    (pool, s, free, group)
}

/// Writes blocks without a pattern over the second half of the volume until one is refused.
/// Returns how many were taken.
async fn fill_rest(s: &Device) -> u64 {
    let mut taken = 0;
    let at = |block: u64| 8 * MIB + block * BLOCK_LEN as u64;
    while s.write(at(taken), blocks(1000 + taken, 1, BLOCK_LEN), false).await.is_ok() {
        taken += 1;
    }
    taken
}

#[test]
fn an_overwrite_of_blocks_that_are_being_compressed_takes_its_full_size() {
    Runtime::simulated(7).block_on(async {
        let (pool, s, free, group) = group_under_way().await;
        s.write(0, blocks(2, 256, BLOCK_LEN), false).await.unwrap();
        group.await;
        assert!(pool.free_blocks() <= free - 256, "{} of {free}", pool.free_blocks());
        let more = fill_rest(&s).await;
        assert!((200..=free - 256).contains(&more), "{more}");
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().overdrawn_bytes, 0);
        expect(&s, 0, &blocks(2, 256, BLOCK_LEN)).await;
    });
}

#[test]
fn a_trim_of_blocks_that_are_being_compressed_gives_back_what_they_took() {
    Runtime::simulated(8).block_on(async {
        let (pool, s, free, group) = group_under_way().await;
        s.discard(0, MIB, false).await.unwrap();
        group.await;
        assert!(pool.free_blocks() <= free, "{} of {free}", pool.free_blocks());
        fill_rest(&s).await;
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().overdrawn_bytes, 0);
    });
}
