//! Errors of the map.

use std::fmt;

use forebay_format::map_record::MAX_VOLUME_BLOCKS;
use forebay_units::{Lba, VolumeId};

/// Why the map refuses a change; it has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The volume does not exist.
    NoVolume(VolumeId),
    /// The volume exists already.
    VolumeExists(VolumeId),
    /// The range ends past the largest volume.
    PastEnd {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        lba: Lba,
        /// Blocks.
        blocks: u64,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoVolume(volume) => {
                write!(f, "map: volume {volume} does not exist")
            }
            Self::VolumeExists(volume) => {
                write!(f, "map: volume {volume} exists already")
            }
            Self::PastEnd { volume, lba, blocks } => write!(
                f,
                "map: {blocks} blocks at {lba} of volume {volume} end past block \
                 {MAX_VOLUME_BLOCKS}, the end of the largest volume"
            ),
        }
    }
}

impl std::error::Error for MapError {}
