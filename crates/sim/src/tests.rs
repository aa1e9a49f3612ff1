use std::rc::Rc;

use forebay_device::{BlockDevice, Device, IoBuf, IoBytes, ZeroOptions};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::Nanos;
use proptest::prelude::*;

use crate::*;

const MIB: u64 = 1 << 20;

fn block(len: usize, byte: u8) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    buf.fill(byte);
    buf.freeze()
}

fn one_disk(seed: u64) -> (Rc<World>, Rc<SimDisk>) {
    let world = World::new(Seed(seed));
    let disk = SimDisk::new(&world, DiskConfig::flash("d0", MIB));
    (world, disk)
}

fn stable_byte(disk: &SimDisk, offset: u64) -> u8 {
    let mut byte = [0];
    disk.stable().read(offset, &mut byte);
    byte[0]
}

#[test]
fn labels_derive_distinct_seeds() {
    let root = Seed(7);
    assert_eq!(root.derive("a"), Seed(7).derive("a"));
    let labels = ["", "a", "b", "ab", "ba", "disk/1", "disk/2", "disk/11"];
    let seeds: std::collections::BTreeSet<Seed> = labels.iter().map(|l| root.derive(l)).collect();
    assert_eq!(seeds.len(), labels.len());
    assert!(!seeds.contains(&root));
}

#[test]
fn held_change_of_a_machine_lands_once_while_the_machine_stands_still() {
    let (world, disk) = one_disk(1);
    let owner = Runtime::simulated(1);
    let (d, w) = (disk.clone(), world.clone());
    owner.run(async move {
        w.at_command(2, rt::halt);
        d.write(0, block(512, 1), true).await.unwrap();
        d.write(0, block(512, 2), true).await.unwrap();
    });
    let held = world.held_changes(0);
    assert_eq!(held.len(), 1);
    assert_eq!(stable_byte(&disk, 0), 1);
    held.iter().for_each(|held| world.land(*held));
    assert_eq!(stable_byte(&disk, 0), 2);
    // Another machine writes, and the owner then hears of its own change.
    world.set_machine(1);
    let d = disk.clone();
    let next = Runtime::simulated(2);
    next.block_on(async move { d.write(0, block(512, 3), true).await.unwrap() });
    assert_eq!((world.held_changes(0), world.held_changes(1)), (Vec::new(), Vec::new()));
    owner.block_on(async { rt::sleep(Nanos::from_secs(1)).await });
    assert_eq!(stable_byte(&disk, 0), 3);
}

#[test]
fn only_flushed_and_fua_writes_are_durable() {
    let (world, disk) = one_disk(1);
    let runtime = Runtime::simulated(1);
    let (d, w) = (disk.clone(), world.clone());
    let end = runtime.run(async move {
        d.write(0, block(512, 1), false).await.unwrap();
        d.flush().await.unwrap();
        d.write(512, block(512, 2), true).await.unwrap();
        d.write(1024, block(512, 3), false).await.unwrap();
        let back = d.read(0, IoBuf::zeroed(1536)).await.unwrap();
        assert_eq!((back[0], back[512], back[1024]), (1, 2, 3));
        w.power_cut();
        // Without power no command completes, not even within the same poll.
        d.write(2048, block(512, 4), true).await.unwrap();
        unreachable!();
    });
    assert!(end.is_none());
    drop(runtime);
    let unflushed = world.unflushed();
    assert_eq!(unflushed.len(), 1);
    assert_eq!((unflushed[0].offset_bytes, unflushed[0].in_flight), (1024, false));
    world.draw_crash_outcome(|_, _| Fate::Lost);
    let bytes: Vec<u8> = [0, 512, 1024, 2048].map(|at| stable_byte(&disk, at)).to_vec();
    assert_eq!(bytes, [1, 2, 0, 0]);
}

#[test]
fn flush_does_not_cover_writes_that_complete_after_its_issue() {
    for seed in 0..200 {
        let (world, disk) = one_disk(seed);
        let runtime = Runtime::simulated(seed);
        let (d, w) = (disk.clone(), world.clone());
        runtime.run(async move {
            let late = rt::spawn({
                let d = d.clone();
                async move { d.write(0, block(512, 9), false).await }
            });
            rt::yield_now().await;
            d.flush().await.unwrap();
            late.await.unwrap();
            w.power_cut();
        });
        drop(runtime);
        // The write was in flight at the flush's issue, so it may be lost.
        if world.submitted() == 2 && world.unflushed().is_empty() {
            continue; // the write completed before the flush was issued
        }
        world.draw_crash_outcome(|_, _| Fate::Lost);
        assert_eq!(stable_byte(&disk, 0), 0);
    }
}

#[test]
fn durable_write_is_not_undone_by_older_cached_write() {
    let (world, disk) = one_disk(3);
    let runtime = Runtime::simulated(3);
    let (d, w) = (disk.clone(), world.clone());
    runtime.run(async move {
        d.write(0, block(2048, 1), false).await.unwrap();
        d.write(512, block(512, 2), true).await.unwrap();
        w.power_cut();
    });
    drop(runtime);
    world.draw_crash_outcome(|_, _| Fate::Kept);
    let bytes = [0, 512, 1024].map(|at| stable_byte(&disk, at));
    assert_eq!(bytes, [1, 2, 1], "the cached write replaced the durable one");
}

#[test]
fn write_in_flight_can_be_torn_at_any_sector() {
    let (world, disk) = one_disk(4);
    world.plan_crash(Some(CrashPoint::AfterSubmit(1)));
    let runtime = Runtime::simulated(4);
    let d = disk.clone();
    assert!(runtime.run(async move { d.write(0, block(4096, 7), true).await }).is_none());
    drop(runtime);
    assert!(world.unflushed()[0].in_flight);
    let image = world.image();
    for sectors in 0..=8u64 {
        world.restore(&image);
        world.draw_crash_outcome(|_, _| Fate::Prefix { sectors });
        let kept = (0..8).filter(|s| stable_byte(&disk, s * 512) == 7).count();
        assert_eq!(kept as u64, sectors);
    }
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        world.restore(&image);
        world.draw_crash_outcome(|_, _| Fate::Scatter { seed });
        seen.insert((0..8).map(|s| stable_byte(&disk, s * 512)).collect::<Vec<_>>());
    }
    assert!(seen.len() > 100, "only {} ways to tear", seen.len());
}

#[test]
fn every_crash_point_stops_at_its_command() {
    let script = |d: Rc<SimDisk>| async move {
        for i in 0..4u64 {
            d.write(i * 512, block(512, 1), true).await.unwrap();
        }
    };
    let count = {
        let (world, disk) = one_disk(5);
        Runtime::simulated(5).block_on(script(disk));
        world.submitted()
    };
    assert_eq!(count, 4);
    for n in 1..=count {
        for (point, durable, in_flight) in [
            (CrashPoint::BeforeSubmit(n), n - 1, 0),
            (CrashPoint::AfterSubmit(n), n - 1, 1),
            (CrashPoint::AfterComplete(n), n, 0),
        ] {
            let (world, disk) = one_disk(5);
            world.plan_crash(Some(point));
            let runtime = Runtime::simulated(5);
            assert!(runtime.run(script(disk.clone())).is_none(), "{point:?} did not stop it");
            drop(runtime);
            assert_eq!(world.unflushed().len(), in_flight, "{point:?}");
            world.draw_crash_outcome(|_, _| Fate::Lost);
            let there = (0..4).filter(|i| stable_byte(&disk, i * 512) == 1).count() as u64;
            assert_eq!(there, durable, "{point:?}");
            world.power_on();
            Runtime::simulated(6).block_on(script(disk.clone()));
            assert_eq!(stable_byte(&disk, 3 * 512), 1, "the disk serves again");
        }
    }
}

#[test]
fn crash_after_flush_keeps_what_the_flush_covered() {
    let script = |d: Rc<SimDisk>| async move {
        for i in 0..3u64 {
            d.write(i * 512, block(512, 1), false).await.unwrap();
            d.flush().await.unwrap();
        }
    };
    for n in 1..=3 {
        let (world, disk) = one_disk(5);
        world.plan_crash(Some(CrashPoint::AfterFlush(n)));
        let runtime = Runtime::simulated(5);
        assert!(runtime.run(script(disk.clone())).is_none(), "flush {n} did not stop it");
        drop(runtime);
        assert_eq!(world.flushed(), n);
        world.draw_crash_outcome(|_, _| Fate::Lost);
        let there = (0..3).filter(|i| stable_byte(&disk, i * 512) == 1).count() as u64;
        assert_eq!(there, n, "exactly the writes before the flush are durable");
    }
}

#[test]
fn crash_at_time_stops_at_the_next_command() {
    let (world, disk) = one_disk(6);
    world.plan_crash(Some(CrashPoint::AtTime(Nanos::from_millis(5).0)));
    let runtime = Runtime::simulated(6);
    let end = runtime.run(async move {
        loop {
            disk.read(0, IoBuf::zeroed(512)).await.unwrap();
        }
    });
    assert!(end.is_none() && runtime.now() >= Nanos::from_millis(5));
}

#[test]
fn hook_runs_at_its_command_and_may_add_hooks() {
    let (world, disk) = one_disk(9);
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    let (w, s) = (world.clone(), seen.clone());
    world.at_command(2, move || {
        s.borrow_mut().push(w.submitted());
        let (w2, s) = (w.clone(), s.clone());
        w.at_command(3, move || s.borrow_mut().push(w2.submitted()));
    });
    Runtime::simulated(9).block_on(async move {
        for _ in 0..4 {
            disk.read(0, IoBuf::zeroed(512)).await.unwrap();
        }
    });
    assert_eq!(*seen.borrow(), [2, 3]);
}

#[test]
fn abandoned_write_takes_effect_late() {
    let (_world, disk) = one_disk(7);
    Runtime::simulated(7).block_on(async move {
        let write = disk.write(0, block(512, 5), false);
        assert!(rt::timeout(Nanos(1), write).await.is_err());
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(disk.read(0, IoBuf::zeroed(512)).await.unwrap()[0], 5);
    });
}

#[test]
fn discarded_range_reads_as_zeros_old_data_or_garbage() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let (_world, disk) = one_disk(seed);
        seen.insert(Runtime::simulated(seed).block_on(async move {
            disk.write(0, block(4096, 5), true).await.unwrap();
            disk.discard(0, 4096, true).await.unwrap();
            disk.read(0, IoBuf::zeroed(512)).await.unwrap()[0]
        }));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 5, 0xa5]);
}

async fn busy(disk: Device, writers: u64) {
    let tasks = (0..writers).map(|w| {
        let disk = disk.clone();
        rt::spawn(async move {
            for i in 0..20 {
                let at = rt::random_below(200) * 512;
                disk.write(at, block(512, (w * 20 + i) as u8), i % 3 == 0).await.unwrap();
                if i % 7 == 0 {
                    disk.flush().await.unwrap();
                }
            }
        })
    });
    rt::join_all(tasks.collect::<Vec<_>>()).await;
}

#[test]
fn equal_seeds_give_equal_digests() {
    let run = |seed| {
        let (world, disk) = one_disk(seed);
        Runtime::simulated(seed).block_on(busy(disk, 5));
        world.digest()
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

#[test]
fn disk_memory_grows_with_written_data_only() {
    let world = World::new(Seed(1));
    let disk = SimDisk::new(&world, DiskConfig::flash("big", 1 << 40));
    Runtime::simulated(1).block_on({
        let disk = disk.clone();
        async move {
            disk.write((1 << 40) - 4096, block(4096, 1), true).await.unwrap();
            let all = ZeroOptions { fua: true, ..Default::default() };
            disk.write_zeroes(0, 1 << 30, all).await.unwrap();
        }
    });
    assert!(disk.stable().resident_bytes() <= 16384);
}

/// One step of a random script.
#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: u64, fua: bool },
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = (0u64..24, 1u64..8, any::<bool>()).prop_map(|(sector, sectors, fua)| Step::Write {
        sector,
        sectors,
        fua,
    });
    prop::collection::vec(prop_oneof![5 => write, 1 => Just(Step::Flush)], 1..40)
}

proptest! {
    // After a power cut each sector holds its last durable value or a later one.
    #[test]
    fn power_cut_leaves_what_the_contract_allows(steps in steps(), seed in any::<u64>()) {
        let (world, disk) = one_disk(seed);
        let runtime = Runtime::simulated(seed);
        let (d, w, script) = (disk.clone(), world.clone(), steps.clone());
        runtime.run(async move {
            for (number, step) in script.iter().enumerate() {
                match step {
                    Step::Write { sector, sectors, fua } => {
                        let data = block(*sectors as usize * 512, number as u8 + 1);
                        d.write(sector * 512, data, *fua).await.unwrap();
                    }
                    Step::Flush => d.flush().await.unwrap(),
                }
            }
            w.power_cut();
        });
        drop(runtime);
        world.draw_crash_outcome(random_fates(&mut Seed(seed).derive("fates").rng()));
        for at in 0..32u64 {
            let mut allowed = vec![0u8];
            for (number, step) in steps.iter().enumerate() {
                match step {
                    Step::Write { sector, sectors, fua }
                        if (*sector..sector + sectors).contains(&at) =>
                    {
                        if *fua {
                            allowed.clear();
                        }
                        allowed.push(number as u8 + 1);
                    }
                    Step::Flush => allowed = allowed[allowed.len() - 1..].to_vec(),
                    _ => {}
                }
            }
            let found = stable_byte(&disk, at * 512);
            prop_assert!(allowed.contains(&found), "sector {at}: {found} is none of {allowed:?}");
        }
    }

    #[test]
    fn media_behaves_like_an_array_of_bytes(
        writes in prop::collection::vec((0u64..560_000, 1usize..20_000, any::<u8>(), 0u8..3), 1..30)
    ) {
        const SIZE: usize = 580_000; // not a multiple of a page or a chunk
        let mut media = Media::new(SIZE as u64);
        let mut model = vec![0u8; SIZE];
        let mut kept = None;
        for (step, (at, len, byte, how)) in writes.iter().enumerate() {
            let part = &mut model[*at as usize..*at as usize + len];
            match how {
                0 => {
                    media.fill(*at, *len as u64, byte & 1);
                    part.fill(byte & 1);
                }
                1 => {
                    media.write(*at, &vec![*byte; *len]);
                    part.fill(*byte);
                }
                _ => {
                    // Whole pages are shared with the buffer; a later write must not change it.
                    let at = *at / 4096 * 4096;
                    let bytes: Vec<u8> = (0..*len).map(|i| byte.wrapping_add(i as u8)).collect();
                    media.write_shared(at, &IoBuf::copy_of(&bytes).freeze());
                    model[at as usize..at as usize + len].copy_from_slice(&bytes);
                }
            }
            if step == writes.len() / 2 {
                kept = Some((media.clone(), model.clone()));
            }
        }
        let all = |media: &Media| {
            let mut out = vec![1; SIZE];
            media.read(0, &mut out);
            out
        };
        prop_assert!(all(&media) == model);
        let (media, model) = kept.expect("there is a middle");
        prop_assert!(all(&media) == model, "a clone changed with its original");
    }

    #[test]
    fn latencies_stay_within_bounds(
        base in 1u64..1_000_000,
        span in 0u64..1_000_000,
        seed in any::<u64>(),
    ) {
        let mut rng = Seed(seed).rng();
        let uniform = Latency::Uniform { min_ns: base, max_ns: base + span };
        let tail = Latency::HeavyTail { base_ns: base, max_ns: base + span };
        for _ in 0..50 {
            prop_assert!((base..=base + span).contains(&uniform.sample(&mut rng).0));
            prop_assert!(tail.sample(&mut rng).0 <= base + span);
        }
    }
}
