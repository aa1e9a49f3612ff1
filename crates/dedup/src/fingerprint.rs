//! Fingerprints of blocks: BLAKE3 with a key of the pool, shortened to 128 bits.
//!
//! Two of 2^38 different blocks have the same one with a probability of 2^-53. The key keeps those
//! who do not know it from making such blocks on purpose.

use forebay_units::BLOCK_LEN;

use crate::lanes::Lanes;

/// The key of a pool's fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FingerprintKey([u8; 32]);

/// The fingerprint of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; Fingerprint::BYTES]);

impl FingerprintKey {
    /// The key of pool `guid`.
    #[must_use]
    pub fn of_pool(guid: u64) -> Self {
        const CONTEXT: &str = "forebay 2026-11-25 fingerprints of de-duplicated blocks";
        Self(blake3::derive_key(CONTEXT, &guid.to_le_bytes()))
    }

    /// The fingerprint of a block.
    #[must_use]
    pub fn fingerprint(&self, block: &[u8]) -> Fingerprint {
        Fingerprint::of_hash(blake3::keyed_hash(&self.0, block).as_bytes())
    }

    /// The fingerprints of blocks of [`BLOCK_LEN`] bytes, in order, in half the time.
    #[must_use]
    pub fn fingerprints(&self, blocks: &[&[u8; BLOCK_LEN]]) -> Vec<Fingerprint> {
        let mut all = Vec::with_capacity(blocks.len());
        Lanes::new(&self.0).hashes(blocks, |hash| all.push(Fingerprint::of_hash(hash)));
        all
    }
}

impl Fingerprint {
    /// Bytes of a fingerprint.
    pub const BYTES: usize = 16;

    fn of_hash(hash: &[u8; blake3::OUT_LEN]) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&hash[..Self::BYTES]);
        Self(bytes)
    }

    /// Bits that choose a place in an index.
    pub(crate) fn place(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"))
    }

    /// Bits that choose whether a full index keeps it; independent of the place.
    pub(crate) fn sample(&self) -> u64 {
        u64::from_le_bytes(self.0[8..].try_into().expect("eight bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_blake3_with_a_derived_key() {
        // Computed with Python's blake3 package, by the rule in docs/format.md.
        const ZEROS: u128 = 0x9b0d_79d3_ea63_befd_3f28_6306_eddc_620c;
        let key = FingerprintKey::of_pool(0x0123_4567_89ab_cdef);
        let found = key.fingerprint(&[0; 4096]);
        assert_eq!(found, Fingerprint(ZEROS.to_be_bytes()));
        assert_eq!(key.fingerprints(&[&[0; 4096]; 9]), [found; 9]);
        assert_ne!(found, key.fingerprint(&[1; 4096]));
        assert_ne!(found, FingerprintKey::of_pool(1).fingerprint(&[0; 4096]));
    }
}
