//! Seeded random numbers: the only source of chance in this crate.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A small seeded generator. Callers that need one for [`crate::Model::power_cut`] make it here.
#[derive(Clone, Debug)]
pub struct Chance(Xoshiro256PlusPlus);

impl Chance {
    /// A generator whose numbers follow from `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// A generator for one purpose, so that a new consumer does not shift the others' numbers.
    #[must_use]
    pub fn derive(seed: u64, label: &str) -> Self {
        // FNV-1a: stable across versions and machines, which the standard hasher is not.
        let hash = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::new(seed ^ hash)
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0. Its bias is below 2^-32 times `bound`.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.0.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// A number from 0 to below 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A draw from the standard normal distribution.
    pub fn normal(&mut self) -> f64 {
        // Twelve uniforms: exact enough for wear limits, and the same on every machine, which a
        // platform's logarithm and cosine are not.
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}
