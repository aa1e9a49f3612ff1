#![doc = include_str!("../README.md")]

mod config;
mod core;
mod damage;
mod error;
mod event;
mod group_commit;
mod log;
mod pack;
mod reader;
mod record;
mod replay;
mod stats;
mod stream;
mod ticket;

pub use config::{GroupCommit, LogConfig, LogRing, Side};
pub use damage::{FrameFault, SideDamage, SideLocation};
pub use error::{ConfigError, LogError, NotQuiet, RecordError, SplitError};
pub use event::LogEvent;
pub use forebay_format::log_frame::{LogState, RecordKind, RingState};
pub use log::{Append, IntentLog};
pub use reader::newest_epoch;
pub use record::Record;
pub use replay::{Loss, Replay, ReplayEnd, ReplayVerdict};
pub use stats::{LogStats, RecentFrames};

#[cfg(test)]
mod tests;
