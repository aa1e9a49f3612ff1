//! Tasks, the ready queue, and the loop that alternates between polling and waiting.

use std::cell::{Cell, RefCell};
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use forebay_units::Nanos;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::polls::PollRecord;
use crate::ring::Ring;
use crate::sys;
use crate::timer::TimerEntry;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

/// How many tasks run before the loop looks for completions. One busy connection must not starve
/// the device completions of the others, and new requests must reach the devices while the answers
/// of a burst are still being made.
const POLLS_PER_TURN: usize = 8;
/// The same under simulation, where nothing completes by itself.
const POLLS_PER_SIMULATED_TURN: usize = 64;

pub(crate) struct Inner {
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<usize>>,
    ready: RefCell<VecDeque<usize>>,
    first: First,
    background: Background,
    pub(crate) polls: PollRecord,
    /// What the current poll would have taken so far, under simulation.
    pub(crate) modelled: Cell<Nanos>,
    remote: Arc<Remote>,
    pub(crate) timers: RefCell<BinaryHeap<Rc<TimerEntry>>>,
    pub(crate) timer_seq: Cell<u64>,
    rng: RefCell<Xoshiro256PlusPlus>,
    halted: Cell<bool>,
    is_deadlocked: Cell<bool>,
    pub(crate) clock: Clock,
    pub(crate) ring: Option<Ring>,
}

/// Ready tasks that run before the others, every second time at most, so that the others do not
/// starve. Only io_uring completions are put here: under simulation there are none.
#[derive(Default)]
struct First {
    ready: RefCell<VecDeque<usize>>,
    /// Tasks that are woken now belong in this queue.
    waking: Cell<bool>,
    /// The last task that ran was one of them.
    had_turn: Cell<bool>,
}

/// Ready tasks that run when no other is ready: long work in slices. One of them also runs when the
/// others have had [`TIME_OF_OTHERS`], so that they do not starve. Under simulation any order is
/// possible, and they lie in the common queue.
#[derive(Default)]
struct Background {
    ready: RefCell<VecDeque<usize>>,
    /// The task that is woken now belongs in this queue.
    waking: Cell<bool>,
    /// How long other tasks have run since one of them did.
    others: Cell<Nanos>,
}

/// How long other tasks run between two slices of background work, if they always have something to
/// do. A slice takes 50 µs: a commit keeps a quarter of the thread beside busy writers, and its
/// devices at work.
const TIME_OF_OTHERS: Nanos = Nanos::from_micros(150);

pub(crate) enum Clock {
    Real(std::time::Instant),
    /// The time, and how long the machine was suspended (which the time does not include).
    Virtual(Cell<Nanos>, Cell<Nanos>),
}

struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Where the task was started.
    place: &'static Location<'static>,
    waker: Arc<TaskWaker>,
}

/// The part that other threads touch: ids of tasks that they woke, and the eventfd that ends a
/// wait.
pub(crate) struct Remote {
    woken: Mutex<Vec<usize>>,
    any: AtomicBool,
    event_fd: Option<Arc<File>>,
}

struct TaskWaker {
    id: usize,
    queued: AtomicBool,
    remote: Arc<Remote>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let local = CURRENT.with(|current| match &*current.borrow() {
            Some(inner) if Arc::ptr_eq(&inner.remote, &self.remote) => {
                let queue = match (inner.first.waking.get(), inner.background.waking.get()) {
                    (true, _) => &inner.first.ready,
                    (false, true) => &inner.background.ready,
                    (false, false) => &inner.ready,
                };
                queue.borrow_mut().push_back(self.id);
                true
            }
            _ => false,
        });
        if !local {
            self.remote.woken.lock().expect("no panic under this lock").push(self.id);
            self.remote.any.store(true, Ordering::Release);
            if let Some(event_fd) = &self.remote.event_fd {
                // A full eventfd counter already means "awake", so the result does not matter.
                let _ = event_fd.as_ref().write(&1u64.to_ne_bytes());
            }
        }
    }
}

pub(crate) fn with<R>(f: impl FnOnce(&Rc<Inner>) -> R) -> R {
    CURRENT.with(|current| {
        let inner = current.borrow().clone();
        f(&inner.expect("called outside of Runtime::block_on: time, tasks and I/O need a runtime"))
    })
}

/// Work of the current poll that takes `cost` outside of the simulation. Virtual time does not go
/// on, but [`crate::long_polls`] and [`crate::Slices`] count it. Nothing on a real runtime.
#[inline]
pub fn model_work(cost: Nanos) {
    CURRENT.with(|current| {
        if let Some(inner) = &*current.borrow() {
            if inner.ring.is_none() {
                inner.modelled.set(inner.modelled.get() + cost);
            }
        }
    });
}

/// Wakes a task that runs before most ready tasks.
pub(crate) fn wake_first(waker: Waker) {
    with(|inner| {
        inner.first.waking.set(true);
        waker.wake();
        inner.first.waking.set(false);
    });
}

/// Whether a runtime is current on this thread and it is simulated.
#[must_use]
pub fn is_simulated() -> bool {
    with(|inner| inner.ring.is_none())
}

/// Stops the current runtime after this poll: its `run` returns `None`. This is how a simulated
/// power cut stops the world at an exact device command.
pub fn halt() {
    with(|inner| inner.halted.set(true));
}

/// An executor with its driver.
pub struct Runtime {
    inner: Rc<Inner>,
}

impl Runtime {
    /// A runtime on io_uring. Fails when the kernel has none or refuses it.
    pub fn real() -> io::Result<Self> {
        let event_fd = Arc::new(sys::event_fd()?);
        let mut seed = [0u8; 32];
        sys::fill_random(&mut seed)?;
        let ring = Ring::new(event_fd.clone(), wake_first)?;
        let clock = Clock::Real(std::time::Instant::now());
        let rng = Xoshiro256PlusPlus::from_seed(seed);
        Ok(Self::new(Some(event_fd), clock, rng, Some(ring)))
    }

    /// The same runtime, which sleeps in every wait: as most programs wait for their writes.
    #[must_use]
    pub fn sleeping(self) -> Self {
        if let Some(ring) = &self.inner.ring {
            ring.stop_busy_polling();
        }
        self
    }

    /// A runtime in virtual time, whose every choice follows from `seed`.
    #[must_use]
    pub fn simulated(seed: u64) -> Self {
        let clock = Clock::Virtual(Cell::new(Nanos::ZERO), Cell::new(Nanos::ZERO));
        Self::new(None, clock, Xoshiro256PlusPlus::seed_from_u64(seed), None)
    }

    fn new(
        event_fd: Option<Arc<File>>,
        clock: Clock,
        rng: Xoshiro256PlusPlus,
        ring: Option<Ring>,
    ) -> Self {
        let remote = Arc::new(Remote {
            woken: Mutex::new(Vec::new()),
            any: AtomicBool::new(false),
            event_fd,
        });
        Self {
            inner: Rc::new(Inner {
                tasks: RefCell::new(Vec::new()),
                free: RefCell::new(Vec::new()),
                ready: RefCell::new(VecDeque::new()),
                first: First::default(),
                background: Background::default(),
                polls: PollRecord::default(),
                modelled: Cell::new(Nanos::ZERO),
                remote,
                timers: RefCell::new(BinaryHeap::new()),
                timer_seq: Cell::new(0),
                rng: RefCell::new(rng),
                halted: Cell::new(false),
                is_deadlocked: Cell::new(false),
                clock,
                ring,
            }),
        }
    }

    /// Runs `future` to its end. Panics when [`halt`] was called, or when (under simulation)
    /// nothing can ever make progress again.
    pub fn block_on<F: Future + 'static>(&self, future: F) -> F::Output {
        self.run(future).expect("the runtime was halted")
    }

    /// Runs `future` to its end, or to a [`halt`] (then `None`). Other tasks stay where they are
    /// and go on in the next call. Panics under simulation when every task waits for nothing.
    pub fn run<F: Future + 'static>(&self, future: F) -> Option<F::Output> {
        let _entered = Entered::new(self.inner.clone());
        self.inner.halted.set(false);
        let mut handle = std::pin::pin!(spawn(future));
        let main_waker = Waker::noop();
        let mut context = Context::from_waker(main_waker);
        loop {
            self.inner.run_ready();
            if self.inner.halted.get() {
                return None;
            }
            if let Poll::Ready(out) = handle.as_mut().poll(&mut context) {
                return Some(out);
            }
            self.inner.wait();
        }
    }

    /// Calls `call` as if a task did, between two turns: no task of this runtime runs.
    pub fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(self.inner.clone());
        call()
    }

    /// The virtual or real time of this runtime.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.inner.now()
    }

    /// Whether a simulated run ended in the panic of a deadlock: every task waited, and no timer
    /// was pending.
    #[must_use]
    pub fn is_deadlocked(&self) -> bool {
        self.inner.is_deadlocked.get()
    }
}

impl Runtime {
    /// Ends the runtime: drops every task, and waits some seconds for the operations that the
    /// kernel has under way. Returns the number of operations that have not ended by then, because
    /// their devices hang; their memory stays allocated. Dropping a runtime does the same.
    pub fn finish(self) -> usize {
        self.wind_down()
    }

    fn wind_down(&self) -> usize {
        let _entered = Entered::new(self.inner.clone());
        // Futures may spawn or wake while they are dropped, so the list is taken apart bit by bit,
        // and what is spawned goes to its end.
        self.inner.free.borrow_mut().clear();
        loop {
            let task = self.inner.tasks.borrow_mut().pop();
            match task {
                Some(task) => drop(task),
                None => break,
            }
        }
        self.inner.timers.borrow_mut().clear();
        self.inner.ring.as_ref().map_or(0, Ring::drain)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.wind_down();
    }
}

struct Entered(Option<Rc<Inner>>);

impl Entered {
    fn new(inner: Rc<Inner>) -> Self {
        Self(CURRENT.with(|current| current.replace(Some(inner))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.0.take();
        CURRENT.with(|current| *current.borrow_mut() = before);
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Nanos {
        match &self.clock {
            Clock::Real(base) => Nanos(base.elapsed().as_nanos() as u64),
            Clock::Virtual(now, _) => now.get(),
        }
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    fn insert(&self, future: Pin<Box<dyn Future<Output = ()>>>, place: &'static Location<'static>) {
        let id = self.free.borrow_mut().pop();
        let mut tasks = self.tasks.borrow_mut();
        let id = id.unwrap_or(tasks.len());
        let waker =
            Arc::new(TaskWaker { id, queued: AtomicBool::new(true), remote: self.remote.clone() });
        let task = Some(Task { future: Some(future), place, waker });
        if id == tasks.len() {
            tasks.push(task);
        } else {
            tasks[id] = task;
        }
        self.ready.borrow_mut().push_back(id);
    }

    fn take_remote(&self) {
        if self.remote.any.swap(false, Ordering::AcqRel) {
            let woken = std::mem::take(&mut *self.remote.woken.lock().expect("no panic here"));
            self.ready.borrow_mut().extend(woken);
        }
    }

    fn next_ready(&self) -> Option<usize> {
        let is_due = self.background.others.get() >= TIME_OF_OTHERS;
        if !is_due {
            if let Some(next) = self.next_in_order() {
                return Some(next);
            }
        }
        let slice = self.background.ready.borrow_mut().pop_front();
        if slice.is_some() {
            self.background.others.set(Nanos::ZERO);
        }
        slice.or_else(|| self.next_in_order())
    }

    fn next_in_order(&self) -> Option<usize> {
        let mut ready = self.ready.borrow_mut();
        if self.ring.is_none() && ready.len() > 1 {
            let bound = ready.len() as u64;
            let pick = ((u128::from(self.random_u64()) * u128::from(bound)) >> 64) as usize;
            return ready.swap_remove_back(pick);
        }
        let mut first = self.first.ready.borrow_mut();
        let turn = !first.is_empty() && (ready.is_empty() || !self.first.had_turn.get());
        self.first.had_turn.set(turn);
        if turn { first.pop_front() } else { ready.pop_front() }
    }

    fn run_ready(&self) {
        self.take_remote();
        let polls = if self.ring.is_some() { POLLS_PER_TURN } else { POLLS_PER_SIMULATED_TURN };
        let is_timed = self.ring.is_some();
        let mut begun = if is_timed { self.now() } else { Nanos::ZERO };
        for _ in 0..polls {
            let Some(id) = self.next_ready() else { break };
            self.modelled.set(Nanos::ZERO);
            let place = self.poll_task(id);
            if self.halted.get() {
                return;
            }
            if is_timed {
                let ended = self.now();
                if let Some(place) = place {
                    self.polls.note(place, begun, ended);
                }
                self.background.others.set(self.background.others.get() + ended.since(begun));
                begun = ended;
            } else if let Some(place) = place {
                let now = self.now();
                self.polls.note(place, now, now + self.modelled.get());
            }
        }
    }

    /// Polls a task. Returns where it was started, if it is still there.
    fn poll_task(&self, id: usize) -> Option<&'static Location<'static>> {
        let (mut future, waker, place) = {
            let mut tasks = self.tasks.borrow_mut();
            let task = tasks.get_mut(id)?.as_mut()?;
            task.waker.queued.store(false, Ordering::Release);
            (task.future.take()?, task.waker.clone(), task.place)
        };
        let std_waker = Waker::from(waker.clone());
        let done = future.as_mut().poll(&mut Context::from_waker(&std_waker)).is_ready();
        let mut tasks = self.tasks.borrow_mut();
        let same = matches!(tasks.get(id), Some(Some(t)) if Arc::ptr_eq(&t.waker, &waker));
        if !same {
            return Some(place);
        }
        if done {
            tasks[id] = None;
            drop(tasks);
            // A late wake of a finished task finds an empty slot or its successor, which then
            // merely polls once more than needed.
            self.free.borrow_mut().push(id);
            drop(future);
        } else if let Some(task) = tasks[id].as_mut() {
            task.future = Some(future);
        }
        Some(place)
    }

    /// Waits for a completion, a timer or a wake, unless a task is ready.
    fn wait(&self) {
        self.take_remote();
        let queues = [&self.ready, &self.first.ready, &self.background.ready];
        let idle = queues.iter().all(|queue| queue.borrow().is_empty());
        match &self.clock {
            Clock::Virtual(now, _) => {
                if idle {
                    match self.next_deadline() {
                        Some(deadline) => now.set(now.get().max(deadline)),
                        None => {
                            self.is_deadlocked.set(true);
                            panic!("deadlock: no task is ready and no timer is pending");
                        }
                    }
                }
            }
            Clock::Real(_) => {
                let ring = self.ring.as_ref().expect("a real runtime has a ring");
                if idle {
                    let wait = self.next_deadline().map(|d| d.since(self.now()));
                    ring.wait(wait);
                } else {
                    ring.reap();
                }
            }
        }
        self.fire_timers();
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let mut timers = self.timers.borrow_mut();
        while timers.peek().is_some_and(|t| t.is_dead()) {
            timers.pop();
        }
        timers.peek().map(|t| t.deadline)
    }

    fn fire_timers(&self) {
        if self.timers.borrow().is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.peek() {
                    Some(t) if t.deadline <= now => timers.pop(),
                    _ => None,
                }
            };
            match due {
                Some(timer) => timer.fire(),
                None => return,
            }
        }
    }
}

/// Starts a task on the current runtime. Dropping the handle lets it run on.
#[track_caller]
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    let slot = Rc::new(JoinSlot { out: RefCell::new(None), waker: RefCell::new(None) });
    let done = slot.clone();
    let task = Box::pin(async move {
        let out = future.await;
        *done.out.borrow_mut() = Some(out);
        if let Some(waker) = done.waker.borrow_mut().take() {
            waker.wake();
        }
    });
    let place = Location::caller();
    with(|inner| inner.insert(task, place));
    JoinHandle { slot }
}

/// Starts a task whose end is not waited for. It takes one allocation less than [`spawn`], which
/// matters where there is a task per request.
#[track_caller]
pub fn spawn_detached(future: Pin<Box<dyn Future<Output = ()>>>) {
    let place = Location::caller();
    with(|inner| inner.insert(future, place));
}

struct JoinSlot<T> {
    out: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
}

/// Waits for a spawned task.
pub struct JoinHandle<T> {
    slot: Rc<JoinSlot<T>>,
}

impl<T> JoinHandle<T> {
    /// Whether the task has ended and its result has not been taken yet.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.slot.out.borrow().is_some()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(out) = self.slot.out.borrow_mut().take() {
            return Poll::Ready(out);
        }
        *self.slot.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// Lets the other ready tasks run first.
pub async fn yield_now() {
    yield_by(|waker| waker.wake_by_ref()).await;
}

/// Lets all tasks run first that have something to do, for a while.
pub(crate) async fn yield_to_all() {
    yield_by(|waker| {
        with(|inner| {
            inner.background.waking.set(inner.ring.is_some());
            waker.wake_by_ref();
            inner.background.waking.set(false);
        });
    })
    .await;
}

async fn yield_by(wake: impl Fn(&Waker)) {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        wake(cx.waker());
        Poll::Pending
    })
    .await;
}
