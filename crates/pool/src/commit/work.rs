//! What pieces of a commit's work take, for the simulation.
//!
//! A test fails when a poll adds up to more than its budget. Each is about what it takes on a
//! processor of 2020 with a cold cache.

use forebay_units::Nanos;

/// A block that is put into a row: its checksum and a copy.
pub(crate) const BLOCK: Nanos = Nanos(1500);
/// A run of the map that is looked at, or whose blocks are given back.
pub(crate) const PIECE: Nanos = Nanos(100);
/// A leaf of the map that is found and put back.
pub(crate) const LEAF: Nanos = Nanos(500);

/// A run of `blocks` blocks that is put into the map.
pub(crate) fn run(blocks: usize) -> Nanos {
    Nanos(400 + 10 * blocks as u64)
}

/// Blocks that are looked for in the cache.
pub(crate) fn uncache(blocks: u32) -> Nanos {
    Nanos(30 * u64::from(blocks))
}
