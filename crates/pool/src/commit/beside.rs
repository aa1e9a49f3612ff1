//! The next group's blocks, put into segments beside the root of the group before.
//!
//! A root in an object store takes several round trips, in which a store would otherwise stand
//! idle. What always holds: the map, the journal and the next root wait for that root, so the order
//! after a crash is that of groups which follow each other. Who calls: `group`.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Either;
use forebay_txg::DirtySet;
use forebay_units::TxgId;

use super::error::CommitError;
use super::group::SyncingGroup;
use super::root::NextRoot;
use crate::Pool;
use crate::state::Writers;

impl Pool {
    /// Writes the root that brings the group `txg`. If another group grows large meanwhile, it is
    /// closed and its blocks are put into segments; then it is returned.
    pub(super) async fn root_beside(
        self: &Rc<Self>,
        writers: &mut Writers,
        txg: TxgId,
    ) -> Result<Option<SyncingGroup>, CommitError> {
        let root = self.begin_root(writers, txg, true);
        let (rooted, next) = match self.has_store_member() {
            true => self.finish_root_and_place(writers, &root).await?,
            false => (self.finish_root(&root).await?, None),
        };
        self.versions_are_rooted();
        self.tidy_after_root(writers, root, rooted).await;
        Ok(next)
    }

    async fn finish_root_and_place(
        self: &Rc<Self>,
        writers: &mut Writers,
        root: &NextRoot,
    ) -> Result<(Option<DirtySet>, Option<SyncingGroup>), CommitError> {
        let rooted = Box::pin(self.finish_root(root));
        let due = Box::pin(self.sync.wake.until(|| self.may_go_beside(writers)));
        let rooted = match rt::select(rooted, due).await {
            Either::Left((rooted, _)) => return Ok((rooted?, None)),
            Either::Right((_, rooted)) => rooted,
        };
        self.sync.root_wanted.set(false);
        self.take_log_events();
        self.take_array_events();
        let mut group = self.close_group(root.commit.next());
        let placed = Box::pin(self.place_group(writers, &mut group));
        let rooted = match rt::select(rooted, placed).await {
            Either::Left((rooted, placed)) => {
                // Without this root the pool is suspended, and nothing needs the blocks.
                let rooted = rooted?;
                placed.await?;
                rooted
            }
            Either::Right((placed, rooted)) => {
                let rooted = rooted.await?;
                placed?;
                rooted
            }
        };
        Ok((rooted, Some(group)))
    }

    /// Whether the open group may be closed although the root of the one before is on its way.
    fn may_go_beside(&self, writers: &Writers) -> bool {
        let is_large =
            self.dirty.groups.borrow().open().held.bytes() >= self.limits.get().txg_bytes;
        let has_room = || {
            let blocks = self.blocks_in(self.dirty.groups.borrow().open());
            self.store.table.free_count() >= self.segments_before(blocks, writers)
        };
        // What has to happen between two groups, and tasks that wait for the writers, come first.
        is_large
            && !self.lifecycle.closing.get()
            && !self.is_stopped()
            && !self.writers.has_waiters()
            && !self.log_pressure()
            && self.snapshots.wanted.borrow().is_empty()
            && has_room()
    }
}
