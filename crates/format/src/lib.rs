//! Every byte that Forebay keeps on media, as structs; `docs/format.md` is its other half.
//!
//! What enters: bytes from a device, or structs to be kept.
//! What leaves: structs that passed their checksum and every range check, or bytes.
//! What always holds: no I/O, no panic on any input; integers are little-endian; each structure
//! starts with a magic and a version and ends its check over all of its bytes.
//! Who calls me: the rooms that own the structures: intent log, segment, map, pool.

pub mod checksum;
pub mod config;
mod cursor;
pub mod footer;
pub mod journal;
pub mod label;
pub mod log_frame;
pub mod map_record;
mod ranges;
pub mod superblock;
mod varint;

pub use cursor::{Decoder, Encoder, FormatError};

#[cfg(test)]
mod tests;
