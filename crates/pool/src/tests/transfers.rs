//! Sending and receiving between two pools, and what is left of streams that do not come through.

use std::rc::Rc;

use forebay_device::{Device, IoBuf};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, memory};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::{
    LeftBy, Opener, Pool, ReceiveOptions, Received, SendOptions, TransferError, VolumeError,
};

const BLOCK: u64 = 4096;
pub(super) const KEPT: ReceiveOptions = ReceiveOptions { roll_back: false, is_resumable: true };
pub(super) const PLAIN: ReceiveOptions = ReceiveOptions { roll_back: false, is_resumable: false };

pub(super) async fn make(opener: Rc<dyn Opener>, name: &str) -> Rc<Pool> {
    Pool::create(opener, name, &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap()
}

/// A pool with a sparse volume.
async fn source(size_bytes: u64) -> (Rc<Pool>, Device) {
    let pool = make(memory(&["a", "l"], 64 << 20), "tank").await;
    pool.create_volume(&VolumeSpec { sparse: true, ..volume(size_bytes) }).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

pub(super) async fn target() -> Rc<Pool> {
    make(memory(&["a", "l"], 64 << 20), "back").await
}

pub(super) async fn snapshot(pool: &Pool, name: &str) {
    pool.take_snapshots(&[name.to_owned()]).await.unwrap();
}

pub(super) fn whole(snapshot: &str) -> SendOptions {
    SendOptions { snapshot: Some(snapshot.to_owned()), ..SendOptions::default() }
}

pub(super) fn since(base: &str, snapshot: &str) -> SendOptions {
    SendOptions { base: Some(base.to_owned()), ..whole(snapshot) }
}

/// The chunks of a stream: the first has what is before the first record as well.
async fn chunks(pool: &Rc<Pool>, options: &SendOptions) -> Result<Vec<Vec<u8>>, TransferError> {
    let mut sender = pool.send(options)?;
    let estimate = sender.estimate_bytes().await?;
    let mut all = Vec::new();
    while let Some(chunk) = sender.next().await? {
        all.push(chunk);
    }
    let len_bytes = all.iter().map(Vec::len).sum::<usize>() as u64;
    // What compression saves is not known before.
    assert!(len_bytes == estimate || options.is_as_stored && len_bytes < estimate);
    Ok(all)
}

pub(super) async fn sent(pool: &Rc<Pool>, options: &SendOptions) -> Vec<Vec<u8>> {
    chunks(pool, options).await.unwrap()
}

/// Receives a stream into volume `w`; what is left when it fails.
pub(super) async fn receive(
    pool: &Rc<Pool>,
    stream: &[Vec<u8>],
    options: ReceiveOptions,
) -> Result<Received, (TransferError, LeftBy)> {
    let mut receiver = pool.receive("w", options);
    let mut outcome = Ok(());
    for chunk in stream {
        outcome = receiver.feed(chunk).await;
        if outcome.is_err() {
            break;
        }
    }
    let outcome = match outcome {
        Ok(()) => receiver.finish().await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(received) => Ok(received),
        Err(error) => Err((error, receiver.give_up().await)),
    }
}

pub(super) async fn content(device: &Device) -> Vec<u8> {
    let size_bytes = device.geometry().size_bytes as usize;
    device.read(0, IoBuf::zeroed(size_bytes)).await.unwrap().to_vec()
}

pub(super) async fn snapshot_content(pool: &Rc<Pool>, name: &str) -> Vec<u8> {
    content(&pool.open_snapshot(name).unwrap()).await
}

pub(super) async fn same(source: &Rc<Pool>, target: &Rc<Pool>, snapshot: &str) {
    let sent = snapshot_content(source, &format!("v@{snapshot}")).await;
    assert!(
        sent == snapshot_content(target, &format!("w@{snapshot}")).await,
        "@{snapshot} differs"
    );
}

#[test]
fn a_chain_of_streams_makes_the_same_snapshots_in_other_pools() {
    Runtime::simulated(1).block_on(async {
        let (tank, v) = source(4 << 20).await;
        v.write(0, stamp(600 << 10, 1), false).await.unwrap();
        v.write(3 << 20, stamp(4096, 2), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        v.write(64 << 10, stamp(4096, 3), false).await.unwrap();
        v.discard(128 << 10, 64 << 10, false).await.unwrap();
        snapshot(&tank, "v@b").await;
        v.write(2 << 20, stamp(8192, 4), false).await.unwrap();
        snapshot(&tank, "v@c").await;
        let (back, far) = (target().await, target().await);
        let full = receive(&back, &sent(&tank, &whole("v@a")).await, PLAIN).await.unwrap();
        assert_eq!(full.name, "back/w@a");
        assert_eq!((full.data_bytes, full.hole_bytes), (604 << 10, (4 << 20) - (604 << 10)));
        let step = receive(&back, &sent(&tank, &since("a", "v@b")).await, PLAIN).await.unwrap();
        assert_eq!((step.data_bytes, step.hole_bytes), (4096, 64 << 10));
        // Over an intermediate snapshot, and from the second pool to a third.
        receive(&far, &sent(&tank, &whole("v@a")).await, PLAIN).await.unwrap();
        receive(&far, &sent(&tank, &since("a", "v@c")).await, PLAIN).await.unwrap();
        receive(&back, &sent(&tank, &since("b", "v@c")).await, PLAIN).await.unwrap();
        for name in ["a", "b", "c"] {
            same(&tank, &back, name).await;
        }
        same(&tank, &far, "c").await;
        let second = make(memory(&["a", "l"], 64 << 20), "third").await;
        receive(&second, &sent(&back, &whole("w@b")).await, PLAIN).await.unwrap();
        receive(&second, &sent(&tank, &since("b", "v@c")).await, PLAIN).await.unwrap();
        same(&tank, &second, "c").await;
        let created = |all: Vec<crate::status::SnapshotStatus>| -> Vec<u64> {
            all.iter().map(|s| s.created_at).collect()
        };
        assert_eq!(created(tank.list_snapshots().await), created(back.list_snapshots().await));
        // Holes are holes, and the volume is a volume like any other.
        let used = |pool: &Pool, name: &str| pool.get_volume(name).unwrap().referenced_bytes;
        assert_eq!(used(&back, "w"), used(&tank, "v"));
        let w = back.open_volume("w").unwrap();
        assert!(content(&w).await == snapshot_content(&tank, "v@c").await);
        w.write(0, stamp(4096, 9), true).await.unwrap();
        snapshot(&back, "w@own").await;
        for pool in [tank, back, far, second] {
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn a_stream_goes_only_onto_its_base_and_only_where_nothing_was_changed() {
    Runtime::simulated(2).block_on(async {
        let (tank, v) = source(4 << 20).await;
        for (at, name) in ["v@a", "v@b", "v@c"].iter().enumerate() {
            v.write(at as u64 * 8192, stamp(8192, at as u64), false).await.unwrap();
            snapshot(&tank, name).await;
        }
        let back = target().await;
        let full = sent(&tank, &whole("v@a")).await;
        let (ab, bc) =
            (sent(&tank, &since("a", "v@b")).await, sent(&tank, &since("b", "v@c")).await);
        let fails = async |stream: &[Vec<u8>], options| {
            let (error, left) = receive(&back, stream, options).await.unwrap_err();
            assert_eq!(left, LeftBy::Nothing, "{error}");
            error
        };
        let missing = fails(&ab, PLAIN).await;
        assert!(
            matches!(missing, TransferError::Volume(VolumeError::NotFound { .. })),
            "{missing}"
        );
        receive(&back, &full, PLAIN).await.unwrap();
        let exists = fails(&full, PLAIN).await;
        assert!(matches!(exists, TransferError::Volume(VolumeError::Exists { .. })), "{exists}");
        let other = fails(&bc, PLAIN).await;
        assert!(matches!(other, TransferError::OtherBase { .. }), "{other}");
        let w = back.open_volume("w").unwrap();
        w.write(1 << 20, stamp(4096, 7), false).await.unwrap();
        let modified = fails(&ab, PLAIN).await;
        assert!(matches!(modified, TransferError::Modified { .. }), "{modified}");
        expect(&w, 1 << 20, &stamp(4096, 7)).await;
        // A snapshot in between is as good as a change.
        snapshot(&back, "w@own").await;
        assert!(matches!(fails(&ab, PLAIN).await, TransferError::OtherBase { .. }));
        back.destroy_snapshots(&["w@own".to_owned()]).await.unwrap();
        let roll_back = ReceiveOptions { roll_back: true, ..PLAIN };
        receive(&back, &ab, roll_back).await.unwrap();
        same(&tank, &back, "b").await;
        assert!(w.read(0, IoBuf::zeroed(4096)).await.is_err(), "the old client lost it");
        // The name is taken.
        back.rename_snapshot("w@a", "c").await.unwrap();
        let taken = fails(&bc, PLAIN).await;
        assert!(matches!(taken, TransferError::Volume(VolumeError::SnapshotExists { .. })));
        back.rename_snapshot("w@c", "a").await.unwrap();
        receive(&back, &bc, PLAIN).await.unwrap();
        same(&tank, &back, "c").await;
        let older = chunks(&tank, &since("c", "v@b")).await.unwrap_err();
        assert!(matches!(older, TransferError::NotOlder { .. }), "{older}");
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_is_received_belongs_to_the_stream_alone() {
    Runtime::simulated(3).block_on(async {
        let (tank, v) = source(4 << 20).await;
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        v.write(0, stamp(1 << 20, 2), false).await.unwrap();
        snapshot(&tank, "v@b").await;
        let back = target().await;
        for (options, base) in [(whole("v@a"), None), (since("a", "v@b"), Some("w@a"))] {
            let stream = sent(&tank, &options).await;
            let mut receiver = back.receive("w", PLAIN);
            receiver.feed(&stream[0]).await.unwrap();
            receiver.feed(&stream[1]).await.unwrap();
            assert!(back.open_volume("w").is_none());
            assert!(back.get_volume("w").unwrap().is_receiving);
            let refused = |outcome: Result<(), VolumeError>| {
                let error = outcome.unwrap_err();
                assert!(
                    matches!(error, VolumeError::Receiving { is_underway: true, .. }),
                    "{error}"
                );
            };
            refused(back.take_snapshots(&names(&["w@own"])).await);
            refused(back.destroy_volume("w", true).await);
            refused(back.rename_volume("w", "x").await);
            refused(back.resize_volume("w", 8 << 20, false).await);
            refused(back.set_volume("w", "sync", "always").await);
            refused(back.abandon_receive("w").await);
            if let Some(base) = base {
                refused(back.roll_back_volume(base, true).await);
                refused(back.destroy_snapshots(&names(&[base])).await);
            }
            let (second, _) = receive(&back, &stream, PLAIN).await.unwrap_err();
            let TransferError::Volume(VolumeError::Receiving { is_underway: true, .. }) = second
            else {
                panic!("{second}");
            };
            for chunk in &stream[2..] {
                receiver.feed(chunk).await.unwrap();
            }
            receiver.finish().await.unwrap();
            assert!(back.open_volume("w").is_some());
        }
        same(&tank, &back, "b").await;
        let nothing = back.abandon_receive("w").await.unwrap_err();
        assert!(matches!(nothing, VolumeError::NotReceiving { .. }));
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

/// A source with snapshots `@a` and `@b`, and the streams of `@a` and from `@a` to `@b`.
pub(super) async fn two_streams() -> (Rc<Pool>, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (tank, v) = source(2 << 20).await;
    v.write(0, stamp(300 << 10, 1), false).await.unwrap();
    v.write(1 << 20, stamp(20 << 10, 2), false).await.unwrap();
    snapshot(&tank, "v@a").await;
    v.write(8192, stamp(280 << 10, 3), false).await.unwrap();
    v.discard(1 << 20, 8192, false).await.unwrap();
    v.write((1 << 20) + (64 << 10), stamp(4096, 4), false).await.unwrap();
    snapshot(&tank, "v@b").await;
    let (full, step) = (sent(&tank, &whole("v@a")).await, sent(&tank, &since("a", "v@b")).await);
    assert!(full.len() > 5 && step.len() > 5, "{} and {} records", full.len(), step.len());
    (tank, full, step)
}

#[test]
fn streams_that_are_cut_damaged_or_in_another_order_change_nothing() {
    Runtime::simulated(4).block_on(async {
        let (tank, full, step) = two_streams().await;
        let back = target().await;
        let damage = async |stream: &[Vec<u8>], is_there: bool| {
            let mut bad = Vec::new();
            for at in 0..stream.len() {
                bad.push((at, stream[..at].to_vec()));
                let mut cut = stream[..=at].to_vec();
                let half = cut[at].len() / 2;
                cut[at].truncate(half);
                bad.push((at, cut));
                let mut flipped = stream.to_vec();
                let last = flipped[at].len() - 1;
                flipped[at][last] ^= 4;
                bad.push((at, flipped));
                if at > 0 && at + 1 < stream.len() {
                    let mut swapped = stream.to_vec();
                    swapped.swap(at, at + 1);
                    bad.push((at, swapped));
                    let mut twice = stream.to_vec();
                    twice.insert(at, stream[at].clone());
                    bad.push((at + 1, twice));
                }
            }
            let before = back.volumes();
            for (record, bad) in bad {
                let (error, left) = receive(&back, &bad, PLAIN).await.unwrap_err();
                let TransferError::Stream(error) = error else { panic!("{error}") };
                let due = if record >= stream.len() { record - 1 } else { record };
                assert!(error.record == due as u64 || error.record + 1 == due as u64, "{error}");
                assert_eq!(left, LeftBy::Nothing);
                assert_eq!(back.open_volume("w").is_some(), is_there);
                let figures = |all: Vec<crate::status::VolumeStatus>| -> Vec<(String, u64, u64)> {
                    all.into_iter().map(|v| (v.name, v.written_bytes, v.referenced_bytes)).collect()
                };
                assert_eq!(figures(back.volumes()), figures(before.clone()), "{error}");
                if is_there {
                    let w = back.open_volume("w").unwrap();
                    assert!(content(&w).await == snapshot_content(&tank, "v@a").await, "{error}");
                }
            }
        };
        damage(&full, false).await;
        assert_eq!(back.summary().alloc_bytes, 0);
        receive(&back, &full, PLAIN).await.unwrap();
        damage(&step, true).await;
        receive(&back, &step, PLAIN).await.unwrap();
        same(&tank, &back, "b").await;
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

/// The rest of a stream, by the token of what is there.
pub(super) async fn resumed(tank: &Rc<Pool>, token: String) -> Vec<Vec<u8>> {
    sent(tank, &SendOptions { token: Some(token), ..SendOptions::default() }).await
}

#[test]
fn an_interrupted_stream_that_is_kept_goes_on_by_its_token() {
    Runtime::simulated(5).block_on(async {
        let (tank, full, step) = two_streams().await;
        for (stream, has_base) in [(&full, false), (&step, true)] {
            for cut in 2..stream.len() {
                let back = target().await;
                if has_base {
                    receive(&back, &full, PLAIN).await.unwrap();
                }
                let (_, left) = receive(&back, &stream[..cut], KEPT).await.unwrap_err();
                let LeftBy::Token(token) = left else { panic!("{left:?}") };
                let status = back.get_volume("w").unwrap();
                assert_eq!(status.resume_token.as_ref(), Some(&token));
                assert!(back.open_volume("w").is_none() && status.is_receiving);
                let partly = back.destroy_volume("w", true).await.unwrap_err();
                assert!(matches!(partly, VolumeError::Receiving { is_underway: false, .. }));
                let (anew, _) = receive(&back, stream, KEPT).await.unwrap_err();
                assert!(matches!(anew, TransferError::PartlyReceived { .. }), "{anew}");
                let rest = resumed(&tank, token.clone()).await;
                assert_eq!(rest.len(), stream.len() - cut + 1, "nothing comes twice");
                // Interrupted once more, at once: the token stays good.
                let (_, left) = receive(&back, &rest[..1], PLAIN).await.unwrap_err();
                assert_eq!(left, LeftBy::Token(token.clone()));
                receive(&back, &rest, PLAIN).await.unwrap();
                same(&tank, &back, if has_base { "b" } else { "a" }).await;
                let (over, _) = receive(&back, &rest, PLAIN).await.unwrap_err();
                assert!(matches!(over, TransferError::NothingToResume { .. }), "{over}");
                back.export().await.unwrap();
            }
        }
        let back = target().await;
        receive(&back, &full, PLAIN).await.unwrap();
        let (_, left) = receive(&back, &step[..3], KEPT).await.unwrap_err();
        assert!(matches!(left, LeftBy::Token(_)));
        back.abandon_receive("w").await.unwrap();
        let w = back.open_volume("w").unwrap();
        assert!(content(&w).await == snapshot_content(&tank, "v@a").await);
        // The token of another pool's snapshot, and a word that is none.
        for token in ["1-00000000-00".to_owned(), "x".to_owned()] {
            let options = SendOptions { token: Some(token), ..SendOptions::default() };
            assert_eq!(chunks(&tank, &options).await.unwrap_err(), TransferError::Token);
        }
        let LeftBy::Token(token) = left else { unreachable!() };
        tank.destroy_snapshots(&names(&["v@b"])).await.unwrap();
        let options = SendOptions { token: Some(token), ..SendOptions::default() };
        let gone = chunks(&tank, &options).await.unwrap_err();
        assert!(matches!(gone, TransferError::NoSource { .. }), "{gone}");
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_that_is_destroyed_while_it_is_sent_ends_the_stream() {
    Runtime::simulated(6).block_on(async {
        let (tank, v) = source(8 << 20).await;
        v.write(0, stamp(8 << 20, 1), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        snapshot(&tank, "v@b").await;
        for (options, gone) in [(since("a", "v@b"), "v@a"), (whole("v@b"), "v@b")] {
            v.write(0, stamp(8 << 20, 2), false).await.unwrap();
            let mut sender = tank.send(&options).unwrap();
            sender.next().await.unwrap();
            tank.destroy_snapshots(&names(&[gone])).await.unwrap();
            let error = sender.next().await.unwrap_err();
            assert!(matches!(error, TransferError::Gone { .. }), "{error}");
        }
        tank.export().await.unwrap();
    });
}

#[test]
fn streams_follow_writes_trims_and_new_sizes_drawn_at_random() {
    for seed in 0..12 {
        Runtime::simulated(seed).block_on(async move {
            let (tank, _) = source(6 << 20).await;
            let back = target().await;
            let mut before: Option<String> = None;
            for round in 0..8 {
                if round > 0 && rt::random_below(3) == 0 {
                    let size_bytes = (1 + rt::random_below(10)) << 20;
                    tank.resize_volume("v", size_bytes, true).await.unwrap();
                }
                let v = tank.open_volume("v").unwrap();
                let blocks = v.geometry().size_bytes / BLOCK;
                for _ in 0..rt::random_below(60) {
                    let first = rt::random_below(blocks);
                    let most = if rt::random_below(4) == 0 { 200 } else { 3 };
                    let len = (1 + rt::random_below(most)).min(blocks - first) * BLOCK;
                    if rt::random_below(4) == 0 {
                        v.discard(first * BLOCK, len, false).await.unwrap();
                    } else {
                        let data = stamp(len as usize, rt::random_u64());
                        v.write(first * BLOCK, data, rt::random_below(5) == 0).await.unwrap();
                    }
                }
                let name = format!("s{round}");
                snapshot(&tank, &format!("v@{name}")).await;
                let to = format!("v@{name}");
                let options = before.as_ref().map_or(whole(&to), |before| since(before, &to));
                let stream = sent(&tank, &options).await;
                if rt::random_below(3) == 0 && stream.len() > 2 {
                    let cut = 1 + rt::random_below(stream.len() as u64 - 1) as usize;
                    let _ = receive(&back, &stream[..cut], PLAIN).await.unwrap_err();
                }
                receive(&back, &stream, PLAIN).await.unwrap();
                same(&tank, &back, &name).await;
                let w = back.open_volume("w").unwrap();
                assert!(content(&w).await == snapshot_content(&tank, &to).await, "seed {seed}");
                before = Some(name);
            }
            for round in 0..8 {
                same(&tank, &back, &format!("s{round}")).await;
            }
            let referenced = |pool: &Pool, name| pool.get_volume(name).unwrap().referenced_bytes;
            assert_eq!(referenced(&back, "w"), referenced(&tank, "v"));
            tank.export().await.unwrap();
            back.export().await.unwrap();
        });
    }
}

/// Waits until what the last owner left is settled.
async fn settled(pool: &Rc<Pool>) -> bool {
    for _ in 0..100 {
        match pool.get_volume("w") {
            Some(status) if status.is_receiving && status.resume_token.is_none() => {
                rt::sleep(Nanos::from_millis(50)).await;
            }
            _ => return true,
        }
    }
    false
}

/// Receives `full` or, onto it, `step`; the power fails after `power` changes. Then the target is
/// imported and judged. Returns how many changes there were without a cut.
fn crash(streams: &Rc<Streams>, is_step: bool, options: ReceiveOptions, power: Option<u64>) -> u64 {
    let rack = Rack::new(&["a", "l"], 64 << 20);
    let (before, mine) = (rack.clone(), streams.clone());
    let first = Runtime::simulated(7);
    let changes = first.block_on(async move {
        let back = make(before.host(1), "back").await;
        if is_step {
            receive(&back, &mine.full, PLAIN).await.unwrap();
        }
        back.sync().await.unwrap();
        let begun = before.changes();
        before.switches.power.set(power);
        let stream = if is_step { &mine.step } else { &mine.full };
        let mut receiver = back.receive("w", options);
        for chunk in stream {
            if receiver.feed(chunk).await.is_err() {
                break;
            }
            // Groups are committed in the middle, and the progress is kept.
            let _ = back.sync().await;
            rt::sleep(Nanos::from_secs(3)).await;
        }
        let _ = receiver.finish().await;
        before.changes() - begun
    });
    drop(first);
    rack.switches.power.set(None);
    let mine = streams.clone();
    Runtime::simulated(8).block_on(async move {
        let forced = ImportOptions { force: true, ..ImportOptions::default() };
        let paths = names(&["a", "l"]);
        let back = Pool::import(rack.host(1), &paths, "back", &forced).await.unwrap();
        let context = || format!("step {is_step}, {options:?}, cut at {power:?}");
        assert!(settled(&back).await, "{}", context());
        let (stream, new) = if is_step { (&mine.step, "w@b") } else { (&mine.full, "w@a") };
        let truth = if is_step { &mine.b } else { &mine.a };
        let token = back.get_volume("w").and_then(|status| status.resume_token);
        if let Some(token) = token {
            assert!(options.is_resumable, "{}", context());
            assert!(back.open_volume("w").is_none());
            receive(&back, &mine.rest(&token), PLAIN).await.unwrap();
        }
        match back.open_snapshot(new) {
            Some(snapshot) => assert!(content(&snapshot).await == *truth, "{}", context()),
            None => {
                if is_step {
                    let w = back.open_volume("w").unwrap();
                    assert!(content(&w).await == mine.a, "{}", context());
                } else {
                    assert!(back.get_volume("w").is_none(), "{}", context());
                }
                receive(&back, stream, options).await.unwrap();
            }
        }
        let w = back.open_volume("w").unwrap();
        assert!(content(&w).await == *truth, "{}", context());
        assert!(content(&back.open_snapshot(new).unwrap()).await == *truth, "{}", context());
        back.export().await.unwrap();
    });
    changes
}

/// The streams of a source, and what its snapshots hold.
struct Streams {
    full: Vec<Vec<u8>>,
    step: Vec<Vec<u8>>,
    a: Vec<u8>,
    b: Vec<u8>,
    /// By the byte at which they begin: of the whole volume, and of the increment.
    rests: Vec<(String, Vec<Vec<u8>>)>,
}

impl Streams {
    fn rest(&self, token: &str) -> Vec<Vec<u8>> {
        let found = self.rests.iter().find(|(of, _)| of == token);
        found.unwrap_or_else(|| panic!("no stream of {token}")).1.clone()
    }
}

#[test]
fn a_crash_at_any_command_leaves_the_base_or_the_whole_or_what_can_go_on() {
    let streams = Runtime::simulated(6).block_on(async {
        let (tank, full, step) = two_streams().await;
        let (a, b) = (snapshot_content(&tank, "v@a").await, snapshot_content(&tank, "v@b").await);
        let mut rests = Vec::new();
        for (stream, has_base) in [(&full, false), (&step, true)] {
            for cut in 2..stream.len() {
                let back = target().await;
                if has_base {
                    receive(&back, &full, PLAIN).await.unwrap();
                }
                let (_, left) = receive(&back, &stream[..cut], KEPT).await.unwrap_err();
                let LeftBy::Token(token) = left else { panic!("{left:?}") };
                rests.push((token.clone(), resumed(&tank, token).await));
                back.export().await.unwrap();
            }
        }
        tank.export().await.unwrap();
        Rc::new(Streams { full, step, a, b, rests })
    });
    for (is_step, options) in [(false, PLAIN), (true, PLAIN), (false, KEPT), (true, KEPT)] {
        let changes = crash(&streams, is_step, options, None);
        assert!(changes > 30, "{changes} changes");
        // Every command is a crash point; one run visits every third, which differ by mode.
        let first = u64::from(is_step) + u64::from(options.is_resumable);
        for power in (first..changes).step_by(3) {
            crash(&streams, is_step, options, Some(power));
        }
    }
}
