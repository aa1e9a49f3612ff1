//! Commits: a transaction group from memory into segments, the map journal, and a new root.
//!
//! What enters: groups of dirty blocks. What leaves: roots, under which they count.
//! What always holds: one root at a time, under the lock of [`crate::Writers`]; a root names only
//! what was flushed before it. Who calls: the sync task, commands that wait for a commit, import.

mod checkpoint;
mod cleaner;
pub(crate) mod error;
mod group;
mod root;
mod trim;

pub(crate) use trim::Trims;
