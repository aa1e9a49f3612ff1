use super::*;
use crate::catalogue;
use crate::load::Places;
use forebay_flash::MediaSpec;

fn device(id: &str) -> DeviceSpec {
    catalogue::find(id).unwrap().device
}

fn disk() -> DeviceSpec {
    device("generic-disk-7200-2tb")
}

/// Random 4 KiB reads, one at a time, from disks alone.
fn disks_alone() -> Hybrid {
    Hybrid {
        main: disk(),
        drives: 4,
        group: 4,
        redundancy: Layout::Raid0,
        log: None,
        cache: None,
        smaller: 16_384,
        memory_bytes: 0,
        policy: default_policy(),
        volume_bytes: 256 << 20,
        load: Load { read_share: 1.0, random_share: 1.0, outstanding: 1, ..Load::default() },
        warm: Span { seconds: 0.0, requests: 1 },
        counted: Span { seconds: 1e6, requests: 4_000 },
        seed: 1,
    }
}

#[test]
fn disks_read_at_the_pace_of_seek_and_rotation() {
    let hybrid = disks_alone();
    let out = hybrid.run().unwrap();
    let MediaSpec::Disk(spec) = disk().media else { panic!("a disk") };
    // Two uniform places in a share s of the disk are sqrt(s) * 8/15 apart in the mean of roots;
    // the platter turns half way in the mean; 4 KiB pass under the head.
    let share = hybrid.volume_bytes as f64 / out.usable_bytes as f64;
    let seek_ms =
        spec.track_seek_ms + (spec.full_seek_ms - spec.track_seek_ms) * share.sqrt() * 8.0 / 15.0;
    let half_turn_ms = 30e3 / spec.rpm;
    let transfer_ms = 4.096 / spec.outer_mb_s;
    let expected = 1e3 / (seek_ms + half_turn_ms + transfer_ms);
    let off = out.iops / expected - 1.0;
    assert!(off.abs() < 0.05, "{} a second, {expected} by the formula", out.iops);
    assert_eq!((out.memory_blocks, out.cache_blocks), (0, 0));
    assert_eq!(out.read_blocks, 4_000);
    assert!((out.outstanding - 1.0).abs() < 1e-3, "{}", out.outstanding);
    assert_eq!(out, hybrid.run().unwrap());
}

/// The hit ratio of LRU with `size` of `blocks` blocks under Zipf's law, by Che's approximation.
fn che(blocks: u64, size: u64, theta: f64) -> f64 {
    let weights: Vec<f64> = (1..=blocks).map(|k| (k as f64).powf(-theta)).collect();
    let sum: f64 = weights.iter().sum();
    let kept = |t: f64| weights.iter().map(|w| 1.0 - (-w / sum * t).exp()).sum::<f64>();
    let (mut low, mut high) = (0.0, 1e3 * blocks as f64);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if kept(middle) < size as f64 { low = middle } else { high = middle }
    }
    weights.iter().map(|w| w / sum * (1.0 - (-w / sum * low).exp())).sum()
}

#[test]
fn memory_hits_are_those_of_che_for_lru() {
    let blocks = (128 << 20) / BLOCK_BYTES;
    let size = blocks / 16;
    let hybrid = Hybrid {
        // Fast devices: only the share of hits counts here.
        main: device("intel-p4800x-375gb"),
        memory_bytes: size * BLOCK_BYTES,
        policy: "lru".into(),
        volume_bytes: blocks * BLOCK_BYTES,
        load: Load {
            read_share: 1.0,
            random_share: 1.0,
            outstanding: 1,
            places: Places::Zipf { theta: 0.8 },
            ..Load::default()
        },
        warm: Span { seconds: 1e6, requests: 60_000 },
        counted: Span { seconds: 1e6, requests: 60_000 },
        ..disks_alone()
    };
    let out = hybrid.run().unwrap();
    let (hits, expected) = (out.hit_share(), che(blocks, size, 0.8));
    assert!((hits - expected).abs() < 0.015, "{hits}, Che {expected}");
    // The pool reads labels now and then.
    let misses = out.read_blocks - out.memory_blocks;
    assert!((misses..misses + misses / 50).contains(&out.main_reads), "{misses}, {out:?}");
}

#[test]
fn each_device_does_its_part() {
    let sync = Load { random_share: 1.0, outstanding: 8, fua: true, ..Load::default() };
    let alone = Hybrid {
        load: sync,
        counted: Span { seconds: 20.0, requests: 2_000 },
        redundancy: Layout::Raidz1,
        volume_bytes: 64 << 20,
        ..disks_alone()
    };
    let log = Some(device("ddrdrive-x1"));
    let with_log = Hybrid { log: log.clone(), ..alone.clone() };
    let (slow, fast) = (alone.run().unwrap(), with_log.run().unwrap());
    assert!(fast.iops > 5.0 * slow.iops, "{} and {} durable writes", slow.iops, fast.iops);
    let single = Load { outstanding: 1, ..alone.load.clone() };
    let one = Hybrid { load: single, ..alone.clone() }.run().unwrap();
    // The log is appended to: its next place comes under a head once a turn.
    let turn_ms = one.responses.writes.at_ms[0].unwrap();
    assert!((8.1..8.5).contains(&turn_ms), "{turn_ms} ms");
    assert!(fast.watts > 0.0 && slow.watts >= 4.0 * 5.0, "four disks at rest: {}", slow.watts);

    let reads = Load { read_share: 1.0, random_share: 1.0, outstanding: 8, ..Load::default() };
    let memory = Hybrid {
        load: reads,
        log,
        memory_bytes: 2 << 20,
        volume_bytes: 32 << 20,
        warm: Span { seconds: 600.0, requests: 60_000 },
        counted: Span { seconds: 60.0, requests: 10_000 },
        ..alone
    };
    let cache = Hybrid { cache: Some(device("intel-320-600gb")), ..memory.clone() };
    let (without, with) = (memory.run().unwrap(), cache.run().unwrap());
    assert_eq!(without.cache_blocks, 0);
    // The volume fits on the cache device but for its footers.
    assert!(with.hit_share() > 0.9, "{with:?}");
    assert!(with.iops > 5.0 * without.iops, "{} and {} reads", without.iops, with.iops);
    let own = with.cache_programmed_bytes as f64 / with.cache_written_bytes as f64;
    assert!((1.0..1.1).contains(&own), "amplification {own}");
}

#[test]
fn out_of_range_fields_are_refused() {
    let good = disks_alone();
    let open = Load { arrivals: load::Arrivals::Poisson { rate_s: 10.0 }, ..Load::default() };
    let odd = Load { block_bytes: 512, ..Load::default() };
    for bad in [
        Hybrid { drives: 5, ..good.clone() },
        Hybrid { drives: 0, ..good.clone() },
        Hybrid { group: 0, ..good.clone() },
        Hybrid { smaller: 0, ..good.clone() },
        Hybrid { volume_bytes: 0, ..good.clone() },
        Hybrid { load: open, ..good.clone() },
        Hybrid { load: odd, ..good.clone() },
        Hybrid { counted: Span { seconds: f64::NAN, requests: 1 }, ..good.clone() },
        Hybrid { counted: Span { seconds: 0.0, requests: 1 }, ..good.clone() },
        Hybrid { warm: Span { seconds: 1.0, requests: 0 }, ..good.clone() },
    ] {
        assert!(bad.run().is_err_and(|e| e.exit_code() == 2), "{bad:?}");
    }
}
