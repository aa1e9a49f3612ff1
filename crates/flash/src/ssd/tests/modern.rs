//! Parts of modern drives, against formulas and against simpler bookkeeping.

use super::*;
use crate::spec::{MapMemorySpec, PslcSpec, ThermalSpec};

const PSLC_UNITS: u64 = 512;

fn with_pslc(flash: &mut FlashSpec) {
    flash.timing.program_us = 1000.0;
    let bytes = PSLC_UNITS * 4096;
    let (program_us, read_us, idle_after_ms) = (200.0, 10.0, 100.0);
    flash.pslc = Some(PslcSpec { bytes, static_bytes: bytes, program_us, read_us, idle_after_ms });
}

fn in_order(ssd: &mut Ssd, start: Nanos, first: u64, count: u64) -> Nanos {
    drive(ssd, start, 128, count, |n, _| Request::write((first + n) * 4096, 4096))
}

fn pslc(ssd: &Ssd) -> &Pslc {
    ssd.pslc.as_ref().unwrap()
}

/// Units that are in the cache, which no block has as well.
fn cached_units(ssd: &Ssd) -> BTreeSet<u32> {
    let cached: BTreeSet<u32> =
        (0..units(ssd)).filter(|&unit| pslc(ssd).find(unit).is_some()).collect();
    for &unit in &cached {
        assert_eq!(ssd.ftl.slot_of(unit), None, "unit {unit} is in two places");
    }
    cached
}

#[test]
fn pslc_writes_at_its_own_pace_until_it_is_full() {
    let mut ssd = ssd(with_pslc);
    let warm = in_order(&mut ssd, Nanos(0), 0, 100);
    let fast_end = in_order(&mut ssd, warm, 100, 400);
    // Four dies, one unit a stripe, 200 us each.
    let fast = iops(400, warm, fast_end);
    assert!((fast / 20_000.0 - 1.0).abs() < 0.05, "{fast} a second into the cache");
    let full = in_order(&mut ssd, fast_end, 500, 300);
    let slow_end = in_order(&mut ssd, full, 800, 1_600);
    // For each unit a die programs it twice, reads it once, and erases one of eleven pages of a
    // block with a third of 32 pages.
    let slow = iops(1_600, full, slow_end);
    let unit_s = (200.0 + 10.0 + 1000.0 + 1500.0 / 11.0) / 1e6;
    assert!((slow * unit_s / 4.0 - 1.0).abs() < 0.03, "{slow} a second through a full cache");
    assert!(ssd.stats(slow_end).media_written_bytes > 2 * 1_600 * 4096);
}

#[test]
fn pslc_is_emptied_at_rest_and_fast_again() {
    let mut ssd = ssd(with_pslc);
    let end = in_order(&mut ssd, Nanos(0), 0, PSLC_UNITS - 4);
    assert_eq!(cached_units(&ssd).len() as u64, PSLC_UNITS - 4);
    let rested = end + Nanos::from_secs(5);
    let read = ssd.submit(rested, &Request::read(0, 4096)).unwrap();
    assert!(cached_units(&ssd).is_empty());
    assert_eq!(ssd.ftl.mapped_units(), PSLC_UNITS as u32 - 4);
    let again = in_order(&mut ssd, read.at, 1_000, 400);
    assert!(iops(400, read.at, again) > 18_000.0);
}

#[test]
fn pslc_shrinks_to_a_third_of_what_is_unwritten() {
    let mut ssd = ssd(|flash| {
        with_pslc(flash);
        let pslc = flash.pslc.as_mut().unwrap();
        (pslc.bytes, pslc.static_bytes) = (2_000 * 4096, 64 * 4096);
    });
    let all = u64::from(units(&ssd));
    let mut now = Nanos(0);
    for first in (0..all).step_by(256) {
        now = in_order(&mut ssd, now, first, 256);
        let unwritten = all - first - 256;
        let cached = cached_units(&ssd).len() as u64;
        assert!(cached <= (unwritten / 3).max(64) + 300, "{cached} of {unwritten} unwritten");
    }
    assert!(cached_units(&ssd).len() <= 64 + 8);
}

#[test]
fn a_unit_is_in_one_place_under_any_mix() {
    let mut ssd = ssd(with_pslc);
    let (mut chance, mut now) = (Chance::new(5), Nanos(0));
    let mut written = BTreeSet::new();
    for step in 0..30_000 {
        let unit = chance.below(units(&ssd));
        let at = u64::from(unit) * 4096;
        let request = match chance.below(10) {
            0 => {
                written.remove(&unit);
                Request::trim(at, 4096)
            }
            1 | 2 => Request::read(at, 4096),
            3 => Request::flush(),
            _ => {
                written.insert(unit);
                Request::write(at, 4096)
            }
        };
        now = ssd.submit(now, &request).unwrap().at;
        if step % 5_000 == 4_999 {
            now = now + Nanos::from_millis(300);
            let mut here = cached_units(&ssd);
            here.extend((0..units(&ssd)).filter(|&unit| ssd.ftl.slot_of(unit).is_some()));
            assert_eq!(here, written);
        }
    }
    assert!(pslc(&ssd).folded > 1_000);
}

/// Reads at random, one at a time, of a drive that is written once: their mean in microseconds.
fn mean_read_us(ssd: &mut Ssd) -> f64 {
    let all = u64::from(units(ssd));
    let filled = in_order(ssd, Nanos(0), 0, all) + Nanos::from_secs(1);
    let count = 20_000;
    let end = drive(ssd, filled, 1, count, |_, chance| {
        Request::read(u64::from(chance.below(all as u32)) * 4096, 4096)
    });
    end.since(filled).0 as f64 / 1e3 / count as f64
}

#[test]
fn a_part_of_the_map_in_memory_costs_reads_for_the_rest() {
    let plain_us = mean_read_us(&mut ssd(|_| {}));
    // 4,096 units, 1,024 entries a page: four pages, of which one or two are in memory.
    for pages in [1_u64, 2] {
        let mut ssd = ssd(|flash| {
            let (bytes, look_up_us, flush_ms) = (pages * 4096, 2.0, 0.0);
            flash.map_memory = Some(MapMemorySpec { bytes, look_up_us, flush_ms });
        });
        let missed = 1.0 - pages as f64 / 4.0;
        // A page of map: 25 us in the array, and 4,096 bytes on a channel of 200 MB/s.
        let expected = plain_us + 2.0 + missed * (25.0 + 20.48);
        let got = mean_read_us(&mut ssd);
        assert!((got / expected - 1.0).abs() < 0.02, "{got} us, {expected} by the formula");
    }
}

#[test]
fn changed_map_is_programmed_when_it_leaves_or_when_it_is_time() {
    let map = |bytes, flush_ms| {
        move |flash: &mut FlashSpec| {
            flash.map_memory = Some(MapMemorySpec { bytes, look_up_us: 0.0, flush_ms });
        }
    };
    // One page of four is in memory: three of four random writes push a changed page out.
    let mut partial = ssd(map(4096, 0.0));
    random_writes(&mut partial, Nanos(0), 4_000, 0);
    let share = partial.array.map_programs as f64 / 4_000.0;
    assert!((share - 0.75).abs() < 0.03, "{share}");
    // All in memory, programmed each second: four changed pages each.
    let mut flushed = ssd(map(0, 1000.0));
    for second in 0..10 {
        random_writes(&mut flushed, Nanos::from_secs(second), 100, 0);
    }
    let end = Nanos::from_secs(10);
    flushed.submit(end, &Request::read(0, 4096)).unwrap();
    assert_eq!(flushed.array.map_programs, 4 * 10);
    // Nothing changed, nothing to program.
    flushed.submit(end + Nanos::from_secs(10), &Request::read(0, 4096)).unwrap();
    assert_eq!(flushed.array.map_programs, 4 * 10);
}

#[test]
fn retries_lengthen_their_share_of_reads() {
    let plain_us = mean_read_us(&mut ssd(|_| {}));
    let mut ssd = ssd(|flash| {
        (flash.timing.retry_fraction, flash.timing.retry_reads) = (0.2, 3);
    });
    let (got, expected) = (mean_read_us(&mut ssd), plain_us + 0.2 * 3.0 * 25.0);
    assert!((got / expected - 1.0).abs() < 0.02, "{got} us, {expected} by the formula");
}

#[test]
fn blocks_that_are_read_often_are_moved() {
    let mut ssd = ssd(|flash| flash.ftl.read_disturb_reads = 1_000);
    let filled = in_order(&mut ssd, Nanos(0), 0, 2_048) + Nanos::from_secs(1);
    let erased = ssd.ftl.counters().erases;
    // One place, 10,500 times: its block moves after each thousand.
    drive(&mut ssd, filled, 1, 10_500, |_, _| Request::read(0, 4096));
    let counters = ssd.ftl.counters();
    assert_eq!((counters.refreshes, counters.erases - erased), (10, 10));
    assert_eq!(ssd.ftl.mapped_units(), 2_048);
}

#[test]
fn heat_follows_power_and_slows_commands() {
    let heat = |limit_c: f64| {
        move |flash: &mut FlashSpec| {
            flash.controller.command_us = 50.0;
            let (ambient_c, c_per_w, time_s, slowdown) = (30.0, 20.0, 1.0, 4.0);
            flash.thermal = Some(ThermalSpec { ambient_c, c_per_w, time_s, limit_c, slowdown });
        }
    };
    // At rest the drive draws 0.5 W: 10 degrees in the end, 63 % of them after the time constant.
    let mut idle = ssd(heat(90.0));
    for step in 1..=100_u64 {
        idle.submit(Nanos::from_millis(10 * step), &Request::flush()).unwrap();
    }
    let celsius = idle.celsius().unwrap();
    assert!((celsius - (30.0 + 10.0 * (1.0 - (-1.0_f64).exp()))).abs() < 0.2, "{celsius}");
    // A limit that work reaches and rest does not: the rate is that of the slower controller in
    // part of the time.
    let rate = |limit_c: f64| {
        let mut ssd = ssd(heat(limit_c));
        let begin = in_order(&mut ssd, Nanos(0), 0, 4_096);
        let end = drive(&mut ssd, begin, 8, 100_000, |n, _| Request::read(n % 4_096 * 4096, 4096));
        iops(100_000, begin, end)
    };
    let (cool, warm, hot) = (rate(200.0), rate(41.0), rate(30.0));
    assert!((cool / hot - 4.0).abs() < 0.1, "{cool} and {hot}");
    assert!(hot < warm && warm < cool, "{hot}, {warm}, {cool}");
}

#[test]
fn impossible_parts_are_refused_by_their_field() {
    let fails = |edit: &dyn Fn(&mut FlashSpec)| Ssd::new(&spec(edit), 1).unwrap_err().field;
    let retry = fails(&|flash| flash.timing.retry_fraction = 1.5);
    assert_eq!(retry, "media.flash.timing.retry_fraction");
    let large = fails(&|flash| {
        with_pslc(flash);
        flash.pslc.as_mut().unwrap().bytes = 1 << 40;
    });
    assert_eq!(large, "media.flash.pslc.bytes");
    let compresses = fails(&|flash| {
        with_pslc(flash);
        flash.controller.compression = Some(crate::spec::CompressionSpec::default());
    });
    assert_eq!(compresses, "media.flash.pslc");
    let slow = fails(&|flash| {
        let (bytes, look_up_us, flush_ms) = (0, -1.0, 0.0);
        flash.map_memory = Some(MapMemorySpec { bytes, look_up_us, flush_ms });
    });
    assert_eq!(slow, "media.flash.map_memory.look_up_us");
}
