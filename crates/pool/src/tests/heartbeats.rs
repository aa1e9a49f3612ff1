//! Heartbeats and the health of devices: where heartbeats go, what failed devices and a log that
//! runs full lead to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, FenceLoss, IoBuf, MemoryDevice, Operation};
use forebay_format::label::HEARTBEAT_OFFSET_BYTES;
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Probe, Script, Shelf};
use forebay_units::{DeviceId, Layout, Nanos};

use super::rack::{Rack, in_store, scripted};
use super::{spec, stamp, volume};
use crate::status::{Health, PoolEvent};
use crate::{LabelError, OpenWith, Pool, SuspendReason};

const SIZE: u64 = 64 << 20;

// No device says any more whether another machine has the pool.
#[test]
fn a_pool_whose_devices_are_all_gone_stops_although_its_commit_waits() {
    Runtime::simulated(4059).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        let commits = pool.writers.lock().await;
        rack.pull(&["a", "b"]);
        rt::sleep(Nanos::from_secs(10)).await;
        let reason = pool.lifecycle.stopped.borrow().clone();
        assert!(matches!(reason, Some(SuspendReason::Commit(_))), "{reason:?}");
        drop(commits);
    });
}

// What another machine's import has closed is no failure of the device.
#[test]
fn a_lost_fence_accuses_no_log_device() {
    Runtime::simulated(4060).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        let id = DeviceId(pool.find_member("l").unwrap().device);
        let kind = ErrorKind::FenceLost(FenceLoss::TakenOver);
        let error = DeviceError::new("l", Operation::Write, 0, 4096, kind);
        pool.fail_log_side(id, &error.clone().into());
        pool.durable_write_failed(id, &rack.device("l"), error);
        assert_eq!(pool.status().logs[0].state, Health::Online);
        assert_eq!(pool.events(), []);
        let failed = DeviceError::new("l", Operation::Write, 0, 4096, ErrorKind::Gone);
        pool.fail_log_side(id, &failed.clone().into());
        assert_eq!(pool.status().logs[0].children[0].state, Health::Faulted);
        let told =
            PoolEvent::LogDeviceFailed { device: "l".into(), error: LabelError::Device(failed) };
        assert_eq!(pool.events(), [told]);
        pool.export().await.unwrap();
    });
}

/// Counts reads and writes of the heartbeat, by device.
#[derive(Default)]
struct Beats {
    counts: RefCell<BTreeMap<String, (u64, u64)>>,
}

impl Beats {
    fn of(&self, device: &str) -> (u64, u64) {
        self.counts.borrow().get(device).copied().unwrap_or_default()
    }
}

impl Script for Beats {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        if command.offset_bytes == HEARTBEAT_OFFSET_BYTES {
            let mut counts = self.counts.borrow_mut();
            let (reads, writes) = counts.entry(command.device.to_owned()).or_default();
            match command.operation {
                Operation::Read => *reads += 1,
                _ => *writes += 1,
            }
        }
        Box::pin(std::future::ready(Decision::Run))
    }
}

/// A pool that was idle for a minute. Some of its devices are in a store.
async fn idle(layout: Layout, groups: &[&[&str]], stored: &[&str]) -> (Rc<Pool>, Rc<Beats>) {
    let device = |name: &&str| -> Device {
        match stored.contains(name) {
            true => in_store(name, SIZE),
            false => Rc::new(MemoryDevice::new(name, SIZE)),
        }
    };
    let shelf = Shelf::new(groups.concat().iter().map(device));
    let beats = Rc::new(Beats::default());
    let machine = scripted(OpenWith::new(1, move |name| shelf.open(name)), beats.clone());
    let mut wanted = spec(layout, groups[0], &[]);
    for devices in &groups[1..] {
        wanted.groups.extend(spec(layout, devices, &[]).groups);
    }
    let pool = Pool::create(machine, "tank", &wanted).await.unwrap();
    rt::sleep(Nanos::from_secs(20)).await;
    beats.counts.take();
    rt::sleep(Nanos::from_secs(60)).await;
    (pool, beats)
}

// Each is a request that costs money.
#[test]
fn a_device_in_a_store_has_a_heartbeat_each_five_seconds() {
    const EACH_FIVE: std::ops::RangeInclusive<u64> = 11..=13;
    const EACH_ONE: std::ops::RangeInclusive<u64> = 58..=62;
    Runtime::simulated(4084).block_on(async {
        let (pool, beats) = idle(Layout::Raid0, &[&["a"]], &["a"]).await;
        assert!(EACH_FIVE.contains(&beats.of("a").1), "{:?}", beats.counts);
        // A root takes one along.
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let roots = pool.sync.commit.get();
        beats.counts.take();
        for at in 0..10 {
            v.write(at << 12, stamp(4096, at), false).await.unwrap();
            pool.sync().await.unwrap();
            rt::sleep(Nanos::from_secs(4)).await;
        }
        let roots = pool.sync.commit.get().0 - roots.0;
        assert!(roots >= 10 && beats.of("a").1 == roots, "{roots} {:?}", beats.counts);
        drop(v);
        pool.export().await.unwrap();

        let (pool, beats) = idle(Layout::Mirror, &[&["a", "b"]], &["a"]).await;
        let ((reads, writes), (_, here)) = (beats.of("a"), beats.of("b"));
        assert!(EACH_FIVE.contains(&writes) && EACH_ONE.contains(&here), "{:?}", beats.counts);
        assert!(reads <= *EACH_FIVE.end(), "the other device is asked: {:?}", beats.counts);
        pool.export().await.unwrap();
    });
}

#[test]
fn heartbeats_go_to_a_group_that_is_in_no_store_if_there_is_one() {
    Runtime::simulated(4085).block_on(async {
        for groups in [[&["a"][..], &["b"][..]], [&["b"][..], &["a"][..]]] {
            let (pool, beats) = idle(Layout::Raid0, &groups, &["a"]).await;
            assert!(beats.of("a").1 == 0 && beats.of("b").1 > 50, "{:?}", beats.counts);
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn a_device_that_holds_the_log_and_is_needed_suspends_its_pool_when_it_fails() {
    Runtime::simulated(4086).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        // No group tells of it first.
        let commits = pool.writers.lock().await;
        rack.switches.unwritable.borrow_mut().insert("a".to_owned());
        let write = rt::spawn(async move { v.write(0, stamp(4096, 1), true).await });
        rt::sleep(Nanos::from_millis(500)).await;
        let reason = pool.lifecycle.stopped.borrow().clone();
        assert!(matches!(reason, Some(SuspendReason::LogDevice { .. })), "{reason:?}");
        drop((commits, write));
    });
}

#[test]
fn a_log_that_runs_full_has_its_group_committed() {
    Runtime::simulated(4087).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let begun = rt::now();
        // The region of the log has 4 MiB, and memory has one block of this.
        for at in 0..200 {
            v.write(0, stamp(65536, at), true).await.unwrap();
        }
        let took = rt::now().since(begun);
        assert!(took < Nanos::from_secs(60), "{took:?}");
        assert_eq!(pool.events(), []);
        drop(v);
        pool.export().await.unwrap();
    });
}

/// Reads of the body of one device that fail.
struct Fails {
    device: &'static str,
    kind: RefCell<Option<ErrorKind>>,
}

impl Script for Fails {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_body = command.operation == Operation::Read && command.offset_bytes >= 5 << 20;
        let kind = self.kind.borrow().clone().filter(|_| is_body && command.device == self.device);
        Box::pin(std::future::ready(kind.map_or(Decision::Run, Decision::Fail)))
    }
}

// The store has all others, and what was lost is written anew.
#[test]
fn lost_objects_do_not_take_their_device_out_of_use() {
    let lost = ErrorKind::LostObject { object: "data/1".into(), offset_bytes: 0, len_bytes: 1 };
    for (kind, is_taken_out) in [(lost, false), (ErrorKind::Os { errno: 5 }, true)] {
        Runtime::simulated(4088).block_on(async move {
            let script = Rc::new(Fails { device: "b", kind: RefCell::default() });
            let device = |name: &str| -> Device {
                Probe::new(Rc::new(MemoryDevice::new(name, SIZE)), script.clone())
            };
            let shelf = Shelf::new(["a", "b", "c"].map(device));
            let opener = OpenWith::new(1, move |name| shelf.open(name));
            let options = spec(Layout::Raidz1, &["a", "b", "c"], &[]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.set("cache_size", "off").await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(8 << 20, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            *script.kind.borrow_mut() = Some(kind);
            for at in (0..8 << 20).step_by(28 << 10) {
                v.read(at, IoBuf::zeroed(4096)).await.unwrap();
            }
            rt::sleep(Nanos::from_secs(1)).await;
            let count = |is_it: fn(&PoolEvent) -> bool| {
                pool.events().iter().filter(|event| is_it(event)).count()
            };
            assert!(count(|event| matches!(event, PoolEvent::ReadFailed(_))) >= 10);
            let out = count(|event| matches!(event, PoolEvent::TakenOut { .. }));
            assert_eq!(out > 0, is_taken_out, "{:?}", pool.events());
        });
    }
}
