//! Devices that hang: the pool continues without them and rebuilds them when they answer again.
//!
//! The pool takes a device back only when no abandoned command can still take effect.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, IoBytes};
use forebay_pool::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec, VolumeSpec};
use forebay_pool::status::{Health, PoolEvent, VdevStatus};
use forebay_pool::status::{ScanKind, ScanPhase};
use forebay_pool::{AdminError, ImportError, LabelError, OpenWith, Opener, Pool};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::faults::{Fault, Ops, Stack};
use forebay_sim::{DiskConfig, Seed, SimDisk, World};
use forebay_testkit::Shelf;
use forebay_units::{Layout, Nanos};

struct Bench {
    world: Rc<World>,
    stacks: BTreeMap<String, Rc<Stack>>,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "l", "m"];

fn bench() -> Rc<Bench> {
    let world = World::new(Seed(7));
    let stack = |name: &&str| {
        let disk = match *name {
            "l" | "m" => DiskConfig::log(name, 64 << 20),
            _ => DiskConfig::flash(name, 64 << 20),
        };
        let disk = SimDisk::new(&world, disk);
        let cache = disk.clone();
        let stack = Stack::new(disk, Seed(3), move || cache.forget_cached());
        ((*name).to_owned(), stack)
    };
    let stacks = NAMES.iter().map(stack).collect();
    Rc::new(Bench { world, stacks })
}

impl Bench {
    fn opener(&self) -> Rc<dyn Opener> {
        let shelf = Shelf::new(self.stacks.values().map(|stack| stack.clone() as Device));
        OpenWith::new(1, move |name| shelf.open(name))
    }

    fn hang(&self, name: &str) {
        self.stacks[name].inject(&Fault::Stuck { ops: Ops::ALL, for_secs: None });
    }

    async fn pool(
        self: &Rc<Self>,
        layout: Layout,
        data: &[&str],
        log: &[&str],
    ) -> (Rc<Pool>, Device) {
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let logs = if log.is_empty() { vec![] } else { vec![LogSpec { devices: names(log) }] };
        let groups = vec![GroupSpec { layout, devices: names(data) }];
        // What hangs beyond parity is an error: no operator clears the pool here.
        let properties = BTreeMap::from([("failmode".to_owned(), "continue".to_owned())]);
        let spec = PoolSpec { groups, logs, properties, ..PoolSpec::default() };
        let pool = Pool::create(self.opener(), "tank", &spec).await.unwrap();
        let volume = VolumeSpec {
            name: "v".into(),
            size_bytes: 16 << 20,
            sparse: false,
            properties: BTreeMap::new(),
        };
        pool.create_volume(&volume).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        (pool, v)
    }

    async fn import(self: &Rc<Self>) -> Result<(Rc<Pool>, Device), ImportError> {
        let paths: Vec<String> = NAMES.iter().map(|n| (*n).to_owned()).collect();
        let options = ImportOptions::default();
        let pool = Pool::import(self.opener(), &paths, "tank", &options).await?;
        let v = pool.open_volume("v").unwrap();
        Ok((pool, v))
    }
}

fn stamp(salt: u64) -> IoBytes {
    let mut buf = IoBuf::zeroed(16384);
    for (i, word) in buf.chunks_mut(8).enumerate() {
        word.copy_from_slice(&((i as u64) << 32 | salt).to_le_bytes());
    }
    buf.freeze()
}

async fn put(v: &Device, from: u64, count: u64, salt: u64) {
    for i in from..from + count {
        v.write(i * 16384, stamp(i + salt), true).await.unwrap();
    }
}

async fn expect(v: &Device, from: u64, count: u64, salt: u64) {
    for i in from..from + count {
        let held = v.read(i * 16384, IoBuf::zeroed(16384)).await.unwrap();
        assert!(held[..] == stamp(i + salt)[..], "block {i}");
    }
}

fn state(pool: &Pool, name: &str) -> Health {
    fn find<'a>(all: &'a [VdevStatus], name: &str) -> Option<&'a VdevStatus> {
        all.iter().find_map(|v| if v.name == name { Some(v) } else { find(&v.children, name) })
    }
    let status = pool.status();
    let found = find(&status.groups, name).or_else(|| find(&status.logs, name));
    found.expect("the device is in the pool").state
}

/// Whether a device was given up after it had not answered for `secs` seconds.
fn has_timed_out(pool: &Pool, secs: u64) -> bool {
    pool.events().iter().any(|event| {
        let error = match event {
            PoolEvent::StateChanged { cause: Some(error), .. } | PoolEvent::ReadFailed(error) => {
                error
            }
            PoolEvent::LogDeviceFailed { error: LabelError::Device(error), .. } => error,
            _ => return false,
        };
        error.kind == ErrorKind::TimedOut { after_secs: secs }
    })
}

async fn scan_ended(pool: &Pool) -> forebay_pool::status::ScanStatus {
    loop {
        rt::sleep(Nanos::from_millis(200)).await;
        if let Some(scan) = pool.status().scan {
            if scan.state != ScanPhase::InProgress {
                return scan;
            }
        }
    }
}

#[test]
fn writers_continue_when_log_side_hangs() {
    Runtime::simulated(1).block_on(async {
        let bench = bench();
        let (pool, v) = bench.pool(Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        put(&v, 0, 20, 0).await;
        bench.hang("m");
        let begun = rt::now();
        put(&v, 20, 20, 0).await;
        // The writers wait for one log deadline (5 s) only.
        assert!(rt::now().since(begun) < Nanos::from_secs(7), "{:?}", rt::now().since(begun));
        assert_eq!((state(&pool, "l"), state(&pool, "m")), (Health::Online, Health::Faulted));
        assert!(has_timed_out(&pool, 5), "{:?}", pool.events());
        expect(&v, 0, 40, 0).await;

        // Abandoned commands may still take effect, so the side is refused.
        let error = pool.online("m").await.unwrap_err();
        assert!(matches!(error, AdminError::LateCommands { .. }), "{error}");
        bench.stacks["m"].calm();
        rt::sleep(Nanos::from_secs(1)).await;
        pool.online("m").await.unwrap();
        assert_eq!(state(&pool, "m"), Health::Online);
        put(&v, 40, 20, 0).await;
        pool.export().await.unwrap();
        drop((pool, v));
        let (pool, v) = bench.import().await.unwrap();
        expect(&v, 0, 60, 0).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn log_is_replayed_after_side_hangs_and_power_fails() {
    let bench = bench();
    let shelf = bench.clone();
    let first = Runtime::simulated(2);
    first.block_on(async move {
        let (_pool, v) = shelf.pool(Layout::Mirror, &["a", "b"], &["l", "m"]).await;
        put(&v, 0, 20, 0).await;
        shelf.hang("m");
        put(&v, 20, 20, 0).await;
    });
    drop(first);
    bench.world.draw_crash_outcome(|_, _| forebay_sim::Fate::Lost);
    bench.world.power_on();
    Runtime::simulated(3).block_on(async move {
        // The side still hangs: the import continues without it after a deadline.
        let (pool, v) = bench.import().await.unwrap();
        expect(&v, 0, 40, 0).await;
        assert!(rt::now() < Nanos::from_secs(60));
        drop((pool, v));
    });
}

#[test]
fn pool_continues_without_its_only_log_device() {
    Runtime::simulated(4).block_on(async {
        let bench = bench();
        let (pool, v) = bench.pool(Layout::Mirror, &["a", "b"], &["l"]).await;
        put(&v, 0, 20, 0).await;
        bench.hang("l");
        let begun = rt::now();
        put(&v, 20, 20, 0).await;
        assert!(rt::now().since(begun) < Nanos::from_secs(7), "{:?}", rt::now().since(begun));
        assert_eq!(state(&pool, "l"), Health::Faulted);
        expect(&v, 0, 40, 0).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn hanging_data_device_is_faulted_and_resilvered_when_it_answers() {
    for (layout, data) in [
        (Layout::Raidz1, &["a", "b", "c"][..]),
        (Layout::Raidz2, &["a", "b", "c", "d"][..]),
        (Layout::Mirror, &["a", "b"][..]),
    ] {
        for ops in [Ops::READ, Ops::WRITE, Ops::FLUSH, Ops::ALL] {
            Runtime::simulated(5).block_on(async move {
                let bench = bench();
                let (pool, v) = bench.pool(layout, data, &["l"]).await;
                pool.set("autotrim", "off").await.unwrap();
                pool.set("device_timeout", "12").await.unwrap();
                put(&v, 0, 200, 0).await;
                pool.sync().await.unwrap();
                bench.stacks["b"].inject(&Fault::Stuck { ops, for_secs: None });
                let begun = rt::now();
                expect(&v, 0, 200, 0).await;
                put(&v, 100, 200, 1000).await;
                pool.sync().await.unwrap();
                expect(&v, 0, 100, 0).await;
                expect(&v, 100, 200, 1000).await;
                assert!(rt::now().since(begun) < Nanos::from_secs(16), "more than one deadline");
                assert_eq!(state(&pool, "b"), Health::Faulted, "{layout:?} {ops:?}");
                assert!(has_timed_out(&pool, 12), "{:?}", pool.events());

                let error = pool.online("b").await.unwrap_err();
                assert!(matches!(error, AdminError::LateCommands { .. }), "{error}");
                // Abandoned writes take effect now; the resilver repairs the places they hit.
                bench.stacks["b"].calm();
                rt::sleep(Nanos::from_secs(1)).await;
                pool.online("b").await.unwrap();
                scan_ended(&pool).await;
                assert_eq!(state(&pool, "b"), Health::Online);
                pool.scrub().await.unwrap();
                let scrub = scan_ended(&pool).await;
                assert_eq!(
                    (scrub.kind, scrub.repaired_bytes, scrub.errors),
                    (ScanKind::Scrub, 0, 0)
                );
                expect(&v, 0, 100, 0).await;
                expect(&v, 100, 200, 1000).await;
                pool.export().await.unwrap();
            });
        }
    }
}

#[test]
fn hang_beyond_parity_is_an_error_and_loses_nothing() {
    let bench = bench();
    let shelf = bench.clone();
    let first = Runtime::simulated(6);
    first.block_on(async move {
        let (pool, v) = shelf.pool(Layout::Raid0, &["a", "b"], &["l"]).await;
        put(&v, 0, 100, 0).await;
        pool.sync().await.unwrap();
        put(&v, 100, 10, 0).await;
        shelf.hang("b");
        let begun = rt::now();
        let mut failed = 0;
        for i in 0..110 {
            failed += u64::from(v.read(i * 16384, IoBuf::zeroed(16384)).await.is_err());
        }
        assert!(failed > 0);
        // Writes fail in the end; none waits forever.
        let mut refused = false;
        for i in 0..4000 {
            refused |= v.write(i % 1000 * 16384, stamp(i % 1000), true).await.is_err();
        }
        assert!(refused);
        assert!(rt::now().since(begun) < Nanos::from_secs(120));
        assert_eq!(pool.status().state, Health::Suspended);
        assert!(pool.scrub().await.is_err());
        assert!(pool.export().await.is_err());
    });
    drop(first);
    bench.world.draw_crash_outcome(|_, _| forebay_sim::Fate::Lost);
    bench.world.power_on();
    bench.stacks["b"].calm();
    Runtime::simulated(7).block_on(async move {
        let (pool, v) = bench.import().await.unwrap();
        expect(&v, 0, 110, 0).await;
        pool.export().await.unwrap();
    });
}

// A root without the device would mark it as outdated, and no import would accept it.
#[test]
fn no_root_excludes_a_device_that_the_pool_needs() {
    for hangs in [false, true] {
        let bench = bench();
        let shelf = bench.clone();
        let first = Runtime::simulated(8);
        first.block_on(async move {
            let (pool, v) = shelf.pool(Layout::Raid0, &["a", "b"], &["l"]).await;
            put(&v, 0, 100, 0).await;
            pool.sync().await.unwrap();
            match hangs {
                true => shelf.hang("b"),
                false => shelf.stacks["b"].inject(&Fault::Gone),
            }
            // Nothing is dirty, so only reads notice the failure.
            for i in 0..100 {
                let _ = v.read(i * 16384, IoBuf::zeroed(16384)).await;
            }
            rt::sleep(Nanos::from_secs(60)).await;
            assert_eq!(pool.status().state, Health::Suspended);
        });
        drop(first);
        bench.world.draw_crash_outcome(|_, _| forebay_sim::Fate::Lost);
        bench.world.power_on();
        bench.stacks["b"].heal();
        Runtime::simulated(9).block_on(async move {
            let (pool, v) = bench.import().await.unwrap();
            expect(&v, 0, 100, 0).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn hanging_device_can_be_replaced_at_once() {
    Runtime::simulated(10).block_on(async {
        let bench = bench();
        let (pool, v) = bench.pool(Layout::Raidz1, &["a", "b", "c"], &["l"]).await;
        put(&v, 0, 200, 0).await;
        pool.sync().await.unwrap();
        bench.hang("b");
        put(&v, 100, 100, 1000).await;
        pool.sync().await.unwrap();
        assert_eq!(state(&pool, "b"), Health::Faulted);
        pool.replace("b", Some("d"), false).await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(state(&pool, "d"), Health::Online);
        assert_eq!(pool.status().state, Health::Online);
        // The abandoned commands take effect on a device that the pool no longer uses.
        bench.stacks["b"].calm();
        pool.scrub().await.unwrap();
        let scrub = scan_ended(&pool).await;
        assert_eq!((scrub.repaired_bytes, scrub.errors), (0, 0));
        pool.export().await.unwrap();
        drop((pool, v));
        let (pool, v) = bench.import().await.unwrap();
        expect(&v, 0, 100, 0).await;
        expect(&v, 100, 100, 1000).await;
        pool.export().await.unwrap();
    });
}
