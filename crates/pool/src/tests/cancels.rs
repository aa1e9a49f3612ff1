//! Requests and commands that are given up halfway: others neither wait for them nor rely on what
//! they have begun.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory, paced};
use super::transfers::{
    PLAIN, content, make, receive, same, snapshot_content, target, two_streams, whole,
};
use super::{expect, names, spec, stamp, volume};
use crate::spec::ImportOptions;
use crate::{LeftBy, Pool, ReceiveOptions, TransferError};

const MIB: u64 = 1 << 20;

// The frame of the write never gets to the log device, and the flush has no writes of its own.
#[test]
fn flush_does_not_rely_on_a_durable_write_that_was_canceled() {
    for flushes_at_ms in [5, 15] {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let is_slow = Rc::new(Cell::new(false));
        let told = is_slow.clone();
        let opener = paced(rack.host(1), move |device, operation, _| {
            let is_frame = device == "l" && operation == Operation::Write;
            (told.get() && is_frame).then_some(Nanos::from_secs(1))
        });
        let here = rack.clone();
        Runtime::simulated(1).block_on(async move {
            let options = spec(Layout::Raid0, &["a"], &["l"]);
            let pool = Pool::create(opener, "tank", &options).await.unwrap();
            pool.create_volume(&volume(4 * MIB)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            is_slow.set(true);
            let flushing = rt::spawn({
                let v = v.clone();
                async move {
                    rt::sleep(Nanos::from_millis(flushes_at_ms)).await;
                    v.flush().await
                }
            });
            let write = v.write(0, stamp(4096, 1), true);
            assert!(rt::timeout(Nanos::from_millis(10), write).await.is_err(), "it was answered");
            flushing.await.unwrap();
            here.switches.power.set(Some(0));
        });
        Runtime::simulated(2).block_on(async move {
            rack.switches.power.set(None);
            let options = ImportOptions::default();
            let paths = names(&["a", "l"]);
            let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
            expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 1)).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn stream_that_is_dropped_before_its_end_has_a_turn_is_interrupted() {
    Runtime::simulated(3).block_on(async {
        let (tank, full, _) = two_streams().await;
        let back = target().await;
        let mut receiver = back.receive("w", PLAIN);
        for chunk in &full[..3] {
            receiver.feed(chunk).await.unwrap();
        }
        let turn = back.admin.lock().await;
        let end = rt::timeout(Nanos::from_millis(10), receiver.give_up()).await;
        assert!(end.is_err(), "it had a turn");
        drop(turn);
        back.abandon_receive("w").await.unwrap();
        receive(&back, &full, PLAIN).await.unwrap();
        same(&tank, &back, "a").await;
        for pool in [tank, back] {
            pool.export().await.unwrap();
        }
    });
}

// The volume is taken from its clients, goes back to its snapshot, and gets the size of the next.
#[test]
fn stream_that_is_given_up_while_it_begins_gives_its_volume_back() {
    const ROLL_BACK: ReceiveOptions = ReceiveOptions { roll_back: true, is_resumable: false };
    let mut parts = 0;
    for at in 0..60 {
        let left = Runtime::simulated(4).block_on(async move {
            let (tank, full, step) = two_streams().await;
            let shelf = paced(memory(&["a", "l"], 64 << 20), |_, _, _| Some(Nanos::from_millis(1)));
            let back = make(shelf, "back").await;
            receive(&back, &full, PLAIN).await.unwrap();
            let w = back.open_volume("w").unwrap();
            w.write(MIB, stamp(8192, 7), false).await.unwrap();
            let written = content(&w).await;
            let mut receiver = back.receive("w", ROLL_BACK);
            let feeding = async {
                for chunk in &step[..2] {
                    receiver.feed(chunk).await?;
                }
                Ok::<(), TransferError>(())
            };
            let fed = rt::timeout(Nanos::from_millis(at), Box::pin(feeding)).await;
            fed.unwrap_or(Ok(())).unwrap();
            let left = receiver.give_up().await;
            if left == LeftBy::Part {
                back.abandon_receive("w").await.unwrap();
            }
            let w = back.open_volume("w").expect("clients see it again");
            let found = content(&w).await;
            let is_base = found == snapshot_content(&tank, "v@a").await;
            assert!(is_base || found == written, "given up after {at} ms");
            receive(&back, &step, ROLL_BACK).await.unwrap();
            same(&tank, &back, "b").await;
            for pool in [tank, back] {
                pool.export().await.unwrap();
            }
            left
        });
        parts += u64::from(left == LeftBy::Part);
    }
    assert!(parts > 5, "{parts} were given up halfway");
}

// The operator exports a suspended pool with -f, which first ends what is sent.
#[test]
fn a_stream_that_is_sent_ends_with_a_pool_that_can_read_no_more() {
    for ends_at_once in [true, false] {
        Runtime::simulated(5).block_on(async move {
            let rack = Rack::new(&["a", "l"], 64 << 20);
            let pool = make(rack.host(1), "tank").await;
            pool.create_volume(&volume(4 * MIB)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(4 << 20, 1), false).await.unwrap();
            pool.take_snapshots(&names(&["v@a"])).await.unwrap();
            let mut sender = pool.send(&whole("v@a")).unwrap();
            sender.next().await.unwrap();
            rack.switches.unreadable.borrow_mut().insert("a".to_owned());
            rack.switches.works_for.set(Some(0));
            let _ = pool.sync().await;
            assert!(pool.is_resumable(), "it is suspended");
            // Reads of clients wait until the pool goes on, or is given up.
            let read = rt::spawn(async move { v.read(0, IoBuf::zeroed(4096)).await });
            let sending = rt::spawn(async move {
                if !ends_at_once {
                    sender.next().await.unwrap_err();
                }
                let next = Box::pin(sender.next());
                let _ = rt::timeout(Nanos(1), next).await;
                sender.end().await;
            });
            rt::sleep(Nanos::from_secs(60)).await;
            assert!(sending.is_finished(), "it waits for the pool");
            assert!(!read.is_finished());
            pool.end().await.unwrap_err();
            read.await.unwrap_err();
        });
    }
}
