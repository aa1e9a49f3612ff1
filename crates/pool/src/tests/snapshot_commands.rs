//! Commands on snapshots and clones that are refused, and what they say.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf};
use forebay_rt::Runtime;
use forebay_units::{Layout, VolumeId};

use super::rack::memory;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{CloneSpec, VolumeSpec};
use crate::{Pool, SpaceFor, VolumeError};

const MIB: u64 = 1 << 20;

async fn made(size_bytes: u64) -> Rc<Pool> {
    let shelf = memory(&["a", "l"], 64 << 20);
    let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &["l"])).await.unwrap();
    pool.create_volume(&volume(size_bytes)).await.unwrap();
    pool
}

fn clone(name: &str, properties: &[(&str, &str)]) -> CloneSpec {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    CloneSpec { name: name.to_owned(), properties: properties.iter().map(owned).collect() }
}

/// Volumes and their snapshots.
fn all(pool: &Pool) -> BTreeMap<String, Vec<String>> {
    let snapshots =
        |id| pool.snapshots.of(VolumeId(id)).into_iter().map(|snapshot| snapshot.name).collect();
    pool.volumes().into_iter().map(|volume| (volume.name, snapshots(volume.id))).collect()
}

#[test]
fn a_clone_needs_a_new_name_and_properties_that_there_are() {
    Runtime::simulated(6140).block_on(async {
        let pool = made(4 * MIB).await;
        pool.create_volume(&VolumeSpec { name: "w".into(), ..volume(MIB) }).await.unwrap();
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        let before = all(&pool);
        for name in ["v", "w", "", "a/b", "a@b"] {
            let refused = pool.clone_snapshot("v@s", &clone(name, &[])).await;
            assert!(refused.is_err(), "{name:?}");
        }
        for property in [("compression", "always"), ("sync", "perhaps"), ("colour", "blue")] {
            let refused = pool.clone_snapshot("v@s", &clone("c", &[property])).await;
            assert!(refused.is_err(), "{property:?}");
        }
        assert_eq!(all(&pool), before);
        pool.clone_snapshot("v@s", &clone("c", &[("sync", "always")])).await.unwrap();
        assert!(all(&pool).contains_key("tank/c"));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_keeps_its_name_when_the_new_one_is_none() {
    Runtime::simulated(6141).block_on(async {
        let pool = made(4 * MIB).await;
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        pool.take_snapshots(&names(&["v@t"])).await.unwrap();
        let before = all(&pool);
        for name in ["", "a@b", "a/b", "t", &"x".repeat(300)] {
            assert!(pool.rename_snapshot("v@s", name).await.is_err(), "{name:?}");
            assert!(pool.take_snapshots(&[format!("v@{name}")]).await.is_err(), "{name:?}");
        }
        assert_eq!(all(&pool), before);
        pool.rename_snapshot("v@s", "u").await.unwrap();
        assert_eq!(all(&pool)["tank/v"].len(), 2);
        pool.export().await.unwrap();
    });
}

/// The bytes that a refused command needed.
fn needed(refused: Result<(), VolumeError>, what: SpaceFor) -> u64 {
    match refused.unwrap_err() {
        VolumeError::NoSpace { needed_bytes, wanted_for, .. } if wanted_for == what => needed_bytes,
        other => panic!("{other}"),
    }
}

#[test]
fn what_has_too_little_room_says_how_much_it_needs() {
    Runtime::simulated(6142).block_on(async {
        let pool = made(24 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(20 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let free = pool.free_blocks() << 12;
        let rest = VolumeSpec { name: "rest".into(), ..volume(free - 2 * MIB) };
        pool.create_volume(&rest).await.unwrap();
        let refused = pool.take_snapshots(&names(&["v@s"])).await;
        assert_eq!(needed(refused, SpaceFor::Snapshot), 20 * MIB);
        pool.destroy_volume("rest", false).await.unwrap();
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        pool.resize_volume("v", 4 * MIB, true).await.unwrap();
        let free = pool.free_blocks() << 12;
        let rest = VolumeSpec { name: "rest".into(), ..volume(free - 2 * MIB) };
        pool.create_volume(&rest).await.unwrap();
        let refused = pool.roll_back_volume("v@s", false).await;
        assert_eq!(needed(refused, SpaceFor::Rollback), 20 * MIB);
        assert_eq!(v.geometry().size_bytes, 4 * MIB);
        pool.destroy_volume("rest", false).await.unwrap();
        pool.roll_back_volume("v@s", false).await.unwrap();
        assert_eq!(v.geometry().size_bytes, 24 * MIB);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn nothing_is_kept_of_snapshots_that_are_gone() {
    Runtime::simulated(6143).block_on(async {
        let pool = made(4 * MIB).await;
        let id = VolumeId(pool.volumes()[0].id);
        let v = pool.open_volume("v").unwrap();
        let figures = || (pool.snapshots.len(), pool.snapshots.is_empty(), pool.has_versions(id));
        assert_eq!((figures(), pool.snapshots.record_bytes()), ((0, true, false), 0));
        let all = names(&["v@a", "v@with-a-longer-name"]);
        for (at, name) in (0..).zip(&all) {
            v.write(at << 20, stamp(8192, at), false).await.unwrap();
            pool.take_snapshots(std::slice::from_ref(name)).await.unwrap();
        }
        assert_eq!(figures(), (2, false, true));
        assert!(pool.snapshots.record_bytes() > 40);
        pool.destroy_snapshots(&all).await.unwrap();
        for _ in 0..3 {
            v.write(0, stamp(4096, 9), false).await.unwrap();
            pool.sync().await.unwrap();
        }
        assert_eq!((figures(), pool.snapshots.record_bytes()), ((0, true, false), 0));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn clients_lose_a_snapshot_that_is_destroyed_or_has_another_name() {
    Runtime::simulated(6144).block_on(async {
        let pool = made(4 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        v.write(0, stamp(8192, 2), false).await.unwrap();
        let first = pool.open_snapshot("v@a").unwrap();
        assert!(first.geometry().read_only && first.name() == "tank/v@a");
        expect(&first, 0, &stamp(8192, 1)).await;
        let again = pool.open_snapshot("v@a").unwrap();
        pool.rename_snapshot("v@a", "b").await.unwrap();
        let lost = |device: Device| async move {
            device.read(0, IoBuf::zeroed(4096)).await.unwrap_err().kind == ErrorKind::Gone
        };
        assert!(lost(first).await && lost(again).await && pool.open_snapshot("v@a").is_none());
        let second = pool.open_snapshot("v@b").unwrap();
        assert_eq!(second.name(), "tank/v@b");
        expect(&second, 0, &stamp(8192, 1)).await;
        pool.destroy_snapshots(&names(&["v@b"])).await.unwrap();
        assert!(lost(second).await && pool.open_snapshot("v@b").is_none());
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_snapshot_may_have_the_name_of_one_that_was_just_destroyed() {
    Runtime::simulated(6145).block_on(async {
        let pool = made(4 * MIB).await;
        let v = pool.open_volume("v").unwrap();
        for round in 0..3 {
            v.write(0, stamp(1 << 20, round), false).await.unwrap();
            pool.take_snapshots(&names(&["v@a"])).await.unwrap();
            v.write(0, stamp(1 << 20, 10 + round), false).await.unwrap();
            pool.sync().await.unwrap();
            pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
            pool.take_snapshots(&names(&["v@a"])).await.unwrap();
            for _ in 0..3 {
                v.write(2 << 20, stamp(4096, round), false).await.unwrap();
                pool.sync().await.unwrap();
            }
            let a = pool.open_snapshot("v@a").expect("the second one");
            expect(&a, 0, &stamp(1 << 20, 10 + round)).await;
            pool.destroy_snapshots(&names(&["v@a"])).await.unwrap();
            assert!(pool.open_snapshot("v@a").is_none());
        }
        drop(v);
        pool.export().await.unwrap();
    });
}
