//! Volumes and snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `volume list`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// `POOL/VOL`.
    pub name: String,
    /// Its number within the pool, which no other volume gets.
    #[serde(default)]
    pub id: u32,
    /// Size that clients see.
    pub size_bytes: u64,
    /// Bytes that its data takes, and what only its snapshots hold.
    pub used_bytes: u64,
    /// Bytes that it holds data in, whichever version they belong to.
    #[serde(default)]
    pub referenced_bytes: u64,
    /// Bytes written since its newest snapshot.
    #[serde(default)]
    pub written_bytes: u64,
    /// Bytes that only its snapshots hold.
    #[serde(default)]
    pub used_by_snapshots_bytes: u64,
    /// The snapshot that it is a clone of, `POOL/VOL@SNAP`.
    #[serde(default)]
    pub origin: Option<String>,
    /// Bytes set aside for it; 0 for a sparse volume.
    pub reserved_bytes: u64,
    /// Bytes that it could still grow into.
    pub available_bytes: u64,
    /// Bytes of its data for each 100 that they take, by a sample; 100 without compression.
    #[serde(default)]
    pub compress_percent: u64,
    /// `standard`, `always` or `disabled`.
    pub sync: String,
    /// It is not whole: it is being received, or was. No client can open it.
    #[serde(default)]
    pub is_receiving: bool,
    /// Where an interrupted stream goes on.
    #[serde(default)]
    pub resume_token: Option<String>,
    /// All properties by name.
    pub properties: BTreeMap<String, String>,
}

/// `volume list -t snapshot`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// `POOL/VOL@SNAP`.
    pub name: String,
    /// Its number within the pool.
    pub id: u32,
    /// Seconds since 1970 when it was taken.
    pub created_at: u64,
    /// Size of the volume when it was taken.
    pub size_bytes: u64,
    /// Bytes that only this snapshot holds: they become free if it alone is destroyed.
    pub used_bytes: u64,
    /// Bytes that it holds data in.
    pub referenced_bytes: u64,
    /// Volumes that are clones of it.
    pub clones: Vec<String>,
    /// Tags that keep it from being destroyed.
    pub holds: Vec<String>,
}
