//! Closing frames of an idle log, appends that wait for a witness, and frames to be read back.

use std::rc::Rc;

use forebay_units::{BLOCK_BYTES, FrameSeq};

use super::{Core, Issue, Mode, Ring};
use crate::config::Side;
use crate::pack::Packed;

/// The newest durable frame of a ring, to be read back.
pub(crate) struct Newest {
    pub(crate) ring: u8,
    pub(crate) sides: Rc<[Side]>,
    pub(crate) seq: FrameSeq,
    pub(crate) position_bytes: u64,
    generation: u64,
    written_bytes: u64,
}

impl Core {
    /// The newest durable frame of each ring.
    pub(crate) fn newest_frames(&self) -> Vec<Newest> {
        let newest = |ring: &Ring| {
            let (seq, position_bytes) = ring.newest?;
            Some(Newest {
                ring: ring.index,
                sides: ring.sides.clone(),
                seq,
                position_bytes,
                generation: self.generation,
                written_bytes: ring.written_bytes,
            })
        };
        self.rings.iter().filter_map(newest).collect()
    }

    /// Whether `frame` cannot have been overwritten since it was the newest.
    pub(crate) fn is_kept(&self, frame: &Newest) -> bool {
        let ring = self.rings.iter().find(|ring| ring.index == frame.ring);
        let is_near = |ring: &Ring| ring.written_bytes - frame.written_bytes < ring.len_bytes / 2;
        self.generation == frame.generation && ring.is_some_and(is_near)
    }

    /// Whether no frame says yet how far the log and the main store have come, and none is about
    /// to.
    pub(crate) fn wants_closing_frame(&self) -> bool {
        self.unsaid
            && self.mode == Mode::Running
            && self.in_flight == 0
            && self.queue.is_empty()
            && self.rings.iter().any(|ring| ring.free_bytes() >= BLOCK_BYTES)
    }

    /// A frame without records. It says that all frames before it were durable.
    pub(crate) fn build_closing_frame(&mut self) -> Option<Issue> {
        if self.closed || !self.wants_closing_frame() {
            return None;
        }
        let at = self.rings.iter().position(|ring| ring.free_bytes() >= BLOCK_BYTES)?;
        self.unsaid = false;
        self.stats.closing_frames += 1;
        Some(self.issue(at, Packed::closing(self.released)))
    }

    pub(super) fn note_unsaid(&mut self) {
        self.unsaid = true;
        if self.closer_waits && self.wants_closing_frame() {
            self.closer_waits = false;
            self.wake_closer = true;
        }
    }

    /// Acknowledges the appends of all frames up to `seq`.
    pub(crate) fn acknowledge(&mut self, seq: FrameSeq) {
        while self.acknowledged < seq.min(self.watermark) {
            self.acknowledged = self.acknowledged.next();
            let waiters = self.unacked.pop_front().unwrap_or_default();
            self.unacked_count -= waiters.len();
            self.group_commit.records_ended(waiters.len() as u64);
            for (ticket, _) in waiters {
                ticket.resolve_one();
            }
        }
    }
}
