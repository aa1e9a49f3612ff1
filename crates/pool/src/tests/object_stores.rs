//! Devices in object stores, as the pool sees them: what they cost, and when they are silent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, FailingRequest, IoBytes, Layer,
    MemoryDevice, ObjectStats, Operation, StoreRequest,
};
use forebay_format::label::LABEL_BYTES;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::compression::scan_ended;
use super::rack::paced;
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::{Health, PoolCondition, PoolEvent};
use crate::{OpenWith, Opener, Pool};

const GIB: u64 = 1 << 30;

/// A device that says of itself what an object store would.
struct InStore {
    inner: Rc<MemoryDevice>,
    stats: RefCell<ObjectStats>,
    /// Whether it takes no more writes, until it is opened anew.
    has_failed: Cell<bool>,
}

impl InStore {
    fn new(name: &str, stats: ObjectStats) -> Rc<Self> {
        let inner = Rc::new(MemoryDevice::new(name, 256 << 20));
        Rc::new(Self { inner, stats: RefCell::new(stats), has_failed: Cell::new(false) })
    }
}

impl Layer for InStore {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        if self.has_failed.get() {
            let kind = ErrorKind::Server { errno: 5, text: "it is away".to_owned() };
            let error = DeviceError::new(
                self.inner.name(),
                Operation::Write,
                offset_bytes,
                data.len() as u64,
                kind,
            );
            return Box::pin(std::future::ready(Err(error)));
        }
        self.inner.write(offset_bytes, data, fua)
    }
    fn objects(&self) -> Option<ObjectStats> {
        Some(self.stats.borrow().clone())
    }
}

fn opener(stores: [Rc<InStore>; 2]) -> Rc<dyn Opener> {
    OpenWith::new(1, move |name| {
        let found = stores.iter().find(|store| store.inner.name() == name);
        Ok(found.expect("there are two").clone() as Device)
    })
}

async fn pool_in(stores: [Rc<InStore>; 2]) -> Rc<Pool> {
    let options = spec(Layout::Raid0, &["a", "b"], &[]);
    Pool::create(opener(stores), "tank", &options).await.unwrap()
}

#[test]
fn what_several_stores_cost_is_added_up() {
    Runtime::simulated(1).block_on(async {
        let stats = |times: u64| ObjectStats {
            objects: times,
            stored_bytes: times * 10 * GIB,
            puts: times * 900,
            lists: times * 100,
            gets: times * 5000,
            got_bytes: times * GIB,
            retries: times,
            ..ObjectStats::default()
        };
        let pool = pool_in([InStore::new("a", stats(1)), InStore::new("b", stats(10))]).await;
        pool.set("store_prices", "put=2,get=0.1,month=0.5,egress=3").await.unwrap();
        let store = pool.summary().store.unwrap();
        assert_eq!((store.objects, store.stored_bytes, store.retries), (11, 110 * GIB, 11));
        assert_eq!(store.requests, 11 * 6000);
        let cost = [store.cost.requests, store.cost.egress, store.cost.stored_a_month];
        let expected = [11.0 * (2.0 + 0.5), 11.0 * 3.0, 110.0 * 0.5];
        for (cost, expected) in cost.into_iter().zip(expected) {
            assert!((cost - expected).abs() < 1e-6, "{store:?}");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_store_that_was_given_up_is_opened_anew_when_it_is_back() {
    Runtime::simulated(5).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let content = stores[1].inner.clone();
        let (first, opened) = (stores.clone(), Cell::new(0));
        let opener = OpenWith::new(1, move |name| {
            opened.set(opened.get() + u32::from(name == "b"));
            let is_again = name == "b" && opened.get() > 1;
            Ok(match first.iter().find(|store| store.inner.name() == name && !is_again) {
                Some(store) => store.clone() as Device,
                None => Rc::new(InStore {
                    inner: content.clone(),
                    stats: RefCell::default(),
                    has_failed: Cell::new(false),
                }),
            })
        });
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        stores[1].has_failed.set(true);
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.status().state, Health::Degraded);
        pool.online("b").await.unwrap();
        scan_ended(&pool).await;
        v.write(0, stamp(1 << 20, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.status().state, Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_store_is_called_silent_once_and_only_while_it_is() {
    Runtime::simulated(2).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let pool = pool_in(stores.clone()).await;
        let told = || {
            let mut told = Vec::new();
            for event in pool.events() {
                match event {
                    PoolEvent::StoreSilent { device, .. } => told.push((device, true)),
                    PoolEvent::StoreAnswers { device } => told.push((device, false)),
                    _ => {}
                }
            }
            told
        };
        pool.look_at_stores();
        assert_eq!(told(), []);
        stores[1].stats.borrow_mut().silent_for = Some(Nanos::from_secs(20));
        stores[1].stats.borrow_mut().silent_error = Some("connection refused".to_owned());
        // The pool looks by itself.
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(told(), [("b".to_owned(), true)]);
        let condition = pool.condition();
        let PoolCondition::StoreSilent { device, error, reserve: Some(reserve), .. } = condition
        else {
            panic!("{condition:?}");
        };
        assert_eq!((device.as_str(), error.as_deref()), ("b", Some("connection refused")));
        assert!(reserve.log_free_bytes > 0 && reserve.memory_free_bytes > 0, "{reserve:?}");
        stores[1].stats.borrow_mut().silent_for = None;
        pool.look_at_stores();
        pool.look_at_stores();
        assert_eq!(told(), [("b".to_owned(), true), ("b".to_owned(), false)]);
        let of_store = |event: &PoolEvent| {
            matches!(event, PoolEvent::StoreSilent { .. } | PoolEvent::StoreAnswers { .. })
        };
        let events = pool.events().into_iter().filter(of_store);
        let texts: Vec<String> = events.map(|event| event.to_string()).collect();
        assert!(texts[0].contains("store of b does not answer: connection refused"), "{texts:?}");
        assert!(texts.len() >= 2 && texts.iter().all(|text| text.contains("store of b")));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_request_that_fails_alone_is_told_of_each_time_that_it_begins_to() {
    Runtime::simulated(6).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let pool = pool_in(stores.clone()).await;
        let failing = FailingRequest {
            request: StoreRequest::Put,
            object: "data/1".to_owned(),
            failing_for: Nanos::from_secs(20),
            attempts: 5,
            error: "access denied".to_owned(),
        };
        let told = || {
            let is_it = |event: &&PoolEvent| matches!(event, PoolEvent::StoreRequestFails { .. });
            pool.events().iter().filter(is_it).count()
        };
        for times in 1..=2 {
            let later = FailingRequest { object: "data/2".to_owned(), ..failing.clone() };
            stores[1].stats.borrow_mut().failing = vec![failing.clone(), later];
            pool.look_at_stores();
            pool.look_at_stores();
            assert_eq!(told(), times);
            let condition = pool.condition();
            let PoolCondition::StoreRequestFails { device, failing } = condition else {
                panic!("{condition:?}");
            };
            assert_eq!((device.as_str(), failing.object.as_str()), ("b", "data/1"));
            assert_eq!((failing.failing_secs, failing.attempts), (20, 5));
            let text = pool.events().last().unwrap().to_string();
            assert!(text.contains("data/1") && text.contains("access denied"), "{text}");
            stores[1].stats.borrow_mut().failing.clear();
            pool.look_at_stores();
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_large_group_goes_to_segments_beside_the_root_of_the_one_before() {
    Runtime::simulated(3).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let is_slow = Rc::new(Cell::new(false));
        let pace = {
            let is_slow = is_slow.clone();
            move |_: &str, operation: Operation, at: u64| {
                let is_label = operation == Operation::Write && at < LABEL_BYTES;
                (is_label && is_slow.get()).then(|| Nanos::from_secs(1))
            }
        };
        let shelf = paced(opener(stores), pace);
        let mut options = spec(Layout::Raid0, &["a", "b"], &[]);
        options.properties.insert("dirty_limit".to_owned(), "24M".to_owned());
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(40 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        is_slow.set(true);
        let writing = rt::spawn(async move {
            for at in 0..36 {
                v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
                // The first group is closed before it has taken all memory.
                rt::sleep(Nanos::from_millis(1)).await;
            }
        });
        // One group under its root, one in segments, and one that is open.
        let mut most = 0;
        while !writing.is_finished() {
            let open = pool.dirty.groups.borrow().open_txg();
            most = most.max(open.0 - pool.sync.committed.get().0);
            rt::sleep(Nanos::from_millis(10)).await;
        }
        writing.await;
        assert_eq!(most, 3);
        is_slow.set(false);
        pool.export().await.unwrap();
        drop(pool);
        let (paths, options) = (names(&["a", "b"]), ImportOptions::default());
        let pool = Pool::import(shelf, &paths, "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..36 {
            expect(&v, at << 20, &stamp(1 << 20, at)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

/// What goes to the log of `log_bytes` while the store is away, when 50 MiB are flushed; and the
/// time that takes.
fn flushed_while_the_store_is_away(log_bytes: u64) -> (u64, Nanos) {
    Runtime::simulated(4).block_on(async move {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let log: Device = Rc::new(MemoryDevice::new("log", log_bytes));
        let opener = OpenWith::new(1, move |name| {
            let found = stores.iter().find(|store| store.inner.name() == name);
            Ok(found.map_or_else(|| log.clone(), |store| store.clone() as Device))
        });
        let is_away = Rc::new(Cell::new(false));
        let away = is_away.clone();
        let pace = move |name: &str, operation: Operation, _: u64| {
            (away.get() && name != "log" && operation != Operation::Read)
                .then(|| Nanos::from_secs(20))
        };
        let shelf = paced(opener, pace);
        let mut options = spec(Layout::Raid0, &["a", "b"], &["log"]);
        for (name, value) in [("dirty_limit", "96M"), ("txg_timeout", "600")] {
            options.properties.insert(name.to_owned(), value.to_owned());
        }
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(50 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        is_away.set(true);
        let (begun, logged) = (rt::now(), pool.log.stats().frame_bytes);
        for at in 0..50 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        v.flush().await.unwrap();
        let taken = (pool.log.stats().frame_bytes - logged, rt::now().since(begun));
        is_away.set(false);
        pool.export().await.unwrap();
        taken
    })
}

#[test]
fn a_large_flush_does_not_wait_for_a_store_that_is_away() {
    let (logged, took) = flushed_while_the_store_is_away(256 << 20);
    assert!(logged >= 50 << 20 && took < Nanos::from_secs(20), "{logged} bytes, {took:?}");
    // Other volumes need the rest of the log.
    let (logged, took) = flushed_while_the_store_is_away(64 << 20);
    assert!(logged < 50 << 20 && took >= Nanos::from_secs(20), "{logged} bytes, {took:?}");
}

#[test]
fn the_store_that_is_silent_for_longest_says_how_long_the_pool_goes_on() {
    Runtime::simulated(7).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let pool = pool_in(stores.clone()).await;
        pool.set("device_timeout", "600").await.unwrap();
        for (first, second) in [(10, 70), (70, 10)] {
            for (store, secs) in stores.iter().zip([first, second]) {
                store.stats.borrow_mut().silent_for = Some(Nanos::from_secs(secs));
            }
            assert_eq!(pool.outage_reserve().unwrap().timeout_secs, Some(530));
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn the_end_of_durable_writes_is_announced_once_while_a_store_is_silent() {
    Runtime::simulated(4070).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let pool = pool_in(stores.clone()).await;
        let told = || {
            let events = pool.events().into_iter().filter_map(|event| match event {
                PoolEvent::OutageReserveLow { lasts_secs } => Some(lasts_secs),
                _ => None,
            });
            events.collect::<Vec<u64>>()
        };
        let silent = |secs: Option<u64>| {
            stores[1].stats.borrow_mut().silent_for = secs.map(Nanos::from_secs);
            pool.look_at_stores();
            pool.look_at_stores();
        };
        pool.set("outage_warning", "60").await.unwrap();
        pool.set("device_timeout", "100").await.unwrap();
        silent(Some(4));
        // A single request may take as long.
        assert!(!pool.events().iter().any(|e| matches!(e, PoolEvent::StoreSilent { .. })));
        silent(Some(5));
        let lasts = pool.events().into_iter().find_map(|event| match event {
            PoolEvent::StoreSilent { lasts_secs, .. } => Some(lasts_secs),
            _ => None,
        });
        assert_eq!(lasts, Some(Some(95)), "{:?}", pool.events());
        silent(Some(40));
        assert!(told().is_empty(), "60 seconds are no less");
        silent(Some(41));
        silent(Some(42));
        assert_eq!(told(), [59]);
        let text = pool.events().last().unwrap().to_string();
        assert!(text.contains("59 s"), "{text}");
        silent(None);
        silent(Some(70));
        assert_eq!(told(), [59, 30]);
        silent(None);
        // What is left is short, and the store is there.
        pool.set("device_timeout", "10").await.unwrap();
        silent(None);
        pool.set("outage_warning", "off").await.unwrap();
        silent(Some(9));
        assert_eq!(told(), [59, 30]);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_written_now_says_how_long_memory_and_log_last() {
    Runtime::simulated(4071).block_on(async {
        let stores = ["a", "b"].map(|name| InStore::new(name, ObjectStats::default()));
        let pool = pool_in(stores).await;
        pool.set("device_timeout", "off").await.unwrap();
        let idle = pool.outage_reserve().unwrap();
        assert_eq!((idle.secs, idle.limit, idle.timeout_secs), (None, None, None));
        assert!(idle.log_free_bytes > 0 && idle.log_free_bytes <= pool.log.capacity_bytes());
        assert_eq!(idle.memory_free_bytes, pool.dirty.throttle.limit_bytes());
        pool.create_volume(&volume(64 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..40 {
            v.write(at << 16, stamp(65536, at), true).await.unwrap();
            rt::sleep(Nanos::from_millis(500)).await;
        }
        let busy = pool.outage_reserve().unwrap();
        // 128 KiB a second, over the last ten seconds or so.
        assert!((90_000..150_000).contains(&busy.write_bytes_per_sec), "{busy:?}");
        assert!((90_000..200_000).contains(&busy.log_bytes_per_sec), "{busy:?}");
        assert!(busy.secs.is_some() && busy.limit.is_some(), "{busy:?}");
        drop(v);
        pool.export().await.unwrap();
    });
}
