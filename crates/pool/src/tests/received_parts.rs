//! How far a stream is said to be, against what the main store has of it.

use std::collections::BTreeMap;

use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::names;
use super::rack::Rack;
use super::transfers::{
    KEPT, PLAIN, content, make, receive, resumed, snapshot_content, target, two_streams,
};
use crate::spec::ImportOptions;
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
