//! Pools on devices with persistent reservations, which two machines share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, Layer, MemoryDevice,
    Operation, ReservationChange, ReservationKey, Reservations,
};
use forebay_rt::{self as rt, Runtime};
use forebay_sim::SharedDisk;
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::scripted;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec};
use crate::status::{Health, PoolCondition, Protection, VdevStatus};
use crate::{AdminError, CandidateError, ImportError, OpenWith, Opener, Pool, SuspendReason};

const SIZE: u64 = 64 << 20;
const DEVICES: &[&str] = &["a", "b", "l", "s"];
const STRIDE: u64 = 4096;

/// A device that hides its reservations.
struct Plain(Device);

impl Layer for Plain {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        let kind = ErrorKind::Unsupported;
        let error = DeviceError::new(self.0.name(), Operation::Reservation, 0, 0, kind);
        Box::pin(std::future::ready(Err(error)))
    }
}

/// Devices that machines share.
struct Cabinet {
    disks: BTreeMap<String, Rc<SharedDisk>>,
    has_reservations: bool,
}

impl Cabinet {
    fn new(has_reservations: bool) -> Rc<Self> {
        let disk = |name: &&str| {
            let inner = Rc::new(MemoryDevice::new(name, SIZE));
            ((*name).to_owned(), SharedDisk::new(inner))
        };
        Rc::new(Self { disks: DEVICES.iter().map(disk).collect(), has_reservations })
    }

    /// The devices as machine `host` opens them.
    fn host(self: &Rc<Self>, host: u64) -> Rc<dyn Opener> {
        let cabinet = self.clone();
        OpenWith::new(host, move |name| {
            let device = cabinet.disks[name].initiator(host);
            Ok(if cabinet.has_reservations { device } else { Rc::new(Plain(device)) })
        })
    }

    fn holders(&self) -> Vec<Option<ReservationKey>> {
        let disks: Vec<Device> = self.disks.values().map(|disk| disk.initiator(99)).collect();
        Runtime::simulated(1).block_on(async move {
            let mut holders = Vec::new();
            for disk in disks {
                holders.push(disk.reservations().await.expect("readable").holder);
            }
            holders
        })
    }

    /// Writes of a machine that took effect, and those that were refused.
    fn writes(&self, host: u64) -> (u64, u64) {
        let each = self.disks.values().map(|disk| disk.writes(host));
        each.fold((0, 0), |sum, disk| (sum.0 + disk.0, sum.1 + disk.1))
    }
}

async fn create(opener: Rc<dyn Opener>) -> (Rc<Pool>, Device) {
    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(opener, "tank", &options).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

async fn import(opener: Rc<dyn Opener>, force: bool) -> Result<Rc<Pool>, ImportError> {
    let options = ImportOptions { force, ..ImportOptions::default() };
    Pool::import(opener, &names(DEVICES), "tank", &options).await
}

/// The devices of the pool, as `pool status` has them.
fn leaves(pool: &Pool) -> Vec<VdevStatus> {
    let status = pool.status();
    let all = status.groups.into_iter().chain(status.logs);
    all.flat_map(|group| match group.children.is_empty() {
        true => vec![group],
        false => group.children,
    })
    .collect()
}

fn key(pool: &Pool) -> Option<ReservationKey> {
    Some(ReservationKey(pool.nonce))
}

#[test]
fn devices_are_reserved_from_creation_to_export() {
    let cabinet = Cabinet::new(true);
    let (here, there) = (cabinet.host(1), cabinet.host(2));
    let own = Runtime::simulated(1).block_on(async move {
        let (pool, _v) = create(here).await;
        for device in leaves(&pool) {
            assert_eq!(device.protection, Some(Protection::Reservation), "{}", device.name);
        }
        pool.attach("a", "s", false).await.unwrap();
        key(&pool)
    });
    assert_eq!(cabinet.holders(), [own; 4]);
    let here = cabinet.host(1);
    Runtime::simulated(2).block_on(async move {
        let pool = import(here, false).await.unwrap();
        while pool.summary().health != Health::Online {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        pool.detach("s").await.unwrap();
        pool.export().await.unwrap();
    });
    assert_eq!(cabinet.holders(), [None; 4]);
    let other = Runtime::simulated(3).block_on(async move {
        let pool = import(there, false).await.unwrap();
        let other = key(&pool);
        pool.end().await.unwrap();
        other
    });
    assert_eq!(cabinet.holders(), [other, other, other, None], "closed, and not exported");
    let [here, again] = [1, 1].map(|host| cabinet.host(host));
    Runtime::simulated(4).block_on(async move {
        let pool = import(here, false).await.unwrap();
        pool.destroy().await.unwrap();
    });
    assert_eq!(cabinet.holders(), [None; 4]);
    let machine = again.clone();
    Runtime::simulated(5).block_on(async move {
        create(machine).await.0.end().await.unwrap();
    });
    assert_ne!(cabinet.holders()[0], None);
    let there = cabinet.host(2);
    Runtime::simulated(6).block_on(async move {
        Pool::clear_label(again, "a", true).await.unwrap();
        Pool::clear_label(there, "b", true).await.unwrap();
    });
    let holders = cabinet.holders();
    assert_eq!(holders[..2], [None, None]);
    assert_ne!(holders[2], None);
}

#[test]
fn killed_owner_is_imported_again_on_its_own_machine() {
    let cabinet = Cabinet::new(true);
    let [first, second] = [1, 1].map(|host| cabinet.host(host));
    let old = Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(first).await;
        v.write(0, stamp(65536, 1), true).await.unwrap();
        key(&pool)
    });
    assert_eq!(cabinet.holders(), [old, old, old, None]);
    let new = Runtime::simulated(2).block_on(async move {
        let pool = import(second, false).await.unwrap();
        expect(&pool.open_volume("v").unwrap(), 0, &stamp(65536, 1)).await;
        key(&pool)
    });
    assert_ne!(old, new);
    assert_eq!(cabinet.holders(), [new, new, new, None]);
}

// The reservation was taken, and the import ended before it left a heartbeat or a root.
#[test]
fn reservation_of_an_import_that_was_cut_short_needs_force_elsewhere_only() {
    let cabinet = Cabinet::new(true);
    let here = cabinet.host(1);
    Runtime::simulated(1).block_on(async move {
        let (pool, _v) = create(here).await;
        pool.export().await.unwrap();
    });
    let disk = cabinet.disks["a"].initiator(1);
    let short = ReservationKey(77);
    Runtime::simulated(2).block_on(async move {
        for change in
            [ReservationChange::Register { key: short }, ReservationChange::Reserve { key: short }]
        {
            disk.change_reservations(change).await.unwrap();
        }
    });
    let there = cabinet.host(2);
    Runtime::simulated(3).block_on(async move {
        let error = import(there, false).await.err().expect("refused");
        assert_kind!(error.kind, Reserved { .. });
    });
    assert_eq!(cabinet.holders(), [Some(short), None, None, None]);
    assert_eq!(cabinet.writes(2), (0, 0));
    for (host, force) in [(1, false), (2, true)] {
        let opener = cabinet.host(host);
        Runtime::simulated(4).block_on(async move {
            let pool = import(opener, force).await.unwrap();
            pool.export().await.unwrap();
        });
        assert_eq!(cabinet.holders(), [None; 4]);
    }
}

#[test]
fn silent_owner_keeps_its_devices_until_an_import_is_forced() {
    let cabinet = Cabinet::new(true);
    let [first, plain, forced] = [1, 2, 2].map(|host| cabinet.host(host));
    let old = Runtime::simulated(1).block_on(async move { key(&create(first).await.0) });
    Runtime::simulated(2).block_on(async move {
        let error = import(plain, false).await.err().expect("refused");
        assert_kind!(error.kind, NotExportedElsewhere);
    });
    assert_eq!(cabinet.holders(), [old, old, old, None]);
    let new = Runtime::simulated(3).block_on(async move {
        let pool = import(forced, true).await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        assert_eq!(pool.summary().health, Health::Online);
        key(&pool)
    });
    assert_eq!(cabinet.holders(), [new, new, new, None]);
}

#[test]
fn conflict_suspends_the_pool_and_blames_no_device() {
    for (disk, at) in [("a", 0), ("l", 2)] {
        suspend_by_conflict(disk, at);
    }
}

fn suspend_by_conflict(disk: &str, at: usize) {
    let cabinet = Cabinet::new(true);
    let (opener, rival) = (cabinet.host(1), cabinet.disks[disk].initiator(2));
    Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(opener).await;
        let new = ReservationKey(77);
        let victim = key(&pool).unwrap();
        for change in [
            ReservationChange::Register { key: new },
            ReservationChange::Preempt { key: new, victim, abort: true },
        ] {
            rival.change_reservations(change).await.unwrap();
        }
        let logged = v.write(0, stamp(65536, 1), true).await;
        assert_eq!(logged.is_ok(), at == 0, "the log is on another device");
        assert!(pool.sync().await.is_err());
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.condition(), PoolCondition::Suspended(SuspendReason::TakenOver));
        for device in leaves(&pool) {
            assert_eq!((device.state, device.write_errors), (Health::Online, 0), "{}", device.name);
        }
        assert!(v.write(0, stamp(4096, 2), true).await.is_err());
        assert!(pool.export().await.is_err());
    });
    let holders = cabinet.holders();
    assert_eq!(holders[at], Some(ReservationKey(77)), "the suspended pool took nothing back");
}

#[test]
fn device_that_another_machine_has_reserved_joins_only_with_force() {
    let cabinet = Cabinet::new(true);
    let (opener, rival) = (cabinet.host(1), cabinet.disks["s"].initiator(2));
    Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(opener).await;
        let holder = ReservationKey(77);
        for change in [
            ReservationChange::Register { key: holder },
            ReservationChange::Reserve { key: holder },
        ] {
            rival.change_reservations(change).await.unwrap();
        }
        let refused = AdminError::Candidate(CandidateError::Reserved {
            device: "s".to_owned(),
            holder: Some(holder),
        });
        assert_eq!(pool.attach("a", "s", false).await, Err(refused.clone()));
        let logs = vec![LogSpec { devices: names(&["s"]) }];
        let more = PoolSpec { logs, ..PoolSpec::default() };
        assert_eq!(pool.add(&more).await, Err(refused.clone()));
        assert_eq!(pool.replace("a", Some("s"), false).await, Err(refused));
        v.write(0, stamp(4096, 1), true).await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        pool.attach("a", "s", true).await.unwrap();
        assert_eq!(rival.reservations().await.unwrap().holder, key(&pool));
    });
}

// A write to it would be refused, and the pool would take that for its own loss.
#[test]
fn device_that_another_machine_has_taken_meanwhile_is_not_brought_online() {
    let cabinet = Cabinet::new(true);
    let (opener, rival) = (cabinet.host(1), cabinet.disks["b"].initiator(2));
    Runtime::simulated(1).block_on(async move {
        let (pool, v) = create(opener).await;
        pool.offline("b").await.unwrap();
        let key = ReservationKey(77);
        let take = match rival.reservations().await.unwrap().holder {
            None => ReservationChange::Reserve { key },
            Some(victim) => ReservationChange::Preempt { key, victim, abort: false },
        };
        for change in [ReservationChange::Register { key }, take] {
            rival.change_reservations(change).await.unwrap();
        }
        let refused = CandidateError::Reserved { device: "b".to_owned(), holder: Some(key) };
        assert_eq!(pool.online("b").await, Err(AdminError::Candidate(refused)));
        v.write(0, stamp(4096, 1), true).await.unwrap();
        assert_eq!(pool.summary().health, Health::Degraded);
    });
}

/// A device that cannot be written.
struct Unwritable(&'static str);

impl Script for Unwritable {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let fails = command.device == self.0 && command.changes_data();
        let decision =
            if fails { Decision::Fail(ErrorKind::Os { errno: 5 }) } else { Decision::Run };
        Box::pin(std::future::ready(decision))
    }
}

// Otherwise no other machine could use it, and no export would free it.
#[test]
fn device_that_a_command_could_not_take_is_not_reserved() {
    let cabinet = Cabinet::new(true);
    let opener = scripted(cabinet.host(1), Rc::new(Unwritable("s")));
    let disks = ["b", "s"].map(|name| cabinet.disks[name].initiator(99));
    Runtime::simulated(1).block_on(async move {
        let free = async |what: &str, outcome: Result<(), AdminError>| {
            outcome.expect_err(what);
            for disk in &disks {
                assert_eq!(disk.reservations().await.unwrap().holder, None, "{what}");
            }
        };
        let of_both = spec(Layout::Mirror, &["b", "s"], &["l"]);
        free("create", Pool::create(opener.clone(), "tank", &of_both).await.map(drop)).await;
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        free("attach", pool.attach("a", "s", false).await).await;
        free("replace", pool.replace("a", Some("s"), false).await).await;
        let group = |name: &str| GroupSpec { layout: Layout::Raid0, devices: names(&[name]) };
        let groups = PoolSpec { groups: ["b", "s"].map(group).into(), ..PoolSpec::default() };
        let logs = vec![LogSpec { devices: names(&["s"]) }];
        let logs = PoolSpec { logs, ..PoolSpec::default() };
        for (what, more) in [("groups", groups), ("logs", logs)] {
            free(what, pool.add(&more).await).await;
        }
        assert_eq!(pool.summary().health, Health::Online);
    });
}

#[test]
fn devices_beside_one_that_another_machine_has_are_not_reserved() {
    let cabinet = Cabinet::new(true);
    let (opener, rival) = (cabinet.host(1), cabinet.disks["s"].initiator(2));
    let free = cabinet.disks["b"].initiator(99);
    Runtime::simulated(137).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        let key = ReservationKey(77);
        for change in [ReservationChange::Register { key }, ReservationChange::Reserve { key }] {
            rival.change_reservations(change).await.unwrap();
        }
        let refused = pool.add(&spec(Layout::Raid0, &["b", "s"], &[])).await.unwrap_err();
        assert!(
            matches!(&refused, AdminError::Candidate(CandidateError::Reserved { device, .. })
            if device == "s"),
            "{refused:?}"
        );
        assert_eq!(free.reservations().await.unwrap().holder, None);
        pool.export().await.unwrap();
    });
}

#[test]
fn device_that_is_replaced_in_place_is_taken_from_no_other_machine() {
    let cabinet = Cabinet::new(true);
    let (opener, rival) = (cabinet.host(1), cabinet.disks["a"].initiator(2));
    Runtime::simulated(1).block_on(async move {
        let (pool, _v) = create(opener).await;
        pool.offline("a").await.unwrap();
        let (holder, victim) = (ReservationKey(77), key(&pool).unwrap());
        for change in [
            ReservationChange::Register { key: holder },
            ReservationChange::Preempt { key: holder, victim, abort: false },
        ] {
            rival.change_reservations(change).await.unwrap();
        }
        let error = pool.replace("a", None, false).await.unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
        assert_eq!(rival.reservations().await.unwrap().holder, Some(holder));
        pool.replace("a", None, true).await.unwrap();
        assert_eq!(rival.reservations().await.unwrap().holder, key(&pool));
    });
}

/// Freezes its machine after some commands. Its clocks stand still meanwhile.
struct Freeze {
    commands: Cell<u64>,
    after: Cell<Option<u64>>,
}

impl Script for Freeze {
    fn after<'a>(&'a self, _: Command<'a>) -> Answer<'a, ()> {
        Box::pin(async move {
            let commands = self.commands.get() + 1;
            self.commands.set(commands);
            if self.after.get() == Some(commands) {
                rt::halt();
                rt::yield_now().await;
            }
        })
    }
}

/// What the old owner did after it was frozen and replaced.
struct Thawed {
    /// Rounds that the new owner found.
    found: u64,
    /// Rounds that the old owner acknowledged, up to its end.
    acknowledged: u64,
    /// Writes of the old owner that took effect after the takeover, and those that were refused.
    late: (u64, u64),
}

/// Rounds of writes that lie on the volume, in order.
async fn count_rounds(v: &Device) -> u64 {
    for round in 0.. {
        let block = v.read(round * STRIDE, IoBuf::zeroed(STRIDE as usize)).await.unwrap();
        if block[..] != stamp(STRIDE as usize, 100 + round)[..] {
            return round;
        }
    }
    unreachable!("the volume has an end")
}

/// An owner is frozen after `at` commands. Another machine takes the pool, and both go on.
fn thaw_after(cabinet: &Rc<Cabinet>, at: u64) -> Thawed {
    for disk in cabinet.disks.values() {
        // What is frozen with its machine was accepted by the device already.
        disk.set_delay(Nanos(20_000));
    }
    let freeze = Rc::new(Freeze { commands: Cell::new(0), after: Cell::new(None) });
    let opener = scripted(cabinet.host(1), freeze.clone());
    let acknowledged = Rc::new(Cell::new(0));
    let first = Runtime::simulated(at + 10_000);
    let told = acknowledged.clone();
    let owner = async move {
        let (pool, v) = create(opener).await;
        freeze.after.set(Some(freeze.commands.get() + at));
        for round in 0..1000 {
            if v.write(round * STRIDE, stamp(STRIDE as usize, 100 + round), true).await.is_err() {
                break;
            }
            told.set(round + 1);
            if round % 10 == 9 {
                pool.sync().await.ok();
            }
        }
        // The pool lives until the machine ends.
        std::future::pending::<()>().await;
    };
    assert!(first.run(owner).is_none(), "it is frozen");
    let opener = cabinet.host(2);
    let second = Runtime::simulated(at + 20_000);
    let (pool, v, found) = second.block_on(async move {
        let pool = import(opener, true).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let found = count_rounds(&v).await;
        (pool, v, found)
    });
    let before = cabinet.writes(1);
    let new = Rc::new(Cell::new(0u64));
    for step in 0..60 {
        first.block_on(async { rt::sleep(Nanos::from_millis(100)).await });
        let (v, new) = (v.clone(), new.clone());
        second.block_on(async move {
            let offset = (3 << 20) + step * STRIDE;
            if v.write(offset, stamp(STRIDE as usize, 9000 + step), true).await.is_ok() {
                new.set(step + 1);
            }
            rt::sleep(Nanos::from_millis(100)).await;
        });
    }
    let after = cabinet.writes(1);
    if cabinet.has_reservations {
        second.block_on(async move {
            assert_eq!(pool.summary().health, Health::Online, "frozen after {at}");
            assert_eq!(new.get(), 60, "frozen after {at}");
            for step in 0..60 {
                expect(&v, (3 << 20) + step * STRIDE, &stamp(STRIDE as usize, 9000 + step)).await;
            }
        });
    }
    let late = (after.0 - before.0, after.1 - before.1);
    Thawed { found, acknowledged: acknowledged.get(), late }
}

// The old owner's clocks stood still with it, so its heartbeat is valid when it goes on.
#[test]
fn frozen_owner_that_thaws_acknowledges_nothing_that_the_next_owner_lacks() {
    let (mut refused, mut holes) = (0, 0);
    for at in (1..=200).step_by(9) {
        let with = thaw_after(&Cabinet::new(true), at);
        assert_eq!(with.late.0, 0, "frozen after {at}: a late write took effect");
        assert!(with.acknowledged <= with.found, "frozen after {at}");
        refused += with.late.1;
        // Heartbeats alone do not show the old owner how long it was away.
        let without = thaw_after(&Cabinet::new(false), at);
        holes += u64::from(without.late.0 > 0 && without.acknowledged > without.found);
    }
    assert!(refused > 20, "the old owner tried: {refused}");
    assert!(holes > 5, "without reservations there is a hole: {holes}");
}

/// A device of which late requests of an earlier process change what was read.
struct Late {
    inner: Device,
    times: Rc<Cell<u32>>,
}

impl Layer for Late {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        let left = self.times.get();
        self.times.set(left.saturating_sub(1));
        if left == 0 {
            return self.inner.change_reservations(change);
        }
        let kind = ErrorKind::Overtaken;
        let error = DeviceError::new(self.inner.name(), Operation::Reservation, 0, 0, kind);
        Box::pin(std::future::ready(Err(error)))
    }
}

#[test]
fn import_begins_again_after_late_requests_of_an_earlier_process() {
    for (late, is_imported) in [(1, true), (3, true), (u32::MAX, false)] {
        let cabinet = Cabinet::new(true);
        let here = cabinet.host(1);
        Runtime::simulated(1).block_on(async move {
            let (_pool, v) = create(here).await;
            v.write(0, stamp(4096, 7), true).await.unwrap();
        });
        let times = Rc::new(Cell::new(late));
        let seen = times.clone();
        let there = OpenWith::new(1, move |name| {
            let (inner, times) = (cabinet.disks[name].initiator(1), times.clone());
            Ok(Rc::new(Late { inner, times }))
        });
        Runtime::simulated(2).block_on(async move {
            match import(there, false).await {
                Ok(pool) => {
                    assert!(is_imported && seen.get() == 0);
                    let v = pool.open_volume("v").unwrap();
                    expect(&v, 0, &stamp(4096, 7)).await;
                    pool.export().await.unwrap();
                }
                Err(error) => {
                    assert!(!is_imported, "{error}");
                    let text = error.to_string();
                    assert!(text.contains("earlier process of this machine"), "{text}");
                }
            }
        });
    }
}
