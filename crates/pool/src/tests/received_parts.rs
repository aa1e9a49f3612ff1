//! How far a stream is said to be, against what the main store has of it.

use std::collections::BTreeMap;

use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::rack::Rack;
use super::transfers::{
    KEPT, PLAIN, content, make, receive, resumed, same, sent, since, snapshot, snapshot_content,
    target, two_streams,
};
use super::{names, stamp, volume};
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
