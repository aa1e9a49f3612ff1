//! Cache devices that are added together, one of which takes no header, and that leave, rest or
//! return.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{ErrorKind, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::cache_devices::{BLOCK, BLOCKS, DEVICES, filled, stats, warm, with_cache};
use super::rack::{Rack, scripted};
use super::{names, spec};
use crate::Pool;
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::{Health, PoolEvent};

const ALL: &[&str] = &["a", "k1", "k2", "k3"];

/// The device "k2" fails the write of its header.
struct NoHeader;

impl Script for NoHeader {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_header = command.operation == Operation::Write
            && (command.offset_bytes, command.len_bytes) == (0, 4096)
            && command.device == "k2";
        let decision =
            if is_header { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(async move { decision })
    }
}

fn caches(pool: &Pool) -> Vec<(String, Health)> {
    pool.status().caches.iter().map(|cache| (cache.name.clone(), cache.state)).collect()
}

#[test]
fn a_cache_device_without_a_header_is_no_part_of_the_pool_nor_are_those_after_it() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(ALL, 64 << 20);
        let host = scripted(rack.host(1), Rc::new(NoHeader));
        let pool = Pool::create(host, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let add = PoolSpec { caches: names(&["k1", "k2", "k3"]), ..PoolSpec::default() };
        assert!(pool.add(&add).await.is_err());
        let first = vec![("k1".to_owned(), Health::Online)];
        assert_eq!(caches(&pool), first);
        pool.export().await.unwrap();
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(ALL), "tank", &options).await.unwrap();
        forebay_rt::sleep(forebay_units::Nanos::from_secs(1)).await;
        assert_eq!(caches(&pool), first);
        // Others may have them.
        let other = spec(Layout::Mirror, &["k2", "k3"], &[]);
        Pool::create(rack.host(1), "other", &other).await.unwrap().export().await.unwrap();
        pool.export().await.unwrap();
    });
}

// Its header is cleared, although the pool had closed it.
#[test]
fn a_cache_device_that_is_removed_while_it_is_offline_is_free() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(ALL, 64 << 20);
        let with_cache = PoolSpec { caches: names(&["k1"]), ..spec(Layout::Raid0, &["a"], &[]) };
        let pool = Pool::create(rack.locked(), "tank", &with_cache).await.unwrap();
        pool.offline("k1").await.unwrap();
        pool.remove("k1").await.unwrap();
        assert_eq!(caches(&pool), []);
        let other = spec(Layout::Raid0, &["k1"], &[]);
        Pool::create(rack.locked(), "other", &other).await.unwrap().export().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// Reads of the device "k" take some time and fail, once they are told to.
#[derive(Default)]
struct LateFailures {
    is_told: Cell<bool>,
    begun: Cell<u32>,
}

impl Script for LateFailures {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let fails =
            self.is_told.get() && command.device == "k" && command.operation == Operation::Read;
        Box::pin(async move {
            if !fails {
                return Decision::Run;
            }
            self.begun.set(self.begun.get() + 1);
            rt::sleep(Nanos::from_millis(20)).await;
            Decision::Fail(ErrorKind::Gone)
        })
    }
}

#[test]
fn a_read_that_fails_late_makes_no_failure_of_a_device_that_was_taken_offline() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let failures = Rc::<LateFailures>::default();
        let (pool, v) = filled(scripted(rack.host(1), failures.clone()), &with_cache()).await;
        warm(&v).await;
        failures.is_told.set(true);
        let reading = rt::spawn({
            let v = v.clone();
            async move { v.read(0, IoBuf::zeroed((BLOCKS * BLOCK) as usize)).await.map(drop) }
        });
        rt::sleep(Nanos::from_millis(10)).await;
        assert!(failures.begun.get() > 0 && !reading.is_finished());
        pool.offline("k").await.unwrap();
        reading.await.unwrap();
        assert_eq!(caches(&pool), [("k".to_owned(), Health::Offline)]);
        let is_failure = |event: &PoolEvent| matches!(event, PoolEvent::CacheDeviceFailed { .. });
        assert!(!pool.events().iter().any(is_failure), "{:?}", pool.events());
        failures.is_told.set(false);
        drop(v);
        pool.export().await.unwrap();
    });
}

/// The device "k" fails as many reads as it is told to.
#[derive(Default)]
struct FewFailures(Cell<u64>);

impl Script for FewFailures {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let fails =
            self.0.get() > 0 && command.device == "k" && command.operation == Operation::Read;
        if fails {
            self.0.set(self.0.get() - 1);
        }
        let decision =
            if fails { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(async move { decision })
    }
}

#[test]
fn a_cache_device_that_returns_is_judged_by_what_it_does_from_then_on() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let failures = Rc::<FewFailures>::default();
        let (pool, v) = filled(scripted(rack.host(1), failures.clone()), &with_cache()).await;
        for command in ["online", "clear k", "clear"] {
            warm(&v).await;
            failures.0.set(u64::MAX);
            warm(&v).await;
            assert_eq!(caches(&pool), [("k".to_owned(), Health::Faulted)]);
            failures.0.set(0);
            match command {
                "online" => pool.online("k").await.unwrap(),
                "clear k" => pool.clear(Some("k")).await.unwrap(),
                _ => pool.clear(None).await.unwrap(),
            }
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(pool.status().caches[0].read_errors, 0, "{command}");
            warm(&v).await;
            failures.0.set(1);
            warm(&v).await;
            assert_eq!(failures.0.get(), 0, "{command}");
            assert_eq!(caches(&pool), [("k".to_owned(), Health::Online)]);
            assert_eq!(pool.status().caches[0].read_errors, 1, "{command}");
        }
        // One that was taken offline stays so, and an error of another device is not its.
        pool.offline("k").await.unwrap();
        pool.clear(None).await.unwrap();
        pool.clear(Some("a")).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(caches(&pool), [("k".to_owned(), Health::Offline)]);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_cache_device_takes_what_leaves_memory_after_another_one_has_left() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "k2"], 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        let add = PoolSpec { caches: names(&["k2"]), ..PoolSpec::default() };
        pool.add(&add).await.unwrap();
        pool.remove("k2").await.unwrap();
        warm(&v).await;
        assert!(stats(&pool).admitted > BLOCKS / 2, "{:?}", stats(&pool));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_cache_device_is_offline_until_it_is_brought_online_again() {
    Runtime::simulated(131).block_on(async {
        let rack = Rack::new(ALL, 64 << 20);
        let data = spec(Layout::Raid0, &["a"], &[]);
        let with_caches = PoolSpec { caches: names(&["k1", "k2"]), ..data };
        let mut pool = Pool::create(rack.locked(), "tank", &with_caches).await.unwrap();
        for (command, state) in [("offline", Health::Offline), ("online", Health::Online)] {
            match command {
                "offline" => pool.offline("k1").await.unwrap(),
                _ => pool.online("k1").await.unwrap(),
            }
            rt::sleep(Nanos::from_secs(1)).await;
            let expected = [("k1".to_owned(), state), ("k2".to_owned(), Health::Online)];
            assert_eq!(caches(&pool), expected);
            pool.export().await.unwrap();
            drop(pool);
            let options = ImportOptions::default();
            pool = Pool::import(rack.locked(), &names(ALL), "tank", &options).await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(caches(&pool), expected, "{command} is forgotten");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_cache_device_in_use_that_is_brought_online_stays_in_use() {
    Runtime::simulated(132).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let (pool, v) = filled(rack.host(1), &with_cache()).await;
        warm(&v).await;
        let before = stats(&pool);
        assert!(before.used_bytes > 0);
        pool.online("k").await.unwrap();
        assert_eq!(caches(&pool), [("k".to_owned(), Health::Online)]);
        assert_eq!(stats(&pool).used_bytes, before.used_bytes);
        warm(&v).await;
        assert!(stats(&pool).hits > before.hits);
        drop(v);
        pool.export().await.unwrap();
    });
}
