//! Rates and responses of the flash model against figures from outside the model: hand-computed
//! bounds, the Pollaczek-Khinchine formula (M/D/1), and a small event-driven queueing network.
//!
//! Every comparison holds within 2 %.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_flash::{Chance, DeviceSpec, FlashSpec, MediaSpec, Model, Request, Ssd};
use forebay_units::Nanos;

const WITHIN: f64 = 0.02;
const UNIT_BYTES: u64 = 4096;

/// Link, hops and controller cost next to nothing: the flash array decides.
const DEVICE: &str = r#"
name = "array"
capacity_bytes = 67_108_864
[interface]
kind = "nvme"
bandwidth_mb_s = 100_000
command_us = 0
hop_us = 0
queue_depth = 4096
bit_error_rate = 0
[media.flash.geometry]
channels = 1
dies_per_channel = 8
planes_per_die = 1
blocks_per_plane = 96
pages_per_block = 32
page_bytes = 4096
[media.flash.timing]
read_us = 25
program_us = 200
erase_us = 1500
channel_mb_s = 40
[media.flash.cache]
bytes = 262144
"#;

/// Channel time of a unit at 40 MB/s.
const SLOW_US: f64 = 102.4;

fn device(edit: impl Fn(&mut FlashSpec)) -> Ssd {
    let mut spec: DeviceSpec = toml::from_str(DEVICE).unwrap();
    let MediaSpec::Flash(flash) = &mut spec.media else { panic!("the page is flash") };
    edit(flash);
    Ssd::new(&spec, 1).unwrap()
}

fn units(ssd: &Ssd) -> u32 {
    (ssd.identity().capacity_bytes / UNIT_BYTES) as u32
}

/// Writes every unit once, in order. Returns an instant when the device is idle again.
fn fill(ssd: &mut Ssd) -> Nanos {
    let mut now = Nanos(0);
    for unit in 0..u64::from(units(ssd)) {
        now = ssd.submit(now, &Request::write(unit * UNIT_BYTES, UNIT_BYTES)).unwrap().at;
    }
    ssd.submit(now, &Request::flush()).unwrap().at + Nanos::from_secs(1)
}

/// Rate a second and mean response in microseconds of a closed loop with `depth` outstanding.
fn closed_loop<'a>(
    ssd: &mut Ssd,
    start: Nanos,
    depth: usize,
    count: u64,
    mut make: impl FnMut(u64) -> Request<'a>,
) -> (f64, f64) {
    let mut outstanding: BinaryHeap<Reverse<Nanos>> = vec![Reverse(start); depth].into();
    let (mut sum_ns, mut last) = (0, start);
    for number in 0..count {
        let Reverse(now) = outstanding.pop().unwrap();
        last = now;
        let at = ssd.submit(now, &make(number)).unwrap().at;
        sum_ns += at.since(now).0;
        outstanding.push(Reverse(at));
    }
    let seconds = last.since(start).as_secs_f64();
    ((count - depth as u64) as f64 / seconds, sum_ns as f64 / count as f64 / 1e3)
}

fn random_reads(ssd: &mut Ssd, start: Nanos, depth: usize, count: u64) -> (f64, f64) {
    let (units, mut chance) = (units(ssd), Chance::new(7));
    closed_loop(ssd, start, depth, count, |_| {
        Request::read(u64::from(chance.below(units)) * UNIT_BYTES, UNIT_BYTES)
    })
}

fn random_writes(ssd: &mut Ssd, start: Nanos, count: u64, seed: u64) -> (f64, f64) {
    let (units, mut chance) = (units(ssd), Chance::new(seed));
    closed_loop(ssd, start, 32, count, |_| {
        Request::write(u64::from(chance.below(units)) * UNIT_BYTES, UNIT_BYTES)
    })
}

#[track_caller]
fn assert_near(what: &str, expected: f64, got: f64) {
    let off = got / expected - 1.0;
    let percent = off * 1e2;
    assert!(off.abs() <= WITHIN, "{what}: {expected:.1} expected, {got:.1} got, {percent:+.1} %");
}

/// A closed network of `dies` stations and one channel behind them, first come first served, with
/// constant service times: rate a second and mean response in microseconds.
fn closed_network(jobs: usize, dies: u32, die_us: f64, channel_us: f64) -> (f64, f64) {
    const VISITS: usize = 200_000;
    let (die_ns, channel_ns) = ((die_us * 1e3) as u64, (channel_us * 1e3) as u64);
    let mut chance = Chance::new(3);
    let mut at_die: Vec<VecDeque<u64>> = vec![VecDeque::new(); dies as usize];
    let mut at_channel: VecDeque<u64> = VecDeque::new();
    // Instant, order, station that is done: a die, or `dies` for the channel.
    let mut events: BinaryHeap<Reverse<(u64, u64, u32)>> = BinaryHeap::new();
    let (mut order, mut now, mut done, mut sum_ns) = (0, 0, 0, 0u128);
    let mut arrivals = vec![0; jobs];
    while done < VISITS {
        for asked in arrivals.drain(..) {
            let die = chance.below(dies);
            at_die[die as usize].push_back(asked);
            if at_die[die as usize].len() == 1 {
                order += 1;
                events.push(Reverse((now + die_ns, order, die)));
            }
        }
        let Reverse((at, _, station)) = events.pop().unwrap();
        now = at;
        if station == dies {
            sum_ns += u128::from(now - at_channel.pop_front().unwrap());
            done += 1;
            arrivals.push(now);
            if !at_channel.is_empty() {
                order += 1;
                events.push(Reverse((now + channel_ns, order, dies)));
            }
            continue;
        }
        let queue = &mut at_die[station as usize];
        at_channel.push_back(queue.pop_front().unwrap());
        if !queue.is_empty() {
            order += 1;
            events.push(Reverse((now + die_ns, order, station)));
        }
        if at_channel.len() == 1 {
            order += 1;
            events.push(Reverse((now + channel_ns, order, dies)));
        }
    }
    (VISITS as f64 / (now as f64 / 1e9), sum_ns as f64 / VISITS as f64 / 1e3)
}

#[test]
fn one_read_at_a_time_takes_array_and_channel_time() {
    for (channel_mb_s, channel_us) in [(40.0, SLOW_US), (400.0, SLOW_US / 10.0)] {
        let mut ssd = device(|flash| flash.timing.channel_mb_s = channel_mb_s);
        let start = fill(&mut ssd);
        let (rate, _) = random_reads(&mut ssd, start, 1, 2_000);
        assert_near("reads a second", 1e6 / (25.0 + channel_us), rate);
    }
}

#[test]
fn slow_channel_limits_reads_of_many_dies() {
    let mut ssd = device(|_| {});
    let start = fill(&mut ssd);
    let (rate, response_us) = random_reads(&mut ssd, start, 32, 20_000);
    assert_near("reads a second", 1e6 / SLOW_US, rate);
    assert_near("mean response, 32 reads outstanding", 32.0 * SLOW_US, response_us);
}

#[test]
fn reads_of_many_dies_follow_a_closed_network() {
    // Dies as the limit, channel and dies alike, and the channel as the limit.
    for channel_mb_s in [3200.0, 1300.0, 800.0] {
        for depth in [4, 32] {
            let mut ssd = device(|flash| flash.timing.channel_mb_s = channel_mb_s);
            let start = fill(&mut ssd);
            let (rate, response_us) = random_reads(&mut ssd, start, depth, 200_000);
            let channel_us = UNIT_BYTES as f64 / channel_mb_s;
            let (expected_rate, expected_us) = closed_network(depth, 8, 25.0, channel_us);
            let what = format!("{channel_mb_s} MB/s, {depth} outstanding");
            assert_near(&format!("{what}: reads a second"), expected_rate, rate);
            assert_near(&format!("{what}: mean response"), expected_us, response_us);
        }
    }
}

/// Mean response of reads that arrive by a Poisson process, in microseconds.
fn poisson_reads(ssd: &mut Ssd, start: Nanos, per_us: f64, count: u64) -> f64 {
    let (units, mut chance) = (units(ssd), Chance::new(11));
    let (mut arrival_ns, mut sum_ns) = (start.0 as f64, 0);
    for _ in 0..count {
        arrival_ns += -(1.0 - chance.unit()).ln() / per_us * 1e3;
        let now = Nanos(arrival_ns as u64);
        let offset = u64::from(chance.below(units)) * UNIT_BYTES;
        sum_ns += ssd.submit(now, &Request::read(offset, UNIT_BYTES)).unwrap().at.since(now).0;
    }
    sum_ns as f64 / count as f64 / 1e3
}

/// Response of M/D/1: service time and mean wait, by Pollaczek and Khinchine.
fn m_d_1(service_us: f64, load: f64) -> f64 {
    service_us * (1.0 + load / (2.0 * (1.0 - load)))
}

#[test]
fn one_die_under_poisson_arrivals_is_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let mut ssd = device(|flash| {
            flash.geometry.dies_per_channel = 1;
            flash.geometry.blocks_per_plane *= 8;
            flash.timing.channel_mb_s = 1e6;
        });
        let start = fill(&mut ssd);
        let response_us = poisson_reads(&mut ssd, start, load / 25.0, 200_000);
        assert_near(&format!("load {load}: response"), m_d_1(25.0, load), response_us);
    }
}

#[test]
fn channel_under_poisson_arrivals_is_m_d_1() {
    for load in [0.3, 0.6, 0.8] {
        let mut ssd = device(|flash| flash.timing.read_us = 1.0);
        let start = fill(&mut ssd);
        let response_us = poisson_reads(&mut ssd, start, load / SLOW_US, 200_000);
        assert_near(&format!("load {load}: response"), 1.0 + m_d_1(SLOW_US, load), response_us);
    }
}

#[test]
fn sequential_writes_reach_the_slower_of_dies_and_channel() {
    for (channel_mb_s, expected) in [(400.0, 8.0 / 200e-6), (40.0, 1e6 / SLOW_US)] {
        let mut ssd = device(|flash| flash.timing.channel_mb_s = channel_mb_s);
        let count = u64::from(units(&ssd));
        let (rate, _) = closed_loop(&mut ssd, Nanos(0), 32, count, |n| {
            Request::write(n * UNIT_BYTES, UNIT_BYTES)
        });
        assert_near(&format!("{channel_mb_s} MB/s: writes a second"), expected, rate);
    }
}

#[test]
fn random_writes_of_an_empty_device_reach_the_slower_of_dies_and_channel() {
    for (channel_mb_s, expected) in [(400.0, 8.0 / 200e-6), (40.0, 1e6 / SLOW_US)] {
        let mut ssd = device(|flash| flash.timing.channel_mb_s = channel_mb_s);
        let (rate, _) = random_writes(&mut ssd, Nanos(0), 10_000, 1);
        assert_near(&format!("{channel_mb_s} MB/s: writes a second"), expected, rate);
    }
}

/// In a steady state each host write costs `a` programs, `a - 1` reads and its share of an erase.
#[test]
fn sustained_random_writes_cost_what_write_amplification_says() {
    let mut ssd = device(|flash| flash.timing.channel_mb_s = 4000.0);
    let start = fill(&mut ssd);
    let all = u64::from(units(&ssd));
    random_writes(&mut ssd, start, 6 * all, 1);
    let begin = Nanos(start.0 + 1_000_000_000_000);
    let before = ssd.ftl().counters();
    let (rate, _) = random_writes(&mut ssd, begin, 6 * all, 2);
    let after = ssd.ftl().counters();
    let host = (after.host_units - before.host_units) as f64;
    let moved = (after.moved_units - before.moved_units) as f64 / host;
    let erases = 8.0 * (after.erases - before.erases) as f64 / host;
    let die_us = (1.0 + moved) * 200.0 + moved * 25.0 + erases * 1500.0;
    assert!(moved > 0.5, "{moved}: nothing was cleaned");
    assert_near("writes a second", 8e6 / die_us, rate);
}

#[test]
fn reads_complete_out_of_order() {
    let mut ssd = device(|flash| flash.timing.channel_mb_s = 400.0);
    let start = fill(&mut ssd);
    let mut read = |unit: u64| {
        ssd.submit(start, &Request::read(unit * UNIT_BYTES, UNIT_BYTES)).unwrap().at.since(start).0
    };
    // Unit n lies on die n mod 8. Four reads queue at die 0; die 1 is idle.
    let slow = [0, 8, 16, 24].map(&mut read);
    let quick = read(1);
    assert!(quick < slow[1], "{quick} ns behind {slow:?}");
}

/// The 99.9th percentile of reads among random writes, in microseconds.
fn read_tail_us(erase_us: f64) -> f64 {
    let mut ssd = device(|flash| {
        flash.timing.erase_us = erase_us;
        flash.timing.channel_mb_s = 400.0;
    });
    let start = fill(&mut ssd);
    let (units, mut chance) = (units(&ssd), Chance::new(5));
    let mut offset = || u64::from(chance.below(units)) * UNIT_BYTES;
    let mut reads = Vec::new();
    let mut writes: BinaryHeap<Reverse<Nanos>> = vec![Reverse(start); 8].into();
    let mut read_at = start;
    for _ in 0..60_000 {
        let Reverse(now) = writes.pop().unwrap();
        while read_at <= now {
            let at = ssd.submit(read_at, &Request::read(offset(), UNIT_BYTES)).unwrap().at;
            reads.push(at.since(read_at).0);
            read_at = read_at + Nanos::from_micros(500);
        }
        writes.push(Reverse(ssd.submit(now, &Request::write(offset(), UNIT_BYTES)).unwrap().at));
    }
    reads.sort_unstable();
    reads[reads.len() * 999 / 1000] as f64 / 1e3
}

#[test]
fn longer_erases_lengthen_the_tail_of_reads() {
    let (short, long) = (read_tail_us(15_000.0), read_tail_us(50_000.0));
    // A read that meets an erase waits for at most all of it, and for a few reads before it.
    assert!((12_000.0..17_000.0).contains(&short), "{short} us");
    assert!((40_000.0..54_000.0).contains(&long), "{long} us");
}
