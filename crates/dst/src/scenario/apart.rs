//! Halves of a pool in a scenario that are imported apart from each other.

use serde::{Deserialize, Serialize};

use super::{Boot, Crash};

/// Each half of the pool's disks is imported without the other, and written. Then all disks are
/// there again, and one half is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// The halves.
    pub halves: [Half; 2],
    /// A power cut during the import that keeps one, after which the same is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Crash>,
}

/// Disks that are imported without others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Half {
    /// Their numbers.
    pub disks: Vec<usize>,
    /// What happens then.
    pub boot: Boot,
}
