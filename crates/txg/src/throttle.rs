//! The write throttle: writers slow down as dirty data nears its limit, and wait at the limit.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::sync::{Closed, Permit, Semaphore};
use forebay_units::Nanos;

/// Limits the dirty bytes of a pool.
pub struct Throttle {
    room: Rc<Semaphore>,
    limit_bytes: u64,
    /// Time that the main store takes for a MiB, as last measured. Writers are admitted at this
    /// pace when more than half of the limit is dirty.
    nanos_per_mib: Cell<u64>,
    /// When the last delayed writer continues. The delay applies to all writers together, so that
    /// many parallel writers do not fill the limit and starve short writes.
    last_admission: Cell<Nanos>,
}

/// Longest delay of a write below the limit.
const MAX_DELAY: Nanos = Nanos::from_millis(20);
/// Below three quarters of the limit, shorter delays are not slept.
const MIN_SLEEP: Nanos = Nanos::from_micros(50);

impl Throttle {
    /// A throttle with a limit of `limit_bytes` dirty bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            room: Semaphore::new(limit_bytes),
            limit_bytes,
            nanos_per_mib: Cell::new(0),
            last_admission: Cell::new(Nanos::ZERO),
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

    /// Whether a writer waits for space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room.has_waiters()
    }

    /// Waits for space for a write of `bytes`. When a group absorbs the write, the caller calls
    /// [`Permit::forget`]; when the group is committed, it calls [`Throttle::release`]. Fails when
    /// the throttle is closed, before or during the wait.
    pub async fn admit(&self, bytes: u64) -> Result<Permit, Closed> {
        let permit = self.room.acquire(bytes.min(self.limit_bytes)).await?;
        let (dirty, half) = (self.dirty_bytes(), self.limit_bytes / 2);
        if dirty > half && self.nanos_per_mib.get() > 0 {
            // The share rises from 0 at half of the limit to 1 at three quarters.
            let share = ((dirty - half) as f64 / (half as f64 / 2.0)).min(1.0);
            let pace = self.nanos_per_mib.get() as f64 * bytes as f64 / (1 << 20) as f64;
            let now = rt::now();
            let queued = self.last_admission.get().since(now);
            let delay = (queued + Nanos((pace * share) as u64)).min(MAX_DELAY);
            self.last_admission.set(now + delay);
            if delay > MIN_SLEEP || share >= 1.0 {
                rt::sleep(delay).await;
            }
        }
        Ok(permit)
    }

    /// Admits no writer from now on; writers that wait for room fail.
    pub fn close(&self) {
        self.room.close();
    }

    /// Releases the bytes of a committed group.
    pub fn release(&self, bytes: u64) {
        self.room.release(bytes);
    }

    /// Records that the main store wrote `bytes` in `span`.
    pub fn measured(&self, bytes: u64, span: Nanos) {
        if bytes >= 1 << 20 {
            self.nanos_per_mib.set(span.0 / (bytes >> 20).max(1));
        }
    }
}
