//! Seeds and the generator: all random choices derive from one root seed by label.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};
use serde::{Deserialize, Serialize};

/// A seed. Seeds derived with different labels give independent streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seed(pub u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Seed {
    /// The seed for `label`, independent of this seed and of every other label's.
    #[must_use]
    pub fn derive(self, label: &str) -> Seed {
        let mut state = mix(self.0 ^ 0x9e37_79b9_7f4a_7c15);
        for byte in label.bytes() {
            state = mix(state.wrapping_add(u64::from(byte) + 1));
        }
        Seed(state)
    }

    /// A generator with this seed.
    #[must_use]
    pub fn rng(self) -> Rng {
        Rng(Xoshiro256PlusPlus::seed_from_u64(self.0))
    }
}

impl std::fmt::Display for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// A uniform 64-bit number.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniform number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range");
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.u64(),
        }
    }

    /// True with probability `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A uniform choice of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}
