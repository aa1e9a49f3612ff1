//! Segments: filled in order with full stripes, read with checksums, cleaned, freed whole.
//!
//! What enters: blocks of volumes with their places, and journal frames.
//! What leaves: their addresses and checksums; verified blocks; victims to clean.
//! What always holds: a block is written once and never overwritten while anything points at it;
//! a segment becomes free only after a committed root no longer needs it; what is read matches
//! the checksum that its reader brings, or is repaired, or is an error.
//! Who calls me: the pool. This room knows no map: it is told what is live.

mod chain;
mod classes;
mod copies;
mod journal;
mod pages;
mod reader;
mod stream;
mod table;
mod victims;
mod writer;

pub use chain::{Frame, JournalBlocks, JournalReader};
pub use classes::{Classes, MAP_STREAM, STREAMS};
pub use journal::{JournalWriter, frame_bytes, frame_room};
pub use reader::{Reader, Together, Unread, Wanted};
pub use stream::InFlight;
pub use table::{Pin, SegmentInfo, SegmentKind, SegmentState, SegmentTable};
pub use victims::{Choice, Victim, Victims};
pub use writer::{DataWriter, WriteCounts};

#[cfg(test)]
mod tests;
