//! Edges: the fullest pool, the widest group, and commands that must not give space away.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::{Device, ErrorKind, IoBuf, Operation, ZeroOptions};
use forebay_rt::{self as rt, Runtime};
use forebay_units::{Layout, Nanos};
use proptest::prelude::*;

use super::rack::{Rack, memory, paced};
use super::{expect, names, spec, stamp, volume};
use crate::spec::{ImportOptions, VolumeSpec};
use crate::status::Health;
use crate::{AdminError, Opener, Pool, SpaceFor, VolumeError};

const SIZE: u64 = 64 << 20;

/// Devices that take a little time for everything.
fn slow(names: &[&str]) -> Rc<dyn Opener> {
    let pace = |_: &str, operation: Operation, _: u64| {
        Some(match operation {
            Operation::Flush => Nanos::from_millis(1),
            _ => Nanos::from_micros(50 + rt::random_below(50)),
        })
    };
    paced(memory(names, SIZE), pace)
}

fn sparse(name: &str, size_bytes: u64) -> VolumeSpec {
    VolumeSpec { name: name.into(), size_bytes, sparse: true, properties: BTreeMap::new() }
}

/// Bytes that volumes hold or own, and bytes that there are.
fn taken(pool: &Pool) -> (u64, u64) {
    let all = pool.volumes();
    let own = |v: &crate::status::VolumeStatus| v.reserved_bytes.max(v.used_bytes);
    (all.iter().map(own).sum(), pool.summary().size_bytes)
}

/// Writes to the sparse volume "s" while a command runs. All volumes together must not own more
/// than there is.
async fn write_during<F, E>(pool: &Rc<Pool>, command: F)
where
    F: Future<Output = Result<(), E>> + 'static,
    E: std::fmt::Debug + 'static,
{
    let s = pool.open_volume("s").unwrap();
    let running = rt::spawn(command);
    let mut at = 0;
    while !running.is_finished() && at < 8 << 20 {
        let _ = s.write(at, stamp(65536, at), false).await;
        at += 65536;
        rt::sleep(Nanos::from_micros(10)).await;
    }
    running.await.unwrap();
    pool.sync().await.unwrap();
    let (held, all) = taken(pool);
    assert!(held <= all, "{held} bytes of {all}");
}

/// Fills a volume until there is no space. Returns the bytes that were written.
async fn fill(v: &Device, size: u64) -> u64 {
    let mut at = 0;
    while at < size && v.write(at, stamp(65536, at), false).await.is_ok() {
        at += 65536;
    }
    at
}

#[test]
fn blocks_written_after_a_trim_take_space_again() {
    Runtime::simulated(4).block_on(async move {
        let pool =
            Pool::create(slow(&["a"]), "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes.next_multiple_of(4096);
        pool.create_volume(&sparse("v", 2 * size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let filled = fill(&v, size).await;
        pool.sync().await.unwrap();
        const PART: u64 = 512 << 10;
        v.discard(0, PART, false).await.unwrap();
        // Slow enough that the group takes a while.
        v.write(8 * PART, stamp(PART as usize, 5), false).await.unwrap();
        let syncing = rt::spawn({
            let pool = pool.clone();
            async move { pool.sync().await }
        });
        while pool.dirty.groups.borrow().syncing().is_none() {
            assert!(!syncing.is_finished(), "it was not seen");
            rt::sleep(Nanos::from_micros(10)).await;
        }
        // The trim is being committed when the same blocks are written again.
        v.write(0, stamp(PART as usize, 7), false).await.unwrap();
        syncing.await.unwrap();
        let more = fill_from(&v, filled, filled + PART).await;
        pool.sync().await.unwrap();
        let (held, all) = taken(&pool);
        assert!(held <= all, "{held} bytes of {all}; {more} too much");
    });
}

#[test]
fn writes_of_parts_beside_a_rollback_bring_nothing_back() {
    const BLOCKS: u64 = 400;
    Runtime::simulated(6).block_on(async move {
        let pool =
            Pool::create(slow(&["a"]), "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&sparse("v", 8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let (old, new) = [1, 2].map(|salt| stamp((BLOCKS << 12) as usize, salt)).into();
        v.write(0, old.clone(), false).await.unwrap();
        pool.take_snapshots(&["v@a".to_owned()]).await.unwrap();
        v.write(0, new, false).await.unwrap();
        pool.sync().await.unwrap();
        // The group of the rollback takes a while.
        v.write(4 << 20, stamp(1 << 20, 3), false).await.unwrap();
        let going_back = rt::spawn({
            let pool = pool.clone();
            async move { pool.roll_back_volume("v@a", false).await }
        });
        // Each changes the beginning of a block. The rest has to be as in the snapshot.
        let mut writes = Vec::new();
        for block in 0..BLOCKS {
            let (v, data) = (v.clone(), stamp(512, 100 + block));
            writes.push(rt::spawn(async move { v.write(block << 12, data, false).await }));
            rt::sleep(Nanos::from_micros(20)).await;
        }
        going_back.await.unwrap();
        for write in writes {
            write.await.unwrap();
        }
        for block in 0..BLOCKS {
            let found = v.read(block << 12, IoBuf::zeroed(4096)).await.unwrap();
            let was = &old[(block << 12) as usize..][..4096];
            assert!(found[512..] == was[512..], "block {block} is what went back");
            let is_changed = found[..512] == stamp(512, 100 + block)[..];
            assert!(is_changed || found[..512] == was[..512], "block {block}");
        }
    });
}

async fn fill_from(v: &Device, from: u64, to: u64) -> u64 {
    let mut at = from;
    while at < to && v.write(at, stamp(4096, at), false).await.is_ok() {
        at += 4096;
    }
    at - from
}

#[derive(Clone, Debug)]
enum Step {
    Write { volume: usize, block: u64, blocks: u64 },
    Trim { volume: usize, block: u64, blocks: u64 },
    Zero { volume: usize, block: u64, blocks: u64, no_hole: bool },
    Sync,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0usize..2, 0u64..200, 1u64..80);
    prop_oneof![
        4 => place
            .clone()
            .prop_map(|(volume, block, blocks)| Step::Write { volume, block, blocks }),
        3 => place
            .clone()
            .prop_map(|(volume, block, blocks)| Step::Trim { volume, block, blocks }),
        2 => (place, any::<bool>()).prop_map(|((volume, block, blocks), no_hole)| {
            Step::Zero { volume, block, blocks, no_hole }
        }),
        2 => Just(Step::Sync),
        3 => (1u64..2000).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    // What is free never counts a block that a volume has, during commits too, or may have after a
    // power cut that takes what no root has. It counts all others once a root has everything.
    #[test]
    fn free_space_excludes_reserved_and_used_blocks(
        steps in prop::collection::vec(step(), 1..40),
        seed: u64,
    ) {
        Runtime::simulated(seed).block_on(async move {
            let data = spec(Layout::Raid0, &["a"], &[]);
            let pool = Pool::create(slow(&["a"]), "tank", &data).await.unwrap();
            let mut volumes = Vec::new();
            for name in ["v", "w"] {
                pool.create_volume(&sparse(name, 4 << 20)).await.unwrap();
                volumes.push((pool.open_volume(name).unwrap(), BTreeSet::new()));
            }
            let usable = pool.free_blocks();
            let (mut root, mut peaks) = (pool.sync.commit.get(), [0; 2]);
            for step in steps {
                let bytes = |blocks: u64| blocks * 4096;
                match step {
                    Step::Write { volume, block, blocks } => {
                        let (device, held) = &mut volumes[volume];
                        let data = stamp(bytes(blocks) as usize, block);
                        device.write(bytes(block), data, false).await.unwrap();
                        held.extend(block..block + blocks);
                    }
                    Step::Trim { volume, block, blocks } => {
                        let (device, held) = &mut volumes[volume];
                        device.discard(bytes(block), bytes(blocks), false).await.unwrap();
                        held.retain(|b| *b < block || *b >= block + blocks);
                    }
                    Step::Zero { volume, block, blocks, no_hole } => {
                        let (device, held) = &mut volumes[volume];
                        let options = ZeroOptions { no_hole, ..Default::default() };
                        device.write_zeroes(bytes(block), bytes(blocks), options).await.unwrap();
                        match no_hole {
                            true => held.extend(block..block + blocks),
                            false => held.retain(|b| *b < block || *b >= block + blocks),
                        }
                    }
                    Step::Sync => {
                        let pool = pool.clone();
                        // The export may overtake the last write.
                        rt::spawn(async move { pool.sync().await });
                    }
                    Step::Wait(micros) => rt::sleep(Nanos::from_micros(micros)).await,
                }
                let before = std::mem::replace(&mut root, pool.sync.commit.get());
                for ((_, held), peak) in volumes.iter().zip(&mut peaks) {
                    *peak = held.len().max(if root == before { *peak } else { 0 });
                }
                assert!(pool.free_blocks() <= usable - peaks.iter().sum::<usize>() as u64);
            }
            pool.sync().await.unwrap();
            let held: usize = volumes.iter().map(|(_, held)| held.len()).sum();
            assert_eq!(pool.free_blocks(), usable - held as u64);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_group_of_twenty_four_large_disks_has_a_shape() {
    for size_bytes in [1u64 << 40, 4 << 40, 9 << 40, 16 << 40, 24 << 40, 100 << 40] {
        for (layout, members) in
            [(Layout::Raid0, 24), (Layout::Raidz1, 24), (Layout::Raidz3, 24), (Layout::Raidz2, 12)]
        {
            let reserve = crate::layout::reserve_bytes(size_bytes);
            let data_columns = layout.data_columns(members);
            let (data_start_bytes, column_bytes, segments) =
                crate::layout::group_shape(size_bytes, reserve, data_columns, None);
            let group = forebay_format::config::GroupConfig {
                layout,
                unit_bytes: crate::layout::UNIT_BYTES,
                column_bytes,
                data_start_bytes,
                first_segment: 0,
                segments,
                members: (0..members as u32)
                    .map(|device| forebay_format::config::MemberConfig {
                        device,
                        path: String::new(),
                        size_bytes,
                        state: Default::default(),
                        stale_since: None,
                        stale: Vec::new(),
                        replacement: None,
                    })
                    .collect(),
            };
            let shape = crate::layout::geometry_of(&group).check();
            assert_eq!(shape, Ok(()), "{layout} of {members} devices of {size_bytes} bytes");
        }
    }
}

#[test]
fn merge_brings_back_nothing_that_a_shrink_cut_off() {
    Runtime::simulated(9).block_on(async {
        let pace = |_: &str, operation: Operation, _: u64| {
            Some(match operation {
                Operation::Read => Nanos::from_millis(100),
                _ => Nanos::from_micros(50),
            })
        };
        let shelf = paced(memory(&["a"], SIZE), pace);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.sync().await.unwrap();
        let at = 100 * 4096;
        // The merge reads the block for long, and the volume shrinks and grows meanwhile.
        let late = v.clone();
        let writer = rt::spawn(async move { late.write(at, stamp(512, 2), false).await });
        rt::sleep(Nanos::from_millis(1)).await;
        pool.resize_volume("v", 64 * 4096, true).await.unwrap();
        pool.resize_volume("v", 1 << 20, false).await.unwrap();
        let _ = writer.await;
        expect(&v, at + 512, &[0; 4096 - 512]).await;
        pool.export().await.unwrap();
    });
}

#[test]
fn zeroes_without_a_hole_keep_their_space() {
    Runtime::simulated(4).block_on(async move {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes.next_multiple_of(65536);
        pool.create_volume(&sparse("v", size)).await.unwrap();
        pool.create_volume(&sparse("w", size)).await.unwrap();
        let (v, w) = (pool.open_volume("v").unwrap(), pool.open_volume("w").unwrap());
        v.write(0, stamp(1 << 20, 1), false).await.unwrap();
        let options = ZeroOptions { no_hole: true, ..Default::default() };
        v.write_zeroes(0, 1 << 20, options).await.unwrap();
        let runs = v.allocation(0, 1 << 20).await.unwrap();
        assert!(runs.iter().all(|run| !run.hole), "{runs:?}");
        pool.sync().await.unwrap();
        let at = fill(&w, size).await;
        fill_from(&w, at, size).await;
        v.write(0, stamp(1 << 20, 2), false).await.unwrap();
    });
}

#[test]
fn a_volume_that_is_being_made_owns_its_space_at_once() {
    Runtime::simulated(4).block_on(async move {
        let pool =
            Pool::create(slow(&["a"]), "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&sparse("s", size)).await.unwrap();
        let making = {
            let pool = pool.clone();
            async move { pool.create_volume(&volume(size / 65536 * 65536 - (1 << 20))).await }
        };
        write_during(&pool, making).await;
    });
}

#[test]
fn a_volume_that_grows_owns_its_space_at_once() {
    Runtime::simulated(4).block_on(async move {
        let pool =
            Pool::create(slow(&["a"]), "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&sparse("s", size)).await.unwrap();
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        let growing = {
            let pool = pool.clone();
            async move { pool.resize_volume("v", size / 65536 * 65536 - (1 << 20), false).await }
        };
        write_during(&pool, growing).await;
    });
}

#[test]
fn the_longest_write_fits_the_smallest_pool() {
    Runtime::simulated(4).block_on(async move {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        for at in (0..size / 4096).map(|b| b * 4096) {
            v.write(at, stamp(4096, at), false).await.unwrap();
        }
        v.flush().await.unwrap();
        for i in 0..size / 4096 {
            let block = rt::random_below(size / 4096);
            v.write(block * 4096, stamp(4096, i), false).await.unwrap();
        }
        for round in 0..4 {
            v.write(round << 20, stamp(32 << 20, round), false).await.unwrap();
            v.flush().await.unwrap();
            expect(&v, round << 20, &stamp(32 << 20, round)).await;
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_log_device_that_may_not_replace_itself_stays_in_use() {
    let rack = Rack::new(&["a", "l"], SIZE);
    Runtime::simulated(2).block_on(async move {
        let data = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(rack.host(1), "tank", &data).await.unwrap();
        let before = format!("{:?}", pool.status().logs[0].state);
        assert!(pool.replace("l", None, false).await.is_err());
        assert_eq!(format!("{:?}", pool.status().logs[0].state), before);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_device_that_is_away_has_not_lost_its_label() {
    let rack = Rack::new(&["a", "b", "l", "m"], SIZE);
    Runtime::simulated(2).block_on(async move {
        let data = spec(Layout::Mirror, &["a", "b"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &data).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        rack.pull(&["b", "m"]);
        v.write(0, stamp(4096, 1), true).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(pool.summary().health, Health::Degraded);
        for name in ["b", "m"] {
            let refused = pool.online(name).await.unwrap_err();
            assert!(matches!(refused, AdminError::Device(_)), "{name}: {refused}");
        }
        rack.put_back(&["b", "m"]);
        for name in ["b", "m"] {
            pool.online(name).await.unwrap();
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_side_that_was_lost_is_replaced_by_what_is_in_its_place() {
    let rack = Rack::new(&["a", "l", "m"], SIZE);
    Runtime::simulated(2).block_on(async move {
        let data = spec(Layout::Raid0, &["a"], &["l", "m"]);
        let pool = Pool::create(rack.host(1), "tank", &data).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), true).await.unwrap();
        let refused = pool.replace("m", None, false).await.unwrap_err();
        assert_eq!(refused, AdminError::InUseHere { device: "m".into() });
        pool.offline("m").await.unwrap();
        let empty = rack.device("m");
        empty.write(0, IoBuf::zeroed(SIZE as usize).freeze(), true).await.unwrap();
        assert!(matches!(pool.online("m").await, Err(AdminError::LabelGone { .. })));
        assert_eq!(pool.summary().health, Health::Degraded);
        pool.replace("m", None, false).await.unwrap();
        let sides = pool.status().logs[0].children.clone();
        assert_eq!(sides.iter().map(|s| s.state).collect::<Vec<_>>(), [Health::Online; 2]);
        v.write(0, stamp(4096, 2), true).await.unwrap();
        // The new side alone has what was acknowledged.
        pool.offline("l").await.unwrap();
        v.write(0, stamp(4096, 3), true).await.unwrap();
        drop((v, pool));
        let options = ImportOptions::default();
        let pool = Pool::import(rack.host(1), &names(&["a", "m"]), "tank", &options).await.unwrap();
        expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 3)).await;
    });
}

#[test]
fn a_mirror_of_five_loses_four_and_no_acknowledged_write() {
    let all = ["a", "b", "c", "d", "e"];
    for kept in all {
        let rack = Rack::new(&all, SIZE);
        let mine = rack.clone();
        Runtime::simulated(1).block_on(async move {
            let data = spec(Layout::Mirror, &all, &[]);
            let pool = Pool::create(mine.host(1), "tank", &data).await.unwrap();
            pool.create_volume(&volume(16 << 20)).await.unwrap();
            pool.open_volume("v").unwrap().write(0, stamp(4096, 1), true).await.unwrap();
        });
        Runtime::simulated(2).block_on(async move {
            let gone: Vec<&str> = all.iter().copied().filter(|d| *d != kept).collect();
            rack.pull(&gone);
            let forced = ImportOptions { force: true, ..Default::default() };
            let pool = Pool::import(rack.host(1), &names(&all), "tank", &forced).await;
            let pool = pool.map_err(|e| format!("{kept} alone: {e}")).unwrap();
            expect(&pool.open_volume("v").unwrap(), 0, &stamp(4096, 1)).await;
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_group_that_grows_while_the_log_drains_finds_room() {
    Runtime::simulated(4).block_on(async move {
        let tardy = Rc::new(std::cell::Cell::new(false));
        // On demand, writes to the log device take seconds.
        let told = tardy.clone();
        let pace = move |name: &str, operation: Operation, _: u64| match operation {
            Operation::Write if told.get() && name == "l" => Some(Nanos::from_secs(3)),
            Operation::Write => Some(Nanos::from_micros(20)),
            _ => None,
        };
        let shelf = paced(memory(&["a", "l"], SIZE), pace);
        let data = spec(Layout::Raid0, &["a"], &["l"]);
        let pool = Pool::create(shelf, "tank", &data).await.unwrap();
        let size = pool.summary().size_bytes / 4096 * 4096;
        pool.create_volume(&volume(size)).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        let blocks = size / 4096;
        for i in 0..blocks * 3 {
            let block = if i < blocks { i } else { rt::random_below(blocks) };
            v.write(block * 4096, stamp(4096, i), false).await.unwrap();
        }
        v.flush().await.unwrap();
        for _ in 0..10 {
            pool.sync().await.unwrap();
            tardy.set(true);
            let frame = rt::spawn({
                let v = v.clone();
                async move { v.write(0, stamp(4096, 1), true).await }
            });
            rt::sleep(Nanos::from_millis(1)).await;
            let request = rt::spawn({
                let pool = pool.clone();
                async move { pool.restart_log(true).await }
            });
            rt::sleep(Nanos::from_millis(100)).await;
            for i in 0..900 {
                let block = rt::random_below(blocks);
                v.write(block * 4096, stamp(4096, i), false).await.unwrap();
            }
            frame.await.unwrap();
            tardy.set(false);
            request.await.unwrap();
        }
        pool.export().await.unwrap();
    });
}
#[test]
fn a_writer_that_waits_for_room_does_not_wait_for_the_clock() {
    Runtime::simulated(4).block_on(async move {
        let shelf = memory(&["a"], 64 << 20);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(16 << 20)).await.unwrap();
        pool.set("txg_timeout", "600").await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(4096, 1), false).await.unwrap();
        rt::sleep(forebay_units::Nanos::from_secs(1)).await;
        let begun = rt::now();
        v.write(1 << 20, stamp(4 << 20, 2), false).await.unwrap();
        let took = rt::now().since(begun).as_secs_f64();
        assert!(took < 5.0, "{took} seconds");
        pool.export().await.unwrap();
    });
}

#[test]
fn a_volume_does_not_outgrow_the_pool() {
    Runtime::simulated(20).block_on(async {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&volume(8 << 20)).await.unwrap();
        let size_bytes = || pool.get_volume("v").unwrap().size_bytes;
        let refused = pool.resize_volume("v", 2 * SIZE, false).await.unwrap_err();
        assert!(
            matches!(refused, VolumeError::NoSpace { wanted_for: SpaceFor::Growth, .. }),
            "{refused}"
        );
        assert_eq!(size_bytes(), 8 << 20);
        pool.resize_volume("v", 16 << 20, false).await.unwrap();
        assert_eq!(size_bytes(), 16 << 20);
        pool.export().await.unwrap();
    });
}

#[test]
fn zeroes_that_are_data_are_not_fast() {
    Runtime::simulated(21).block_on(async {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.create_volume(&VolumeSpec { sparse: true, ..volume(8 << 20) }).await.unwrap();
        let v = pool.open_volume("v").unwrap();
        v.write(0, stamp(8192, 1), false).await.unwrap();
        let options = |fast, no_hole| ZeroOptions { fua: false, no_hole, fast };
        let refused = v.write_zeroes(0, 4096, options(true, true)).await.unwrap_err();
        assert!(matches!(refused.kind, ErrorKind::Unsupported), "{refused}");
        expect(&v, 0, &stamp(8192, 1)).await;
        for (at, fast, no_hole) in [(0, true, false), (4096, false, true)] {
            v.write_zeroes(at, 4096, options(fast, no_hole)).await.unwrap();
            expect(&v, at, &[0; 4096]).await;
        }
        drop(v);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_long_line_of_history_is_cut_between_characters() {
    Runtime::simulated(22).block_on(async {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        pool.log_history(&("x".repeat(498) + "\u{20ac}\u{20ac}"));
        let line = pool.history().pop().unwrap();
        assert!(line.ends_with(&"x".repeat(498)), "{line}");
        pool.export().await.unwrap();
    });
}

#[test]
fn the_history_keeps_the_last_lines() {
    Runtime::simulated(23).block_on(async {
        let shelf = memory(&["a"], SIZE);
        let pool = Pool::create(shelf, "tank", &spec(Layout::Raid0, &["a"], &[])).await.unwrap();
        (0..1000).for_each(|number| pool.log_history(&format!("command {number}")));
        let lines = pool.history();
        assert_eq!(lines.len(), 200);
        assert!(lines[0].ends_with(" command 800") && lines[199].ends_with(" command 999"));
        pool.export().await.unwrap();
    });
}
