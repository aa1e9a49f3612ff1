//! Blocks that a cache device turns out not to have: they are read in the main store, where they
//! were when the read began.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_segment::SegmentState;
use forebay_testkit::{Answer, Command, Script};
use forebay_units::{Layout, Lba, Nanos};

use super::cache_devices::{BLOCK, BLOCKS, DEVICES, Small, filled, stats, warm, with_cache};
use super::rack::{Rack, memory, paced, scripted};
use super::{expect, spec, stamp, volume};
use crate::Pool;

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

// The segment of a part may be in use again when the last part comes.
#[test]
fn a_part_that_came_early_is_not_kept_for_what_lies_there_later() {
    const MIB: usize = 1 << 20;
    const PARTS: usize = 61 * BLOCK as usize;
    Runtime::simulated(7).block_on(async {
        let slow: Rc<RefCell<Option<Range<u64>>>> = Rc::default();
        let told = slow.clone();
        let pace = move |_: &str, operation: Operation, offset: u64| {
            let is_slow = told.borrow().as_ref().is_some_and(|range| range.contains(&offset));
            (is_slow && operation == Operation::Read).then(|| {
                told.take();
                Nanos::from_secs(5)
            })
        };
        let spec = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(paced(memory(&["a"], 64 << 20), pace), "tank", &spec).await;
        let pool = pool.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let old = stamp(PARTS, 1);
        v.write(0, old.clone(), false).await.unwrap();
        v.write(4 << 20, stamp(4 * MIB, 2), false).await.unwrap();
        pool.sync().await.unwrap();
        v.write(60 * BLOCK, old.slice(60 * 4096, 4096), false).await.unwrap();
        pool.sync().await.unwrap();
        let id = pool.volume_named("v").unwrap().id;
        let segment_of = |block| {
            let map = pool.store.map.borrow();
            map.lookup(id, Lba(block)).unwrap().addr.segment()
        };
        let segment = segment_of(0);
        assert!(segment != segment_of(60));
        let birth = pool.store.table.get(segment).birth;
        let geometry = pool.store.array.groups()[0];
        let begin = geometry.column_start_bytes(geometry.index_of(segment_of(60)));
        *slow.borrow_mut() = Some(begin..begin + geometry.column_bytes);
        let reading = rt::spawn({
            let v = v.clone();
            async move { v.read(0, IoBuf::zeroed(PARTS)).await.unwrap() }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        let mut round = 0;
        let is_full_again = || {
            let info = pool.store.table.get(segment);
            info.birth != birth && info.state == SegmentState::Full
        };
        while round < 16 || !is_full_again() {
            assert!(round < 1000, "the segment is not used again");
            v.write((round % 16) << 20, stamp(MIB, 100 + round), false).await.unwrap();
            pool.sync().await.unwrap();
            round += 1;
        }
        assert!(!reading.is_finished());
        assert!(reading.await[..] == old[..]);
        for round in round - 16..round {
            expect(&v, (round % 16) << 20, &stamp(MIB, 100 + round)).await;
        }
        pool.export().await.unwrap();
    });
}
