//! What a pool shows of itself: figures, groups and what is wrong.

use std::rc::Rc;

use forebay_array::{GroupGeometry, MemberState};
use forebay_device::IoBuf;
use forebay_rt::{self as rt, Runtime};
use forebay_segment::SegmentKind;
use forebay_units::{Layout, Lba, Nanos, VolumeId};

use super::compression::scan_ended;
use super::rack::{Rack, in_store};
use super::{names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::{Health, OpCount, PoolCondition, PoolEvent, Protection, Timings, VdevNote};
use crate::{OpenWith, Pool};

const SIZE: u64 = 64 << 20;

fn ops(count: u64, bytes: u64) -> OpCount {
    OpCount { count, bytes }
}

#[test]
fn a_pulse_counts_what_clients_have_done() {
    Runtime::simulated(4064).block_on(async {
        let rack = Rack::new(&["a", "b", "l"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..3 {
            v.write(at << 20, stamp(8192, at), true).await.unwrap();
        }
        v.write(4 << 20, stamp(65536, 9), false).await.unwrap();
        // No root has counted what the log took.
        let now = pool.stats().since_import;
        assert!(now.log_writes.bytes >= 24_576 && now.log_sequential_writes > 0, "{now:?}");
        let pulse = pool.pulse();
        assert_eq!((pulse.traffic.writes, pulse.traffic.fuas), (ops(4, 90_112), ops(3, 24_576)));
        assert_eq!(pulse.dirty_bytes, 90_112);
        assert!(pulse.log_used_bytes >= 24_576, "{pulse:?}");
        // Mirrored frames of the log count once as they are given to it.
        assert!(pulse.traffic.log_writes.bytes >= 24_576 && pulse.traffic.media.log >= 24_576);
        v.discard(4 << 20, 16384, false).await.unwrap();
        v.flush().await.unwrap();
        pool.sync().await.unwrap();
        v.read(0, IoBuf::zeroed(8192)).await.unwrap();
        let pulse = pool.pulse();
        assert_eq!(pulse.traffic.reads, ops(1, 8192));
        assert_eq!((pulse.traffic.trims, pulse.traffic.flushes), (ops(1, 16384), ops(1, 0)));
        // What was trimmed before its group was committed was never written.
        let media = pulse.traffic.media;
        assert_eq!(media.data, 24_576 + 49_152, "{media:?}");
        assert!(media.parity >= media.data && media.metadata > 0, "{media:?}");
        let counts = pulse.latencies.each_ref().map(Timings::count);
        assert_eq!((counts, pulse.dirty_bytes), ([3, 1, 1], 0));
        pool.export().await.unwrap();
    });
}

#[test]
fn times_of_volumes_come_by_the_names_that_they_have_now() {
    Runtime::simulated(4065).block_on(async {
        let rack = Rack::new(&["a", "l"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        for name in ["w", "v", "x"] {
            let wanted = VolumeSpec { name: name.into(), sparse: true, ..volume(4 << 20) };
            pool.create_volume(&wanted).await.unwrap();
        }
        let w = pool.open_volume("w").unwrap();
        w.write(0, stamp(4096, 1), true).await.unwrap();
        w.write(0, stamp(4096, 2), true).await.unwrap();
        let x = pool.open_volume("x").unwrap();
        x.flush().await.unwrap();
        x.read(0, IoBuf::zeroed(512)).await.unwrap();
        pool.rename_volume("x", "u").await.unwrap();
        let counts: Vec<(String, [u64; 3])> = pool
            .volume_timings()
            .into_iter()
            .map(|(name, timings)| (name, timings.each_ref().map(Timings::count)))
            .collect();
        let expected = [("u", [0, 1, 1]), ("v", [0; 3]), ("w", [2, 0, 0])];
        assert_eq!(counts, expected.map(|(name, counts)| (name.to_owned(), counts)));
        drop(w);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_lacks_a_device_says_why() {
    Runtime::simulated(4066).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        assert_eq!(pool.condition(), PoolCondition::Well);
        rack.pull(&["b"]);
        pool.log_history("a command");
        pool.sync().await.unwrap();
        let condition = pool.condition();
        let PoolCondition::DevicesFailed { last: Some(last) } = condition else {
            panic!("{condition:?}");
        };
        let is_why = matches!(&last, PoolEvent::StateChanged { device, to, .. }
            if device == "b" && *to != MemberState::Online);
        assert!(is_why, "{last}");
        let group = pool.status().groups.remove(0);
        assert_eq!((group.state, group.children[0].state), (Health::Degraded, Health::Online));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_with_one_lost_block_says_so() {
    Runtime::simulated(4070).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        assert_eq!(pool.condition(), PoolCondition::Well);
        pool.note_lost_block(VolumeId(pool.volumes()[0].id), Lba(3));
        assert_eq!(pool.condition(), PoolCondition::DataLost);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_in_a_store_shows_its_requests() {
    Runtime::simulated(4071).block_on(async {
        let machine = OpenWith::new(1, |name| Ok(in_store(name, SIZE)));
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(machine, "tank", &options).await.unwrap();
        assert!(pool.status().groups[0].objects.is_some());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_with_too_many_errors_that_is_needed_degrades_its_pool() {
    Runtime::simulated(4067).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        (0..10).for_each(|_| pool.diagnose_repair(forebay_units::DeviceId(0)));
        let device = pool.status().groups.remove(0);
        assert_eq!((device.state, device.note), (Health::Degraded, Some(VdevNote::TooManyErrors)));
        assert_eq!(pool.summary().health, Health::Degraded);
        let condition = pool.condition();
        assert!(matches!(condition, PoolCondition::DevicesFailed { .. }), "{condition:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn figures_over_the_life_of_a_pool_go_on_after_an_import() {
    Runtime::simulated(4068).block_on(async {
        let rack = Rack::new(&["a", "b", "l"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let work = async |pool: &Rc<Pool>| {
            let v = pool.open_volume("v").unwrap();
            for at in 0..5 {
                v.write(at << 16, stamp(8192, at), at < 2).await.unwrap();
            }
            v.discard(0, 4096, false).await.unwrap();
            v.flush().await.unwrap();
            for at in 0..3 {
                v.read(at << 16, IoBuf::zeroed(4096)).await.unwrap();
            }
        };
        work(&pool).await;
        pool.export().await.unwrap();
        let first = pool.stats();
        assert_eq!(first.since_creation, first.since_import);
        drop(pool);
        let paths = names(&["a", "b", "l"]);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        assert_eq!(pool.stats().since_import.writes, ops(0, 0));
        work(&pool).await;
        pool.sync().await.unwrap();
        let ever = pool.stats().since_creation;
        assert_eq!((ever.reads, ever.writes), (ops(6, 24_576), ops(10, 81_920)));
        assert_eq!(
            (ever.trims, ever.flushes, ever.fuas),
            (ops(2, 8192), ops(2, 0), ops(4, 32_768))
        );
        let (then, now) = (first.since_import.media, pool.stats().since_import.media);
        assert_eq!(ever.media.data, then.data + now.data);
        assert_eq!(ever.media.parity - now.parity, then.parity);
        assert_eq!(ever.media.log - now.log, then.log);
        assert_eq!(ever.media.padding - now.padding, then.padding);
        let (before, since) = (first.since_import, pool.stats().since_import);
        assert_eq!(ever.log_writes.count, before.log_writes.count + since.log_writes.count);
        let of_log = before.log_sequential_writes + since.log_sequential_writes;
        assert_eq!(ever.log_sequential_writes, of_log);
        pool.export().await.unwrap();
    });
}

#[test]
fn what_writing_costs_is_in_proportion_to_what_clients_wrote() {
    Runtime::simulated(4069).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        assert_eq!(pool.stats().write_amplification, 0.0);
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4 << 20, 1), false).await.unwrap();
        v.flush().await.unwrap();
        pool.sync().await.unwrap();
        let stats = pool.stats();
        let media = stats.since_import.media;
        let main = media.data + media.parity + media.metadata + media.cleaning + media.padding;
        let host = stats.since_import.writes.bytes as f64;
        assert_eq!(stats.write_amplification, main as f64 / host);
        assert_eq!(stats.write_amplification_with_log, (main + media.log) as f64 / host);
        assert!((2.0..3.0).contains(&stats.write_amplification), "{stats:?}");
        rt::sleep(Nanos::from_secs(5)).await;
        assert!(pool.stats().uptime_secs >= stats.uptime_secs + 5.0);
        pool.export().await.unwrap();
    });
}

#[test]
fn space_of_groups_has_their_parity_and_a_mirror_counts_as_one_side() {
    const MIB: u64 = 1 << 20;
    let kinds = [
        (Layout::Raidz1, &["a", "b", "c"][..], 3, 1.5),
        (Layout::Mirror, &["a", "b"][..], 1, 1.0),
        (Layout::Raid0, &["a", "b"][..], 2, 1.0),
    ];
    for (layout, devices, columns, with_parity) in kinds {
        Runtime::simulated(4091).block_on(async move {
            let rack = Rack::new(devices, SIZE);
            let options = spec(layout, devices, &[]);
            let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
            let sparse = VolumeSpec { sparse: true, ..volume(16 << 20) };
            pool.create_volume(&sparse).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            v.write(0, stamp(8 << 20, 1), false).await.unwrap();
            pool.sync().await.unwrap();
            let shown = pool.summary();
            assert_eq!(shown.alloc_bytes, 8 * MIB);
            assert_eq!(shown.free_bytes, shown.size_bytes - 8 * MIB);
            assert_eq!((shown.available_bytes, shown.overdrawn_bytes), (shown.free_bytes, 0));
            let raw = 57 * MIB * columns..=58 * MIB * columns;
            assert!(raw.contains(&shown.raw_size_bytes), "{shown:?}");
            assert_eq!(shown.raw_free_bytes, shown.raw_size_bytes - shown.raw_alloc_bytes);
            let is_it = |raw_alloc_bytes: u64| {
                let ratio = raw_alloc_bytes as f64 / (8 * MIB) as f64;
                (with_parity..with_parity * 1.1).contains(&ratio)
            };
            assert!(is_it(shown.raw_alloc_bytes), "{shown:?}");
            let space = pool.status().groups[0].space.unwrap();
            assert_eq!(space.raw_size_bytes, shown.raw_size_bytes);
            assert!(is_it(space.raw_alloc_bytes.unwrap()), "{space:?}");
            drop(v);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn each_group_has_what_lies_in_it() {
    Runtime::simulated(4092).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], SIZE);
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        for name in ["b", "c"] {
            options.groups.extend(spec(Layout::Raid0, &[name], &[]).groups);
        }
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(32 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..24 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let groups = pool.status().groups;
        let allocs: Vec<u64> =
            groups.iter().map(|group| group.space.unwrap().raw_alloc_bytes.unwrap()).collect();
        let all: u64 = allocs.iter().sum();
        assert!(((24 << 20)..(27 << 20)).contains(&all), "{allocs:?}");
        for (group, alloc) in groups.iter().zip(&allocs) {
            assert!(*alloc <= group.io.write_bytes, "{allocs:?} {:?}", group.io);
        }
        // Of raid0, of which nothing is parity, each segment counts for the group that it is of.
        let mut live = [0u64; 3];
        let places = pool.store.array.groups();
        pool.store.table.for_each(|segment, info| {
            let is_of =
                |g: &GroupGeometry| (0..g.segments).contains(&(segment.0 - g.first_segment));
            if info.kind == SegmentKind::Data {
                let of = places.iter().rposition(|group| group.first_segment <= segment.0);
                assert!(is_of(&places[of.unwrap()]));
                live[of.unwrap()] += u64::from(info.live);
            }
        });
        for (live, alloc) in live.iter().zip(&allocs) {
            let with_ends = (live * 4096)..=(live * 4096 * 103 / 100);
            assert!(with_ends.contains(alloc), "{live} {alloc}");
        }
        let raw: u64 = groups.iter().map(|group| group.space.unwrap().raw_size_bytes).sum();
        assert_eq!(raw, pool.summary().raw_size_bytes);
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_group_is_whole_while_one_of_a_device_and_its_replacement_is() {
    Runtime::simulated(4093).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(32 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(16 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.replace("a", Some("c"), false).await.unwrap();
        rt::sleep(Nanos::from_secs(2)).await;
        let shown = || {
            let mut group = pool.status().groups.remove(0);
            (group.state, group.children.remove(0))
        };
        let (state, pair) = shown();
        assert_eq!(
            (state, pair.state, pair.name.as_str()),
            (Health::Online, Health::Online, "replacing-0")
        );
        assert_eq!((pair.size_bytes, pair.children.len()), (2 * SIZE, 2));
        assert_eq!(pair.children[1].note, Some(VdevNote::Resilvering));
        assert_eq!(pool.condition(), PoolCondition::Well);
        rack.pull(&["a"]);
        pool.log_history("a command");
        pool.sync().await.unwrap();
        let (state, pair) = shown();
        assert_eq!((state, pair.state), (Health::Degraded, Health::Degraded));
        assert!(matches!(pool.condition(), PoolCondition::DevicesFailed { .. }));
        drop(v);
    });
}

#[test]
fn a_pool_that_is_only_being_rebuilt_says_so() {
    Runtime::simulated(4094).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(32 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        pool.offline("b").await.unwrap();
        assert_eq!(pool.condition(), PoolCondition::DevicesOffline);
        v.write(0, stamp(16 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        pool.online("b").await.unwrap();
        rt::sleep(Nanos::from_secs(2)).await;
        assert_eq!(pool.condition(), PoolCondition::Rebuilding);
        assert_eq!(pool.summary().health, Health::Degraded);
        scan_ended(&pool).await;
        assert_eq!(
            (pool.condition(), pool.summary().health),
            (PoolCondition::Well, Health::Online)
        );
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_shows_its_space_and_its_failed_sides() {
    Runtime::simulated(4095).block_on(async {
        let rack = Rack::new(&["a", "l", "m"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(65536, 1), true).await.unwrap();
        let shown = || {
            let log = pool.status().logs.remove(0);
            let states: Vec<(Health, u64)> =
                log.children.iter().map(|side| (side.state, side.write_errors)).collect();
            (log.state, states, log.space.unwrap())
        };
        let (state, sides, space) = shown();
        assert_eq!((state, sides), (Health::Online, vec![(Health::Online, 0); 2]));
        let log = pool.status().logs.remove(0);
        assert!(log.children.iter().all(|side| side.io.write_bytes >= 65536), "{log:?}");
        let of_data = pool.status().groups.remove(0);
        let all = log.children.iter().chain([&of_data]);
        assert!(all.into_iter().all(|device| device.protection == Some(Protection::Heartbeat)));
        assert_eq!(space.raw_size_bytes, pool.log.capacity_bytes());
        let used = space.raw_alloc_bytes.unwrap();
        assert!(used >= 65536 && used == pool.log.used_bytes(), "{space:?}");
        rack.switches.unwritable.borrow_mut().insert("l".to_owned());
        v.write(0, stamp(4096, 2), true).await.unwrap();
        pool.sync().await.unwrap();
        let (state, sides, _) = shown();
        assert_eq!(state, Health::Degraded);
        assert_eq!(sides, [(Health::Faulted, 1), (Health::Online, 0)]);
        rack.switches.unwritable.borrow_mut().insert("m".to_owned());
        v.write(0, stamp(4096, 3), true).await.unwrap();
        pool.sync().await.unwrap();
        let (state, _, space) = shown();
        // The log is in the pool now, and holds nothing here.
        assert_eq!((state, space.raw_alloc_bytes), (Health::Faulted, Some(0)));
        assert!(space.raw_size_bytes > 50 << 20, "{space:?}");
        assert_eq!(pool.summary().health, Health::Degraded);
        drop(v);
        pool.export().await.unwrap();
    });
}
