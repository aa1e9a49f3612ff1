//! Scrub: reads and judges every live segment, and repairs what is wrong.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::sync::MutexGuard;
use forebay_segment::{SegmentKind, SegmentState};
use forebay_units::{BLOCK_BYTES, BlockAddr, SegmentId};

use crate::Pool;
use crate::scrub::{KEEP_EVERY, ROWS};
use crate::state::Writers;
use crate::status::{PoolEvent, ScanPhase};

impl Pool {
    pub(super) async fn run_scrub(self: &Rc<Self>) {
        let in_use = self.segments_in_use();
        self.begin_scrub();
        let (pauses, number) = (self.scan.pauses.get(), self.scan.number.get());
        let is_paused = || self.scan.pauses.get() != pauses;
        // A device that could not be read is not repaired: it fails the next root, or answers it.
        let rewritten = self.check_labels().await.damaged * self.label_bytes();
        self.progress_of(number, |status| status.repaired_bytes += rewritten);
        let next = self.scan.next.get();
        for segment in in_use.into_iter().filter(|s| s.0 >= next) {
            if is_paused() {
                return;
            }
            if self.is_stopped() || self.lifecycle.closing.get() {
                return;
            }
            if rt::now().since(self.scan.kept_at.get()) >= KEEP_EVERY {
                self.keep_scan();
            }
            let begun = rt::now();
            let bytes = self.scrub_segment(segment, number).await;
            if self.scan.number.get() != number {
                return;
            }
            self.progress(|status| status.done_bytes += bytes);
            if !self.lifecycle.closing.get() && !self.is_stopped() {
                // It was read to its end.
                self.scan.next.set(segment.0 + 1);
            }
            self.pace(bytes, begun).await;
        }
        if self.lifecycle.closing.get() && !self.is_stopped() {
            // The last segment may have been cut short. The export repairs the journal.
            return;
        }
        if !is_paused() && self.scan.journal_damaged.get() {
            let is_renewed = self.renew_journal_scrubbing().await;
            if self.lifecycle.closing.get() && !self.is_stopped() {
                // The export repairs the journal.
                return;
            }
            if !is_renewed && !is_paused() && !self.is_stopped() {
                self.progress(|status| status.errors += 1);
            }
        }
        if !is_paused() {
            self.clean_again().await;
        }
        if is_paused() {
            return;
        }
        if !self.is_stopped() {
            self.health.lost.borrow_mut().finish_scrub();
        }
        self.finish(if self.is_stopped() { ScanPhase::Stopped } else { ScanPhase::Completed });
    }

    /// Lets the cleaner try again: blocks that it could not read may be readable now.
    pub(super) async fn clean_again(&self) {
        let _still = self.writers.lock().await;
        self.store.table.stop_cleaning();
    }

    /// Judges a segment for the scan of this `number`; of what it repairs for another one, which
    /// was stopped meanwhile, nothing is told.
    async fn scrub_segment(self: &Rc<Self>, segment: SegmentId, number: u64) -> u64 {
        // While this lock is held, no write is on its way to a segment and no segment is freed or
        // reused.
        let mut still = self.writers.lock().await;
        let info = self.store.table.get(segment);
        if matches!(info.state, SegmentState::Free | SegmentState::Emptied(_)) {
            return 0;
        }
        let per_row = match self.store.array.geometry_of(segment) {
            Ok(geometry) => geometry.blocks_per_row(),
            Err(_) => return 0,
        };
        let rows = info.rows;
        let bytes = u64::from(rows) * u64::from(per_row) * BLOCK_BYTES;
        if info.kind == SegmentKind::Map {
            self.scrub_journal(&still, segment, rows).await;
            return bytes;
        }
        let owners = self.owners(&still, segment, &info).await;
        let judge = |addr: BlockAddr, block: &[u8]| self.judge(&owners, addr, block);
        let mut row = 0;
        loop {
            let count = ROWS.min(rows - row);
            if count == 0 {
                return bytes;
            }
            match self.store.array.scrub_rows(segment, row, count, &judge).await {
                Ok(found) => {
                    self.progress_of(number, |status| {
                        status.repaired_bytes += found.repaired_bytes;
                        status.errors += found.damaged.len() as u64;
                    });
                    self.note_damaged(&owners, found.damaged);
                }
                Err(error) => {
                    self.health.events.push(PoolEvent::ScrubFailed(error));
                    self.progress_of(number, |status| status.errors += 1);
                }
            }
            row += count;
            let Some(again) = self.let_groups_on(still, segment, info.birth).await else {
                return bytes;
            };
            still = again;
        }
    }

    /// Lets a waiting group be committed between two rows, because a segment may take seconds. What
    /// the segment held when the scan of it began stays the same unless it was emptied and freed;
    /// then, or when the pool ends, this returns `None`.
    pub(super) async fn let_groups_on<'a>(
        &'a self,
        still: MutexGuard<'a, Writers>,
        segment: SegmentId,
        birth: u64,
    ) -> Option<MutexGuard<'a, Writers>> {
        drop(still);
        let still = self.writers.lock().await;
        let now = self.store.table.get(segment);
        let gone = matches!(now.state, SegmentState::Free | SegmentState::Emptied(_));
        let ended = self.lifecycle.closing.get() || self.is_stopped();
        (!gone && now.birth == birth && !ended).then_some(still)
    }
}

#[cfg(test)]
mod tests;
