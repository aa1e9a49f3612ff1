//! Refused imports, what an operator may force, and pools that end.

use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_format::label::Heartbeat;
use forebay_multihost::{read_heartbeat, write_heartbeat};
use forebay_rt::{self as rt, Runtime};
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{Layout, Nanos};

use super::rack::Rack;
use super::{expect, names, spec, stamp, volume};
use crate::labels::read_label;
use crate::spec::ImportOptions;
use crate::status::{Health, Importable};
use crate::{ImportError, ImportErrorKind, Lacking, MapLoadError, Pool, PoolError};

pub(crate) const ALL: [&str; 6] = ["a", "b", "c", "d", "l", "m"];
pub(crate) const SIZE: u64 = 64 << 20;

pub(super) fn forced() -> ImportOptions {
    ImportOptions { force: true, ..Default::default() }
}

fn without_log() -> ImportOptions {
    ImportOptions { accept_log_loss: true, ..Default::default() }
}

/// A pool with one volume whose first block is `salt`, durable in the log.
pub(crate) async fn make(rack: &Rc<Rack>, layout: Layout, data: &[&str], log: &[&str]) -> Rc<Pool> {
    let pool = Pool::create(rack.host(1), "tank", &spec(layout, data, log)).await.unwrap();
    pool.create_volume(&volume(16 << 20)).await.unwrap();
    write(&pool, 1).await;
    pool
}

pub(super) async fn write(pool: &Rc<Pool>, salt: u64) {
    let v = pool.open_volume("v").unwrap();
    v.write(0, stamp(4096, salt), true).await.unwrap();
}

pub(super) async fn check(pool: &Rc<Pool>, salt: u64) {
    expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, salt)).await;
}

/// A crash: the machine stops in the state that `work` left.
pub(super) fn until_crash<F: Future<Output = ()> + 'static>(work: F) {
    Runtime::simulated(1).block_on(work);
}

pub(super) async fn import(
    rack: &Rc<Rack>,
    host: u64,
    options: &ImportOptions,
) -> Result<Rc<Pool>, ImportErrorKind> {
    let outcome = Pool::import(rack.host(host), &names(&ALL), "tank", options).await;
    outcome.map_err(|error| error.kind)
}

/// Imports that must be refused without a single write to any device. Returns the reason.
pub(super) async fn refused(
    rack: &Rc<Rack>,
    host: u64,
    options: &ImportOptions,
) -> ImportErrorKind {
    let before = rack.changes();
    let kind = import(rack, host, options).await.err().expect("it is refused");
    assert_eq!(rack.changes(), before, "after: {kind}");
    kind
}

#[test]
fn an_import_without_too_many_devices_is_refused_and_writes_nothing() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Raidz1, &["a", "b", "c", "d"], &["l", "m"]).await;
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["a", "b"]);
        for options in [ImportOptions::default(), forced()] {
            let kind = refused(&rack, 1, &options).await;
            assert_kind!(kind, TooFewDevices { missing, .. } if *missing == ["a", "b"]);
        }
        rack.put_back(&["a"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 1).await;
        assert_eq!(pool.summary().health, Health::Degraded);
        pool.export().await.unwrap();
    });
}

#[test]
fn an_import_without_the_log_is_refused_and_writes_nothing() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raidz1, &["a", "b", "c", "d"], &["l", "m"]).await;
        pool.sync().await.unwrap();
        write(&pool, 2).await;
    });
    Runtime::simulated(2).block_on(async move {
        rack.pull(&["l", "m"]);
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        let both = ["l", "m"];
        assert_kind!(kind, LogMissing { missing, lost_after: Some(_), .. } if *missing == both);
        let found = Pool::discover(rack.host(1), &names(&ALL)).await;
        assert_eq!(found[0].importable, Importable::WithoutLog { loses_writes: true });
        // One side is enough.
        rack.put_back(&["m"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        write(&pool, 3).await;
        pool.export().await.unwrap();
        drop(pool);
        // After an export nothing is lost with the log, and the operator still has to accept it.
        rack.pull(&["m"]);
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, LogMissing { lost_after: None, .. });
        let found = Pool::discover(rack.host(1), &names(&ALL)).await;
        assert_eq!(found[0].importable, Importable::WithoutLog { loses_writes: false });
        let pool = import(&rack, 1, &without_log()).await.unwrap();
        check(&pool, 3).await;
        write(&pool, 4).await;
        assert_eq!(pool.status().logs[0].state, Health::Faulted);
        pool.export().await.unwrap();
        drop(pool);
        // The operator accepts it once. A log that returns is not taken for a newer one.
        rack.put_back(&["l", "m"]);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 4).await;
        pool.online("l").await.unwrap();
        pool.online("m").await.unwrap();
        assert_eq!(pool.summary().health, Health::Online);
        write(&pool, 5).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn an_import_that_finds_acknowledged_frames_lost_writes_nothing() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raidz1, &["a", "b", "c", "d"], &["l"]).await;
        // More than an import may keep in memory, so that it would commit groups on the way.
        pool.set("dirty_limit", "1M").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..96 {
            v.write(at * 32768, stamp(32768, 100 + at), true).await.unwrap();
        }
    });
    Runtime::simulated(2).block_on(async move {
        // A hole in the middle of the frames.
        let log = rack.device("l");
        let hole = (1 << 20) + (2 << 20);
        let kept = log.read(hole, IoBuf::zeroed(65536)).await.unwrap();
        log.write(hole, IoBuf::zeroed(65536).freeze(), true).await.unwrap();
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, LogLoss(loss) if !loss.frames.is_empty());
        // With the frames back in place nothing is missing.
        log.write(hole, kept.freeze(), true).await.unwrap();
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..96 {
            expect(&v, at * 32768, &stamp(32768, 100 + at)).await;
        }
        let report = pool.stats().last_import;
        assert!(report.log_bytes > 3 << 20, "{report:?}");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_another_machine_uses_is_refused_and_not_written_to() {
    Runtime::simulated(1).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let pool = make(&rack, Layout::Raidz1, &["a", "b", "c", "d"], &["l", "m"]).await;
        pool.sync().await.unwrap();
        rt::sleep(Nanos::from_secs(20)).await;
        // The idle owner writes its heartbeat to two devices a second, for four seconds.
        const BEATS: u64 = 2 * 5;
        for options in [ImportOptions::default(), forced()] {
            let before = rack.changes();
            let kind = import(&rack, 2, &options).await.err().unwrap();
            assert_kind!(kind, InUseElsewhere { .. });
            let changes = rack.changes() - before;
            assert!(changes <= BEATS, "{changes} changes: the other wrote as well");
        }
        check(&pool, 1).await;
        write(&pool, 2).await;
        pool.export().await.unwrap();
        // After an export any machine may import it.
        let pool = import(&rack, 2, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_of_a_machine_that_is_silent_needs_force() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Raidz1, &["a", "b", "c", "d"], &["l", "m"]).await;
    });
    Runtime::simulated(2).block_on(async move {
        let kind = refused(&rack, 2, &ImportOptions::default()).await;
        assert_kind!(kind, NotExportedElsewhere);
        let pool = import(&rack, 2, &forced()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_takeover_gives_way_to_a_mark_over_its_own() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Raidz1, &["a", "b", "c", "d"], &["l", "m"]).await;
    });
    Runtime::simulated(2).block_on(async move {
        let theirs = rack.clone();
        let back = rt::spawn(async move {
            // Another owner claims the pool after the activity check, over this import's claim.
            rt::sleep(Nanos::from_secs(5)).await;
            let device = theirs.device("b");
            let mark = read_heartbeat(&device).await.unwrap().unwrap();
            let beat = Heartbeat { nonce: mark.nonce ^ 1, host: 1, ..mark };
            write_heartbeat(&device, &beat).await.unwrap();
        });
        let kind = import(&rack, 2, &forced()).await.err().unwrap();
        assert_kind!(kind, TakenMeanwhile);
        back.await;
        // The pool still has everything.
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn roots_of_another_version_are_never_passed_over() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Mirror, &["a", "b"], &[]).await;
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        // A later program wrote one more root, on one device.
        let device = rack.device("b");
        let [front, _] = forebay_format::label::label_offsets(SIZE);
        let ring = front + forebay_format::label::SUPERBLOCK_OFFSET_BYTES;
        let at = ring + 31 * 4096;
        let mut slot = device.read(ring + 4096, IoBuf::zeroed(4096)).await.unwrap();
        assert!(forebay_format::superblock::Superblock::decode(&slot).is_ok(), "root 1");
        slot[8] += 1;
        let sum = forebay_format::checksum::crc64(&slot[..4088]);
        slot[4088..].copy_from_slice(&sum.to_le_bytes());
        device.write(at, slot.freeze(), true).await.unwrap();
        for options in [ImportOptions::default(), forced()] {
            let kind = refused(&rack, 1, &options).await;
            assert_kind!(kind, FormatVersion { device, expected, found }
                if device == "b" && *found == expected + 1);
        }
    });
}

#[test]
fn an_import_that_cannot_read_the_map_writes_nothing() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raid0, &["a"], &["l"]).await;
        pool.sync().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        let device = rack.device("a");
        let whole = device.read(0, IoBuf::zeroed(SIZE as usize)).await.unwrap();
        let frames: Vec<usize> = (0..whole.len())
            .step_by(4096)
            .filter(|at| whole[*at..].starts_with(b"FBAYJRNL"))
            .collect();
        assert!(!frames.is_empty());
        for at in &frames {
            device.write(*at as u64, IoBuf::zeroed(4096).freeze(), true).await.unwrap();
        }
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, Map { error, missing, behind }
            if matches!(**error, MapLoadError::Segment(_))
                && missing.is_empty()
                && behind.is_empty());
        let reads = (0..SIZE).step_by(4096).map(|at| ("a".to_owned(), at));
        rack.switches.bad_blocks.borrow_mut().extend(reads.skip(256));
        let kind = refused(&rack, 1, &ImportOptions::default()).await;
        assert_kind!(kind, Map { .. });
        let error = PoolError::from(ImportError { pool: "tank".into(), kind });
        assert!(error.device_errors().iter().any(|error| error.device == "a"), "{error:?}");
        rack.switches.bad_blocks.borrow_mut().clear();
        for at in &frames {
            let kept = IoBuf::copy_of(&whole[*at..*at + 4096]).freeze();
            device.write(*at as u64, kept, true).await.unwrap();
        }
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_machine_that_lost_its_pool_to_another_stops_writing() {
    Runtime::simulated(1).block_on(async move {
        let rack = Rack::new(&ALL, SIZE);
        let first = make(&rack, Layout::Mirror, &["a", "b"], &[]).await;
        // Not between a reading and a writing of the heartbeat: the import would write its claim
        // again.
        rt::sleep(Nanos::from_millis(3500)).await;
        // Another owner's heartbeat appears, as after an import with -f on a machine that saw none.
        let (pool, nonce, host, beat) = (first.guid(), 7, 2, 1);
        let taken = Heartbeat { pool, nonce, host, beat };
        write_heartbeat(&rack.device("a"), &taken).await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        assert_eq!(first.summary().health, Health::Suspended);
        let v = first.open_volume("v").unwrap();
        assert!(v.write(0, stamp(4096, 9), true).await.is_err());
    });
}

#[test]
fn import_without_a_readable_map_names_missing_devices() {
    let mut refused = 0;
    for (gone, rotten) in [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")] {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        until_crash(async move {
            let pool = make(&mine, Layout::Raidz1, &["a", "b", "c"], &["l"]).await;
            pool.sync().await.unwrap();
        });
        rack.pull(&[gone]);
        rack.switches.unreadable.borrow_mut().insert(rotten.to_owned());
        // The little data that there is may lie on the third one.
        let kind = Runtime::simulated(2)
            .block_on(async move { import(&rack, 1, &ImportOptions::default()).await.err() });
        if let Some(kind) = kind {
            assert_kind!(kind, Map { missing, .. } if *missing == [gone]);
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_rewind_goes_back_by_groups_and_stays_there() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raidz1, &["a", "b", "c"], &["l"]).await;
        let v = pool.open_volume("v").unwrap();
        pool.sync().await.unwrap();
        for salt in [2, 3] {
            v.write(0, stamp(4096, salt), false).await.unwrap();
            pool.sync().await.unwrap();
        }
    });
    Runtime::simulated(2).block_on(async move {
        let back = ImportOptions { rewind_groups: 1, ..Default::default() };
        let pool = import(&rack, 1, &back).await.unwrap();
        check(&pool, 2).await;
        pool.export().await.unwrap();
        drop(pool);
        // The root that was left behind never counts again.
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 2).await;
        write(&pool, 4).await;
        pool.export().await.unwrap();
        drop(pool);
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        check(&pool, 4).await;
        pool.export().await.unwrap();
        drop(pool);
        let far = ImportOptions { rewind_groups: 200, ..Default::default() };
        let kind = refused(&rack, 1, &far).await;
        assert_kind!(kind, NoSuperblock(lacking) if *lacking == Lacking::default());
    });
}

#[test]
fn roots_that_a_rewind_leaves_behind_are_overwritten() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        let pool = make(&mine, Layout::Raidz1, &["a", "b", "c"], &["l"]).await;
        let v = pool.open_volume("v").unwrap();
        for salt in [2, 3, 4] {
            v.write(0, stamp(4096, salt), false).await.unwrap();
            pool.sync().await.unwrap();
        }
    });
    Runtime::simulated(2).block_on(async move {
        let roots = async |device: &str| -> BTreeSet<u64> {
            let label = read_label(&rack.device(device)).await;
            label.roots.iter().map(|root| root.commit.0).collect()
        };
        let before = roots("a").await;
        let newest: Vec<u64> = before.iter().rev().take(3).copied().collect();
        let back = ImportOptions { rewind_groups: 2, ..Default::default() };
        let pool = import(&rack, 1, &back).await.unwrap();
        check(&pool, 2).await;
        for device in ["a", "b", "c"] {
            let now = roots(device).await;
            assert!(!now.contains(&newest[0]) && !now.contains(&newest[1]), "{now:?}");
            assert!(now.contains(&newest[2]), "the chosen root is still there: {now:?}");
        }
    });
}

#[test]
fn a_destroyed_pool_is_exported_or_gone_at_every_crash_point() {
    let make_and_destroy = |power: Option<u64>| {
        let rack = Rack::new(&ALL, SIZE);
        let mine = rack.clone();
        let changes = Runtime::simulated(1).block_on(async move {
            let pool = make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await;
            let before = mine.changes();
            mine.switches.power.set(power);
            pool.destroy().await.unwrap();
            mine.changes() - before
        });
        rack.switches.power.set(None);
        (rack, changes)
    };
    let (_, commands) = make_and_destroy(None);
    assert!(commands > 10);
    let (mut there, mut gone) = (0, 0);
    for power in 0..=commands {
        let (rack, _) = make_and_destroy(Some(power));
        let is_gone = Runtime::simulated(2).block_on(async move {
            let found = Pool::discover(rack.host(1), &names(&ALL)).await;
            let imported = import(&rack, 1, &ImportOptions::default()).await;
            assert_eq!(found.len(), usize::from(imported.is_ok()), "power {power}: {found:?}");
            match imported {
                Ok(pool) => {
                    check(&pool, 1).await;
                    pool.export().await.unwrap();
                    drop(pool);
                    for device in ["a", "b", "l"] {
                        let spec = spec(Layout::Raid0, &[device], &[]);
                        let taken = Pool::create(rack.host(1), "other", &spec).await;
                        assert!(taken.is_err(), "power {power}: {device} was taken");
                    }
                    false
                }
                Err(kind) => {
                    assert_eq!(kind, ImportErrorKind::Destroyed, "power {power}");
                    true
                }
            }
        });
        gone += u64::from(is_gone);
        there += u64::from(!is_gone);
    }
    assert!(there > 0 && gone > 0, "{there} there, {gone} gone");
    let (rack, _) = make_and_destroy(None);
    Runtime::simulated(3).block_on(async move {
        let spec = spec(Layout::Mirror, &["a", "b"], &["l"]);
        let pool = Pool::create(rack.host(1), "other", &spec).await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn discovery_shows_the_health_of_groups_and_devices() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Mirror, &["a", "b"], &["l"]).await.export().await.unwrap();
    });
    Runtime::simulated(2).block_on(async move {
        let seen = async || {
            let found = Pool::discover(rack.host(1), &names(&ALL)).await.remove(0);
            let children = found.groups[0].children.iter();
            let children = children.map(|child| (child.state, child.note.clone()));
            (found.groups[0].state, found.logs[0].state, children.collect::<Vec<_>>())
        };
        let online = (Health::Online, None);
        let all = vec![online.clone(), online.clone()];
        assert_eq!(seen().await, (Health::Online, Health::Online, all));
        rack.pull(&["b", "l"]);
        let some = vec![online.clone(), (Health::Unavail, None)];
        assert_eq!(seen().await, (Health::Degraded, Health::Unavail, some));
        rack.put_back(&["b", "l"]);
        // Taken out of use, and back without what it missed.
        let pool = import(&rack, 1, &ImportOptions::default()).await.unwrap();
        pool.offline("b").await.unwrap();
        write(&pool, 2).await;
        pool.export().await.unwrap();
        drop(pool);
        let (group, _, children) = seen().await;
        assert_eq!((group, children[1].0), (Health::Degraded, Health::Offline));
        assert_eq!(children[0], online);
    });
}

#[test]
fn an_import_that_fails_names_the_devices_that_it_could_not_use() {
    let rack = Rack::new(&ALL, SIZE);
    let mine = rack.clone();
    until_crash(async move {
        make(&mine, Layout::Raid0, &["a", "b"], &["l"]).await;
    });
    Runtime::simulated(2).block_on(async move {
        // Claims and heartbeats come through; nothing comes to the body of `a`.
        rack.switches.unwritable_bodies.borrow_mut().insert("a".into());
        let kind = import(&rack, 1, &forced()).await.err().expect("the replay needs it");
        rack.switches.unwritable_bodies.borrow_mut().clear();
        assert_kind!(kind, Recovery { out_of_use, .. } if *out_of_use == ["a"]);
        let pool = import(&rack, 1, &forced()).await.unwrap();
        check(&pool, 1).await;
        pool.export().await.unwrap();
    });
}

/// Segments of the map journal, and those that the table has for it.
async fn journal_segments(pool: &Pool) -> (usize, usize) {
    let mut in_table = 0;
    pool.store.table.for_each(|_, info| {
        let is_in_use = matches!(info.state, SegmentState::Open | SegmentState::Full);
        in_table += usize::from(is_in_use && info.kind == SegmentKind::Map);
    });
    (pool.writers.lock().await.journal.segments(), in_table)
}

/// A rack with what device `a` holds now.
async fn copy_of(rack: &Rc<Rack>, size_bytes: u64) -> Rc<Rack> {
    const STEP: u64 = 1 << 20;
    let copy = Rack::new(&["a"], size_bytes);
    for at in (0..size_bytes).step_by(STEP as usize) {
        let held = rack.device("a").read(at, IoBuf::zeroed(STEP as usize)).await.unwrap();
        copy.device("a").write(at, held.freeze(), false).await.unwrap();
    }
    copy
}

// The map of long runs fits the padding of a row, which is written last.
#[test]
fn segments_that_the_map_journal_has_just_left_are_free_after_a_crash() {
    const SIZE: u64 = 256 << 20;
    Runtime::simulated(9).block_on(async {
        let (rack, paths) = (Rack::new(&["a"], SIZE), names(&["a"]));
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(128 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..128 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        let (mut crashes, mut before) = (0, 0);
        while crashes < 4 {
            v.write(0, stamp(4096, before as u64), false).await.unwrap();
            pool.sync().await.unwrap();
            let (now, _) = journal_segments(&pool).await;
            if std::mem::replace(&mut before, now) > now {
                crashes += 1;
                let opener = copy_of(&rack, SIZE).await.host(1);
                let options = ImportOptions::default();
                let crashed = Pool::import(opener, &paths, "tank", &options).await.unwrap();
                let (journal, in_table) = journal_segments(&crashed).await;
                assert_eq!(in_table, journal, "segments are left to no journal");
                crashed.export().await.unwrap();
            }
        }
    });
}
