//! Configurations that leave little room in the label: what makes them longer is refused.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::PoolConfig;
use forebay_format::label::CONFIG_SLOT_BYTES;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{names, spec, volume};
use crate::admin::volumes::check_fits;
use crate::spec::{CloneSpec, PoolSpec, VolumeSpec};
use crate::status::Health;
use crate::{AdminError, ConfigTooLarge, Pool, VolumeError};

const SIZE: u64 = 64 << 20;

/// Fills the configuration with what no command looks at, until nothing longer would fit.
fn fill(pool: &Pool) {
    let mut config = pool.config.borrow_mut();
    config.properties.insert("x".to_owned(), String::new());
    let most = CONFIG_SLOT_BYTES as usize - (96 << 10);
    let room = most - config.encode().len();
    config.properties.insert("x".to_owned(), "x".repeat(room));
    assert!(check_fits(&config).is_ok());
}

/// A pool with volumes `v` and `w`, a snapshot `v@a`, and a configuration that is nearly full.
async fn full(rack: &Rc<Rack>) -> Rc<Pool> {
    let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
    let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
    for name in ["v", "w"] {
        pool.create_volume(&VolumeSpec { name: name.into(), ..volume(1 << 20) }).await.unwrap();
    }
    pool.take_snapshots(&names(&["v@a"])).await.unwrap();
    let clone = CloneSpec { name: "c".into(), properties: BTreeMap::new() };
    pool.clone_snapshot("v@a", &clone).await.unwrap();
    pool.set_volume("w", "comment", &"c".repeat(100)).await.unwrap();
    fill(&pool);
    pool.sync().await.unwrap();
    pool
}

/// What the pool is made of.
fn parts(pool: &Pool) -> String {
    let PoolConfig { groups, logs, caches, spares, volumes, .. } = pool.config.borrow().clone();
    format!("{groups:?} {logs:?} {caches:?} {spares:?} {volumes:?}")
}

fn stays_well(pool: &Pool, before: &str) {
    assert_eq!(parts(pool), before);
    assert_eq!(pool.summary().health, Health::Online);
    let left = CONFIG_SLOT_BYTES as usize - pool.config.borrow().encode().len();
    assert!(left >= 64 << 10, "{left} bytes are left for what grows by itself");
}

#[test]
fn commands_on_volumes_leave_room_in_the_label() {
    Runtime::simulated(97).block_on(async {
        let rack = Rack::new(&["a", "b", "l"], SIZE);
        let pool = full(&rack).await;
        let before = parts(&pool);
        let free = pool.summary().available_bytes;
        let long = "n".repeat(150);
        let new = VolumeSpec { name: long.clone(), ..volume(1 << 20) };
        let clone = CloneSpec { name: long.clone(), properties: BTreeMap::new() };
        for outcome in [
            pool.create_volume(&new).await,
            pool.clone_snapshot("v@a", &clone).await,
            pool.rename_volume("v", &long).await,
            pool.set_volume("v", "comment", &long).await,
            pool.set_volume("w", "comment", &long).await,
            pool.promote_volume("c").await,
        ] {
            let refused = matches!(
                &outcome,
                Err(VolumeError::ConfigTooLarge(ConfigTooLarge { pool, .. })) if pool == "tank"
            );
            assert!(refused, "{outcome:?}");
            stays_well(&pool, &before);
        }
        assert_eq!(pool.summary().available_bytes, free, "no space is kept for what was refused");
        assert_eq!(pool.get_volume("v").unwrap().properties["comment"], "-");
        // What takes no more room is done.
        pool.set_volume("w", "comment", "short").await.unwrap();
        pool.rename_volume("v", "u").await.unwrap();
        pool.promote_volume("c").await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn commands_on_the_pool_and_its_devices_leave_room_in_the_label() {
    Runtime::simulated(98).block_on(async {
        let long = "d".repeat(150);
        let rack = Rack::new(&["a", "b", "l", &long], SIZE);
        let pool = full(&rack).await;
        let before = parts(&pool);
        let changes = rack.changes();
        let groups = PoolSpec { force: true, ..spec(Layout::Raid0, &[&long], &[]) };
        let logs = PoolSpec { groups: Vec::new(), ..spec(Layout::Raid0, &[], &[&long]) };
        let caches = PoolSpec { caches: vec![long.clone()], ..PoolSpec::default() };
        let spares = PoolSpec { spares: vec![long.clone()], ..PoolSpec::default() };
        for outcome in [
            pool.set("comment", &long).await,
            pool.add(&groups).await,
            pool.add(&logs).await,
            pool.add(&caches).await,
            pool.add(&spares).await,
            pool.attach("a", &long, false).await,
            pool.attach("l", &long, false).await,
            pool.replace("a", Some(&long), false).await,
        ] {
            assert!(matches!(outcome, Err(AdminError::ConfigTooLarge(_))), "{outcome:?}");
            stays_well(&pool, &before);
        }
        assert_eq!(rack.changes(), changes, "nothing was written");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_change_that_the_label_has_no_room_for_does_not_suspend_the_pool() {
    Runtime::simulated(99).block_on(async {
        let rack = Rack::new(&["a", "b", "l"], SIZE);
        let pool = full(&rack).await;
        // As if stale segments and lost blocks had taken all but 4 KiB.
        pool.config.borrow_mut().properties.insert("y".to_owned(), "y".repeat(92 << 10));
        let refused = pool.upgrade().await;
        assert!(matches!(refused, Err(AdminError::ConfigTooLarge(_))), "{refused:?}");
        assert_eq!(pool.summary().health, Health::Online);
        pool.config.borrow_mut().properties.remove("y");
        pool.upgrade().await.unwrap();
        pool.export().await.unwrap();
    });
}
