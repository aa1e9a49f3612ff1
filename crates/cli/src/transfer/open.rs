//! The transfers of a process: which snapshots are being sent, and how a pool takes them back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt::Either;
use forebay_rt::sync::Notify;

/// The open transfers of a process.
pub struct Transfers {
    open: RefCell<BTreeMap<u64, Rc<Transfer>>>,
    next: Cell<u64>,
    ended: Rc<Notify>,
}

struct Transfer {
    pool: String,
    /// `POOL/VOL@SNAP` that must stay; none for a reception, which the pool itself guards.
    snapshots: Vec<String>,
    what: String,
    is_revoked: Cell<bool>,
    revoked: Rc<Notify>,
}

/// A transfer, open for as long as this lives.
pub struct Ticket {
    transfers: Rc<Transfers>,
    number: u64,
    transfer: Rc<Transfer>,
}

impl Transfers {
    /// No transfers.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self { open: RefCell::default(), next: Cell::new(0), ended: Notify::new() })
    }

    /// Adds a transfer of `pool` that needs `snapshots`; `what` it is, in words.
    pub fn add(self: &Rc<Self>, pool: &str, snapshots: Vec<String>, what: String) -> Ticket {
        let (is_revoked, revoked) = (Cell::new(false), Notify::new());
        let pool = pool.to_owned();
        let transfer = Rc::new(Transfer { pool, snapshots, what, is_revoked, revoked });
        let number = self.next.replace(self.next.get() + 1);
        self.open.borrow_mut().insert(number, transfer.clone());
        Ticket { transfers: self.clone(), number, transfer }
    }

    /// What is under way with a pool, or with the snapshot `POOL/VOL@SNAP`.
    #[must_use]
    pub fn of(&self, name: &str) -> Vec<String> {
        let open = self.open.borrow();
        open.values().filter(|t| t.concerns(name)).map(|t| t.what.clone()).collect()
    }

    /// Ends what is under way, and waits until nothing of the pool is used any more.
    pub async fn end(&self, name: &str) {
        let mine = || -> Vec<Rc<Transfer>> {
            let open = self.open.borrow();
            open.values().filter(|t| t.concerns(name)).cloned().collect()
        };
        for transfer in mine() {
            transfer.is_revoked.set(true);
            transfer.revoked.notify_all();
        }
        self.ended.until(|| mine().is_empty()).await;
    }
}

impl Transfer {
    fn concerns(&self, name: &str) -> bool {
        self.pool == name || self.snapshots.iter().any(|snapshot| snapshot == name)
    }
}

impl Ticket {
    /// `work`'s result; `None`, with `work` dropped, when the transfer is ended before.
    pub async fn unless_revoked<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let transfer = &self.transfer;
        let revoked = std::pin::pin!(transfer.revoked.until(|| transfer.is_revoked.get()));
        match forebay_rt::select(revoked, std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((out, _)) => Some(out),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.transfers.open.borrow_mut().remove(&self.number);
        self.transfers.ended.notify_all();
    }
}
