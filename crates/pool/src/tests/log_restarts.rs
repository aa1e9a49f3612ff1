//! The log starts anew while a side fails, the power does, or the cleaner writes a root.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, paced, scripted};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, LogSpec};
use crate::status::{Health, PoolEvent};
use crate::{Opener, Pool};

const DEVICES: [&str; 5] = ["a", "b", "l", "m", "n"];
const SIZE: u64 = 64 << 20;

/// Devices that take a while, of which one fails from some command of all devices on.
struct Failing {
    device: &'static str,
    /// Commands since it is armed, and the first at which the device fails.
    commands: Cell<u64>,
    fails_from: Cell<Option<u64>>,
}

impl Failing {
    fn has_failed(&self) -> bool {
        self.fails_from.get().is_some_and(|from| self.commands.get() >= from)
    }
}

impl Script for Failing {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if self.fails_from.get().is_some() {
                rt::sleep(Nanos(rt::random_below(50_000))).await;
                self.commands.set(self.commands.get() + 1);
            }
            match self.has_failed() && command.device == self.device {
                true => Decision::Fail(ErrorKind::Os { errno: 5 }),
                false => Decision::Run,
            }
        })
    }
}

/// A client that waits for each of its durable writes, until it is told to stop.
async fn write_on(v: Device, has_ended: Rc<Cell<bool>>) -> u64 {
    for salt in 1.. {
        v.write(0, stamp(4096, salt), true).await.unwrap();
        if has_ended.get() {
            return salt;
        }
    }
    unreachable!("it is told to stop")
}

async fn import(opener: Rc<dyn Opener>) -> Rc<Pool> {
    let paths = names(&DEVICES);
    Pool::import(opener, &paths, "tank", &ImportOptions::default()).await.unwrap()
}

/// Attaches `m` to the log on `l` while a client writes, and `device` fails at command `from`.
/// Then the power fails, and what was acknowledged must be there without that device. Returns
/// whether it came to that command.
fn attaching_survives(device: &'static str, from: u64) -> bool {
    let rack = Rack::new(&DEVICES, SIZE);
    let script = Rc::new(Failing { device, commands: Cell::new(0), fails_from: Cell::new(None) });
    let failing = script.clone();
    let opener = scripted(rack.host(1), script.clone());
    let first = Runtime::simulated(from);
    let last = first.block_on(async move {
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        failing.fails_from.set(Some(from));
        let has_ended = Rc::new(Cell::new(false));
        let client = rt::spawn(write_on(v.clone(), has_ended.clone()));
        // The new side may be the one that fails.
        let _ = pool.attach("l", "m", false).await;
        has_ended.set(true);
        let last = client.await + 1;
        v.write(0, stamp(4096, last), true).await.unwrap();
        last
    });
    drop(first);
    let has_failed = script.has_failed();
    Runtime::simulated(from + 10_000).block_on(async move {
        if has_failed {
            rack.pull(&[device]);
        }
        let pool = import(rack.host(1)).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, last)).await;
        drop(v);
        pool.export().await.unwrap();
    });
    has_failed
}

#[test]
fn durable_writes_survive_a_side_that_fails_at_any_command_of_an_attach() {
    for device in ["l", "m"] {
        let failed = (1..).step_by(3).take_while(|from| attaching_survives(device, *from)).count();
        assert!(failed >= 10, "{device}: {failed}");
    }
}

// The last root says that the log is empty on the rings that stay. A root that names the old rings
// again would ask for a device that has left the pool.
#[test]
fn a_log_that_was_removed_is_not_asked_for_although_the_rest_did_not_start() {
    let rack = Rack::new(&DEVICES, SIZE);
    let mine = rack.clone();
    let first = Runtime::simulated(2);
    first.block_on(async move {
        let script = Rc::new(Failing {
            device: "none",
            commands: Cell::new(0),
            fails_from: Cell::new(Some(u64::MAX)),
        });
        let opener = scripted(mine.host(1), script);
        let mut options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        options.logs.push(LogSpec { devices: names(&["n"]) });
        options.properties.insert("txg_timeout".to_owned(), "600".to_owned());
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        drop(pool.writers.lock().await);
        mine.switches.unconfigurable.borrow_mut().insert("m".into());
        let removing = rt::spawn({
            let pool = pool.clone();
            async move { pool.remove("n").await }
        });
        while pool.writers.try_lock().is_some() {
            rt::sleep(Nanos::from_micros(10)).await;
        }
        // The turn comes after the group that could not start the log. Cleaning has roots too.
        let mut writers = pool.writers.lock().await;
        let did_not_start = |event: &PoolEvent| matches!(event, PoolEvent::LogNotStarted(_));
        assert!(pool.events().iter().any(did_not_start), "{:?}", pool.events());
        let committed = pool.sync.committed.get();
        pool.write_root(&mut writers, committed, false).await.unwrap();
        assert!(pool.log.is_failed() && !removing.is_finished());
    });
    drop(first);
    Runtime::simulated(3).block_on(async move {
        rack.switches.unconfigurable.borrow_mut().clear();
        rack.pull(&["n"]);
        let pool = import(rack.host(1)).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        v.write(0, stamp(4096, 2), true).await.unwrap();
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_that_starts_at_the_second_attempt_is_the_one_that_roots_name() {
    let rack = Rack::new(&DEVICES, SIZE);
    let mine = rack.clone();
    let first = Runtime::simulated(4);
    first.block_on(async move {
        let mut options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        options.logs.push(LogSpec { devices: names(&["n"]) });
        let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        mine.switches.unconfigurable.borrow_mut().insert("m".into());
        pool.remove("n").await.unwrap();
        let did_not_start = |event: &PoolEvent| matches!(event, PoolEvent::LogNotStarted(_));
        assert!(pool.events().iter().any(did_not_start), "{:?}", pool.events());
        for salt in 1..4 {
            v.write(salt * 4096, stamp(4096, salt), true).await.unwrap();
            pool.sync().await.unwrap();
            v.write(0, stamp(4096, salt), true).await.unwrap();
        }
    });
    drop(first);
    Runtime::simulated(5).block_on(async move {
        rack.pull(&["m", "n"]);
        let pool = import(rack.host(1)).await;
        let v = pool.open_volume("v").unwrap();
        expect(&v, 0, &stamp(4096, 3)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

// The log is started without it first: it takes back no side that has failed since its last start.
#[test]
fn a_side_returns_while_the_log_waits_to_be_started_without_it() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&DEVICES, SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pace = |_: &str, operation: Operation, _: u64| {
            (operation == Operation::Write).then_some(Nanos::from_millis(1))
        };
        let opener = paced(rack.host(1), pace);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let still = pool.writers.lock().await;
        rack.switches.unwritable.borrow_mut().insert("l".into());
        let writing = rt::spawn({
            let v = v.clone();
            async move { v.write(0, stamp(4096, 1), true).await }
        });
        rt::sleep(Nanos::from_millis(100)).await;
        assert!(pool.log.is_failed());
        rack.switches.unwritable.borrow_mut().clear();
        let returning = rt::spawn({
            let pool = pool.clone();
            async move { pool.online("l").await }
        });
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(!returning.is_finished());
        drop(still);
        let returned = rt::timeout(Nanos::from_secs(5), Box::pin(returning)).await;
        returned.expect("the log starts again and again").unwrap();
        writing.await.unwrap();
        v.write(0, stamp(4096, 2), true).await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        let did_not_start = |event: &PoolEvent| matches!(event, PoolEvent::LogNotStarted(_));
        assert!(!pool.events().iter().any(did_not_start), "{:?}", pool.events());
        drop(v);
        pool.export().await.unwrap();
    });
}
