//! The io_uring driver: submissions in, completions out, buffers kept until the kernel is done.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_units::Nanos;
use io_uring::{IoUring, opcode, squeue, types};

use crate::busy_poll::{BusyPoll, WaitEnd};

const RING_ENTRIES: u32 = 2048;
const WAKE_TOKEN: u64 = u64::MAX;
const CANCEL_TOKEN: u64 = u64::MAX - 1;
/// This many queued submissions go to the kernel before the turn ends, so that a device works on
/// the first requests of a burst while the rest is being prepared. One by one they would cost a
/// system call each.
const SUBMIT_AT: usize = 4;

/// Worker threads of the kernel that may be blocked at a time, in submissions and in operations
/// that the kernel cannot queue, such as fsync and fallocate. The kernel's own bound is four for
/// each processor. A device that hangs takes all of these, and then no other file is synchronized.
/// An idle worker ends after seconds.
pub const WORKERS_MAX: u32 = 1024;
/// How long the end of a runtime waits for operations that the kernel has under way.
const DRAIN_TIMEOUT: Nanos = Nanos::from_secs(5);

pub(crate) struct Ring {
    ring: RefCell<IoUring>,
    ops: RefCell<Vec<Slot>>,
    free: RefCell<Vec<usize>>,
    in_flight: Cell<usize>,
    unsubmitted: Cell<usize>,
    event_fd: Arc<File>,
    // Where the kernel puts the eventfd's count; boxed so that it never moves.
    event_count: Box<Cell<u64>>,
    wake_armed: Cell<bool>,
    busy_poll: Cell<BusyPoll>,
    /// When the last wait ended that did not find its completion at once.
    turn_begun: Cell<Instant>,
    /// Wakes a task that runs before most ready tasks.
    wake_first: fn(Waker),
    /// Whether other threads have processors left while this thread busy-polls.
    may_busy_poll: Cell<bool>,
}

/// A busy-polling thread that was off the processor for longer than this has kept another thread
/// from it. (Interrupts that bring completions take tens of microseconds.)
const PREEMPTED_AFTER: Nanos = Nanos::from_micros(100);

/// What an operation lends to the kernel.
pub(crate) type Kept = Box<dyn Any>;

enum Slot {
    Free,
    Pending(Option<Waker>, Turn),
    Done(i32),
    /// The future was dropped; what it lent to the kernel stays here until the completion.
    Orphan(Kept, Turn),
}

/// When the task that waits for an operation runs, once the operation has completed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// After the tasks that became ready before.
    InOrder,
    /// Before most ready tasks.
    First,
    /// The same, and the end of a runtime does not wait for it: the kernel completes it when there
    /// is something to do, or never.
    Standing,
}

impl Ring {
    pub(crate) fn new(event_fd: Arc<File>, wake_first: fn(Waker)) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(RING_ENTRIES * 4)
            .build(RING_ENTRIES)?;
        // 0 leaves the bound of workers that wait for sockets as it is.
        ring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0])?;
        Ok(Self {
            ring: RefCell::new(ring),
            ops: RefCell::new(Vec::new()),
            free: RefCell::new(Vec::new()),
            in_flight: Cell::new(0),
            unsubmitted: Cell::new(0),
            event_fd,
            event_count: Box::new(Cell::new(0)),
            wake_armed: Cell::new(false),
            busy_poll: Cell::default(),
            turn_begun: Cell::new(Instant::now()),
            wake_first,
            may_busy_poll: Cell::new(
                std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
            ),
        })
    }

    /// Sleeps at once in every wait from now on.
    pub(crate) fn stop_busy_polling(&self) {
        self.may_busy_poll.set(false);
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the caller of `submit` vouches for the pointers of its entry; the entries of
            // this module point into `self.event_count` or have none.
            let pushed = unsafe { self.ring.borrow_mut().submission().push(entry) };
            if pushed.is_ok() {
                self.unsubmitted.set(self.unsubmitted.get() + 1);
                return;
            }
            self.submit();
        }
    }

    pub(crate) fn start(&self, entry: squeue::Entry, turn: Turn) -> usize {
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

    /// Submits and waits for at least one completion, for `span` at most. When the last waits were
    /// short, it busy-polls before it sleeps.
    pub(crate) fn wait(&self, span: Option<Nanos>) {
        self.arm_wake();
        let mut busy_poll = self.busy_poll.get();
        let busy_polls = self.may_busy_poll.get() && busy_poll.span() > Nanos::ZERO;
        if busy_polls {
            self.submit();
            // A socket that has data already, or memory. The clock is not needed then.
            if self.has_completed() {
                self.take_completed();
                busy_poll.record(Nanos::ZERO, WaitEnd::Polled);
                return self.busy_poll.set(busy_poll);
            }
        }
        let begun = Instant::now();
        busy_poll.record_turn(Nanos((begun - self.turn_begun.get()).as_nanos() as u64));
        let mut left = span;
        if busy_polls {
            let limit = span.map_or(busy_poll.span(), |span| span.min(busy_poll.span()));
            let end = self.poll_completions(begun, limit);
            let waited = since(begun);
            self.turn_begun.set(begun + Duration::from_nanos(waited.0));
            if end != WaitEnd::Slept {
                self.take_completed();
                busy_poll.record(waited, end);
                return self.busy_poll.set(busy_poll);
            }
            left = span.map(|span| span.since(waited));
            if left == Some(Nanos::ZERO) {
                // A timer ended the wait, which says nothing about completions.
                return self.reap_queue();
            }
        }
        self.sleep(left);
        let waited = since(begun);
        self.turn_begun.set(begun + Duration::from_nanos(waited.0));
        busy_poll.record(waited, WaitEnd::Slept);
        self.busy_poll.set(busy_poll);
    }

    /// Busy-polls until there are completions, for `limit` at most. Other threads may have the
    /// processor in between.
    fn poll_completions(&self, begun: Instant, limit: Nanos) -> WaitEnd {
        let mut last = Nanos::ZERO;
        loop {
            let some = self.has_completed();
            let now = since(begun);
            let away = now.since(last);
            if away > Nanos(5 * PREEMPTED_AFTER.0) || (away > PREEMPTED_AFTER && !some) {
                return WaitEnd::Preempted;
            }
            if some {
                return WaitEnd::Polled;
            }
            if now >= limit {
                return WaitEnd::Slept;
            }
            last = now;
            // This is cheap when no other thread wants the processor.
            std::thread::yield_now();
        }
    }

    /// Whether operations have completed, posted or not.
    fn has_completed(&self) -> bool {
        let posted = !self.ring.borrow_mut().completion().is_empty();
        posted || self.must_enter()
    }

    /// Whether there are completions that the kernel posts in the next enter call only: with
    /// deferred task work, or because the completion queue was full.
    fn must_enter(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let queue = ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Takes what has completed, posted or not.
    fn take_completed(&self) {
        if self.must_enter() {
            self.take_completions();
        } else {
            self.reap_queue();
        }
    }

    /// Lets the kernel post what has completed, and takes it.
    fn take_completions(&self) {
        let to_submit = self.unsubmitted.replace(0) as u32;
        // SAFETY: no argument is passed, so there is no pointer.
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
                types::Fd(self.event_fd.as_raw_fd()),
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

    /// Takes completions that have arrived, without waiting.
    pub(crate) fn reap(&self) {
        let some = self.unsubmitted.get() > 0 || self.must_enter();
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
            Slot::Pending(Some(waker), Turn::First | Turn::Standing) => (self.wake_first)(waker),
            Slot::Orphan(kept, _) => {
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

    /// The result of an operation that has completed, whose slot is free then. Otherwise `waker` is
    /// woken when it completes.
    pub(crate) fn result_of(&self, id: usize, waker: &Waker) -> Option<i32> {
        let mut ops = self.ops.borrow_mut();
        match &mut ops[id] {
            Slot::Done(result) => {
                let result = *result;
                drop(ops);
                self.release(id);
                Some(result)
            }
            Slot::Pending(waiting, _) => {
                match waiting {
                    Some(known) => known.clone_from(waker),
                    None => *waiting = Some(waker.clone()),
                }
                None
            }
            Slot::Free | Slot::Orphan(..) => unreachable!("an operation without a future"),
        }
    }

    pub(crate) fn abandon(&self, id: usize, kept: Kept) {
        let Slot::Pending(_, turn) = self.ops.borrow()[id] else {
            self.release(id);
            return;
        };
        self.ops.borrow_mut()[id] = Slot::Orphan(kept, turn);
        // An entry holds the number of a file, not the file. An entry that the kernel has not
        // taken yet must not outlive the file's owner: another file may get the number next.
        self.submit();
        self.push(&opcode::AsyncCancel::new(id as u64).build().user_data(CANCEL_TOKEN));
    }

    /// Waits until the kernel holds no buffer any more, for [`DRAIN_TIMEOUT`] at most. Returns the
    /// number of operations that have not ended; what they lent to the kernel is never freed.
    pub(crate) fn drain(&self) -> usize {
        let begun = Instant::now();
        while self.ending() > 0 && since(begun) < DRAIN_TIMEOUT {
            self.sleep(Some(DRAIN_TIMEOUT.since(since(begun))));
        }
        let left = self.ending();
        if self.in_flight.get() > 0 {
            std::mem::forget(self.ops.take());
        }
        self.in_flight.set(0);
        left
    }

    /// Operations under way that end by themselves or when they are cancelled.
    fn ending(&self) -> usize {
        let ends = |slot: &&Slot| match slot {
            Slot::Pending(_, turn) | Slot::Orphan(_, turn) => *turn != Turn::Standing,
            Slot::Free | Slot::Done(_) => false,
        };
        self.ops.borrow().iter().filter(ends).count()
    }
}

fn since(begun: Instant) -> Nanos {
    Nanos(begun.elapsed().as_nanos() as u64)
}
