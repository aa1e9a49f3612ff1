//! CRC-64/NVME, the one checksum of the format (NVM Express NVM Command Set 1.0, section
//! 5.2.1.3.4).

use crc_fast::{CrcAlgorithm, Digest};
use forebay_units::{Lba, VolumeId};

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
