//! Reads of several blocks of which a cache device has some, and what of them stays in memory.

use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_format::cache_device::CacheShape;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{BlockAddr, Lba, Nanos};

use super::cache_devices::{BLOCK, stats, with_cache};
use super::rack::Rack;
use super::{names, stamp, volume};
use crate::Pool;
use crate::cache_devices::CacheDevice;
use crate::spec::PoolSpec;
use crate::status::Health;

const SIZE_BYTES: u64 = 64 << 20;
const BLOCKS: u64 = 240;
/// Blocks that are read at a time.
const CHUNK: u64 = 8;
const CHUNKS: u64 = BLOCKS / CHUNK;

fn content(first: u64, count: u64, salt: impl Fn(u64) -> u64) -> Vec<u8> {
    (first..first + count).flat_map(|at| stamp(BLOCK as usize, salt(at)).to_vec()).collect()
}

/// A pool with a cache device, whose memory has room for 32 blocks, and a volume of which the first
/// blocks were written at once.
async fn made(caches: &[&str]) -> (Rc<Rack>, Rc<Pool>, Device) {
    let rack = Rack::new(&["a", "b", "c", "l", "k", "k2"], SIZE_BYTES);
    let mut spec = PoolSpec { caches: names(caches), ..with_cache() };
    spec.properties.insert("cache_size".to_owned(), "128K".to_owned());
    spec.properties.insert("cache_dwpd".to_owned(), "off".to_owned());
    let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    let data = IoBuf::copy_of(&content(0, BLOCKS, |at| at)).freeze();
    v.write(0, data, false).await.unwrap();
    pool.sync().await.unwrap();
    (rack, pool, v)
}

async fn read(v: &Device, first: u64, count: u64, salt: impl Fn(u64) -> u64) {
    let buf = IoBuf::zeroed((count * BLOCK) as usize);
    let got = v.read(first * BLOCK, buf).await.unwrap();
    assert!(got[..] == content(first, count, salt)[..], "{count} blocks from {first} on");
}

/// Reads all chunks, in an order that is no stream.
async fn read_chunks(v: &Device) {
    for number in 0..CHUNKS {
        read(v, number * 7 % CHUNKS * CHUNK, CHUNK, |at| at).await;
        rt::sleep(Nanos::from_millis(1)).await;
    }
}

/// Blocks that would be read ahead.
fn uncached(pool: &Pool) -> u64 {
    let id = pool.volume_named("v").unwrap().id;
    let reads = pool.uncached_reads(id, 0..BLOCKS);
    reads.iter().flatten().map(|fetch| u64::from(fetch.wanted.blocks)).sum()
}

fn addr_of(pool: &Pool, at: u64) -> BlockAddr {
    let id = pool.volume_named("v").unwrap().id;
    pool.store.map.borrow().lookup(id, Lba(at)).unwrap().addr
}

fn device(pool: &Pool) -> Rc<CacheDevice> {
    let id = pool.config.borrow().caches[0].device;
    pool.cache_devices.get(id).unwrap()
}

/// Where the cache device has a block, if memory has it not.
fn position(pool: &Pool, at: u64) -> Option<u32> {
    let key = pool.block_key(addr_of(pool, at));
    let found = device(pool).find(key, None).filter(|_| !pool.cache.contains(key));
    found.map(|(position, _)| position)
}

fn errors(pool: &Pool) -> (u64, u64, u64) {
    let device = pool.status().caches.remove(0);
    assert_eq!(device.state, Health::Online);
    (device.read_errors, device.write_errors, device.checksum_errors)
}

#[test]
fn blocks_that_lie_together_on_a_cache_device_are_read_together() {
    Runtime::simulated(4501).block_on(async {
        let (_, pool, v) = made(&["k"]).await;
        assert_eq!(uncached(&pool), BLOCKS);
        let id = pool.volume_named("v").unwrap().id;
        let reads = pool.uncached_reads(id, 0..BLOCKS);
        let sums = reads.iter().flatten().flat_map(|fetch| &fetch.wanted.sums);
        let dropped = sums.filter(|sum| sum.is_none()).count() as u64;
        assert!(dropped > BLOCKS / 4, "the map has {dropped} of the sums no more");
        for _ in 0..3 {
            read_chunks(&v).await;
        }
        let figures = || (stats(&pool).hits, pool.status().caches[0].io.reads);
        let before = figures();
        read_chunks(&v).await;
        let (hits, reads) = (figures().0 - before.0, figures().1 - before.1);
        assert!(hits > BLOCKS / 2 && hits <= BLOCKS, "{hits}");
        assert!(reads <= hits / 3, "{reads} reads of {hits} blocks");
        assert_eq!(errors(&pool), (0, 0, 0));
        assert!(uncached(&pool) < BLOCKS / 4, "{}", uncached(&pool));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_a_cache_device_has_given_stays_in_memory() {
    Runtime::simulated(4502).block_on(async {
        let (_, pool, v) = made(&["k"]).await;
        for _ in 0..3 {
            read_chunks(&v).await;
        }
        let hits = || (stats(&pool).hits, pool.stats().cache.hits);
        let at = (0..BLOCKS).find(|at| position(&pool, *at).is_some()).unwrap();
        let before = hits();
        read(&v, at, 1, |at| at).await;
        assert_eq!(hits(), (before.0 + 1, before.1));
        read(&v, at, 1, |at| at).await;
        assert_eq!(hits(), (before.0 + 1, before.1 + 1));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_wrong_block_among_others_is_forgotten_alone() {
    Runtime::simulated(4503).block_on(async {
        let (rack, pool, v) = made(&["k"]).await;
        for _ in 0..3 {
            read_chunks(&v).await;
        }
        // A chunk that is read from the device at once.
        let positions = |first: u64| -> Option<Vec<u32>> {
            (first..first + CHUNK).map(|at| position(&pool, at)).collect()
        };
        let follow =
            |two: &[u32]| two[0] + 1 == two[1] && device(&pool).are_adjacent(two[0], two[1]);
        let is_one_part = |at: &Vec<u32>| at.windows(2).all(follow);
        let mut chunks = (0..CHUNKS).map(|number| number * CHUNK);
        let first = chunks.find(|first| positions(*first).as_ref().is_some_and(is_one_part));
        let first = first.unwrap();
        let wrong = positions(first).unwrap()[3];
        let at_bytes = CacheShape::of(SIZE_BYTES).block_offset_bytes(wrong);
        let rot = IoBuf::copy_of(&[0xee; BLOCK as usize]).freeze();
        rack.device("k").write(at_bytes, rot, false).await.unwrap();
        let hits = stats(&pool).hits;
        read(&v, first, CHUNK, |at| at).await;
        assert_eq!((errors(&pool), stats(&pool).hits), ((0, 0, 1), hits));
        let key = |at| pool.block_key(addr_of(&pool, at));
        let found = (first..first + CHUNK).map(|at| device(&pool).find(key(at), None).is_some());
        assert_eq!(found.collect::<Vec<_>>(), (0..CHUNK).map(|at| at != 3).collect::<Vec<_>>());
        drop(v);
        pool.export().await.unwrap();
    });
}

/// Reads of any length at random, beside overwrites of single blocks.
fn random_reads(seed: u64, caches: &'static [&'static str]) {
    Runtime::simulated(seed).block_on(async move {
        let (_, pool, v) = made(caches).await;
        let mut salts: Vec<u64> = (0..BLOCKS).collect();
        for step in 0..1500 {
            let first = rt::random_below(BLOCKS);
            let count = 1 + rt::random_below((BLOCKS - first).min(12));
            read(&v, first, count, |at| salts[at as usize]).await;
            if step % 4 == 0 {
                rt::sleep(Nanos::from_millis(1)).await;
            }
            if step % 50 == 0 {
                let at = rt::random_below(BLOCKS);
                salts[at as usize] = 1000 + step;
                let data = stamp(BLOCK as usize, 1000 + step);
                v.write(at * BLOCK, data, false).await.unwrap();
                pool.sync().await.unwrap();
            }
        }
        for device in pool.status().caches {
            assert_eq!((device.state, device.checksum_errors), (Health::Online, 0));
        }
        let devices = pool.stats().cache_devices;
        assert!(devices.iter().all(|device| device.hits > BLOCKS), "{devices:?}");
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn reads_of_any_length_get_each_block_from_where_it_is() {
    random_reads(4504, &["k"]);
}

#[test]
fn reads_of_any_length_get_each_block_from_the_device_that_has_it() {
    random_reads(4505, &["k", "k2"]);
}

#[test]
fn a_moved_block_stays_in_memory() {
    Runtime::simulated(4506).block_on(async {
        let (_, pool, v) = made(&["k"]).await;
        read(&v, 5, 1, |at| at).await;
        let old = addr_of(&pool, 5);
        let new = BlockAddr::new(old.segment(), BlockAddr::MAX_BLOCKS - 1);
        let has = |addr| pool.cache.contains(pool.block_key(addr));
        assert!(has(old) && !has(new));
        pool.rename_cached(old, new);
        assert!(has(new) && !has(old));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_is_left_out_is_read_from_no_cache() {
    Runtime::simulated(4507).block_on(async {
        let (_, pool, v) = made(&["k"]).await;
        for _ in 0..3 {
            read_chunks(&v).await;
        }
        assert!(stats(&pool).hits > 0);
        pool.set_volume("v", "primarycache", "none").await.unwrap();
        let figures = || {
            let cache = pool.stats().cache;
            (stats(&pool).hits, cache.hits, cache.kept)
        };
        let before = figures();
        read_chunks(&v).await;
        assert_eq!(figures(), before);
        drop(v);
        pool.export().await.unwrap();
    });
}
