//! Jobs of the administrator on snapshots.

use serde::{Deserialize, Serialize};

/// One job on snapshots. A snapshot is named by its volume and a number, which is used once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum SnapshotJob {
    /// Takes snapshots of volumes at one instant.
    Take { volumes: Vec<u32>, number: u32 },
    /// Reads a snapshot as a whole.
    Read { volume: u32, number: u32 },
    /// Reads the snapshots of all volumes that were taken at one instant.
    ReadAll { number: u32 },
    /// Destroys a snapshot.
    Destroy { volume: u32, number: u32 },
    /// Adds a tag to a snapshot, which then cannot be destroyed; or takes the tag away.
    Hold { volume: u32, number: u32, tag: u32, release: bool },
    /// Gives a snapshot another of its names: the one of its creation (0), or a further one.
    Rename { volume: u32, number: u32, to: u32 },
    /// Takes a volume back to a snapshot and destroys the newer ones, `in_use` beside its clients.
    RollBack {
        volume: u32,
        number: u32,
        #[serde(default)]
        in_use: bool,
    },
    /// Makes volume `clone` out of a snapshot.
    Clone { volume: u32, number: u32, clone: u32 },
    /// Turns volume `clone` and the one that it was cloned from around.
    Promote { clone: u32 },
    /// Sends a snapshot and receives it as volume `copy`.
    Copy { volume: u32, number: u32, copy: u32, how: Copying },
}

/// How a snapshot is sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// Only what changed since the snapshot of this number, with which the copy ends.
    pub base: Option<u32>,
    /// Compressed and shared blocks are sent as they are stored.
    pub is_as_stored: bool,
    /// What was received of an interrupted stream is kept.
    pub is_resumable: bool,
    /// Parts after which the stream ends early.
    pub cut: Option<u64>,
}

impl SnapshotJob {
    /// The name under which the job is counted.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Take { .. } => "snapshot taken",
            Self::Read { .. } => "snapshot read",
            Self::ReadAll { .. } => "snapshots of an instant read",
            Self::Destroy { .. } => "snapshot destroyed",
            Self::Hold { release: false, .. } => "snapshot held",
            Self::Hold { release: true, .. } => "snapshot released",
            Self::Rename { .. } => "snapshot renamed",
            Self::RollBack { .. } => "volume rolled back",
            Self::Clone { .. } => "volume cloned",
            Self::Promote { .. } => "clone promoted",
            Self::Copy { .. } => "snapshot sent and received",
        }
    }
}
