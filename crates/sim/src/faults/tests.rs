use std::rc::Rc;

use forebay_device::{BlockDevice, Device, ErrorKind, IoBuf, IoBytes, MemoryDevice};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::Nanos;
use proptest::prelude::*;

use super::*;
use crate::{DiskConfig, Fate, Latency, Seed, SimDisk, World};

fn block(len: usize, byte: u8) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    buf.fill(byte);
    buf.freeze()
}

fn memory() -> Device {
    Rc::new(MemoryDevice::new("mem", 1 << 20))
}

async fn first(device: &dyn BlockDevice, offset: u64) -> u8 {
    device.read(offset, IoBuf::zeroed(512)).await.unwrap()[0]
}

fn run<F: std::future::Future<Output = ()> + 'static>(future: F) {
    Runtime::simulated(1).block_on(future);
}

#[test]
fn error_strikes_once_by_kind_and_range() {
    run(async {
        let errors = Errors::new(memory());
        let rule = Trigger::once(Ops::WRITE).within(4096, 8192).after(1);
        errors.add(rule, Failure::Eio, Effect::None);
        errors.write(0, block(512, 1), false).await.unwrap();
        errors.write(4096, block(512, 1), false).await.unwrap();
        assert_eq!(first(&*errors, 4096).await, 1);
        let error = errors.write(3584, block(1024, 2), false).await.unwrap_err();
        assert_eq!((error.kind, error.offset_bytes), (ErrorKind::Os { errno: 5 }, 3584));
        assert_eq!(first(&*errors, 4096).await, 1, "the failed write took effect");
        errors.write(4096, block(512, 3), false).await.unwrap();
        assert_eq!(errors.struck(), 1);
    });
}

#[test]
fn error_after_effect_lasts_until_healed() {
    run(async {
        let errors = Errors::new(memory());
        errors.add(Trigger::always(Ops::WRITE), Failure::NoSpace, Effect::Full);
        for _ in 0..3 {
            let error = errors.write(0, block(512, 2), false).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::NoSpace);
        }
        assert_eq!(first(&*errors, 0).await, 2);
        errors.heal();
        errors.write(0, block(512, 3), false).await.unwrap();
    });
}

#[test]
fn flush_after_failed_flush_does_not_write_dropped_data() {
    let world = World::new(Seed(1));
    let disk = SimDisk::new(&world, DiskConfig::flash("d", 1 << 20));
    let runtime = Runtime::simulated(1);
    let (d, w) = (disk.clone(), world.clone());
    runtime.run(async move {
        let inner = d.clone();
        let flushes = FlushErrors::new(d, move || inner.forget_cached());
        flushes.add(Trigger::once(Ops::FLUSH));
        flushes.write(0, block(512, 1), false).await.unwrap();
        assert!(flushes.flush().await.is_err());
        flushes.flush().await.unwrap();
        assert_eq!(first(&*flushes, 0).await, 1, "reads still see the cache");
        w.power_cut();
    });
    drop(runtime);
    world.draw_crash_outcome(|_, _| Fate::Kept);
    let mut byte = [9];
    disk.stable().read(0, &mut byte);
    assert_eq!(byte[0], 0, "the second flush wrote the data that the first had dropped");
}

#[test]
fn lying_flush_makes_nothing_durable() {
    let world = World::new(Seed(1));
    let disk = SimDisk::new(&world, DiskConfig::flash("d", 1 << 20));
    let runtime = Runtime::simulated(1);
    let (d, w) = (disk.clone(), world.clone());
    runtime.run(async move {
        let lying = LyingFlush::new(d);
        lying.set_lying(true);
        lying.write(0, block(512, 1), true).await.unwrap();
        lying.flush().await.unwrap();
        assert_eq!(lying.struck(), 2);
        w.power_cut();
    });
    drop(runtime);
    assert_eq!(world.unflushed().len(), 1);
}

#[test]
fn lost_write_is_acknowledged_and_absent() {
    run(async {
        let lost = LostWrites::new(memory());
        lost.add(Trigger::once(Ops::WRITE));
        lost.write(0, block(512, 1), true).await.unwrap();
        lost.write(512, block(512, 1), true).await.unwrap();
        assert_eq!((first(&*lost, 0).await, first(&*lost, 512).await), (0, 1));
    });
}

#[test]
fn misdirected_write_damages_two_places_until_overwritten() {
    run(async {
        let astray = Misdirected::new(memory());
        for at in [0, 8192] {
            astray.write(at, block(1024, 1), false).await.unwrap();
        }
        astray.add(Trigger::once(Ops::WRITE), 8192);
        astray.write(0, block(1024, 2), false).await.unwrap();
        assert_eq!((first(&*astray, 0).await, first(&*astray, 8192).await), (1, 2));
        astray.write(8192, block(512, 3), false).await.unwrap();
        assert_eq!((first(&*astray, 8192).await, first(&*astray, 8704).await), (3, 2));
        astray.write(0, block(1024, 4), false).await.unwrap();
        assert_eq!((first(&*astray, 0).await, first(&*astray, 8704).await), (4, 2));
    });
}

#[test]
fn flipped_address_bit_moves_a_write_within_the_device() {
    run(async {
        let astray = Misdirected::new(memory());
        astray.add_flip(Trigger::once(Ops::WRITE), 16);
        astray.write(4096, block(512, 7), false).await.unwrap();
        assert_eq!((first(&*astray, 4096).await, first(&*astray, 4096 + 65536).await), (0, 7));
        // Past the end of the device the write is lost.
        astray.add_flip(Trigger::once(Ops::WRITE), 40);
        astray.write(4096, block(512, 8), false).await.unwrap();
        assert_eq!(first(&*astray, 4096).await, 0);
        assert_eq!(astray.struck(), 2);
    });
}

#[test]
fn rot_lasts_until_overwritten() {
    run(async {
        let rot = BitRot::new(memory());
        rot.flip(700, 0x10);
        let back = rot.read(512, IoBuf::zeroed(512)).await.unwrap();
        assert_eq!(back[188], 0x10);
        assert_eq!(back.iter().filter(|b| **b != 0).count(), 1);
        rot.write(512, block(512, 0), false).await.unwrap();
        assert!(rot.read(512, IoBuf::zeroed(512)).await.unwrap().iter().all(|b| *b == 0));
        assert_eq!(rot.seen(), 1);
    });
}

#[test]
fn rot_of_recent_write_strikes_only_that_write() {
    run(async {
        let stack = Stack::new(memory(), Seed(1), || ());
        for at in [0, 8192, 65536] {
            stack.write(at, block(4096, 7), true).await.unwrap();
        }
        stack.inject(&Fault::RotRecent { back: 1, permille: 500, mask: 1 });
        assert_eq!(first(&*stack, 8192 + 2048).await, 6);
        assert_eq!((first(&*stack, 2048).await, first(&*stack, 65536 + 2048).await), (7, 7));
        stack.inject(&Fault::RotRecent { back: 3, permille: 0, mask: 1 });
        assert_eq!(stack.counts().rot_bytes, 1, "there were fewer than four writes");
    });
}

#[test]
fn device_disappears_before_or_after_effect_and_comes_back() {
    run(async {
        for (effect, found) in [(Effect::None, 0), (Effect::Full, 1)] {
            let gone = Gone::new(memory());
            gone.vanish_at(Trigger::once(Ops::WRITE), effect);
            let error = gone.write(0, block(512, 1), true).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Gone);
            assert!(gone.flush().await.is_err());
            gone.come_back();
            assert_eq!(first(&*gone, 0).await, found);
        }
    });
}

#[test]
fn hung_command_waits_for_release_and_slow_command_for_delay() {
    run(async {
        let slow = Slow::new(memory(), Seed(1));
        let hung = Hung::new(slow.clone());
        hung.hang(Ops::WRITE);
        let write = rt::spawn({
            let hung = hung.clone();
            async move { hung.write(0, block(512, 1), false).await }
        });
        rt::sleep(Nanos::from_secs(100)).await;
        assert!(!write.is_finished());
        assert_eq!(first(&*hung, 0).await, 0);
        hung.release();
        write.await.unwrap();
        slow.set_delay(Some((Ops::READ, Latency::Constant { ns: 5_000_000 })));
        let begun = rt::now();
        assert_eq!(first(&*hung, 0).await, 1);
        assert_eq!(rt::now().since(begun), Nanos::from_millis(5));
    });
}

#[test]
fn writes_that_begin_in_a_slow_area_take_long() {
    run(async {
        let slow = Slow::new(memory(), Seed(1));
        slow.add_area(4096..8192, Latency::Constant { ns: 5_000_000 });
        let took = async |offset: u64| {
            let begun = rt::now();
            slow.write(offset, block(512, 1), false).await.unwrap();
            rt::now().since(begun)
        };
        assert_eq!(took(3584).await, Nanos::ZERO);
        assert_eq!(took(4096).await, Nanos::from_millis(5));
        assert_eq!(took(7680).await, Nanos::from_millis(5));
        assert_eq!(took(8192).await, Nanos::ZERO);
        assert_eq!(first(&*slow, 4096).await, 1);
        slow.clear_areas();
        assert_eq!(took(4096).await, Nanos::ZERO);
    });
}

#[test]
fn slow_answer_has_what_was_there_when_it_began() {
    run(async {
        let slow = Slow::new(memory(), Seed(1));
        slow.set_answer_delay(Some((Ops::READ, Latency::Constant { ns: 5_000_000 })));
        let read = rt::spawn({
            let slow = slow.clone();
            async move { first(&*slow, 0).await }
        });
        rt::sleep(Nanos::from_millis(1)).await;
        slow.write(0, block(512, 1), false).await.unwrap();
        let begun = rt::now();
        assert_eq!(read.await, 0, "the write came while the answer was on its way");
        assert_eq!(rt::now().since(begun), Nanos::from_millis(4));
        assert_eq!(first(&*slow, 0).await, 1);
    });
}

#[test]
fn no_space_refuses_new_blocks_only_and_discard_returns_space() {
    run(async {
        let thin = NoSpace::new(memory());
        thin.limit(Some(8192));
        thin.write(0, block(8192, 1), false).await.unwrap();
        thin.write(4096, block(512, 1), false).await.unwrap();
        let error = thin.write(8192, block(512, 1), false).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoSpace);
        thin.discard(0, 4096, false).await.unwrap();
        thin.write(8192, block(512, 1), false).await.unwrap();
    });
}

#[test]
fn read_only_device_refuses_writes() {
    run(async {
        let device = ReadOnly::new(memory());
        device.set_read_only(true);
        assert!(device.geometry().read_only);
        let error = device.write(0, block(512, 1), false).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ReadOnly);
    });
}

fn faults() -> Vec<Fault> {
    let (once, always) = (Trigger::once(Ops::WRITE), Trigger::always(Ops::ALL));
    vec![
        Fault::Torn { trigger: once, tear: Tear::Prefix { sectors: 1 } },
        Fault::Lost { trigger: once },
        Fault::Misdirected { trigger: once, to_bytes: 4096 },
        Fault::Rot { offset_bytes: 5, mask: 3 },
        Fault::RotRecent { back: 0, permille: 999, mask: 4 },
        Fault::Error { trigger: always, failure: Failure::Eio, effect: Effect::None },
        Fault::FlushError { trigger: Trigger::always(Ops::FLUSH) },
        Fault::LyingFlush { on: true },
        Fault::Slow { ops: Ops::ALL, latency: Latency::Constant { ns: 1000 } },
        Fault::SlowArea {
            first_bytes: 0,
            end_bytes: 4096,
            latency: Latency::Constant { ns: 1000 },
        },
        Fault::NoSpace { limit_bytes: 512 },
        Fault::Gone,
        Fault::GoneAt { trigger: Trigger::once(Ops::READ), effect: Effect::Full },
        Fault::ReadOnly { on: true },
    ]
}

proptest! {
    #[test]
    fn torn_write_keeps_whole_sectors(
        sectors in 1usize..20,
        seed in any::<u64>(),
        prefix in any::<bool>(),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let torn = TornWrites::new(memory());
            let kept = seed % 20;
            let tear = if prefix { Tear::Prefix { sectors: kept } } else { Tear::Scatter { seed } };
            torn.write(0, block(sectors * 512, 1), false).await.unwrap();
            torn.add(Trigger::once(Ops::WRITE), tear);
            torn.write(0, block(sectors * 512, 2), false).await.unwrap();
            let back = torn.read(0, IoBuf::zeroed(sectors * 512)).await.unwrap();
            for (index, sector) in back.chunks(512).enumerate() {
                assert!(sector.iter().all(|b| *b == sector[0]), "torn within a sector");
                if prefix {
                    assert_eq!(sector[0] == 2, (index as u64) < kept);
                }
            }
        });
    }

    // After any faults and a heal, writing every byte again makes reads correct.
    #[test]
    fn healed_stack_reads_back_what_is_written(seed in any::<u64>()) {
        Runtime::simulated(seed).block_on(async move {
            let mut rng = Seed(seed).rng();
            let stack = Stack::new(memory(), Seed(seed), || ());
            let faults = faults();
            for _ in 0..rng.below(6) {
                let fault = rng.pick(&faults).clone();
                stack.inject(&fault);
                let _ = stack.write(0, block(4096, 7), false).await;
                let _ = stack.flush().await;
            }
            stack.heal();
            stack.write(0, block(16384, 2), true).await.unwrap();
            stack.flush().await.unwrap();
            let back = stack.read(0, IoBuf::zeroed(16384)).await.unwrap();
            assert!(back.iter().all(|b| *b == 2));
        });
    }
}
