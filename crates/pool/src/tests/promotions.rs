//! Promotion of clones: names, properties and figures, what is refused, streams and changed blocks
//! across it, and contents under the cleaner, crashes and failed devices.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos, VolumeId};

use super::rack::memory;
use super::transfers::{PLAIN, receive, sent, since, snapshot, target, whole};
use super::{expect, names, spec, stamp, volume};
use crate::snapshots::AtGroupEnd;
use crate::spec::{CloneSpec, ImportOptions, VolumeSpec};
use crate::status::ScanPhase;
use crate::{Opener, Pool, SpaceFor, VolumeError};

const BLOCK: u64 = 4096;
const DEVICES: [&str; 4] = ["a", "b", "c", "l"];

async fn pool_with(properties: &[(&str, &str)], sparse: bool) -> (Rc<Pool>, Rc<dyn Opener>) {
    let shelf: Rc<dyn Opener> = memory(&DEVICES, 64 << 20);
    let spec = spec(Layout::Raidz1, &DEVICES[..3], &["l"]);
    let pool = Pool::create(shelf.clone(), "tank", &spec).await.unwrap();
    let properties = properties.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let v = VolumeSpec { sparse, properties: properties.collect(), ..volume(8 << 20) };
    pool.create_volume(&v).await.unwrap();
    (pool, shelf)
}

async fn clone(pool: &Pool, snapshot: &str, name: &str) {
    let spec = CloneSpec { name: name.into(), properties: BTreeMap::new() };
    pool.clone_snapshot(snapshot, &spec).await.unwrap();
}

async fn imported(shelf: &Rc<dyn Opener>, force: bool) -> Rc<Pool> {
    let options = ImportOptions { force, ..ImportOptions::default() };
    Pool::import(shelf.clone(), &names(&DEVICES), "tank", &options).await.unwrap()
}

fn volume_of(pool: &Rc<Pool>, name: &str) -> Device {
    pool.open_volume(name).unwrap()
}

async fn snapshot_names(pool: &Pool) -> Vec<String> {
    pool.list_snapshots().await.into_iter().map(|snapshot| snapshot.name).collect()
}

async fn scrub_is_clean(pool: &Pool) {
    pool.scrub().await.unwrap();
    let scan = loop {
        rt::sleep(Nanos::from_millis(100)).await;
        let scan = pool.status().scan.unwrap();
        if scan.state != ScanPhase::InProgress {
            break scan;
        }
    };
    assert_eq!((scan.errors, scan.repaired_bytes), (0, 0));
}

/// @a and @b of `v`, a clone `c` of @b, and @d of each, all of which differ.
async fn branch(pool: &Rc<Pool>) {
    let v = volume_of(pool, "v");
    v.write(0, stamp(256 << 10, 1), false).await.unwrap();
    snapshot(pool, "v@a").await;
    v.write(16 << 10, stamp(16 << 10, 2), false).await.unwrap();
    snapshot(pool, "v@b").await;
    clone(pool, "v@b", "c").await;
    let c = volume_of(pool, "c");
    c.write(64 << 10, stamp(16 << 10, 3), false).await.unwrap();
    c.discard(96 << 10, 16 << 10, false).await.unwrap();
    v.write(128 << 10, stamp(16 << 10, 4), false).await.unwrap();
    v.discard(160 << 10, 16 << 10, false).await.unwrap();
    v.write(1 << 20, stamp(4096, 5), false).await.unwrap();
    pool.take_snapshots(&names(&["v@d", "c@e"])).await.unwrap();
    c.write(0, stamp(4096, 6), true).await.unwrap();
    v.write(8192, stamp(4096, 7), true).await.unwrap();
}

/// The versions of [`branch`], where `old` has @a and @b.
async fn expect_branch(pool: &Rc<Pool>, old: &str) {
    let patched = |base: &[u8], at: usize, data: &[u8]| {
        let mut now = base.to_vec();
        now[at..at + data.len()].copy_from_slice(data);
        now
    };
    let a = stamp(256 << 10, 1).to_vec();
    let b = patched(&a, 16 << 10, &stamp(16 << 10, 2));
    let e = patched(&b, 64 << 10, &stamp(16 << 10, 3));
    let e = patched(&e, 96 << 10, &[0; 16 << 10]);
    let d = patched(&b, 128 << 10, &stamp(16 << 10, 4));
    let d = patched(&d, 160 << 10, &[0; 16 << 10]);
    let c = patched(&e, 0, &stamp(4096, 6));
    let v = patched(&d, 8192, &stamp(4096, 7));
    expect(&volume_of(pool, "v"), 0, &v).await;
    expect(&volume_of(pool, "c"), 0, &c).await;
    for (volume, name, data) in [(old, "a", a), (old, "b", b), ("v", "d", d), ("c", "e", e)] {
        let device = pool.open_snapshot(&format!("{volume}@{name}")).unwrap();
        expect(&device, 0, &data).await;
        let last = if name == "d" { stamp(4096, 5).to_vec() } else { vec![0; 4096] };
        expect(&device, 1 << 20, &last).await;
    }
}

#[test]
fn a_clone_and_its_volume_change_places() {
    for (properties, sparse) in [
        (&[][..], false),
        (&[("compression", "zstd-1")][..], true),
        (&[("dedup", "on")][..], true),
        (&[("dedup", "verify"), ("compression", "lz4")][..], true),
    ] {
        Runtime::simulated(1).block_on(async move {
            let (mut pool, shelf) = pool_with(properties, sparse).await;
            branch(&pool).await;
            pool.sync().await.unwrap();
            let taken = pool.summary().alloc_bytes;
            let free = pool.summary().available_bytes;
            pool.hold_snapshot("v@a", "backup", false).await.unwrap();
            for old in ["c", "v", "c"] {
                let new = if old == "c" { "v" } else { "c" };
                pool.promote_volume(old).await.unwrap();
                expect_branch(&pool, old).await;
                let status = |name: &str| pool.get_volume(name).unwrap();
                assert_eq!(status(new).origin.unwrap(), format!("tank/{old}@b"));
                assert_eq!(status(old).origin, None);
                let mut expected = [("c", "e"), (old, "a"), (old, "b"), ("v", "d")]
                    .map(|(volume, name)| format!("tank/{volume}@{name}"));
                expected.sort();
                let mut listed = snapshot_names(&pool).await;
                listed.sort();
                assert_eq!(listed, expected);
                assert_eq!(pool.summary().alloc_bytes, taken, "nothing was written or freed");
                assert_eq!(pool.summary().available_bytes, free);
                let held = format!("{old}@a");
                let refused = pool.destroy_snapshots(&[held]).await;
                assert!(matches!(refused, Err(VolumeError::IsHeld { .. })));
                let refused = pool.destroy_volume(old, true).await;
                assert!(matches!(
                    refused,
                    Err(VolumeError::HasClones { .. } | VolumeError::IsHeld { .. })
                ));
                pool.export().await.unwrap();
                drop(pool);
                pool = imported(&shelf, false).await;
                expect_branch(&pool, old).await;
            }
            scrub_is_clean(&pool).await;
            // The volume may go now, and the clone keeps what they shared.
            pool.destroy_volume("v", true).await.unwrap();
            pool.hold_snapshot("c@a", "backup", true).await.unwrap();
            pool.offline("b").await.unwrap();
            expect(&volume_of(&pool, "c"), 128 << 10, &stamp(256 << 10, 1)[128 << 10..]).await;
            let a = pool.open_snapshot("c@a").unwrap();
            expect(&a, 0, &stamp(256 << 10, 1)).await;
            drop(a);
            pool.roll_back_volume("c@a", true).await.unwrap();
            expect(&volume_of(&pool, "c"), 0, &stamp(256 << 10, 1)).await;
            pool.online("b").await.unwrap();
            pool.destroy_volume("c", true).await.unwrap();
            pool.sync().await.unwrap();
            assert_eq!(pool.summary().alloc_bytes, 0);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_cannot_be_promoted_is_refused_and_stays() {
    Runtime::simulated(1).block_on(async {
        let (pool, _) = pool_with(&[], true).await;
        let refused = pool.promote_volume("v").await;
        assert!(matches!(refused, Err(VolumeError::NotAClone { name }) if name == "tank/v"));
        let refused = pool.promote_volume("x").await;
        assert!(matches!(refused, Err(VolumeError::NotFound { .. })));
        branch(&pool).await;
        snapshot(&pool, "c@a").await;
        let refused = pool.promote_volume("c").await;
        let Err(VolumeError::SnapshotsExist { name, snapshots }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((name.as_str(), snapshots), ("tank/c", vec!["a".to_owned()]));
        expect_branch(&pool, "v").await;
        pool.rename_snapshot("c@a", "f").await.unwrap();
        pool.sync.version.set(8);
        let refused = pool.promote_volume("c").await;
        assert!(matches!(refused, Err(VolumeError::OldFormat { version: 8, needed: 9, .. })));
        pool.upgrade().await.unwrap();
        let open = pool.open_snapshot("v@a").unwrap();
        pool.promote_volume("c").await.unwrap();
        // A client of the old name has lost it.
        assert!(open.read(0, forebay_device::IoBuf::zeroed(4096)).await.is_err());
        expect_branch(&pool, "c").await;
        pool.export().await.unwrap();
    });
}

#[test]
fn streams_and_changed_blocks_go_across_a_promotion() {
    Runtime::simulated(1).block_on(async {
        let (tank, _) = pool_with(&[], true).await;
        branch(&tank).await;
        let back = target().await;
        receive(&back, &sent(&tank, &whole("v@a")).await, PLAIN).await.unwrap();
        clone(&back, "w@a", "x").await;
        tank.promote_volume("c").await.unwrap();
        // The snapshot has another name, and is the same for a pool that has received it.
        receive(&back, &sent(&tank, &since("b", "c@e")).await, PLAIN).await.unwrap_err();
        receive(&back, &sent(&tank, &since("a", "c@b")).await, PLAIN).await.unwrap();
        receive(&back, &sent(&tank, &since("b", "c@e")).await, PLAIN).await.unwrap();
        for name in ["b", "e"] {
            let mut sides = Vec::new();
            for (pool, volume) in [(&tank, "c"), (&back, "w")] {
                let device = pool.open_snapshot(&format!("{volume}@{name}")).unwrap();
                let buf = forebay_device::IoBuf::zeroed(8 << 20);
                sides.push(device.read(0, buf).await.unwrap());
            }
            assert!(sides[0][..] == sides[1][..], "@{name}");
        }
        // So is one that was received, for the next pool.
        back.promote_volume("x").await.unwrap();
        let far = target().await;
        receive(&far, &sent(&back, &whole("x@a")).await, PLAIN).await.unwrap();
        receive(&far, &sent(&tank, &since("a", "c@b")).await, PLAIN).await.unwrap();
        let base = tank.snapshot_before("c", "b").unwrap();
        let changed = |name: &str, at: u64| {
            let runs = tank.changes_since(name, base, at, 4096).unwrap();
            runs[0].changed
        };
        for (at, is_changed) in [(0, true), (16 << 10, false), (64 << 10, true), (96 << 10, true)] {
            assert_eq!(changed("c", at), is_changed, "offset {at}");
        }
        assert!(!changed("c@e", 0) && changed("c@e", 64 << 10));
        assert_eq!(tank.snapshots_before("c@e").unwrap(), ["a", "b"]);
        assert_eq!(tank.snapshots_before("v").unwrap(), ["d"]);
        for pool in [tank, back, far] {
            pool.export().await.unwrap();
        }
    });
}

#[test]
fn an_answered_promotion_survives_a_crash() {
    let shelf: Rc<dyn Opener> = memory(&DEVICES, 64 << 20);
    let kept = shelf.clone();
    let world = Runtime::simulated(1);
    world.block_on(async move {
        let spec = spec(Layout::Raidz1, &DEVICES[..3], &["l"]);
        let pool = Pool::create(kept, "tank", &spec).await.unwrap();
        pool.create_volume(&VolumeSpec { sparse: true, ..volume(8 << 20) }).await.unwrap();
        branch(&pool).await;
        pool.promote_volume("c").await.unwrap();
        volume_of(&pool, "v").write(4 << 20, stamp(4096, 8), true).await.unwrap();
        volume_of(&pool, "c").write(4 << 20, stamp(4096, 9), true).await.unwrap();
    });
    drop(world);
    Runtime::simulated(2).block_on(async move {
        let pool = imported(&shelf, true).await;
        expect_branch(&pool, "c").await;
        expect(&volume_of(&pool, "v"), 4 << 20, &stamp(4096, 8)).await;
        expect(&volume_of(&pool, "c"), 4 << 20, &stamp(4096, 9)).await;
        // Blocks that moved to another volume are still found by the cleaner.
        clean_segments(&pool).await;
        expect_branch(&pool, "c").await;
        scrub_is_clean(&pool).await;
        pool.export().await.unwrap();
    });
}

/// Overwrites a volume until the cleaner has moved what lies between.
async fn clean_segments(pool: &Rc<Pool>) {
    let ballast = VolumeSpec { name: "ballast".into(), ..volume(64 << 20) };
    pool.create_volume(&ballast).await.unwrap();
    let ballast = volume_of(pool, "ballast");
    for round in 0..3 {
        for at in 0..(64 << 20) / (256 << 10) {
            let at = (at * 37 % 256) * (256 << 10);
            ballast.write(at, stamp(192 << 10, round), false).await.unwrap();
        }
    }
    for block in (0..64).map(|block| block * 16 * BLOCK) {
        ballast.write(block, stamp(4096, block), false).await.unwrap();
        pool.sync().await.unwrap();
    }
    assert!(pool.stats().segments.cleaned > 0);
}

// The second one takes blocks that the first one's volume wrote.
#[test]
fn blocks_that_changed_volumes_twice_are_found_by_the_cleaner() {
    for imports in [false, true] {
        Runtime::simulated(6).block_on(async move {
            let (mut pool, shelf) = pool_with(&[], true).await;
            let v = volume_of(&pool, "v");
            v.write(0, stamp(1 << 20, 1), false).await.unwrap();
            snapshot(&pool, "v@a").await;
            clone(&pool, "v@a", "c").await;
            let c = volume_of(&pool, "c");
            c.write(512 << 10, stamp(512 << 10, 2), false).await.unwrap();
            snapshot(&pool, "c@b").await;
            clone(&pool, "c@b", "d").await;
            for volume in [&v, &c] {
                volume.write(0, stamp(1 << 20, 3), false).await.unwrap();
            }
            pool.promote_volume("c").await.unwrap();
            pool.promote_volume("d").await.unwrap();
            drop((v, c));
            if imports {
                pool.export().await.unwrap();
                pool = imported(&shelf, false).await;
            }
            clean_segments(&pool).await;
            let a = pool.open_snapshot("d@a").unwrap();
            expect(&a, 0, &stamp(1 << 20, 1)).await;
            let d = volume_of(&pool, "d");
            expect(&d, 0, &stamp(1 << 20, 1)[..512 << 10]).await;
            expect(&d, 512 << 10, &stamp(512 << 10, 2)).await;
            scrub_is_clean(&pool).await;
            drop((a, d));
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_promotion_needs_room_for_what_it_moves_in_the_map() {
    Runtime::simulated(121).block_on(async {
        let (pool, _) = pool_with(&[], true).await;
        let v = volume_of(&pool, "v");
        for salt in [0, 1024] {
            for block in 0..1024 {
                v.write(2 * block * BLOCK, stamp(4096, block + salt), false).await.unwrap();
            }
            snapshot(&pool, &format!("v@{salt}")).await;
        }
        clone(&pool, "v@1024", "c").await;
        assert_eq!(pool.snapshots_to_promote("c").unwrap(), ["v@0", "v@1024"]);
        assert!(matches!(pool.snapshots_to_promote("v"), Err(VolumeError::NotAClone { .. })));
        let rest = |bytes: u64| VolumeSpec { name: "rest".into(), ..volume(bytes) };
        pool.sync().await.unwrap();
        pool.create_volume(&rest(pool.free_blocks() * BLOCK)).await.unwrap();
        let refused = pool.promote_volume("c").await.unwrap_err();
        let VolumeError::NoSpace { free_bytes, needed_bytes, wanted_for, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!((free_bytes, wanted_for), (0, SpaceFor::Promotion));
        let needed = needed_bytes / BLOCK;
        assert!(needed > 2, "{needed}");
        let size_bytes = pool.get_volume("rest").unwrap().size_bytes;
        let leave = async |free: u64| {
            pool.resize_volume("rest", size_bytes - free * BLOCK, true).await.unwrap();
            assert_eq!(pool.free_blocks(), free);
        };
        leave(needed - 1).await;
        assert!(matches!(pool.promote_volume("c").await, Err(VolumeError::NoSpace { .. })));
        leave(needed).await;
        pool.promote_volume("c").await.unwrap();
        assert_eq!(snapshot_names(&pool).await, ["tank/c@0", "tank/c@1024"]);
        pool.export().await.unwrap();
    });
}

// The configuration keeps them, and has room for a few.
#[test]
fn volumes_that_wrote_blocks_of_another_are_listed_once() {
    Runtime::simulated(141).block_on(async {
        let (pool, _) = pool_with(&[], true).await;
        for (snapshot_name, clone_name) in [("v@a", "c"), ("c@b", "d")] {
            snapshot(&pool, snapshot_name).await;
            clone(&pool, snapshot_name, clone_name).await;
        }
        for name in ["c", "d", "v", "d", "v", "d"] {
            pool.promote_volume(name).await.unwrap();
        }
        let config = pool.config.borrow().clone();
        let ids: Vec<u32> = config.volumes.iter().map(|volume| volume.id).collect();
        for volume in &config.volumes {
            let mut once = volume.writers.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), volume.writers.len(), "{}: {volume:?}", volume.name);
            assert!(once.iter().all(|id| ids.contains(id) && *id != volume.id));
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn the_end_of_a_group_with_a_promotion_is_not_empty() {
    assert!(AtGroupEnd::default().is_empty());
    let promoted = Some(VolumeId(3));
    assert!(!AtGroupEnd { promoted, ..AtGroupEnd::default() }.is_empty());
    let rolled_back = vec![VolumeId(3)];
    assert!(!AtGroupEnd { rolled_back, ..AtGroupEnd::default() }.is_empty());
}

#[test]
fn a_received_snapshot_that_stays_behind_is_a_base_for_the_next_stream() {
    Runtime::simulated(2).block_on(async {
        let (tank, _) = pool_with(&[], true).await;
        let v = volume_of(&tank, "v");
        let back = target().await;
        let mut before = None;
        for (salt, name) in ["a", "b", "c"].into_iter().enumerate() {
            v.write(0, stamp(64 << 10, salt as u64), false).await.unwrap();
            snapshot(&tank, &format!("v@{name}")).await;
            let to = format!("v@{name}");
            let options = before.map_or(whole(&to), |before| since(before, &to));
            receive(&back, &sent(&tank, &options).await, PLAIN).await.unwrap();
            before = Some(name);
            if name == "b" {
                clone(&back, "w@a", "x").await;
                back.promote_volume("x").await.unwrap();
                assert_eq!(snapshot_names(&back).await, ["back/w@b", "back/x@a"]);
            }
        }
        expect(&back.open_snapshot("w@c").unwrap(), 0, &stamp(64 << 10, 2)).await;
        expect(&back.open_snapshot("x@a").unwrap(), 0, &stamp(64 << 10, 0)).await;
        for pool in [tank, back] {
            pool.export().await.unwrap();
        }
    });
}
