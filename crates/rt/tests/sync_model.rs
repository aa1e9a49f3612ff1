//! The semaphore against a queue on paper, polled by hand so that grants and departures meet in
//! every order; timers against a sorted list.

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
use forebay_rt::sync::{Mutex, Permit, Semaphore};
use forebay_units::Nanos;
use proptest::prelude::*;

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Somebody asks, and waits when there are too few.
    Acquire(u64),
    /// Somebody asks and does not wait.
    Try(u64),
    /// A waiter is polled again.
    Poll(prop::sample::Index),
    /// A waiter goes away, granted or not.
    Leave(prop::sample::Index),
    /// A permit is dropped.
    Drop(prop::sample::Index),
    /// A permit is kept for ever, and given back by hand.
    ByHand(prop::sample::Index),
    /// More permits than there were.
    Add(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        5 => (0u64..12).prop_map(Step::Acquire),
        2 => (0u64..12).prop_map(Step::Try),
        3 => index().prop_map(Step::Poll),
        2 => index().prop_map(Step::Leave),
        4 => index().prop_map(Step::Drop),
        1 => index().prop_map(Step::ByHand),
        1 => (0u64..3).prop_map(Step::Add),
    ]
}

struct Waiting {
    future: Pin<Box<dyn Future<Output = Permit>>>,
    woken: Arc<Woken>,
    need: u64,
    granted: bool,
}

/// What the semaphore should be: a number, and those who wait in order of arrival.
struct Paper {
    free: u64,
    queue: VecDeque<usize>,
}

impl Paper {
    /// Serves whoever is first for as long as there is enough for him.
    fn serve(&mut self, waiting: &mut [Option<Waiting>]) {
        while let Some(first) = self.queue.front() {
            let first = waiting[*first].as_mut().expect("who left is not in the queue");
            if first.need > self.free {
                return;
            }
            self.free -= first.need;
            first.granted = true;
            self.queue.pop_front();
        }
    }
}

proptest! {
    #[test]
    fn a_semaphore_does_what_a_queue_on_paper_does(
        permits in 0u64..12,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let semaphore = Semaphore::new(permits);
        let mut paper = Paper { free: permits, queue: VecDeque::new() };
        let mut waiting: Vec<Option<Waiting>> = Vec::new();
        let mut held: Vec<(u64, Permit)> = Vec::new();
        let mut total = permits;
        let pick = |waiting: &[Option<Waiting>], index: &prop::sample::Index| {
            let there: Vec<usize> = (0..waiting.len()).filter(|i| waiting[*i].is_some()).collect();
            (!there.is_empty()).then(|| *index.get(&there))
        };
        for step in steps {
            match step {
                Step::Acquire(need) => {
                    let woken = Arc::new(Woken::default());
                    let waker = Waker::from(woken.clone());
                    let asked = semaphore.clone();
                    let mut future: Pin<Box<dyn Future<Output = Permit>>> =
                        Box::pin(async move { asked.acquire(need).await });
                    let at_once = paper.queue.is_empty() && paper.free >= need;
                    match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(permit) => {
                            prop_assert!(at_once, "{need} were given past the queue");
                            paper.free -= need;
                            held.push((need, permit));
                        }
                        Poll::Pending => {
                            prop_assert!(!at_once, "{need} were there and not given");
                            paper.queue.push_back(waiting.len());
                            waiting.push(Some(Waiting { future, woken, need, granted: false }));
                        }
                    }
                }
                Step::Try(need) => {
                    let there = paper.queue.is_empty() && paper.free >= need;
                    let permit = semaphore.try_acquire(need);
                    prop_assert_eq!(permit.is_some(), there);
                    if let Some(permit) = permit {
                        paper.free -= need;
                        held.push((need, permit));
                    }
                }
                Step::Poll(index) => {
                    let Some(at) = pick(&waiting, &index) else { continue };
                    let mut one = waiting[at].take().expect("picked");
                    // Another task's waker: only the last one counts.
                    one.woken = Arc::new(Woken::default());
                    let waker = Waker::from(one.woken.clone());
                    match one.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Ready(permit) => {
                            prop_assert!(one.granted);
                            held.push((one.need, permit));
                        }
                        Poll::Pending => {
                            prop_assert!(!one.granted);
                            waiting[at] = Some(one);
                        }
                    }
                }
                Step::Leave(index) => {
                    let Some(at) = pick(&waiting, &index) else { continue };
                    let one = waiting[at].take().expect("picked");
                    match one.granted {
                        true => paper.free += one.need,
                        false => paper.queue.retain(|other| *other != at),
                    }
                    drop(one.future);
                    paper.serve(&mut waiting);
                }
                Step::Drop(_) | Step::ByHand(_) if held.is_empty() => {}
                Step::Drop(index) => {
                    let (need, permit) = held.remove(index.index(held.len()));
                    drop(permit);
                    paper.free += need;
                    paper.serve(&mut waiting);
                }
                Step::ByHand(index) => {
                    let (need, permit) = held.remove(index.index(held.len()));
                    prop_assert_eq!(permit.forget(), need);
                    prop_assert_eq!(semaphore.available(), paper.free, "forgotten is not free");
                    semaphore.release(need);
                    paper.free += need;
                    paper.serve(&mut waiting);
                }
                Step::Add(more) => {
                    semaphore.release(more);
                    total += more;
                    paper.free += more;
                    paper.serve(&mut waiting);
                }
            }
            prop_assert_eq!(semaphore.available(), paper.free);
            prop_assert_eq!(semaphore.has_waiters(), !paper.queue.is_empty());
            for one in waiting.iter().flatten() {
                let woken = one.woken.0.load(Ordering::Relaxed);
                prop_assert_eq!(woken, u64::from(one.granted), "who is served is woken once");
            }
        }
        // Everybody leaves: nothing was lost and nothing was made.
        waiting.clear();
        held.clear();
        prop_assert_eq!(semaphore.available(), total);
    }

    #[test]
    fn a_mutex_is_held_by_one_at_a_time_and_handed_on_in_order(
        seed in any::<u64>(),
        tasks in prop::collection::vec((0u64..20, 0u64..20, prop::option::of(0u64..20)), 1..12),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let shared = Rc::new(Mutex::new(Vec::new()));
            let (asked, inside) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(0)));
            let run = |(number, (start, hold, patience)): (usize, (u64, u64, Option<u64>))| {
                let (shared, asked, inside) = (shared.clone(), asked.clone(), inside.clone());
                rt::spawn(async move {
                    rt::sleep(Nanos(start * 10)).await;
                    asked.borrow_mut().push(number);
                    let work = async {
                        let mut order = shared.lock().await;
                        *inside.borrow_mut() += 1;
                        assert_eq!(*inside.borrow(), 1, "two at once");
                        order.push(number);
                        // Nobody gives up in here: the count would not come down.
                        rt::sleep(Nanos(hold * 10)).await;
                        *inside.borrow_mut() -= 1;
                    };
                    match patience {
                        None => work.await,
                        // Whoever waits too long goes away and stands in nobody's way.
                        Some(patience) => {
                            let mut guard = None;
                            let lock = async { guard = Some(shared.lock().await) };
                            if rt::timeout(Nanos(patience * 10 + 5), lock).await.is_ok() {
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
    fn timers_fire_at_their_time_and_never_after_they_are_dropped(
        seed in any::<u64>(),
        timers in prop::collection::vec((0u64..40, 0u64..40, prop::option::of(0u64..40)), 1..40),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let fired: Rc<RefCell<Vec<(u64, usize)>>> = Rc::default();
            let mut expected = Vec::new();
            let mut tasks = Vec::new();
            for (number, (start, span, patience)) in timers.into_iter().enumerate() {
                // Odd spans against even patience: never both at one instant.
                let (start, span) = (start * 10, span * 10 + 1);
                let patience = patience.map(|patience| patience * 10);
                if patience.is_none_or(|patience| span < patience) {
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
                    match patience {
                        None => ring.await,
                        Some(patience) => {
                            let outcome = rt::timeout(Nanos(patience), ring).await;
                            assert_eq!(outcome.is_ok(), span < patience);
                            assert_eq!(rt::now().0, begun + span.min(patience));
                        }
                    }
                }));
            }
            rt::join_all(tasks).await;
            // Late enough for any that should have been dead.
            rt::sleep(Nanos(10_000)).await;
            let mut fired = fired.take();
            assert!(fired.is_sorted_by_key(|(at, _)| *at), "time goes forward");
            fired.sort_unstable();
            expected.sort_unstable();
            assert_eq!(fired, expected);
        });
    }
}
