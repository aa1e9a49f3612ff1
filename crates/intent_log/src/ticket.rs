//! The wait of one append: a counter of open records, shared by the log and the waiting task.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use forebay_units::TxgId;

/// A waiting append, and the group whose commit ends the wait as well.
pub(crate) type Waiter = (Rc<Ticket>, TxgId);

/// One append's wait: how many of its records are still open.
pub(crate) struct Ticket {
    pub(crate) open: Cell<u64>,
    pub(crate) closed: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

impl Ticket {
    pub(crate) fn new(open: u64) -> Rc<Self> {
        Rc::new(Self { open: Cell::new(open), closed: Cell::new(false), waker: RefCell::default() })
    }

    pub(crate) fn resolve_one(&self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.wake();
        }
    }

    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
