//! Fingerprints of blocks: BLAKE3 with a key of the pool, shortened to 128 bits.
//!
//! Two of 2^38 different blocks have the same one with a probability of 2^-53. The key keeps those
//! who do not know it from making such blocks on purpose.

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
        let hash = blake3::keyed_hash(&self.0, block);
        let mut bytes = [0; Fingerprint::BYTES];
        bytes.copy_from_slice(&hash.as_bytes()[..Fingerprint::BYTES]);
        Fingerprint(bytes)
    }
}

impl Fingerprint {
    /// Bytes of a fingerprint.
    pub const BYTES: usize = 16;

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
        assert_ne!(found, key.fingerprint(&[1; 4096]));
        assert_ne!(found, FingerprintKey::of_pool(1).fingerprint(&[0; 4096]));
    }
}
