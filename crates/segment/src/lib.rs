#![doc = include_str!("../README.md")]

mod bindings;
mod chain;
mod classes;
mod copies;
mod error;
mod journal;
mod pages;
mod reader;
mod stream;
mod table;
mod victims;
mod writer;

pub use bindings::Bindings;
pub use chain::{Frame, JournalBlocks, JournalReader};
pub use classes::{Classes, MAP_STREAM, STREAMS};
pub use error::{BlockFault, FooterFault, JournalFault, RowLocation, SegmentError};
pub use journal::{JournalWriter, frame_bytes, frame_room};
pub use reader::{Reader, Together, Unread, Wanted};
pub use stream::{BATCH_ROWS, InFlight};
pub use table::{Pin, SegmentInfo, SegmentKind, SegmentState, SegmentTable};
pub use victims::{Choice, Victim, Victims};
pub use writer::{DataWriter, WriteCounts};

#[cfg(test)]
mod tests;
