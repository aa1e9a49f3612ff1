//! Variable-length integers (LEB128): seven bits a byte, least significant first.

use crate::{Decoder, Encoder, FormatError, FormatFlaw};

/// Appends `value`.
pub(crate) fn put(out: &mut Encoder, mut value: u64) {
    while value >= 0x80 {
        out.u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.u8(value as u8);
}

/// Takes a value off; one that needs more than 64 bits is an error.
pub(crate) fn take(from: &mut Decoder<'_>) -> Result<u64, FormatError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = from.u8()?;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            break;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(from.error(FormatFlaw::WideInteger))
}

/// Signed differences, small magnitudes first.
pub(crate) fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// The difference behind a [`zigzag`] value.
pub(crate) fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}
