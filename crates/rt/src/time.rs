//! The clock and its timers.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_units::Nanos;

use crate::executor::{self, Clock};
use crate::sys;
use crate::timer::TimerEntry;

/// The monotonic time of the current runtime, counted from its start.
#[must_use]
pub fn now() -> Nanos {
    executor::with(|inner| inner.now())
}

/// Like [`now`], from another start; it goes on while the machine is suspended to memory. Timers
/// and deadlines do not go on, so a machine that wakes up finds nothing overdue.
#[must_use]
pub fn now_with_suspension() -> Nanos {
    executor::with(|inner| match &inner.clock {
        Clock::Virtual(now, suspended) => now.get() + suspended.get(),
        Clock::Real(_) => sys::boot_time(),
    })
}

/// In simulation: the machine was suspended for `span`, which only [`now_with_suspension`] sees.
///
/// # Panics
/// On a real runtime.
pub fn suspend(span: Nanos) {
    executor::with(|inner| match &inner.clock {
        Clock::Virtual(_, suspended) => suspended.set(suspended.get() + span),
        Clock::Real(_) => panic!("only a simulated machine is suspended by this"),
    });
}

/// In simulation: the thread stands still for `span`, as in a system call that blocks. No task runs
/// meanwhile, and timers that are due by then fire together.
///
/// # Panics
/// On a real runtime.
pub fn stand_still(span: Nanos) {
    executor::with(|inner| match &inner.clock {
        Clock::Virtual(now, _) => now.set(now.get() + span),
        Clock::Real(_) => panic!("only a simulated thread stands still on demand"),
    });
}

/// Seconds since 1970, for people to read; nothing may depend on it. Under simulation it is the
/// virtual time counted from a fixed day.
#[must_use]
pub fn wall_clock() -> u64 {
    const SIMULATED_EPOCH_SECS: u64 = 1_700_000_000;
    executor::with(|inner| match &inner.clock {
        Clock::Virtual(now, _) => SIMULATED_EPOCH_SECS + now.get().0 / 1_000_000_000,
        Clock::Real(_) => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    })
}

/// Waits for `span`.
pub fn sleep(span: Nanos) -> Sleep {
    sleep_until(now() + span)
}

/// Waits until the clock reads `deadline` or later.
pub fn sleep_until(deadline: Nanos) -> Sleep {
    Sleep { deadline, entry: None }
}

/// Future of [`sleep`].
pub struct Sleep {
    deadline: Nanos,
    entry: Option<Rc<TimerEntry>>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(entry) = &self.entry {
            if entry.fired.get() {
                return Poll::Ready(());
            }
            *entry.waker.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let deadline = self.deadline;
        self.entry = executor::with(|inner| {
            if inner.now() >= deadline {
                return None;
            }
            let seq = inner.timer_seq.get();
            inner.timer_seq.set(seq + 1);
            let entry = Rc::new(TimerEntry {
                deadline,
                seq,
                fired: Cell::new(false),
                dead: Cell::new(false),
                waker: RefCell::new(Some(cx.waker().clone())),
            });
            inner.timers.borrow_mut().push(entry.clone());
            Some(entry)
        });
        if self.entry.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            entry.dead.set(true);
            entry.waker.borrow_mut().take();
        }
    }
}

/// The time given to [`timeout`] ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Parts in which [`timeout_while_running`] counts its span.
const PARTS: u64 = 8;

/// As [`timeout`], without the time in which this thread stood still. The span is counted in
/// eighths, and an eighth that took longer counts as one.
pub async fn timeout_while_running<F: Future>(
    span: Nanos,
    future: F,
) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    for _ in 0..PARTS {
        if let Ok(out) = timeout(Nanos(span.0.div_ceil(PARTS)), future.as_mut()).await {
            return Ok(out);
        }
    }
    Err(Elapsed)
}

/// `future`'s result, or [`Elapsed`] (and `future` dropped) when it takes longer than `span`.
pub async fn timeout<F: Future>(span: Nanos, future: F) -> Result<F::Output, Elapsed> {
    let future = std::pin::pin!(future);
    match futures_util::future::select(future, sleep(span)).await {
        futures_util::future::Either::Left((out, _)) => Ok(out),
        futures_util::future::Either::Right(_) => Err(Elapsed),
    }
}
