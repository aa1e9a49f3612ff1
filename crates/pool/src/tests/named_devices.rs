//! Devices by the names that operators give, what a device holds, and labels that are cleared.

use forebay_device::IoBuf;
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::spec::{LogSpec, PoolSpec};
use crate::status::{Health, VdevStatus};
use crate::{AdminError, CandidateError, Pool, describe_content};

const SIZE: u64 = 64 << 20;
const PATHS: [&str; 10] = ["x/a", "x/b", "y/b", "x/l", "y/k", "x/k", "z/c", "y/a", "l", "x/s"];

/// Mirrors of `x/a` and `x/b` and of `y/b` and `y/a`, a log `x/l`, and caches.
fn shape(caches: &[&str]) -> PoolSpec {
    let mut shape = spec(Layout::Mirror, &["x/a", "x/b"], &["x/l"]);
    shape.groups.extend(spec(Layout::Mirror, &["y/b", "y/a"], &[]).groups);
    PoolSpec { caches: names(caches), spares: names(&["x/s"]), ..shape }
}

fn state(pool: &Pool, name: &str) -> Health {
    let status = pool.status();
    let all = status.groups.into_iter().chain(status.logs).chain(status.caches);
    let leaves = |vdev: VdevStatus| match vdev.children.is_empty() {
        true => vec![vdev],
        false => vdev.children,
    };
    all.flat_map(leaves).find(|leaf| leaf.name == name).expect("it is listed").state
}

fn ambiguous(name: &str) -> Result<(), AdminError> {
    Err(AdminError::AmbiguousDevice { pool: "tank".into(), name: name.into() })
}

#[test]
fn the_last_part_of_a_path_is_a_name_where_no_other_device_has_it() {
    Runtime::simulated(92).block_on(async {
        let rack = Rack::new(&PATHS, SIZE);
        let pool = Pool::create(rack.host(1), "tank", &shape(&["y/k", "z/c"])).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        for name in ["a", "b"] {
            assert_eq!(pool.offline(name).await, ambiguous(name));
            assert_eq!(pool.replace(name, Some("l"), false).await, ambiguous(name));
        }
        pool.offline("c").await.unwrap();
        assert_eq!(state(&pool, "z/c"), Health::Offline);
        assert_eq!(state(&pool, "y/k"), Health::Online);
        pool.online("c").await.unwrap();
        pool.offline("y/b").await.unwrap();
        assert_eq!((state(&pool, "x/b"), state(&pool, "y/b")), (Health::Online, Health::Offline));
        pool.online("y/b").await.unwrap();
        let only = AdminError::OnlyUsableSide { device: "l".into() };
        assert_eq!(pool.offline("l").await, Err(only), "it is x/l");
        pool.attach("l", "l", false).await.unwrap();
        // Its whole path is a name before the last part of another path is.
        pool.offline("l").await.unwrap();
        assert_eq!((state(&pool, "x/l"), state(&pool, "l")), (Health::Online, Health::Offline));
        let add = PoolSpec { caches: names(&["x/k"]), ..PoolSpec::default() };
        pool.add(&add).await.unwrap();
        for outcome in [pool.offline("k").await, pool.remove("k").await, pool.online("k").await] {
            assert_eq!(outcome, ambiguous("k"));
        }
        assert_eq!(pool.status().caches.len(), 3);
        pool.remove("x/k").await.unwrap();
        pool.remove("k").await.unwrap();
        assert_eq!(pool.status().caches.len(), 1);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_name_that_a_cache_device_and_a_member_share_is_neither_of_them() {
    Runtime::simulated(93).block_on(async {
        let rack = Rack::new(&PATHS, SIZE);
        let mut options = shape(&["y/k"]);
        options.logs = spec(Layout::Raid0, &[], &["x/k"]).logs;
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        for outcome in [pool.offline("k").await, pool.remove("k").await, pool.online("k").await] {
            assert_eq!(outcome, ambiguous("k"));
        }
        assert_eq!((state(&pool, "y/k"), state(&pool, "x/k")), (Health::Online, Health::Online));
        pool.remove("y/k").await.unwrap();
        pool.remove("k").await.unwrap();
        assert!(pool.status().caches.is_empty() && pool.status().logs.is_empty());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_name_that_is_no_members_is_refused_as_what_it_is() {
    Runtime::simulated(94).block_on(async {
        let rack = Rack::new(&PATHS, SIZE);
        let pool = Pool::create(rack.host(1), "tank", &shape(&["y/k"])).await.unwrap();
        let (pool_name, member) = (
            || "tank".to_owned(),
            |device: &str, is_spare| AdminError::NotMember {
                pool: "tank".into(),
                device: device.into(),
                is_spare,
            },
        );
        let refused = async |name: &str| pool.detach(name).await.unwrap_err();
        let group = AdminError::NamesGroup { pool: pool_name(), name: "mirror-1".into() };
        assert_eq!(refused("mirror-1").await, group);
        assert_eq!(refused("x/s").await, member("x/s", true));
        assert_eq!(refused("y/k").await, member("y/k", false));
        for name in ["mirror-2", "z/c", "s", ""] {
            let unknown = AdminError::UnknownDevice { pool: pool_name(), name: name.into() };
            assert_eq!(refused(name).await, unknown);
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn what_a_device_holds_is_said_in_words() {
    Runtime::simulated(95).block_on(async {
        let rack = Rack::new(&["a", "k", "l", "empty", "swap"], SIZE);
        let options = PoolSpec { caches: names(&["k"]), ..spec(Layout::Raid0, &["a"], &["l"]) };
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let mut swap = IoBuf::zeroed(4096);
        swap[4086..].copy_from_slice(b"SWAPSPACE2");
        rack.device("swap").write(0, swap.freeze(), true).await.unwrap();
        let holds = async |name: &str| describe_content(&rack.device(name)).await;
        let member = Some("a member of the Forebay pool tank".to_owned());
        assert_eq!((holds("a").await, holds("l").await), (member.clone(), member));
        let cache = "a cache device of the Forebay pool tank".to_owned();
        assert_eq!(holds("k").await, Some(cache));
        assert_eq!(holds("swap").await, Some("swap space".to_owned()));
        assert_eq!(holds("empty").await, None);
        let device = spec(Layout::Raid0, &["swap"], &[]);
        let refused = Pool::create(rack.host(1), "other", &device).await.err();
        let (name, content) = ("swap".to_owned(), "swap space");
        let not_empty = CandidateError::NotEmpty { device: name, content };
        assert_eq!(refused, Some(AdminError::Candidate(not_empty)));
        let forced = PoolSpec { force: true, ..device };
        Pool::create(rack.host(1), "other", &forced).await.unwrap().export().await.unwrap();
        pool.destroy().await.unwrap();
        for device in ["a", "l", "k"] {
            assert_eq!(holds(device).await, None, "its pool is no more");
        }
    });
}

#[test]
fn only_a_label_is_cleared_and_one_that_counts_only_with_force() {
    Runtime::simulated(96).block_on(async {
        let rack = Rack::new(&["a", "k", "l", "other"], SIZE);
        let mine = stamp(65536, 7);
        rack.device("other").write(0, mine.clone(), true).await.unwrap();
        let options = PoolSpec { caches: names(&["k"]), ..spec(Layout::Raid0, &["a"], &["l"]) };
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.export().await.unwrap();
        let clear =
            async |device: &str, force| Pool::clear_label(rack.host(1), device, force).await;
        for force in [false, true] {
            let none = AdminError::NoLabel { device: "other".into() };
            assert_eq!(clear("other", force).await, Err(none));
        }
        super::expect(&rack.device("other"), 0, &mine).await;
        for device in ["a", "l", "k"] {
            let (name, pool) = (device.to_owned(), "tank".to_owned());
            let owned = CandidateError::OwnedByPool { device: name, pool };
            assert_eq!(clear(device, false).await, Err(AdminError::Candidate(owned)));
            assert!(describe_content(&rack.device(device)).await.is_some(), "{device}");
            clear(device, true).await.unwrap();
            assert_eq!(describe_content(&rack.device(device)).await, None, "{device}");
            let none = AdminError::NoLabel { device: device.to_owned() };
            assert_eq!(clear(device, true).await, Err(none));
        }
        // That of a pool that was destroyed counts no more.
        let data = spec(Layout::Raid0, &["a"], &[]);
        Pool::create(rack.host(1), "tank", &data).await.unwrap().destroy().await.unwrap();
        clear("a", false).await.unwrap();
        assert!(matches!(clear("a", false).await, Err(AdminError::NoLabel { .. })));
    });
}

#[test]
fn mirrors_of_log_devices_are_numbered_after_the_groups_of_data_devices() {
    Runtime::simulated(7421).block_on(async {
        let rack = Rack::new(&PATHS, SIZE);
        let log = |paths: &[&str]| LogSpec { devices: names(paths) };
        let logs = vec![log(&["x/l", "l"]), log(&["y/k", "x/k"])];
        let shape = PoolSpec { logs, ..shape(&[]) };
        let pool = Pool::create(rack.host(1), "tank", &shape).await.unwrap();
        let shown = || {
            let status = pool.status();
            let all = status.groups.into_iter().chain(status.logs);
            let first = |vdev: VdevStatus| (vdev.name.clone(), vdev.children[0].name.clone());
            all.map(first).collect::<Vec<_>>()
        };
        let named = |pairs: &[(&str, &str)]| {
            let own = |(name, first): &(&str, &str)| ((*name).to_owned(), (*first).to_owned());
            pairs.iter().map(own).collect::<Vec<_>>()
        };
        let groups = [("mirror-0", "x/a"), ("mirror-1", "y/b")];
        let of = |logs: &[(&str, &str)]| named(&[&groups, logs].concat());
        assert_eq!(shown(), of(&[("mirror-2", "x/l"), ("mirror-3", "y/k")]));
        // The one that is left keeps its name.
        pool.remove("mirror-2").await.unwrap();
        assert_eq!(shown(), of(&[("mirror-3", "y/k")]));
        pool.export().await.unwrap();
    });
}
