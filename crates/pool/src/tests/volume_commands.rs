//! Commands on volumes: what they refuse, what they say of space, and what is gone after them.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_format::snapshot::MAX_HOLDS;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Lba, Nanos};

use super::compression::sparse;
use super::rack::{Rack, memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::status::{Health, VolumeStatus};
use crate::volume::Arrival;
use crate::{AdminError, ImportErrorKind, NameError, Opener, Pool, SpaceFor, VolumeError};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

async fn pool_on(opener: Rc<dyn Opener>) -> Rc<Pool> {
    Pool::create(opener, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap()
}

async fn made(device_bytes: u64) -> Rc<Pool> {
    pool_on(memory(&["a", "l"], device_bytes)).await
}

fn named(name: &str, size_bytes: u64) -> VolumeSpec {
    VolumeSpec { name: name.into(), ..volume(size_bytes) }
}

fn with(spec: VolumeSpec, property: &str, value: &str) -> VolumeSpec {
    VolumeSpec { properties: [(property.to_owned(), value.to_owned())].into(), ..spec }
}

fn status(pool: &Pool, name: &str) -> VolumeStatus {
    pool.get_volume(name).unwrap()
}

#[test]
fn a_volume_says_what_it_takes_and_what_it_may_still_take() {
    Runtime::simulated(111).block_on(async {
        let pool = made(256 * MIB).await;
        pool.create_volume(&named("thick", 8 * MIB)).await.unwrap();
        pool.create_volume(&sparse("thin", 16 * MIB, &[])).await.unwrap();
        pool.create_volume(&sparse("huge", 1 << 40, &[])).await.unwrap();
        let listed: Vec<String> = pool.volumes().into_iter().map(|volume| volume.name).collect();
        assert_eq!(listed, ["tank/huge", "tank/thick", "tank/thin"]);
        let [thick, thin, huge] = ["thick", "thin", "huge"].map(|v| pool.open_volume(v).unwrap());
        thick.write(0, stamp(1 << 20, 1), false).await.unwrap();
        thin.write(0, stamp(2 << 20, 2), false).await.unwrap();
        pool.take_snapshots(&names(&["thin@a"])).await.unwrap();
        thin.write(0, stamp(512 << 10, 3), false).await.unwrap();
        pool.sync().await.unwrap();
        let v = status(&pool, "thick");
        assert_eq!((v.size_bytes, v.reserved_bytes), (8 * MIB, 8 * MIB));
        assert_eq!((v.used_bytes, v.referenced_bytes, v.written_bytes), (MIB, MIB, MIB));
        assert_eq!((v.available_bytes, v.used_by_snapshots_bytes), (7 * MIB, 0));
        let v = status(&pool, "thin");
        assert_eq!((v.size_bytes, v.reserved_bytes), (16 * MIB, 0));
        assert_eq!((v.used_bytes, v.referenced_bytes), (5 * MIB / 2, 2 * MIB));
        assert_eq!((v.written_bytes, v.used_by_snapshots_bytes), (MIB / 2, MIB / 2));
        // An overwrite of what the snapshot has takes space as well.
        assert_eq!(v.available_bytes, 16 * MIB - MIB / 2);
        let free = pool.free_blocks() * BLOCK;
        assert_eq!((status(&pool, "huge").available_bytes, free > 64 * MIB), (free, true));
        assert_eq!(status(&pool, "huge").used_bytes, 0);
        drop((thick, thin, huge));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_cannot_be_made_as_it_was_asked_for_is_not_made() {
    Runtime::simulated(112).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(MIB)).await.unwrap();
        let free = pool.free_blocks();
        let refused = async |spec: VolumeSpec| {
            let refused = pool.create_volume(&spec).await.unwrap_err();
            assert_eq!((pool.volumes().len(), pool.free_blocks()), (1, free), "{refused}");
            refused
        };
        let exists = VolumeError::Exists { pool: "tank".into(), volume: "v".into() };
        assert_eq!(refused(volume(MIB)).await, exists);
        let bad = NameError::BadVolume { name: "v@a".into() };
        assert_eq!(refused(named("v@a", MIB)).await, VolumeError::Name(bad));
        for size_bytes in [0, 4097] {
            let odd = refused(named("w", size_bytes)).await;
            assert!(matches!(odd, VolumeError::BadSize { .. }), "{odd}");
        }
        let w = || named("w", MIB);
        for (property, value) in [("odd", "on"), ("sync", "odd")] {
            let odd = refused(with(w(), property, value)).await;
            assert!(matches!(odd, VolumeError::Property(_)), "{odd}");
        }
        let volume = || "w".to_owned();
        let compressed = VolumeError::CompressionNeedsSparse { volume: volume() };
        assert_eq!(refused(with(w(), "compression", "lz4")).await, compressed);
        let shared = VolumeError::DedupNeedsSparse { volume: volume(), has_refs: false };
        assert_eq!(refused(with(w(), "dedup", "on")).await, shared);
        let needed_bytes = (free + 1) * BLOCK;
        let too_large = VolumeError::NoSpace {
            pool: "tank".into(),
            free_bytes: free * BLOCK,
            needed_bytes,
            wanted_for: SpaceFor::Volume,
        };
        assert_eq!(refused(named("w", needed_bytes)).await, too_large);
        pool.create_volume(&named("w", free * BLOCK)).await.unwrap();
        assert_eq!(pool.free_blocks(), 0);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_reservation_that_a_new_volume_is_given_is_what_it_has() {
    Runtime::simulated(113).block_on(async {
        let pool = made(64 * MIB).await;
        let free = pool.free_blocks();
        let thin = with(named("thin", MIB), "reservation", "none");
        pool.create_volume(&thin).await.unwrap();
        assert_eq!((status(&pool, "thin").reserved_bytes, pool.free_blocks()), (0, free));
        let thick = with(sparse("thick", MIB, &[]), "reservation", "auto");
        pool.create_volume(&thick).await.unwrap();
        assert_eq!(status(&pool, "thick").reserved_bytes, MIB);
        assert_eq!(pool.free_blocks(), free - 256);
        for (name, reservation) in [("thin", "none"), ("thick", "auto")] {
            assert_eq!(status(&pool, name).properties["reservation"], reservation);
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_gets_smaller_only_with_force_and_only_a_size_that_there_is() {
    Runtime::simulated(114).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(8 * MIB)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(7 * MIB, stamp(4096, 1), true).await.unwrap();
        for (size_bytes, force) in [(0, true), (MIB + 1, true), (9 * MIB + 512, false)] {
            let refused = pool.resize_volume("v", size_bytes, force).await.unwrap_err();
            assert!(matches!(refused, VolumeError::BadSize { .. }), "{refused}");
        }
        let refused = pool.resize_volume("v", 4 * MIB, false).await.unwrap_err();
        let (size_bytes, wanted_bytes) = (8 * MIB, 4 * MIB);
        let shrink = VolumeError::WouldShrink { volume: "v".into(), size_bytes, wanted_bytes };
        assert_eq!(refused, shrink);
        pool.resize_volume("v", 8 * MIB, false).await.unwrap();
        assert_eq!(status(&pool, "v").size_bytes, 8 * MIB);
        expect(&v, 7 * MIB, &stamp(4096, 1)).await;
        let free_bytes = pool.free_blocks() * BLOCK;
        let needed_bytes = free_bytes + BLOCK;
        let refused = pool.resize_volume("v", 8 * MIB + needed_bytes, false).await.unwrap_err();
        let (pool_name, wanted_for) = ("tank".to_owned(), SpaceFor::Growth);
        let large = VolumeError::NoSpace { pool: pool_name, free_bytes, needed_bytes, wanted_for };
        assert_eq!(refused, large);
        // A sparse volume may be larger than the pool.
        pool.create_volume(&sparse("s", MIB, &[])).await.unwrap();
        pool.resize_volume("s", 1 << 40, false).await.unwrap();
        assert_eq!(status(&pool, "s").size_bytes, 1 << 40);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_grows_takes_what_it_grows_by_and_nothing_more() {
    for is_sparse in [false, true] {
        Runtime::simulated(115).block_on(async move {
            let pace = |_: &str, operation: Operation, _: u64| {
                (operation == Operation::Write).then_some(Nanos::from_millis(1))
            };
            let pool = pool_on(paced(memory(&["a", "l"], 64 * MIB), pace)).await;
            pool.create_volume(&VolumeSpec { sparse: is_sparse, ..volume(MIB) }).await.unwrap();
            let before = pool.free_blocks();
            let after = if is_sparse { before } else { before - 256 };
            let growing = rt::spawn({
                let pool = pool.clone();
                async move { pool.resize_volume("v", 2 * MIB, false).await }
            });
            let mut looks = 0;
            while !growing.is_finished() {
                rt::sleep(Nanos::from_micros(100)).await;
                assert_eq!(pool.free_blocks(), after);
                looks += 1;
            }
            assert!(looks > 10, "it was not seen");
            growing.await.unwrap();
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_property_is_refused_that_there_is_not_or_that_the_format_does_not_have() {
    Runtime::simulated(116).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&sparse("v", MIB, &[])).await.unwrap();
        for (property, value) in [("odd", "on"), ("weight", "0"), ("sync", "odd")] {
            let refused = pool.set_volume("v", property, value).await.unwrap_err();
            assert!(matches!(refused, VolumeError::Property(_)), "{refused}");
        }
        let newest = pool.sync.version.get();
        for (property, value, version) in [("compression", "lz4", 7), ("dedup", "on", 6)] {
            pool.sync.version.set(version);
            let refused = pool.set_volume("v", property, value).await.unwrap_err();
            let is_old = matches!(refused, VolumeError::OldFormat { needed, .. }
                if needed == version + 1);
            assert!(is_old, "{refused}");
            pool.sync.version.set(version + 1);
            pool.set_volume("v", property, value).await.unwrap();
        }
        pool.sync.version.set(newest);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_reservation_for_which_there_is_no_room_is_not_kept() {
    Runtime::simulated(117).block_on(async {
        let rack = Rack::new(&["a", "l"], 64 * MIB);
        let pool = pool_on(rack.host(1)).await;
        let size_bytes = pool.free_blocks() * BLOCK;
        pool.create_volume(&sparse("v", size_bytes + BLOCK, &[])).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let refused = pool.set_volume("v", "reservation", "auto").await.unwrap_err();
        let VolumeError::NoSpace { needed_bytes, wanted_for, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!((needed_bytes, wanted_for), (size_bytes + BLOCK - MIB, SpaceFor::Reservation));
        drop(v);
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        assert_eq!(status(&pool, "v").reserved_bytes, 0);
        // One block less fits.
        pool.resize_volume("v", size_bytes, true).await.unwrap();
        pool.set_volume("v", "reservation", "auto").await.unwrap();
        assert_eq!((status(&pool, "v").reserved_bytes, pool.free_blocks()), (size_bytes, 0));
        // It has it already.
        let v = pool.open_volume("v").unwrap();
        v.write(2 * MIB, stamp(1 << 20, 2), false).await.unwrap();
        pool.set_volume("v", "reservation", "auto").await.unwrap();
        assert_eq!((pool.free_blocks(), pool.summary().overdrawn_bytes), (0, 0));
        drop(v);
        pool.export().await.unwrap();
    });
}

async fn is_gone(device: &Device) -> bool {
    device.read(0, IoBuf::zeroed(4096)).await.is_err()
}

#[test]
fn snapshots_go_for_their_readers_with_their_volume_and_its_name() {
    Runtime::simulated(118).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(MIB)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        let by_old_name = pool.open_snapshot("v@a").unwrap();
        pool.rename_volume("v", "w").await.unwrap();
        assert!(is_gone(&by_old_name).await);
        let by_new_name = pool.open_snapshot("w@a").unwrap();
        expect(&by_new_name, 0, &stamp(4096, 1)).await;
        expect(&v, 0, &stamp(4096, 1)).await;
        let (_, a) = pool.snapshot_named("w@a").unwrap();
        pool.note_lost_block(a.id, Lba(0));
        pool.note_lost_block(a.volume, Lba(0));
        assert_eq!(pool.lost().1, 2);
        pool.destroy_volume("w", true).await.unwrap();
        assert!(is_gone(&by_new_name).await && is_gone(&v).await);
        assert_eq!(pool.lost(), (Vec::new(), 0), "what is no more has lost nothing");
        drop((v, by_old_name, by_new_name));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_with_snapshots_is_destroyed_only_with_them() {
    Runtime::simulated(119).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(MIB)).await.unwrap();
        pool.take_snapshots(&names(&["v@a", "v@b"])).await.unwrap();
        let has = VolumeError::HasSnapshots { name: "tank/v".into(), count: 2 };
        assert_eq!(pool.check_destroy_volume("v", false), Err(has.clone()));
        assert_eq!(pool.destroy_volume("v", false).await, Err(has));
        pool.hold_snapshot("v@b", "kept", false).await.unwrap();
        let held = VolumeError::IsHeld { name: "tank/v@b".into(), tags: names(&["kept"]) };
        assert_eq!(pool.check_destroy_volume("v", true), Err(held.clone()));
        assert_eq!(pool.destroy_volume("v", true).await, Err(held));
        pool.hold_snapshot("v@b", "kept", true).await.unwrap();
        assert_eq!(pool.check_destroy_volume("v", true), Ok(()));
        assert_eq!(pool.volumes().len(), 1, "a check changes nothing");
        pool.destroy_volume("v", true).await.unwrap();
        assert!(pool.volumes().is_empty());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_check_refuses_what_its_command_refuses() {
    Runtime::simulated(120).block_on(async {
        let pool = made(64 * MIB).await;
        for name in ["v", "w"] {
            pool.create_volume(&sparse(name, MIB, &[])).await.unwrap();
        }
        pool.take_snapshots(&names(&["v@a", "v@b"])).await.unwrap();
        let clone = CloneSpec { name: "c".into(), properties: Default::default() };
        pool.clone_snapshot("v@a", &clone).await.unwrap();
        let before = format!("{:?} {:?}", pool.volumes(), pool.list_snapshots().await);
        let (a, none) = (names(&["v@a"]), names(&["v@none"]));
        for (check, command) in [
            (pool.check_destroy_snapshots(&a), pool.destroy_snapshots(&a).await),
            (pool.check_destroy_snapshots(&none), pool.destroy_snapshots(&none).await),
            (pool.check_rename_volume("v", "w"), pool.rename_volume("v", "w").await),
            (pool.check_rename_volume("x", "y"), pool.rename_volume("x", "y").await),
            (pool.check_rename_snapshot("v@a", "b"), pool.rename_snapshot("v@a", "b").await),
            (pool.check_promote("v"), pool.promote_volume("v").await),
            (pool.check_roll_back("v@a", false).await, pool.roll_back_volume("v@a", false).await),
        ] {
            assert_eq!(check, command);
            assert!(check.is_err());
        }
        let exists = VolumeError::SnapshotExists { name: "tank/v@b".into() };
        assert_eq!(pool.rename_snapshot("v@a", "b").await, Err(exists));
        for check in [
            pool.check_destroy_snapshots(&names(&["v@b"])),
            pool.check_rename_volume("v", "x"),
            pool.check_rename_snapshot("v@a", "x"),
            pool.check_promote("c"),
            pool.check_roll_back("v@b", false).await,
        ] {
            assert_eq!(check, Ok(()));
        }
        // Nor does a volume change that is not whole.
        for name in ["c", "v"] {
            let state = pool.volume_named(name).unwrap();
            state.arrival.set(Arrival::Underway);
            let part = VolumeError::Receiving { name: format!("tank/{name}"), is_underway: true };
            assert_eq!(pool.check_promote("c"), Err(part.clone()));
            assert_eq!(pool.check_destroy_volume(name, true), Err(part.clone()));
            assert_eq!(pool.check_rename_volume(name, "x"), Err(part));
            state.arrival.set(Arrival::Whole);
        }
        assert_eq!(format!("{:?} {:?}", pool.volumes(), pool.list_snapshots().await), before);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_was_destroyed_does_not_come_back() {
    let rack = Rack::new(&["a", "l"], 64 * MIB);
    let mine = rack.clone();
    let first = Runtime::simulated(133);
    first.block_on(async move {
        let pool = pool_on(mine.host(1)).await;
        for name in ["v", "w"] {
            pool.create_volume(&named(name, MIB)).await.unwrap();
        }
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        pool.destroy_volume("v", true).await.unwrap();
    });
    // A crash.
    drop(first);
    Runtime::simulated(134).block_on(async move {
        let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        let left: Vec<String> = pool.volumes().into_iter().map(|volume| volume.name).collect();
        assert_eq!(left, ["tank/w"]);
        assert!(pool.list_snapshots().await.is_empty());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_says_what_its_status_says_and_takes_only_properties_that_there_are() {
    Runtime::simulated(135).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(8 * MIB)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let (all, summary) = (pool.get(), pool.summary());
        for (name, number) in [
            ("guid", summary.guid),
            ("version", u64::from(summary.format_version)),
            ("size", summary.raw_size_bytes),
            ("allocated", summary.raw_alloc_bytes),
            ("free", summary.raw_free_bytes),
            ("usable", summary.size_bytes),
            ("available", summary.available_bytes),
        ] {
            assert_eq!(all[name], number.to_string(), "{name}");
        }
        assert_eq!((all["health"].as_str(), all["failmode"].as_str()), ("ONLINE", "wait"));
        for (property, value) in [("odd", "on"), ("failmode", "panic"), ("guid", "7")] {
            let refused = pool.set(property, value).await.unwrap_err();
            assert!(matches!(refused, AdminError::Property(_)), "{refused}");
        }
        assert_eq!(pool.get(), all);
        drop(v);
        pool.export().await.unwrap();
    });
}

// The time of a log device is for log devices alone.
#[test]
fn a_data_device_is_waited_for_as_long_as_its_property_says() {
    Runtime::simulated(136).block_on(async {
        let is_slow = Rc::new(Cell::new(false));
        let told = is_slow.clone();
        let pace = move |device: &str, operation: Operation, _: u64| {
            let waits = told.get() && device == "a" && operation == Operation::Write;
            waits.then_some(Nanos::from_secs(9))
        };
        let pool = pool_on(paced(memory(&["a", "l"], 64 * MIB), pace)).await;
        pool.create_volume(&volume(MIB)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        is_slow.set(true);
        pool.sync().await.unwrap();
        is_slow.set(false);
        assert_eq!(pool.summary().health, Health::Online);
        pool.set("device_timeout", "3").await.unwrap();
        v.write(0, stamp(4096, 2), false).await.unwrap();
        is_slow.set(true);
        pool.sync().await.unwrap_err();
        assert_eq!(pool.summary().health, Health::Suspended);
    });
}

#[test]
fn a_new_pool_is_there_after_a_crash_and_in_use_for_others() {
    let rack = Rack::new(&["a", "l"], 64 * MIB);
    let mine = rack.clone();
    let first = Runtime::simulated(138);
    first.block_on(async move {
        pool_on(mine.host(1)).await;
    });
    // A crash.
    drop(first);
    Runtime::simulated(139).block_on(async move {
        let (paths, options) = (names(&["a", "l"]), ImportOptions::default());
        let refused = Pool::import(rack.host(2), &paths, "tank", &options).await.err().unwrap();
        assert!(matches!(refused.kind, ImportErrorKind::NotExportedElsewhere), "{refused}");
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        pool.create_volume(&volume(MIB)).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_has_a_limited_number_of_tags() {
    Runtime::simulated(142).block_on(async {
        let pool = made(64 * MIB).await;
        pool.create_volume(&volume(MIB)).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        for number in 0..MAX_HOLDS {
            pool.hold_snapshot("v@a", &format!("t{number}"), false).await.unwrap();
        }
        let full = VolumeError::TooManyHolds { name: "tank/v@a".into() };
        assert_eq!(pool.hold_snapshot("v@a", "more", false).await, Err(full));
        let tag = |tag: &str, is_there| {
            let (name, tag) = ("tank/v@a".to_owned(), tag.to_owned());
            Err(VolumeError::Tag { name, tag, is_there })
        };
        assert_eq!(pool.hold_snapshot("v@a", "t0", false).await, tag("t0", true));
        assert_eq!(pool.hold_snapshot("v@a", "more", true).await, tag("more", false));
        pool.hold_snapshot("v@a", "t0", true).await.unwrap();
        pool.hold_snapshot("v@a", "more", false).await.unwrap();
        let holds = pool.list_snapshots().await.remove(0).holds;
        assert_eq!(holds.len(), MAX_HOLDS);
        assert!(holds.contains(&"more".to_owned()) && !holds.contains(&"t0".to_owned()));
        pool.export().await.unwrap();
    });
}
