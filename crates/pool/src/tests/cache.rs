//! The read cache and the read-ahead, through volumes.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_rt::sync::Notify;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory};
use super::{expect, spec, stamp, volume};
use crate::{Counting, Memory, Opener, Opening, Pool};

const BLOCK: u64 = 4096;

/// A raidz1 with a volume of 16 MiB whose first `blocks` blocks were written one by one.
async fn filled(properties: &[(&str, &str)], blocks: u64) -> (Rc<Rack>, Rc<Pool>, Device) {
    let rack = Rack::new(&["a", "b", "c", "l"], 64 << 20);
    let mut spec = spec(Layout::Raidz1, &["a", "b", "c"], &["l"]);
    let properties = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    spec.properties = properties.collect();
    let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..blocks {
        v.write(at * BLOCK, stamp(BLOCK as usize, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    (rack, pool, v)
}

fn device_reads(pool: &Pool) -> u64 {
    pool.stats().devices.values().map(|device| device.reads).sum()
}

async fn read(v: &Device, at: u64) {
    expect(v, at * BLOCK, &stamp(BLOCK as usize, at)).await;
}

#[test]
fn what_was_read_is_read_from_memory() {
    Runtime::simulated(1).block_on(async {
        let (_rack, pool, v) = filled(&[("cache_size", "8M")], 64).await;
        // Backwards, so that nothing is read ahead.
        for at in (0..64).rev() {
            read(&v, at).await;
        }
        let before = device_reads(&pool);
        for at in (0..64).rev() {
            read(&v, at).await;
        }
        let whole = v.read(0, IoBuf::zeroed(64 * BLOCK as usize)).await.unwrap();
        assert!((0..64).all(|at| whole[at * 4096..][..4096] == stamp(4096, at as u64)[..]));
        assert_eq!(device_reads(&pool), before);
        let cache = pool.stats().cache;
        assert_eq!((cache.hits, cache.misses, cache.used_bytes), (128, 64, 64 * BLOCK));
        pool.set("cache_size", "off").await.unwrap();
        assert_eq!(pool.stats().cache.memory_bytes, 0);
        read(&v, 5).await;
        assert!(device_reads(&pool) > before);
        pool.set("cache_size", "1M").await.unwrap();
        pool.set_volume("v", "primarycache", "none").await.unwrap();
        read(&v, 5).await;
        assert_eq!(pool.stats().cache.used_bytes, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_overwritten_trimmed_or_destroyed_is_not_read_again() {
    for property in ["off", "on"] {
        Runtime::simulated(2).block_on(async move {
            let (_rack, pool, v) = filled(&[("cache_size", "8M")], 64).await;
            pool.set_volume("v", "cache_writes", property).await.unwrap();
            for at in 0..64 {
                read(&v, at).await;
            }
            for at in 0..16 {
                v.write(at * BLOCK, stamp(4096, 1000 + at), false).await.unwrap();
            }
            v.discard(16 * BLOCK, 16 * BLOCK, false).await.unwrap();
            for round in 0..2 {
                for at in 0..16 {
                    expect(&v, at * BLOCK, &stamp(4096, 1000 + at)).await;
                }
                expect(&v, 16 * BLOCK, &[0; 16 * 4096]).await;
                for at in 32..64 {
                    read(&v, at).await;
                }
                if round == 0 {
                    pool.sync().await.unwrap();
                }
            }
            drop(v);
            pool.destroy_volume("v", false).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            expect(&pool.open_volume("v").unwrap(), 0, &[0; 64 * 4096]).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_is_written_is_kept_when_that_is_wanted() {
    Runtime::simulated(3).block_on(async {
        let (_rack, pool, v) = filled(&[("cache_size", "8M")], 0).await;
        pool.set_volume("v", "cache_writes", "on").await.unwrap();
        for at in 0..32 {
            v.write(at * BLOCK, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let before = device_reads(&pool);
        for at in (0..32).rev() {
            read(&v, at).await;
        }
        assert_eq!(device_reads(&pool), before);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_is_written_over_and_over_reads_what_was_written_last() {
    Runtime::simulated(4).block_on(async {
        // Segments are cleaned, freed and used again; the cache sees every generation of them.
        let shelf = memory(&["a", "b", "l"], 64 << 20);
        let mut spec = spec(Layout::Mirror, &["a", "b"], &["l"]);
        spec.properties.insert("cache_size".into(), "4M".into());
        let pool = Pool::create(shelf, "tank", &spec).await.unwrap();
        let usable = pool.summary().available_bytes;
        let size = usable / 10 * 9 / BLOCK * BLOCK;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let blocks = size / BLOCK;
        let mut newest = vec![0u64; blocks as usize];
        let mut state = 1u64;
        for step in 0..4 * blocks {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) % blocks;
            newest[at as usize] = step + 1;
            v.write(at * BLOCK, stamp(4096, step + 1), false).await.unwrap();
            let other = (state >> 13) % blocks;
            if step % 4 == 0 && newest[other as usize] > 0 {
                expect(&v, other * BLOCK, &stamp(4096, newest[other as usize])).await;
            }
        }
        let stats = pool.stats();
        assert!(stats.segments.cleaned > 20, "{:?}", stats.segments);
        assert!(stats.cache.hits > 100, "{:?}", stats.cache);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_sequential_reader_is_read_ahead_of() {
    Runtime::simulated(5).block_on(async {
        let (_rack, pool, v) = filled(&[("cache_size", "8M")], 2048).await;
        for at in 0..2048 {
            read(&v, at).await;
            // Clients take a while for what they read; these devices take none.
            rt::sleep(Nanos::from_micros(10)).await;
        }
        let cache = pool.stats().cache;
        // All but the first blocks were there, or on their way.
        assert!(cache.misses < 40 && cache.read_ahead > 2000, "{cache:?}");
        assert_eq!(cache.read_ahead_unused, 0);
        assert!(device_reads(&pool) < 2048 / 8, "{}", device_reads(&pool));
        pool.export().await.unwrap();
    });
}

#[test]
fn what_cannot_be_read_ahead_is_an_error_of_the_reader_alone() {
    Runtime::simulated(6).block_on(async {
        let (rack, pool, v) = filled(&[("cache_size", "8M")], 256).await;
        for name in ["a", "b"] {
            rack.switches.unreadable.borrow_mut().insert(name.into());
        }
        let fails = |at: u64| {
            let v = v.clone();
            async move { v.read(at * BLOCK, IoBuf::zeroed(4096)).await.is_err() }
        };
        let failed = [fails(0).await, fails(1).await, fails(2).await];
        assert!(failed.contains(&true), "two devices of a raidz1 cannot be read");
        rt::sleep(Nanos::from_secs(1)).await;
        let listed = pool.status().lost_count;
        assert!(listed <= 3, "{listed} blocks are listed, and three were asked for");
        rack.switches.unreadable.borrow_mut().clear();
        for at in 0..256 {
            read(&v, at).await;
        }
        pool.export().await.unwrap();
    });
}

/// A machine with a GiB of memory, of which so much is free.
struct Tight {
    inner: Rc<dyn Opener>,
    free_bytes: Rc<Cell<u64>>,
    /// Told each time that the memory is counted.
    counted: Rc<Notify>,
}

impl Opener for Tight {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.inner.open(path)
    }

    fn host(&self) -> u64 {
        self.inner.host()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        Some(self.free_bytes.get())
    }

    fn memory_bytes(&self) -> Option<u64> {
        Some(1 << 30)
    }

    fn count_memory(&self) -> Counting<'_> {
        self.counted.notify_all();
        let memory =
            Memory { free_bytes: self.free_memory_bytes(), all_bytes: self.memory_bytes() };
        Box::pin(std::future::ready(memory))
    }
}

// The cache gives memory back in steps, and must not go on to a size of before.
#[test]
fn cache_that_is_set_smaller_while_it_shrinks_stays_so() {
    const MIB: u64 = 1 << 20;
    for (value, limit_bytes) in [("off", 0), ("4M", 4 * MIB)] {
        let mut met = 0;
        for seed in 0..8 {
            met += u64::from(Runtime::simulated(seed).block_on(async move {
                let free_bytes = Rc::new(Cell::new(900 * MIB));
                let inner = memory(&["a"], 128 * MIB);
                let counted = Notify::new();
                let machine =
                    Tight { inner, free_bytes: free_bytes.clone(), counted: counted.clone() };
                let machine = Rc::new(machine);
                let mut spec = spec(Layout::Raid0, &["a"], &[]);
                spec.properties.insert("cache_size".to_owned(), "256M".to_owned());
                let pool = Pool::create(machine, "tank", &spec).await.unwrap();
                pool.create_volume(&volume(48 * MIB)).await.unwrap();
                let v = pool.open_volume("v").unwrap();
                for at in 0..48 {
                    v.write(at * MIB, stamp(1 << 20, at), false).await.unwrap();
                }
                pool.sync().await.unwrap();
                for at in 0..48 {
                    expect(&v, at * MIB, &stamp(1 << 20, at)).await;
                }
                let used = || pool.stats().cache.used_bytes;
                let before = used();
                assert!(before > 40 * MIB, "{before}");
                // All but 16 MiB of the cache would fit.
                free_bytes.set(112 * MIB);
                let is_first = Cell::new(true);
                counted.until(|| !is_first.replace(false)).await;
                while used() == before {
                    rt::yield_now().await;
                }
                let is_under_way = before - used() < 16 * MIB;
                pool.set("cache_size", value).await.unwrap();
                rt::sleep(Nanos::from_secs(5)).await;
                let stats = pool.stats().cache;
                assert!(stats.limit_bytes <= limit_bytes, "{value}: {}", stats.limit_bytes);
                assert!(stats.used_bytes <= limit_bytes, "{value}: {}", stats.used_bytes);
                expect(&v, 0, &stamp(1 << 20, 0)).await;
                is_under_way
            }));
        }
        assert!(met > 0, "it was never set between two steps");
    }
}
