//! Prints how many host writes a second of processor time simulates, untimed and timed.
//!
//! `cargo run --release -p forebay-flash --example flash_speed [PART]` (`make bench-sim`); of the
//! loads, those that have PART in their name.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_flash::{
    Chance, CleaningPolicy, DeviceSpec, FlashSpec, Ftl, FtlConfig, MediaSpec, Model, Plp, Request,
    Ssd,
};
use forebay_units::Nanos;

/// Processor time of this thread in seconds, so that neighbors on the machine count less; wall
/// time where the kernel does not tell. A benchmark measures the machine, not the model, which is
/// why this room has no other clock.
#[allow(clippy::disallowed_methods)]
fn now() -> f64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let spent = spent.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    spent.map_or_else(
        || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.expect("the clock is past 1970").as_secs_f64()
        },
        |ns| ns as f64 / 1e9,
    )
}

/// Whether the load of this name is asked for.
fn is_wanted(name: &str) -> bool {
    std::env::args().nth(1).is_none_or(|part| name.contains(&part))
}

fn untimed(name: &str, blocks: u32, slots_per_block: u32, spare: f64, policy: CleaningPolicy) {
    if !is_wanted(name) {
        return;
    }
    let units = (f64::from(blocks * slots_per_block) * (1.0 - spare)) as u32;
    let mut ftl = Ftl::new(FtlConfig::textbook(units, blocks, slots_per_block, policy), 1);
    for unit in 0..units {
        ftl.write(unit, 1, 0, &mut ()).expect("endless blocks");
    }
    let mut chance = Chance::new(7);
    for _ in 0..2 * u64::from(units) {
        ftl.write(chance.below(units), 1, 0, &mut ()).expect("endless blocks");
    }
    let before = ftl.counters();
    let writes = 10_000_000_u64;
    let start = now();
    for _ in 0..writes {
        ftl.write(chance.below(units), 1, 0, &mut ()).expect("endless blocks");
    }
    let seconds = now() - start;
    let moved = ftl.counters().moved_units - before.moved_units;
    println!(
        "untimed {name:<34} {:>6.2} M host writes/s (write amplification {:.2})",
        writes as f64 / seconds / 1e6,
        (moved + writes) as f64 / writes as f64,
    );
}

/// A 2010s SATA drive: 16 dies, 4 KiB pages, blocks of 128, 28 % spare.
const DRIVE: &str = r#"
name = "speed"
capacity_bytes = 49_000_000_000
interface = { kind = "sata2" }
[media.flash.geometry]
channels = 8
dies_per_channel = 2
planes_per_die = 1
blocks_per_plane = 8192
pages_per_block = 128
page_bytes = 4096
[media.flash.timing]
read_us = 25
program_us = 200
erase_us = 1500
"#;

/// Closed loop of `depth` random 4 KiB writes outstanding, as a load generator would drive it.
fn timed(
    name: &str,
    edit: impl Fn(&mut DeviceSpec),
    offset_bytes: u64,
    flush_each: bool,
    shrink: u32,
) {
    if !is_wanted(name) {
        return;
    }
    let mut spec: DeviceSpec = toml::from_str(DRIVE).expect("the page above parses");
    edit(&mut spec);
    let spec = spec.scaled(shrink);
    let mut ssd = Ssd::new(&spec, 1).expect("the page above is possible");
    let units = ssd.identity().capacity_bytes / 4096 - 1;
    let mut chance = Chance::new(7);
    let mut outstanding: BinaryHeap<Reverse<u64>> = (0..32).map(Reverse).collect();
    let mut run = |ssd: &mut Ssd, writes: u64, sequential: bool| {
        let mut at = 0;
        for number in 0..writes {
            let Reverse(now) = outstanding.pop().expect("32 outstanding");
            let unit = if sequential { number } else { u64::from(chance.below(units as u32)) };
            let request = Request::write(unit * 4096 + offset_bytes, 4096);
            at = ssd.submit(Nanos(now), &request).expect("in range").at.0;
            if flush_each {
                at = ssd.submit(Nanos(now), &Request::flush()).expect("flush").at.0;
            }
            outstanding.push(Reverse(at));
        }
        at
    };
    run(&mut ssd, units, true);
    let before = run(&mut ssd, units, false);
    let stats_before = ssd.stats(Nanos(before));
    let writes = 5_000_000_u64;
    let start = now();
    let after = run(&mut ssd, writes, false);
    let seconds = now() - start;
    let stats = ssd.stats(Nanos(after)).since(&stats_before);
    println!(
        "timed   {name:<34} {:>6.2} M host writes/s (write amplification {:.2}, {:.0} IOPS)",
        writes as f64 / seconds / 1e6,
        stats.write_amplification(),
        writes as f64 / ((after - before) as f64 / 1e9),
    );
}

fn main() {
    untimed("greedy 8192x64 spare 7 %", 8192, 64, 0.07, CleaningPolicy::Greedy);
    untimed("greedy 8192x64 spare 20 %", 8192, 64, 0.20, CleaningPolicy::Greedy);
    untimed("greedy 16384x128 spare 20 %", 16384, 128, 0.20, CleaningPolicy::Greedy);
    untimed("greedy 32768x512 (64 GiB) spare 28 %", 32768, 512, 0.28, CleaningPolicy::Greedy);
    untimed("d-choices 10 16384x128 spare 20 %", 16384, 128, 0.2, CleaningPolicy::DChoices(10));
    untimed("fifo 16384x128 spare 20 %", 16384, 128, 0.2, CleaningPolicy::Fifo);
    untimed("random 16384x128 spare 20 %", 16384, 128, 0.2, CleaningPolicy::Random);
    untimed("cost-benefit 8192x128 spare 20 %", 8192, 128, 0.2, CleaningPolicy::CostBenefit);
    timed("random 4 KiB, all dies together", |_| {}, 0, false, 1);
    timed(
        "random 4 KiB, each die its own pool",
        |spec| flash(spec).ftl.superblock_dies = 1,
        0,
        false,
        4,
    );
    timed("random 4 KiB at 512 B offset", |_| {}, 512, false, 4);
    timed("random 4 KiB, flush after each", |_| {}, 0, true, 4);
    timed("full power-loss protection", |spec| flash(spec).cache.plp = Plp::Full, 0, false, 4);
}

fn flash(spec: &mut DeviceSpec) -> &mut FlashSpec {
    match &mut spec.media {
        MediaSpec::Flash(flash) => flash,
        MediaSpec::Dram(_) | MediaSpec::Disk(_) => unreachable!("the page above is flash"),
    }
}
