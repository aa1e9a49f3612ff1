//! Space that commands and writes may take, beside each other and when nothing is left.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, MemoryDevice, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_testkit::Shelf;
use forebay_units::{Layout, Lba, Nanos, VolumeId};

use super::rack::{Switches, memory, paced, scripted};
use super::{names, spec, stamp, volume};
use crate::spec::{CloneSpec, GroupSpec, ImportOptions, PoolSpec, VolumeSpec};
use crate::status::Health;
use crate::{AdminError, OpenWith, Pool, UsableChange, VolumeError};

const BLOCK: u64 = 4096;

fn sparse(name: &str, size_bytes: u64) -> VolumeSpec {
    VolumeSpec { name: name.into(), size_bytes, sparse: true, properties: BTreeMap::new() }
}

/// A pool whose groups take a while, with a sparse volume `s` as large as it.
async fn slow_pool() -> (Rc<Pool>, Device) {
    let pace = |_: &str, operation: Operation, _: u64| {
        Some(match operation {
            Operation::Flush => Nanos::from_millis(1),
            _ => Nanos::from_micros(50),
        })
    };
    let shelf = paced(memory(&["a"], 64 << 20), pace);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
    let size = pool.summary().size_bytes / BLOCK * BLOCK;
    pool.create_volume(&sparse("s", size)).await.unwrap();
    let s = pool.open_volume("s").unwrap();
    (pool, s)
}

/// Writes blocks from `from` on until one finds no space, at most `most`. Returns how many.
async fn fill(v: &Device, from: u64, most: u64) -> u64 {
    let mut count = 0;
    while count < most {
        let at = (from + count) * BLOCK;
        if v.write(at, stamp(BLOCK as usize, at), false).await.is_err() {
            break;
        }
        count += 1;
    }
    count
}

#[test]
fn overwrites_beside_a_snapshot_take_space_of_their_own() {
    Runtime::simulated(1).block_on(async {
        let (pool, s) = slow_pool().await;
        let blocks = fill(&s, 0, u64::MAX).await;
        s.discard(0, 256 * BLOCK, false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(fill(&s, 0, 128).await, 128);
        let free = pool.free_blocks();
        assert!((100..200).contains(&free) && blocks > 1000, "{free} of {blocks}");
        let taking = rt::spawn({
            let pool = pool.clone();
            async move { pool.take_snapshots(&names(&["s@a"])).await }
        });
        while pool.dirty.groups.borrow().syncing().is_none() {
            assert!(!taking.is_finished(), "it was not seen");
            rt::sleep(Nanos::from_micros(10)).await;
        }
        // The snapshot keeps what these blocks hold.
        assert_eq!(fill(&s, 300, 2 * free).await, free);
        taking.await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.free_blocks(), 0);
    });
}

#[test]
fn what_a_snapshot_holds_is_free_once_a_root_says_that_the_snapshot_is_gone() {
    Runtime::simulated(1).block_on(async {
        let (pool, s) = slow_pool().await;
        fill(&s, 0, u64::MAX).await;
        s.discard(0, 256 * BLOCK, false).await.unwrap();
        pool.sync().await.unwrap();
        pool.take_snapshots(&names(&["s@a"])).await.unwrap();
        assert_eq!(fill(&s, 0, 128).await, 128);
        let free = pool.free_blocks();
        assert!((100..200).contains(&free), "{free}");
        let destroying = rt::spawn({
            let pool = pool.clone();
            async move { pool.destroy_snapshots(&names(&["s@a"])).await }
        });
        while pool.snapshots_of_spec("s@%").is_ok_and(|left| !left.is_empty()) {
            rt::sleep(Nanos::from_micros(10)).await;
        }
        // After a power cut now, the snapshot holds what is overwritten.
        assert_eq!(fill(&s, 300, free).await, free);
        assert!(!destroying.is_finished(), "it was not seen");
        assert_eq!((pool.free_blocks(), pool.overdrawn_blocks()), (0, 0));
        assert_eq!(fill(&s, 700, 50).await, 50, "they wait for the root");
        assert!(destroying.is_finished());
        destroying.await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.free_blocks(), free);
    });
}

#[test]
fn what_a_larger_volume_reserved_is_free_once_its_rollback_is_under_a_root() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) = slow_pool().await;
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.resize_volume("v", 8 << 20, false).await.unwrap();
        let free = pool.free_blocks();
        let rolling_back = rt::spawn({
            let pool = pool.clone();
            async move { pool.roll_back_volume("v@a", false).await }
        });
        let mut looks = 0;
        while !rolling_back.is_finished() {
            assert_eq!(pool.free_blocks(), free, "after a power cut now, it is large");
            looks += 1;
            rt::sleep(Nanos::from_micros(10)).await;
        }
        assert!(looks > 10, "it was not seen");
        rolling_back.await.unwrap();
        assert_eq!(pool.free_blocks(), free + 1024);
    });
}

#[test]
fn space_that_a_volume_gives_back_is_free_without_what_others_have_written_meanwhile() {
    Runtime::simulated(2).block_on(async {
        let (pool, s) = slow_pool().await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let writing = rt::spawn(async move {
            for at in 0..2000 {
                s.write(at * BLOCK, stamp(BLOCK as usize, at), false).await.unwrap();
                rt::sleep(Nanos::from_micros(20)).await;
            }
        });
        let usable = pool.dirty.space.usable_blocks.get();
        let id = VolumeId(pool.get_volume("s").unwrap().id);
        let mut met = 0;
        for round in 0..40 {
            let value = if round % 2 == 0 { "none" } else { "auto" };
            pool.set_volume("v", "reservation", value).await.unwrap();
            let reserved = if round % 2 == 0 { 0 } else { (8 << 20) / BLOCK };
            let held = pool.held_blocks(id, Lba(0), usable);
            met += u64::from(pool.dirty.space.promised_blocks.get() > 0);
            assert!(pool.free_blocks() <= usable - reserved - held, "round {round}");
        }
        assert!(met > 0, "no write was on its way");
        writing.await;
        pool.sync().await.unwrap();
    });
}

#[test]
fn trimmed_space_is_free_once_a_root_has_the_trim() {
    Runtime::simulated(7).block_on(async {
        let (pool, s) = slow_pool().await;
        pool.create_volume(&sparse("t", 1 << 20)).await.unwrap();
        let t = pool.open_volume("t").unwrap();
        fill(&s, 0, u64::MAX).await;
        pool.sync().await.unwrap();
        assert_eq!((pool.free_blocks(), fill(&t, 0, 1).await), (0, 0));
        s.discard(0, 64 * BLOCK, false).await.unwrap();
        // After a power cut the trim may not have been, whatever was flushed since on `t`.
        assert_eq!(pool.free_blocks(), 0);
        let root = pool.sync.commit.get();
        assert_eq!(fill(&t, 0, 1).await, 1);
        assert!(pool.sync.commit.get() > root, "the write has the trim committed");
        assert_eq!(fill(&t, 1, 128).await, 63);
        assert_eq!(pool.summary().overdrawn_bytes, 0);
        // Where nothing comes back, a write is refused without a commit.
        pool.sync().await.unwrap();
        let root = pool.sync.commit.get();
        assert_eq!((fill(&t, 64, 1).await, fill(&s, 0, 1).await), (0, 0));
        assert_eq!(pool.sync.commit.get(), root);
    });
}

#[test]
fn a_volume_is_created_in_space_that_was_just_trimmed() {
    Runtime::simulated(8).block_on(async {
        let (pool, s) = slow_pool().await;
        fill(&s, 0, u64::MAX).await;
        pool.sync().await.unwrap();
        s.discard(0, 64 * BLOCK, false).await.unwrap();
        pool.create_volume(&volume(60 * BLOCK)).await.unwrap();
        s.discard(64 * BLOCK, 64 * BLOCK, false).await.unwrap();
        pool.resize_volume("v", 120 * BLOCK, false).await.unwrap();
        let refused = pool.resize_volume("v", 129 * BLOCK, false).await.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        assert_eq!(pool.summary().overdrawn_bytes, 0);
    });
}

#[test]
fn a_rollback_for_which_the_map_has_no_room_is_refused() {
    Runtime::simulated(3).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&sparse("v", 8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for block in 0..512 {
            v.write(2 * block * BLOCK, stamp(BLOCK as usize, block), false).await.unwrap();
        }
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        for block in 0..512 {
            v.write(2 * block * BLOCK, stamp(BLOCK as usize, block + 512), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let rest = VolumeSpec { name: "rest".into(), ..volume(pool.free_blocks() * BLOCK) };
        pool.create_volume(&rest).await.unwrap();
        assert_eq!(pool.free_blocks(), 0);
        let refused = pool.roll_back_volume("v@a", false).await.unwrap_err();
        assert!(matches!(refused, VolumeError::NoSpace { .. }), "{refused}");
        super::expect(&v, 0, &stamp(BLOCK as usize, 512)).await;
        pool.destroy_volume("rest", false).await.unwrap();
        pool.roll_back_volume("v@a", false).await.unwrap();
        super::expect(&v, 0, &stamp(BLOCK as usize, 0)).await;
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_whose_offsets_would_be_too_long_is_refused() {
    Runtime::simulated(4).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        for size_bytes in [(1 << 50) + BLOCK, 2 << 50, 1 << 62] {
            let refused = pool.create_volume(&sparse("v", size_bytes)).await.unwrap_err();
            assert!(matches!(refused, VolumeError::BadSize { .. }), "{refused}");
        }
        pool.create_volume(&sparse("v", 1 << 50)).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_part_of_a_pool_stays_free_for_the_cleaner() {
    Runtime::simulated(5).block_on(async {
        // Segments that volumes cannot have, and all.
        let kept = async |device_bytes: u64| {
            let mut options = spec(Layout::Raid0, &["a"], &[]);
            options.properties.insert("dirty_limit".to_owned(), "8M".to_owned());
            let shelf = memory(&["a"], device_bytes);
            let pool = Pool::create(shelf, "tank", &options).await.unwrap();
            let (segments, per_segment) = {
                let table = &pool.store.table;
                let first = forebay_units::SegmentId(0);
                (u64::from(table.count()), u64::from(table.data_blocks(first)))
            };
            let usable = pool.dirty.space.usable_blocks.get() / per_segment;
            pool.export().await.unwrap();
            ((segments - usable) as f64, segments as f64)
        };
        let (small, large) = (kept(256 << 20).await, kept(1 << 30).await);
        // What groups need is the same for both. The journal and the cleaner need a share.
        let share = (large.0 - small.0) / (large.1 - small.1);
        assert!((0.04..0.1).contains(&share), "{small:?} {large:?}");
    });
}

#[test]
fn a_log_in_the_pool_has_four_rings_at_most() {
    Runtime::simulated(6).block_on(async {
        let devices = ["a", "b", "c", "d", "e", "f"];
        for (count, rings) in [(1, 1), (3, 3), (4, 4), (6, 4)] {
            let options = spec(Layout::Raid0, &devices[..count], &[]);
            let shelf = memory(&devices, 64 << 20);
            let pool = Pool::create(shelf, "tank", &options).await.unwrap();
            assert_eq!(pool.log_rings().len(), rings, "{count} devices");
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn writes_beside_the_end_of_a_reservation_take_space_of_their_own() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) = slow_pool().await;
        pool.create_volume(&volume(300 * BLOCK)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        fill(&v, 0, 50).await;
        pool.sync().await.unwrap();
        let before = pool.free_blocks();
        fill(&v, 0, 1).await;
        let setting = rt::spawn({
            let pool = pool.clone();
            async move { pool.set_volume("v", "reservation", "none").await }
        });
        while pool.dirty.groups.borrow().syncing().is_none() {
            assert!(!setting.is_finished(), "it was not seen");
            rt::sleep(Nanos::from_micros(10)).await;
        }
        // What the map has is overwritten as well, and a part of what the writes brought goes.
        assert_eq!(fill(&v, 0, 200).await, 200);
        v.discard(190 * BLOCK, 10 * BLOCK, false).await.unwrap();
        setting.await.unwrap();
        assert_eq!(pool.free_blocks(), before + 300 - 190);
        pool.sync().await.unwrap();
        assert_eq!(pool.free_blocks(), before + 300 - 190);
    });
}

/// Checks that no space becomes free before `command` has ended, so that `gained` blocks are free
/// then.
async fn frees_at_its_end<F>(pool: &Rc<Pool>, gained: u64, command: F)
where
    F: Future<Output = ()> + 'static,
{
    pool.sync().await.unwrap();
    let free = pool.free_blocks();
    let running = rt::spawn(command);
    let mut looks = 0;
    while !running.is_finished() {
        assert_eq!(pool.free_blocks(), free, "after a power cut now, nothing would be free");
        looks += 1;
        rt::sleep(Nanos::from_micros(10)).await;
    }
    assert!(looks > 10, "it was not seen");
    running.await;
    assert_eq!(pool.free_blocks(), free + gained);
}

#[test]
fn what_a_volume_reserved_is_free_once_a_root_says_that_it_is_smaller_or_gone() {
    Runtime::simulated(9).block_on(async {
        let (pool, _s) = slow_pool().await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        let shrinking = {
            let pool = pool.clone();
            async move { pool.resize_volume("v", 4 << 20, true).await.unwrap() }
        };
        frees_at_its_end(&pool, 1024, shrinking).await;
        let of_its_own = |value: &'static str| {
            let pool = pool.clone();
            async move { pool.set_volume("v", "reservation", value).await.unwrap() }
        };
        frees_at_its_end(&pool, 1024 - 256, of_its_own("none")).await;
        of_its_own("auto").await;
        drop(v);
        let destroying = {
            let pool = pool.clone();
            async move { pool.destroy_volume("v", false).await.unwrap() }
        };
        frees_at_its_end(&pool, 1024, destroying).await;
    });
}

#[test]
fn space_of_a_new_group_is_free_once_a_root_has_the_group() {
    Runtime::simulated(10).block_on(async {
        let pace = |_: &str, operation: Operation, _: u64| {
            Some(match operation {
                Operation::Flush => Nanos::from_millis(1),
                _ => Nanos::from_micros(50),
            })
        };
        let shelf = paced(memory(&["a", "b"], 64 << 20), pace);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let usable = pool.free_blocks();
        let adding = {
            let pool = pool.clone();
            let group = GroupSpec { layout: Layout::Raid0, devices: names(&["b"]) };
            let more = PoolSpec { groups: vec![group], ..PoolSpec::default() };
            async move { pool.add(&more).await.unwrap() }
        };
        let (_, _, both) = {
            let shelf = memory(&["a", "b"], 64 << 20);
            let twins = spec(Layout::Raid0, &["a"], &[]);
            let twin = Pool::create(shelf, "twin", &twins).await.unwrap();
            let group = GroupSpec { layout: Layout::Raid0, devices: names(&["b"]) };
            twin.add(&PoolSpec { groups: vec![group], ..PoolSpec::default() }).await.unwrap();
            crate::layout::limits_for(&twin.config.borrow())
        };
        assert!(both > usable + 1000, "{both} and {usable}");
        frees_at_its_end(&pool, both - usable, adding).await;
        pool.export().await.unwrap();
    });
}

// The rollback waits for the group that is on its way, and others write meanwhile.
#[test]
fn a_volume_that_goes_back_to_a_larger_size_owns_its_space_at_once() {
    Runtime::simulated(11).block_on(async {
        let (pool, s) = slow_pool().await;
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.resize_volume("v", 1 << 20, true).await.unwrap();
        let grown = (7 << 20) / BLOCK;
        let full = pool.free_blocks() - grown - 100;
        assert_eq!(fill(&s, 0, full).await, full);
        pool.sync().await.unwrap();
        let writers = pool.writers.lock().await;
        let rolling_back = rt::spawn({
            let pool = pool.clone();
            async move { pool.roll_back_volume("v@a", false).await }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        let filling = rt::spawn(async move {
            fill(&s, full, grown).await;
        });
        rt::sleep(Nanos::from_millis(100)).await;
        drop(writers);
        rolling_back.await.unwrap();
        filling.await;
        assert_eq!(pool.summary().overdrawn_bytes, 0);
        pool.sync().await.unwrap();
        assert_eq!((pool.free_blocks(), pool.summary().overdrawn_bytes), (0, 0));
    });
}

// One group writes all that moves into the map journal.
#[test]
fn a_command_that_moves_a_part_of_the_map_keeps_the_room_for_it() {
    const BLOCKS: u64 = 1024;
    const ROOM: u64 = BLOCKS * 24 / BLOCK;
    Runtime::simulated(13).block_on(async {
        let (pool, s) = slow_pool().await;
        for salt in [0, BLOCKS] {
            for block in 0..BLOCKS {
                let data = stamp(BLOCK as usize, block + salt);
                s.write(2 * block * BLOCK, data, false).await.unwrap();
            }
            if salt == 0 {
                pool.take_snapshots(&names(&["s@a"])).await.unwrap();
            }
        }
        let clone = CloneSpec { name: "c".to_owned(), properties: BTreeMap::new() };
        pool.clone_snapshot("s@a", &clone).await.unwrap();
        for promotes in [false, true] {
            let free = pool.free_blocks();
            let moving = rt::spawn({
                let pool = pool.clone();
                async move {
                    match promotes {
                        true => pool.promote_volume("c").await,
                        false => pool.roll_back_volume("s@a", false).await,
                    }
                }
            });
            while pool.free_blocks() == free {
                assert!(!moving.is_finished(), "others could take its room");
                rt::sleep(Nanos::from_micros(10)).await;
            }
            assert!((ROOM..8 * ROOM).contains(&(free - pool.free_blocks())));
            moving.await.unwrap();
            assert!(pool.free_blocks() >= free, "it gives the room back");
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn what_volumes_reserve_is_reserved_after_an_import() {
    Runtime::simulated(12).block_on(async {
        let shelf = memory(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        pool.open_volume("v").unwrap().write(0, stamp(4096, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let free = pool.free_blocks();
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(shelf, &names(&["a"]), "tank", &options).await.unwrap();
        assert_eq!(pool.free_blocks(), free);
        pool.export().await.unwrap();
    });
}

// Without redundancy the journal of the map is kept twice.
#[test]
fn a_copy_is_not_detached_whose_space_volumes_have() {
    Runtime::simulated(31).block_on(async {
        let shelf = memory(&["a", "b"], 64 << 20);
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(shelf.clone(), "tank", &mirror).await.unwrap();
        let size_bytes = pool.summary().available_bytes / BLOCK * BLOCK;
        pool.create_volume(&volume(size_bytes)).await.unwrap();
        let refused = pool.detach("b").await.unwrap_err();
        let AdminError::TooLittleUsable { change, usable_bytes, taken_bytes } = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(*change, UsableChange::Without { device: "b".into() });
        assert!(usable_bytes < taken_bytes && *taken_bytes == size_bytes, "{refused:?}");
        assert_eq!(pool.summary().health, Health::Online);

        pool.resize_volume("v", *usable_bytes, true).await.unwrap();
        pool.detach("b").await.unwrap();
        assert_eq!((pool.free_blocks(), pool.overdrawn_blocks()), (0, 0));
        pool.export().await.unwrap();
        let pool =
            Pool::import(shelf, &names(&["a"]), "tank", &ImportOptions::default()).await.unwrap();
        assert_eq!((pool.free_blocks(), pool.overdrawn_blocks()), (0, 0));
    });
}

// A large pool would give up more for the second copy of its journal than a small group brings.
#[test]
fn a_group_is_not_added_for_which_volumes_would_have_less_space() {
    Runtime::simulated(32).block_on(async {
        let (large, small) = (16 << 30, 400 << 20);
        let sizes = [("a", large), ("b", large), ("c", small), ("d", small)];
        let device = |(name, bytes)| -> Device { Rc::new(MemoryDevice::new(name, bytes)) };
        let shelf = Shelf::new(sizes.into_iter().map(device));
        let opener = OpenWith::new(1, move |name| shelf.open(name));
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener.clone(), "tank", &mirror).await.unwrap();
        let size_bytes = pool.summary().available_bytes / BLOCK * BLOCK;
        pool.create_volume(&volume(size_bytes)).await.unwrap();
        let more = |layout, devices: &[&str]| {
            let groups = vec![GroupSpec { layout, devices: names(devices) }];
            PoolSpec { groups, force: true, ..PoolSpec::default() }
        };
        let refused = pool.add(&more(Layout::Raid0, &["c"])).await.unwrap_err();
        assert!(
            matches!(refused, AdminError::TooLittleUsable { change: UsableChange::Groups, .. }),
            "{refused:?}"
        );
        pool.add(&more(Layout::Mirror, &["c", "d"])).await.unwrap();
        assert_eq!(pool.overdrawn_blocks(), 0);
        assert!(pool.free_blocks() > 0);
    });
}

// While a command tries to add such a group, volumes must not take what there may not be after it.
#[test]
fn a_group_that_could_not_be_taken_costs_no_space() {
    Runtime::simulated(128).block_on(async {
        let sizes = [("a", 16 << 30), ("b", 16 << 30), ("c", 400 << 20)];
        let device = |(name, bytes)| -> Device { Rc::new(MemoryDevice::new(name, bytes)) };
        let shelf = Shelf::new(sizes.into_iter().map(device));
        let switches = Rc::new(Switches::default());
        let opener = scripted(OpenWith::new(1, move |name| shelf.open(name)), switches.clone());
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener, "tank", &mirror).await.unwrap();
        let before = pool.summary().available_bytes;
        let groups = vec![GroupSpec { layout: Layout::Raid0, devices: names(&["c"]) }];
        let add = PoolSpec { groups, force: true, ..PoolSpec::default() };
        switches.unwritable.borrow_mut().insert("c".to_owned());
        pool.add(&add).await.unwrap_err();
        assert_eq!(pool.summary().available_bytes, before);
        switches.unwritable.borrow_mut().clear();
        pool.add(&add).await.unwrap();
        assert!(pool.summary().available_bytes < before, "the case was not met");
    });
}
