//! Streams in which compressed and shared blocks travel as they are.

use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_format::receiving::{RECEIVED, ReceivedGuids};
use forebay_format::stream::{StreamEncoder, StreamFlaw, StreamHeader};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{BLOCK_LEN, Nanos};

use super::transfers::{PLAIN, receive, same, sent, since, snapshot, target, whole};
use super::{spec, stamp, volume};
use crate::spec::VolumeSpec;
use crate::tests::rack::memory;
use crate::volume::Arrival;
use crate::{LeftBy, Pool, ReceiveOptions, SendOptions, TransferError};

fn stored(options: SendOptions) -> SendOptions {
    SendOptions { is_as_stored: true, ..options }
}

fn len(stream: &[Vec<u8>]) -> usize {
    stream.iter().map(Vec::len).sum()
}

/// Blocks of which a half has no pattern.
fn halves(seed: u64, blocks: usize) -> IoBytes {
    let mut data = stamp(blocks * BLOCK_LEN, seed << 32).to_vec();
    for block in data.chunks_mut(BLOCK_LEN) {
        block[BLOCK_LEN / 2..].fill(seed as u8);
    }
    IoBuf::copy_of(&data).freeze()
}

async fn source(properties: &[(&str, &str)]) -> (Rc<Pool>, Device) {
    let spec = spec(forebay_units::Layout::Raid0, &["a"], &["l"]);
    let pool = Pool::create(memory(&["a", "l"], 64 << 20), "tank", &spec).await.unwrap();
    let properties = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let v = VolumeSpec { sparse: true, properties: properties.collect(), ..volume(8 << 20) };
    pool.create_volume(&v).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    (pool, v)
}

#[test]
fn compressed_blocks_travel_as_they_are() {
    for codec in ["lz4", "zstd-1"] {
        Runtime::simulated(1).block_on(async {
            let (tank, v) = source(&[("compression", codec)]).await;
            v.write(0, halves(1, 256), false).await.unwrap();
            v.write(2 << 20, stamp(64 << 10, 2), false).await.unwrap();
            snapshot(&tank, "v@a").await;
            // Parts of units, units of one block, and a hole within one.
            v.write(3 * 4096, halves(3, 7), false).await.unwrap();
            v.write(200 * 4096, halves(4, 1), false).await.unwrap();
            v.discard(101 * 4096, 4096, false).await.unwrap();
            snapshot(&tank, "v@b").await;
            let back = target().await;
            let plain = sent(&tank, &whole("v@a")).await;
            let packed = sent(&tank, &stored(whole("v@a"))).await;
            assert!(len(&packed) * 10 < len(&plain) * 7, "{} of {}", len(&packed), len(&plain));
            receive(&back, &packed, PLAIN).await.unwrap();
            let step = sent(&tank, &stored(since("a", "v@b"))).await;
            receive(&back, &step, PLAIN).await.unwrap();
            same(&tank, &back, "a").await;
            same(&tank, &back, "b").await;
            let far = target().await;
            receive(&far, &sent(&tank, &stored(whole("v@b"))).await, PLAIN).await.unwrap();
            same(&tank, &far, "b").await;
        });
    }
}

#[test]
fn shared_contents_travel_once() {
    for properties in [&[("dedup", "on")][..], &[("dedup", "on"), ("compression", "lz4")]] {
        Runtime::simulated(2).block_on(async {
            let (tank, v) = source(properties).await;
            let image = stamp(1 << 20, 7);
            for copy in 0..5 {
                v.write(copy << 20, image.clone(), false).await.unwrap();
            }
            v.write(2 << 20, halves(8, 16), false).await.unwrap();
            snapshot(&tank, "v@a").await;
            v.write((6 << 20) + 4096, image.slice(64 << 10, 512 << 10), false).await.unwrap();
            v.write(6 << 20, image.slice(0, 4096), false).await.unwrap();
            v.write(7 << 20, image.clone(), false).await.unwrap();
            snapshot(&tank, "v@b").await;
            let back = target().await;
            let packed = sent(&tank, &stored(whole("v@a"))).await;
            assert!(len(&packed) < (5 << 20) / 4, "{} bytes", len(&packed));
            if properties.len() == 1 {
                let sender = tank.send(&stored(whole("v@a"))).unwrap();
                let estimate = sender.estimate_bytes().await.unwrap();
                assert_eq!(estimate, len(&packed) as u64, "nothing is compressed");
            }
            receive(&back, &packed, PLAIN).await.unwrap();
            let step = sent(&tank, &stored(since("a", "v@b"))).await;
            assert!(len(&step) < (3 << 20) / 2, "{} bytes", len(&step));
            receive(&back, &step, PLAIN).await.unwrap();
            same(&tank, &back, "a").await;
            same(&tank, &back, "b").await;
        });
    }
}

#[test]
fn an_interrupted_stream_goes_on_as_stored() {
    Runtime::simulated(3).block_on(async {
        let (tank, v) = source(&[("dedup", "on"), ("compression", "zstd-1")]).await;
        for copy in 0..6 {
            v.write(copy << 20, halves(1 + copy % 2, 256), false).await.unwrap();
        }
        snapshot(&tank, "v@a").await;
        let back = target().await;
        let all = sent(&tank, &stored(whole("v@a"))).await;
        let kept = ReceiveOptions { is_resumable: true, ..PLAIN };
        let mut at = 1;
        while at < all.len() {
            let mut receiver = back.receive("w", kept);
            for record in &all[..all.len().min(at)] {
                receiver.feed(record).await.unwrap();
            }
            let LeftBy::Token(token) = receiver.give_up().await else {
                at += 1;
                continue;
            };
            let options = SendOptions { token: Some(token), ..SendOptions::default() };
            let rest = sent(&tank, &stored(options)).await;
            receive(&back, &rest, kept).await.unwrap();
            same(&tank, &back, "a").await;
            back.destroy_volume("w", true).await.unwrap();
            at += all.len() / 4 + 1;
        }
    });
}

#[test]
fn units_that_cannot_be_decompressed_change_nothing() {
    Runtime::simulated(4).block_on(async {
        let back = target().await;
        let header = StreamHeader {
            pool_guid: 7,
            guid: 9,
            base_guid: 0,
            created_at: 1,
            size_bytes: 1 << 20,
            start_bytes: 0,
            is_as_stored: true,
            snapshot: "a".into(),
            source: "tank/v".into(),
            base: String::new(),
        };
        let (mut encoder, first) = StreamEncoder::begin(&header);
        let mut stream = vec![first, encoder.data(0, &[7; 4096])];
        // LZ4 that refers to what is before its beginning.
        stream.push(encoder.units(4096, 4096, &[1, 1, 4, 0, 0x0f, 9, 0, 0]));
        stream.push(encoder.hole(8192, (1 << 20) - 8192));
        stream.push(encoder.end());
        let (error, left) = receive(&back, &stream, PLAIN).await.unwrap_err();
        let TransferError::Stream(error) = error else { panic!("{error}") };
        assert_eq!((error.record, error.flaw), (2, StreamFlaw::Units));
        assert_eq!(error.offset_bytes, (stream[0].len() + stream[1].len()) as u64);
        assert_eq!(left, LeftBy::Nothing);
        assert!(back.volumes().is_empty());
    });
}

#[test]
fn a_volume_keeps_the_identities_of_the_snapshots_that_it_has() {
    Runtime::simulated(5).block_on(async {
        let (tank, v) = source(&[]).await;
        let back = target().await;
        let kept = || {
            let w = back.volume_named("w").unwrap();
            ReceivedGuids::parse(&w.property(RECEIVED).unwrap_or_default()).0.len()
        };
        let mut before: Option<String> = None;
        for round in 0..6 {
            v.write(round << 20, halves(round, 16), false).await.unwrap();
            let name = format!("s{round}");
            let to = format!("v@{name}");
            snapshot(&tank, &to).await;
            let options = before.as_ref().map_or(whole(&to), |before| since(before, &to));
            receive(&back, &sent(&tank, &options).await, PLAIN).await.unwrap();
            if let Some(before) = before {
                back.destroy_snapshots(&[format!("w@{before}")]).await.unwrap();
                while back.snapshots.has_dying() {
                    rt::sleep(Nanos::from_millis(20)).await;
                }
            }
            assert!(kept() <= 2, "{} after {round}", kept());
            before = Some(name);
        }
        same(&tank, &back, "s5").await;
    });
}

#[test]
fn a_stream_of_which_nothing_is_kept_may_come_again() {
    Runtime::simulated(6).block_on(async {
        let (tank, v) = source(&[]).await;
        v.write(0, halves(1, 256), false).await.unwrap();
        snapshot(&tank, "v@a").await;
        let stream = sent(&tank, &whole("v@a")).await;
        let back = target().await;
        let mut first = back.receive("w", PLAIN);
        first.feed(&stream[0]).await.unwrap();
        // As when it could not be undone.
        let w = back.volume_named("w").unwrap();
        w.arrival.set(Arrival::Interrupted);
        receive(&back, &stream, PLAIN).await.unwrap();
        same(&tank, &back, "a").await;
    });
}
