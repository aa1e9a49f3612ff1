//! Synchronization between the tasks of one runtime: semaphore, condition, mutex.
//!
//! All of it is single-threaded. Waiters are served in order of arrival, so none is starved.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Waiter {
    need: u64,
    state: Cell<WaiterState>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaiterState {
    /// In the queue.
    Waiting,
    /// Out of the queue, with its permits.
    Granted,
    /// Out of the queue, without permits: the semaphore was closed.
    Closed,
}

impl Waiter {
    fn end(&self, state: WaiterState) {
        self.state.set(state);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// The semaphore is closed: it gives no permits any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the semaphore is closed")
    }
}

impl std::error::Error for Closed {}

/// Counted permits. Waiters are served in order of arrival, so a large request is not starved by
/// small ones.
pub struct Semaphore {
    available: Cell<u64>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    is_closed: Cell<bool>,
}

impl Semaphore {
    /// A semaphore with `permits` to give.
    #[must_use]
    pub fn new(permits: u64) -> Rc<Self> {
        Rc::new(Self {
            available: Cell::new(permits),
            waiters: RefCell::new(VecDeque::new()),
            is_closed: Cell::new(false),
        })
    }

    /// Permits that are not held.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.available.get()
    }

    /// Whether a task waits for permits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.waiters.borrow().is_empty()
    }

    /// Waits for `need` permits; they come back when the guard drops. Fails when the semaphore is
    /// closed, before or during the wait.
    pub async fn acquire(self: &Rc<Self>, need: u64) -> Result<Permit, Closed> {
        if self.is_closed.get() {
            return Err(Closed);
        }
        if self.waiters.borrow().is_empty() && self.available.get() >= need {
            self.available.set(self.available.get() - need);
        } else {
            let waiter = Rc::new(Waiter {
                need,
                state: Cell::new(WaiterState::Waiting),
                waker: RefCell::new(None),
            });
            self.waiters.borrow_mut().push_back(waiter.clone());
            Acquire { semaphore: self.clone(), waiter: Some(waiter) }.await?;
        }
        Ok(Permit { semaphore: self.clone(), held: need })
    }

    /// Takes `need` permits at once, or nothing.
    #[must_use]
    pub fn try_acquire(self: &Rc<Self>, need: u64) -> Option<Permit> {
        let is_contended = !self.waiters.borrow().is_empty() || self.available.get() < need;
        if self.is_closed.get() || is_contended {
            return None;
        }
        self.available.set(self.available.get() - need);
        Some(Permit { semaphore: self.clone(), held: need })
    }

    /// Gives back (or adds) permits.
    pub fn release(&self, permits: u64) {
        self.available.set(self.available.get() + permits);
        loop {
            let next = {
                let mut waiters = self.waiters.borrow_mut();
                match waiters.front() {
                    Some(w) if w.need <= self.available.get() => waiters.pop_front(),
                    _ => None,
                }
            };
            let Some(waiter) = next else { return };
            self.available.set(self.available.get() - waiter.need);
            waiter.end(WaiterState::Granted);
        }
    }

    /// Gives no permits from now on: every waiter fails with [`Closed`], and so does every later
    /// [`Semaphore::acquire`]. Permits that are held stay held until their guards drop.
    pub fn close(&self) {
        self.is_closed.set(true);
        for waiter in self.waiters.take() {
            waiter.end(WaiterState::Closed);
        }
    }
}

struct Acquire {
    semaphore: Rc<Semaphore>,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Result<(), Closed>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waiter = self.waiter.as_ref().expect("polled after completion");
        let outcome = match waiter.state.get() {
            WaiterState::Waiting => {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            WaiterState::Granted => Ok(()),
            WaiterState::Closed => Err(Closed),
        };
        self.waiter = None;
        Poll::Ready(outcome)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        match waiter.state.get() {
            WaiterState::Granted => self.semaphore.release(waiter.need),
            WaiterState::Closed => {}
            WaiterState::Waiting => {
                self.semaphore.waiters.borrow_mut().retain(|w| !Rc::ptr_eq(w, &waiter));
                self.semaphore.release(0);
            }
        }
    }
}

/// Permits held.
pub struct Permit {
    semaphore: Rc<Semaphore>,
    held: u64,
}

impl Permit {
    /// Keeps the permits taken for good, and returns how many: the caller gives them back with
    /// [`Semaphore::release`].
    pub fn forget(mut self) -> u64 {
        std::mem::take(&mut self.held)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held > 0 {
            self.semaphore.release(self.held);
        }
    }
}

/// A condition that tasks wait for: `notify_all` wakes all that wait now.
#[derive(Default)]
pub struct Notify {
    epoch: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
    /// At this many wakers or more, duplicates are removed before another one is added.
    dedup_at: Cell<usize>,
}

/// Duplicates among fewer wakers than this are not removed.
const DEDUP_MIN_WAKERS: usize = 64;

impl Notify {
    /// A condition without waiters.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self::default())
    }

    /// Wakes every task that waits in [`Notify::notified`].
    pub fn notify_all(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for waker in self.wakers.take() {
            waker.wake();
        }
    }

    /// Waits for the next `notify_all` after this call (not after the first poll).
    pub fn notified(&self) -> impl Future<Output = ()> + '_ {
        let seen = self.epoch.get();
        poll_fn(move |cx| {
            if self.epoch.get() != seen {
                return Poll::Ready(());
            }
            self.keep(cx.waker());
            Poll::Pending
        })
    }

    /// Keeps `waker`. A task that waits for several conditions comes here again each time another
    /// one of them is notified; duplicates are removed so that this list stays bounded.
    fn keep(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if wakers.last().is_some_and(|last| last.will_wake(waker)) {
            return;
        }
        if wakers.len() >= self.dedup_at.get().max(DEDUP_MIN_WAKERS) {
            let mut seen = BTreeSet::new();
            wakers.retain(|waker| seen.insert((waker.data(), std::ptr::from_ref(waker.vtable()))));
            self.dedup_at.set(2 * wakers.len());
        }
        wakers.push(waker.clone());
    }

    /// Waits until `ready` returns true; it is called again after each `notify_all`.
    pub async fn until(&self, mut ready: impl FnMut() -> bool) {
        while !ready() {
            self.notified().await;
        }
    }
}

/// Mutual exclusion across awaits.
pub struct Mutex<T> {
    turn: Rc<Semaphore>,
    value: UnsafeCell<T>,
}

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub fn new(value: T) -> Self {
        Self { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Waits for the value.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        let permit = self.turn.acquire(1).await.expect("the semaphore of a mutex is not closed");
        MutexGuard { mutex: self, _permit: permit }
    }

    /// Whether a task waits for the value.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.turn.has_waiters()
    }

    /// The value, when it is not locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let permit = self.turn.try_acquire(1)?;
        Some(MutexGuard { mutex: self, _permit: permit })
    }
}

/// Access to the value of a [`Mutex`].
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    _permit: Permit,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the only permit, and the `Rc` inside keeps it on one thread.
        unsafe { &*self.mutex.value.get() }
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` excludes other references through this guard.
        unsafe { &mut *self.mutex.value.get() }
    }
}
