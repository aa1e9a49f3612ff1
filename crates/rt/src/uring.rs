//! The io_uring driver: submissions in, completions out, buffers kept until the kernel is done.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use forebay_units::Nanos;
use io_uring::{IoUring, opcode, squeue, types};

use crate::executor::{self, Kept};
use crate::patience::{Ended, Patience};

const RING_ENTRIES: u32 = 2048;
const WAKE_TOKEN: u64 = u64::MAX;
const CANCEL_TOKEN: u64 = u64::MAX - 1;
/// So many submissions go to the kernel without waiting for the turn's end: a device works on the
/// first requests of a burst while the rest is being prepared. One by one would cost a system call
/// each.
const SUBMIT_AT: usize = 4;

pub(crate) struct Ring {
    ring: RefCell<IoUring>,
    ops: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    in_flight: Cell<usize>,
    unsubmitted: Cell<usize>,
    event_fd: i32,
    // Where the kernel puts the eventfd's count; boxed so that it never moves.
    event_count: Box<Cell<u64>>,
    wake_armed: Cell<bool>,
    patience: Cell<Patience>,
    /// Whether there are processors for others while this thread looks out for completions.
    may_look_out: bool,
}

/// Who was off the processor for longer than this while looking out has kept somebody from it.
/// (Interrupts that bring what is waited for take tens of microseconds.)
const AWAY: Nanos = Nanos::from_micros(100);

enum Slot {
    Free,
    Pending(Option<Waker>, Turn),
    Done(i32),
    /// The future is gone; what it lent to the kernel stays here until the completion.
    Orphan(#[allow(dead_code)] Kept),
}

/// When the task that waits for an operation runs, once it has completed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// After those that became ready before.
    InOrder,
    /// Before most of them.
    First,
}

impl Ring {
    pub(crate) fn new(event_fd: i32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(RING_ENTRIES * 4)
            .build(RING_ENTRIES)?;
        Ok(Self {
            ring: RefCell::new(ring),
            ops: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            in_flight: Cell::new(0),
            unsubmitted: Cell::new(0),
            event_fd,
            event_count: Box::new(Cell::new(0)),
            wake_armed: Cell::new(false),
            patience: Cell::default(),
            may_look_out: std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
        })
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            let pushed = unsafe { self.ring.borrow_mut().submission().push(entry) };
            if pushed.is_ok() {
                self.unsubmitted.set(self.unsubmitted.get() + 1);
                return;
            }
            self.submit();
        }
    }

    fn start(&self, entry: squeue::Entry, turn: Turn) -> usize {
        let id = self.free.borrow_mut().pop().unwrap_or_else(|| {
            self.ops.borrow_mut().push(Slot::Free);
            self.ops.borrow().len() - 1
        });
        self.ops.borrow_mut()[id] = Slot::Pending(None, turn);
        self.in_flight.set(self.in_flight.get() + 1);
        self.push(&entry.user_data(id as u64));
        if self.unsubmitted.get() >= SUBMIT_AT {
            self.submit();
        }
        id
    }

    /// Hands queued submissions to the kernel without waiting.
    pub(crate) fn submit(&self) {
        if self.unsubmitted.get() == 0 {
            return;
        }
        let outcome = self.ring.borrow().submit();
        self.note_submitted(outcome.map(|_| ()));
    }

    fn note_submitted(&self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.unsubmitted.set(0),
            Err(e) => match e.raw_os_error() {
                // Time ran out or a signal came (submissions were taken); EBUSY and EAGAIN: the
                // completion queue must be emptied first, which the loop does next.
                Some(libc::ETIME | libc::EINTR) => self.unsubmitted.set(0),
                Some(libc::EBUSY | libc::EAGAIN) => self.reap(),
                _ => panic!("io_uring_enter failed: {e}"),
            },
        }
    }

    /// Submits and waits for at least one completion, for `span` at most. When completions have
    /// come soon lately, it looks out for them for a while before it sleeps.
    pub(crate) fn wait(&self, span: Option<Nanos>) {
        self.arm_wake();
        let begun = Instant::now();
        let mut patience = self.patience.get();
        let mut left = span;
        if self.may_look_out && patience.span() > Nanos::ZERO {
            self.submit();
            let most = span.map_or(patience.span(), |span| span.min(patience.span()));
            let ended = self.look_out(begun, most);
            let waited = since(begun);
            if ended != Ended::Slept {
                self.take_completions();
                patience.note(waited, ended);
                return self.patience.set(patience);
            }
            left = span.map(|span| span.since(waited));
            if left == Some(Nanos::ZERO) {
                // It was a timer that came soon, which says nothing of completions.
                return self.reap_queue();
            }
        }
        self.sleep(left);
        patience.note(since(begun), Ended::Slept);
        self.patience.set(patience);
    }

    /// Looks for completions until there are some, for `most` at most; other threads may have the
    /// processor meanwhile.
    fn look_out(&self, begun: Instant, most: Nanos) -> Ended {
        let mut last = Nanos::ZERO;
        loop {
            let some = {
                let mut ring = self.ring.borrow_mut();
                let some = !ring.completion().is_empty();
                let queue = ring.submission();
                some || queue.taskrun() || queue.cq_overflow()
            };
            let now = since(begun);
            let away = now.since(last);
            if away > Nanos(5 * AWAY.0) || (away > AWAY && !some) {
                return Ended::InTheWay;
            }
            if some {
                return Ended::Seen;
            }
            if now >= most {
                return Ended::Slept;
            }
            last = now;
            // Cheaper than it looks when nobody else is there.
            unsafe { libc::sched_yield() };
        }
    }

    /// Lets the kernel post what has completed, and takes it.
    fn take_completions(&self) {
        let to_submit = self.unsubmitted.replace(0) as u32;
        let _ = unsafe {
            self.ring.borrow().submitter().enter::<libc::sigset_t>(
                to_submit, 0, 1, // IORING_ENTER_GETEVENTS
                None,
            )
        };
        self.reap_queue();
    }

    fn arm_wake(&self) {
        if !self.wake_armed.replace(true) {
            let entry = opcode::Read::new(
                types::Fd(self.event_fd),
                self.event_count.as_ptr().cast(),
                size_of::<u64>() as u32,
            );
            self.push(&entry.build().user_data(WAKE_TOKEN));
        }
    }

    fn sleep(&self, span: Option<Nanos>) {
        let outcome = match span {
            None => self.ring.borrow().submit_and_wait(1).map(|_| ()),
            Some(span) => {
                let limit = types::Timespec::new()
                    .sec(span.0 / 1_000_000_000)
                    .nsec((span.0 % 1_000_000_000) as u32);
                let args = types::SubmitArgs::new().timespec(&limit);
                self.ring.borrow().submitter().submit_with_args(1, &args).map(|_| ())
            }
        };
        self.note_submitted(outcome);
        self.reap_queue();
    }

    /// Looks at completions that may have arrived, without waiting.
    pub(crate) fn reap(&self) {
        // With deferred task work the kernel posts completions only inside an enter call; it says
        // when there are some.
        let some = self.unsubmitted.get() > 0 || {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        if self.in_flight.get() > 0 && some {
            self.take_completions();
        } else {
            self.reap_queue();
        }
    }

    fn reap_queue(&self) {
        loop {
            let next = self.ring.borrow_mut().completion().next();
            let Some(done) = next else { return };
            match done.user_data() {
                WAKE_TOKEN => self.wake_armed.set(false),
                CANCEL_TOKEN => {}
                id => self.finish(id as usize, done.result()),
            }
        }
    }

    fn finish(&self, id: usize, result: i32) {
        self.in_flight.set(self.in_flight.get() - 1);
        let before = std::mem::replace(&mut self.ops.borrow_mut()[id], Slot::Done(result));
        match before {
            Slot::Pending(None, _) => {}
            Slot::Pending(Some(waker), Turn::InOrder) => waker.wake(),
            Slot::Pending(Some(waker), Turn::First) => executor::wake_first(waker),
            Slot::Orphan(kept) => {
                self.release(id);
                drop(kept);
            }
            Slot::Free | Slot::Done(_) => unreachable!("a completion for an op that was not there"),
        }
    }

    fn release(&self, id: usize) {
        self.ops.borrow_mut()[id] = Slot::Free;
        self.free.borrow_mut().push(id);
    }

    fn abandon(&self, id: usize, kept: Kept) {
        let done = matches!(self.ops.borrow()[id], Slot::Done(_));
        if done {
            self.release(id);
            return;
        }
        self.ops.borrow_mut()[id] = Slot::Orphan(kept);
        // The entry holds the number of a file and not the file. What the kernel has not taken yet
        // must not outlive whoever keeps that file open: the number may be another's next.
        self.submit();
        self.push(&opcode::AsyncCancel::new(id as u64).build().user_data(CANCEL_TOKEN));
    }

    /// Waits until the kernel holds none of our buffers any more.
    pub(crate) fn drain(&self) {
        while self.in_flight.get() > 0 {
            let outcome = self.ring.borrow().submit_and_wait(1).map(|_| ());
            self.note_submitted(outcome);
            self.reap_queue();
        }
    }
}

fn since(begun: Instant) -> Nanos {
    Nanos(begun.elapsed().as_nanos() as u64)
}

/// One submitted operation that owns `T` (its buffers) until the kernel is done.
pub struct Op<T: 'static> {
    id: Option<usize>,
    kept: Option<T>,
}

/// Submits `entry`. The result is the kernel's (negative: an errno), with `kept` given back.
///
/// # Safety
/// Every pointer in `entry` must point into memory that `kept` owns and that does not move when
/// `kept` does.
pub unsafe fn submit<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry, kept, Turn::InOrder)
}

/// The same for what brings new work, such as a receive: whoever waits for it runs before most of
/// what is ready, so that devices get that work before they have run dry.
///
/// # Safety
/// As for [`submit`].
pub unsafe fn submit_first<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry, kept, Turn::First)
}

fn start<T: 'static>(entry: squeue::Entry, kept: T, turn: Turn) -> Op<T> {
    let id = executor::with(|inner| {
        inner.ring.as_ref().expect("real I/O was asked of a simulated runtime").start(entry, turn)
    });
    Op { id: Some(id), kept: Some(kept) }
}

impl<T: Unpin> Future for Op<T> {
    type Output = (io::Result<u32>, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id.expect("polled after completion");
        let result = executor::with(|inner| {
            let ring = inner.ring.as_ref().expect("this op came from a ring");
            let mut ops = ring.ops.borrow_mut();
            match &mut ops[id] {
                Slot::Done(result) => {
                    let result = *result;
                    drop(ops);
                    ring.release(id);
                    Some(result)
                }
                Slot::Pending(waker, _) => {
                    match waker {
                        Some(known) => known.clone_from(cx.waker()),
                        None => *waker = Some(cx.waker().clone()),
                    }
                    None
                }
                Slot::Free | Slot::Orphan(_) => unreachable!("an op that nobody waits for"),
            }
        });
        let Some(result) = result else { return Poll::Pending };
        self.id = None;
        let kept = self.kept.take().expect("kept until completion");
        let outcome =
            if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as u32) };
        Poll::Ready((outcome, kept))
    }
}

impl<T> Drop for Op<T> {
    fn drop(&mut self) {
        if let (Some(id), Some(kept)) = (self.id.take(), self.kept.take()) {
            executor::with(|inner| {
                inner.ring.as_ref().expect("this op came from a ring").abandon(id, Box::new(kept));
            });
        }
    }
}
