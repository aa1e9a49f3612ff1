//! Imports without all devices: what the list of known pools says of missing devices, and devices
//! that another process has open.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{DeviceError, ErrorKind, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{ALL, SIZE, check, forced, import, make, refused, until_crash, write};
use super::rack::Rack;
use super::{names, spec, volume};
use crate::spec::{ImportOptions, PoolSpec, Told};
use crate::status::Health;
use crate::{OpenWith, Opener, Opening, Pool, Witness};

async fn half_missing(rack: &Rc<Rack>, host: u64, options: &ImportOptions) {
    assert_kind!(refused(rack, host, options).await, HalfMissing { .. });
}

#[test]
fn the_old_half_of_a_mirror_is_not_imported_unless_forced() {
    let rack = Rack::new(&ALL, SIZE);
    let told = Rc::new(Cell::new(Told::default()));
    let (mine, tell) = (rack.clone(), told.clone());
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        pool.sync().await.unwrap();
        mine.pull(&["a"]);
        write(&pool, 2).await;
        pool.sync().await.unwrap();
        write(&pool, 3).await;
        pool.export().await.unwrap();
        tell.set(pool.told());
    });
    Runtime::simulated(2).block_on(async move {
        rack.put_back(&["a"]);
        rack.pull(&["b"]);
        half_missing(&rack, 1, &ImportOptions::default()).await;
        let known = |told| ImportOptions { known: Some(told), ..Default::default() };
        half_missing(&rack, 1, &known(Told::default())).await;
        half_missing(&rack, 1, &known(told.get())).await;
        // The newer half alone is enough.
        rack.put_back(&["b"]);
        rack.pull(&["a"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 3).await;
        pool.export().await.unwrap();
        drop(pool);
        // With force the old state is imported, and needs no force the next time.
        rack.put_back(&["a"]);
        rack.pull(&["b"]);
        let pool = import(&rack, 1, &forced()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_mirror_half_is_imported_when_its_machine_knows_of_nothing_newer() {
    let rack = Rack::new(&ALL, SIZE);
    let told = Rc::new(Cell::new(Told::default()));
    let (mine, tell) = (rack.clone(), told.clone());
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        tell.set(pool.told());
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["b"]);
        half_missing(&rack, 1, &ImportOptions::default()).await;
        let known = |told| ImportOptions { known: Some(told), ..Default::default() };
        let newer = Told { generation: told.get().generation + 1, ..told.get() };
        half_missing(&rack, 1, &known(newer)).await;
        // Another machine does not know what the last owner did.
        half_missing(&rack, 2, &known(told.get())).await;
        let pool = import(&rack, 1, &known(told.get())).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

/// A machine that keeps what its list of known pools is told. Its power fails when that is a given
/// generation.
struct LastWords {
    inner: Rc<dyn Opener>,
    told: Rc<Cell<Told>>,
    devices: RefCell<Vec<String>>,
    fails_at: Rc<Cell<u64>>,
}

impl LastWords {
    fn new(inner: Rc<dyn Opener>, told: Rc<Cell<Told>>, fails_at: Rc<Cell<u64>>) -> Rc<Self> {
        Rc::new(Self { inner, told, devices: RefCell::default(), fails_at })
    }
}

impl Opener for LastWords {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.inner.open(path)
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
    fn witness(
        &self,
        _pool: u64,
        told: Told,
        devices: Vec<String>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        self.told.set(told);
        *self.devices.borrow_mut() = devices;
        Box::pin(async move {
            if told.generation == self.fails_at.get() {
                rt::halt();
                rt::yield_now().await;
            }
        })
    }
}

#[test]
fn a_mirror_half_that_knows_of_the_others_failure_is_imported_without_a_root() {
    for other_went_on in [false, true] {
        let rack = Rack::new(&ALL, SIZE);
        let told = Rc::new(Cell::new(Told::default()));
        let fails_at = Rc::new(Cell::new(0));
        let machine = LastWords::new(rack.host(1), told.clone(), fails_at.clone());
        let known = || ImportOptions { known: Some(told.get()), ..Default::default() };
        let (mine, opener) = (rack.clone(), machine.clone());
        let first = Runtime::simulated(1).run(async move {
            let group = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(opener.clone(), "tank", &group).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            write(&pool, 1).await;
            pool.sync().await.unwrap();
            opener.fails_at.set(pool.told().generation + 1);
            mine.pull(&["b"]);
            write(&pool, 2).await;
            unreachable!("the power has failed");
        });
        assert!(first.is_none());
        let last = told.get();
        if other_went_on {
            // From the same root, with the same number.
            rack.put_back(&["b"]);
            rack.pull(&["a"]);
            let (opener, options) = (machine.clone(), ImportOptions { force: true, ..known() });
            let second = Runtime::simulated(2).run(async move {
                Pool::import(opener, &names(&ALL), "tank", &options).await.map(drop)
            });
            assert!(second.is_none());
            assert_eq!(told.get().generation, last.generation);
            rack.put_back(&["a"]);
            rack.pull(&["b"]);
        }
        let options = known();
        Runtime::simulated(3).block_on(async move {
            if other_went_on {
                return half_missing(&rack, 1, &options).await;
            }
            half_missing(&rack, 1, &ImportOptions::default()).await;
            let pool = import(&rack, 1, &options).await.unwrap();
            // Not acknowledged, but in the log.
            check(&pool, 2).await;
            pool.export().await.unwrap();
            drop(pool);
            // The list was never told of the other half's state.
            rack.put_back(&["b"]);
            rack.pull(&["a"]);
            half_missing(&rack, 1, &options).await;
        });
    }
}

#[test]
fn the_list_of_known_pools_is_told_where_the_devices_are() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "l", "k", "s"], SIZE);
        let machine = LastWords::new(rack.host(1), Rc::default(), Rc::default());
        let told = || machine.devices.borrow().join(" ");
        let group = PoolSpec {
            caches: names(&["k"]),
            spares: names(&["s"]),
            ..spec(Layout::Mirror, &["a", "b"], &["l"])
        };
        let pool = Pool::create(machine.clone(), "tank", &group).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(told(), "a b l k");
        // No command says so: the spare takes the place.
        rack.pull(&["b"]);
        write(&pool, 1).await;
        pool.sync().await.unwrap();
        while told() != "a s l k" {
            assert!(rt::now() < Nanos::from_secs(600), "{}", told());
            rt::sleep(Nanos::from_secs(1)).await;
        }
        pool.export().await.unwrap();
    });
}

// Another command looks for pools.
#[test]
fn import_waits_for_a_device_that_another_process_has_open_briefly() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &[]).await.export().await.unwrap();
    });
    let cases = [(100, Health::Online), (1000, Health::Online), (5000, Health::Degraded)];
    for (busy_ms, health) in cases {
        let machine = rack.clone();
        // Another process has the device open until then.
        let opener = OpenWith::new(1, move |name| {
            if name == "b" && rt::now() < Nanos::from_millis(busy_ms) {
                return Err(DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Busy));
            }
            Ok(machine.device(name))
        });
        Runtime::simulated(busy_ms).block_on(async move {
            let options = ImportOptions { force: true, ..ImportOptions::default() };
            let pool = Pool::import(opener, &names(&ALL), "tank", &options).await.unwrap();
            check(&pool, 1).await;
            assert_eq!(pool.summary().health, health);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn two_stale_members_of_three_are_refused_where_newer_changes_are_known() {
    let rack = Rack::new(&ALL, SIZE);
    let told = Rc::new(Cell::new(Told::default()));
    let (mine, tell) = (rack.clone(), told.clone());
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b", "c"], &[]).await;
        pool.sync().await.unwrap();
        mine.pull(&["b", "c"]);
        for salt in [2, 3] {
            write(&pool, salt).await;
            pool.sync().await.unwrap();
        }
        tell.set(pool.told());
    });
    // Two members of three, which never heard that they were left behind.
    rack.put_back(&["b", "c"]);
    rack.pull(&["a"]);
    Runtime::simulated(2).block_on(async move {
        let known = |told| ImportOptions { known: Some(told), ..Default::default() };
        let kind = refused(&rack, 1, &known(told.get())).await;
        assert_kind!(kind, RootNotNewest { witness: Witness::KnownPools, missing, .. }
            if *missing == ["a"]);
        let forced = ImportOptions { force: true, ..known(told.get()) };
        let pool = import(&rack, 1, &forced).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}
