//! The first client of what a command has made: whatever it is told survives a crash, although the
//! command's own root may not be there yet.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, paced};
use super::transfers::{PLAIN, receive, two_streams};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{CloneSpec, ImportOptions};
use crate::{Pool, Receiver};

const SIZE: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// Runs `command` with what `prepare` returns, and writes durably at `at` of volume `name` until
/// that is taken. The power fails when it is answered. The write must be there after an import.
fn first_write_survives<T, P, C>(name: &'static str, at: u64, prepare: P, command: C)
where
    T: 'static,
    P: AsyncFnOnce(Rc<Pool>) -> T + 'static,
    C: AsyncFnOnce(Rc<Pool>, T) + 'static,
{
    let rack = Rack::new(&["a", "l"], SIZE);
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    // The log is fast, so a durable write is answered long before the command's root is there.
    let opener = paced(rack.host(1), move |device, _, _| {
        (told.get() && device == "a").then_some(Nanos::from_millis(20))
    });
    let here = rack.clone();
    Runtime::simulated(1).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        let prepared = prepare(pool.clone()).await;
        is_slow.set(true);
        let running = rt::spawn({
            let pool = pool.clone();
            async move { command(pool, prepared).await }
        });
        let mut refused = 0;
        loop {
            let device = pool.open_volume(name);
            if let Some(device) = device {
                if device.write(at, stamp(4096, 9), true).await.is_ok() {
                    break;
                }
            }
            refused += 1;
            assert!(refused < 100_000, "the volume never takes a write");
            rt::sleep(Nanos::from_micros(100)).await;
        }
        here.switches.power.set(Some(0));
        assert!(refused > 10, "the command was not seen under way");
        drop(running);
    });
    Runtime::simulated(2).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "l"]);
        rack.switches.power.set(None);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        // What is left of streams is undone by a task.
        rt::sleep(Nanos::from_secs(10)).await;
        let device = pool.open_volume(name).expect("it was there before the crash");
        expect(&device, at, &stamp(4096, 9)).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn first_write_to_a_new_volume_survives_a_crash() {
    first_write_survives(
        "v",
        0,
        async |_| {},
        async |pool: Rc<Pool>, ()| {
            pool.create_volume(&volume(4 * MIB)).await.unwrap();
        },
    );
}

#[test]
fn first_write_to_a_clone_survives_a_crash() {
    let prepare = async |pool: Rc<Pool>| {
        pool.create_volume(&volume(4 * MIB)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
    };
    first_write_survives("c", 0, prepare, async |pool: Rc<Pool>, ()| {
        let clone = CloneSpec { name: "c".to_owned(), properties: BTreeMap::new() };
        pool.clone_snapshot("v@a", &clone).await.unwrap();
    });
}

#[test]
fn first_write_past_the_old_end_of_a_volume_survives_a_crash() {
    let prepare = async |pool: Rc<Pool>| pool.create_volume(&volume(MIB)).await.unwrap();
    first_write_survives("v", 2 * MIB, prepare, async |pool: Rc<Pool>, ()| {
        pool.resize_volume("v", 4 * MIB, false).await.unwrap();
    });
}

#[test]
fn first_write_past_the_end_from_which_a_volume_goes_back_survives_a_crash() {
    let prepare = async |pool: Rc<Pool>| {
        pool.create_volume(&volume(4 * MIB)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.resize_volume("v", MIB, true).await.unwrap();
    };
    first_write_survives("v", 2 * MIB, prepare, async |pool: Rc<Pool>, ()| {
        pool.roll_back_volume("v@a", false).await.unwrap();
    });
}

/// Receives `@a`, and begins to receive what follows it.
async fn halfway(pool: &Rc<Pool>) -> Receiver {
    let (tank, full, step) = two_streams().await;
    receive(pool, &full, PLAIN).await.unwrap();
    let mut receiver = pool.receive("w", PLAIN);
    for chunk in &step[..4] {
        receiver.feed(chunk).await.unwrap();
    }
    tank.export().await.unwrap();
    receiver
}

#[test]
fn first_write_after_a_stream_was_given_up_survives_a_crash() {
    let prepare = async |pool: Rc<Pool>| halfway(&pool).await;
    first_write_survives("w", MIB, prepare, async |_, receiver: Receiver| {
        receiver.give_up().await;
    });
}
