//! A spare takes the place of a device that fails.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::rack::{Rack, paced};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, PoolSpec};
use crate::status::{Health, PoolEvent, SpareState};
use crate::{AdminError, Opener, Opening, Pool};

const DEVICES: &[&str] = &["a", "b", "c", "l", "s", "t"];

fn with_spares(spares: &[&str]) -> PoolSpec {
    PoolSpec { spares: names(spares), ..spec(Layout::Raidz1, &["a", "b", "c"], &["l"]) }
}

async fn written(pool: &Rc<Pool>) -> Device {
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    let v = pool.open_volume("v").unwrap();
    for at in 0..64u64 {
        v.write(at << 16, stamp(65536, at), false).await.unwrap();
    }
    pool.sync().await.unwrap();
    v
}

async fn holds_all(v: &Device) {
    for at in 0..64u64 {
        expect(v, at << 16, &stamp(65536, at)).await;
    }
}

async fn health_within(pool: &Pool, wanted: Health, secs: u64) {
    for _ in 0..secs {
        if pool.summary().health == wanted {
            return;
        }
        rt::sleep(Nanos::from_secs(1)).await;
    }
    panic!("{:?} after {secs} s, not {wanted:?}: {:?}", pool.summary().health, pool.events());
}

#[test]
fn a_spare_replaces_a_device_that_goes_away() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s", "t"])).await.unwrap();
        let v = written(&pool).await;
        rt::sleep(Nanos::from_secs(1)).await;
        let states: Vec<SpareState> = pool.status().spares.iter().map(|s| s.state).collect();
        assert_eq!(states, [SpareState::Avail; 2]);
        // The pool holds its spares: no other has them.
        let other = spec(Layout::Raid0, &["s"], &[]);
        let error = Pool::create(rack.locked(), "other", &other).await.err().unwrap();
        assert!(matches!(error, AdminError::Candidate(_)), "{error}");
        rack.pull(&["b"]);
        v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().health, Health::Degraded);
        health_within(&pool, Health::Online, 60).await;
        let taken = |event: &PoolEvent| matches!(event, PoolEvent::SpareTaken { .. });
        assert_eq!(pool.events().iter().filter(|event| taken(event)).count(), 1);
        assert_eq!(pool.status().spares.len(), 1);
        // The spare has its share of everything: the pool can do without another device.
        while pool.summary().health != Health::Online || pool.status().groups[0].children.len() != 3
        {
            rt::sleep(Nanos::from_secs(1)).await;
        }
        let members: Vec<String> =
            pool.status().groups[0].children.iter().map(|child| child.name.clone()).collect();
        assert!(members.contains(&"s".to_owned()) && !members.contains(&"b".to_owned()));
        rack.pull(&["a"]);
        holds_all(&v).await;
        expect(&v, 8 << 20, &stamp(4096, 9)).await;
        // The second spare takes the next one.
        health_within(&pool, Health::Online, 60).await;
        assert!(pool.status().spares.is_empty());
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let paths = names(&["c", "l", "s", "t"]);
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        holds_all(&pool.open_volume("v").unwrap()).await;
        assert_eq!(pool.summary().health, Health::Online);
    });
}

#[test]
fn a_spare_is_held_from_the_moment_that_it_is_added() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&[])).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let spare = PoolSpec { spares: names(&["s"]), ..PoolSpec::default() };
        pool.add(&spare).await.unwrap();
        assert_eq!(pool.status().spares[0].state, SpareState::Avail);
        let other = spec(Layout::Raid0, &["s"], &[]);
        Pool::create(rack.locked(), "other", &other).await.err().unwrap();
        pool.export().await.unwrap();
        rack.locked().open("s").await.unwrap();
        drop(pool);
        // Who looks at once sees it as well.
        let options = ImportOptions { for_command: true, ..ImportOptions::default() };
        let paths = names(&["a", "b", "c", "l"]);
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        pool.look_at_spares().await;
        assert_eq!(pool.status().spares[0].state, SpareState::Avail);
        // Nor does a suspended pool hold it, so that the one that follows can.
        rack.pull(&["a", "b", "c"]);
        pool.create_volume(&volume(1 << 20)).await.unwrap_err();
        rt::sleep(Nanos::from_secs(1)).await;
        rack.locked().open("s").await.unwrap();
    });
}

#[test]
fn a_device_that_holds_something_is_no_spare_with_force_either() {
    Runtime::simulated(7).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let mut swap = IoBuf::zeroed(4096);
        swap[4086..].copy_from_slice(b"SWAPSPACE2");
        rack.device("t").write(0, swap.freeze(), true).await.unwrap();
        let spare = PoolSpec { spares: names(&["t"]), force: true, ..PoolSpec::default() };
        let error = pool.add(&spare).await.unwrap_err();
        assert!(matches!(error, AdminError::SpareNotEmpty(_)), "{error}");
        // A spare is a device of the pool all the same, and refused as what it is.
        let error = pool.replace("s", Some("t"), true).await.unwrap_err();
        assert!(matches!(error, AdminError::NotMember { is_spare: true, .. }), "{error}");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_spare_is_taken_when_nothing_is_where_the_device_was() {
    Runtime::simulated(5).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        pool.set("autoreplace", "on").await.unwrap();
        rack.pull(&["b"]);
        v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
        pool.sync().await.unwrap();
        health_within(&pool, Health::Degraded, 10).await;
        health_within(&pool, Health::Online, 60).await;
        assert!(pool.status().spares.is_empty());
        holds_all(&v).await;
    });
}

#[test]
fn a_device_that_is_missing_at_import_is_replaced_after_a_minute() {
    Runtime::simulated(2).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        rack.pull(&["c"]);
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c", "l"]);
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(50)).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        health_within(&pool, Health::Online, 60).await;
        holds_all(&pool.open_volume("v").unwrap()).await;
    });
}

// A list of volumes destroys no snapshot and uses no device.
#[test]
fn a_pool_that_is_open_for_a_command_leaves_to_a_server_what_is_due() {
    Runtime::simulated(8).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        drop(written(&pool).await);
        pool.set("scrub_every", "2h").await.unwrap();
        pool.set_volume("v", "snapshot_every", "hourly=1").await.unwrap();
        rt::sleep(Nanos::from_secs(60)).await;
        let snapshots = async |pool: &Pool| {
            let all = pool.list_snapshots().await.into_iter();
            all.map(|snapshot| snapshot.name).collect::<Vec<_>>()
        };
        let taken = snapshots(&pool).await;
        assert_eq!(taken.len(), 1);
        pool.export().await.unwrap();
        drop(pool);
        rack.pull(&["b"]);
        rt::sleep(Nanos::from_secs(3 * 3600)).await;
        let paths = names(&["a", "c", "l", "s"]);
        let options = ImportOptions { for_command: true, ..ImportOptions::default() };
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(3600)).await;
        assert_eq!(snapshots(&pool).await, taken);
        assert!(pool.status().scan.is_none(), "{:?}", pool.status().scan);
        let states: Vec<SpareState> = pool.status().spares.iter().map(|s| s.state).collect();
        assert_eq!(states, [SpareState::Avail], "it can be seen that the spare is there");
        assert_eq!(pool.summary().health, Health::Degraded);
        pool.export().await.unwrap();
        drop(pool);
        let options = ImportOptions::default();
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        health_within(&pool, Health::Online, 180).await;
        assert_ne!(snapshots(&pool).await, taken);
        pool.export().await.unwrap();
    });
}

#[test]
fn spares_that_are_too_small_or_not_empty_are_not_taken() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&[])).await.unwrap();
        let v = written(&pool).await;
        let t = PoolSpec { spares: names(&["t"]), ..PoolSpec::default() };
        pool.add(&t).await.unwrap();
        let again = pool.add(&t).await.unwrap_err();
        assert!(
            matches!(again, AdminError::Candidate(_) | AdminError::NamedTwice { .. }),
            "{again}"
        );
        pool.remove("t").await.unwrap();
        assert!(pool.status().spares.is_empty());
        // Now it is another pool's, and was a spare of this one.
        pool.add(&t).await.unwrap();
        drop(v);
        pool.export().await.unwrap();
        drop(pool);
        let other = spec(Layout::Raid0, &["t"], &[]);
        Pool::create(rack.locked(), "other", &other).await.unwrap().export().await.unwrap();
        let options = ImportOptions::default();
        let paths = names(&["a", "b", "c", "l"]);
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        rack.pull(&["c"]);
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(120)).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        assert_eq!(pool.status().spares[0].state, SpareState::Unavail);
        holds_all(&pool.open_volume("v").unwrap()).await;
    });
}

/// An export has its turn, waits for the pool's tasks, and the task that replaces devices wants a
/// turn.
#[test]
fn a_pool_ends_while_a_spare_is_about_to_be_taken() {
    for autoreplace in ["off", "on"] {
        Runtime::simulated(4).block_on(async move {
            let rack = Rack::new(DEVICES, 64 << 20);
            let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
            let v = written(&pool).await;
            pool.set("autoreplace", autoreplace).await.unwrap();
            let turn = pool.admin.lock().await;
            let export = rt::spawn({
                let pool = pool.clone();
                async move { pool.export().await }
            });
            rack.pull(&["b"]);
            v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
            pool.sync().await.unwrap();
            drop(v);
            health_within(&pool, Health::Degraded, 10).await;
            rt::sleep(Nanos::from_secs(30)).await;
            assert!(!pool.has_ended(), "the export waits for its turn");
            drop(turn);
            let ended = rt::timeout(Nanos::from_secs(600), export).await;
            ended.expect("the export comes to its end").unwrap();
            drop(pool);
            rack.put_back(&["b"]);
            let options = ImportOptions::default();
            let paths = names(&["a", "b", "c", "l", "s"]);
            let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
            expect(&pool.open_volume("v").unwrap(), 8 << 20, &stamp(4096, 9)).await;
            assert_eq!(pool.status().spares.len(), 1, "the spare is still one");
        });
    }
}

#[test]
fn a_spare_that_cannot_be_written_stays_one() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        rt::sleep(Nanos::from_secs(1)).await;
        rack.switches.unwritable.borrow_mut().insert("s".into());
        rack.pull(&["b"]);
        v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        let failed = |event: &PoolEvent| matches!(event, PoolEvent::SpareNotTaken { .. });
        assert_eq!(pool.events().iter().filter(|event| failed(event)).count(), 1);
        let spares: Vec<String> = pool.status().spares.into_iter().map(|s| s.name).collect();
        assert_eq!(spares, ["s"]);
        assert_eq!(pool.summary().health, Health::Degraded);
    });
}

/// Puts `b` out of use while a command has the turn, and waits until the task that replaces devices
/// wants it.
async fn waits_for_turn(rack: &Rc<Rack>, pool: &Rc<Pool>, v: &Device) {
    rack.pull(&["b"]);
    v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
    pool.sync().await.unwrap();
    health_within(pool, Health::Degraded, 10).await;
}

// The operator was first, and the task would take a spare for a member that is being replaced.
#[test]
fn a_spare_is_not_taken_for_a_device_that_a_command_has_replaced_meanwhile() {
    Runtime::simulated(7).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        let turn = pool.admin.lock().await;
        waits_for_turn(&rack, &pool, &v).await;
        let replacing = rt::spawn({
            let pool = pool.clone();
            async move { pool.replace("b", Some("t"), false).await }
        });
        rt::sleep(Nanos::from_secs(10)).await;
        drop(turn);
        replacing.await.unwrap();
        health_within(&pool, Health::Online, 60).await;
        rt::sleep(Nanos::from_secs(30)).await;
        let spares: Vec<String> = pool.status().spares.into_iter().map(|s| s.name).collect();
        assert_eq!(spares, ["s"], "{:?}", pool.events());
        let members: Vec<String> =
            pool.status().groups[0].children.iter().map(|child| child.name.clone()).collect();
        assert_eq!(members, ["a", "t", "c"]);
        let is_tried = |event: &PoolEvent| {
            matches!(event, PoolEvent::SpareTaken { .. } | PoolEvent::SpareNotTaken { .. })
        };
        assert!(!pool.events().iter().any(is_tried), "{:?}", pool.events());
        holds_all(&v).await;
    });
}

#[test]
fn a_spare_is_not_taken_for_a_device_that_was_brought_back_meanwhile() {
    Runtime::simulated(8).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        let turn = pool.admin.lock().await;
        waits_for_turn(&rack, &pool, &v).await;
        rt::sleep(Nanos::from_secs(10)).await;
        rack.put_back(&["b"]);
        let returning = rt::spawn({
            let pool = pool.clone();
            async move { pool.online("b").await }
        });
        rt::sleep(Nanos::from_secs(1)).await;
        drop(turn);
        returning.await.unwrap();
        health_within(&pool, Health::Online, 60).await;
        rt::sleep(Nanos::from_secs(30)).await;
        assert_eq!(pool.status().spares.len(), 1, "{:?}", pool.events());
        holds_all(&v).await;
    });
}

// What is at the path of a member is looked at before the turn comes, and may not be it any more.
#[test]
fn a_device_that_is_written_before_its_turn_comes_replaces_no_member() {
    const PARTITIONS: u64 = 512;
    Runtime::simulated(9).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        // Not locked: what is at the path now is another device.
        let pool = Pool::create(rack.host(1), "tank", &with_spares(&[])).await.unwrap();
        let v = written(&pool).await;
        pool.set("autoreplace", "on").await.unwrap();
        let turn = pool.admin.lock().await;
        waits_for_turn(&rack, &pool, &v).await;
        rack.put_back(&["b"]);
        let disk = rack.device("b");
        let empty = IoBuf::zeroed(64 << 20).freeze();
        disk.write(0, empty, false).await.unwrap();
        rt::sleep(Nanos::from_secs(10)).await;
        let mut table = IoBuf::zeroed(4096);
        table[..8].copy_from_slice(b"EFI PART");
        let table = table.freeze();
        disk.write(PARTITIONS, table.clone(), false).await.unwrap();
        drop(turn);
        rt::sleep(Nanos::from_secs(30)).await;
        expect(&disk, PARTITIONS, &table).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        // Empty again, it is taken.
        disk.write(0, IoBuf::zeroed(1 << 20).freeze(), false).await.unwrap();
        health_within(&pool, Health::Online, 60).await;
        holds_all(&v).await;
    });
}

#[test]
fn a_device_in_the_place_of_a_member_is_not_taken_when_a_command_has_replaced_that_meanwhile() {
    Runtime::simulated(12).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        // Not locked: what is at the path now is another device.
        let pool = Pool::create(rack.host(1), "tank", &with_spares(&[])).await.unwrap();
        let v = written(&pool).await;
        pool.set("autoreplace", "on").await.unwrap();
        pool.set("scan_rate", "1M").await.unwrap();
        let turn = pool.admin.lock().await;
        waits_for_turn(&rack, &pool, &v).await;
        rack.put_back(&["b"]);
        let empty = IoBuf::zeroed(64 << 20).freeze();
        rack.device("b").write(0, empty, false).await.unwrap();
        let replacing = rt::spawn({
            let pool = pool.clone();
            async move { pool.replace("b", Some("t"), false).await }
        });
        rt::sleep(Nanos::from_secs(10)).await;
        drop(turn);
        replacing.await.unwrap();
        health_within(&pool, Health::Online, 120).await;
        let is_tried = |event: &PoolEvent| {
            matches!(event, PoolEvent::SpareTaken { .. } | PoolEvent::SpareNotTaken { .. })
        };
        assert!(!pool.events().iter().any(is_tried), "{:?}", pool.events());
        let members: Vec<String> =
            pool.status().groups[0].children.iter().map(|child| child.name.clone()).collect();
        assert_eq!(members, ["a", "t", "c"]);
        holds_all(&v).await;
    });
}

// A root without the spare comes while the spare is being made a member.
#[test]
fn a_spare_that_could_not_be_taken_is_one_after_a_crash() {
    let rack = Rack::new(DEVICES, 64 << 20);
    let slow = paced(rack.locked(), |device, operation, _| {
        (device == "s" && operation == Operation::Write).then_some(Nanos::from_secs(3))
    });
    let here = rack.clone();
    Runtime::simulated(10).block_on(async move {
        let pool = Pool::create(slow, "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        here.switches.unwritable.borrow_mut().insert("s".into());
        here.pull(&["b"]);
        v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
        pool.sync().await.unwrap();
        while !pool.config.borrow().spares.is_empty() {
            rt::sleep(Nanos::from_millis(10)).await;
        }
        pool.log_history("a command");
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(60)).await;
        let failed = |event: &PoolEvent| matches!(event, PoolEvent::SpareNotTaken { .. });
        assert_eq!(pool.events().iter().filter(|event| failed(event)).count(), 1);
        assert_eq!(pool.status().spares.len(), 1);
    });
    Runtime::simulated(11).block_on(async move {
        let options = ImportOptions::default();
        let paths = names(&["a", "c", "l"]);
        let pool = Pool::import(rack.locked(), &paths, "tank", &options).await.unwrap();
        assert_eq!(pool.status().spares.len(), 1);
        pool.export().await.unwrap();
    });
}

/// Opens devices alone; the opening of `s` takes a while.
struct Slow {
    inner: Rc<dyn Opener>,
    takes: Cell<Nanos>,
}

impl Opener for Slow {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            if path == "s" {
                rt::sleep(self.takes.get()).await;
            }
            self.inner.open(path).await
        })
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}

#[test]
fn a_spare_that_is_removed_while_it_is_opened_is_not_held() {
    Runtime::simulated(4057).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let opener = Rc::new(Slow { inner: rack.locked(), takes: Cell::new(Nanos::ZERO) });
        let pool = Pool::create(opener.clone(), "tank", &with_spares(&["s"])).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        opener.takes.set(Nanos::from_secs(10));
        let (options, paths) = (ImportOptions::default(), names(&["a", "b", "c", "l"]));
        let pool = Pool::import(opener.clone(), &paths, "tank", &options).await.unwrap();
        rt::sleep(Nanos::from_secs(2)).await;
        pool.remove("s").await.unwrap();
        rt::sleep(Nanos::from_millis(8500)).await;
        rack.locked().open("s").await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn a_spare_that_was_written_to_meanwhile_replaces_no_member() {
    const PARTITIONS: u64 = 512;
    Runtime::simulated(4089).block_on(async {
        let rack = Rack::new(DEVICES, 64 << 20);
        let pool = Pool::create(rack.locked(), "tank", &with_spares(&["s"])).await.unwrap();
        let v = written(&pool).await;
        let disk = rack.device("s");
        let mut table = IoBuf::zeroed(4096);
        table[..8].copy_from_slice(b"EFI PART");
        let table = table.freeze();
        disk.write(PARTITIONS, table.clone(), true).await.unwrap();
        rack.pull(&["b"]);
        v.write(8 << 20, stamp(4096, 9), true).await.unwrap();
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        let failed = |event: &PoolEvent| matches!(event, PoolEvent::SpareNotTaken { .. });
        assert_eq!(pool.events().iter().filter(|event| failed(event)).count(), 1);
        assert_eq!(pool.summary().health, Health::Degraded);
        expect(&disk, PARTITIONS, &table).await;
        holds_all(&v).await;
    });
}
