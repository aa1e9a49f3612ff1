//! Entries of the map: where a block lies, its checksum, and the leaf that holds it.

use forebay_format::map_record::LEAF_BLOCKS;
use forebay_units::{BlockAddr, Lba, VolumeId};

/// The address and the checksum of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address in the main store.
    pub addr: BlockAddr,
    /// Its 40-bit checksum.
    pub sum: u64,
}

/// The map's entry of a mapped block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its address in the main store.
    pub addr: BlockAddr,
    /// Its 40-bit checksum; `None` when only the footer of its segment has it.
    pub sum: Option<u64>,
}

/// The map's answer for a block of a version of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The volume whose version has it. Its checksum binds this volume, or the one that wrote it.
    pub home: VolumeId,
    /// The block of that volume that its checksum binds.
    pub bound: Lba,
    /// Its address in the main store, or a reference into a packed block.
    pub addr: BlockAddr,
    /// Its 40-bit checksum; `None` when only the footer of its segment has it.
    pub sum: Option<u64>,
}

/// A leaf of a volume; also the cursor of [`crate::Map::leaves_from`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafId {
    /// The volume.
    pub volume: VolumeId,
    /// Number of the leaf: its first block is 512 times this.
    pub leaf: u32,
}

impl LeafId {
    /// The leaf that holds a block. Panics past [`crate::MAX_VOLUME_BLOCKS`].
    #[must_use]
    pub fn of(volume: VolumeId, lba: Lba) -> Self {
        let leaf = u32::try_from(lba.0 / u64::from(LEAF_BLOCKS)).expect("LBA past any volume");
        Self { volume, leaf }
    }

    /// The next leaf; `None` after the last leaf of the last volume.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self.leaf.checked_add(1) {
            Some(leaf) => Some(Self { leaf, ..self }),
            None => Some(Self { volume: VolumeId(self.volume.0.checked_add(1)?), leaf: 0 }),
        }
    }
}
