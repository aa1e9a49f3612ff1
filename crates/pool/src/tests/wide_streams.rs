//! Streams of volumes that are nearly all holes.

use std::collections::{BTreeMap, BTreeSet};

use forebay_device::{Device, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::transfers::{PLAIN, make, receive, sent, since, snapshot, target, whole};
use super::{expect, names, stamp, volume};
use crate::Pool;
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::tests::rack::{Rack, memory, paced};

const BLOCK: u64 = 4096;
/// The largest volume.
const SIZE: u64 = 1 << 50;
const CHANGES: usize = 12;

/// What was written, by block; blocks that are not here are holes.
type Model = BTreeMap<u64, u64>;

/// Writes blocks that may lie anywhere, and mostly near those that were written before; trims
/// blocks that were written, or lie near some.
async fn change(v: &Device, model: &mut Model) {
    for _ in 0..CHANGES {
        let blocks = SIZE / BLOCK;
        let near = model.keys().nth(rt::random_below(model.len() as u64 + 1) as usize).copied();
        let at = match (near, rt::random_below(4)) {
            (Some(near), 1..) => (near + rt::random_below(1100)).saturating_sub(550) % blocks,
            (_, 0) => blocks - 1 - rt::random_below(3),
            _ => rt::random_below(blocks),
        };
        if rt::random_below(3) == 0 {
            let at = near.filter(|_| rt::random_below(2) == 0).unwrap_or(at);
            v.discard(at * BLOCK, BLOCK, false).await.unwrap();
            model.remove(&at);
        } else {
            let salt = rt::random_below(1 << 40);
            v.write(at * BLOCK, stamp(BLOCK as usize, salt), false).await.unwrap();
            model.insert(at, salt);
        }
    }
}

async fn holds(device: &Device, model: &Model, touched: &BTreeSet<u64>) {
    for at in touched {
        let wanted = match model.get(at) {
            Some(salt) => stamp(BLOCK as usize, *salt).to_vec(),
            None => vec![0; BLOCK as usize],
        };
        expect(device, at * BLOCK, &wanted).await;
    }
}

// Looked at step by step, a petabyte took minutes.
#[test]
fn streams_of_a_petabyte_of_holes_have_the_blocks_between_them() {
    for seed in 0..6 {
        Runtime::simulated(300 + seed).block_on(async move {
            let tank = make(memory(&["a", "l"], 64 << 20), "tank").await;
            let mut model = Model::new();
            if seed % 2 == 0 {
                let wide = VolumeSpec { sparse: true, ..volume(SIZE) };
                tank.create_volume(&wide).await.unwrap();
            } else {
                // The volume is a clone, and has most of its blocks from another one.
                let origin = VolumeSpec { sparse: true, name: "o".into(), ..volume(SIZE) };
                tank.create_volume(&origin).await.unwrap();
                change(&tank.open_volume("o").unwrap(), &mut model).await;
                snapshot(&tank, "o@x").await;
                let clone = CloneSpec { name: "v".into(), properties: BTreeMap::new() };
                tank.clone_snapshot("o@x", &clone).await.unwrap();
                change(&tank.open_volume("o").unwrap(), &mut Model::new()).await;
            }
            let v = tank.open_volume("v").unwrap();
            let back = target().await;
            let mut models: Vec<Model> = Vec::new();
            for step in 0..4 {
                change(&v, &mut model).await;
                snapshot(&tank, &format!("v@{step}")).await;
                models.push(model.clone());
            }
            for step in 0..4 {
                let stream = match step {
                    0 => sent(&tank, &whole("v@0")).await,
                    _ => sent(&tank, &since(&(step - 1).to_string(), &format!("v@{step}"))).await,
                };
                let bytes: usize = stream.iter().map(Vec::len).sum();
                assert!(bytes < 40 * (BLOCK as usize + 200), "{bytes} bytes");
                receive(&back, &stream, PLAIN).await.unwrap();
            }
            let touched: BTreeSet<u64> = models.iter().flat_map(|m| m.keys().copied()).collect();
            for (step, model) in models.iter().enumerate() {
                holds(&tank.open_snapshot(&format!("v@{step}")).unwrap(), model, &touched).await;
                holds(&back.open_snapshot(&format!("w@{step}")).unwrap(), model, &touched).await;
            }
            tank.export().await.unwrap();
            back.export().await.unwrap();
        });
    }
}

// The clients of the volume have it until the comparison with the base is done.
#[test]
fn what_is_written_while_an_increment_begins_is_in_no_received_snapshot() {
    const APART: u64 = 256 << 20;
    for seed in 0..40 {
        Runtime::simulated(400 + seed).block_on(async move {
            let tank = make(memory(&["a", "l"], 64 << 20), "tank").await;
            let wide = VolumeSpec { sparse: true, ..volume(SIZE) };
            tank.create_volume(&wide).await.unwrap();
            let v = tank.open_volume("v").unwrap();
            for at in 0..300 {
                v.write(at * APART, stamp(BLOCK as usize, at), false).await.unwrap();
            }
            snapshot(&tank, "v@a").await;
            v.write(APART, stamp(BLOCK as usize, 1000), false).await.unwrap();
            snapshot(&tank, "v@b").await;
            let back = target().await;
            receive(&back, &sent(&tank, &whole("v@a")).await, PLAIN).await.unwrap();
            let increment = sent(&tank, &since("a", "v@b")).await;
            let w = back.open_volume("w").unwrap();
            let writing = rt::spawn(async move {
                for _ in 0..rt::random_below(12) {
                    rt::yield_now().await;
                }
                w.write(0, stamp(BLOCK as usize, 2000), true).await
            });
            let received = receive(&back, &increment, PLAIN).await;
            let written = writing.await;
            assert!(received.is_ok() != written.is_ok(), "{received:?}, {written:?}");
            let w = back.open_volume("w").unwrap();
            let first = if written.is_ok() { 2000 } else { 0 };
            expect(&w, 0, &stamp(BLOCK as usize, first)).await;
            let second = if received.is_ok() { 1000 } else { 1 };
            expect(&w, APART, &stamp(BLOCK as usize, second)).await;
            if received.is_ok() {
                let b = back.open_snapshot("w@b").unwrap();
                expect(&b, 0, &stamp(BLOCK as usize, 0)).await;
            }
        });
    }
}

// That takes several groups, and the power may fail between two of them.
#[test]
fn an_increment_that_is_undone_is_hidden_until_all_of_it_is_gone() {
    const APART: u64 = 256 << 20;
    const BLOCKS: u64 = 300;
    for step in 0..20 {
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let before = rack.clone();
        let first = Runtime::simulated(500 + step);
        first.block_on(async move {
            let tank = make(memory(&["a", "l"], 64 << 20), "tank").await;
            let wide = VolumeSpec { sparse: true, ..volume(SIZE) };
            tank.create_volume(&wide).await.unwrap();
            let v = tank.open_volume("v").unwrap();
            for (name, salt) in [("v@a", 0), ("v@b", 1000)] {
                for at in 0..BLOCKS {
                    v.write(at * APART, stamp(BLOCK as usize, at + salt), false).await.unwrap();
                }
                snapshot(&tank, name).await;
            }
            let pace = |name: &str, operation: Operation, _| {
                (name == "a" && operation == Operation::Write).then_some(Nanos::from_millis(1))
            };
            let back = make(paced(before.host(1), pace), "back").await;
            receive(&back, &sent(&tank, &whole("v@a")).await, PLAIN).await.unwrap();
            let increment = sent(&tank, &since("a", "v@b")).await;
            let mut receiver = back.receive("w", PLAIN);
            for chunk in &increment[..increment.len() - 1] {
                receiver.feed(chunk).await.unwrap();
            }
            back.sync().await.unwrap();
            drop(rt::spawn(async move { receiver.give_up().await }));
            rt::sleep(Nanos::from_millis(2 * step)).await;
        });
        drop(first);
        Runtime::simulated(600 + step).block_on(async move {
            let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
            let back = Pool::import(rack.host(1), &paths, "back", &options).await.unwrap();
            while back.get_volume("w").unwrap().is_receiving {
                rt::sleep(Nanos::from_millis(50)).await;
            }
            let w = back.open_volume("w").unwrap();
            for at in 0..BLOCKS {
                expect(&w, at * APART, &stamp(BLOCK as usize, at)).await;
            }
            back.export().await.unwrap();
        });
    }
}
