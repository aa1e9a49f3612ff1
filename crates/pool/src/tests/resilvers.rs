//! Status of resilvers and of repaired errors.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{names, spec, stamp, volume};
use crate::Pool;
use crate::spec::ImportOptions;
use crate::status::{Health, PoolCondition, ScanKind, ScanPhase, VdevKind};

/// A mirror of `a` and `b` with 16 MiB on it, whose scans read 1 MiB a second.
async fn slowly_scanned(rack: &Rc<Rack>) -> Rc<Pool> {
    let mut spec = spec(Layout::Mirror, &["a", "b"], &[]);
    spec.properties.insert("scan_rate".into(), "1M".into());
    let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
    pool.create_volume(&volume(32 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..16 {
        v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

#[test]
fn a_planned_replacement_leaves_the_pool_online() {
    Runtime::simulated(61).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let pool = slowly_scanned(&rack).await;
        pool.replace("a", Some("c"), false).await.unwrap();
        let status = pool.status();
        assert_eq!(status.state, Health::Online, "redundancy is whole");
        let replacing = &status.groups[0].children[0];
        assert_eq!((replacing.kind, replacing.state), (VdevKind::Replacing, Health::Online));
        assert!(status.scan.is_some_and(|scan| scan.kind == ScanKind::Resilver));
        // Without the original, the copy is not whole.
        pool.offline("a").await.unwrap();
        assert_eq!(pool.status().state, Health::Degraded);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_resilver_goes_on_where_it_was_after_an_import() {
    Runtime::simulated(62).block_on(async {
        let rack = Rack::new(&["a", "b", "c"], 64 << 20);
        let pool = slowly_scanned(&rack).await;
        pool.replace("a", Some("c"), false).await.unwrap();
        rt::sleep(Nanos::from_secs(8)).await;
        let before = pool.status().scan.unwrap();
        assert!(before.done_bytes > 0 && before.done_bytes < before.total_bytes, "{before:?}");
        pool.export().await.unwrap();
        drop(pool);
        let paths = names(&["a", "b", "c"]);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &paths, "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_millis(1)).await;
        let after = pool.status().scan.unwrap();
        assert_eq!((after.kind, after.state), (ScanKind::Resilver, ScanPhase::InProgress));
        assert_eq!(after.total_bytes, before.total_bytes);
        assert!(after.done_bytes >= before.done_bytes, "{before:?} then {after:?}");
        assert_eq!(after.started_at, before.started_at);
        while pool.status().scan.unwrap().state == ScanPhase::InProgress {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        let end = pool.status();
        let scan = end.scan.unwrap();
        assert_eq!(scan.state, ScanPhase::Completed);
        assert!(scan.repaired_bytes >= 16 << 20, "all that the copy got: {scan:?}");
        pool.sync().await.unwrap();
        assert!(pool.stats().since_import.media.repair > 0);
        assert_eq!(end.groups[0].children.len(), 2, "the original has left");
        pool.export().await.unwrap();
    });
}

#[test]
fn errors_that_were_made_good_count_at_the_device_alone() {
    Runtime::simulated(63).block_on(async {
        let rack = Rack::new(&["a", "b"], 64 << 20);
        let pool = slowly_scanned(&rack).await;
        rack.switches.unreadable.borrow_mut().insert("a".into());
        let v = pool.open_volume("v").unwrap();
        for at in 0..4 {
            super::expect(&v, at << 20, &stamp(1 << 20, at)).await;
        }
        rack.switches.unreadable.borrow_mut().clear();
        let status = pool.status();
        let errors: u64 = status.groups[0].children.iter().map(|child| child.read_errors).sum();
        assert!(errors > 0, "some reads went to the bad device");
        assert_eq!(status.groups[0].read_errors, 0, "none reached the group");
        assert_eq!(pool.condition(), PoolCondition::DeviceErrors);
        pool.export().await.unwrap();
    });
}

/// The newest root on a device.
async fn newest_root(rack: &Rc<Rack>, name: &str) -> u64 {
    let label = crate::labels::read_label(&rack.device(name)).await;
    label.roots.first().map_or(0, |root| root.commit.0)
}

async fn roots(rack: &Rc<Rack>) -> (u64, u64) {
    (newest_root(rack, "a").await, newest_root(rack, "b").await)
}

fn import_again(rack: &Rc<Rack>) -> impl Future<Output = Rc<Pool>> {
    let (opener, paths) = (rack.host(1), names(&["a", "b"]));
    async move {
        let options = ImportOptions::default();
        Pool::import(opener, &paths, "tank", &options).await.unwrap()
    }
}

/// A mirror whose power fails after `changes` commands of a commit. Returns the newest roots.
fn cut_in_a_commit(changes: u64) -> (Rc<Rack>, (u64, u64)) {
    let rack = Rack::new(&["a", "b"], 64 << 20);
    let mine = rack.clone();
    let found = Runtime::simulated(64).block_on(async move {
        let pool =
            Pool::create(mine.host(1), "tank", &spec(Layout::Mirror, &["a", "b"], &[])).await;
        let pool = pool.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        pool.sync().await.unwrap();
        mine.switches.power.set(Some(changes));
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        mine.switches.power.set(None);
        roots(&mine).await
    });
    (rack, found)
}

// Everything before the older root was flushed to both, and the next owner flushes the rest.
#[test]
fn a_side_without_the_newest_roots_of_two_owners_misses_nothing() {
    let mut met = 0;
    for first in 0..40 {
        let (_, (a, b)) = cut_in_a_commit(first);
        if a == b {
            continue;
        }
        for second in 0..60 {
            let (rack, before) = cut_in_a_commit(first);
            let mine = rack.clone();
            let after = Runtime::simulated(65).block_on(async move {
                mine.switches.power.set(Some(second));
                let pool = import_again(&mine).await;
                mine.switches.power.set(None);
                drop(pool);
                roots(&mine).await
            });
            let is_behind = |of: fn((u64, u64)) -> u64| {
                of(before) == of(after) && of(before) == before.0.min(before.1)
            };
            let went_on = before.0.max(before.1) < after.0.max(after.1);
            if !(went_on && (is_behind(|roots| roots.0) || is_behind(|roots| roots.1))) {
                continue;
            }
            met += 1;
            Runtime::simulated(66).block_on(async move {
                let pool = import_again(&rack).await;
                rt::sleep(Nanos::from_secs(5)).await;
                assert!(pool.status().scan.is_none(), "{first} {second}: {:?}", pool.status().scan);
                pool.export().await.unwrap();
            });
        }
    }
    assert!(met > 0, "no two cuts let one side have both roots");
}

#[test]
fn a_device_that_missed_an_import_gets_what_it_missed() {
    let rack = Rack::new(&["a", "b"], 64 << 20);
    let mine = rack.clone();
    Runtime::simulated(67).block_on(async move {
        let pool = slowly_scanned(&mine).await;
        pool.export().await.unwrap();
        drop(pool);
        mine.pull(&["b"]);
        let options = ImportOptions { force: true, ..ImportOptions::default() };
        let pool = Pool::import(mine.host(1), &names(&["a"]), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..8 {
            v.write(at << 20, stamp(1 << 20, 100 + at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        mine.put_back(&["b"]);
        let pool = import_again(&mine).await;
        while pool.summary().health != Health::Online {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        pool.export().await.unwrap();
        drop(pool);
        // From here on all rests on what it got.
        mine.pull(&["a"]);
        let pool = Pool::import(mine.host(1), &names(&["b"]), "tank", &options).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..16 {
            let salt = if at < 8 { 100 + at } else { at };
            super::expect(&v, at << 20, &stamp(1 << 20, salt)).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_is_replaced_twice_keeps_both_replacements_until_one_is_whole() {
    Runtime::simulated(65).block_on(async {
        const ALL: &[&str] = &["a", "b", "c", "d"];
        let rack = Rack::new(ALL, 64 << 20);
        let pool = slowly_scanned(&rack).await;
        let paths = |pool: &Rc<Pool>| -> Vec<String> {
            pool.config.borrow().data_members().map(|member| member.path.clone()).collect()
        };
        pool.replace("a", Some("c"), false).await.unwrap();
        pool.replace("a", Some("d"), false).await.unwrap();
        assert_eq!(paths(&pool), ["a", "d", "c", "b"]);
        pool.export().await.unwrap();
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(ALL), "tank", &options).await.unwrap();
        assert_eq!(pool.status().groups[0].children[0].children.len(), 3);
        pool.set("scan_rate", "auto").await.unwrap();
        while paths(&pool).len() > 2 {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        assert_eq!(pool.status().state, Health::Online);
        pool.export().await.unwrap();
    });
}

// A command that waits for it would say that the members are whole.
#[test]
fn a_resilver_that_the_end_of_the_pool_cuts_short_is_not_called_complete() {
    for millis in (50..6000).step_by(200) {
        Runtime::simulated(68).block_on(async move {
            // Large enough for a segment to take two steps, the last one as well.
            let rack = Rack::new(&["a", "b"], 16 << 30);
            let spec = spec(Layout::Mirror, &["a", "b"], &[]);
            let pool = Pool::create(rack.host(1), "tank", &spec).await.unwrap();
            pool.create_volume(&volume(8 << 20)).await.unwrap();
            let v = pool.open_volume("v").unwrap();
            pool.offline("b").await.unwrap();
            for at in 0..7 {
                v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
            }
            pool.sync().await.unwrap();
            drop(v);
            rack.switches.reads_take.set(Nanos::from_millis(300));
            pool.online("b").await.unwrap();
            rt::sleep(Nanos::from_millis(millis)).await;
            pool.export().await.unwrap();
            let is_whole = pool.store.array.stale_segments().is_empty();
            let scan = pool.status().scan.unwrap();
            let is_right = is_whole || scan.state != ScanPhase::Completed;
            assert!(is_right, "after {millis} ms: {scan:?}");
        });
    }
}
