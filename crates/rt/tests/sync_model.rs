//! Model tests: the semaphore against a plain queue, polled by hand so that grants, departures and
//! a close meet in every order; the mutex and timers against sorted lists.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_rt::sync::{Closed, Mutex, Permit, Semaphore};
use forebay_units::Nanos;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A task asks for permits, and waits when there are too few.
    Acquire(u64),
    /// A task asks for permits and does not wait.
    Try(u64),
    /// A waiter is polled again.
    Poll(prop::sample::Index),
    /// A waiter is dropped, granted or not.
    Leave(prop::sample::Index),
    /// A permit is dropped.
    Drop(prop::sample::Index),
    /// A permit is forgotten, and released by hand.
    Forget(prop::sample::Index),
    /// More permits than there were.
    Add(u64),
    /// The semaphore is closed.
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        50 => (0u64..12).prop_map(Step::Acquire),
        20 => (0u64..12).prop_map(Step::Try),
        30 => index().prop_map(Step::Poll),
        20 => index().prop_map(Step::Leave),
        40 => index().prop_map(Step::Drop),
        10 => index().prop_map(Step::Forget),
        10 => (0u64..3).prop_map(Step::Add),
        1 => Just(Step::Close),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Granted,
    Closed,
}

struct Waiting {
    future: Pin<Box<dyn Future<Output = Result<Permit, Closed>>>>,
    woken: Arc<Woken>,
    need: u64,
    ended: Option<Ended>,
}

/// The semaphore, and beside it what it should be: a number, and the waiters in order of arrival.
struct Model {
    semaphore: Rc<Semaphore>,
    free: u64,
    /// Indexes into `waiting`, in order of arrival.
    queue: VecDeque<usize>,
    is_closed: bool,
    waiting: Vec<Option<Waiting>>,
    held: Vec<(u64, Permit)>,
    /// All permits that there are.
    total: u64,
}

impl Model {
    fn new(permits: u64) -> Self {
        Self {
            semaphore: Semaphore::new(permits),
            free: permits,
            queue: VecDeque::new(),
            is_closed: false,
            waiting: Vec::new(),
            held: Vec::new(),
            total: permits,
        }
    }

    /// Whether `need` permits are given at once.
    fn gives_at_once(&self, need: u64) -> bool {
        !self.is_closed && self.queue.is_empty() && self.free >= need
    }

    fn hold(&mut self, need: u64, permit: Permit) {
        self.free -= need;
        self.held.push((need, permit));
    }

    /// Permits have come back: the first waiters get theirs, for as long as there are enough.
    fn give_back(&mut self, permits: u64) {
        self.free += permits;
        while let Some(first) = self.queue.front() {
            let first = self.waiting[*first].as_mut().expect("a dropped waiter is not queued");
            if first.need > self.free {
                return;
            }
            self.free -= first.need;
            first.ended = Some(Ended::Granted);
            self.queue.pop_front();
        }
    }

    fn pick(&self, index: &prop::sample::Index) -> Option<usize> {
        let there: Vec<usize> =
            (0..self.waiting.len()).filter(|at| self.waiting[*at].is_some()).collect();
        (!there.is_empty()).then(|| *index.get(&there))
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Acquire(need) => self.acquire(need)?,
            Step::Try(need) => {
                let expected = self.gives_at_once(need);
                let permit = self.semaphore.try_acquire(need);
                prop_assert_eq!(permit.is_some(), expected);
                if let Some(permit) = permit {
                    self.hold(need, permit);
                }
            }
            Step::Poll(index) => {
                if let Some(at) = self.pick(&index) {
                    self.poll(at)?;
                }
            }
            Step::Leave(index) => {
                if let Some(at) = self.pick(&index) {
                    self.leave(at);
                }
            }
            Step::Drop(_) | Step::Forget(_) if self.held.is_empty() => {}
            Step::Drop(index) => {
                let (need, permit) = self.held.remove(index.index(self.held.len()));
                drop(permit);
                self.give_back(need);
            }
            Step::Forget(index) => {
                let (need, permit) = self.held.remove(index.index(self.held.len()));
                prop_assert_eq!(permit.forget(), need);
                prop_assert_eq!(self.semaphore.available(), self.free, "forgotten is not free");
                self.semaphore.release(need);
                self.give_back(need);
            }
            Step::Add(more) => {
                self.semaphore.release(more);
                self.total += more;
                self.give_back(more);
            }
            Step::Close => {
                self.semaphore.close();
                self.is_closed = true;
                for at in self.queue.drain(..) {
                    let waiter = self.waiting[at].as_mut().expect("a dropped waiter is not queued");
                    waiter.ended = Some(Ended::Closed);
                }
            }
        }
        self.check()
    }

    fn acquire(&mut self, need: u64) -> Result<(), TestCaseError> {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let semaphore = self.semaphore.clone();
        let mut future: Pin<Box<dyn Future<Output = Result<Permit, Closed>>>> =
            Box::pin(async move { semaphore.acquire(need).await });
        let at_once = self.gives_at_once(need);
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(permit)) => {
                prop_assert!(at_once, "{need} permits were given past the queue");
                self.hold(need, permit);
            }
            Poll::Ready(Err(Closed)) => prop_assert!(self.is_closed, "an open semaphore refused"),
            Poll::Pending => {
                prop_assert!(!at_once, "{need} permits were free and not given");
                prop_assert!(!self.is_closed, "a closed semaphore let a task wait");
                self.queue.push_back(self.waiting.len());
                self.waiting.push(Some(Waiting { future, woken, need, ended: None }));
            }
        }
        Ok(())
    }

    fn poll(&mut self, at: usize) -> Result<(), TestCaseError> {
        let mut waiter = self.waiting[at].take().expect("picked");
        // The waker of another task: only the last waker counts.
        waiter.woken = Arc::new(Woken::default());
        let waker = Waker::from(waiter.woken.clone());
        match waiter.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Ok(permit)) => {
                prop_assert_eq!(waiter.ended, Some(Ended::Granted));
                self.held.push((waiter.need, permit));
            }
            Poll::Ready(Err(Closed)) => prop_assert_eq!(waiter.ended, Some(Ended::Closed)),
            Poll::Pending => {
                prop_assert_eq!(waiter.ended, None);
                self.waiting[at] = Some(waiter);
            }
        }
        Ok(())
    }

    fn leave(&mut self, at: usize) {
        let waiter = self.waiting[at].take().expect("picked");
        drop(waiter.future);
        match waiter.ended {
            Some(Ended::Granted) => self.give_back(waiter.need),
            Some(Ended::Closed) => {}
            None => {
                self.queue.retain(|other| *other != at);
                self.give_back(0);
            }
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.semaphore.available(), self.free);
        prop_assert_eq!(self.semaphore.has_waiters(), !self.queue.is_empty());
        for waiter in self.waiting.iter().flatten() {
            let woken = waiter.woken.0.load(Ordering::Relaxed);
            prop_assert_eq!(woken, u64::from(waiter.ended.is_some()), "woken once, at its end");
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn semaphore_matches_model(
        permits in 0u64..12,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::new(permits);
        for step in steps {
            model.apply(step)?;
        }
        // All waiters and holders leave: no permit was lost, and none was made.
        model.waiting.clear();
        model.held.clear();
        prop_assert_eq!(model.semaphore.available(), model.total);
    }

    #[test]
    fn mutex_is_exclusive_and_fair(
        seed in any::<u64>(),
        tasks in prop::collection::vec((0u64..20, 0u64..20, prop::option::of(0u64..20)), 1..12),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let shared = Rc::new(Mutex::new(Vec::new()));
            let (asked, inside) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(0)));
            let run = |(number, (start, hold, timeout)): (usize, (u64, u64, Option<u64>))| {
                let (shared, asked, inside) = (shared.clone(), asked.clone(), inside.clone());
                rt::spawn(async move {
                    rt::sleep(Nanos(start * 10)).await;
                    asked.borrow_mut().push(number);
                    let work = async {
                        let mut order = shared.lock().await;
                        *inside.borrow_mut() += 1;
                        assert_eq!(*inside.borrow(), 1, "two at once");
                        order.push(number);
                        // Not cancelled in here: the count would not come down.
                        rt::sleep(Nanos(hold * 10)).await;
                        *inside.borrow_mut() -= 1;
                    };
                    match timeout {
                        None => work.await,
                        // A waiter that gives up does not hold up those behind it.
                        Some(timeout) => {
                            let mut guard = None;
                            let lock = async { guard = Some(shared.lock().await) };
                            if rt::timeout(Nanos(timeout * 10 + 5), lock).await.is_ok() {
                                guard.expect("locked").push(number);
                            } else {
                                drop(guard);
                                asked.borrow_mut().retain(|other| *other != number);
                            }
                        }
                    }
                })
            };
            let all: Vec<_> = tasks.into_iter().enumerate().map(run).collect();
            rt::join_all(all).await;
            assert_eq!(*shared.lock().await, *asked.borrow(), "in order of arrival");
        });
    }

    #[test]
    fn timers_fire_on_time_and_never_after_drop(
        seed in any::<u64>(),
        timers in prop::collection::vec((0u64..40, 0u64..40, prop::option::of(0u64..40)), 1..40),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let fired: Rc<RefCell<Vec<(u64, usize)>>> = Rc::default();
            let mut expected = Vec::new();
            let mut tasks = Vec::new();
            for (number, (start, span, timeout)) in timers.into_iter().enumerate() {
                // Odd spans against even timeouts: never both at one instant.
                let (start, span) = (start * 10, span * 10 + 1);
                let timeout = timeout.map(|timeout| timeout * 10);
                if timeout.is_none_or(|timeout| span < timeout) {
                    expected.push((start + span, number));
                }
                let fired = fired.clone();
                tasks.push(rt::spawn(async move {
                    rt::sleep_until(Nanos(start)).await;
                    let begun = rt::now().0;
                    assert_eq!(begun, start);
                    let ring = async {
                        rt::sleep(Nanos(span)).await;
                        fired.borrow_mut().push((rt::now().0, number));
                    };
                    match timeout {
                        None => ring.await,
                        Some(timeout) => {
                            let outcome = rt::timeout(Nanos(timeout), ring).await;
                            assert_eq!(outcome.is_ok(), span < timeout);
                            assert_eq!(rt::now().0, begun + span.min(timeout));
                        }
                    }
                }));
            }
            rt::join_all(tasks).await;
            // Late enough for every timer that should not fire.
            rt::sleep(Nanos(10_000)).await;
            let mut fired = fired.take();
            assert!(fired.is_sorted_by_key(|(at, _)| *at), "time goes forward");
            fired.sort_unstable();
            expected.sort_unstable();
            assert_eq!(fired, expected);
        });
    }
}
