//! Prints how many host writes a second of processor time simulates, untimed and timed.
//!
//! `cargo run --release -p forebay-flash --example speed` (`make bench-sim`).

use forebay_flash::{Chance, CleaningPolicy, Ftl, FtlConfig};

/// The only wall clock of this room: a benchmark measures the machine, not the model.
#[allow(clippy::disallowed_methods)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

fn untimed(name: &str, blocks: u32, slots_per_block: u32, spare: f64, policy: CleaningPolicy) {
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
    let seconds = start.elapsed().as_secs_f64();
    let moved = ftl.counters().moved_units - before.moved_units;
    println!(
        "untimed {name:<34} {:>6.2} M host writes/s (write amplification {:.2})",
        writes as f64 / seconds / 1e6,
        (moved + writes) as f64 / writes as f64,
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
}
