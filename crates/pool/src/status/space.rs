//! Space of groups and log devices, as a pool shows it.

use serde::{Deserialize, Serialize};

/// Space of a group or of a log device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevSpace {
    /// Bytes between the labels of its devices, parity included; a mirror counts as one side.
    pub raw_size_bytes: u64,
    /// Live bytes with their parity, as of the last committed group. On a log device: bytes that
    /// are not yet in the main store, or 0 when the log does not use it.
    pub raw_alloc_bytes: Option<u64>,
}
