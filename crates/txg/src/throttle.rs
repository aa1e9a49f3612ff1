//! The write throttle: it bounds dirty data, and decides which writer is admitted next.
//!
//! Bulk writers share a common room by start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM
//! 1996). Durable writes have a reserve besides, so that they wait neither for bulk writers nor for
//! their pace.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use forebay_rt as rt;
use forebay_rt::sync::Closed;
use forebay_units::{Nanos, VolumeId};

/// What a writer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Bytes that will be dirty.
    pub bytes: u64,
    /// The volume, whose writers take turns.
    pub volume: VolumeId,
    /// The volume's share of the common room, against those of other volumes; at least 1.
    pub weight: u32,
    /// Whether a client waits for the write to be durable.
    pub is_durable: bool,
}

/// Dirty bytes by the room that they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Of the room of all writers.
    pub common_bytes: u64,
    /// Of the reserve for durable writes.
    pub reserve_bytes: u64,
}

impl Held {
    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.common_bytes + self.reserve_bytes
    }
}

impl std::ops::AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        self.common_bytes += other.common_bytes;
        self.reserve_bytes += other.reserve_bytes;
    }
}

/// Limits the dirty bytes of a pool.
pub struct Throttle {
    limit_bytes: u64,
    reserve_limit_bytes: u64,
    held: Cell<Held>,
    queue: RefCell<Queue>,
    is_closed: Cell<bool>,
    /// Time that the main store takes for a MiB, as last measured. Writers are admitted at this
    /// pace when more than half of the common room is taken.
    nanos_per_mib: Cell<u64>,
    /// When the next writer is admitted to the common room. The pace applies to all writers
    /// together, so that many parallel writers do not fill the room at once.
    next_admission: Cell<Nanos>,
    /// Whether a task waits for `next_admission`.
    is_timed: Cell<bool>,
    this: Weak<Self>,
}

/// Longest pause between two admissions while there is room.
const MAX_DELAY: Nanos = Nanos::from_millis(20);
/// Shorter pauses are not slept.
const MIN_SLEEP: Nanos = Nanos::from_micros(50);
/// Least cost of a write in fair queueing: a small write costs more than its bytes.
const MIN_COST_BYTES: u64 = 16 << 10;
/// Virtual time of a byte at weight 1, so that shares are exact in integers.
const TAGS_PER_BYTE: u64 = 1 << 10;

/// A writer's place in the queue: its start tag, then the order of arrival.
type Place = (u64, u64);

#[derive(Default)]
struct Queue {
    bulk: BTreeMap<Place, Rc<Waiter>>,
    durable: BTreeMap<Place, Rc<Waiter>>,
    /// Virtual time: the start tag of the last writer admitted.
    now: u64,
    /// Finish tags of the volumes' last writers.
    finish: BTreeMap<VolumeId, u64>,
    /// The number of these at which volumes that owe nothing are forgotten.
    forget_at: usize,
    arrivals: u64,
}

struct Waiter {
    bytes: u64,
    /// The room given, once it is.
    given: Cell<Option<Held>>,
    waker: RefCell<Option<Waker>>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.bulk.is_empty() && self.durable.is_empty()
    }

    /// The place of a writer that arrives now.
    fn place(&mut self, demand: &Demand) -> Place {
        let finish = self.finish.entry(demand.volume).or_default();
        let start = self.now.max(*finish);
        let cost = demand.bytes.max(MIN_COST_BYTES) * TAGS_PER_BYTE;
        *finish = start + cost / u64::from(demand.weight.max(1));
        self.arrivals += 1;
        (start, self.arrivals)
    }

    fn of(&mut self, is_durable: bool) -> &mut BTreeMap<Place, Rc<Waiter>> {
        if is_durable { &mut self.durable } else { &mut self.bulk }
    }

    /// Takes the first writer out whom `fits` admits to the common room.
    fn pop_first(&mut self, fits: impl FnOnce(u64) -> bool) -> Option<Rc<Waiter>> {
        let first = |queue: &BTreeMap<Place, Rc<Waiter>>| queue.keys().next().copied();
        let (bulk, durable) = (first(&self.bulk), first(&self.durable));
        let is_durable = durable.is_some_and(|d| bulk.is_none_or(|b| d < b));
        let (place, waiter) = self.of(is_durable).first_key_value()?;
        if !fits(waiter.bytes) {
            return None;
        }
        self.now = place.0;
        self.of(is_durable).pop_first().map(|(_, waiter)| waiter)
    }

    /// Forgets volumes that owe nothing, so that the list of them stays short.
    fn forget_past(&mut self) {
        const LEAST: usize = 64;
        if self.finish.len() >= self.forget_at.max(LEAST) {
            let now = self.now;
            self.finish.retain(|_, finish| *finish > now);
            self.forget_at = 2 * self.finish.len();
        }
    }
}

impl Throttle {
    /// A throttle with a limit of `limit_bytes` dirty bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Rc<Self> {
        // A quarter of the limit is the longest part that a write is taken in.
        let reserve_limit_bytes = (limit_bytes / 8).clamp(1 << 20, 32 << 20).min(limit_bytes / 4);
        Rc::new_cyclic(|this| Self {
            limit_bytes,
            reserve_limit_bytes,
            held: Cell::default(),
            queue: RefCell::default(),
            is_closed: Cell::new(false),
            nanos_per_mib: Cell::new(0),
            next_admission: Cell::new(Nanos::ZERO),
            is_timed: Cell::new(false),
            this: this.clone(),
        })
    }

    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn common_limit_bytes(&self) -> u64 {
        self.limit_bytes - self.reserve_limit_bytes
    }

    /// Dirty bytes now.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.held.get().bytes()
    }

    /// Whether a writer waits for room, which only a commit gives back.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let queue = self.queue.borrow();
        let mut first = queue.bulk.values().next().into_iter().chain(queue.durable.values().next());
        first.any(|waiter| !self.has_common(waiter.bytes))
    }

    fn has_common(&self, bytes: u64) -> bool {
        self.held.get().common_bytes + bytes <= self.common_limit_bytes()
    }

    fn has_reserve(&self, bytes: u64) -> bool {
        self.held.get().reserve_bytes + bytes <= self.reserve_limit_bytes
    }

    /// Waits for room. When a group absorbs the write, the caller calls [`Permit::forget`]; when
    /// the group is committed, it calls [`Throttle::release`]. Fails when the throttle is closed,
    /// before or during the wait. More bytes than there can be room for take all the common room.
    pub async fn admit(&self, demand: Demand) -> Result<Permit, Closed> {
        if self.is_closed.get() {
            return Err(Closed);
        }
        let bytes = demand.bytes.min(self.common_limit_bytes());
        let demand = Demand { bytes, ..demand };
        if let Some(held) = self.admit_at_once(&demand) {
            return Ok(self.permit(self.take(held)));
        }
        let waiter = Rc::new(Waiter { bytes, given: Cell::new(None), waker: RefCell::default() });
        let place = {
            let mut queue = self.queue.borrow_mut();
            let place = queue.place(&demand);
            queue.of(demand.is_durable).insert(place, waiter.clone());
            place
        };
        self.dispatch();
        let waiting = Waiting { throttle: self, waiter, place, is_durable: demand.is_durable };
        let given = poll_fn(|cx| {
            if let Some(given) = waiting.waiter.given.take() {
                return Poll::Ready(Ok(given));
            }
            if self.is_closed.get() {
                return Poll::Ready(Err(Closed));
            }
            *waiting.waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        });
        given.await.map(|held| self.permit(held))
    }

    /// The room of a writer that need not wait.
    fn admit_at_once(&self, demand: &Demand) -> Option<Held> {
        let mut queue = self.queue.borrow_mut();
        if demand.is_durable && queue.durable.is_empty() && self.has_reserve(demand.bytes) {
            return Some(Held { reserve_bytes: demand.bytes, common_bytes: 0 });
        }
        if !queue.is_empty() || !self.has_common(demand.bytes) || self.early() > MIN_SLEEP {
            return None;
        }
        queue.forget_past();
        queue.now = queue.place(demand).0;
        drop(queue);
        Some(self.admit_common(demand.bytes))
    }

    /// How long until the next writer may have common room.
    fn early(&self) -> Nanos {
        match self.next_admission.get() {
            Nanos::ZERO => Nanos::ZERO,
            turn => turn.since(rt::now()),
        }
    }

    /// Common room for `bytes`, whose pace the next writer waits for.
    fn admit_common(&self, bytes: u64) -> Held {
        let pace = self.pace(bytes);
        if pace > 0 {
            let pause = Nanos(pace + self.early().0).min(MAX_DELAY);
            self.next_admission.set(rt::now() + pause);
        }
        Held { common_bytes: bytes, reserve_bytes: 0 }
    }

    fn permit(&self, held: Held) -> Permit {
        Permit { throttle: self.this.clone(), held }
    }

    fn take(&self, held: Held) -> Held {
        let mut sum = self.held.get();
        sum += held;
        self.held.set(sum);
        held
    }

    /// Admits the writers that may go on now.
    fn dispatch(&self) {
        while let Some((waiter, held)) = self.next_admitted() {
            waiter.given.set(Some(self.take(held)));
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }

    fn next_admitted(&self) -> Option<(Rc<Waiter>, Held)> {
        let mut queue = self.queue.borrow_mut();
        if let Some(first) = queue.durable.first_entry() {
            if self.has_reserve(first.get().bytes) {
                let waiter = first.remove();
                let held = Held { reserve_bytes: waiter.bytes, common_bytes: 0 };
                return Some((waiter, held));
            }
        }
        if queue.is_empty() {
            return None;
        }
        let has_turn = self.early() <= MIN_SLEEP;
        let waiter = queue.pop_first(|bytes| self.has_common(bytes) && has_turn);
        let Some(waiter) = waiter else {
            drop(queue);
            if !has_turn {
                self.set_timer();
            }
            return None;
        };
        let held = self.admit_common(waiter.bytes);
        Some((waiter, held))
    }

    /// The pause after a write of `bytes`, in nanoseconds: nothing while half of the common room is
    /// free, then more and more of the time that the main store takes, and all of it from three
    /// quarters on.
    fn pace(&self, bytes: u64) -> u64 {
        let (taken, half) = (self.held.get().common_bytes, self.common_limit_bytes() / 2);
        let over = (taken + bytes).saturating_sub(half).min(half / 2);
        if over == 0 {
            return 0;
        }
        let whole = (u128::from(self.nanos_per_mib.get()) * u128::from(bytes)) >> 20;
        (whole * u128::from(over) / u128::from(half / 2)) as u64
    }

    /// Lets a task admit the next writer when its turn comes.
    fn set_timer(&self) {
        if self.is_timed.replace(true) {
            return;
        }
        let this = self.this.clone();
        let turn = self.next_admission.get();
        rt::spawn_detached(Box::pin(async move {
            rt::sleep_until(turn).await;
            if let Some(throttle) = this.upgrade() {
                throttle.is_timed.set(false);
                throttle.dispatch();
            }
        }));
    }

    /// Admits no writer from now on; writers that wait for room fail.
    pub fn close(&self) {
        self.is_closed.set(true);
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        for waiter in queue.bulk.values().chain(queue.durable.values()) {
            if let Some(waker) = waiter.waker.take() {
                waker.wake();
            }
        }
    }

    /// Releases the room of a committed group.
    pub fn release(&self, held: Held) {
        let now = self.held.get();
        self.held.set(Held {
            common_bytes: now.common_bytes - held.common_bytes,
            reserve_bytes: now.reserve_bytes - held.reserve_bytes,
        });
        self.dispatch();
    }

    /// Records that the main store wrote `bytes` in `span`.
    pub fn measured(&self, bytes: u64, span: Nanos) {
        if bytes >= 1 << 20 {
            self.nanos_per_mib.set(span.0 / (bytes >> 20).max(1));
        }
    }
}

/// A writer in the queue; it leaves when it is dropped.
struct Waiting<'a> {
    throttle: &'a Throttle,
    waiter: Rc<Waiter>,
    place: Place,
    is_durable: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // Room that was given, and that no write has.
        if let Some(held) = self.waiter.given.take() {
            self.throttle.release(held);
            return;
        }
        let gone = self.throttle.queue.borrow_mut().of(self.is_durable).remove(&self.place);
        if gone.is_some() {
            self.throttle.dispatch();
        }
    }
}

/// Room that a writer has.
pub struct Permit {
    throttle: Weak<Throttle>,
    held: Held,
}

impl Permit {
    /// Keeps the room for good: the caller gives it back with [`Throttle::release`].
    #[must_use]
    pub fn forget(mut self) -> Held {
        std::mem::take(&mut self.held)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held != Held::default() {
            if let Some(throttle) = self.throttle.upgrade() {
                throttle.release(self.held);
            }
        }
    }
}

#[cfg(test)]
mod tests;
