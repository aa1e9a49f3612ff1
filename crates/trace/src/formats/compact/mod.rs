//! The compact format: chunks of variable-length entries under a checksum, some eight bytes an
//! event. `docs/trace.md` has it byte by byte.
//!
//! A chunk can be read without those before it but for names. A file whose writer was killed is
//! good up to its last whole chunk, and says that it has no end.

mod read;
mod write;

pub(crate) use read::{Compact, header};
pub use write::CompactWriter;

use crc_fast::{CrcAlgorithm, Digest};

/// The first eight bytes of a file.
pub(crate) const MAGIC: &[u8; 8] = b"FBYTRACE";
/// The version that this program writes, and the highest that it reads.
pub(crate) const VERSION: u16 = 1;
/// Bytes of the file's header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bit of the header: the events have times.
const HAS_TIMES: u16 = 1;
/// The first four bytes of a chunk: `CHNK`.
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"CHNK");
/// Bytes of a chunk's header.
const CHUNK_HEADER_BYTES: usize = 24;
/// A chunk's payload is never longer.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Names are never longer.
const MAX_NAME_BYTES: usize = 4096;

/// Bits of an entry's first byte. The lowest three are the operation's code.
mod tag {
    /// The operation's bits.
    pub const OP: u8 = 0b111;
    /// Not an event but a name; the stage's bits say whose.
    pub const NAME: u8 = 7;
    /// Where the stage's two bits begin.
    pub const STAGE_SHIFT: u32 = 3;
    /// The device and thread are those of the event before.
    pub const SAME_SOURCE: u8 = 1 << 5;
    /// The request begins where the one before it at this stage ended.
    pub const SEQUENTIAL: u8 = 1 << 6;
    /// A second byte follows.
    pub const MORE: u8 = 1 << 7;
}

/// Bits of an entry's second byte. The lowest five are the request's attributes.
mod more {
    /// The attributes' bits.
    pub const FLAGS: u8 = 0b1_1111;
    /// A latency follows.
    pub const LATENCY: u8 = 1 << 5;
    /// Offset and length count bytes, not sectors.
    pub const BYTES: u8 = 1 << 6;
}

/// What a chunk's entries are relative to. It begins anew with each chunk.
#[derive(Default)]
struct Context {
    time: u64,
    device: u32,
    pid: u32,
    /// The end of the request before, in bytes, by stage.
    ends: [u64; 4],
}

fn checksum(parts: &[&[u8]]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    for part in parts {
        digest.update(part);
    }
    digest.finalize()
}

/// The difference to `from`, with small values for small distances to either side.
fn zigzag(from: u64, to: u64) -> u64 {
    let distance = to.wrapping_sub(from) as i64;
    ((distance << 1) ^ (distance >> 63)) as u64
}

/// The value at a distance from `from`.
fn unzigzag(from: u64, code: u64) -> u64 {
    let distance = (code >> 1) as i64 ^ -((code & 1) as i64);
    from.wrapping_add(distance as u64)
}

#[cfg(test)]
mod tests;
