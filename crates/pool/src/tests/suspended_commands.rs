//! Commands on volumes of a suspended pool: refused before anything is touched.

use std::collections::BTreeSet;

use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{CloneSpec, VolumeSpec};
use crate::status::Health;
use crate::{CommitError, Pool, VolumeError};

const SIZE: u64 = 64 << 20;

fn clone(name: &str) -> CloneSpec {
    CloneSpec { name: name.into(), properties: Default::default() }
}

/// What each command on volumes says.
async fn try_all(pool: &Pool) -> Vec<Result<(), VolumeError>> {
    let new = VolumeSpec { name: "new".into(), ..volume(1 << 20) };
    vec![
        pool.create_volume(&new).await,
        pool.set_volume("v", "comment", "x").await,
        pool.resize_volume("v", 8 << 20, true).await,
        pool.take_snapshots(&names(&["v@new"])).await,
        pool.hold_snapshot("v@s", "x", false).await,
        pool.rename_snapshot("v@s", "t").await,
        pool.clone_snapshot("v@s", &clone("new")).await,
        pool.promote_volume("c").await,
        pool.rename_volume("v", "new").await,
        pool.roll_back_volume("v@s", false).await,
        pool.destroy_snapshots(&names(&["w@u"])).await,
        pool.destroy_volume("w", false).await,
    ]
}

#[test]
fn commands_on_volumes_of_a_suspended_pool_change_nothing() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "l"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let other = VolumeSpec { name: "w".into(), ..volume(4 << 20) };
        pool.create_volume(&other).await.unwrap();
        for snapshot in ["v@s", "w@u"] {
            pool.take_snapshots(&names(&[snapshot])).await.unwrap();
        }
        pool.clone_snapshot("v@s", &clone("c")).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        rack.switches.works_for.set(Some(0));
        let _ = pool.sync().await;
        assert_eq!(pool.summary().health, Health::Suspended);
        let state = async || format!("{:?} {:?}", pool.volumes(), pool.list_snapshots().await);
        let before = state().await;
        for (at, said) in try_all(&pool).await.into_iter().enumerate() {
            let suspended = matches!(said, Err(VolumeError::Suspended { .. }));
            assert!(suspended, "command {at}: {said:?}");
        }
        assert_eq!(state().await, before);
        expect(&v, 0, &stamp(4096, 1)).await;
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(&["a", "l"])).await.unwrap();
        expect(&v, 0, &stamp(4096, 1)).await;
        next.destroy_volume("w", true).await.unwrap();
        drop(v);
        next.export().await.unwrap();
    });
}

#[test]
fn a_command_during_which_the_pool_is_suspended_says_that_its_commit_failed() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "l"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
        rack.switches.works_for.set(Some(0));
        let said = pool.create_volume(&volume(4 << 20)).await.unwrap_err();
        assert!(matches!(said, VolumeError::Commit(CommitError::Suspended(_))), "{said}");
        let _ = pool.export().await;
    });
}

#[test]
fn an_open_volume_shows_its_size_after_a_change_that_failed_with_the_pool() {
    const BEFORE: u64 = 4 << 20;
    let mut sizes = BTreeSet::new();
    for (works_for, to) in (0..40).flat_map(|n| [(n, 2 << 20), (n, 8 << 20)]) {
        let found = Runtime::simulated(1 + works_for).block_on(async move {
            let rack = Rack::new(&["a", "l"], SIZE);
            let options = spec(Layout::Raid0, &["a"], &["l"]);
            let pool = Pool::create(rack.locked(), "tank", &options).await.unwrap();
            pool.create_volume(&volume(BEFORE)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(BEFORE - 4096, stamp(4096, 1), false).await.unwrap();
            rack.switches.works_for.set(Some(works_for));
            if pool.resize_volume("v", to, true).await.is_ok() {
                return None;
            }
            rack.switches.works_for.set(None);
            let next = pool.resume(&names(&["a", "l"])).await.unwrap();
            let size = v.geometry().size_bytes;
            assert_eq!(size, next.open_volume("v").unwrap().geometry().size_bytes);
            v.write(size - 4096, stamp(4096, 2), true).await.unwrap();
            expect(&v, size - 4096, &stamp(4096, 2)).await;
            drop(v);
            next.export().await.unwrap();
            Some(size)
        });
        sizes.extend(found);
    }
    assert_eq!(sizes, BTreeSet::from([2 << 20, BEFORE, 8 << 20]));
}
