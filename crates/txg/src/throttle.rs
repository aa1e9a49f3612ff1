//! Pacing: writers slow down smoothly as dirty data nears its limit, and wait at the limit.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::sync::{Permit, Semaphore};
use forebay_units::Nanos;

/// Bounds dirty bytes.
pub struct Throttle {
    room: Rc<Semaphore>,
    limit_bytes: u64,
    /// How long the store takes for a byte, as last measured: the pace at which writers are let in
    /// when more than half of the room is taken.
    nanos_per_mib: Cell<u64>,
    /// When the last writer that was slowed down goes on. The next one goes on after it: each at
    /// the store's pace by itself, many at once would come at many times that pace, fill the room,
    /// and let everybody wait for a whole group, short writes too.
    last_turn: Cell<Nanos>,
}

const MAX_DELAY: Nanos = Nanos::from_millis(20);

impl Throttle {
    /// At most `limit_bytes` dirty.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            room: Semaphore::new(limit_bytes),
            limit_bytes,
            nanos_per_mib: Cell::new(0),
            last_turn: Cell::new(Nanos::ZERO),
        }
    }

    /// The limit.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Dirty bytes now.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.room.available())
    }

    /// Whether a writer waits for room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room.has_waiters()
    }

    /// Waits for room for a write of `bytes`. The permit is kept by [`Permit::forget`] when the
    /// write was absorbed, and given back by [`Throttle::release`] when its group is committed.
    pub async fn admit(&self, bytes: u64) -> Permit {
        let permit = self.room.acquire(bytes.min(self.limit_bytes)).await;
        let (dirty, half) = (self.dirty_bytes(), self.limit_bytes / 2);
        if dirty > half && self.nanos_per_mib.get() > 0 {
            // From nothing at half full to the store's own pace at three quarters and beyond.
            let share = ((dirty - half) as f64 / (half as f64 / 2.0)).min(1.0);
            let pace = self.nanos_per_mib.get() as f64 * bytes as f64 / (1 << 20) as f64;
            let now = rt::now();
            let line = self.last_turn.get().since(now);
            let delay = (line + Nanos((pace * share) as u64)).min(MAX_DELAY);
            self.last_turn.set(now + delay);
            if delay > Nanos::from_micros(50) || share >= 1.0 {
                rt::sleep(delay).await;
            }
        }
        permit
    }

    /// Gives back what writes of a committed group took.
    pub fn release(&self, bytes: u64) {
        self.room.release(bytes);
    }

    /// Notes that the store took `bytes` in `span`.
    pub fn measured(&self, bytes: u64, span: Nanos) {
        if bytes >= 1 << 20 {
            self.nanos_per_mib.set(span.0 / (bytes >> 20).max(1));
        }
    }
}
