//! Multihost protection of whole pools: owners that are paused, replaced, or delayed.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, MemoryDevice, Operation};
use forebay_format::label::{HEARTBEAT_OFFSET_BYTES, Heartbeat};
use forebay_multihost::{Claim, Fence, Monitor, read_heartbeat, write_heartbeat};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, scripted};
use super::{expect, names, stamp, volume};
use crate::import::device_match::look_at;
use crate::import::found::Found;
use crate::import::takeover::{labeled_devices, root_owners};
use crate::labels::read_label;
use crate::opener::FencedOpener;
use crate::spec::{GroupSpec, ImportOptions, PoolSpec};
use crate::status::Health;
use crate::{ImportError, ImportErrorKind, Opener, Pool, SuspendReason};

/// Long enough for a command on memory.
const MOMENT: Nanos = Nanos::from_millis(10);

fn shared_devices() -> Rc<Rack> {
    Rack::new(&["a", "b"], 96 << 20)
}

fn paths() -> Vec<String> {
    vec!["a".to_owned(), "b".to_owned()]
}

async fn create_on(machine: Rc<dyn Opener>, layout: Layout, devices: Vec<String>) -> Rc<Pool> {
    let groups = vec![GroupSpec { layout, devices }];
    let spec = PoolSpec { groups, ..PoolSpec::default() };
    Pool::create(machine, "p", &spec).await.expect("a pool")
}

async fn create_mirror(machine: Rc<dyn Opener>) -> Rc<Pool> {
    create_on(machine, Layout::Mirror, paths()).await
}

async fn import(machine: Rc<dyn Opener>, force: bool) -> Result<Rc<Pool>, ImportError> {
    let options = ImportOptions { force, ..ImportOptions::default() };
    Pool::import(machine, &paths(), "p", &options).await
}

/// Starts a write to `device`; gives whether it succeeded, once it has ended.
fn start_write(device: &Device) -> Rc<Cell<Option<bool>>> {
    let outcome = Rc::new(Cell::new(None));
    let (device, ended) = (device.clone(), outcome.clone());
    drop(rt::spawn(async move {
        let written = device.write(8 << 20, IoBuf::zeroed(4096).freeze(), false).await;
        ended.set(Some(written.is_ok()));
    }));
    outcome
}

/// Suspends the owner for longer than its heartbeat is valid.
fn suspend() {
    rt::suspend(Nanos::from_secs(60));
}

async fn write_foreign(devices: &Rc<Rack>, names: &[&str], heartbeat: &Heartbeat) {
    for name in names {
        let device = devices.device(name);
        write_heartbeat(&device, heartbeat).await.expect("written");
    }
}

/// A heartbeat of `pool`, by an owner with this nonce.
fn heartbeat(pool: &Pool, nonce: u64, host: u64, beat: u64) -> Heartbeat {
    Heartbeat { pool: pool.guid(), nonce, host, beat }
}

/// A heartbeat of `pool`, by an owner that it does not know.
fn foreign(pool: &Pool, host: u64, beat: u64) -> Heartbeat {
    heartbeat(pool, pool.nonce ^ 1, host, beat)
}

async fn health_after(pool: &Pool, span: Nanos) -> Health {
    rt::sleep(span).await;
    pool.summary().health
}

// The heartbeat goes on while a device has a write: other machines must see that the pool is in
// use.
#[test]
fn stopped_pool_keeps_its_heartbeat_until_its_last_write_has_ended() {
    Runtime::simulated(1).block_on(async {
        let devices = shared_devices();
        let pool = create_mirror(devices.host(1)).await;
        // A device that completes writes once `held` is valid.
        let held = Fence::new();
        let slow = held.guard(Rc::new(MemoryDevice::new("slow", 16 << 20)));
        let own = pool.opener.monitor().fence().guard(slow);
        rt::sleep(Nanos::from_secs(4)).await;
        held.confirm(Nanos::ZERO);
        let write = start_write(&own);
        rt::sleep(MOMENT).await;
        pool.stop(SuspendReason::TakenOver);
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(write.get(), None);
        let first = devices.device("a");
        let before = read_heartbeat(&first).await.expect("readable").expect("a heartbeat");
        rt::sleep(Nanos::from_secs(2)).await;
        let after = read_heartbeat(&first).await.expect("readable").expect("a heartbeat");
        assert!(after.beat > before.beat, "a device has been given a write");
        held.confirm(rt::now_with_suspension());
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(write.get(), Some(true));
        let last = read_heartbeat(&first).await.expect("readable");
        held.confirm(rt::now_with_suspension());
        let write = start_write(&own);
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(write.get(), Some(false), "the heartbeat has ended");
        assert_eq!(read_heartbeat(&first).await.expect("readable"), last);
    });
}

#[test]
fn owner_that_finds_another_owner_stops_and_writes_no_more() {
    Runtime::simulated(1).block_on(async {
        let devices = shared_devices();
        let pool = create_mirror(devices.host(1)).await;
        assert_eq!(health_after(&pool, Nanos::from_millis(3500)).await, Health::Online);
        write_foreign(&devices, &["a"], &foreign(&pool, 2, 0)).await;
        assert_eq!(health_after(&pool, Nanos::from_secs(2)).await, Health::Suspended);
        let own = pool.label_devices()[0].1.device();
        assert!(own.write(0, IoBuf::zeroed(4096).freeze(), false).await.is_err());
    });
}

#[test]
fn import_is_refused_while_the_owner_runs_and_needs_force_when_it_is_silent() {
    let devices = shared_devices();
    let [first, plain, forced] = [1, 2, 2].map(|host| devices.host(host));
    Runtime::simulated(1).block_on(async move {
        let pool = create_mirror(first).await;
        for (machine, force) in [(plain, false), (forced, true)] {
            let error = import(machine, force).await.err().expect("refused");
            assert_kind!(error.kind, InUseElsewhere { .. });
        }
        assert_eq!(pool.summary().health, Health::Online);
    });
    // The first machine is gone.
    let [plain, forced] = [2, 2].map(|host| devices.host(host));
    Runtime::simulated(2).block_on(async move {
        let error = import(plain, false).await.err().expect("refused");
        assert_kind!(error.kind, NotExportedElsewhere);
        let pool = import(forced, true).await.expect("imported");
        assert_eq!(health_after(&pool, Nanos::from_secs(5)).await, Health::Online);
        pool.export().await.expect("exported");
    });
}

#[test]
fn after_a_gap_own_heartbeat_over_another_owners_is_not_trusted() {
    Runtime::simulated(1).block_on(async {
        let devices = shared_devices();
        let pool = create_mirror(devices.host(1)).await;
        rt::sleep(Nanos::from_millis(4500)).await;
        // Another owner has claimed both devices; a late heartbeat of this owner replaced the first
        // claim.
        write_foreign(&devices, &["b"], &foreign(&pool, 2, 0)).await;
        suspend();
        assert_eq!(health_after(&pool, Nanos::from_secs(2)).await, Health::Suspended);
    });
}

#[test]
fn owner_that_was_replaced_before_its_first_heartbeat_stops() {
    Runtime::simulated(1).block_on(async {
        let devices = shared_devices();
        let pool = create_mirror(devices.host(1)).await;
        rt::sleep(Nanos::from_millis(200)).await;
        write_foreign(&devices, &["a", "b"], &foreign(&pool, 2, 0)).await;
        assert_eq!(health_after(&pool, Nanos::from_secs(2)).await, Health::Suspended);
    });
}

#[test]
fn late_heartbeat_of_the_old_owner_does_not_stop_the_new_one() {
    (0..20).for_each(late_heartbeat_of_the_old_owner);
}

fn late_heartbeat_of_the_old_owner(seed: u64) {
    let devices = shared_devices();
    let [first, second] = [1, 2].map(|host| devices.host(host));
    let old_nonce = Runtime::simulated(1).block_on(async move {
        let pool = create_mirror(first).await;
        rt::sleep(Nanos::from_secs(3)).await;
        pool.nonce
    });
    Runtime::simulated(seed).block_on(async move {
        let pool = import(second, true).await.expect("imported");
        rt::sleep(Nanos::from_secs(2)).await;
        write_foreign(&devices, &["a"], &heartbeat(&pool, old_nonce, 1, 3)).await;
        assert_eq!(health_after(&pool, Nanos::from_secs(2)).await, Health::Online);
        let device = devices.device("a");
        let found = read_heartbeat(&device).await.expect("readable").expect("a heartbeat");
        assert_eq!(found.nonce, pool.nonce, "the new owner has written its own again");
        // A third owner is no predecessor. It writes again until it is seen: one of this owner may
        // be on the way, which has looked before, and lands on its first heartbeat.
        for beat in 0..4 {
            write_foreign(&devices, &["a"], &foreign(&pool, 3, beat)).await;
            rt::sleep(Nanos::from_millis(700)).await;
        }
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

#[test]
fn after_a_gap_the_only_device_is_read_until_another_owner_would_have_beaten() {
    for another_beats in [true, false] {
        Runtime::simulated(1).block_on(async move {
            let devices = shared_devices();
            let machine = devices.host(1);
            let pool = create_on(machine, Layout::Raid0, vec!["a".to_owned()]).await;
            rt::sleep(Nanos::from_millis(4500)).await;
            // Another owner has claimed the device; a late heartbeat of this owner replaced the
            // claim.
            suspend();
            let write = start_write(&pool.label_devices()[0].1.device());
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(write.get(), None, "one read is not enough");
            if another_beats {
                write_foreign(&devices, &["a"], &foreign(&pool, 2, 1)).await;
            }
            let health = if another_beats { Health::Suspended } else { Health::Online };
            assert_eq!(health_after(&pool, Nanos::from_secs(3)).await, health);
            assert_eq!(write.get(), Some(!another_beats));
        });
    }
}

#[test]
fn import_that_is_cut_short_keeps_the_log_mark() {
    let devices = shared_devices();
    let [first, second] = [1, 1].map(|host| devices.host(host));
    let mark = Runtime::simulated(1).block_on(async {
        let pool = create_mirror(first).await;
        rt::sleep(Nanos::from_millis(2500)).await;
        pool.log.mark()
    });
    assert_ne!(mark.epoch, 0);
    Runtime::simulated(2).block_on(async move {
        let found = look_at(&FencedOpener::new(second), &paths()).await.found;
        let found: Vec<&Found> = found.iter().collect();
        let mine = Heartbeat { nonce: 7, ..found[0].label.heartbeat.expect("a heartbeat") };
        let (labeled, owners) = (labeled_devices(&found), root_owners(&found));
        let claim = Claim::new(&labeled, owners, &Monitor::new(), mine, false).await;
        drop(claim.expect("no other owner"));
        let mut marks = Vec::new();
        for name in ["a", "b"] {
            let label = read_label(&devices.device(name)).await;
            assert_eq!(label.heartbeat.map(|held| held.nonce), Some(7), "{name}");
            marks.extend(label.log_marks.into_iter().map(|(_, mark)| mark));
        }
        assert_eq!(marks.into_iter().max(), Some(mark));
    });
}

/// A pool of these devices on machine 1, with a mark on `v`.
async fn marked(rack: &Rc<Rack>, layout: Layout, devices: &[&str]) -> Rc<Pool> {
    let pool = create_on(rack.host(1), layout, names(devices)).await;
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    pool.open_volume("v").unwrap().write(0, stamp(65536, 1), true).await.unwrap();
    pool
}

async fn import_from(
    machine: Rc<dyn Opener>,
    devices: &[&str],
) -> Result<Rc<Pool>, ImportErrorKind> {
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Pool::import(machine, &names(devices), "p", &options).await.map_err(|error| error.kind)
}

// Whichever of its devices a machine misses, it finds the pool in use on the others.
#[test]
fn import_that_misses_devices_is_refused_while_the_owner_runs() {
    const ALL: &[&str] = &["a", "b", "c", "d"];
    let layouts = [
        (Layout::Mirror, &ALL[..3], vec![vec!["a"], vec!["b"], vec!["c"]]),
        (Layout::Raidz1, &ALL[..3], vec![vec!["a", "b"], vec!["b", "c"], vec!["c", "a"]]),
        (Layout::Raidz2, ALL, vec![vec!["a", "b"], vec!["c", "d"], vec!["d", "a"]]),
    ];
    for (layout, devices, reached) in layouts {
        let rack = Rack::new(ALL, 96 << 20);
        Runtime::simulated(1).block_on(async move {
            let pool = marked(&rack, layout, devices).await;
            for some in reached {
                let refused = import_from(rack.host(2), &some).await.err().expect("refused");
                assert_kind!(refused, InUseElsewhere { .. });
            }
            pool.open_volume("v").unwrap().write(0, stamp(65536, 2), true).await.unwrap();
            pool.export().await.unwrap();
        });
    }
}

/// Has all commands to one device hang.
struct Hangs {
    device: &'static str,
    is_over: Cell<bool>,
}

impl Script for Hangs {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            while command.device == self.device && !self.is_over.get() {
                rt::sleep(MOMENT).await;
            }
            Decision::Run
        })
    }
}

// Its heartbeat does not reach that device, and the other machine misses the one that it reaches.
#[test]
fn owner_stops_when_a_device_that_hung_is_another_machines_as_it_answers() {
    Runtime::simulated(1).block_on(async {
        let rack = shared_devices();
        let script = Rc::new(Hangs { device: "b", is_over: Cell::new(true) });
        let pool = create_mirror(scripted(rack.host(1), script.clone())).await;
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(65536, 1), true).await.unwrap();
        script.is_over.set(false);
        let other = import_from(rack.host(2), &["b"]).await.expect("it is silent");
        assert_eq!(health_after(&pool, Nanos::ZERO).await, Health::Online);
        script.is_over.set(true);
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(*pool.lifecycle.stopped.borrow(), Some(SuspendReason::TakenOver));
        v.write(0, stamp(65536, 2), true).await.unwrap_err();
        expect(&other.open_volume("v").unwrap(), 0, &stamp(65536, 1)).await;
        other.export().await.unwrap();
    });
}

/// Holds an import up when it begins to watch the heartbeat on `a`, which it has read with the
/// label.
#[derive(Default)]
struct HoldsWatch {
    reads: Cell<u64>,
    may_go: Cell<bool>,
}

impl Script for HoldsWatch {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_heartbeat = command.device == "a" && command.offset_bytes == HEARTBEAT_OFFSET_BYTES;
        let is_read = is_heartbeat && command.operation == Operation::Read;
        Box::pin(async move {
            self.reads.set(self.reads.get() + u64::from(is_read));
            while self.reads.get() == 2 && !self.may_go.get() {
                rt::sleep(Nanos::from_millis(1)).await;
            }
            Decision::Run
        })
    }
}

// It had no label when the import looked. The heartbeat does not reach the owner's other device.
#[test]
fn import_looks_again_when_the_owner_has_taken_in_a_device_since() {
    const ALL: &[&str] = &["a", "b", "c"];
    let rack = Rack::new(ALL, 96 << 20);
    Runtime::simulated(1).block_on(async move {
        let slow = Rc::new(Hangs { device: "b", is_over: Cell::new(true) });
        let pool = create_mirror(scripted(rack.host(1), slow.clone())).await;
        let script = Rc::new(HoldsWatch::default());
        let opener = scripted(rack.host(2), script.clone());
        let other = rt::spawn(async move { import_from(opener, ALL).await });
        while script.reads.get() < 2 {
            rt::sleep(Nanos::from_millis(1)).await;
        }
        pool.replace("a", Some("c"), false).await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        slow.is_over.set(false);
        script.may_go.set(true);
        let refused = other.await.err().expect("refused");
        assert_kind!(refused, InUseElsewhere { .. });
        slow.is_over.set(true);
    });
}

// A new pool has no heartbeat of its heartbeat task yet. The device may be another pool's by then.
#[test]
fn import_leaves_the_only_device_that_it_reaches_when_that_leaves_a_new_pool() {
    let rack = Rack::new(&["a", "b", "c"], 96 << 20);
    Runtime::simulated(1).block_on(async move {
        let pool = create_mirror(rack.host(1)).await;
        let opener = rack.host(2);
        let other = rt::spawn(async move { import_from(opener, &["b"]).await });
        rt::sleep(Nanos::from_millis(100)).await;
        pool.replace("b", Some("c"), false).await.unwrap();
        let refused = other.await.err().expect("refused");
        assert_kind!(refused, InUseElsewhere { .. });
        assert_eq!(read_heartbeat(&rack.device("b")).await, Ok(None));
        pool.export().await.unwrap();
    });
}

// A machine that watches would take an equal count for silence.
#[test]
fn no_count_of_an_owners_heartbeats_comes_twice() {
    let devices = shared_devices();
    let [first, second] = [1, 2].map(|host| devices.host(host));
    let before = Runtime::simulated(1).block_on(async move { create_mirror(first).await.nonce });
    Runtime::simulated(2).block_on(async move {
        let import = rt::spawn(async move { import_from(second, &["a", "b"]).await });
        let mut counts = Vec::new();
        for _ in 0..20 {
            rt::sleep(Nanos::from_secs(1)).await;
            let found = read_heartbeat(&devices.device("a")).await.expect("readable");
            counts.extend(found.filter(|found| found.nonce != before).map(|found| found.beat));
        }
        assert!(counts.is_sorted(), "{counts:?}");
        assert!(counts.len() > 12, "{counts:?}");
        import.await.expect("taken over").export().await.unwrap();
    });
}
