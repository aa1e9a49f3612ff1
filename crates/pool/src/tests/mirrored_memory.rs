//! A log device in memory: what it says of itself, and what the other side of its mirror is for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::layers::Layer;
use forebay_device::{
    BlockDevice, Device, DeviceFuture, DramChange, DramState, DramStatus, IoBuf, MemoryDevice,
};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::Shelf;
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::{LogMemory, PoolEvent};
use crate::{OpenWith, Opener, Pool};

const SIZE: u64 = 64 << 20;

/// A device that says of itself what such memory does.
struct Memory {
    inner: Device,
    needs_mirror: bool,
    changes: RefCell<Vec<DramChange>>,
    saves: Cell<u64>,
}

impl Memory {
    fn new(inner: Device, needs_mirror: bool) -> Rc<Self> {
        let (changes, saves) = (RefCell::default(), Cell::new(0));
        Rc::new(Self { inner, needs_mirror, changes, saves })
    }
}

impl Layer for Memory {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn save(&self) -> DeviceFuture<'_, ()> {
        self.saves.set(self.saves.get() + 1);
        let (from, to) = (DramState::Armed, DramState::Saved);
        self.changes.borrow_mut().push(DramChange { from, to, reason: None });
        Box::pin(std::future::ready(Ok(())))
    }
    fn take_dram_changes(&self) -> Vec<DramChange> {
        self.changes.take()
    }
    fn dram(&self) -> Option<DramStatus> {
        Some(DramStatus {
            state: DramState::Armed,
            reason: None,
            memory: "m".to_owned(),
            ups: None,
            is_persistent: false,
            needs_mirror: self.needs_mirror,
            has_backup: false,
            unsaved_bytes: 0,
            save_secs: 0,
            ups_status: None,
            runtime_secs: None,
        })
    }
}

/// The rack's devices, of which "m" is memory.
fn opener(rack: &Rc<Rack>) -> Rc<dyn Opener> {
    let rack = rack.clone();
    OpenWith::new(1, move |name| {
        let device = rack.open_here(name)?;
        Ok(if name == "m" { Memory::new(device, true) } else { device })
    })
}

fn memory_of(pool: &Pool) -> LogMemory {
    let sides = pool.status().logs[0].children.clone();
    sides.into_iter().find_map(|side| side.memory).unwrap()
}

async fn lose_memory(rack: &Rc<Rack>) {
    rack.device("m").write(0, IoBuf::zeroed(SIZE as usize).freeze(), true).await.unwrap();
}

#[test]
fn nothing_is_acknowledged_from_memory_alone() {
    for seed in 0..20 {
        let rack = Rack::new(&["a", "m", "far"], SIZE);
        Runtime::simulated(seed).block_on(async move {
            let data = spec(Layout::Raid0, &["a"], &["m", "far"]);
            let pool = Pool::create(opener(&rack), "tank", &data).await.unwrap();
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(4096, 1), true).await.unwrap();
            let memory = memory_of(&pool);
            assert_eq!((memory.state.as_str(), memory.is_mirrored), ("ARMED", true));
            assert!(memory.survives.power_loss && !memory.survives.host_loss);
            // The other side is away: writes are durable elsewhere.
            rack.pull(&["far"]);
            let mut kept = Vec::new();
            for n in 0..5_u64 {
                v.write(n * 4096, stamp(4096, 10 + n), true).await.unwrap();
                kept.push(10 + n);
                rt::sleep(Nanos::from_millis(rt::random_below(400))).await;
            }
            pool.offline("far").await.ok();
            v.write(5 * 4096, stamp(4096, 15), true).await.unwrap();
            kept.push(15);
            assert_eq!(memory_of(&pool).state, "DISARMED");
            assert!(!memory_of(&pool).survives.power_loss);
            drop((v, pool));
            lose_memory(&rack).await;
            let options = ImportOptions { force: true, ..Default::default() };
            let pool = Pool::import(opener(&rack), &names(&["a"]), "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for (at, stamped) in kept.iter().enumerate() {
                expect(&v, at as u64 * 4096, &stamp(4096, *stamped)).await;
            }
        });
    }
}

#[test]
fn the_other_side_has_what_memory_lost() {
    let rack = Rack::new(&["a", "m", "far"], SIZE);
    Runtime::simulated(3).block_on(async move {
        let data = spec(Layout::Raid0, &["a"], &["m", "far"]);
        let pool = Pool::create(opener(&rack), "tank", &data).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 7), true).await.unwrap();
        drop((v, pool));
        lose_memory(&rack).await;
        let (all, options) = (names(&["a", "m", "far"]), ImportOptions::default());
        let pool = Pool::import(opener(&rack), &all, "tank", &options).await.unwrap();
        expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 7)).await;
        // What is in its place now is a side again.
        pool.replace("m", None, false).await.unwrap();
        assert_eq!(memory_of(&pool).state, "ARMED");
    });
}

/// A pool of `a` with a log on `m` and `far`, and the device in memory, which needs no mirror.
async fn protected(log: &[&str]) -> (Rc<Pool>, Rc<Memory>, Rc<Shelf>) {
    let memory = Memory::new(Rc::new(MemoryDevice::new("m", SIZE)), false);
    let plain = ["a", "far"].map(|name| Rc::new(MemoryDevice::new(name, SIZE)) as Device);
    let shelf = Shelf::new(plain.into_iter().chain([memory.clone() as Device]));
    let mine = shelf.clone();
    let opener = OpenWith::new(1, move |name| mine.open_alone(name));
    let wanted = spec(Layout::Raid0, &["a"], log);
    (Pool::create(opener, "tank", &wanted).await.unwrap(), memory, shelf)
}

#[test]
fn memory_with_protection_of_its_own_is_shown_as_it_is_and_tells_of_its_changes() {
    Runtime::simulated(4058).block_on(async {
        let (pool, memory, _) = protected(&["m"]).await;
        let shown = pool.status().logs[0].memory.clone().unwrap();
        assert_eq!((shown.state.as_str(), shown.is_mirrored), ("ARMED", false));
        assert!(shown.survives.power_loss && !shown.survives.kernel_crash);
        let change = DramChange { from: DramState::Armed, to: DramState::Saving, reason: None };
        memory.changes.borrow_mut().push(change);
        rt::sleep(Nanos::from_secs(2)).await;
        let told = || {
            let states = pool.events().into_iter().map(|event| match event {
                PoolEvent::LogMemoryChanged { device, change } if device == "m" => change.to,
                event => panic!("{event}"),
            });
            states.collect::<Vec<DramState>>()
        };
        assert_eq!(told(), [DramState::Saving]);
        pool.export().await.unwrap();
        // It was saved when nothing was to come any more.
        assert_eq!((told(), memory.saves.get()), (vec![DramState::Saving, DramState::Saved], 1));
    });
}

#[test]
fn memory_that_is_taken_offline_is_saved_and_let_go() {
    Runtime::simulated(4073).block_on(async {
        let (pool, memory, shelf) = protected(&["m", "far"]).await;
        pool.offline("m").await.unwrap();
        assert_eq!(memory.saves.get(), 1);
        shelf.open_alone("m").unwrap();
        pool.export().await.unwrap();
    });
}
