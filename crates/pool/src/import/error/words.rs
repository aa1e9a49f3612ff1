//! Words for what an import lacks, and for what knows of newer roots.

use std::fmt;

use super::{Lacking, Witness, list};

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, "missing", &self.missing)?;
        list(f, "without a readable superblock", &self.rootless)
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "{device} knows"),
            Self::LeftBehind => {
                write!(f, "the devices that are here were left behind by others, and know")
            }
            Self::KnownPools => write!(f, "this machine knows"),
            Self::Log { committed, root } => {
                write!(f, "the log (group {committed} was committed, the root has {root}) knows")
            }
        }
    }
}
