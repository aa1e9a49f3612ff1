//! Discards of freed segments, a few at a time, beside the writers.
//!
//! A discard costs: a file allocates the range again, and on a disk it may take longer than a
//! write. So only segments that stayed free for a while are discarded. A segment cannot be reused
//! while its discard is in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::{CommitId, Nanos, SegmentId};

use crate::Pool;

/// Commits for which a segment must have been free, while clients write.
const COMMITS: u64 = 64;
/// Discards in flight at once.
const AT_ONCE: usize = 4;
/// Segments discarded after one commit; the rest waits for the next commit or for idle time.
const MOST: usize = 64;
/// Longest time that an export spends on discards.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Free segments that were not discarded yet.
#[derive(Default)]
pub(crate) struct Trims {
    /// Each with the commit that freed it. Some may have been reused since.
    freed: RefCell<BTreeMap<SegmentId, CommitId>>,
    busy: Cell<bool>,
}

impl Trims {
    /// Notes that `commit` freed `segment`.
    pub(crate) fn note(&self, segment: SegmentId, commit: CommitId) {
        self.freed.borrow_mut().insert(segment, commit);
    }

    /// Takes out segments that have been free since `before` or longer, `most` at most.
    fn take(
        &self,
        before: CommitId,
        most: usize,
        free: impl Fn(SegmentId) -> bool,
    ) -> Vec<SegmentId> {
        let mut freed = self.freed.borrow_mut();
        freed.retain(|segment, _| free(*segment));
        let due =
            freed.iter().filter(|(_, commit)| **commit <= before).map(|(segment, _)| *segment);
        let due: Vec<SegmentId> = due.take(most).collect();
        freed.retain(|segment, _| !due.contains(segment));
        due
    }
}

impl Pool {
    /// Discards segments that are free under the durable root `commit`: all of them when the pool
    /// is idle, else those that have been free for a while.
    pub(crate) fn trim_freed(self: &Rc<Self>, commit: CommitId) {
        let calm = self.dirty.groups.borrow().open().is_empty();
        let before = if calm { commit } else { CommitId(commit.0.saturating_sub(COMMITS)) };
        if self.trims.busy.get() || self.lifecycle.closing.get() {
            return;
        }
        let due = self.trims.take(before, MOST, |segment| self.store.table.is_free(segment));
        if due.is_empty() {
            return;
        }
        self.trims.busy.set(true);
        let pool = self.clone();
        let task = rt::spawn(async move {
            let ended = || pool.is_stopped() || pool.lifecycle.closing.get();
            let mut due = due;
            while !due.is_empty() {
                pool.discard(&due, ended).await;
                // Without clients there may be no commit for long, so the rest does not wait for
                // one.
                if ended() || !pool.dirty.groups.borrow().open().is_empty() {
                    break;
                }
                let root = pool.sync.commit.get();
                due = pool.trims.take(root, MOST, |segment| pool.store.table.is_free(segment));
            }
            pool.trims.busy.set(false);
        });
        let mut tasks = self.lifecycle.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Discards before the last root of an export, for a limited time. After that root the devices
    /// may belong to another machine.
    pub(crate) async fn trim_at_the_end(&self) {
        let begun = rt::now();
        let late = || self.is_stopped() || rt::now().since(begun) > PATIENCE;
        if !self.settings.get().autotrim {
            return;
        }
        while !late() {
            let root = self.sync.commit.get();
            let due = self.trims.take(root, MOST, |segment| self.store.table.is_free(segment));
            if due.is_empty() {
                return;
            }
            self.discard(&due, late).await;
        }
    }

    /// Discards free segments, a few at a time, until `ended`. The others stay in the list.
    async fn discard(&self, due: &[SegmentId], ended: impl Fn() -> bool) {
        let root = self.sync.commit.get();
        for (at, some) in due.chunks(AT_ONCE).enumerate() {
            if ended() {
                due[at * AT_ONCE..].iter().for_each(|segment| self.trims.note(*segment, root));
                return;
            }
            // A held segment cannot be reused. Segments that were reused meanwhile are left alone.
            let held: Vec<SegmentId> =
                some.iter().copied().filter(|segment| self.store.table.hold(*segment)).collect();
            // A discard is advice; its result does not matter, because no root refers to the
            // segment.
            rt::join_all(held.iter().map(|s| self.store.array.discard_segment(*s))).await;
            held.iter().for_each(|segment| self.store.table.let_go(*segment));
        }
    }
}

#[cfg(test)]
mod tests;
