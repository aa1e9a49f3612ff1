//! Groups of a pool: members that are replaced twice, groups that are unlike; and a transaction
//! group that has grown large.

use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::Pool;
use crate::spec::{ImportOptions, PoolSpec};

const SIZE: u64 = 64 << 20;

#[test]
fn a_replacement_of_a_replacement_is_a_device_of_the_pool() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d"], SIZE);
        let group = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &group).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..64 {
            v.write(at << 16, stamp(65536, at), false).await.unwrap();
        }
        pool.set("scan_rate", "1M").await.unwrap();
        pool.sync().await.unwrap();
        pool.replace("a", Some("c"), false).await.unwrap();
        pool.replace("c", Some("d"), false).await.unwrap();
        assert_eq!(pool.status().groups[0].children[0].children.len(), 3);
        pool.offline("d").await.unwrap();
        // It is the pool's, though no one holds it.
        let other = spec(Layout::Raid0, &["d"], &[]);
        let error = Pool::create(rack.host(1), "other", &other).await.err().unwrap();
        assert!(error.to_string().contains("belongs to pool 'tank'"), "{error}");
        pool.online("d").await.unwrap();
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c", "d"]);
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        pool.detach("d").await.unwrap();
        pool.detach("c").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..64 {
            expect(&v, at << 16, &stamp(65536, at)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn groups_that_are_unlike_keep_no_other_device_out() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "l", "k", "s", "d"], SIZE);
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &mirror).await.unwrap();
        let single = spec(Layout::Raid0, &["c"], &[]);
        pool.add(&single).await.unwrap_err();
        pool.add(&PoolSpec { force: true, ..single }).await.unwrap();
        pool.add(&spec(Layout::Raid0, &["d"], &[])).await.unwrap_err();
        let others = PoolSpec {
            groups: Vec::new(),
            caches: names(&["k"]),
            spares: names(&["s"]),
            ..spec(Layout::Raid0, &[], &["l"])
        };
        pool.add(&others).await.unwrap();
        let status = pool.status();
        assert_eq!((status.logs.len(), status.caches.len(), status.spares.len()), (1, 1, 1));
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_left_of_a_mirror_is_a_single_device() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], SIZE);
        let mirror = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &mirror).await.unwrap();
        pool.detach("b").await.unwrap();
        let error = pool.detach("a").await.unwrap_err();
        assert!(error.to_string().contains("the only device of its group"), "{error}");
        pool.add(&spec(Layout::Raid0, &["c"], &[])).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_group_is_committed_when_it_has_a_third_of_the_dirty_limit() {
    Runtime::simulated(4096).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        for (name, value) in [("dirty_limit", "24M"), ("txg_timeout", "600")] {
            options.properties.insert(name.to_owned(), value.to_owned());
        }
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let before = pool.sync.committed.get();
        v.write(0, stamp(7 << 20, 1), false).await.unwrap();
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.sync.committed.get(), before);
        v.write(7 << 20, stamp(2 << 20, 2), false).await.unwrap();
        rt::sleep(Nanos::from_secs(2)).await;
        assert!(pool.sync.committed.get() > before);
        drop(v);
        pool.export().await.unwrap();
    });
}
