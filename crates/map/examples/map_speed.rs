//! Measures the map: operations a second on one core, and memory per TiB of volume.
//!
//! `cargo run --release -p forebay-map --example map_speed [GiB of volume, 64 by default]`

use forebay_format::map_record::LEAF_BLOCKS;
use forebay_map::{LeafId, Map};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const VOLUME: VolumeId = VolumeId(1);
/// 64 MiB segments.
const SEGMENT_BLOCKS: u64 = 1 << 14;

/// The `index`th address when segments are filled in order.
fn addr(index: u64) -> BlockAddr {
    BlockAddr::new(SegmentId((index / SEGMENT_BLOCKS) as u32), (index % SEGMENT_BLOCKS) as u32)
}

/// CPU time of this thread in nanoseconds. Other programs do not affect it.
fn on_cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has schedstat");
    let first = stat.split_whitespace().next().expect("three numbers");
    first.parse().expect("a number")
}

/// Runs `work`, which does `count` operations, and prints their rate on one core.
fn time<T>(what: &str, count: u64, work: impl FnOnce() -> T) -> T {
    let start_ns = on_cpu_ns();
    let result = work();
    let span_ns = on_cpu_ns() - start_ns;
    // The kernel counts in ticks of a few milliseconds.
    if span_ns < 20_000_000 {
        println!("{what:<44} too fast to measure: {count} within {} ms", span_ns / 1_000_000);
    } else {
        println!("{what:<44} {:9.1} M/s", count as f64 * 1e3 / span_ns as f64);
    }
    result
}

struct Bench {
    map: Map,
    blocks: u64,
    written: u64,
    random: Xoshiro256PlusPlus,
}

impl Bench {
    fn new(blocks: u64) -> Self {
        let mut map = Map::new();
        map.create_volume(VOLUME).expect("a new map has no volumes");
        Self { map, blocks, written: 0, random: Xoshiro256PlusPlus::seed_from_u64(1) }
    }

    fn set(&mut self, lba: u64, sums: &[u64], on_media: bool) {
        // Runs do not cross segments; addresses start over long after 2^20 segments.
        let index = self.written % (SEGMENT_BLOCKS << 19);
        let fit = (SEGMENT_BLOCKS - index % SEGMENT_BLOCKS).min(sums.len() as u64);
        let (now, later) = sums.split_at(fit as usize);
        self.map
            .set_run(VOLUME, Lba(lba), addr(index), now, on_media, &mut |_, _| {})
            .expect("the volume exists");
        self.written += fit;
        if !later.is_empty() {
            self.set(lba + fit, later, on_media);
        }
    }

    fn random_writes(&mut self, what: &str, count: u64, len: usize) {
        let sums: Vec<u64> = (0..len as u64).map(|i| i << 20).collect();
        time(what, count, || {
            for _ in 0..count {
                let lba = self.random.next_u64() % (self.blocks - len as u64);
                self.set(lba, &sums, false);
            }
        });
    }

    fn sequential(&mut self, what: &str, len: usize, on_media: bool) {
        let sums = vec![7; len];
        time(what, self.blocks, || {
            for lba in (0..self.blocks).step_by(len) {
                self.set(lba, &sums, on_media);
            }
        });
    }

    fn reads(&mut self) {
        let count = 10_000_000;
        let mut found = 0u64;
        time("  random lookups", count, || {
            for _ in 0..count {
                let lba = self.random.next_u64() % self.blocks;
                found += u64::from(self.map.lookup(VOLUME, Lba(lba)).is_some());
            }
        });
        let mapped = self.map.mapped_blocks(VOLUME);
        let total = time("  for_each, blocks", mapped, || {
            let mut total = 0u64;
            self.map
                .for_each(|_, _, addr, blocks| total += addr.raw() & 1 | u64::from(blocks) << 1);
            total
        });
        assert!(found <= count && total >= mapped, "the map lost blocks");
    }

    fn memory(&self) {
        let bytes = self.map.memory_bytes();
        let mapped = self.map.mapped_blocks(VOLUME);
        println!(
            "  memory: {:.1} MiB a TiB of volume, {:.3} bytes a mapped block ({:.1} % mapped)",
            bytes as f64 / (1 << 20) as f64 * ((1u64 << 28) as f64 / self.blocks as f64),
            bytes as f64 / mapped as f64,
            mapped as f64 * 100.0 / self.blocks as f64,
        );
    }

    fn seal_all(&mut self) {
        let leaves = self.blocks / u64::from(LEAF_BLOCKS);
        time("  seal, leaves", leaves, || {
            let mut cursor = LeafId::default();
            loop {
                let next = self.map.leaves_from(cursor).next();
                let Some(id) = next else { break };
                self.map.seal(id, &mut |_| true);
                cursor = id.next().expect("not the last leaf there is");
            }
        });
    }
}

fn main() {
    let gib = std::env::args().nth(1).map_or(64, |arg| arg.parse().expect("a number of GiB"));
    let blocks = gib << 18;

    println!("random 4 KiB writes to an empty volume of {gib} GiB");
    let mut bench = Bench::new(blocks);
    for percent in [12, 50, 100, 200] {
        let before = bench.written;
        let until = blocks * percent / 100;
        bench.random_writes(&format!("set_run, up to {percent} % written"), until - before, 1);
        bench.memory();
    }
    bench.reads();
    bench.sequential("every block once more, one at a time", 1, false);
    bench.memory();
    bench.random_writes("set_run of random blocks, full volume", 10_000_000, 1);
    bench.reads();

    println!("sequential writes of 128 KiB to an empty volume of {gib} GiB, in blocks");
    let mut bench = Bench::new(blocks);
    bench.sequential("set_run, footers on media later", 32, false);
    bench.memory();
    bench.seal_all();
    bench.memory();
    bench.reads();
    bench.sequential("set_run again, footers on media", 32, true);
    bench.memory();
    println!("random 4 KiB writes to that sealed volume");
    for percent in [1, 10, 50, 100, 300] {
        let count = blocks * percent / 100;
        bench.random_writes(&format!("set_run, {percent} % more written"), count, 1);
        bench.memory();
    }
    bench.reads();

    println!("random 64 KiB writes to an empty volume of {gib} GiB");
    let mut bench = Bench::new(blocks);
    bench.random_writes("set_run, runs of 16 blocks", blocks / 8, 16);
    bench.memory();
    bench.reads();

    println!("random 4 KiB writes to an empty volume of a PiB");
    let mut bench = Bench::new(1 << 38);
    for count in [300_000, 2_700_000] {
        bench.random_writes(&format!("set_run, {count} blocks"), count, 1);
        bench.memory();
    }
    bench.reads();
    bench.random = Xoshiro256PlusPlus::seed_from_u64(1);
    bench.random_writes("set_run again, the same blocks", 3_000_000, 1);
    bench.memory();
}
