//! A device that an import has found.

use crate::labels::Label;
use crate::opener::Guarded;

/// A device found with a label of the pool.
pub(crate) struct Found {
    pub path: String,
    pub guarded: Guarded,
    pub label: Label,
}
