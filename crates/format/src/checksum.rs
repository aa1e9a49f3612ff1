//! CRC-64/NVME, the one checksum of the format (NVM Express NVM Command Set 1.0, section
//! 5.2.1.3.4).

use std::sync::LazyLock;

use crc_fast::{CrcAlgorithm, Digest};
use forebay_units::{BLOCK_BYTES, Lba, VolumeId};

/// CRC-64/NVME of `bytes`.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// CRC-64/NVME of several parts, as if they were one.
#[must_use]
pub fn crc64_of_parts(parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// What a block of zeros behind a text does to the text's CRC, but for the block's own CRC: one
/// entry for each value of each byte.
static BLOCK_BEHIND: LazyLock<[[u64; 256]; 8]> = LazyLock::new(|| {
    let behind = |crc| crc_fast::checksum_combine(CrcAlgorithm::Crc64Nvme, crc, 0, BLOCK_BYTES);
    let bits: [u64; 64] = std::array::from_fn(|bit| behind(1 << bit));
    std::array::from_fn(|byte| {
        std::array::from_fn(|value| {
            let set = (0..8).filter(|bit| value >> bit & 1 == 1);
            set.fold(0, |sum, bit| sum ^ bits[8 * byte + bit])
        })
    })
});

/// The CRC-64/NVME of a text with the CRC `crc` and a block of 4096 bytes with the CRC `block_crc`
/// behind it.
#[must_use]
pub fn crc64_with_block(crc: u64, block_crc: u64) -> u64 {
    let tables = &*BLOCK_BEHIND;
    let bytes = crc.to_le_bytes();
    let shifted = (0..8).fold(0, |sum, byte| sum ^ tables[byte][usize::from(bytes[byte])]);
    shifted ^ block_crc
}

/// The 40-bit checksum of one data block, bound to pool, volume and address: a misplaced block
/// fails it.
#[must_use]
pub fn block_sum(pool: u64, volume: VolumeId, lba: Lba, data: &[u8]) -> u64 {
    bound_sum(crc64(data), pool, volume, lba)
}

/// The [`block_sum`] of data with the CRC-64 `crc`.
#[must_use]
pub fn bound_sum(crc: u64, pool: u64, volume: VolumeId, lba: Lba) -> u64 {
    let mut place = [0u8; 20];
    place[..8].copy_from_slice(&pool.to_le_bytes());
    place[8..12].copy_from_slice(&volume.0.to_le_bytes());
    place[12..].copy_from_slice(&lba.0.to_le_bytes());
    // Folding mixes all 64 bits into the 40 that are kept.
    let sum = crc ^ crc64(&place).rotate_left(17);
    (sum ^ (sum >> 40)) & BLOCK_SUM_MASK
}

/// The bits that a [`block_sum`] has.
pub const BLOCK_SUM_MASK: u64 = (1 << 40) - 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn crc_of_a_text_and_blocks_follows_from_their_crcs(
            text in proptest::collection::vec(any::<u8>(), 0..300),
            blocks in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..4),
        ) {
            let mut whole = text.clone();
            let mut crc = crc64(&text);
            for (first, rest) in blocks {
                let mut block = [rest; BLOCK_BYTES as usize];
                block[0] = first;
                whole.extend_from_slice(&block);
                crc = crc64_with_block(crc, crc64(&block));
            }
            prop_assert_eq!(crc, crc64(&whole));
        }
    }
}
