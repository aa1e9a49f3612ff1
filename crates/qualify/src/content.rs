//! Data that writes carry, and the pseudo-random numbers of a load.

use std::cell::RefCell;

use forebay_device::{IoBuf, IoBytes};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::plan::TURNS;

/// Bytes that writes take their data from.
const POOL_BYTES: usize = 16 << 20;
/// Writes take their data from places this far apart, so that memory stays aligned.
const STEP_BYTES: usize = 4096;

/// What written data looks like to a controller that compresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Pseudo-random bytes: nothing to compress.
    #[default]
    PseudoRandom,
    /// One byte repeated.
    Repeating,
    /// Pseudo-random and repeated in turn: half of each 4 KiB can be compressed.
    Half,
}

/// Turns of contents: behind those that are compared, one that is compressible by half.
pub(crate) const CONTENT_TURNS: u32 = TURNS + 2;

impl Content {
    /// What is written in a turn.
    pub(crate) fn of_turn(turn: u32) -> Self {
        match turn % 2 {
            0 => Self::PseudoRandom,
            _ if turn < TURNS => Self::Repeating,
            _ => Self::Half,
        }
    }

    /// As pages print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PseudoRandom => "pseudo-random",
            Self::Repeating => "repeating byte",
            Self::Half => "half compressible",
        }
    }
}

/// A sequence of numbers, from any seed.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(SplitMix64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Data for writes.
#[derive(Clone)]
pub(crate) struct Data(IoBytes);

thread_local! {
    /// The data of the last loads: making it takes longer than a short step.
    static KEPT: RefCell<Vec<(Content, u64, Data)>> = const { RefCell::new(Vec::new()) };
}

impl Data {
    /// 16 MiB of `content`.
    pub(crate) fn new(content: Content, seed: u64) -> Self {
        const MOST_KEPT: usize = 3;
        KEPT.with_borrow_mut(|kept| {
            if let Some((.., data)) = kept.iter().find(|(c, s, _)| (*c, *s) == (content, seed)) {
                return data.clone();
            }
            let data = Self::make(content, seed);
            kept.truncate(MOST_KEPT - 1);
            kept.insert(0, (content, seed, data.clone()));
            data
        })
    }

    fn make(content: Content, seed: u64) -> Self {
        let mut pool = IoBuf::recycled(POOL_BYTES);
        let mut numbers = Numbers::new(seed);
        let random_bytes = match content {
            Content::PseudoRandom => STEP_BYTES,
            Content::Repeating => 0,
            Content::Half => STEP_BYTES / 2,
        };
        for block in pool.chunks_mut(STEP_BYTES) {
            let (random, constant) = block.split_at_mut(random_bytes);
            for word in random.chunks_mut(8) {
                word.copy_from_slice(&numbers.next().to_le_bytes());
            }
            constant.fill(0x5a);
        }
        Self(pool.freeze())
    }

    /// `len` bytes for the request of this number.
    pub(crate) fn get(&self, number: u64, len: usize) -> IoBytes {
        let places = (POOL_BYTES - len) / STEP_BYTES + 1;
        self.0.slice(number as usize % places * STEP_BYTES, len)
    }
}
