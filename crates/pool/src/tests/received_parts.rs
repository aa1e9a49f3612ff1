//! How far a stream is said to be, against what the main store has of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Operation;
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::rack::{Rack, paced};
use super::transfers::{
    KEPT, PLAIN, content, make, receive, resumed, same, sent, since, snapshot, snapshot_content,
    target, two_streams, whole,
};
use super::{expect, names, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::transfer::error::TransferError;
use crate::{LeftBy, Pool};

/// A stream in chunks, what it makes, and by token the streams that go on after some chunks.
type Stream = (Vec<Vec<u8>>, Vec<u8>, BTreeMap<String, Vec<Vec<u8>>>);

fn stream() -> Stream {
    Runtime::simulated(6).block_on(async {
        let (tank, full, _) = two_streams().await;
        let truth = snapshot_content(&tank, "v@a").await;
        let mut rests = BTreeMap::new();
        for cut in 2..full.len() {
            let back = target().await;
            let (_, left) = receive(&back, &full[..cut], KEPT).await.unwrap_err();
            let LeftBy::Token(token) = left else { panic!("{left:?}") };
            rests.insert(token.clone(), resumed(&tank, token).await);
            back.export().await.unwrap();
        }
        tank.export().await.unwrap();
        (full, truth, rests)
    })
}

#[test]
fn a_stream_is_not_said_to_be_further_than_the_root_that_says_so() {
    let (full, truth, rests) = stream();
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let before = rack.clone();
    let first = Runtime::simulated(7);
    first.block_on(async move {
        let back = make(before.host(1), "back").await;
        let mut receiver = back.receive("w", KEPT);
        for chunk in &full[..2] {
            receiver.feed(chunk).await.unwrap();
        }
        back.sync().await.unwrap();
        // The progress is kept at intervals.
        rt::sleep(Nanos::from_secs(2)).await;
        let mut writers = back.writers.lock().await;
        receiver.feed(&full[2]).await.unwrap();
        let committed = back.sync.committed.get();
        back.write_root(&mut writers, committed, false).await.unwrap();
    });
    drop(first);
    Runtime::simulated(8).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "l"]);
        let back = Pool::import(rack.host(1), &paths, "back", &options).await.unwrap();
        let token = back.get_volume("w").unwrap().resume_token.expect("a part was kept");
        receive(&back, &rests[&token], PLAIN).await.unwrap();
        assert!(content(&back.open_volume("w").unwrap()).await == truth);
        back.export().await.unwrap();
    });
}

// What could not be taken must come again, although its record was begun.
#[test]
fn a_stream_that_finds_no_room_goes_on_where_it_found_none() {
    Runtime::simulated(9).block_on(async {
        let (tank, full, _) = two_streams().await;
        let truth = snapshot_content(&tank, "v@a").await;
        let mut tokens = 0;
        for room in [40, 64, 70] {
            let back = target().await;
            let size_bytes = (back.free_blocks() - room) << 12;
            let filler = VolumeSpec { name: "f".into(), ..volume(size_bytes) };
            back.create_volume(&filler).await.unwrap();
            let (_, left) = receive(&back, &full, KEPT).await.unwrap_err();
            back.destroy_volume("f", false).await.unwrap();
            match left {
                LeftBy::Token(token) => {
                    tokens += 1;
                    let rest = resumed(&tank, token).await;
                    receive(&back, &rest, PLAIN).await.unwrap();
                }
                LeftBy::Nothing => {
                    receive(&back, &full, PLAIN).await.unwrap();
                }
                LeftBy::Part => panic!("it is either"),
            }
            assert!(content(&back.open_volume("w").unwrap()).await == truth, "{room} blocks");
            back.export().await.unwrap();
        }
        assert!(tokens > 0, "nothing was kept");
        tank.export().await.unwrap();
    });
}

// The task that undoes what a crash has left of the stream wants a turn at the same time.
#[test]
fn a_stream_that_goes_on_before_it_is_undone_comes_through() {
    let (full, truth, _) = stream();
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let (before, part) = (rack.clone(), full[..3].to_vec());
    let first = Runtime::simulated(10);
    first.block_on(async move {
        let back = make(before.host(1), "back").await;
        let mut receiver = back.receive("w", PLAIN);
        for chunk in &part {
            receiver.feed(chunk).await.unwrap();
        }
        back.sync().await.unwrap();
    });
    drop(first);
    Runtime::simulated(11).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "l"]);
        let back = Pool::import(rack.host(1), &paths, "back", &options).await.unwrap();
        let turn = back.admin.try_lock().expect("no task has had one");
        let receiving = rt::spawn({
            let back = back.clone();
            async move {
                let mut receiver = back.receive("w", PLAIN);
                for chunk in &full {
                    receiver.feed(chunk).await?;
                    rt::sleep(Nanos::from_millis(200)).await;
                }
                receiver.finish().await
            }
        });
        rt::sleep(Nanos::from_secs(1)).await;
        drop(turn);
        receiving.await.unwrap();
        assert!(content(&back.open_volume("w").unwrap()).await == truth);
        back.export().await.unwrap();
    });
}

// Nothing of the first stream is there, so the place alone does not tell them apart.
#[test]
fn an_interrupted_stream_goes_on_from_its_own_base_alone() {
    Runtime::simulated(12).block_on(async {
        let (tank, full, _) = two_streams().await;
        let v = tank.open_volume("v").unwrap();
        v.write(1 << 20, stamp(40 << 10, 9), false).await.unwrap();
        snapshot(&tank, "v@c").await;
        let own = sent(&tank, &since("a", "v@c")).await;
        let other = sent(&tank, &since("b", "v@c")).await;
        let back = target().await;
        receive(&back, &full, PLAIN).await.unwrap();
        let mut receiver = back.receive("w", KEPT);
        receiver.feed(&own[0]).await.unwrap();
        drop(receiver);
        let (error, _) = receive(&back, &other, KEPT).await.unwrap_err();
        assert!(matches!(error, TransferError::OtherPlace { .. }), "{error}");
        receive(&back, &own, KEPT).await.unwrap();
        same(&tank, &back, "c").await;
        back.export().await.unwrap();
        tank.export().await.unwrap();
    });
}

/// As many leaves of a map as are undone in several groups, and one block in each.
const LEAVES: u64 = 300;
const LEAF_BYTES: u64 = 2 << 20;

/// A stream of a volume with a block, and one that writes a block of each leaf.
fn wide_step() -> [Vec<Vec<u8>>; 2] {
    Runtime::simulated(13).block_on(async {
        let tank = make(Rack::new(&["a", "l"], 64 << 20).host(1), "tank").await;
        let v = VolumeSpec { sparse: true, ..volume(LEAVES * LEAF_BYTES) };
        tank.create_volume(&v).await.unwrap();
        let v = tank.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        for leaf in 0..LEAVES {
            v.write(leaf * LEAF_BYTES, stamp(4096, leaf + 2), false).await.unwrap();
        }
        snapshot(&tank, "v@b").await;
        drop(v);
        let streams = [sent(&tank, &whole("v@a")).await, sent(&tank, &since("a", "v@b")).await];
        tank.export().await.unwrap();
        streams
    })
}

/// Receives the second stream up to its end, and undoes it until `groups` were committed. Whether
/// that was the end of it.
async fn undo_for(rack: Rc<Rack>, [full, step]: [Vec<Vec<u8>>; 2], groups: u64) -> bool {
    let pace = |_: &str, operation: Operation, _: u64| {
        (operation == Operation::Write).then_some(Nanos::from_micros(100))
    };
    let back = make(paced(rack.host(1), pace), "back").await;
    receive(&back, &full, PLAIN).await.unwrap();
    let mut receiver = back.receive("w", PLAIN);
    for chunk in &step[..step.len() - 1] {
        receiver.feed(chunk).await.unwrap();
    }
    back.sync().await.unwrap();
    let before = back.sync.committed.get().0;
    let undoing = rt::spawn(async move { drop(receiver.give_up().await) });
    while !undoing.is_finished() && back.sync.committed.get().0 < before + groups {
        rt::sleep(Nanos::from_micros(10)).await;
    }
    undoing.is_finished()
}

#[test]
fn a_stream_that_a_crash_finds_half_undone_is_undone_after_it() {
    let streams = wide_step();
    let mut groups = 0;
    loop {
        groups += 1;
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let first = Runtime::simulated(14);
        let has_ended = first.block_on(undo_for(rack.clone(), streams.clone(), groups));
        drop(first);
        Runtime::simulated(15).block_on(async move {
            let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
            let back = Pool::import(rack.host(1), &paths, "back", &options).await.unwrap();
            rt::sleep(Nanos::from_secs(10)).await;
            let w = back.open_volume("w").unwrap();
            expect(&w, 0, &stamp(4096, 1)).await;
            for leaf in 1..LEAVES {
                expect(&w, leaf * LEAF_BYTES, &[0; 4096]).await;
            }
            drop(w);
            back.export().await.unwrap();
        });
        if has_ended {
            break;
        }
    }
    assert!(groups > 2, "{groups}: it was undone at once");
}

/// Gives a kept stream up while the group before its last part is committed; the power fails
/// after `changes`. Whether all changes came before that.
async fn give_up_beside_a_commit(rack: Rc<Rack>, full: Vec<Vec<u8>>, changes: u64) -> bool {
    let pace = |_: &str, operation: Operation, _: u64| {
        (operation == Operation::Write).then_some(Nanos::from_micros(100))
    };
    let back = make(paced(rack.host(1), pace), "back").await;
    let mut receiver = back.receive("w", KEPT);
    for chunk in &full[..2] {
        receiver.feed(chunk).await.unwrap();
    }
    let open = || back.dirty.groups.borrow().open_txg();
    let before = open();
    let syncing = rt::spawn({
        let back = back.clone();
        async move { back.sync().await }
    });
    while open() == before {
        rt::sleep(Nanos::from_micros(10)).await;
    }
    receiver.feed(&full[2]).await.unwrap();
    rack.switches.power.set(Some(changes));
    assert!(matches!(receiver.give_up().await, LeftBy::Token(_)));
    syncing.await.unwrap();
    rack.switches.power.get() != Some(0)
}

#[test]
fn a_stream_that_is_given_up_is_not_said_to_be_further_than_its_groups() {
    let (full, truth, rests) = stream();
    for changes in (0..).step_by(2) {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let first = Runtime::simulated(7131);
        let is_over = first.block_on(give_up_beside_a_commit(rack.clone(), full.clone(), changes));
        drop(first);
        rack.switches.power.set(None);
        let (truth, rests) = (truth.clone(), rests.clone());
        Runtime::simulated(7132).block_on(async move {
            let forced = ImportOptions { force: true, ..ImportOptions::default() };
            let paths = names(&["a", "l"]);
            let back = Pool::import(rack.host(1), &paths, "back", &forced).await.unwrap();
            let status = back.get_volume("w");
            if let Some(token) = status.and_then(|status| status.resume_token) {
                receive(&back, &rests[&token], PLAIN).await.unwrap();
                let w = back.open_volume("w").unwrap();
                assert!(content(&w).await == truth, "after {changes} changes");
            }
            back.export().await.unwrap();
        });
        if is_over {
            break;
        }
    }
}
