//! Labels that a device needs to have, and what has to fit into one.

use std::cell::Cell;
use std::rc::Rc;

use forebay_array::MemberState;
use forebay_device::{ErrorKind, Operation};
use forebay_format::label::{
    SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SLOTS, label_offsets,
};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory, scripted};
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{Health, PoolEvent};

const SIZE: u64 = 64 << 20;

/// Fails the roots of device `b` when it is told to, and nothing else.
#[derive(Default)]
struct NoRoots {
    is_on: Cell<bool>,
    /// The device is gone.
    is_gone: bool,
}

impl Script for NoRoots {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let roots =
            SUPERBLOCK_OFFSET_BYTES..SUPERBLOCK_OFFSET_BYTES + SUPERBLOCK_SLOTS * SUPERBLOCK_BYTES;
        let at = command.offset_bytes;
        let in_ring = |area: u64| at >= area && roots.contains(&(at - area));
        let is_root =
            command.operation == Operation::Write && label_offsets(SIZE).into_iter().any(in_ring);
        let fails = self.is_on.get() && command.device == "b" && is_root;
        let kind = if self.is_gone { ErrorKind::Gone } else { ErrorKind::Os { errno: 5 } };
        Box::pin(async move {
            match fails {
                true => Decision::Fail(kind),
                false => Decision::Run,
            }
        })
    }
}

// An import would find the root on one device, and call the other left behind.
#[test]
fn a_root_that_a_needed_device_did_not_take_does_not_count() {
    for (layout, is_needed) in [(Layout::Raid0, true), (Layout::Mirror, false)] {
        Runtime::simulated(1).block_on(async move {
            let script = Rc::new(NoRoots::default());
            let opener = scripted(memory(&["a", "b"], SIZE), script.clone());
            let options = spec(layout, &["a", "b"], &[]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            script.is_on.set(true);
            v.write(0, stamp(65536, 1), false).await.unwrap();
            assert_eq!(pool.sync().await.is_err(), is_needed, "{layout:?}");
            let expected = if is_needed { Health::Suspended } else { Health::Degraded };
            assert_eq!(pool.summary().health, expected);
        });
    }
}

// As for one that does not take data.
#[test]
fn what_a_device_did_to_a_root_is_told_of() {
    for (is_gone, state) in [(false, MemberState::Faulted), (true, MemberState::Removed)] {
        Runtime::simulated(1).block_on(async move {
            let script = Rc::new(NoRoots { is_gone, ..NoRoots::default() });
            let opener = scripted(memory(&["a", "b"], SIZE), script.clone());
            let options = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            script.is_on.set(true);
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            let told = pool.events().into_iter().find_map(|event| match event {
                PoolEvent::StateChanged { device, to, cause, .. } => Some((device, to, cause)),
                _ => None,
            });
            let (device, to, cause) = told.expect("it is out of use");
            assert_eq!((device.as_str(), to), ("b", state));
            let cause = cause.expect("the write of the root").kind;
            assert_eq!(matches!(cause, ErrorKind::Gone), is_gone, "{cause:?}");
        });
    }
}

#[test]
fn a_configuration_that_a_needed_device_did_not_take_does_not_count() {
    for (layout, is_needed) in [(Layout::Raid0, true), (Layout::Mirror, false)] {
        Runtime::simulated(2).block_on(async move {
            let rack = Rack::new(&["a", "b"], SIZE);
            let options = spec(layout, &["a", "b"], &[]);
            let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
            rack.switches.unconfigurable.borrow_mut().insert("b".to_owned());
            let created = pool.create_volume(&volume(8 << 20)).await;
            assert_eq!(created.is_err(), is_needed, "{layout:?}");
            let expected = if is_needed { Health::Suspended } else { Health::Degraded };
            assert_eq!(pool.summary().health, expected);
        });
    }
}

// A root that did without the device would call it left behind, and no import would take it again.
#[test]
fn a_root_without_a_needed_device_does_not_count() {
    let rack = Rack::new(&["a", "b", "l"], SIZE);
    let shared = rack.clone();
    let first = Runtime::simulated(4);
    first.block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(shared.host(1), "tank", &options).await.unwrap();
        pool.add(&spec(Layout::Raid0, &["b"], &[])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        shared.switches.pulled.borrow_mut().insert("b".to_owned());
        // Nothing of this goes to b, but for a mark of the log, which shows that b is gone.
        for at in 0..8 {
            v.write(at << 12, stamp(4096, at), true).await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            if pool.is_stopped() {
                break;
            }
        }
        assert_eq!(pool.summary().health, Health::Suspended);
    });
    drop(first);
    rack.switches.pulled.borrow_mut().clear();
    Runtime::simulated(5).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "l"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        super::expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 0)).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_configuration_that_would_not_fit_loses_its_oldest_lines_of_history() {
    Runtime::simulated(3).block_on(async {
        let shelf = memory(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        let line = |number: u32| format!("{number} {}", "x".repeat(500));
        pool.config.borrow_mut().history = (0..4000).map(line).collect();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(shelf, &names(&["a"]), "tank", &options).await.unwrap();
        let kept = pool.history();
        assert!((1..4000).contains(&kept.len()), "{} lines", kept.len());
        assert_eq!(kept.last(), Some(&line(3999)));
        assert_eq!(kept.first(), Some(&line(4000 - kept.len() as u32)));
        assert!(pool.open_volume("v").is_some());
        pool.export().await.unwrap();
    });
}
