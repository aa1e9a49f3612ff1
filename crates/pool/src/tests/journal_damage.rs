//! Damage of the map journal beside redundancy: what a scrub and a resilver do about it, and which
//! of its rows an import knows of.

use std::rc::Rc;

use forebay_device::{IoBuf, Operation};
use forebay_format::journal::{FrameHeader, FrameKind};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::copies::{ALL, BLOCK, SIZE, image, scrub};
use super::imports::until_crash;
use super::rack::{Rack, paced};
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::PoolEvent;

async fn made(rack: &Rc<Rack>, layout: Layout) -> Rc<Pool> {
    let pool = Pool::create(rack.host(1), "tank", &spec(layout, &ALL, &[])).await.unwrap();
    pool.create_volume(&volume(4 << 20)).await.unwrap();
    write(&pool, 1).await;
    pool
}

async fn write(pool: &Rc<Pool>, salt: u64) {
    let v = pool.open_volume("v").unwrap();
    v.write(salt % 100 * 8192, stamp(8192, salt), false).await.unwrap();
    pool.sync().await.unwrap();
}

/// How often the journal was found damaged.
fn damages(pool: &Rc<Pool>) -> usize {
    let is_one = |event: &PoolEvent| matches!(event, PoolEvent::JournalDamaged { .. });
    pool.events().iter().filter(|event| is_one(event)).count()
}

/// First bytes of the frames with content on a device, by their numbers, highest last.
async fn frames(rack: &Rc<Rack>, name: &str) -> Vec<(u64, u64)> {
    let held = image(&rack.device(name)).await;
    let blocks = (0u64..).step_by(BLOCK).zip(held.chunks(BLOCK));
    let found = blocks.filter_map(|(at, block)| Some((FrameHeader::decode(block).ok()?, at)));
    let mut all: Vec<(u64, u64)> = found
        .filter(|(header, _)| header.kind != FrameKind::Pad)
        .map(|(header, at)| (header.seq, at))
        .collect();
    all.sort_unstable();
    all
}

/// Overwrites a block of a device. Returns what it held.
async fn strike(rack: &Rc<Rack>, name: &str, at: u64) -> IoBuf {
    let held = rack.device(name).read(at, IoBuf::zeroed(BLOCK)).await.unwrap();
    let junk = IoBuf::copy_of(&[0xee; BLOCK]).freeze();
    rack.device(name).write(at, junk, false).await.unwrap();
    held
}

async fn holds(rack: &Rc<Rack>, name: &str, at: u64, expected: &[u8]) -> bool {
    rack.device(name).read(at, IoBuf::zeroed(BLOCK)).await.unwrap()[..] == *expected
}

#[test]
fn a_scrub_repairs_a_journal_with_parity_in_place() {
    Runtime::simulated(1).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack, Layout::Raidz1).await;
        assert_eq!((scrub(&pool).await, damages(&pool)), ((0, 0), 0));
        let mut struck = 0;
        for name in ALL {
            let Some((_, at)) = frames(&rack, name).await.pop() else { continue };
            let held = strike(&rack, name, at).await;
            struck += 1;
            assert_eq!(scrub(&pool).await, (BLOCK as u64, 0), "{name}");
            assert!(damages(&pool) >= struck);
            assert!(holds(&rack, name, at, &held).await, "{name}");
        }
        assert!(struck > 0, "no frame was found");
        let before = damages(&pool);
        assert_eq!((scrub(&pool).await, damages(&pool)), ((0, 0), before));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_resilver_copies_no_damaged_frame() {
    Runtime::simulated(2).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack, Layout::Mirror).await;
        pool.offline("c").await.unwrap();
        write(&pool, 2).await;
        let (_, at) = frames(&rack, "a").await.pop().unwrap();
        let held = strike(&rack, "a", at).await;
        pool.online("c").await.unwrap();
        loop {
            let scan = pool.status().scan.unwrap();
            if scan.state == crate::status::ScanPhase::Completed {
                assert_eq!(scan.errors, 0);
                break;
            }
            forebay_rt::sleep(forebay_units::Nanos::from_secs(1)).await;
        }
        assert!(holds(&rack, "b", at, &held).await && holds(&rack, "c", at, &held).await);
        pool.export().await.unwrap();
    });
}

// A mirror's own segments have no copies; the pool wrote this one before it was a mirror.
#[test]
fn a_journal_segment_with_copies_has_them_of_later_frames_too_after_an_import() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(mine.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        write(&pool, 1).await;
        pool.attach("a", "b", false).await.unwrap();
        while pool.status().scan.unwrap().state != crate::status::ScanPhase::Completed {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        write(&pool, 2).await;
    });
    Runtime::simulated(4).block_on(async move {
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
        write(&pool, 3).await;
        for name in ["a", "b"] {
            let all = frames(&rack, name).await;
            let newest = all.last().unwrap().0;
            let places = all.iter().filter(|(seq, _)| *seq == newest).count();
            assert_eq!(places, 2, "{name}: a frame and its copy");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn rows_that_the_last_root_added_to_a_full_segment_are_scrubbed_after_an_import() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = made(&mine, Layout::Mirror).await;
        let segments = async || pool.writers.lock().await.journal.segments();
        let before = segments().await;
        for salt in 2.. {
            write(&pool, salt).await;
            assert!(salt < 1000, "the journal stays in its segment");
            if segments().await > before {
                break;
            }
        }
    });
    Runtime::simulated(3).block_on(async move {
        let all = frames(&rack, "b").await;
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
        // The new segment has nothing yet but padding.
        let (_, at) = *all.last().unwrap();
        let group = pool.store.array.groups()[0];
        let row = (at - group.data_start_bytes) % group.column_bytes / group.unit_bytes;
        assert_eq!(row + 1, u64::from(group.rows()), "the last row of the segment before");
        let held = strike(&rack, "b", at).await;
        assert_eq!(scrub(&pool).await, (BLOCK as u64, 0));
        assert!(holds(&rack, "b", at, &held).await);
        pool.export().await.unwrap();
    });
}

#[test]
fn damage_beside_a_good_copy_is_told_of_once() {
    Runtime::simulated(4).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let pool = made(&rack, Layout::Raid0).await;
        assert_eq!((scrub(&pool).await, damages(&pool)), ((0, 0), 0));
        let mut last = None;
        for name in ALL {
            last = last.max(frames(&rack, name).await.pop().map(|(seq, at)| (seq, at, name)));
        }
        let (_, at, name) = last.unwrap();
        let held = strike(&rack, name, at).await;
        assert_eq!((scrub(&pool).await, damages(&pool)), ((BLOCK as u64, 0), 1));
        assert!(holds(&rack, name, at, &held).await);
        assert_eq!((scrub(&pool).await, damages(&pool)), ((0, 0), 1));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_map_that_is_in_memory_alone_is_written_while_the_scrub_goes_on() {
    Runtime::simulated(5).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let mut options = spec(Layout::Raid0, &ALL, &[]);
        for (name, value) in [("txg_timeout", "600"), ("scan_rate", "1M")] {
            options.properties.insert(name.to_owned(), value.to_owned());
        }
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..8 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        // Both copies of the newest frame.
        let mut newest = 0;
        for name in ALL {
            newest = frames(&rack, name).await.pop().map_or(newest, |(seq, _)| seq.max(newest));
        }
        for name in ALL {
            for (_, at) in frames(&rack, name).await.into_iter().filter(|(seq, _)| *seq == newest) {
                strike(&rack, name, at).await;
            }
        }
        pool.scrub().await.unwrap();
        let is_running = || {
            let scan = pool.scan_status().unwrap();
            assert_eq!(scan.state, crate::status::ScanPhase::InProgress);
        };
        while !pool.scan.journal_damaged.get() {
            is_running();
            forebay_rt::sleep(forebay_units::Nanos::from_millis(100)).await;
        }
        assert!(damages(&pool) > 0, "it is told of");
        forebay_rt::sleep(forebay_units::Nanos::from_secs(2)).await;
        is_running();
        assert!(!pool.scan.checkpoint_wanted.get(), "no root has brought the map");
        drop(v);
        pool.export().await.unwrap();
    });
}

/// What a device has behind its front labels and before its back ones.
async fn body(rack: &Rc<Rack>, name: &str) -> IoBuf {
    rack.device(name).read(BODY, IoBuf::zeroed((SIZE - 2 * BODY) as usize)).await.unwrap()
}

const BODY: u64 = 5 << 20;

#[test]
fn an_import_repairs_what_it_read_of_the_journal() {
    let mut repaired = 0;
    for name in ALL {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            made(&mine, Layout::Mirror).await;
        });
        let told = Runtime::simulated(6).block_on(async move {
            let (_, at) = frames(&rack, name).await.pop().unwrap();
            let held = strike(&rack, name, at).await;
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
            let is_whole = holds(&rack, name, at, &held).await;
            pool.export().await.unwrap();
            is_whole
        });
        repaired += u32::from(told);
    }
    assert!(repaired > 0, "one of the copies was read");
}

// Frames of several roots that a rewind left behind follow each other on a device that lost what
// was written since.
#[test]
fn frames_that_a_rewind_left_behind_are_not_taken_for_the_map() {
    for name in ["a", "b"] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        let left = Runtime::simulated(1).block_on(async move {
            let pool = made(&mine, Layout::Mirror).await;
            for salt in [2, 3, 4, 5] {
                write(&pool, salt).await;
            }
            body(&mine, name).await
        });
        let mine = rack.clone();
        until_crash(async move {
            let options = ImportOptions { rewind_groups: 4, ..ImportOptions::default() };
            let pool = Pool::import(mine.host(1), &names(&ALL), "tank", &options).await.unwrap();
            for salt in [11, 12, 13, 14, 15, 16] {
                write(&pool, salt).await;
            }
        });
        Runtime::simulated(7).block_on(async move {
            rack.device(name).write(BODY, left.freeze(), false).await.unwrap();
            let options = ImportOptions::default();
            let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for (salt, is_there) in [(1, true), (2, false), (5, false), (11, true), (16, true)] {
                let found = match is_there {
                    true => stamp(8192, salt),
                    false => IoBuf::zeroed(8192).freeze(),
                };
                expect(&v, salt * 8192, &found).await;
            }
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

// While it was a mirror, each frame was written once.
#[test]
fn a_pool_that_lost_its_redundancy_gets_copies_of_its_journal() {
    for is_cut in [false, true] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            let pool = made(&mine, Layout::Mirror).await;
            for salt in [2, 3, 4] {
                write(&pool, salt).await;
            }
            pool.detach("b").await.unwrap();
            pool.detach("c").await.unwrap();
            if !is_cut {
                rt::sleep(Nanos::from_secs(5)).await;
            }
        });
        if is_cut {
            let mine = rack.clone();
            until_crash(async move {
                let (paths, options) = (names(&["a"]), ImportOptions::default());
                let _pool = Pool::import(mine.host(1), &paths, "tank", &options).await.unwrap();
                rt::sleep(Nanos::from_secs(5)).await;
            });
        }
        any_frame_may_be_damaged(&rack);
    }
}

/// Damages each frame of the one device that is left, and imports the pool.
fn any_frame_may_be_damaged(rack: &Rc<Rack>) {
    let mine = rack.clone();
    let all = Runtime::simulated(2).block_on(async move { frames(&mine, "a").await });
    assert!(all.len() >= 4, "{all:?}");
    for (_, at) in all {
        let mine = rack.clone();
        until_crash(async move {
            strike(&mine, "a", at).await;
            let (paths, options) = (names(&["a"]), ImportOptions::default());
            let pool = Pool::import(mine.host(1), &paths, "tank", &options).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            for salt in [1, 2, 3, 4] {
                expect(&v, salt * 8192, &stamp(8192, salt)).await;
            }
        });
    }
}

#[test]
fn an_import_writes_the_copies_that_a_crash_has_left_out() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pace = |_: &str, operation: Operation, _: u64| {
            (operation == Operation::Write).then_some(Nanos::from_millis(1))
        };
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(paced(mine.host(1), pace), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        for salt in [1, 2, 3, 4] {
            write(&pool, salt).await;
        }
        let before = pool.sync.commit.get();
        let detaching = rt::spawn({
            let pool = pool.clone();
            async move { pool.detach("b").await }
        });
        let is_alone = || pool.config.borrow().data_members().count() == 1;
        while !is_alone() || pool.sync.commit.get() == before {
            rt::sleep(Nanos::from_micros(100)).await;
        }
        assert!(!detaching.is_finished(), "the map may have been written anew");
    });
    let mine = rack.clone();
    until_crash(async move {
        let (paths, options) = (names(&["a"]), ImportOptions::default());
        let _pool = Pool::import(mine.host(1), &paths, "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(5)).await;
    });
    any_frame_may_be_damaged(&rack);
}

// What the journal has in the group is there once, whatever other groups have.
#[test]
fn each_group_that_loses_its_redundancy_has_the_map_written_anew() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.add(&spec(Layout::Mirror, &["c", "d"], &[])).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        write(&pool, 1).await;
        let mut before = None;
        for name in ["b", "d"] {
            pool.detach(name).await.unwrap();
            rt::sleep(Nanos::from_secs(5)).await;
            let start = pool.writers.lock().await.journal_start.map(|start| start.seq);
            assert!(start > before, "{name}: the journal begins at {start:?} still");
            before = start;
        }
        pool.export().await.unwrap();
    });
}
