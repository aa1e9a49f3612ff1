//! An entry of the runtime's timer heap.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::task::Waker;

use forebay_units::Nanos;

/// A deadline, and the task that waits for it.
pub(crate) struct TimerEntry {
    pub(crate) deadline: Nanos,
    pub(crate) seq: u64,
    pub(crate) fired: Cell<bool>,
    pub(crate) dead: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

impl TimerEntry {
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get()
    }

    pub(crate) fn fire(&self) {
        self.fired.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl PartialEq for TimerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for TimerEntry {}
impl PartialOrd for TimerEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for TimerEntry {
    // Reversed: the heap's greatest is the earliest; equal deadlines fire in order of creation.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.deadline, other.seq).cmp(&(self.deadline, self.seq))
    }
}
