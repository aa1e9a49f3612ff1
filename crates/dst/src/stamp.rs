//! Stamps: the contents that clients write.
//!
//! What always holds: every 512-byte sector names its volume, address and write, with a checksum. A
//! shared one names its write and its place within a block.

use forebay_sim::SECTOR_LEN;

use crate::client::BLOCK_SECTORS;

const MAGIC: u64 = u64::from_le_bytes(*b"forebay!");
const HEAD_LEN: usize = 40;

/// The filling of a sector behind its stamp.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Fill {
    /// Zeros, which compress.
    Zeros,
    /// Pseudo-random bytes, which do not compress.
    Noise,
    /// The same in every block of a write, and in those of the write with the same number in every
    /// other volume. Every second one compresses.
    Shared,
}

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Only zeros.
    Zeros,
    /// The stamp of this write of the volume, at its own address.
    Write(u32),
    /// An intact stamp of another place.
    Elsewhere {
        /// The volume in the stamp.
        volume: u32,
        /// The sector in the stamp.
        sector: u64,
        /// The write in the stamp.
        number: u32,
    },
    /// Anything else.
    Garbage,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The volume in a stamp of [`Fill::Shared`].
const SHARED_VOLUME: u32 = u32::MAX;

/// What a stamp names: volume and sector, which in a shared block are those of no volume.
fn named(volume: u32, sector: u64, fill: Fill) -> (u32, u64) {
    if fill == Fill::Shared { (SHARED_VOLUME, sector % BLOCK_SECTORS) } else { (volume, sector) }
}

fn has_noise(fill: Fill, number: u32) -> bool {
    match fill {
        Fill::Zeros => false,
        Fill::Noise => true,
        Fill::Shared => number % 2 == 1,
    }
}

fn sum_of(volume: u32, fill: Fill, sector: u64, number: u32) -> u64 {
    let head = u64::from(volume) << 32 | u64::from(number);
    mix(mix(head ^ MAGIC) ^ mix(sector.wrapping_add(fill as u64 + 1)))
}

/// Words behind the stamp of a sector.
const BODY_WORDS: usize = (SECTOR_LEN - HEAD_LEN) / 8;

/// Increments of the checksum, one for each word of noise.
const STEPS: [u64; BODY_WORDS] = {
    let mut steps = [0; BODY_WORDS];
    let mut index = 0;
    while index < steps.len() {
        steps[index] = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        index += 1;
    }
    steps
};

/// A word of noise. It depends on no other word and needs no multiplication, so the compiler can
/// compute several at once; stamping is most of what clients cost.
fn noise(sum: u64, step: u64) -> u64 {
    let word = sum.wrapping_add(step);
    word ^ (word >> 29)
}

/// What a sector of noise holds behind its stamp. A plain loop over arrays: with assertions on, the
/// iterators of slices cost more than the words.
fn noise_body(sum: u64) -> [[u8; 8]; BODY_WORDS] {
    let mut body = [[0; 8]; BODY_WORDS];
    let mut index = 0;
    while index < BODY_WORDS {
        body[index] = noise(sum, STEPS[index]).to_le_bytes();
        index += 1;
    }
    body
}

/// Writes the stamp of one sector to `out`, which is [`SECTOR_LEN`] long.
pub fn stamp(out: &mut [u8], volume: u32, sector: u64, number: u32, fill: Fill) {
    let (volume, sector) = named(volume, sector, fill);
    let sum = sum_of(volume, fill, sector, number);
    let head = [MAGIC, (fill as u64) << 32 | u64::from(volume), sector, u64::from(number), sum]
        .map(u64::to_le_bytes);
    out[..HEAD_LEN].copy_from_slice(head.as_flattened());
    match has_noise(fill, number) {
        false => out[HEAD_LEN..].fill(0),
        true => out[HEAD_LEN..].copy_from_slice(noise_body(sum).as_flattened()),
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes == &[0; SECTOR_LEN][..bytes.len()]
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Checks every byte of one sector that was read from `volume` at `sector`.
#[must_use]
pub fn examine(bytes: &[u8], volume: u32, sector: u64) -> Seen {
    if word(bytes, 0) != MAGIC {
        return if is_zero(bytes) { Seen::Zeros } else { Seen::Garbage };
    }
    let (said_volume, kind) = (word(bytes, 8) as u32, word(bytes, 8) >> 32);
    let (said_sector, number) = (word(bytes, 16), word(bytes, 24));
    let fill = match kind {
        0 => Fill::Zeros,
        1 => Fill::Noise,
        2 => Fill::Shared,
        _ => return Seen::Garbage,
    };
    let Ok(number) = u32::try_from(number) else { return Seen::Garbage };
    let sum = sum_of(said_volume, fill, said_sector, number);
    let body = &bytes[HEAD_LEN..SECTOR_LEN];
    let whole = word(bytes, 32) == sum
        && match has_noise(fill, number) {
            false => is_zero(body),
            true => body == noise_body(sum).as_flattened(),
        };
    if !whole {
        return Seen::Garbage;
    }
    if (said_volume, said_sector) != named(volume, sector, fill) {
        return Seen::Elsewhere { volume: said_volume, sector: said_sector, number };
    }
    Seen::Write(number)
}
