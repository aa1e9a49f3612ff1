//! Discards of freed segments: some time after the root that freed them, a few at a time, beside the
//! writers.
//!
//! On a file a discarded place must be allocated anew when it is written again, and on a disk a discard
//! may take longer than a write. Under load a segment is soon written again as a whole, so the devices
//! hear only of those that have stayed free for a while. A segment is not given to anybody while its
//! discard is under way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::{CommitId, Nanos, SegmentId};

use crate::Pool;

/// While clients write, a segment must have been free for so many commits.
const COMMITS: u64 = 64;
/// Discards under way together.
const AT_ONCE: usize = 4;
/// Segments after one commit: the rest waits for the next, or until nobody writes.
const MOST: usize = 64;
/// How long an export may take for those that are left.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Free segments that the devices have not heard of.
#[derive(Default)]
pub(crate) struct Trims {
    /// And the commit that freed them. Some may have been taken again since.
    freed: RefCell<BTreeMap<SegmentId, CommitId>>,
    busy: Cell<bool>,
}

impl Trims {
    /// `segment` is free as of `commit`.
    pub(crate) fn note(&self, segment: SegmentId, commit: CommitId) {
        self.freed.borrow_mut().insert(segment, commit);
    }

    /// Takes out those that have been free since `before` or longer, `most` at most.
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
    /// Tells the devices of segments that are free under the root `commit`, which is durable: of all
    /// when nobody writes, else of those that have been free for a while.
    pub(crate) fn trim_freed(self: &Rc<Self>, commit: CommitId) {
        let calm = self.groups.borrow().open().is_empty();
        let before = if calm { commit } else { CommitId(commit.0.saturating_sub(COMMITS)) };
        if self.trims.busy.get() || self.closing.get() {
            return;
        }
        let due = self.trims.take(before, MOST, |segment| self.table.is_free(segment));
        if due.is_empty() {
            return;
        }
        self.trims.busy.set(true);
        let pool = self.clone();
        let task = rt::spawn(async move {
            let ended = || pool.is_stopped() || pool.closing.get();
            let mut due = due;
            while !due.is_empty() {
                pool.discard(&due, ended).await;
                // Nobody may commit for long now: the rest need not wait for that.
                if ended() || !pool.groups.borrow().open().is_empty() {
                    break;
                }
                let root = pool.sync.commit.get();
                due = pool.trims.take(root, MOST, |segment| pool.table.is_free(segment));
            }
            pool.trims.busy.set(false);
        });
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Before the last root, after which the devices may be another machine's: the devices hear of what
    /// is free, as much as can be told in a while.
    pub(crate) async fn trim_at_the_end(&self) {
        let begun = rt::now();
        let late = || self.is_stopped() || rt::now().since(begun) > PATIENCE;
        if self.property("autotrim") == "off" {
            return;
        }
        while !late() {
            let root = self.sync.commit.get();
            let due = self.trims.take(root, MOST, |segment| self.table.is_free(segment));
            if due.is_empty() {
                return;
            }
            self.discard(&due, late).await;
        }
    }

    /// Tells the devices of segments that are free, a few at a time, until `ended`; the others are
    /// still to be told of.
    async fn discard(&self, due: &[SegmentId], ended: impl Fn() -> bool) {
        let root = self.sync.commit.get();
        for (at, some) in due.chunks(AT_ONCE).enumerate() {
            if ended() {
                due[at * AT_ONCE..].iter().for_each(|segment| self.trims.note(*segment, root));
                return;
            }
            // Held, nobody can take them; those that were taken meanwhile are left alone.
            let held: Vec<SegmentId> =
                some.iter().copied().filter(|segment| self.table.hold(*segment)).collect();
            // Discard is advice; whatever it says, nothing refers to the segment.
            rt::join_all(held.iter().map(|s| self.array.discard_segment(*s))).await;
            held.iter().for_each(|segment| self.table.let_go(*segment));
        }
    }
}

#[cfg(test)]
mod tests;
