//! Readers, one file for each family of formats.
//!
//! What enters: the bytes of a source. What leaves: events in the source's order, or why there are
//! no more. What always holds: no reader panics on any bytes, none keeps more than a record, and
//! what was read before damage stays good. Who calls: [`crate::Source`].

pub(crate) mod biosnoop;
pub(crate) mod blkparse;
pub(crate) mod blkreplay;
pub(crate) mod blktrace;
pub(crate) mod compact;
pub(crate) mod csv;
pub(crate) mod disksim;
pub(crate) mod fio;
pub(crate) mod log_writes;
pub(crate) mod rwbs;
pub(crate) mod vscsi;

use crate::error::{Rest, SkippedLines};
use crate::event::Event;
use crate::names::Names;

/// A source as events.
pub(crate) trait Decode {
    /// The next event; `None` at the source's end.
    fn next(&mut self, names: &mut Names) -> Result<Option<Event>, Rest>;

    /// Lines that were not understood so far.
    fn skipped(&self) -> SkippedLines {
        SkippedLines::default()
    }
}
