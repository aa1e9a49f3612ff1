//! What compression and de-duplication save and cost.

use serde::{Deserialize, Serialize};

/// What compression saves and costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompressionStats {
    /// Bytes of volumes, snapshots and contents that are compressed.
    pub referenced_bytes: u64,
    /// Bytes of the packed blocks that hold them.
    pub stored_bytes: u64,
    /// Blocks since import that became smaller.
    pub packed_blocks: u64,
    /// Blocks since import that are stored as they are, because they did not become smaller.
    pub plain_blocks: u64,
    /// Packed blocks since import whose contents were packed anew.
    pub repacked_blocks: u64,
    /// Bytes of packed blocks that hold nothing that is in use, as far as it is known.
    pub gap_bytes: u64,
    /// Bytes of memory of the counts of references.
    pub memory_bytes: u64,
}

/// What de-duplication saves and costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupStats {
    /// Bytes of volumes and snapshots that refer to contents.
    pub referenced_bytes: u64,
    /// Bytes that these contents take, each stored once.
    pub stored_bytes: u64,
    /// Blocks since import whose contents were found.
    pub found_blocks: u64,
    /// Blocks since import with new contents.
    pub new_blocks: u64,
    /// Fingerprints in the index.
    pub index_entries: u64,
    /// One in so many fingerprints is in the index.
    pub index_one_in: u64,
    /// Bytes of memory of the index and of the counts of references.
    pub memory_bytes: u64,
}
