//! A short name for a configuration: the same on any machine, different when anything differs.

use crate::LabError;
use serde::Serialize;
use std::io::Read;
use std::path::Path;

/// Sixteen hexadecimal digits over the value's JSON with sorted keys.
pub(crate) fn of(value: &impl Serialize) -> String {
    // Through `Value`, whose maps are sorted, so that the order of fields in code does not matter.
    let value = serde_json::to_value(value).expect("configurations are plain data");
    of_bytes(value.to_string().as_bytes())
}

/// Sixteen hexadecimal digits over bytes: FNV-1a with eight bytes a step, then mixed.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    // The length is mixed first: as it is, it could be undone by a changed byte.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ mix(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 29;
    }
    format!("{:016x}", mix(hash))
}

/// Sixteen hexadecimal digits over what `reader` gives, in constant memory.
pub(crate) fn of_reader(mut reader: impl Read, path: &Path) -> Result<String, LabError> {
    let mut part = vec![0; 1 << 20];
    let (mut hash, mut len_bytes) = (0xcbf2_9ce4_8422_2325_u64, 0_u64);
    loop {
        let got = reader.read(&mut part);
        let got = got.map_err(|cause| LabError::Input { path: path.to_owned(), cause })?;
        if got == 0 {
            return Ok(format!("{:016x}", mix(hash ^ mix(len_bytes))));
        }
        // Byte by byte, so that the size of the parts does not matter.
        for byte in &part[..got] {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        len_bytes += got as u64;
    }
}

/// Spreads every bit of `value` over all bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
