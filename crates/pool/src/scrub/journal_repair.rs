//! Repair of the map journal under a scrub: in place, or by writing the whole map anew from memory.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_segment::JournalReader;
use forebay_units::{BLOCK_BYTES, BlockAddr, SegmentId};

use crate::Pool;
use crate::admin::error::CloseError;
use crate::scrub::ROWS;
use crate::scrub::backrefs::Owner;
use crate::state::Writers;
use crate::status::PoolEvent;

impl Pool {
    fn remark_damage(&self, segment: SegmentId) {
        self.health.events.push(PoolEvent::JournalDamaged { segment });
    }

    /// Judges the journal by its frames where its columns disagree, and by the copy of a frame
    /// where there is no redundancy. If a frame cannot be had, the whole map is written anew from
    /// memory, and the damaged segments are given up.
    pub(crate) async fn scrub_journal(&self, writers: &Writers, segment: SegmentId, rows: u32) {
        let geometry = self.store.array.geometry_of(segment);
        if geometry.is_ok_and(|geometry| !geometry.has_redundancy()) {
            if self.journal_owners(writers, segment).await.is_none() {
                self.remark_damage(segment);
                self.give_up_journal(segment);
            }
            return;
        }
        let mut row = 0;
        while row < rows {
            let count = ROWS.min(rows - row);
            let sound = self.store.array.check_parity(segment, row, count).await;
            if !sound.is_ok_and(|mismatches| mismatches.is_empty()) {
                self.remark_damage(segment);
                if !self.repair_journal(writers, segment, rows).await {
                    self.give_up_journal(segment);
                }
                return;
            }
            row += count;
        }
    }

    /// Asks for the map to be written anew, because a frame of this segment cannot be had.
    fn give_up_journal(&self, segment: SegmentId) {
        self.scan.checkpoint_wanted.set(true);
        self.scan.journal_damaged.set(true);
        self.sync.root_wanted.set(true);
        self.sync.wake.notify_all();
        let bytes = u64::from(self.store.table.data_blocks(segment)) * BLOCK_BYTES;
        self.progress(|status| status.repaired_bytes += bytes);
    }

    /// Repairs every column of a journal segment. Returns whether everything that counts is right
    /// now.
    async fn repair_journal(&self, writers: &Writers, segment: SegmentId, rows: u32) -> bool {
        let Some(owners) = self.journal_owners(writers, segment).await else { return false };
        let judge = |addr: BlockAddr, block: &[u8]| self.judge(&owners, addr, block);
        let mut row = 0;
        while row < rows {
            let count = ROWS.min(rows - row);
            let Ok(found) = self.store.array.scrub_rows(segment, row, count, &judge).await else {
                return false;
            };
            self.progress(|status| status.repaired_bytes += found.repaired_bytes);
            if !found.damaged.is_empty() {
                return false;
            }
            row += count;
        }
        true
    }

    /// The blocks of a journal segment, if all of its frames can be had.
    pub(crate) async fn journal_owners(
        &self,
        writers: &Writers,
        segment: SegmentId,
    ) -> Option<BTreeMap<u32, Owner>> {
        let extent = writers.journal_start.and_then(|s| writers.journal.extent(segment, s));
        // A segment that the journal has left is not needed.
        let Some((start, end)) = extent else { return Some(BTreeMap::new()) };
        let reader = JournalReader::new(self.store.array.clone(), self.guid, start, end);
        let found = reader.all_blocks().await.ok()?;
        self.progress(|status| status.repaired_bytes += found.repaired_bytes);
        if found.repaired_bytes > 0 {
            self.remark_damage(segment);
        }
        let own = |(addr, block): (BlockAddr, Vec<u8>)| (addr.block(), Owner::Pool(block));
        Some(found.blocks.into_iter().map(own).collect())
    }

    /// [`Pool::renew_journal`] as a part of a scrub, which may be paused or stopped meanwhile.
    pub(crate) async fn renew_journal_scrubbing(self: &Rc<Self>) -> bool {
        let pauses = self.scan.pauses.get();
        let told = || self.lifecycle.closing.get() || self.scan.pauses.get() != pauses;
        self.renew_journal(&told).await
    }

    /// Writes the map anew until no damaged segment of the journal is left. Returns whether that
    /// succeeded. `told` ends it between two roots.
    async fn renew_journal(self: &Rc<Self>, told: &dyn Fn() -> bool) -> bool {
        /// Most roots without progress of the map.
        const FRUITLESS: u32 = 4;
        const LEAST_FREE: u32 = 2;
        let ends = self.lifecycle.closing.get();
        let (mut more, mut fruitless, mut before) = (2, 0, None);
        while more > 0 {
            let outcome = match ends {
                // The sync task has ended, so there are no more commits.
                true => self.sync_group().await,
                false => self.commit_all().await,
            };
            if outcome.is_err() || told() {
                return false;
            }
            let at = self.writers.lock().await.checkpoint.map(|checkpoint| checkpoint.cursor);
            if at.is_none() && !self.scan.checkpoint_wanted.get() {
                self.scan.journal_damaged.set(false);
                more -= 1;
                continue;
            }
            let stuck = at == before || self.store.table.free_count() <= LEAST_FREE;
            fruitless = if stuck { fruitless + 1 } else { 0 };
            before = at;
            if fruitless == FRUITLESS {
                if self.scan.journal_damaged.get() {
                    self.health.events.push(PoolEvent::JournalNotRenewed);
                }
                return false;
            }
        }
        true
    }

    /// Writes the map anew, with a copy of each block: what the journal has is from a time when the
    /// pool had redundancy. Without room for it the journal stays as it is, and is readable.
    pub(super) async fn copy_journal(self: &Rc<Self>) {
        self.scan.checkpoint_wanted.set(true);
        let ended = || self.lifecycle.closing.get() || self.is_stopped();
        self.renew_journal(&ended).await;
    }

    /// Called before the last root: without the map on the devices no import could read the pool.
    pub(crate) async fn renew_damaged_journal(self: &Rc<Self>) -> bool {
        !self.scan.journal_damaged.get() || self.renew_journal(&|| false).await
    }

    /// Called before an export closes anything: while the pool is open, its memory has the map and
    /// room can be made.
    pub(crate) async fn check_can_be_left(self: &Rc<Self>) -> Result<(), CloseError> {
        // A running scrub may find more damage meanwhile.
        while self.scan.journal_damaged.get() && !self.is_stopped() {
            if !self.renew_damaged_journal().await && !self.is_stopped() {
                return Err(CloseError::JournalDamaged { pool: self.name() });
            }
        }
        Ok(())
    }
}
