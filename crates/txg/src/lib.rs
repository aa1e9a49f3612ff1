//! Transaction groups: what is dirty, which group it belongs to, and how writers are paced.
//!
//! What enters: writes and zeroes of volumes, as owned buffers.
//! What leaves: the contents of one group, volume by volume in order of address, for the sync;
//! and for reads, the newest dirty data of a range.
//! What always holds: at most one group is open and one is syncing; a group holds exactly the
//! writes that were absorbed while it was open, so a committed group is a prefix of every
//! volume's history; dirty bytes stay below their limit.
//! Who calls me: the pool. This room does no I/O and never sees the log.

mod extents;
mod groups;
mod throttle;

pub use extents::{Content, ExtentMap, OverlayExtent};
pub use groups::{DirtySet, Groups};
pub use throttle::Throttle;

#[cfg(test)]
mod tests;
