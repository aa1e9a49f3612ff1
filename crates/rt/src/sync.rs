//! Waiting for each other, within one runtime (single-threaded; FIFO, so nobody starves).

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Waiter {
    need: u64,
    granted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Counted permits. Waiters are served in order of arrival, so a large request is not starved by
/// small ones.
pub struct Semaphore {
    available: Cell<u64>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
}

impl Semaphore {
    /// A semaphore with `permits` to give.
    #[must_use]
    pub fn new(permits: u64) -> Rc<Self> {
        Rc::new(Self { available: Cell::new(permits), waiters: RefCell::new(VecDeque::new()) })
    }

    /// Permits that nobody holds.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.available.get()
    }

    /// Whether somebody waits.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.waiters.borrow().is_empty()
    }

    /// Waits for `need` permits; they come back when the guard drops.
    pub async fn acquire(self: &Rc<Self>, need: u64) -> Permit {
        if self.waiters.borrow().is_empty() && self.available.get() >= need {
            self.available.set(self.available.get() - need);
        } else {
            let waiter =
                Rc::new(Waiter { need, granted: Cell::new(false), waker: RefCell::new(None) });
            self.waiters.borrow_mut().push_back(waiter.clone());
            Acquire { semaphore: self.clone(), waiter: Some(waiter) }.await;
        }
        Permit { semaphore: self.clone(), held: need }
    }

    /// Takes `need` permits at once, or nothing.
    #[must_use]
    pub fn try_acquire(self: &Rc<Self>, need: u64) -> Option<Permit> {
        if !self.waiters.borrow().is_empty() || self.available.get() < need {
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
            waiter.granted.set(true);
            if let Some(waker) = waiter.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }
}

struct Acquire {
    semaphore: Rc<Semaphore>,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waiter = self.waiter.as_ref().expect("polled after completion");
        if waiter.granted.get() {
            self.waiter = None;
            return Poll::Ready(());
        }
        *waiter.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        if waiter.granted.get() {
            self.semaphore.release(waiter.need);
        } else {
            self.semaphore.waiters.borrow_mut().retain(|w| !Rc::ptr_eq(w, &waiter));
            self.semaphore.release(0);
        }
    }
}

/// Permits held.
pub struct Permit {
    semaphore: Rc<Semaphore>,
    held: u64,
}

impl Permit {
    /// Keeps the permits taken for ever: [`Semaphore::release`] gives them back by hand.
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
    /// From so many on they are looked through for those that are there twice.
    crowded: Cell<usize>,
}

/// So few are never looked through.
const FEW_WAKERS: usize = 64;

impl Notify {
    /// Nobody waits yet.
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

    /// A task that waits for several things asks again whenever one of the others happens, and the one
    /// that never does must not keep it as often as that.
    fn keep(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if wakers.last().is_some_and(|last| last.will_wake(waker)) {
            return;
        }
        if wakers.len() >= self.crowded.get().max(FEW_WAKERS) {
            let mut seen = BTreeSet::new();
            wakers.retain(|waker| seen.insert((waker.data(), std::ptr::from_ref(waker.vtable()))));
            self.crowded.set(2 * wakers.len());
        }
        wakers.push(waker.clone());
    }

    /// Waits until `ready` says so, looking again after each `notify_all`.
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
    /// Guards `value`.
    pub fn new(value: T) -> Self {
        Self { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Waits for the value.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        let permit = self.turn.acquire(1).await;
        MutexGuard { mutex: self, _permit: permit }
    }

    /// The value, when nobody holds it.
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

// The one permit makes each guard exclusive, and Rc keeps it all on one thread.
impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        unsafe { &*self.mutex.value.get() }
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        unsafe { &mut *self.mutex.value.get() }
    }
}
