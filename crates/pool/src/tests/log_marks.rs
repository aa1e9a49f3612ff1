//! Log marks, which tell data devices how far the log has come: when they come, and where they go.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, MemoryDevice, Operation};
use forebay_format::label::{LOG_MARK_BYTES, LOG_MARK_OFFSET_BYTES};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::{Layout, Nanos};

use super::rack::{in_store, memory, scripted};
use super::{spec, stamp, volume};
use crate::status::Health;
use crate::{OpenWith, Pool};

fn is_mark(command: &Command<'_>) -> bool {
    const MARKS: std::ops::Range<u64> =
        LOG_MARK_OFFSET_BYTES..LOG_MARK_OFFSET_BYTES + 2 * LOG_MARK_BYTES;
    command.operation == Operation::Write && MARKS.contains(&command.offset_bytes)
}

/// Notes when each mark is written. Writes to the body of the data device may take long.
#[derive(Default)]
struct Marks {
    written_at: RefCell<Vec<Nanos>>,
    bodies_are_slow: Cell<bool>,
}

impl Script for Marks {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let is_write = command.operation == Operation::Write && command.device == "a";
        if is_mark(&command) {
            self.written_at.borrow_mut().push(rt::now());
        }
        let is_slow = is_write && command.offset_bytes >= 5 << 20 && self.bodies_are_slow.get();
        Box::pin(async move {
            if is_slow {
                rt::sleep(Nanos::from_secs(20)).await;
            }
            Decision::Run
        })
    }
}

/// Where the pool's data device is, and whether it has other writes.
#[derive(Clone, Copy, PartialEq)]
enum Data {
    Idle,
    Busy,
    InStore,
}

/// Milliseconds between the marks of `secs` seconds.
fn pauses(witness: &'static str, data: Data, secs: u64) -> Vec<u64> {
    Runtime::simulated(4072).block_on(async move {
        let marks = Rc::new(Marks::default());
        let disk: Device = match data {
            Data::InStore => in_store("a", 64 << 20),
            Data::Idle | Data::Busy => Rc::new(MemoryDevice::new("a", 64 << 20)),
        };
        let log: Device = Rc::new(MemoryDevice::new("l", 64 << 20));
        let all = OpenWith::new(1, move |name| Ok([&disk, &log][usize::from(name == "l")].clone()));
        let mut wanted = spec(Layout::Raid0, &["a"], &["l"]);
        for (name, value) in [("txg_timeout", "600"), ("log_witness", witness)] {
            wanted.properties.insert(name.to_owned(), value.to_owned());
        }
        let pool = Pool::create(scripted(all, marks.clone()), "tank", &wanted).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(1 << 20, stamp(1 << 20, 1), false).await.unwrap();
        marks.bodies_are_slow.set(data == Data::Busy);
        let committing = pool.clone();
        let commit = rt::spawn(async move {
            if data == Data::Busy {
                committing.sync().await.unwrap();
            }
        });
        rt::sleep(Nanos::from_secs(6)).await;
        marks.written_at.take();
        for at in 0..secs * 100 {
            v.write(0, stamp(4096, at), true).await.unwrap();
            rt::sleep(Nanos::from_millis(10)).await;
        }
        assert_eq!(!commit.is_finished(), data == Data::Busy);
        let at = marks.written_at.take();
        at.windows(2).map(|two| two[1].since(two[0]).0 / 1_000_000).collect()
    })
}

#[test]
fn marks_of_the_log_come_as_often_as_log_witness_says() {
    for (witness, data, secs, least_ms) in [
        ("idle", Data::Idle, 2, 100),
        ("idle", Data::Busy, 5, 1000),
        ("idle", Data::InStore, 12, 5000),
        ("second", Data::Idle, 5, 1000),
        ("second", Data::InStore, 5, 1000),
    ] {
        let pauses = pauses(witness, data, secs);
        let allowed = least_ms..least_ms + 30;
        assert!(!pauses.is_empty(), "{witness}");
        assert!(pauses.iter().all(|pause| allowed.contains(pause)), "{witness}: {pauses:?}");
    }
    let pauses = pauses("always", Data::Idle, 1);
    assert!(pauses.len() >= 99 && pauses.iter().all(|pause| *pause < 30), "{pauses:?}");
}

/// Notes the place of each mark, and fails one of `a`.
struct Places {
    written: RefCell<Vec<(String, u64)>>,
    fails_after: Cell<Option<u64>>,
}

impl Script for Places {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let mut decision = Decision::Run;
        if is_mark(&command) {
            let left = self.fails_after.get().filter(|_| command.device == "a");
            if let Some(left) = left {
                self.fails_after.set(left.checked_sub(1));
            }
            match left {
                Some(0) => decision = Decision::Fail(ErrorKind::Os { errno: 5 }),
                _ => {
                    let place = (command.device.to_owned(), command.offset_bytes);
                    self.written.borrow_mut().push(place);
                }
            }
        }
        Box::pin(std::future::ready(decision))
    }
}

// A power cut in the middle of a mark must leave the one before, also when devices have left.
#[test]
fn the_slots_of_a_device_take_turns_after_another_device_has_failed() {
    for fails_after in 0..4 {
        Runtime::simulated(4090).block_on(async move {
            let fails_after = Cell::new(Some(fails_after));
            let places = Rc::new(Places { written: RefCell::default(), fails_after });
            let opener = scripted(memory(&["a", "b", "l"], 64 << 20), places.clone());
            let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            pool.set("log_witness", "always").await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for at in 0..20 {
                v.write(at << 12, stamp(4096, at), true).await.unwrap();
            }
            assert_eq!(pool.status().groups[0].children[0].state, Health::Faulted);
            let written = places.written.take();
            for device in ["a", "b"] {
                let of_it = written.iter().filter(|(of, _)| of == device);
                let offsets: Vec<u64> = of_it.map(|(_, offset)| *offset).collect();
                let take_turns = offsets.windows(2).all(|two| two[0] != two[1]);
                assert!(take_turns, "{device}: {written:?}");
            }
            drop(v);
            pool.export().await.unwrap();
        });
    }
}
