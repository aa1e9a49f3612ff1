//! What a user asks for when something is made.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a group of data devices keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redundancy {
    /// No redundancy.
    Raid0,
    /// Every device holds everything.
    Mirror,
    /// One parity column.
    Raidz1,
    /// Two.
    Raidz2,
    /// Three.
    Raidz3,
}

/// A group of data devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSpec {
    /// How.
    pub redundancy: Redundancy,
    /// Paths of the devices.
    pub devices: Vec<String>,
}

/// A log device: one path, or the sides of a mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpec {
    /// Paths of the sides.
    pub devices: Vec<String>,
}

/// `pool create` and `pool add`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSpec {
    /// Data groups.
    pub groups: Vec<GroupSpec>,
    /// Log devices.
    pub logs: Vec<LogSpec>,
    /// Properties by name, as `-o` gave them.
    pub properties: BTreeMap<String, String>,
    /// Take devices that carry a label already, and groups that are not alike.
    pub force: bool,
}

/// `volume create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Name without the pool's.
    pub name: String,
    /// Size in bytes; a multiple of 4096.
    pub size_bytes: u64,
    /// Set no space aside.
    pub sparse: bool,
    /// Properties by name, as `-o` gave them.
    pub properties: BTreeMap<String, String>,
}

/// What a list of known pools was told of one last ([`Opener::witness`]). By the generation alone it cannot
/// be said whether a device has heard of it: after a power cut the next owner uses the number again.
///
/// [`Opener::witness`]: crate::Opener::witness
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Told {
    /// Of the configuration; 0: nothing was told.
    pub generation: u64,
    /// Who wrote it.
    pub owner: u64,
}

impl Told {
    /// What counts after `later` was told.
    #[must_use]
    pub fn and_then(self, later: Self) -> Self {
        if later.generation >= self.generation { later } else { self }
    }
}

/// `pool import`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportOptions {
    /// Import although the pool looks in use elsewhere, or newer data may be on devices that are
    /// missing (`-f`).
    pub force: bool,
    /// The pool is on the caller's own list, which was told of this last (the default: of nothing). That
    /// another machine had the pool is no obstacle then, as long as that one is silent; and when what is
    /// here is as new as what the list was told of, nothing newer can be on devices that are missing.
    /// Forgives nothing else. When the list was told of newer changes, the import is refused without
    /// `force`: whoever forces it starts the list's count anew.
    #[serde(default)]
    pub known: Option<Told>,
    /// Go on without a missing log device, or past lost log frames (`-m`): names what is lost.
    pub accept_log_loss: bool,
    /// Go back this many committed groups (`-F`), after damage to the newest.
    pub rewind_groups: u64,
    /// When devices went on apart from each other: the path of one whose history counts (`--keep`).
    /// The others are left out, and must be made anew.
    #[serde(default)]
    pub keep: Option<String>,
}
