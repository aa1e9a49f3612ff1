//! What is shown of a pool that was found: how it can be imported, its log, members that wait for a
//! resilver, replacements, and cache devices.

use std::rc::Rc;

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::imports::{make, until_crash, write};
use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::{FoundPool, Health, Importable, VdevKind, VdevNote};
use crate::{ImportErrorKind, Pool};

const ALL: [&str; 7] = ["a", "b", "c", "d", "l", "m", "k"];
const SIZE: u64 = 64 << 20;

async fn seen(rack: &Rc<Rack>) -> FoundPool {
    let mut found = Pool::discover(rack.host(1), &names(&ALL)).await;
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn a_pool_is_shown_as_exported_once_it_was() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
    });
    Runtime::simulated(2).block_on(async move {
        assert_eq!(seen(&rack).await.importable, Importable::NotExported);
        let pool = super::imports::import(&rack, 1, &Default::default()).await.unwrap();
        pool.export().await.unwrap();
        assert_eq!(seen(&rack).await.importable, Importable::Exported);
    });
}

#[test]
fn a_log_without_a_side_is_degraded_and_without_all_it_degrades_the_pool() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        make(&rack, Layout::Mirror, &["a", "b"], &["l", "m"]).await.export().await.unwrap();
        let states = async || {
            let found = seen(&rack).await;
            (found.state, found.logs[0].state, found.importable)
        };
        let (online, degraded) = (Health::Online, Health::Degraded);
        assert_eq!(states().await, (online, online, Importable::Exported));
        rack.pull(&["l"]);
        assert_eq!(states().await, (degraded, degraded, Importable::Exported));
        rack.pull(&["m"]);
        let without = Importable::WithoutLog { loses_writes: false };
        assert_eq!(states().await, (degraded, Health::Unavail, without));
    });
}

#[test]
fn a_pool_is_as_well_as_its_worst_group() {
    Runtime::simulated(7422).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        make(&rack, Layout::Raidz1, &["a", "b", "c"], &[]).await.export().await.unwrap();
        let states = async || {
            let found = seen(&rack).await;
            (found.state, found.groups[0].state)
        };
        assert_eq!(states().await, (Health::Online, Health::Online));
        rack.pull(&["c"]);
        assert_eq!(states().await, (Health::Degraded, Health::Degraded));
        rack.pull(&["b"]);
        assert_eq!(states().await, (Health::Unavail, Health::Unavail));
    });
}

#[test]
fn a_pool_that_cannot_be_imported_is_unavailable_although_its_devices_are_there() {
    Runtime::simulated(7423).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        make(&rack, Layout::Mirror, &["a", "b"], &[]).await.export().await.unwrap();
        let force = ImportOptions { force: true, ..ImportOptions::default() };
        for (mine, other) in [("a", "b"), ("b", "a")] {
            rack.pull(&[other]);
            let pool = super::imports::import(&rack, 1, &force).await.unwrap();
            pool.export().await.unwrap();
            let found = seen(&rack).await;
            assert_eq!((found.state, found.paths), (Health::Degraded, names(&[mine])));
            rack.put_back(&[other]);
        }
        let found = seen(&rack).await;
        assert_eq!(found.state, Health::Unavail);
        let is_right =
            matches!(found.importable, Importable::Refused(ImportErrorKind::Diverged { .. }));
        assert!(is_right, "{:?}", found.importable);
    });
}

#[test]
fn a_member_that_waits_for_a_resilver_is_shown_so() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        pool.offline("b").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..8 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.online("b").await.unwrap();
        pool.sync().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        let group = seen(&rack).await.groups.remove(0);
        let shown: Vec<_> = group.children.iter().map(|c| (c.state, c.note.clone())).collect();
        let waits = (Health::Online, Some(VdevNote::AwaitingResilver));
        assert_eq!(shown, [(Health::Online, None), waits]);
    });
}

#[test]
fn a_replacement_is_as_good_as_its_best_device() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        let v = pool.open_volume("v").unwrap();
        for at in 0..8 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.replace("b", Some("c"), false).await.unwrap();
        pool.sync().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        let replacing = async || {
            let slot = seen(&rack).await.groups.remove(0).children.remove(1);
            assert!(matches!(slot.kind, VdevKind::Replacing), "{slot:?}");
            assert_eq!(slot.children.len(), 2);
            slot.state
        };
        assert_eq!(replacing().await, Health::Online);
        // The new one has not got everything yet.
        rack.pull(&["b"]);
        assert_eq!(replacing().await, Health::Degraded);
    });
}

#[test]
fn the_cache_devices_of_a_pool_are_among_its_paths() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&ALL, SIZE);
        let options =
            PoolSpec { caches: names(&["k"]), ..spec(Layout::Mirror, &["a", "b"], &["l"]) };
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        write(&pool, 1).await;
        rt::sleep(Nanos::from_secs(1)).await;
        pool.export().await.unwrap();
        assert_eq!(seen(&rack).await.paths, ["a", "b", "l", "k"]);
    });
}
