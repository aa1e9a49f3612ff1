//! A device over a store that fails, against a model, over crashes.

mod common;

use std::collections::BTreeMap;

use common::{fill, open, stormy, take};
use forebay_device::{BlockDevice, ErrorKind, IoBuf, ReservationChange, ReservationKey};
use forebay_objects::ObjectDevice;
use forebay_rt::Runtime;
use forebay_sim::{Bucket, Seed};
use forebay_units::BLOCK_BYTES;

/// What a block may hold: what was durable last, or anything written since.
struct Model {
    durable: BTreeMap<u64, u64>,
    since: BTreeMap<u64, Vec<u64>>,
    discarded: BTreeMap<u64, bool>,
}

/// Writes, discards, flushes and reads in a row, with crashes between, over a store that fails.
#[test]
fn a_device_is_as_a_model_says_over_crashes() {
    for seed in 0..12 {
        Runtime::simulated(seed).block_on(model_run(seed));
    }
}

async fn model_run(seed: u64) {
    const BLOCKS: u64 = 700;
    let mut rng = Seed(seed).derive("ops").rng();
    let bucket = Bucket::new(stormy(), Seed(seed));
    let mut model =
        Model { durable: BTreeMap::new(), since: BTreeMap::new(), discarded: BTreeMap::new() };
    let mut device = open(&bucket, 1).await;
    take(&device, 1, None).await;
    for stamp in 1..150u64 {
        // Labels, the border, and blocks behind it.
        let first = 200 + rng.below(BLOCKS);
        let blocks = 1 + rng.below(40);
        match rng.below(10) {
            0..5 => {
                let data = fill((blocks * BLOCK_BYTES) as usize, stamp);
                device.write(first * BLOCK_BYTES, data, false).await.unwrap();
                for at in 0..blocks {
                    model.since.entry(first + at).or_default().push((stamp << 20) + at + 1);
                }
            }
            5 => {
                device.discard(first * BLOCK_BYTES, blocks * BLOCK_BYTES, false).await.unwrap();
                for at in first..first + blocks {
                    model.discarded.insert(at, true);
                    model.since.entry(at).or_default().push(0);
                }
            }
            6 | 7 => {
                device.flush().await.unwrap();
                for (block, stamps) in std::mem::take(&mut model.since) {
                    model.durable.insert(block, *stamps.last().unwrap());
                }
            }
            8 => {
                drop(device);
                device = open(&bucket, 1).await;
                let key = ReservationKey(stamp);
                // A late request of the process before may come in between.
                while let Err(error) =
                    device.change_reservations(ReservationChange::Register { key }).await
                {
                    assert_eq!(error.kind, ErrorKind::ReservationConflict);
                    device = open(&bucket, 1).await;
                }
                check(&device, &mut model, true).await;
            }
            _ => check(&device, &mut model, false).await,
        }
    }
}

async fn check(device: &ObjectDevice, model: &mut Model, after_crash: bool) {
    let got = device.read(200 * BLOCK_BYTES, IoBuf::zeroed(800 * 4096)).await.unwrap();
    for (block, bytes) in (200u64..).zip(got.chunks(4096)) {
        let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(bytes.chunks(8).all(|word| word == found.to_le_bytes()), "block {block} is torn");
        let durable = model.durable.get(&block).copied().unwrap_or(0);
        let since = model.since.get(&block).cloned().unwrap_or_default();
        let is_right = match (after_crash, since.last()) {
            (true, _) => found == durable || since.contains(&found),
            (false, Some(last)) => found == *last,
            (false, None) => found == durable,
        };
        // What was discarded may hold anything that was there before.
        let may_be_old = model.discarded.contains_key(&block);
        assert!(
            is_right || may_be_old,
            "block {block} has {found:#x}, not {durable:#x} or {since:x?}"
        );
        if after_crash && found != durable {
            model.durable.insert(block, found);
        }
    }
    if after_crash {
        model.since.clear();
    }
}
