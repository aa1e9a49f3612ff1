//! One ring: where its next frame goes, and how much room it has.

use std::rc::Rc;

use forebay_format::log_frame::next_position_bytes;
use forebay_units::FrameSeq;

use crate::config::Side;

pub(super) struct Ring {
    pub(super) index: u8,
    pub(super) len_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) sides: Rc<[Side]>,
    /// Where the last frame ended.
    pub(super) end_bytes: u64,
    /// Bytes of live frames, and of the skipped space before them.
    pub(super) used_bytes: u64,
    /// Bytes of all frames so far.
    pub(super) written_bytes: u64,
    /// The newest durable frame, and its position in bytes.
    pub(super) newest: Option<(FrameSeq, u64)>,
}

impl Ring {
    /// Where the next frame goes, and the bytes that it skips at the ring's end.
    pub(super) fn next_place(&self) -> (u64, u64) {
        let position = next_position_bytes(self.end_bytes, self.len_bytes, self.limit_bytes);
        let wraps = position == 0 && self.end_bytes != 0;
        (position, if wraps { self.len_bytes - self.end_bytes } else { 0 })
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let (_, waste) = self.next_place();
        self.len_bytes.saturating_sub(self.used_bytes + waste)
    }
}
