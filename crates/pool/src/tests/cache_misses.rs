//! Blocks that a cache device turns out not to have: they are read in the main store, where they
//! were when the read began.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::{Answer, Command, Script};
use forebay_units::Nanos;

use super::cache_devices::{BLOCK, BLOCKS, DEVICES, Small, filled, stats, warm, with_cache};
use super::rack::{Rack, paced, scripted};
use super::{expect, stamp};

/// Begins reads of `len` blocks each from a slow cache device whose content is damaged, and writes
/// the volume over and over meanwhile.
fn reads_find_what_was_there(len: u64) {
    Runtime::simulated(5).block_on(async move {
        let rack = Rack::new(DEVICES, 64 << 20);
        let is_slow = Rc::new(Cell::new(false));
        let told = is_slow.clone();
        let pace = move |name: &str, operation: Operation, _: u64| match operation {
            Operation::Read if told.get() && name == "k" => Some(Nanos::from_millis(50)),
            _ => None,
        };
        let (pool, v) = filled(paced(rack.host(1), pace), &with_cache()).await;
        warm(&v).await;
        // All regions lie behind the first MiB.
        let rot = IoBuf::copy_of(&[0xee; 1 << 20]).freeze();
        for mib in 1..63 {
            rack.device("k").write(mib << 20, rot.clone(), false).await.unwrap();
        }
        is_slow.set(true);
        let reads = (0..256).step_by(len as usize).map(|block: u64| {
            let v = v.clone();
            rt::spawn(async move {
                let got = v.read(block * BLOCK, IoBuf::zeroed((len * BLOCK) as usize)).await;
                (block, got.unwrap_or_else(|error| panic!("block {block}: {error}")))
            })
        });
        let reads: Vec<_> = reads.collect();
        rt::sleep(Nanos::from_millis(1)).await;
        for round in 2..12 {
            for at in 0..BLOCKS {
                v.write(at * BLOCK, stamp(4096, at + round * 10_000), false).await.unwrap();
            }
            pool.sync().await.unwrap();
        }
        let waiting = reads.iter().filter(|read| !read.is_finished()).count();
        assert!(waiting > 10, "{waiting}: the cache device had too little of it");
        for (block, got) in rt::join_all(reads).await {
            for at in 0..len {
                let got = &got[(at * BLOCK) as usize..][..4096];
                assert!(got == &stamp(4096, block + at)[..], "block {block}");
            }
        }
        let group = pool.status().groups.remove(0);
        assert!(group.children.iter().all(|disk| disk.checksum_errors == 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn block_that_the_cache_device_has_lost_is_read_where_it_was() {
    reads_find_what_was_there(1);
}

#[test]
fn blocks_that_the_cache_device_has_lost_are_read_where_they_were() {
    reads_find_what_was_there(4);
}

/// The cache device answers writes some time after they had their effect.
struct LateAnswers;

impl Script for LateAnswers {
    fn after<'a>(&'a self, command: Command<'a>) -> Answer<'a, ()> {
        let is_late = command.device == "k" && command.operation == Operation::Write;
        Box::pin(async move {
            if is_late {
                rt::sleep(Nanos::from_millis(5)).await;
            }
        })
    }
}

#[test]
fn nothing_is_read_where_a_region_is_being_overwritten() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        // There is room for the index of forty regions of fifteen blocks.
        let memory_bytes = 8 * 22 * 15 * 40;
        let inner = scripted(rack.host(1), Rc::new(LateAnswers));
        let mut spec = with_cache();
        spec.properties.insert("cache_dwpd".to_owned(), "off".to_owned());
        let (pool, v) = filled(Rc::new(Small { inner, memory_bytes }), &spec).await;
        for read in 0..12_000 {
            let at = rt::random_below(BLOCKS);
            expect(&v, at * BLOCK, &stamp(BLOCK as usize, at)).await;
            if read % 5 == 0 {
                rt::sleep(Nanos::from_millis(1)).await;
            }
        }
        let stats = stats(&pool);
        assert!(stats.hits > 1000 && stats.written_bytes > 60 << 16, "{stats:?}");
        assert_eq!(pool.status().caches[0].checksum_errors, 0);
        pool.export().await.unwrap();
    });
}
