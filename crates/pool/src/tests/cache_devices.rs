//! Cache devices, through volumes: what they save, what they survive, and what they cannot spoil.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation};
use forebay_format::cache_device::CacheShape;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, paced, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::admin::error::{AdminError, CandidateError};
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::{CacheDeviceStats, Health};
use crate::{Opener, Opening, Pool};

pub(super) const BLOCK: u64 = 4096;
/// Four times what the cache in memory has room for.
pub(super) const BLOCKS: u64 = 1024;
/// Blocks of a region on a small device, without the footer.
const REGION: u64 = 15;
pub(super) const DEVICES: &[&str] = &["a", "b", "c", "l", "k"];

pub(super) fn with_cache() -> PoolSpec {
    let mut spec = spec(Layout::Raidz1, &["a", "b", "c"], &["l"]);
    spec.caches = names(&["k"]);
    spec.properties.insert("cache_size".to_owned(), "1M".to_owned());
    spec
}

pub(super) async fn filled(host: Rc<dyn Opener>, spec: &PoolSpec) -> (Rc<Pool>, Device) {
    let pool = Pool::create(host, "tank", spec).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..BLOCKS {
        v.write(at * BLOCK, stamp(BLOCK as usize, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    (pool, v)
}

/// Reads every block once, in an order that is no stream. The devices of these tests take no time,
/// so the reader rests now and then to let regions be written.
async fn read_all_as(v: &Device, salt: u64) {
    for number in 0..BLOCKS {
        let at = number * 389 % BLOCKS;
        expect(v, at * BLOCK, &stamp(BLOCK as usize, at + salt)).await;
        if number % REGION == 0 {
            rt::sleep(Nanos::from_millis(1)).await;
        }
    }
}

async fn read_all(v: &Device) {
    read_all_as(v, 0).await;
}

/// Reads until the cache device has nearly everything.
pub(super) async fn warm(v: &Device) {
    for _ in 0..3 {
        read_all(v).await;
    }
}

pub(super) fn stats(pool: &Pool) -> CacheDeviceStats {
    pool.stats().cache_devices.remove(0)
}

fn main_reads(pool: &Pool) -> u64 {
    let stats = pool.stats();
    ["a", "b", "c"].iter().map(|device| stats.devices[*device].reads).sum()
}

async fn import(host: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = ImportOptions::default();
    let pool = Pool::import(host, &names(DEVICES), "tank", &options).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    rt::sleep(Nanos::from_secs(1)).await;
    (pool, v)
}

#[test]
fn what_is_read_again_is_read_from_the_cache_device() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        read_all(&v).await;
        assert_eq!(stats(&pool).admitted, 0, "read once");
        read_all(&v).await;
        // The last region is not full yet.
        let admitted = stats(&pool).admitted;
        assert!(admitted > BLOCKS * 9 / 10, "{admitted}");
        let before = main_reads(&pool);
        read_all(&v).await;
        let stats = stats(&pool);
        assert!(stats.hits > BLOCKS * 6 / 10, "{stats:?}");
        let from_main = main_reads(&pool) - before;
        assert!(from_main < BLOCKS / 5, "{from_main}");
        assert_eq!(stats.used_bytes / BLOCK, admitted / REGION * REGION);
        // What was read from it is not written to it again.
        read_all(&v).await;
        let more = pool.stats().cache_devices[0].admitted - admitted;
        assert!(more < BLOCKS / 5, "{more}");
        // A long read takes some from here and some from there.
        let whole = v.read(0, IoBuf::zeroed((BLOCKS * BLOCK) as usize)).await.unwrap();
        let is_right = |at: u64| whole[(at * BLOCK) as usize..][..4096] == stamp(4096, at)[..];
        assert!((0..BLOCKS).all(is_right));
        let status = pool.status().caches.remove(0);
        assert_eq!((status.state, status.checksum_errors), (Health::Online, 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn it_is_warm_after_an_export_and_after_a_crash() {
    let rack = Rack::new(DEVICES, 64 << 20);
    let (first, held) = (Runtime::simulated(2), rack.clone());
    let admitted = first.block_on(async move {
        let (pool, v) = filled(held.host(1), &with_cache()).await;
        warm(&v).await;
        stats(&pool).admitted
    });
    drop(first);
    let (second, held) = (Runtime::simulated(3), rack.clone());
    second.block_on(async move {
        let (pool, v) = import(held.host(1)).await;
        assert_eq!(stats(&pool).loaded, admitted / REGION * REGION, "from the footers");
        let before = main_reads(&pool);
        read_all(&v).await;
        assert!(main_reads(&pool) - before < BLOCKS / 5);
        pool.export().await.unwrap();
    });
    drop(second);
    let (third, held) = (Runtime::simulated(4), rack.clone());
    let reads = third.block_on(async move {
        let (pool, _) = import(held.host(1)).await;
        let loaded = stats(&pool).loaded;
        assert!(loaded >= admitted / REGION * REGION, "{loaded} from the snapshot");
        let status = pool.status().caches.remove(0);
        assert!(status.io.reads > 0);
        status.io.reads
    });
    drop(third);
    // Nothing was written since, so the snapshot still counts.
    Runtime::simulated(5).block_on(async move {
        let (pool, v) = import(rack.host(1)).await;
        assert_eq!(pool.status().caches[0].io.reads, reads);
        warm(&v).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn old_content_is_never_read() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        // Overwritten again and again, so that segments are used anew and the cleaner moves blocks.
        for round in 1..40u64 {
            for at in (0..BLOCKS).filter(|at| (at * 7 + round) % 3 == 0) {
                let at = at * 389 % BLOCKS;
                v.write(at * BLOCK, stamp(4096, at), false).await.unwrap();
            }
            v.discard(round * BLOCK, BLOCK, false).await.unwrap();
            pool.sync().await.unwrap();
            expect(&v, round * BLOCK, &[0; 4096]).await;
            v.write(round * BLOCK, stamp(4096, round), false).await.unwrap();
        }
        for _ in 0..3 {
            read_all(&v).await;
        }
        assert_eq!(pool.status().caches[0].checksum_errors, 0);
        assert!(stats(&pool).hits > 0);
        pool.export().await.unwrap();
    });
}

/// What the device "k" does instead of working.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    /// Commands never end.
    Hangs,
    /// Reads and writes fail.
    Fails,
    /// Writes are acknowledged and forgotten.
    Lies,
}

struct Troubles(RefCell<Trouble>);

impl Script for Troubles {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let trouble = match command.device {
            "k" => *self.0.borrow(),
            _ => Trouble::None,
        };
        Box::pin(async move {
            match trouble {
                Trouble::Hangs => std::future::pending().await,
                Trouble::Fails => Decision::Fail(ErrorKind::Os { errno: 5 }),
                Trouble::Lies if command.operation == Operation::Write => Decision::Drop,
                Trouble::None | Trouble::Lies => Decision::Run,
            }
        })
    }
}

#[test]
fn a_device_that_hangs_fails_or_lies_costs_time_alone() {
    for trouble in [Trouble::Hangs, Trouble::Fails, Trouble::Lies] {
        Runtime::simulated(7).block_on(async move {
            let troubles = Rc::new(Troubles(Trouble::None.into()));
            let rack = Rack::new(DEVICES, 64 << 20);
            let shelf = scripted(rack.host(1), troubles.clone());
            let (pool, v) = filled(shelf.clone(), &with_cache()).await;
            if trouble == Trouble::Lies {
                *troubles.0.borrow_mut() = trouble;
            }
            warm(&v).await;
            *troubles.0.borrow_mut() = trouble;
            let begun = rt::now();
            read_all(&v).await;
            let took = rt::now().since(begun);
            assert!(took < Nanos::from_secs(1), "{took:?}");
            rt::sleep(Nanos::from_secs(10)).await;
            read_all(&v).await;
            assert_eq!(pool.status().caches[0].state, Health::Faulted);
            assert_eq!(pool.status().state, Health::Online, "the pool needs no cache");
            if trouble == Trouble::Lies {
                assert_eq!(stats(&pool).hits, 0, "nothing of it was right");
            }
            let events = pool.events().iter().map(ToString::to_string).collect::<Vec<_>>();
            let told = events.iter().filter(|text| text.contains("cache device k is no longer"));
            assert_eq!(told.count(), 1, "{events:?}");
            // The operator tries again: nothing of it is believed but what is right.
            *troubles.0.borrow_mut() = Trouble::None;
            pool.online("k").await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(pool.status().caches[0].state, Health::Online);
            warm(&v).await;
            read_all(&v).await;
            assert!(stats(&pool).hits > BLOCKS / 2, "{:?}", stats(&pool));
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn an_import_does_without_it_and_takes_it_when_it_comes_back() {
    Runtime::simulated(8).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "elsewhere"], 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        pool.export().await.unwrap();
        drop((pool, v));
        rack.switches.pulled.borrow_mut().insert("k".to_owned());
        let (pool, v) = import(rack.host(1)).await;
        assert_eq!(pool.status().caches[0].state, Health::Unavail);
        read_all(&v).await;
        // Meanwhile blocks are overwritten.
        for at in 0..BLOCKS / 2 {
            v.write(at * BLOCK, stamp(4096, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        rack.switches.pulled.borrow_mut().clear();
        rt::sleep(Nanos::from_secs(15)).await;
        assert_eq!(pool.status().caches[0].state, Health::Online);
        read_all(&v).await;
        assert!(stats(&pool).hits > BLOCKS / 4);
        pool.export().await.unwrap();
    });
}

#[test]
fn an_import_notes_where_it_found_it() {
    Runtime::simulated(12).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "elsewhere"], 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        pool.export().await.unwrap();
        drop((pool, v));
        let (old, new) = (rack.device("k"), rack.device("elsewhere"));
        let content = old.read(0, IoBuf::zeroed(64 << 20)).await.unwrap();
        new.write(0, content.freeze(), true).await.unwrap();
        rack.pull(&["k"]);
        let paths = names(&["a", "b", "c", "l", "elsewhere"]);
        for paths in [paths, names(&["a", "b", "c", "l"])] {
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
            rt::sleep(Nanos::from_secs(15)).await;
            let status = pool.status().caches.remove(0);
            assert_eq!((status.name.as_str(), status.state), ("elsewhere", Health::Online));
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn rot_is_noticed_block_by_block() {
    Runtime::simulated(9).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        let k = rack.host(2).open("k").await.unwrap();
        // One block in each of ten regions.
        for region in 0..10 {
            let at = (1 << 20) + region * (REGION + 1) * BLOCK + 5 * BLOCK;
            k.write(at, IoBuf::copy_of(&[0xee; 4096]).freeze(), false).await.unwrap();
        }
        read_all(&v).await;
        let status = pool.status().caches.remove(0);
        assert_eq!((status.state, status.checksum_errors), (Health::Online, 10));
        pool.export().await.unwrap();
    });
}

#[test]
fn cache_devices_come_and_go() {
    Runtime::simulated(10).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "k2"], 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        let caches = names(&["k2"]);
        let add = PoolSpec { caches, ..PoolSpec::default() };
        pool.add(&add).await.unwrap();
        warm(&v).await;
        read_all(&v).await;
        let both = pool.stats().cache_devices;
        assert!(both.iter().all(|device| device.hits > BLOCKS / 10), "{both:?}");
        // A cache device is another pool's only by force.
        let other = spec(Layout::Raid0, &["k2"], &[]);
        let refused = Pool::create(rack.host(1), "other", &other).await.err().unwrap();
        let owned = CandidateError::OwnedByPool { device: "k2".into(), pool: "tank".into() };
        assert_eq!(refused, AdminError::from(owned));
        pool.offline("k").await.unwrap();
        assert_eq!(pool.status().caches[0].state, Health::Offline);
        read_all(&v).await;
        pool.online("k").await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(pool.status().caches[0].state, Health::Online);
        assert!(pool.stats().cache_devices[0].used_bytes > 0);
        pool.remove("k2").await.unwrap();
        assert_eq!(pool.status().caches.len(), 1);
        Pool::create(rack.host(1), "other", &other).await.unwrap().export().await.unwrap();
        read_all(&v).await;
        assert!(pool.remove("k2").await.is_err());
        pool.destroy().await.unwrap();
        let again = spec(Layout::Raid0, &["k"], &[]);
        Pool::create(rack.host(1), "again", &again).await.unwrap().export().await.unwrap();
    });
}

#[test]
fn a_device_that_is_removed_while_it_is_looked_at_is_free() {
    for wait_micros in (0..2000).step_by(50) {
        Runtime::simulated(wait_micros).block_on(async move {
            let rack = Rack::new(&["a", "b", "c", "l", "k"], 64 << 20);
            let (pool, v) = filled(rack.host(1), &with_cache()).await;
            warm(&v).await;
            let destroys = wait_micros % 100 == 0;
            pool.offline("k").await.unwrap();
            pool.online("k").await.unwrap();
            rt::sleep(Nanos::from_micros(wait_micros)).await;
            match destroys {
                true => pool.destroy().await.unwrap(),
                false => pool.remove("k").await.unwrap(),
            }
            let other = spec(Layout::Raid0, &["k"], &[]);
            let made = Pool::create(rack.host(1), "other", &other).await;
            made.unwrap_or_else(|error| panic!("after {wait_micros} us: {error}"));
        });
    }
}

#[test]
fn what_lies_on_a_device_of_an_earlier_use_is_not_believed() {
    Runtime::simulated(11).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        pool.remove("k").await.unwrap();
        let add = PoolSpec { caches: names(&["k"]), ..PoolSpec::default() };
        pool.add(&add).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!((stats(&pool).loaded, stats(&pool).written_bytes), (0, 0));
        warm(&v).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn writes_stay_within_the_budget() {
    Runtime::simulated(12).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let mut spec = with_cache();
        // A device of 64 MiB and a thousandth of it a day.
        spec.properties.insert("cache_dwpd".to_owned(), "0.001".to_owned());
        let (pool, v) = filled(rack.host(1), &spec).await;
        let regions = u64::from(CacheShape::of(64 << 20).regions);
        let mut read = 0;
        while stats(&pool).refused_budget == 0 {
            // Overwritten, so that they must be admitted again.
            for at in 0..BLOCKS {
                v.write(at * BLOCK, stamp(4096, at), false).await.unwrap();
            }
            pool.sync().await.unwrap();
            warm(&v).await;
            read += 1;
            assert!(read < 40);
        }
        let written = stats(&pool).written_bytes >> 16;
        // One more after the first lap: what was saved up meanwhile.
        assert!((regions..=regions + 1).contains(&written), "{written}");
        pool.set("cache_dwpd", "off").await.unwrap();
        warm(&v).await;
        assert!(stats(&pool).written_bytes >> 16 > written);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_rewind_reads_nothing_of_what_it_left_behind() {
    let rack = Rack::new(DEVICES, 64 << 20);
    let (first, held) = (Runtime::simulated(13), rack.clone());
    first.block_on(async move {
        let (pool, v) = filled(held.host(1), &with_cache()).await;
        warm(&v).await;
        for at in 0..BLOCKS {
            v.write(at * BLOCK, stamp(4096, at + 1_000_000), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        for _ in 0..3 {
            read_all_as(&v, 1_000_000).await;
        }
    });
    drop(first);
    Runtime::simulated(14).block_on(async move {
        let options = ImportOptions { rewind_groups: 1, ..ImportOptions::default() };
        let pool = Pool::import(rack.host(1), &names(DEVICES), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(stats(&pool).loaded > 0);
        for _ in 0..3 {
            read_all(&v).await;
        }
        assert_eq!(pool.status().caches[0].checksum_errors, 0);
        assert!(stats(&pool).hits > 0);
        pool.export().await.unwrap();
    });
}

// Found by the search: what a buffer had held before went to the device.
#[test]
fn a_region_that_is_not_full_ends_in_zeros() {
    Runtime::simulated(16).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        let admitted = stats(&pool).admitted;
        pool.export().await.unwrap();
        let (full, last) = (admitted / REGION, admitted % REGION);
        assert!(last > 0, "otherwise the last region is full");
        let k = rack.host(2).open("k").await.unwrap();
        let at = (1 << 20) + full * (REGION + 1) * BLOCK;
        let region = k.read(at, IoBuf::zeroed((REGION * BLOCK) as usize)).await.unwrap();
        let (blocks, rest) = region.split_at((last * BLOCK) as usize);
        assert!(blocks.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        assert!(rest.iter().all(|byte| *byte == 0));
    });
}

/// A machine that has little memory.
pub(super) struct Small {
    pub(super) inner: Rc<dyn Opener>,
    pub(super) memory_bytes: u64,
}

impl Opener for Small {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.inner.open(path)
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
    fn memory_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes)
    }
}

#[test]
fn a_device_is_used_as_far_as_there_is_memory_for_its_index() {
    Runtime::simulated(15).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        // An eighth is the index of ten regions, which is less than what is read.
        let memory_bytes = 8 * 22 * REGION * 10;
        let small = Rc::new(Small { inner: rack.host(1), memory_bytes });
        let (pool, v) = filled(small.clone(), &with_cache()).await;
        for _ in 0..8 {
            read_all(&v).await;
        }
        let status = pool.status().caches.remove(0);
        assert_eq!(status.space.unwrap().raw_size_bytes, REGION * 10 * BLOCK);
        assert!(stats(&pool).memory_bytes <= memory_bytes / 8);
        assert!(stats(&pool).used_bytes > 0);
        pool.export().await.unwrap();
        drop((pool, v));
        // More memory later, and the snapshot of before.
        let (pool, v) = import(rack.host(1)).await;
        assert!(stats(&pool).loaded > 0);
        warm(&v).await;
        assert_eq!(pool.status().caches[0].checksum_errors, 0);
        pool.export().await.unwrap();
        drop((pool, v));
        let (pool, v) = import(small).await;
        read_all(&v).await;
        assert_eq!(pool.status().caches[0].checksum_errors, 0);
        pool.export().await.unwrap();
    });
}

// What has left memory is noted for the cache device, and the notes must not grow without reads.
#[test]
fn writes_without_reads_leave_no_notes_behind() {
    Runtime::simulated(17).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        pool.set_volume("v", "cache_writes", "on").await.unwrap();
        let before = pool.stats().cache.evictions;
        for round in 1..4 {
            for at in 0..BLOCKS {
                v.write(at * BLOCK, stamp(4096, at + round), false).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        assert!(pool.stats().cache.evictions - before > BLOCKS, "{:?}", pool.stats().cache);
        let mut notes = 0;
        pool.cache.take_evicted(|_| notes += 1);
        assert_eq!(notes, 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn blocks_stay_where_they_are_while_others_are_read_from_a_cache_device() {
    const MIXED: u64 = 128;
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let is_slow = Rc::new(Cell::new(false));
        let told = is_slow.clone();
        let pace = move |name: &str, operation: Operation, _: u64| match operation {
            Operation::Read if told.get() && name == "k" => Some(Nanos::from_millis(50)),
            _ => None,
        };
        let (pool, v) = filled(paced(rack.host(1), pace), &with_cache()).await;
        warm(&v).await;
        // These are on no cache device.
        for at in (0..MIXED).step_by(2) {
            v.write(at * BLOCK, stamp(4096, at + 1000), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        is_slow.set(true);
        let reading = rt::spawn({
            let v = v.clone();
            async move { v.read(0, IoBuf::zeroed((MIXED * BLOCK) as usize)).await }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        let hits = stats(&pool).hits;
        for round in 2..12 {
            for at in 0..BLOCKS {
                let salt = round * 10_000;
                v.write(at * BLOCK, stamp(4096, at + salt), false).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        assert!(!reading.is_finished());
        let got = reading.await.expect("the segments were not used again");
        assert!(stats(&pool).hits > hits, "some came from the cache device");
        for at in 0..MIXED {
            let salt = if at % 2 == 0 { 1000 } else { 0 };
            assert!(got[(at * BLOCK) as usize..][..4096] == stamp(4096, at + salt)[..], "{at}");
        }
        let group = pool.status().groups.remove(0);
        assert!(group.children.iter().all(|disk| disk.checksum_errors == 0));
        pool.export().await.unwrap();
    });
}
