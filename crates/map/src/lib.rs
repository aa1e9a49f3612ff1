#![doc = include_str!("../README.md")]

mod array;
mod change;
mod dedup;
mod directory;
mod entry;
mod error;
mod leaf;
mod leaf_index;
mod line;
mod map;
mod memory;
mod pages;
mod pair;
mod promotion;
mod replay;
mod runs;
mod sparse;
mod sums;
mod versions;
mod volume;

pub use entry::{Entry, LeafId, Located, Mapped};
pub use error::MapError;
pub use forebay_format::map_record::{
    Change, DEDUP_VOLUME, Delta, LEAF_BLOCKS, LeafImage, LeafRun, MAX_VOLUME_BLOCKS, RESERVED_ADDR,
    dedup_block, dedup_ref,
};
pub use forebay_format::packed::{PACKED_VOLUME, PackedRef};
pub use map::Map;
pub use promotion::Promotion;
pub use versions::Kept;
pub use volume::{ExtentKind, MapExtent, Sums};

#[cfg(test)]
mod tests;
