use super::*;
use forebay_flash::{
    CacheSpec, DramSpec, EnergySpec, FlashSpec, GeometrySpec, InterfaceKind, InterfaceSpec,
    MediaSpec, Plp, TimingSpec,
};
use forebay_rt::Runtime;

const MIB: u64 = 1 << 20;

fn interface() -> InterfaceSpec {
    InterfaceSpec {
        kind: InterfaceKind::Sata2,
        bandwidth_mb_s: None,
        command_us: None,
        queue_depth: None,
        hops: None,
        hop_us: None,
        hba_iops_cap: None,
        bit_error_rate: None,
        retry_us: None,
    }
}

fn ssd(plp: Plp, cache_bytes: u64) -> DeviceSpec {
    let flash = FlashSpec {
        geometry: GeometrySpec {
            channels: 2,
            dies_per_channel: 2,
            planes_per_die: 1,
            blocks_per_plane: 80,
            pages_per_block: 16,
            page_bytes: 4096,
        },
        timing: TimingSpec {
            read_us: 25.0,
            program_us: 200.0,
            erase_us: 1500.0,
            channel_mb_s: 200.0,
            suspend: forebay_flash::Suspend::None,
            suspend_us: 20.0,
            retry_fraction: 0.0,
            retry_reads: 0,
        },
        ftl: forebay_flash::FtlSpec::default(),
        zones: None,
        controller: forebay_flash::ControllerSpec::default(),
        cache: CacheSpec { bytes: cache_bytes, plp, ..CacheSpec::default() },
        endurance: forebay_flash::EnduranceSpec::default(),
        pslc: None,
        map_memory: None,
        thermal: None,
    };
    DeviceSpec {
        name: "ssd".into(),
        capacity_bytes: 16 * MIB,
        unused_fraction: 0.0,
        interface: interface(),
        power: forebay_flash::PowerSpec::default(),
        media: MediaSpec::Flash(Box::new(flash)),
    }
}

fn dram(full_j: f64) -> DeviceSpec {
    let energy = EnergySpec { full_j, save_w: 10.0, charge_w: 0.0, initial_fraction: 1.0 };
    let dram = DramSpec {
        service_us: 1.0,
        latency_us: 0.0,
        dram_mb_s: 1000.0,
        save_mb_s: 100.0,
        restore_mb_s: 100.0,
        erase_ms: 10.0,
        backup_cycles: 1000,
        energy,
    };
    let media = MediaSpec::Dram(dram);
    DeviceSpec { name: "dram".into(), media, ..ssd(Plp::Full, 0) }
}

fn block(len: usize, byte: u8) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    buf.fill(byte);
    buf.freeze()
}

fn bytes(disk: &FlashDisk, offset: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    disk.contents().read(offset, &mut out);
    out
}

#[test]
fn commands_complete_at_the_time_of_the_model_and_never_inline() {
    let disk = FlashDisk::new("d", &ssd(Plp::None, 0), 1).unwrap();
    Runtime::simulated(1).block_on(async move {
        let mut write = disk.write(0, block(4096, 7), true);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(write.as_mut().poll(&mut context).is_pending());
        write.await.unwrap();
        // A FUA write without power protection waits for a program of 200 us.
        assert!(rt::now() >= Nanos::from_micros(200), "{:?}", rt::now());
        assert_eq!(disk.read(0, IoBuf::zeroed(4096)).await.unwrap()[4095], 7);
        disk.discard(0, 4096, false).await.unwrap();
        assert_eq!(disk.read(0, IoBuf::zeroed(512)).await.unwrap()[0], 0);
        let stats = disk.stats();
        assert_eq!((stats.writes, stats.reads, stats.trims), (1, 2, 1));
        assert_eq!(stats.written_bytes, 4096);
    });
}

#[test]
fn invalid_ranges_fail_before_the_model() {
    let disk = FlashDisk::new("d", &ssd(Plp::None, 0), 1).unwrap();
    Runtime::simulated(1).block_on(async move {
        let error = disk.write(100, block(512, 1), false).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Misaligned { .. }), "{error}");
        let error = disk.read(16 * MIB, IoBuf::zeroed(512)).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::OutOfRange { .. }), "{error}");
        assert_eq!(disk.stats().requests(), 0);
    });
}

/// Writes with and without FUA until a power cut at a random time. Afterwards each block must hold
/// its last durable write or a later one. Returns whether any write was lost.
fn crash(seed: u64, spec: &DeviceSpec) -> bool {
    let disk = FlashDisk::new("d", spec, seed).unwrap();
    let durable: Rc<RefCell<Vec<u8>>> = Rc::new(RefCell::new(vec![0; 64]));
    let newest = Rc::new(RefCell::new(vec![0u8; 64]));
    let runtime = Runtime::simulated(seed);
    let (d, p, n) = (disk.clone(), durable.clone(), newest.clone());
    let end = runtime.run(async move {
        let (cutter, at) = (d.clone(), 1 + rt::random_below(20_000_000));
        rt::spawn_detached(Box::pin(async move {
            rt::sleep(Nanos(at)).await;
            cutter.power_cut();
            rt::halt();
        }));
        for i in 1..=255u8 {
            let slot = rt::random_below(64);
            n.borrow_mut()[slot as usize] = i;
            let fua = rt::random_below(3) == 0;
            d.write(slot * 8192, block(8192, i), fua).await.unwrap();
            if fua {
                p.borrow_mut()[slot as usize] = i;
            }
            if rt::random_below(20) == 0 {
                d.flush().await.unwrap();
                p.borrow_mut().clone_from(&n.borrow());
            }
        }
        std::future::pending::<()>().await;
    });
    assert!(end.is_none());
    drop(runtime);
    assert!(disk.power_on(Nanos::from_secs(1)).is_empty());
    let mut any_lost = false;
    let d = disk.clone();
    let reads = Runtime::simulated(seed).block_on(async move {
        let mut all = Vec::new();
        for slot in 0..64u64 {
            all.push(d.read(slot * 8192, IoBuf::zeroed(8192)).await);
        }
        all
    });
    for (slot, read) in reads.into_iter().enumerate() {
        let (least, most) = (durable.borrow()[slot], newest.borrow()[slot]);
        match read {
            Ok(data) => {
                let fits = data.iter().all(|b| (least..=most).contains(b));
                assert!(fits, "seed {seed} slot {slot}: {least} durable, {} read", data[0]);
                any_lost |= data.iter().any(|b| *b < most);
            }
            // Only a write that was not durable may become unreadable.
            Err(error) => {
                assert!(least < most, "seed {seed}: {error}");
                any_lost = true;
            }
        }
    }
    any_lost
}

#[test]
fn durable_writes_survive_power_cut_and_others_may_be_lost() {
    let plain = (0..60).filter(|&seed| crash(seed, &ssd(Plp::None, 256 << 10))).count();
    assert!(plain > 30, "a volatile cache lost writes in only {plain} of 60 runs");
    let mapped = (0..30).filter(|&seed| crash(seed, &ssd(Plp::MapOnly, 256 << 10))).count();
    assert!(mapped > 10, "{mapped} of 30");
    for seed in 0..30 {
        crash(seed, &ssd(Plp::Full, 256 << 10));
        crash(seed, &dram(1000.0));
    }
}

#[test]
fn full_power_loss_protection_keeps_every_completed_write() {
    let disk = FlashDisk::new("d", &ssd(Plp::Full, 256 << 10), 3).unwrap();
    let runtime = Runtime::simulated(3);
    let d = disk.clone();
    let end = runtime.run(async move {
        for i in 0..100u64 {
            d.write(i * 4096, block(4096, i as u8 + 1), false).await.unwrap();
        }
        d.power_cut();
        rt::halt();
        d.write(0, block(4096, 200), false).await.unwrap();
        unreachable!("no command completes without power");
    });
    assert!(end.is_none());
    for i in 0..100u64 {
        assert_eq!(bytes(&disk, i * 4096, 4096), vec![i as u8 + 1; 4096]);
    }
}

#[test]
fn each_fate_leaves_the_contents_that_it_names() {
    let disk = FlashDisk::new("d", &ssd(Plp::None, 0), 1).unwrap();
    let change = |write, offset_bytes, byte, before| Change {
        write: WriteId(write),
        trim: false,
        offset_bytes,
        len_bytes: 8192,
        payload: Payload::Data(block(8192, byte)),
        before: vec![before; 8192],
    };
    let state = &mut *disk.state.borrow_mut();
    for (write, offset, byte, before) in
        [(1, 0, 1, 0), (2, 8192, 2, 0), (3, 0, 3, 1), (4, 16384, 4, 0), (5, 24576, 5, 0)]
    {
        let change = change(write, offset, byte, before);
        change.apply(&mut state.media, 0, 8192);
        state.journal.push_back(change);
    }
    let hit = |write, offset_bytes, len_bytes, fate| Damage {
        offset_bytes,
        len_bytes,
        write: Some(WriteId(write)),
        fate,
    };
    let report = CutReport {
        damage: vec![
            hit(2, 8192, 4096, Fate::Lost),
            hit(3, 0, 4096, Fate::RolledBack),
            hit(3, 4096, 4096, Fate::Shorn { intact_bytes: 512 }),
            hit(4, 20480, 4096, Fate::Unreadable),
        ],
        undone_from: Some(WriteId(5)),
    };
    state.apply(&report);
    let mut all = vec![0; 32768];
    state.media.read(0, &mut all);
    let expected = [
        (4096, 1),               // write 3 rolled back: write 1's bytes
        (512, 3),                // the intact part of write 3
        (3584, 1),               // its shorn part
        (4096, 0),               // write 2 lost
        (4096, 2),               // and its other half kept
        (4096, 4),               // write 4's good half
        (4096, UNREADABLE_BYTE), // its unreadable half
        (8192, 0),               // write 5 undone
    ];
    let expected: Vec<u8> = expected.iter().flat_map(|&(n, b)| vec![b; n]).collect();
    assert!(all == expected);
}

#[test]
fn dram_device_without_energy_reports_lost_contents() {
    let disk = FlashDisk::new("d", &dram(0.1), 1).unwrap();
    let runtime = Runtime::simulated(1);
    let d = disk.clone();
    runtime.run(async move {
        d.write(8 * MIB, block(4096, 9), true).await.unwrap();
        assert!(!d.power_cut().damage.is_empty());
        rt::halt();
        std::future::pending::<()>().await;
    });
    drop(runtime);
    disk.power_on(Nanos::from_secs(60));
    Runtime::simulated(2).block_on(async move {
        let error = disk.read(8 * MIB, IoBuf::zeroed(4096)).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Unreadable { .. }), "{error}");
        disk.write(8 * MIB, block(4096, 1), true).await.unwrap();
        assert_eq!(disk.read(8 * MIB, IoBuf::zeroed(4096)).await.unwrap()[0], 1);
    });
}

#[test]
fn equal_seeds_give_equal_runs_and_flush_empties_the_journal() {
    let run = || {
        let disk = FlashDisk::new("d", &ssd(Plp::None, 256 << 10), 5).unwrap();
        let d = disk.clone();
        Runtime::simulated(5).block_on(async move {
            for i in 0..2000u64 {
                let slot = rt::random_below(4000);
                d.write(slot * 4096, block(4096, i as u8), false).await.unwrap();
            }
            assert!(!d.state.borrow().journal.is_empty());
            d.flush().await.unwrap();
            d.flush().await.unwrap();
            assert!(d.state.borrow().journal.is_empty());
        });
        (disk.digest(), disk.stats())
    };
    let (first, again) = (run(), run());
    assert_eq!(first.0, again.0);
    assert_eq!(first.1, again.1);
}
