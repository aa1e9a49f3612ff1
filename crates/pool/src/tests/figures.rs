//! Lifetime figures of a pool, over exports, crashes and devices that are opened again.

use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, Lba, Nanos, SegmentId, VolumeId};

use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::events::EventLog;
use crate::status::{PoolEvent, PoolStats};

const ALL: [&str; 3] = ["a", "b", "l"];

fn latencies(stats: &PoolStats) -> [u64; 3] {
    [
        &stats.fua_latency_since_creation,
        &stats.flush_latency_since_creation,
        &stats.read_latency_since_creation,
    ]
    .map(|latency| latency.count)
}

#[test]
fn lifetime_counts_survive_imports() {
    let rack = Rack::new(&ALL, 64 << 20);
    let mine = rack.clone();
    let work = |pool: std::rc::Rc<Pool>| async move {
        let v = pool.open_volume("v").unwrap();
        for block in 0..20 {
            v.write(block * 4096, stamp(4096, block), true).await.unwrap();
        }
        v.flush().await.unwrap();
        for block in 0..10 {
            v.read(block * 4096, forebay_device::IoBuf::zeroed(4096)).await.unwrap();
        }
    };
    let exported = Runtime::simulated(1).block_on(async move {
        let wanted = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(mine.host(1), "tank", &wanted).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        work(pool.clone()).await;
        rt::sleep(Nanos::from_secs(61)).await;
        let stats = pool.stats();
        assert_eq!(latencies(&stats), [20, 1, 10]);
        assert_eq!(stats.devices, stats.devices_since_creation);
        pool.export().await.unwrap();
        stats
    });
    let mine = rack.clone();
    let crashed = Runtime::simulated(2).block_on(async move {
        let options = ImportOptions::default();
        let pool = Pool::import(mine.host(1), &names(&ALL), "tank", &options).await.unwrap();
        let stats = pool.stats();
        assert_eq!(latencies(&stats), [20, 1, 10]);
        assert_eq!(stats.fua_latency.count, 0);
        for (name, io) in &stats.devices_since_creation {
            let (before, since) = (&exported.devices[name], &stats.devices[name]);
            assert!(io.writes >= before.writes + since.writes, "{name}: {io:?}");
            assert!(io.write_bytes >= before.write_bytes + since.write_bytes, "{name}: {io:?}");
        }
        work(pool.clone()).await;
        // A device that is opened again starts its counters at zero; the lifetime figures go on.
        let reads = pool.stats().devices_since_creation["b"].writes;
        pool.offline("b").await.unwrap();
        pool.online("b").await.unwrap();
        assert!(pool.stats().devices_since_creation["b"].writes >= reads);
        // More than a crash may lose.
        for round in 0..70 {
            rt::sleep(Nanos::from_secs(10)).await;
            pool.open_volume("v").unwrap().write(0, stamp(4096, round), false).await.unwrap();
        }
        pool.stats()
    });
    Runtime::simulated(3).block_on(async move {
        let options = ImportOptions { force: true, ..Default::default() };
        let pool = Pool::import(rack.host(1), &names(&ALL), "tank", &options).await.unwrap();
        let stats = pool.stats();
        assert_eq!(latencies(&stats), [40, 2, 20]);
        let (before, now) =
            (&crashed.devices_since_creation["a"], &stats.devices_since_creation["a"]);
        assert!(now.reads >= exported_reads(&crashed) && now.writes > before.writes / 2);
        pool.export().await.unwrap();
    });
}

fn exported_reads(stats: &PoolStats) -> u64 {
    stats.devices_since_creation["a"].reads - stats.devices["a"].reads
}

#[test]
fn events_are_told_once_to_those_who_say_which_they_had() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.offline("b").await.unwrap();
        let first = pool.events_after(0);
        assert!(!first.is_empty() && first.len() == pool.events().len());
        let last = first.last().unwrap().sequence;
        assert!(pool.events_after(last).is_empty());
        pool.online("b").await.unwrap();
        let more = pool.events_after(last);
        assert!(!more.is_empty() && more.len() == pool.events().len() - first.len());
        assert!(more.iter().all(|event| event.sequence > last));
        pool.export().await.unwrap();
    });
}

#[test]
fn events_go_on_with_their_numbers_where_a_suspended_pool_goes_on() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.offline("b").await.unwrap();
        rack.switches.works_for.set(Some(0));
        pool.sync().await.unwrap_err();
        let before = pool.events_after(0);
        let last = before.last().unwrap().sequence;
        rack.switches.works_for.set(None);
        let next = pool.resume(&names(&["a", "b"])).await.unwrap();
        next.online("b").await.unwrap();
        let all = next.events_after(0);
        assert!(all.len() > before.len(), "{all:?}");
        assert!(all.iter().zip(&before).all(|(now, then)| now.sequence == then.sequence));
        assert!(all[before.len()..].iter().all(|event| event.sequence > last));
        next.export().await.unwrap();
    });
}

#[test]
fn each_segment_is_counted_by_what_it_is() {
    Runtime::simulated(4).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        assert_eq!(pool.stats().segments.live_share, 0.0);
        let v = pool.open_volume("v").unwrap();
        for at in 0..8 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let whole = pool.stats().segments;
        let all = u64::from(pool.store.table.count());
        assert_eq!(whole.free + whole.open + whole.full, all, "{whole:?}");
        let mut of_map = 0;
        pool.store.table.for_each(|_, info| {
            let is_free = matches!(info.state, SegmentState::Free | SegmentState::Emptied(_));
            of_map += u64::from(info.kind == SegmentKind::Map && !is_free);
        });
        assert_eq!(whole.journal, of_map);
        assert!(whole.free < all && whole.full > 0 && whole.journal > 0, "{whole:?}");
        assert!(whole.held_bytes > 7 << 20 && whole.live_share > 0.99, "{whole:?}");
        for at in (0..8 << 20).step_by(16 << 10) {
            v.write(at, stamp(8 << 10, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let now = pool.stats().segments;
        assert!((0.4..0.9).contains(&now.live_share), "{now:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn lost_blocks_beyond_those_that_are_named_are_counted() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(&["a"], 64 << 20);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let id = VolumeId(pool.volumes()[0].id);
        for lba in 0..1200 {
            pool.note_lost_block(id, Lba(lba));
        }
        let status = pool.status();
        assert_eq!((status.lost.len(), status.lost_count), (100, 1200));
        pool.export().await.unwrap();
    });
}

#[test]
fn the_events_of_a_pool_that_goes_on_follow_those_before_and_keep_their_order() {
    Runtime::simulated(6).block_on(async {
        let (before, now) = (EventLog::default(), EventLog::default());
        let event = |segment: u32| PoolEvent::JournalDamaged { segment: SegmentId(segment) };
        (0..3).for_each(|segment| before.push(event(segment)));
        (3..5).for_each(|segment| now.push(event(segment)));
        now.go_on(&before);
        now.push(event(5));
        assert_eq!(now.all(), (0..6).map(event).collect::<Vec<_>>());
        let later: Vec<u64> = now.after(3, "tank", 1).iter().map(|event| event.sequence).collect();
        assert_eq!(later, [4, 5, 6]);
    });
}
