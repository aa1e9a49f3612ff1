//! The intent log: one sequential stream of frames for all volumes of a pool.
//!
//! What enters: records (volume, blocks, transaction group, data) in the order of their writes,
//! and word that a transaction group has reached the main store.
//! What leaves: acknowledgements, in that order; after a crash, the records again.
//! What always holds: a record is acknowledged by the log only when its frame and every earlier
//! frame are durable on every side, or when its group is committed; live frames are never
//! overwritten; replay yields a prefix of the records and says when it is a shorter one than was
//! acknowledged. The log knows nothing of how groups reach the main store.
//! Who calls me: the pool's write, sync and recovery corridors.
//!
//! A commit is one device command: no allocation, no pointer to a next frame, no timer. While
//! the frames that may be in flight are out, records gather; the next frame takes what gathered.
//!
//! The pool's part of the bargain, at every commit of group N: take [`IntentLog::state`]`(N)`,
//! make the superblock that holds it durable, then call [`IntentLog::release`]`(N)`. After a
//! failure of a log device the log pauses by itself: commit with [`IntentLog::next_state`],
//! release, then [`IntentLog::resume`].

mod config;
mod core;
mod error;
mod log;
mod pack;
mod reader;
mod replay;
mod stats;
mod stream;

pub use config::{LogConfig, LogRing, Side};
pub use error::LogError;
pub use forebay_format::log_frame::{LogState, RecordKind, RingState};
pub use log::{Append, Event, IntentLog, Record};
pub use replay::{Loss, Place, Replay, ReplayEnd, SideDamage, Verdict};
pub use stats::LogStats;

#[cfg(test)]
mod tests;
