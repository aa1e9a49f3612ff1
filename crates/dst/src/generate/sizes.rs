//! The aims "sizes" and "long replay": properties, long requests and large volumes.

use forebay_sim::Rng;

use crate::scenario::{Act, Admin};
use crate::stamp::Fill;
use crate::subject::PoolSpec;

/// Size of a data disk.
const DATA_BYTES: u64 = 256 << 20;

fn property(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// Dirty limits, in order. A small pool has no room for a group of the last ones.
const DIRTY_LIMITS: [&str; 4] = ["4M", "8M", "16M", "64M"];

/// Draws properties of a pool.
pub(super) fn draw_properties(spec: &mut PoolSpec, rng: &mut Rng) {
    let limits = if spec.data_bytes < DATA_BYTES { &DIRTY_LIMITS[..2] } else { &DIRTY_LIMITS };
    let limit = *rng.pick(limits);
    spec.properties.extend([
        property("dirty_limit", limit),
        property("txg_timeout", rng.pick::<&str>(&["1", "5", "60"])),
        property("autotrim", rng.pick::<&str>(&["on", "off"])),
        property("footer_cache", rng.pick::<&str>(&["1M", "64M"])),
    ]);
}

/// Makes room for long requests, and draws the volumes: their sizes, which are sparse, and gaps.
pub(super) fn draw_volumes(
    spec: &mut PoolSpec,
    rng: &mut Rng,
) -> (Vec<u64>, Vec<u32>, Vec<(u32, u64)>) {
    spec.data_bytes = DATA_BYTES;
    spec.log_bytes = *rng.pick(&[64 << 20, 128 << 20]);
    let mib = |count: u64| count << 11;
    // The blocks of the upper half have numbers of more than 32 bits, or nearly.
    let gap = *rng.pick(&[1 << 34, 1 << 35, 1 << 40]);
    (vec![mib(rng.between(4, 24)), mib(rng.between(4, 33))], vec![0], vec![(0, gap)])
}

/// The script of a client with `acts` acts of up to 32 MiB.
pub(super) fn draw_client(volumes: &[u64], acts: u64, rng: &mut Rng) -> Vec<Act> {
    let volume = rng.below(volumes.len() as u64) as u32;
    let sectors = volumes[volume as usize];
    let mut out = Vec::new();
    for _ in 0..acts {
        let count = match rng.below(20) {
            0..2 => rng.between(16384, 65536),
            2..8 => rng.between(2048, 8192),
            8..12 => rng.between(64, 2048),
            _ => rng.between(1, 32),
        };
        let count = count.min(sectors);
        // Often around the middle, where the gap is.
        let middle = sectors / 16 * 8;
        let first = match rng.below(3) {
            0 => middle.saturating_sub(rng.below(count + 1)),
            1 => middle,
            _ => rng.below(sectors - count + 1),
        };
        let first = first.min(sectors - count);
        let first = if rng.chance(500) { first / 8 * 8 } else { first };
        let fua = rng.chance(300);
        out.push(match rng.below(20) {
            0..9 => Act::Write { volume, first, count, fua, fill: Fill::Noise },
            9..11 => Act::Read { volume, first, count },
            11..13 => Act::Trim { volume, first, count, fua },
            13..17 => {
                let (fua, no_hole) = (rng.chance(700), rng.chance(500));
                Act::Zero { volume, first, count, fua, no_hole }
            }
            17 => Act::Status { volume, first, count },
            18 => Act::Flush { volume },
            _ => Act::Pause { ns: 1 << rng.between(12, 31) },
        });
    }
    out
}

/// Changes a property that the next import heeds, now and then.
pub(super) fn draw_jobs(rng: &mut Rng) -> Vec<Admin> {
    let value = (*rng.pick(&DIRTY_LIMITS)).to_owned();
    let set = Admin::Set { property: "dirty_limit".to_owned(), value };
    let pause = Admin::Pause { ns: 1 << rng.between(14, 30) };
    if rng.chance(500) { vec![pause, set] } else { Vec::new() }
}

/// Draws the properties of a pool whose log holds much: groups are large and wait long.
pub(super) fn hold_much_log(spec: &mut PoolSpec) {
    spec.data_bytes = DATA_BYTES;
    spec.properties.extend([property("dirty_limit", "64M"), property("txg_timeout", "600")]);
}

/// The script of a client that fills the log: durable writes of up to 256 KiB, and some trims.
pub(super) fn draw_log_filler(volumes: &[u64], acts: u64, rng: &mut Rng) -> Vec<Act> {
    let volume = rng.below(volumes.len() as u64) as u32;
    let sectors = volumes[volume as usize];
    let draw_one = |_| {
        let count = rng.between(8, 512).min(sectors);
        let first = rng.below(sectors - count + 1);
        let first = if rng.chance(700) { first / 8 * 8 } else { first };
        match rng.below(20) {
            0 => Act::Trim { volume, first, count, fua: true },
            1 => Act::Zero { volume, first, count, fua: true, no_hole: false },
            2 => Act::Flush { volume },
            _ => Act::Write { volume, first, count, fua: rng.chance(900), fill: Fill::Noise },
        }
    };
    (0..acts).map(draw_one).collect()
}

/// The next import commits in the middle of the replay: it has less memory.
pub(super) fn shrink_memory() -> Admin {
    Admin::Set { property: "dirty_limit".to_owned(), value: "4M".to_owned() }
}
