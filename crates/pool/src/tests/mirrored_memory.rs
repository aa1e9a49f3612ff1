//! A log device in memory that is protected by the other side of its mirror.

use std::rc::Rc;

use forebay_device::layers::Layer;
use forebay_device::{BlockDevice, Device, DramState, DramStatus, IoBuf};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::status::LogMemory;
use crate::{OpenWith, Opener, Pool};

const SIZE: u64 = 64 << 20;

/// A device that says of itself what such memory does.
struct Memory(Device);

impl Layer for Memory {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.0
    }
    fn dram(&self) -> Option<DramStatus> {
        Some(DramStatus {
            state: DramState::Armed,
            reason: None,
            memory: "m".to_owned(),
            ups: None,
            is_persistent: false,
            needs_mirror: true,
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
        Ok(if name == "m" { Rc::new(Memory(device)) } else { device })
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
