//! Shares of memory: how much of the server's memory each client may hold.
//!
//! What enters: the charges of requests, by connection. What leaves: permission, at once or when
//! others have given enough back. What always holds: the sum never exceeds the server's limit, and
//! a client of short requests never waits for others. The crate's README has the rule.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::account::Account;
use crate::limits::BASE_CHARGE_BYTES;

/// A holder may have this many times the memory that remains free above it.
const SHARE_OF_FREE: u64 = 2;
/// This part of the memory is for the owner's clients alone.
pub(crate) const RESERVED_PART: u64 = 8;

/// The part that every connection has of its own: all of them together have a sixteenth of the
/// memory, or enough for one short request each where that is less than a quarter.
fn own_bytes_of(max_bytes: u64, connections_max: usize) -> u64 {
    const SHORT_REQUESTS_BYTES: u64 = 4 * BASE_CHARGE_BYTES;
    let connections = connections_max.max(1) as u64;
    let sixteenth = max_bytes / 16 / connections;
    sixteenth.max(SHORT_REQUESTS_BYTES).min(max_bytes / 4 / connections)
}

/// Memory of all clients together.
pub(crate) struct Ledger {
    /// The memory that is shared, and what is in use of it.
    shared_max_bytes: u64,
    shared_bytes: Cell<u64>,
    /// What each connection has of its own.
    own_bytes: u64,
    /// Bytes that all clients hold, their own parts included.
    used_bytes: Cell<u64>,
    /// What the owner's clients hold of the shared memory.
    owner_bytes: Rc<Cell<u64>>,
    holders: RefCell<BTreeMap<Holder, Rc<Cell<u64>>>>,
    waiting: RefCell<Vec<Rc<Waiting>>>,
}

/// A level between the server and its connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Account(Account),
    Export(Account, String),
}

/// A request that waits for memory.
struct Waiting {
    share: Rc<Levels>,
    need_bytes: u64,
    state: Cell<WaitState>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitState {
    Waiting,
    Granted,
}

/// What the levels of one connection hold: of the shared memory, and `connection_bytes` in all.
struct Levels {
    account: Account,
    account_bytes: Rc<Cell<u64>>,
    export_bytes: Rc<Cell<u64>>,
    connection_bytes: Cell<u64>,
    connection_max_bytes: u64,
}

impl Ledger {
    /// Memory of `max_bytes` for `connections_max` connections at most.
    pub(crate) fn new(max_bytes: u64, connections_max: usize) -> Rc<Self> {
        let own_bytes = own_bytes_of(max_bytes, connections_max);
        let owner_bytes = Rc::<Cell<u64>>::default();
        let owner = (Holder::Account(Account::Owner), owner_bytes.clone());
        Rc::new(Self {
            shared_max_bytes: max_bytes - own_bytes * connections_max as u64,
            shared_bytes: Cell::new(0),
            own_bytes,
            used_bytes: Cell::new(0),
            owner_bytes,
            holders: RefCell::new(BTreeMap::from([owner])),
            waiting: RefCell::default(),
        })
    }

    /// Bytes that all clients hold.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.get()
    }

    /// Bytes of the shared memory that the clients of `account` hold.
    pub(crate) fn used_by(&self, account: &Account) -> u64 {
        let holder = Holder::Account(account.clone());
        self.holders.borrow().get(&holder).map_or(0, |bytes| bytes.get())
    }

    /// Whether a request waits for memory.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    fn holder(&self, holder: Holder) -> Rc<Cell<u64>> {
        self.holders.borrow_mut().entry(holder).or_default().clone()
    }

    /// Drops the holders above a connection that ends, if it is their last one.
    fn forget(&self, share: &Levels) {
        let is_above = |bytes: &Rc<Cell<u64>>| {
            Rc::ptr_eq(bytes, &share.account_bytes) || Rc::ptr_eq(bytes, &share.export_bytes)
        };
        // One reference is in the list, and one in `share`.
        self.holders
            .borrow_mut()
            .retain(|_, bytes| !is_above(bytes) || Rc::strong_count(bytes) > 2);
    }

    /// What a connection with `used_bytes` holds of the shared memory.
    #[inline]
    fn shared_part(&self, used_bytes: u64) -> u64 {
        used_bytes.saturating_sub(self.own_bytes)
    }

    /// Whether `need_bytes` more leave enough to the others at each level.
    #[inline]
    fn has_room(&self, share: &Levels, need_bytes: u64) -> bool {
        let used = share.connection_bytes.get();
        if used + need_bytes > share.connection_max_bytes {
            return false;
        }
        let of_connection = self.shared_part(used);
        let need = self.shared_part(used + need_bytes) - of_connection;
        if need == 0 {
            return true;
        }
        let reserved = match share.account {
            Account::Owner => 0,
            _ => (self.shared_max_bytes / RESERVED_PART).saturating_sub(self.owner_bytes.get()),
        };
        let free = self.shared_max_bytes - self.shared_bytes.get();
        let mut room = free.saturating_sub(reserved);
        for used in [share.account_bytes.get(), share.export_bytes.get(), of_connection] {
            let Some(left) = room.checked_sub(need) else { return false };
            if used + need > SHARE_OF_FREE * left {
                return false;
            }
            room = room.min((SHARE_OF_FREE * room).saturating_sub(used));
        }
        true
    }

    #[inline]
    fn take(&self, share: &Levels, bytes: u64) {
        let before = share.connection_bytes.get();
        share.connection_bytes.set(before + bytes);
        self.used_bytes.set(self.used_bytes.get() + bytes);
        let shared = self.shared_part(before + bytes) - self.shared_part(before);
        for level in [&self.shared_bytes, &*share.account_bytes, &*share.export_bytes] {
            level.set(level.get() + shared);
        }
    }

    #[inline]
    fn give_back(&self, share: &Levels, bytes: u64) {
        let before = share.connection_bytes.get();
        share.connection_bytes.set(before - bytes);
        self.used_bytes.set(self.used_bytes.get() - bytes);
        let shared = self.shared_part(before) - self.shared_part(before - bytes);
        for level in [&self.shared_bytes, &*share.account_bytes, &*share.export_bytes] {
            level.set(level.get() - shared);
        }
        if self.has_waiters() {
            self.grant();
        }
    }

    /// Grants what there is room for, in order of arrival. A request that does not fit does not
    /// hold up later ones: they may be of a client that holds less.
    fn grant(&self) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|request| {
            if !self.has_room(&request.share, request.need_bytes) {
                return true;
            }
            self.take(&request.share, request.need_bytes);
            request.state.set(WaitState::Granted);
            if let Some(waker) = request.waker.borrow_mut().take() {
                waker.wake();
            }
            false
        });
    }
}

/// The memory of one connection.
pub(crate) struct Share {
    ledger: Rc<Ledger>,
    levels: Rc<Levels>,
}

impl Share {
    /// A share that holds nothing, of a connection to `export`.
    pub(crate) fn new(
        ledger: &Rc<Ledger>,
        account: &Account,
        export: &str,
        max_bytes: u64,
    ) -> Self {
        let of_account = Holder::Account(account.clone());
        let of_export = Holder::Export(account.clone(), export.to_owned());
        let levels = Rc::new(Levels {
            account: account.clone(),
            account_bytes: ledger.holder(of_account),
            export_bytes: ledger.holder(of_export),
            connection_bytes: Cell::new(0),
            connection_max_bytes: max_bytes,
        });
        Self { ledger: ledger.clone(), levels }
    }

    /// Takes `bytes` if there is room for them; whether there was.
    #[inline]
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        let has_room = self.ledger.has_room(&self.levels, bytes);
        if has_room {
            self.ledger.take(&self.levels, bytes);
        }
        has_room
    }

    /// Takes `bytes`; waits until there is room for them.
    pub(crate) async fn take(&self, bytes: u64) {
        let request = Rc::new(Waiting {
            share: self.levels.clone(),
            need_bytes: bytes,
            state: Cell::new(WaitState::Waiting),
            waker: RefCell::default(),
        });
        self.ledger.waiting.borrow_mut().push(request.clone());
        let _place = Place { ledger: &self.ledger, request: &request };
        poll_fn(|cx| match request.state.get() {
            WaitState::Granted => Poll::Ready(()),
            WaitState::Waiting => {
                *request.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await;
    }

    /// Gives back `bytes` that were taken.
    #[inline]
    pub(crate) fn give_back(&self, bytes: u64) {
        self.ledger.give_back(&self.levels, bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // What a connection that has failed holds, and what was granted to an abandoned wait.
        self.ledger.give_back(&self.levels, self.levels.connection_bytes.get());
        self.ledger.forget(&self.levels);
    }
}

/// A place in the queue, which ends with the wait.
struct Place<'a> {
    ledger: &'a Ledger,
    request: &'a Rc<Waiting>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.ledger.waiting.borrow_mut().retain(|other| !Rc::ptr_eq(other, self.request));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_and_exports_without_connections_are_forgotten() {
        let ledger = Ledger::new(64 << 20, 512);
        let count = || ledger.holders.borrow().len();
        let share = |uid, export| Share::new(&ledger, &Account::User(uid), export, 16 << 20);
        let (first, second, third) = (share(1, "a"), share(1, "a"), share(1, "b"));
        assert_eq!(count(), 4, "the owner, an account and two exports");
        drop((first, third));
        assert_eq!(count(), 3);
        drop(second);
        assert_eq!(count(), 1, "the owner's bytes are always counted");
        for uid in 2..100 {
            assert!(share(uid, "a").try_take(4 << 20));
        }
        assert_eq!((count(), ledger.used_bytes()), (1, 0));
    }
}
