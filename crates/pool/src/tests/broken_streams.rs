//! Streams that are cut short, refused, or come again: what is kept of them, and what is left.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_format::stream::{ResumeToken, StreamEncoder, StreamHeader};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::rack::{Rack, memory, paced};
use super::transfers::{
    KEPT, PLAIN, content, make, receive, resumed, same, sent, since, snapshot, snapshot_content,
    target, two_streams, whole,
};
use super::{expect, names, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::PoolEvent;
use crate::volume::Arrival;
use crate::{LeftBy, MAX_VOLUME_BYTES, Pool, ReceiveOptions, TransferError, VolumeError};

const ROLL_BACK: ReceiveOptions = ReceiveOptions { roll_back: true, is_resumable: false };

type Chunks = Vec<Vec<u8>>;

/// The streams of [`two_streams`], of which the second goes onto the first, and what they make.
fn streams() -> ([Chunks; 2], [Vec<u8>; 2]) {
    Runtime::simulated(7100).block_on(async {
        let (tank, full, step) = two_streams().await;
        let truths = [snapshot_content(&tank, "v@a").await, snapshot_content(&tank, "v@b").await];
        tank.export().await.unwrap();
        ([full, step], truths)
    })
}

async fn imported(rack: &Rc<Rack>) -> Rc<Pool> {
    let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
    Pool::import(rack.host(1), &paths, "back", &options).await.unwrap()
}

/// Receives parts of a stream, each in a group of its own and long after the one before. Then the
/// power fails.
fn cut_after(chunks: &[Vec<u8>], parts: &[Range<usize>], options: ReceiveOptions) -> Rc<Rack> {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let before = rack.clone();
    let parts: Vec<Chunks> = parts.iter().map(|part| chunks[part.clone()].to_vec()).collect();
    let first = Runtime::simulated(7101);
    first.block_on(async move {
        let back = make(before.host(1), "back").await;
        let mut receiver = back.receive("w", options);
        for part in parts {
            for chunk in &part {
                receiver.feed(chunk).await.unwrap();
            }
            back.sync().await.unwrap();
            rt::sleep(Nanos::from_secs(2)).await;
        }
    });
    drop(first);
    rack
}

#[test]
fn a_kept_stream_goes_on_after_a_crash_behind_the_last_group_that_was_told_of() {
    let ([full, _], _) = streams();
    // Data of 256 and 44 KiB, a hole, 20 KiB of data, and a hole to the end.
    let cases: [(&[Range<usize>], u64); 3] = [
        (&[0..3, 3..4], 300 << 10),
        (&[0..4, 4..5], 1 << 20),
        (&[0..3, 3..5, 5..6], (1 << 20) + (20 << 10)),
    ];
    for (parts, due_bytes) in cases {
        let rack = cut_after(&full, parts, KEPT);
        Runtime::simulated(7102).block_on(async move {
            let back = imported(&rack).await;
            // What the task after an import undoes is undone by then.
            for wait_secs in [0, 10] {
                rt::sleep(Nanos::from_secs(wait_secs)).await;
                let token = back.get_volume("w").unwrap().resume_token.expect("a part is kept");
                assert_eq!(ResumeToken::parse(&token).unwrap().start_bytes, due_bytes);
            }
            back.export().await.unwrap();
        });
    }
}

#[test]
fn a_stream_that_was_not_to_be_kept_begins_anew_after_a_crash() {
    let ([full, _], [truth, _]) = streams();
    let rack = cut_after(&full, &[0..3, 3..4, 4..5], PLAIN);
    Runtime::simulated(7103).block_on(async move {
        let back = imported(&rack).await;
        let turn = back.admin.try_lock().expect("no task has had one");
        let receiving = rt::spawn({
            let back = back.clone();
            async move { receive(&back, &full, PLAIN).await }
        });
        rt::sleep(Nanos::from_secs(1)).await;
        drop(turn);
        receiving.await.unwrap();
        assert!(content(&back.open_volume("w").unwrap()).await == truth);
        back.export().await.unwrap();
    });
}

#[test]
fn a_stream_that_goes_on_is_kept_if_it_was_or_is_to_be() {
    Runtime::simulated(7104).block_on(async {
        let (tank, full, _) = two_streams().await;
        let back = target().await;
        let token = |left: LeftBy| match left {
            LeftBy::Token(token) => token,
            left => panic!("{left:?}"),
        };
        let first = token(receive(&back, &full[..2], KEPT).await.unwrap_err().1);
        let rest = resumed(&tank, first.clone()).await;
        let second = token(receive(&back, &rest[..2], KEPT).await.unwrap_err().1);
        assert_ne!(first, second);
        receive(&back, &resumed(&tank, second).await, PLAIN).await.unwrap();
        same(&tank, &back, "a").await;
        // One of which nothing was to be kept comes again.
        let other = target().await;
        let mut receiver = other.receive("w", PLAIN);
        receiver.feed(&full[0]).await.unwrap();
        other.volume_named("w").unwrap().arrival.set(Arrival::Interrupted);
        drop(receiver);
        let third = token(receive(&other, &full[..3], KEPT).await.unwrap_err().1);
        receive(&other, &resumed(&tank, third).await, PLAIN).await.unwrap();
        same(&tank, &other, "a").await;
    });
}

// The volume goes back to its base and gets the size of the snapshot that comes.
#[test]
fn a_stream_that_comes_again_makes_the_same_however_far_the_first_one_got() {
    let mut parts = 0;
    for at_ms in 0..60 {
        let left = Runtime::simulated(7105).block_on(async move {
            let (tank, full, _) = two_streams().await;
            tank.resize_volume("v", 3 << 20, true).await.unwrap();
            let v = tank.open_volume("v").unwrap();
            v.write(5 << 19, stamp(8192, 5), false).await.unwrap();
            snapshot(&tank, "v@c").await;
            let step = sent(&tank, &since("a", "v@c")).await;
            let shelf = paced(memory(&["a", "l"], 64 << 20), |_, _, _| Some(Nanos::from_millis(1)));
            let back = make(shelf, "back").await;
            receive(&back, &full, PLAIN).await.unwrap();
            let w = back.open_volume("w").unwrap();
            w.write(3 << 19, stamp(8192, 7), false).await.unwrap();
            let mut receiver = back.receive("w", ROLL_BACK);
            let feeding = Box::pin(receiver.feed(&step[0]));
            let _ = rt::timeout(Nanos::from_millis(at_ms), feeding).await;
            let left = receiver.give_up().await;
            receive(&back, &step, ROLL_BACK).await.unwrap();
            same(&tank, &back, "c").await;
            let w = back.open_volume("w").unwrap();
            assert!(content(&w).await == snapshot_content(&tank, "v@c").await, "{at_ms} ms");
            for pool in [tank, back] {
                pool.export().await.unwrap();
            }
            left
        });
        parts += u64::from(left == LeftBy::Part);
    }
    assert!(parts > 5, "{parts} were given up halfway");
}

#[test]
fn streams_of_which_nothing_was_taken_leave_nothing() {
    Runtime::simulated(7106).block_on(async {
        let (tank, full, _) = two_streams().await;
        let back = target().await;
        let (_, left) = receive(&back, &full[..1], KEPT).await.unwrap_err();
        assert_eq!(left, LeftBy::Nothing);
        assert!(back.get_volume("w").is_none());
        let (_, left) = receive(&back, &full[..3], KEPT).await.unwrap_err();
        assert!(matches!(left, LeftBy::Token(_)));
        // What is kept there is not of these.
        let kept = back.get_volume("w").unwrap().resume_token;
        for stream in [&full[..], &[b"no stream at all".to_vec()]] {
            let (_, left) = receive(&back, stream, KEPT).await.unwrap_err();
            assert_eq!(left, LeftBy::Nothing);
        }
        assert_eq!(back.get_volume("w").unwrap().resume_token, kept);
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

/// A whole stream of a volume that has only holes.
fn stream_of(size_bytes: u64, snapshot: &str) -> Chunks {
    let header = StreamHeader {
        pool_guid: 7,
        guid: 9,
        base_guid: 0,
        created_at: 1,
        size_bytes,
        start_bytes: 0,
        is_as_stored: false,
        snapshot: snapshot.into(),
        source: "tank/v".into(),
        base: String::new(),
    };
    let (mut encoder, first) = StreamEncoder::begin(&header);
    let mut all = vec![first];
    if size_bytes > 0 {
        all.push(encoder.hole(0, size_bytes));
    }
    all.push(encoder.end());
    all
}

#[test]
fn volumes_that_no_command_would_make_are_not_received() {
    Runtime::simulated(7107).block_on(async {
        let back = target().await;
        let good = stream_of(1 << 20, "a");
        let bad = [
            ("w", stream_of(0, "a")),
            ("w", stream_of(2 * MAX_VOLUME_BYTES, "a")),
            ("w", stream_of(1 << 20, "a b")),
            ("w", stream_of(1 << 20, "a@b")),
            ("w@x", good.clone()),
            ("", good.clone()),
        ];
        for (name, stream) in bad {
            let mut receiver = back.receive(name, PLAIN);
            receiver.feed(&stream[0]).await.unwrap_err();
            assert_eq!(receiver.give_up().await, LeftBy::Nothing);
        }
        back.sync.version.set(6);
        let (error, _) = receive(&back, &good, PLAIN).await.unwrap_err();
        let TransferError::Volume(VolumeError::OldFormat { version: 6, needed: 7, .. }) = error
        else {
            panic!("{error}");
        };
        assert!(back.volumes().is_empty());
        back.upgrade().await.unwrap();
        receive(&back, &good, PLAIN).await.unwrap();
        back.export().await.unwrap();
    });
}

#[test]
fn other_snapshots_stay_the_operators_while_a_stream_arrives() {
    Runtime::simulated(7108).block_on(async {
        let (tank, full, step) = two_streams().await;
        tank.open_volume("v").unwrap().write(0, stamp(8192, 8), false).await.unwrap();
        snapshot(&tank, "v@c").await;
        let last = sent(&tank, &since("b", "v@c")).await;
        let back = target().await;
        receive(&back, &full, PLAIN).await.unwrap();
        receive(&back, &step, PLAIN).await.unwrap();
        let mut receiver = back.receive("w", KEPT);
        for chunk in &last[..2] {
            receiver.feed(chunk).await.unwrap();
        }
        back.destroy_snapshots(&names(&["w@a"])).await.unwrap();
        // The name that the stream brings is taken.
        let taken = back.rename_snapshot("w@b", "c").await;
        assert!(matches!(taken, Err(VolumeError::Receiving { is_underway: true, .. })));
        back.rename_snapshot("w@b", "base").await.unwrap();
        for chunk in &last[2..] {
            receiver.feed(chunk).await.unwrap();
        }
        receiver.finish().await.unwrap();
        same(&tank, &back, "c").await;
        let all: Vec<String> = back.list_snapshots().await.into_iter().map(|s| s.name).collect();
        assert_eq!(all, ["back/w@base", "back/w@c"]);
        back.rename_snapshot("w@c", "last").await.unwrap();
        back.rename_snapshot("w@base", "c").await.unwrap();
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

/// A volume of a gibibyte with these blocks, and then with another first one.
async fn far_apart(blocks: &[u64]) -> [Chunks; 2] {
    let tank = make(memory(&["a", "l"], 64 << 20), "tank").await;
    let wide = VolumeSpec { sparse: true, ..volume(1 << 30) };
    tank.create_volume(&wide).await.unwrap();
    let v = tank.open_volume("v").unwrap();
    for at in blocks {
        v.write(*at, stamp(4096, *at), false).await.unwrap();
    }
    snapshot(&tank, "v@a").await;
    v.write(blocks[0], stamp(4096, 1), false).await.unwrap();
    snapshot(&tank, "v@b").await;
    let streams = [sent(&tank, &whole("v@a")).await, sent(&tank, &since("a", "v@b")).await];
    drop(v);
    tank.export().await.unwrap();
    streams
}

#[test]
fn clients_keep_a_volume_that_a_stream_does_not_fit() {
    const FAR: u64 = 900 << 20;
    // In the middle of what the map says is a hole, and in its last block.
    for (blocks, dirty) in [(&[0, FAR][..], 850 << 20), (&[FAR][..], FAR - 4096)] {
        Runtime::simulated(7109).block_on(async move {
            let [full, step] = far_apart(blocks).await;
            let back = target().await;
            receive(&back, &full, PLAIN).await.unwrap();
            let w = back.open_volume("w").unwrap();
            w.write(dirty, stamp(4096, 3), false).await.unwrap();
            let is_cut_off = Rc::new(Cell::new(false));
            for (options, fits) in [(PLAIN, false), (ROLL_BACK, true)] {
                let told = is_cut_off.clone();
                let mut receiver = back.receive("w", options).with_cut_off(move || told.set(true));
                let outcome = receiver.feed(&step[0]).await;
                assert_eq!((outcome.is_ok(), is_cut_off.get()), (fits, fits), "{outcome:?}");
                if !fits {
                    assert!(matches!(outcome, Err(TransferError::Modified { .. })));
                    expect(&w, dirty, &stamp(4096, 3)).await;
                }
                receiver.give_up().await;
            }
            expect(&back.open_volume("w").unwrap(), dirty, &[0; 4096]).await;
            drop(w);
            back.export().await.unwrap();
        });
    }
}

// However many steps it takes to look at it.
#[test]
fn a_hole_is_one_record() {
    Runtime::simulated(7110).block_on(async {
        let [full, _] = far_apart(&[0]).await;
        assert_eq!(full.len(), 4, "the first record, the block, the hole and the end");
    });
}

#[test]
fn a_stream_that_was_received_is_whole_at_once_after_a_crash() {
    let ([full, _], [truth, _]) = streams();
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let before = rack.clone();
    let first = Runtime::simulated(7111);
    first.block_on(async move {
        let back = make(before.host(1), "back").await;
        receive(&back, &full, PLAIN).await.unwrap();
    });
    drop(first);
    Runtime::simulated(7112).block_on(async move {
        let back = imported(&rack).await;
        let w = back.open_volume("w").expect("it is whole");
        assert!(content(&w).await == truth);
        drop(w);
        back.export().await.unwrap();
    });
}

// The crash comes between the root that has the snapshot and the one that calls the volume whole.
#[test]
fn a_stream_whose_snapshot_is_in_a_root_is_whole_after_a_crash() {
    let (streams, truths) = streams();
    for last in [0, 1] {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let (before, streams) = (rack.clone(), streams.clone());
        let name = ["a", "b"][last];
        let first = Runtime::simulated(7113);
        first.block_on(async move {
            let back = make(before.host(1), "back").await;
            for stream in &streams[..last] {
                receive(&back, stream, PLAIN).await.unwrap();
            }
            let mut receiver = back.receive("w", PLAIN);
            for chunk in &streams[last] {
                receiver.feed(chunk).await.unwrap();
            }
            let new = [(back.volume_named("w").unwrap(), name.to_owned())];
            back.take_new_snapshots(&new, 77).await.unwrap();
        });
        drop(first);
        let truth = truths[last].clone();
        Runtime::simulated(7114).block_on(async move {
            let back = imported(&rack).await;
            rt::sleep(Nanos::from_secs(10)).await;
            let w = back.open_volume("w").expect("it is whole");
            assert!(content(&w).await == truth);
            drop(w);
            assert!(snapshot_content(&back, &format!("w@{name}")).await == truth);
            back.export().await.unwrap();
        });
    }
}

#[test]
fn a_stream_that_cannot_be_undone_after_a_crash_is_told_of() {
    let ([full, _], _) = streams();
    let rack = cut_after(&full, &[0..2, 2..3], PLAIN);
    Runtime::simulated(7115).block_on(async move {
        let back = imported(&rack).await;
        let turn = back.admin.try_lock().expect("no task has had one");
        rack.switches.works_for.set(Some(0));
        drop(turn);
        rt::sleep(Nanos::from_secs(10)).await;
        let events = back.events();
        let is_one = |event: &PoolEvent| {
            matches!(event, PoolEvent::StreamNotUndone { volume, .. } if volume == "back/w")
        };
        assert!(events.iter().any(is_one), "{events:?}");
        rack.switches.works_for.set(None);
        let _ = back.end().await;
    });
}
