//! Commits: a transaction group from memory into segments, the map journal, and a new root.
//!
//! What always holds: one root at a time, under the lock of [`crate::state::Writers`]; a root names
//! only what was flushed before it. Who calls: the sync task, commands that wait for a commit,
//! import.

mod beside;
mod checkpoint;
mod cleaner;
mod dedup;
pub(crate) mod error;
mod group;
mod group_changes;
mod pace;
mod packing;
mod repacking;
mod root;
mod trim;
mod versions;
mod work;

pub(crate) use pace::MOST_IN_FLIGHT_BYTES;
pub(crate) use repacking::Repacked;
pub(crate) use trim::Trims;

use forebay_units::TxgId;

use crate::Pool;
use error::CommitError;

impl Pool {
    /// Pending bytes from which a flush commits the group instead of writing to the log.
    pub(crate) fn direct_limit_bytes(&self) -> u64 {
        const MOST: u64 = 32 << 20;
        MOST.min(self.log.capacity_bytes() / 4).min(self.dirty.throttle.limit_bytes() / 2)
    }

    /// Whether a flush of so many bytes commits the group, because the log would only write them
    /// twice. A group in an object store waits for the store, which may be away: there the log
    /// takes what leaves a quarter of it free.
    pub(crate) fn commits_directly(&self, pending_bytes: u64) -> bool {
        if pending_bytes <= self.direct_limit_bytes() {
            return false;
        }
        let capacity_bytes = self.log.capacity_bytes();
        let needed_bytes = self.log.used_bytes() + pending_bytes + capacity_bytes / 4;
        self.log_in_pool() || !self.has_store_member() || needed_bytes > capacity_bytes
    }

    /// Wakes the sync task when there is enough work.
    pub(crate) fn note_dirty(&self, first: bool) {
        if first
            || self.dirty.throttle.dirty_bytes() >= self.limits.get().txg_bytes
            || self.dirty.throttle.is_full()
        {
            self.sync.wake.notify_all();
        }
    }

    /// Waits until group `txg` is committed.
    pub(crate) async fn commit(&self, txg: TxgId) -> Result<(), CommitError> {
        if self.sync.wanted.get() < txg {
            self.sync.wanted.set(txg);
        }
        self.sync.wake.notify_all();
        let over = || self.is_stopped() || self.sync.ended.get();
        self.sync.done.until(|| self.sync.committed.get() >= txg || over()).await;
        if self.sync.committed.get() >= txg {
            return Ok(());
        }
        Err(self.why_ended())
    }

    /// Commits everything absorbed so far, and the configuration as it is now.
    pub(crate) async fn commit_all(&self) -> Result<(), CommitError> {
        let before = self.sync.commit.get();
        self.sync.root_wanted.set(true);
        let txg = self.dirty.groups.borrow().open_txg();
        self.commit(txg).await?;
        debug_assert!(self.sync.commit.get() > before);
        Ok(())
    }
}
