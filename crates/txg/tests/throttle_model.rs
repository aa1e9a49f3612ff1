//! The throttle against a line of people and a room, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_txg::Throttle;
use forebay_units::Nanos;
use proptest::prelude::*;

const LIMIT: u64 = 64 << 20;

#[derive(Clone, Debug)]
enum Step {
    /// Somebody writes this much.
    Write(u64),
    /// Somebody begins to write this much, and is gone when he has to wait.
    GiveUp(u64),
    /// A group is committed: what was admitted so far is given back.
    Commit,
    /// The store was seen to take a MiB in this time.
    Pace(u64),
    /// So much time passes that whoever may go on has gone on.
    Rest,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![4 => 1u64..(4 << 20), 2 => 1u64..LIMIT, 1 => LIMIT..2 * LIMIT];
    prop_oneof![
        8 => bytes().prop_map(Step::Write),
        2 => bytes().prop_map(Step::GiveUp),
        2 => Just(Step::Commit),
        1 => (0u64..50_000_000).prop_map(Step::Pace),
        4 => Just(Step::Rest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn writers_enter_in_order_and_never_more_than_there_is_room_for(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let throttle = Rc::new(Throttle::new(LIMIT));
            // Who was let in, in order, and what they took.
            let entered: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
            let absorbed = Rc::new(Cell::new(0));
            let mut tasks = Vec::new();
            // The line on paper: number and bytes.
            let mut line: VecDeque<(u64, u64)> = VecDeque::new();
            let (mut free, mut expected) = (LIMIT, Vec::new());
            let mut number = 0;
            let rest = || rt::sleep(Nanos::from_secs(1));
            for step in steps.into_iter().chain([Step::Rest]) {
                match step {
                    Step::Write(bytes) => {
                        let (room, entered, absorbed) =
                            (throttle.clone(), entered.clone(), absorbed.clone());
                        tasks.push(rt::spawn(async move {
                            let took = room.admit(bytes).await.forget();
                            assert_eq!(took, bytes.min(LIMIT));
                            assert!(room.dirty_bytes() <= LIMIT);
                            entered.borrow_mut().push((number, took));
                            absorbed.set(absorbed.get() + took);
                        }));
                        // It stands in the line before the next one comes.
                        rt::yield_now().await;
                        rest().await;
                        line.push_back((number, bytes.min(LIMIT)));
                        number += 1;
                    }
                    Step::GiveUp(bytes) => {
                        let waits = !line.is_empty() || free < bytes.min(LIMIT);
                        // Longer than any delay for the store's sake.
                        let patience = Nanos::from_millis(500);
                        let outcome = rt::timeout(patience, throttle.admit(bytes)).await;
                        assert_eq!(outcome.is_err(), waits);
                        // Whoever is let in and does not write gives it back at once.
                        drop(outcome);
                    }
                    Step::Commit => {
                        rest().await;
                        let bytes = absorbed.replace(0);
                        throttle.release(bytes);
                        free += bytes;
                    }
                    Step::Pace(nanos_per_mib) => {
                        throttle.measured(8 << 20, Nanos(nanos_per_mib * 8));
                    }
                    Step::Rest => rest().await,
                }
                while line.front().is_some_and(|(_, bytes)| *bytes <= free) {
                    let (who, bytes) = line.pop_front().expect("just seen");
                    free -= bytes;
                    expected.push((who, bytes));
                }
                rest().await;
                assert_eq!(throttle.dirty_bytes(), LIMIT - free);
                assert_eq!(throttle.is_full(), !line.is_empty());
                let mut entered = entered.borrow().clone();
                // Delays for the store's sake may turn neighbours round, never the room they take.
                entered.sort_unstable();
                assert_eq!(entered, expected);
            }
            // Commits let everybody in.
            while !line.is_empty() {
                let bytes = absorbed.replace(0);
                assert!(bytes > 0, "the line stands still in an empty room");
                throttle.release(bytes);
                free += bytes;
                while line.front().is_some_and(|(_, bytes)| *bytes <= free) {
                    free -= line.pop_front().expect("just seen").1;
                }
                rest().await;
            }
            rt::join_all(tasks).await;
            throttle.release(absorbed.get());
            assert_eq!(throttle.dirty_bytes(), 0);
        });
    }

    // The fuller the room, the slower: nothing up to half, at most 20 ms, never less for more.
    #[test]
    fn the_pace_rises_from_half_full_and_has_an_end(
        seed in any::<u64>(),
        nanos_per_mib in 0u64..100_000_000,
        bytes in 1u64..(4 << 20),
        fills in prop::collection::vec(0u64..LIMIT - (4 << 20), 1..12),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let throttle = Throttle::new(LIMIT);
            throttle.measured(1 << 20, Nanos(nanos_per_mib));
            let mut fills = fills;
            fills.sort_unstable();
            let mut before = Nanos(0);
            for fill in fills {
                let held = throttle.admit(fill).await;
                let begun = rt::now();
                drop(throttle.admit(bytes).await);
                let took = rt::now().since(begun);
                let full_pace = (nanos_per_mib as f64 * bytes as f64 / (1 << 20) as f64) as u64;
                assert!(took >= before, "{fill} full is quicker than less");
                assert!(took <= Nanos::from_millis(20) && took.0 <= full_pace);
                assert!(fill + bytes > LIMIT / 2 || took == Nanos(0));
                if fill + bytes >= LIMIT / 4 * 3 {
                    assert_eq!(took, Nanos(full_pace).min(Nanos::from_millis(20)));
                }
                before = took;
                drop(held);
                assert_eq!(throttle.dirty_bytes(), 0);
            }
        });
    }

    // The pace is that of all writers together: each one's delay comes after those before it.
    #[test]
    fn many_at_once_are_as_slow_as_one_after_the_other(
        seed in any::<u64>(),
        nanos_per_mib in 0u64..8_000_000,
        writers in 1u64..8,
    ) {
        Runtime::simulated(seed).block_on(async move {
            let throttle = Rc::new(Throttle::new(LIMIT));
            throttle.measured(1 << 20, Nanos(nanos_per_mib));
            let _held = throttle.admit(LIMIT / 4 * 3).await;
            let begun = rt::now();
            let tasks = (0..writers).map(|_| {
                let throttle = throttle.clone();
                rt::spawn(async move { throttle.admit(1 << 20).await.forget() })
            });
            rt::join_all(tasks.collect::<Vec<_>>()).await;
            let all = Nanos(nanos_per_mib * writers).min(Nanos::from_millis(20));
            assert_eq!(rt::now().since(begun), all);
        });
    }
}
