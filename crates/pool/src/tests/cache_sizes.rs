//! How large the read cache is, what leaves it, and how far is read ahead into it.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{memory, paced};
use super::{expect, spec, stamp, volume};
use crate::{Opener, Opening, Pool};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A machine of which so much memory is free.
struct Machine {
    inner: Rc<dyn Opener>,
    memory_bytes: u64,
    free_bytes: Rc<Cell<u64>>,
}

impl Opener for Machine {
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
        Some(self.memory_bytes)
    }
}

async fn pool_on(host: Rc<dyn Opener>, cache_size: &str) -> Rc<Pool> {
    let mut spec = spec(Layout::Raid0, &["a"], &[]);
    spec.properties.insert("cache_size".to_owned(), cache_size.to_owned());
    let pool = Pool::create(host, "tank", &spec).await.unwrap();
    pool.create_volume(&volume(16 * MIB)).await.unwrap();
    pool
}

async fn filled(pool: &Rc<Pool>, mibs: u64) -> Device {
    let v = pool.open_volume("v").unwrap();
    for at in 0..mibs {
        v.write(at * MIB, stamp(MIB as usize, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    v
}

async fn read_mibs(v: &Device, mibs: u64) {
    for at in (0..mibs).rev() {
        expect(v, at * MIB, &stamp(MIB as usize, at)).await;
    }
}

#[test]
fn a_cache_takes_a_quarter_of_the_memory_as_far_as_it_is_free() {
    for (memory_mib, free_mib, size_mib, limit_mib) in
        [(1024, 1000, 256, 256), (1024, 200, 256, 36), (160, 160, 64, 16), (160, 128, 64, 0)]
    {
        Runtime::simulated(4601).block_on(async move {
            let free_bytes = Rc::new(Cell::new(free_mib * MIB));
            let (inner, memory_bytes) = (memory(&["a"], 64 * MIB), memory_mib * MIB);
            let machine = Rc::new(Machine { inner, memory_bytes, free_bytes });
            let pool = pool_on(machine, "auto").await;
            let cache = pool.stats().cache;
            assert_eq!((cache.size_bytes, cache.limit_bytes), (size_mib * MIB, limit_mib * MIB));
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_cache_gives_memory_back_within_seconds_and_takes_it_again() {
    Runtime::simulated(4602).block_on(async {
        let free_bytes = Rc::new(Cell::new(900 * MIB));
        let inner = memory(&["a"], 64 * MIB);
        let machine = Machine { inner, memory_bytes: 1024 * MIB, free_bytes: free_bytes.clone() };
        let pool = pool_on(Rc::new(machine), "16M").await;
        let v = filled(&pool, 8).await;
        read_mibs(&v, 8).await;
        let sizes = || (pool.stats().cache.used_bytes, pool.stats().cache.limit_bytes);
        assert_eq!(sizes(), (8 * MIB, 16 * MIB));
        let look = || rt::sleep(Nanos::from_millis(1500));
        // All of it and more is missing; an eighth is to be free.
        free_bytes.set(112 * MIB);
        look().await;
        assert_eq!(sizes(), (0, 0));
        read_mibs(&v, 8).await;
        assert_eq!(sizes(), (0, 0));
        // It grows by half of what is free.
        free_bytes.set(136 * MIB);
        look().await;
        assert_eq!(sizes(), (0, 4 * MIB));
        free_bytes.set(900 * MIB);
        look().await;
        read_mibs(&v, 8).await;
        assert_eq!(sizes(), (8 * MIB, 16 * MIB));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_trimmed_leaves_the_cache() {
    Runtime::simulated(4603).block_on(async {
        let pool = pool_on(memory(&["a"], 64 * MIB), "16M").await;
        let v = filled(&pool, 2).await;
        read_mibs(&v, 2).await;
        assert_eq!(pool.stats().cache.used_bytes, 2 * MIB);
        v.discard(MIB, MIB, false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.stats().cache.used_bytes, MIB);
        drop(v);
        pool.export().await.unwrap();
    });
}

async fn read_in_order(v: &Device, blocks: u64, rest: Nanos) {
    let of_mib = |mib| stamp(MIB as usize, mib);
    for at in 0..blocks {
        let (mib, within) = (at * BLOCK / MIB, (at * BLOCK % MIB) as usize);
        expect(v, at * BLOCK, &of_mib(mib)[within..within + BLOCK as usize]).await;
        rt::sleep(rest).await;
    }
}

#[test]
fn what_is_read_ahead_fits_into_an_eighth_of_the_cache() {
    Runtime::simulated(4604).block_on(async {
        let pool = pool_on(memory(&["a"], 64 * MIB), "1M").await;
        let v = filled(&pool, 4).await;
        read_in_order(&v, 100, Nanos::from_micros(10)).await;
        let cache = pool.stats().cache;
        // Thirty-two blocks: an eighth.
        assert!((100..=132).contains(&(cache.read_ahead + cache.misses)), "{cache:?}");
        read_in_order(&v, 1024, Nanos::from_micros(10)).await;
        let cache = pool.stats().cache;
        assert!(cache.read_ahead > 950 && cache.read_ahead_unused < 64, "{cache:?}");
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_reader_that_catches_up_waits_for_what_is_being_read_ahead() {
    Runtime::simulated(4605).block_on(async {
        let pace = |_: &str, operation: Operation, _: u64| {
            (operation == Operation::Read).then(|| Nanos::from_millis(5))
        };
        let pool = pool_on(paced(memory(&["a"], 64 * MIB), pace), "8M").await;
        let v = filled(&pool, 4).await;
        read_in_order(&v, 1024, Nanos::from_micros(1)).await;
        let cache = pool.stats().cache;
        assert!(cache.misses <= 3 && cache.read_ahead > 1000, "{cache:?}");
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_window_at_the_end_of_a_volume_is_read_ahead_as_far_as_it_goes() {
    Runtime::simulated(4606).block_on(async {
        let pool = pool_on(memory(&["a"], 64 * MIB), "16M").await;
        let v = filled(&pool, 16).await;
        let first = 16 * MIB / BLOCK - 40;
        for at in [first, first + 1] {
            let within = (at * BLOCK % MIB) as usize;
            expect(&v, at * BLOCK, &stamp(MIB as usize, 15)[within..within + 4096]).await;
        }
        rt::sleep(Nanos::from_millis(1)).await;
        assert_eq!(pool.stats().cache.read_ahead, 32);
        for at in first + 2..first + 40 {
            let within = (at * BLOCK % MIB) as usize;
            expect(&v, at * BLOCK, &stamp(MIB as usize, 15)[within..within + 4096]).await;
            rt::sleep(Nanos::from_micros(10)).await;
        }
        assert_eq!(pool.stats().cache.read_ahead, 38);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_was_exported_is_let_go_by_what_looks_at_the_memory_and_reads_ahead() {
    Runtime::simulated(4607).block_on(async {
        let free_bytes = Rc::new(Cell::new(900 * MIB));
        let inner = memory(&["a"], 64 * MIB);
        let machine = Machine { inner, memory_bytes: 1024 * MIB, free_bytes };
        let pool = pool_on(Rc::new(machine), "16M").await;
        let v = filled(&pool, 4).await;
        read_in_order(&v, 600, Nanos::ZERO).await;
        drop(v);
        pool.export().await.unwrap();
        let exported = Rc::downgrade(&pool);
        drop(pool);
        rt::sleep(Nanos::from_secs(5)).await;
        assert!(exported.upgrade().is_none());
    });
}
