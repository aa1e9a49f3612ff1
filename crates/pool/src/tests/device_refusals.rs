//! Devices and groups that commands refuse, and that are as they were then.

use forebay_array::ArrayError;
use forebay_format::map_record::DEDUP_REF_SEGMENT;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::spec::{GroupSpec, ImportOptions, LogSpec, PoolSpec};
use crate::status::Health;
use crate::{AdminError, CandidateError, NameError, Pool};

const SIZE: u64 = 64 << 20;

fn group(layout: Layout, devices: &[&str]) -> PoolSpec {
    spec(layout, devices, &[])
}

fn states(pool: &Pool) -> Vec<(String, Health)> {
    let status = pool.status();
    let all = status.groups.into_iter().chain(status.logs);
    let leaves = all.flat_map(|vdev| match vdev.children.is_empty() {
        true => vec![vdev],
        false => vdev.children,
    });
    leaves.map(|leaf| (leaf.name, leaf.state)).collect()
}

#[test]
fn nothing_is_made_of_no_device_and_nothing_is_added() {
    Runtime::simulated(81).block_on(async {
        let rack = Rack::new(&["a", "k", "s"], SIZE);
        let host = rack.host(1);
        for none in [spec(Layout::Raid0, &[], &["k"]), PoolSpec::default()] {
            let refused = Pool::check_new(host.clone(), "tank", &none).await;
            assert_eq!(refused, Err(AdminError::NoDevice));
            let refused = Pool::create(host.clone(), "tank", &none).await.err();
            assert_eq!(refused, Some(AdminError::NoDevice));
        }
        let good = group(Layout::Raid0, &["a"]);
        let odd = PoolSpec { properties: [("odd".into(), "on".into())].into(), ..good.clone() };
        let refused = Pool::check_new(host.clone(), "tank", &odd).await;
        assert!(matches!(refused, Err(AdminError::Property(_))), "{refused:?}");
        let refused = Pool::check_new(host.clone(), "log", &good).await;
        assert_eq!(refused, Err(AdminError::Name(NameError::Reserved { name: "log".into() })));
        assert_eq!(Pool::check_new(host.clone(), "tank", &good).await, Ok(()));
        assert_eq!(rack.changes(), 0, "nothing is written by a check");
        let pool = Pool::create(host, "tank", &good).await.unwrap();
        assert_eq!(pool.add(&PoolSpec::default()).await, Err(AdminError::NoDevice));
        let others =
            PoolSpec { caches: names(&["k"]), spares: names(&["s"]), ..Default::default() };
        pool.add(&others).await.unwrap();
        assert_eq!((pool.status().caches.len(), pool.status().spares.len()), (1, 1));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_is_named_once() {
    Runtime::simulated(82).block_on(async {
        let rack = Rack::new(&["a", "b", "k", "s"], SIZE);
        let twice = |device: &str| AdminError::NamedTwice { device: device.to_owned() };
        let both = |path: &str| PoolSpec {
            caches: names(&["k", path]),
            spares: names(&["s"]),
            ..spec(Layout::Mirror, &["a", "b"], &[])
        };
        for path in ["k", "a"] {
            let refused = Pool::create(rack.host(1), "tank", &both(path)).await.err();
            assert_eq!(refused, Some(twice(path)));
        }
        let refused = Pool::create(rack.host(1), "tank", &group(Layout::Mirror, &["a", "a"])).await;
        assert_eq!(refused.err(), Some(twice("a")));
        let side = spec(Layout::Raid0, &["a"], &["a"]);
        assert_eq!(Pool::create(rack.host(1), "tank", &side).await.err(), Some(twice("a")));
        assert_eq!(rack.changes(), 0);
        let pool = Pool::create(rack.host(1), "tank", &group(Layout::Raid0, &["a"])).await.unwrap();
        let spare = |path: &str| PoolSpec { spares: names(&[path]), ..PoolSpec::default() };
        pool.add(&spare("s")).await.unwrap();
        // It is still empty, so its content says nothing.
        assert_eq!(pool.add(&spare("s")).await, Err(twice("s")));
        pool.add(&spare("b")).await.unwrap();
        assert_eq!(pool.status().spares.len(), 2);
        pool.export().await.unwrap();
    });
}

#[test]
fn groups_that_survive_fewer_failures_are_refused_unless_forced() {
    Runtime::simulated(83).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "e", "f", "g"], SIZE);
        let pair = group(Layout::Mirror, &["a", "b"]);
        let pool = Pool::create(rack.host(1), "tank", &pair).await.unwrap();
        let three = group(Layout::Mirror, &["c", "d", "e"]);
        let refused = pool.add(&three).await;
        assert_eq!(refused, Err(AdminError::UnlikeGroups { least: 1, most: 2 }));
        assert_eq!(pool.status().groups.len(), 1);
        pool.add(&group(Layout::Mirror, &["f", "g"])).await.unwrap();
        pool.add(&PoolSpec { force: true, ..three }).await.unwrap();
        assert_eq!(pool.status().groups.len(), 3);
        pool.export().await.unwrap();
    });
}

#[test]
fn groups_of_several_kinds_are_refused_although_they_survive_as_many_failures() {
    Runtime::simulated(80).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "e"], SIZE);
        let raidz = group(Layout::Raidz1, &["c", "d", "e"]);
        let pair = group(Layout::Mirror, &["a", "b"]);
        let mut both = pair.clone();
        both.groups.extend(raidz.groups.clone());
        let unlike = AdminError::UnlikeKinds { kinds: vec![Layout::Mirror, Layout::Raidz1] };
        let refused = Pool::check_new(rack.host(1), "tank", &both).await;
        assert_eq!(refused, Err(unlike.clone()));
        let pool = Pool::create(rack.host(1), "tank", &pair).await.unwrap();
        assert_eq!(pool.add(&raidz).await, Err(unlike));
        pool.export().await.unwrap();
        both.force = true;
        let pool = Pool::create(rack.host(1), "tank", &both).await.unwrap();
        assert_eq!(pool.status().groups.len(), 2);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_group_is_not_added_when_no_numbers_are_left_for_its_segments() {
    Runtime::simulated(78).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let pool = Pool::create(rack.host(1), "tank", &group(Layout::Raid0, &["a"])).await.unwrap();
        pool.sync().await.unwrap();
        let before = rack.changes();
        // As if groups before it had nearly all numbers.
        let first = pool.config.borrow().groups[0].first_segment;
        let nearly_last = DEDUP_REF_SEGMENT.0 - 100;
        pool.config.borrow_mut().groups[0].first_segment = nearly_last;
        let refused = pool.add(&group(Layout::Raid0, &["b"])).await;
        assert!(matches!(refused, Err(AdminError::Layout(_))), "{refused:?}");
        pool.config.borrow_mut().groups[0].first_segment = first;
        assert_eq!(rack.changes(), before);
        pool.add(&group(Layout::Raid0, &["b"])).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn nothing_is_attached_where_there_is_no_mirror() {
    for (layout, devices) in
        [(Layout::Raid0, &["a", "b"][..]), (Layout::Raidz1, &["a", "b", "c"][..])]
    {
        Runtime::simulated(84).block_on(async move {
            let rack = Rack::new(&["a", "b", "c", "new"], SIZE);
            let pool = Pool::create(rack.host(1), "tank", &group(layout, devices)).await.unwrap();
            let mine = stamp(65536, 7);
            rack.device("new").write(64 << 10, mine.clone(), true).await.unwrap();
            let refused = pool.attach("a", "new", true).await;
            assert_eq!(refused, Err(AdminError::NotMirror { device: "a".into(), layout }));
            expect(&rack.device("new"), 64 << 10, &mine).await;
            assert_eq!(pool.status().groups[0].children.len(), devices.len());
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn nothing_is_attached_to_a_device_that_is_only_a_replacement() {
    Runtime::simulated(85).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d"], SIZE);
        let pair = group(Layout::Mirror, &["a", "b"]);
        let pool = Pool::create(rack.host(1), "tank", &pair).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8 << 20, 1), false).await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.replace("a", Some("c"), false).await.unwrap();
        let refused = pool.attach("c", "d", false).await;
        assert_eq!(refused, Err(AdminError::BeingReplaced { device: "c".into() }));
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn the_last_usable_side_of_a_log_stays_in_use() {
    Runtime::simulated(86).block_on(async {
        let rack = Rack::new(&["a", "l", "m", "n"], SIZE);
        let mut options = spec(Layout::Raid0, &["a"], &["l", "m"]);
        options.logs.push(LogSpec { devices: names(&["n"]) });
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let only = |device: &str| AdminError::OnlyUsableSide { device: device.to_owned() };
        assert_eq!(pool.offline("n").await, Err(only("n")), "another log device is no side of it");
        assert_eq!(pool.detach("n").await, Err(AdminError::OnlySide { device: "n".into() }));
        pool.offline("m").await.unwrap();
        assert_eq!(pool.offline("l").await, Err(only("l")));
        let [_, l, m, n]: [(String, Health); 4] = states(&pool).try_into().unwrap();
        assert_eq!((l.1, m.1, n.1), (Health::Online, Health::Offline, Health::Online));
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        assert!(!pool.log_in_pool());
        // A name such as that of a mirror is no name of a single log device.
        assert!(matches!(pool.remove("mirror-2").await, Err(AdminError::UnknownDevice { .. })));
        assert_eq!(pool.status().logs.len(), 2);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_without_which_data_would_be_lost_stays_in_use() {
    Runtime::simulated(87).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let pool = Pool::create(rack.locked(), "tank", &group(Layout::Mirror, &["a", "b"])).await;
        let pool = pool.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.offline("b").await.unwrap();
        rack.locked().open("b").await.expect("another process may have it");
        let refused = pool.offline("a").await.unwrap_err();
        assert!(
            matches!(&refused, AdminError::Member { device, error: ArrayError::WouldLose { .. } }
                if device == "a"),
            "{refused:?}"
        );
        // It is still the pool's.
        let other = Pool::create(rack.locked(), "other", &group(Layout::Raid0, &["a"])).await;
        let in_use = CandidateError::InUse { device: "a".into() };
        assert_eq!(other.err(), Some(AdminError::Candidate(in_use)));
        assert_eq!(states(&pool)[0], ("a".to_owned(), Health::Online));
        v.write(0, stamp(4096, 2), true).await.unwrap();
        pool.sync().await.unwrap();
        expect(&v, 0, &stamp(4096, 2)).await;
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        // An operator took it offline, and it is here.
        let (paths, options) = (names(&["a", "b"]), ImportOptions::default());
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        assert_eq!(states(&pool)[1], ("b".to_owned(), Health::Offline));
        pool.export().await.unwrap();
    });
}

#[test]
fn what_is_written_to_a_group_that_was_added_is_there() {
    Runtime::simulated(91).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let pool = Pool::create(rack.host(1), "tank", &group(Layout::Raid0, &["a"])).await.unwrap();
        let before = pool.summary().size_bytes;
        let groups = vec![GroupSpec { layout: Layout::Raid0, devices: names(&["b"]) }];
        pool.add(&PoolSpec { groups, ..PoolSpec::default() }).await.unwrap();
        let size_bytes = pool.summary().available_bytes >> 20 << 20;
        assert!(size_bytes > before + (16 << 20));
        pool.create_volume(&volume(size_bytes)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in (0..size_bytes).step_by(1 << 20) {
            v.write(at, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        for at in (0..size_bytes).step_by(1 << 20) {
            expect(&v, at, &stamp(1 << 20, at)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}
