//! A device that an import has found.

use crate::labels::Label;
use crate::opener::Guarded;

/// A device found with a label of the pool.
pub(crate) struct Found {
    pub path: String,
    pub guarded: Guarded,
    pub label: Label,
}

impl Found {
    /// The device's number in its pool.
    pub fn id(&self) -> u32 {
        self.label.configs[0].0.device
    }
}
