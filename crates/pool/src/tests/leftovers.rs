//! Work that ends half done: a refused command, a crash between two roots, a read over one bad
//! block, writers that wait for devices.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, IoBuf, IoBytes, Operation};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};

use super::compression::{blocks, sparse};
use super::rack::{Rack, memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{CloneSpec, GroupSpec, ImportOptions, PoolSpec, VolumeSpec};
use crate::status::{ScanKind, ScanPhase};
use crate::{AdminError, Pool, PoolError};

const SIZE: u64 = 64 << 20;

/// Where `wanted` (one block) lies on a device.
async fn place_of(device: &Device, wanted: &[u8]) -> u64 {
    for at in (5 << 20..SIZE - (1 << 20)).step_by(4096) {
        let held = device.read(at, IoBuf::zeroed(4096)).await.unwrap();
        if held[..] == wanted[..4096] {
            return at;
        }
    }
    panic!("it is nowhere");
}

#[test]
fn a_read_over_one_bad_block_calls_that_block_lost_and_no_other() {
    Runtime::simulated(1).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let data = stamp(256 << 10, 1);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        pool.sync().await.unwrap();
        let device = rack.device("a");
        let rot = IoBuf::copy_of(&[0xee; 4096]).freeze();
        for block in [20, 40] {
            let at = place_of(&device, &data[block * 4096..]).await;
            device.write(at, rot.clone(), false).await.unwrap();
        }
        assert!(v.read(0, IoBuf::zeroed(256 << 10)).await.is_err());
        let status = pool.status();
        assert_eq!(status.lost_count, 2, "{:?}", status.lost);
        for (said, block) in status.lost.iter().zip([20, 40]) {
            assert!(said.ends_with(&format!("offset {}", block * 4096)), "{said}");
        }
        expect(&v, 0, &data[..20 * 4096]).await;
        expect(&v, 21 * 4096, &data[21 * 4096..40 * 4096]).await;
        pool.export().await.unwrap();
    });
}

// Merging writers hold a part of the dirty limit while they wait for devices. No commit gives it
// back.
#[test]
fn writers_that_wait_for_devices_cause_no_roots() {
    Runtime::simulated(2).block_on(async {
        let slow = Rc::new(Cell::new(false));
        let pace = {
            let slow = slow.clone();
            move |_: &str, operation: Operation, at: u64| {
                let body = operation == Operation::Read && at >= 1 << 20;
                Some(match body && slow.get() {
                    true => Nanos::from_secs(10),
                    false => Nanos::from_micros(100),
                })
            }
        };
        let inner = memory(&["a"], SIZE);
        let opener = paced(inner, pace);
        let mut options = spec(Layout::Raid0, &["a"], &[]);
        options.properties.insert("dirty_limit".to_owned(), "4M".to_owned());
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..16u64 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        slow.set(true);
        let before = pool.sync.commit.get().0;
        v.write(15 << 20, stamp(4096, 99), false).await.unwrap();
        let writers: Vec<_> = (0..6u64)
            .map(|at| {
                let v = v.clone();
                let part = stamp((1 << 20) - 1024, 100 + at);
                rt::spawn(async move { v.write((at << 20) + 512, part, false).await })
            })
            .collect();
        // The group of the one write is due after five seconds.
        rt::sleep(Nanos::from_secs(9)).await;
        let roots = pool.sync.commit.get().0 - before;
        assert!(roots <= 2, "{roots} roots, with nothing to commit");
        for writer in writers {
            writer.await.unwrap();
        }
        for at in 0..6u64 {
            expect(&v, (at << 20) + 512, &stamp((1 << 20) - 1024, 100 + at)).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn an_add_that_is_refused_leaves_the_devices_as_they_were() {
    Runtime::simulated(3).block_on(async {
        let rack = Rack::new(&["a", "b", "c", "d", "l"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        // Data of another owner.
        let mine = stamp(65536, 7);
        for name in ["b", "c", "d", "l"] {
            rack.device(name).write(64 << 10, mine.clone(), false).await.unwrap();
        }
        let before = rack.changes();
        let group = GroupSpec { layout: Layout::Raidz3, devices: names(&["b", "c", "d"]) };
        let add = PoolSpec { groups: vec![group], force: true, ..spec(Layout::Raid0, &[], &["l"]) };
        pool.add(&add).await.unwrap_err();
        for name in ["b", "c", "d", "l"] {
            expect(&rack.device(name), 64 << 10, &mine).await;
        }
        assert_eq!(rack.changes(), before, "something was written");
        assert_eq!(pool.status().groups.len(), 1);
        pool.export().await.unwrap();
    });
}

/// What [`cut_during`] writes; it becomes much smaller when it is compressed.
fn content() -> IoBytes {
    blocks(1, 1024, 64)
}

/// A pool so full that cleaning roots come before each group. A command runs on its volume, and the
/// power fails after `cut` changes. Returns the number of changes, and whether the power failed.
fn cut_during<F, E>(
    rack: &Rc<Rack>,
    volume: VolumeSpec,
    cut: u64,
    command: impl FnOnce(Rc<Pool>) -> F + 'static,
) -> bool
where
    F: Future<Output = Result<(), E>>,
{
    let rack = rack.clone();
    Runtime::simulated(4).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, content(), false).await.unwrap();
        pool.sync().await.unwrap();
        let mut limits = pool.limits.get();
        limits.reserve_segments = 10_000;
        pool.limits.set(limits);
        rack.switches.power.set(Some(cut));
        let _ = command(pool.clone()).await;
        rack.switches.power.get() == Some(0)
    })
}

fn imported<T>(rack: &Rc<Rack>, see: impl AsyncFnOnce(Rc<Pool>) -> T + 'static) -> T
where
    T: 'static,
{
    let rack = rack.clone();
    rack.switches.power.set(None);
    Runtime::simulated(5).block_on(async move {
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&["a"]), "tank", &options).await.unwrap();
        let out = see(pool.clone()).await;
        pool.export().await.unwrap();
        out
    })
}

#[test]
fn blocks_past_a_smaller_size_are_gone_at_every_crash_point() {
    let compressed = sparse("v", 4 << 20, &[("compression", "lz4")]);
    // One block is cut off, or many.
    for (volume, size) in
        [(volume(4 << 20), 1 << 20), (compressed, 1 << 20), (volume(4 << 20), (4 << 20) - 4096)]
    {
        for cut in (0..).step_by(3) {
            let rack = Rack::new(&["a"], SIZE);
            let failed = cut_during(&rack, volume.clone(), cut, move |pool| async move {
                pool.resize_volume("v", size, true).await
            });
            imported(&rack, async move |pool: Rc<Pool>| {
                let v = pool.open_volume("v").unwrap();
                expect(&v, 0, &content()[..size as usize]).await;
                if pool.get_volume("v").unwrap().size_bytes == size {
                    pool.resize_volume("v", 4 << 20, false).await.unwrap();
                    expect(&v, size, &vec![0; (4 << 20) - size as usize]).await;
                } else {
                    expect(&v, 0, &content()).await;
                }
            });
            if !failed {
                break;
            }
        }
    }
}

/// As [`cut_during`]; the command makes a clone smaller.
fn cut_during_resize_of_clone(rack: &Rc<Rack>, cut: u64) -> bool {
    let rack = rack.clone();
    Runtime::simulated(8).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        pool.open_volume("v").unwrap().write(0, content(), false).await.unwrap();
        pool.take_snapshots(&names(&["v@s"])).await.unwrap();
        let clone = CloneSpec { name: "w".into(), properties: BTreeMap::new() };
        pool.clone_snapshot("v@s", &clone).await.unwrap();
        let mut limits = pool.limits.get();
        limits.reserve_segments = 10_000;
        pool.limits.set(limits);
        rack.switches.power.set(Some(cut));
        let _ = pool.resize_volume("w", 1 << 20, true).await;
        rack.switches.power.get() == Some(0)
    })
}

#[test]
fn what_a_smaller_clone_had_of_its_origin_is_gone_at_every_crash_point() {
    for cut in 0.. {
        let rack = Rack::new(&["a"], SIZE);
        let failed = cut_during_resize_of_clone(&rack, cut);
        imported(&rack, async |pool: Rc<Pool>| {
            let w = pool.open_volume("w").unwrap();
            expect(&w, 0, &content()[..1 << 20]).await;
            if pool.get_volume("w").unwrap().size_bytes == 1 << 20 {
                pool.resize_volume("w", 4 << 20, false).await.unwrap();
                expect(&w, 1 << 20, &vec![0; 3 << 20]).await;
            } else {
                expect(&w, 0, &content()).await;
            }
        });
        if !failed {
            break;
        }
    }
}

#[test]
fn a_destroyed_volume_leaves_no_blocks_at_any_crash_point() {
    for has_snapshot in [false, true] {
        for cut in (0..).step_by(3) {
            let rack = Rack::new(&["a"], SIZE);
            let failed = cut_during(&rack, volume(4 << 20), cut, move |pool| async move {
                if has_snapshot {
                    pool.take_snapshots(&names(&["v@s"])).await?;
                }
                pool.destroy_volume("v", has_snapshot).await
            });
            imported(&rack, async |pool: Rc<Pool>| match pool.open_volume("v") {
                Some(v) => expect(&v, 0, &content()).await,
                None => {
                    let map = pool.store.map.borrow();
                    let held: u64 = map.volumes().map(|id| map.mapped_blocks(id)).sum();
                    assert_eq!(held, 0, "blocks that no version has");
                    assert!(pool.snapshots.volumes().is_empty(), "a snapshot of no volume");
                }
            });
            if !failed {
                break;
            }
        }
    }
}

#[test]
fn a_failed_device_can_be_replaced_by_itself() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let opener = rack.locked();
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(65536, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        let refused = pool.replace("a", None, false).await.unwrap_err();
        assert_eq!(refused, AdminError::InUseHere { device: "a".into() });
        assert_eq!(pool.summary().health, crate::status::Health::Online);
        rack.switches.unreadable.borrow_mut().insert("a".to_owned());
        rack.switches.unwritable.borrow_mut().insert("a".to_owned());
        v.write(0, stamp(65536, 2), true).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.status().groups[0].children[0].state, crate::status::Health::Faulted);
        rack.switches.unreadable.borrow_mut().clear();
        rack.switches.unwritable.borrow_mut().clear();
        pool.replace("a", None, false).await.unwrap();
        loop {
            rt::sleep(Nanos::from_millis(100)).await;
            if pool.status().scan.is_some_and(|scan| scan.state == ScanPhase::Completed) {
                break;
            }
        }
        expect(&v, 0, &stamp(65536, 2)).await;
        assert_eq!(pool.summary().health, crate::status::Health::Online);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_cannot_be_opened_anew_says_how_it_comes_back() {
    Runtime::simulated(6).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.offline("a").await.unwrap();
        rack.pull(&["a"]);
        let error = pool.replace("a", None, false).await.unwrap_err();
        assert!(
            matches!(&error, AdminError::NotTakenIn { pool, device, error }
                if pool == "tank" && device == "a" && matches!(**error, AdminError::Candidate(_))),
            "{error:?}"
        );
        rack.put_back(&["a"]);
        pool.online("a").await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.status().groups[0].children[0].state, crate::status::Health::Online);
        pool.export().await.unwrap();
    });
}

// A segment of large devices takes a while to read. Groups are committed meanwhile.
#[test]
fn a_group_is_committed_while_a_scrub_reads_a_segment() {
    Runtime::simulated(7).block_on(async {
        let slow = Rc::new(Cell::new(false));
        let pace = {
            let slow = slow.clone();
            move |_: &str, operation: Operation, at: u64| {
                let body = operation == Operation::Read && at >= 1 << 20;
                Some(match body && slow.get() {
                    true => Nanos::from_secs(2),
                    false => Nanos::from_micros(100),
                })
            }
        };
        let inner = memory(&["a", "b"], 8 << 30);
        let opener = paced(inner, pace);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        let geometry = pool.store.array.groups()[0];
        assert!(geometry.rows() >= 48, "{geometry:?}");
        pool.create_volume(&volume(64 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in 0..48u64 {
            v.write(at << 20, stamp(1 << 20, at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        slow.set(true);
        pool.scrub().await.unwrap();
        rt::sleep(Nanos::from_secs(3)).await;
        let done = || pool.status().scan.unwrap().done_bytes;
        let before = done();
        v.write(50 << 20, stamp(4096, 100), false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(done(), before, "the group has waited for a whole segment");
        slow.set(false);
        // Blocks that are overwritten during the scrub are not lost.
        for at in 0..48u64 {
            v.write(at << 20, stamp(1 << 20, 200 + at), false).await.unwrap();
        }
        pool.sync().await.unwrap();
        let scan = loop {
            rt::sleep(Nanos::from_millis(100)).await;
            let scan = pool.status().scan.unwrap();
            if scan.state != ScanPhase::InProgress {
                break scan;
            }
        };
        assert_eq!((scan.errors, scan.repaired_bytes), (0, 0), "{scan:?}");
        for at in 0..48u64 {
            expect(&v, at << 20, &stamp(1 << 20, 200 + at)).await;
        }
        pool.export().await.unwrap();
    });
}

// The configuration keeps room for what grows by itself (stale segments, lost blocks), whatever the
// number of volumes: a pool must not be suspended because a device was taken offline.
#[test]
fn volumes_leave_room_in_the_configuration_for_what_grows_by_itself() {
    Runtime::simulated(8).block_on(async {
        let rack = Rack::new(&["a"], SIZE);
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        let long = |i: u32| VolumeSpec {
            name: format!("{}{i}", "n".repeat(190)),
            sparse: true,
            properties: BTreeMap::from([("comment".to_owned(), "c".repeat(200))]),
            ..volume(1 << 20)
        };
        let mut made = 0;
        while pool.create_volume(&long(made)).await.is_ok() {
            made += 1;
        }
        assert!(made > 100);
        let spare =
            forebay_format::label::CONFIG_SLOT_BYTES as usize - pool.config.borrow().encode().len();
        assert!(spare >= 64 << 10, "{spare} bytes are left");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_replacement_leaves_that_room_too() {
    Runtime::simulated(9).block_on(async {
        // The paths of devices are part of the configuration.
        let long = "d".repeat(200);
        let rack = Rack::new(&["a", "b", &long], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        let mut made = 0;
        for comment_bytes in [200, 1] {
            let next = |made: u32| VolumeSpec {
                name: made.to_string(),
                sparse: true,
                properties: BTreeMap::from([("comment".to_owned(), "c".repeat(comment_bytes))]),
                ..volume(1 << 20)
            };
            while pool.create_volume(&next(made)).await.is_ok() {
                made += 1;
            }
        }
        let refused = pool.replace("a", Some(&long), false).await.unwrap_err();
        assert!(matches!(refused, AdminError::ConfigTooLarge(_)), "{refused}");
        pool.destroy_volume("0", false).await.unwrap();
        pool.replace("a", Some(&long), false).await.unwrap();
        pool.export().await.unwrap();
    });
}

/// Fills a pool, sets a property, and overwrites everything after the next import.
async fn overwrites_after_setting(property: &str, value: &str) -> Result<(), PoolError> {
    let rack = Rack::new(&["a"], SIZE);
    let options = spec(Layout::Raid0, &["a"], &[]);
    let pool = Pool::create(rack.host(1), "tank", &options).await?;
    let size = pool.summary().size_bytes / 4096 * 4096;
    pool.create_volume(&volume(size)).await?;
    let v = pool.open_volume("v").unwrap();
    for at in (0..size).step_by(4096) {
        v.write(at, stamp(4096, at), false).await.unwrap();
    }
    let outcome = pool.set(property, value).await;
    pool.export().await?;
    drop((v, pool));
    outcome?;
    let pool =
        Pool::import(rack.host(1), &names(&["a"]), "tank", &ImportOptions::default()).await?;
    let v = pool.open_volume("v").unwrap();
    for i in 0..2 * size / 4096 {
        let at = rt::random_below(size / 4096) * 4096;
        let data = stamp(4096, i);
        v.write(at, data, false).await.unwrap_or_else(|e| panic!("write {i}: {e}"));
    }
    v.flush().await.unwrap();
    Ok(pool.export().await?)
}

// The reserve must hold a group, and a group may be as large as the dirty limit.
#[test]
fn a_dirty_limit_for_which_there_is_no_room_is_refused() {
    Runtime::simulated(9).block_on(async {
        overwrites_after_setting("dirty_limit", "4M").await.unwrap();
        let error = overwrites_after_setting("dirty_limit", "48M").await.unwrap_err();
        let PoolError::Admin(AdminError::TooLittleUsable { usable_bytes, taken_bytes, .. }) = error
        else {
            panic!("{error:?}");
        };
        assert!(usable_bytes < taken_bytes && taken_bytes < SIZE, "{usable_bytes} {taken_bytes}");
        assert!(taken_bytes > SIZE / 2, "all that there was: {taken_bytes}");
    });
}

#[test]
fn a_resilver_names_the_blocks_that_it_could_not_rebuild() {
    Runtime::simulated(10).block_on(async {
        let rack = Rack::new(&["a", "b"], SIZE);
        let options = spec(Layout::Mirror, &["a", "b"], &[]);
        let pool = Pool::create(rack.host(1), "tank", &options).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        pool.offline("a").await.unwrap();
        let data = stamp(256 << 10, 1);
        v.write(0, data.clone(), false).await.unwrap();
        pool.sync().await.unwrap();
        let b = rack.device("b");
        let at = place_of(&b, &data[20 * 4096..]).await;
        b.write(at, IoBuf::copy_of(&[0xee; 4096]).freeze(), false).await.unwrap();
        pool.online("a").await.unwrap();
        let scan = loop {
            rt::sleep(Nanos::from_millis(100)).await;
            let scan = pool.status().scan.unwrap();
            if scan.state != ScanPhase::InProgress {
                break scan;
            }
        };
        assert_eq!((scan.kind, scan.errors), (ScanKind::Resilver, 1), "{scan:?}");
        let status = pool.status();
        assert_eq!(status.lost, ["tank/v: offset 81920"], "{}", status.lost_count);
        assert!(v.read(20 * 4096, IoBuf::zeroed(4096)).await.is_err());
        expect(&v, 21 * 4096, &data[21 * 4096..]).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_that_is_created_while_labels_are_written_is_there_after_a_crash() {
    let rack = Rack::new(&["a"], SIZE);
    let is_slow = Rc::new(Cell::new(false));
    let told = is_slow.clone();
    let opener = paced(rack.host(1), move |_, operation, _| {
        (told.get() && operation == Operation::Write).then_some(Nanos::from_millis(100))
    });
    Runtime::simulated(9).block_on(async move {
        let options = spec(Layout::Raid0, &["a"], &[]);
        let pool = Pool::create(opener, "tank", &options).await.unwrap();
        pool.sync().await.unwrap();
        is_slow.set(true);
        let before = pool.sync.config_written.get();
        pool.log_history("a command");
        let syncing = rt::spawn({
            let pool = pool.clone();
            async move { pool.sync().await.unwrap() }
        });
        while pool.sync.config_written.get() == before {
            rt::sleep(Nanos::from_millis(1)).await;
        }
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        syncing.await;
    });
    imported(&rack, async |pool: Rc<Pool>| {
        assert!(pool.get_volume("v").is_some());
    });
}
