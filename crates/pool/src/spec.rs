//! Specifications: what a user asks for when something is created or imported.

use std::collections::BTreeMap;

use forebay_units::Layout;
use serde::{Deserialize, Serialize};

/// A group of data devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// How it distributes its data.
    pub layout: Layout,
    /// Paths of the devices.
    pub devices: Vec<String>,
}

/// A log device: one path, or the sides of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpec {
    /// Paths of the sides.
    pub devices: Vec<String>,
}

/// What `pool create` and `pool add` take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// Data groups.
    pub groups: Vec<GroupSpec>,
    /// Log devices.
    pub logs: Vec<LogSpec>,
    /// Paths of cache devices.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Paths of hot spares.
    #[serde(default)]
    pub spares: Vec<String>,
    /// Properties by name, as `-o` gave them.
    pub properties: BTreeMap<String, String>,
    /// Accept devices that carry a label, and groups that are not alike (`-f`).
    pub force: bool,
}

/// What `volume create` takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Name without the pool's.
    pub name: String,
    /// Size in bytes; a multiple of 4096.
    pub size_bytes: u64,
    /// Reserve no space.
    pub sparse: bool,
    /// Properties by name, as `-o` gave them.
    pub properties: BTreeMap<String, String>,
}

/// What `volume clone` takes beside the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneSpec {
    /// Name without the pool's.
    pub name: String,
    /// Properties by name, as `-o` gave them.
    pub properties: BTreeMap<String, String>,
}

/// The last state of a pool that a list of known pools was told of ([`Opener::witness`]). The
/// generation alone does not tell whether a device has heard of it: after a power cut the next
/// owner uses the same number.
///
/// [`Opener::witness`]: crate::Opener::witness
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Told {
    /// Generation of the configuration; 0 when the list was told nothing.
    pub generation: u64,
    /// Nonce of the owner that wrote it.
    pub owner: u64,
}

impl Told {
    /// The state that counts after the list was told of `later`.
    #[must_use]
    pub fn and_then(self, later: Self) -> Self {
        if later.generation >= self.generation { later } else { self }
    }
}

/// What `pool import` takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportOptions {
    /// Import although the pool seems to be in use elsewhere, or newer data may be on missing
    /// devices, or data that the others are to be rebuilt from (`-f`).
    pub force: bool,
    /// The pool is on the caller's list, which was last told of this (default: of nothing). Then
    /// another machine's ownership is no obstacle if that machine is silent. If the devices are as
    /// new as the list, missing devices cannot have newer data. If the list knows of newer changes,
    /// the import is refused without `force`, and `force` starts the list's count anew.
    #[serde(default)]
    pub known: Option<Told>,
    /// Continue without a missing log device, or past lost log frames, and name what is lost
    /// (`-m`).
    pub accept_log_loss: bool,
    /// Go back this many committed groups (`-F`), after damage to the newest.
    pub rewind_groups: u64,
    /// After a divergence: the path of a device whose history counts (`--keep`). The others are
    /// left out and must be made anew.
    #[serde(default)]
    pub keep: Option<String>,
    /// The pool is opened for one command and closed after it: no snapshot is taken or destroyed by
    /// a schedule, no scrub begins because it is due, and no spare is put in.
    #[serde(default)]
    pub for_command: bool,
}
