//! Resilver: rebuilds what members miss.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::sync::MutexGuard;
use forebay_segment::{SegmentInfo, SegmentState};
use forebay_units::{BLOCK_BYTES, BlockAddr, SegmentId};

use crate::Pool;
use crate::scrub::backrefs::Owner;
use crate::state::Writers;
use crate::status::{PoolEvent, ScanPhase};

impl Pool {
    pub(super) async fn run_resilver(self: &Rc<Self>) {
        let stale = self.store.array.stale_segments();
        self.begin_resilver(stale.len() as u64);
        for segment in stale {
            if self.is_stopped() {
                return;
            }
            let begun = rt::now();
            let still = self.writers.lock().await;
            let info = self.store.table.get(segment);
            let live = !matches!(info.state, SegmentState::Free | SegmentState::Emptied(_));
            let owners = match live {
                true => self.owners(&still, segment, &info).await,
                false => BTreeMap::new(),
            };
            let outcome = if live {
                self.rebuild(still, segment, &info, &owners).await
            } else {
                // The segment has no live block, so any content of its column is right.
                self.store.array.reset_segment(segment).map(|()| forebay_array::Rebuilt::default())
            };
            match outcome {
                Ok(rebuilt) => {
                    self.stats.repaired(rebuilt.written_bytes);
                    let errors = rebuilt.damaged.len() as u64;
                    self.progress(|status| {
                        status.repaired_bytes += rebuilt.written_bytes;
                        status.errors += errors;
                    });
                    self.note_damaged(&owners, rebuilt.damaged);
                }
                Err(error) => {
                    self.health.events.push(PoolEvent::ResilverFailed(error));
                    self.progress(|status| status.errors += 1);
                }
            }
            let bytes = u64::from(self.store.table.data_blocks(segment)) * BLOCK_BYTES;
            self.progress(|status| status.done_bytes += bytes);
            self.pace(if live { bytes } else { 0 }, begun).await;
            if self.lifecycle.closing.get() {
                // The next import continues the resilver: the last segment may be cut short, too.
                return;
            }
        }
        // Rebuilt columns count when they are flushed and the configuration says so.
        self.sync.config_dirty.set(true);
        let _ = self.commit_all().await;
        let done = self.store.array.replaced();
        let mut left = Vec::new();
        for device in done {
            if self.store.array.detach(device).is_ok() {
                self.forget_member(device);
                left.push(device.0);
            }
        }
        // A log in the pool leaves devices that left, and uses devices that are whole now.
        let in_log = self.log_in_pool();
        if (in_log || !left.is_empty()) && self.restart_log(in_log).await.is_ok() {
            self.let_go(&left).await;
        }
        self.clean_again().await;
        self.finish(if self.is_stopped() { ScanPhase::Stopped } else { ScanPhase::Completed });
        // Writes that a device missed meanwhile are rebuilt in the next round.
        if !self.store.array.stale_segments().is_empty() && !self.is_stopped() {
            self.scan.resilver_wanted.set(true);
        }
    }

    /// Rebuilds a segment on members that miss it. Groups that wait are committed between its rows;
    /// their writes to the segment go to those members too.
    async fn rebuild(
        &self,
        mut still: MutexGuard<'_, Writers>,
        segment: SegmentId,
        info: &SegmentInfo,
        owners: &BTreeMap<u32, Owner>,
    ) -> Result<forebay_array::Rebuilt, forebay_array::ArrayError> {
        let judge = |addr: BlockAddr, block: &[u8]| self.judge(owners, addr, block);
        let mut rebuilding = self.store.array.begin_rebuild(segment, info.rows)?;
        while self.store.array.rebuild_more(&mut rebuilding, &judge).await? {
            // A segment that was emptied and freed misses nothing any more.
            let Some(again) = self.let_groups_on(still, segment, info.birth).await else {
                return Ok(rebuilding.give_up());
            };
            still = again;
        }
        Ok(rebuilding.end())
    }
}
