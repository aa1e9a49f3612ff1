//! The write throttle: limits, shares, the reserve, and that no writer waits without end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::{Nanos, VolumeId};
use proptest::prelude::*;

use crate::{Demand, Held, Throttle};

const LIMIT: u64 = 32 << 20;

fn bulk(bytes: u64, volume: u32) -> Demand {
    Demand { bytes, volume: VolumeId(volume), weight: 100, is_durable: false }
}

fn durable(bytes: u64, volume: u32) -> Demand {
    Demand { is_durable: true, ..bulk(bytes, volume) }
}

/// A main store: it commits what is dirty every `period`.
struct Store {
    throttle: Rc<Throttle>,
    open: Rc<Cell<Held>>,
}

impl Store {
    fn new(period: Nanos) -> Self {
        let throttle = Throttle::new(LIMIT);
        let open: Rc<Cell<Held>> = Rc::default();
        let (commits, absorbed) = (throttle.clone(), open.clone());
        rt::spawn(async move {
            loop {
                let group = absorbed.take();
                rt::sleep(period).await;
                commits.release(group);
                commits.measured(group.bytes(), period);
            }
        });
        Self { throttle, open }
    }

    async fn write(&self, demand: Demand) {
        let held = self.throttle.admit(demand).await.unwrap().forget();
        let mut open = self.open.get();
        open += held;
        self.open.set(open);
        assert!(self.throttle.dirty_bytes() <= LIMIT);
    }
}

/// Tasks that write `demand` again and again. Returns the bytes that they wrote in `span`.
async fn race(period: Nanos, writers: &[(Demand, usize)], span: Nanos) -> BTreeMap<u32, u64> {
    let store = Rc::new(Store::new(period));
    let written: Rc<RefCell<BTreeMap<u32, u64>>> = Rc::default();
    for (demand, count) in writers.iter().copied() {
        for _ in 0..count {
            let (store, written) = (store.clone(), written.clone());
            rt::spawn(async move {
                loop {
                    store.write(demand).await;
                    *written.borrow_mut().entry(demand.volume.0).or_default() += demand.bytes;
                }
            });
        }
    }
    // The room is empty at first, and takes what comes.
    rt::sleep(Nanos::from_secs(1)).await;
    written.borrow_mut().clear();
    rt::sleep(span).await;
    written.borrow().clone()
}

#[test]
fn writers_wait_at_the_limit_until_a_release() {
    Runtime::simulated(1).block_on(async {
        let throttle = Throttle::new(LIMIT);
        // Of the limit, an eighth is kept for durable writes.
        let most = LIMIT - LIMIT / 8;
        let taken = throttle.admit(bulk(most - 10_000, 1)).await.unwrap().forget();
        assert_eq!((taken.bytes(), throttle.dirty_bytes()), (most - 10_000, most - 10_000));
        let waiter = rt::spawn({
            let throttle = throttle.clone();
            async move { throttle.admit(bulk(20_000, 1)).await.unwrap().forget() }
        });
        rt::sleep(Nanos::from_secs(10)).await;
        assert!(throttle.is_full() && !waiter.is_finished());
        throttle.release(taken);
        let held = waiter.await;
        assert_eq!(held.bytes(), 20_000);
        // A write larger than the room takes all of it.
        throttle.release(held);
        assert_eq!(throttle.admit(bulk(1 << 30, 1)).await.unwrap().forget().bytes(), most);
    });
}

#[test]
fn the_reserve_is_an_eighth_of_the_limit_within_bounds() {
    Runtime::simulated(10).block_on(async {
        const MIB: u64 = 1 << 20;
        for (limit, reserve) in [
            (2 * MIB, MIB / 2),
            (4 * MIB, MIB),
            (8 * MIB, MIB),
            (16 * MIB, 2 * MIB),
            (256 * MIB, 32 * MIB),
            (1024 * MIB, 32 * MIB),
        ] {
            let throttle = Throttle::new(limit);
            let common = throttle.admit(bulk(u64::MAX, 1)).await.unwrap().forget();
            assert_eq!(common, Held { common_bytes: limit - reserve, reserve_bytes: 0 });
            let kept = throttle.admit(durable(reserve, 1)).await.unwrap().forget();
            assert_eq!(kept, Held { common_bytes: 0, reserve_bytes: reserve });
            assert_eq!(throttle.dirty_bytes(), limit);
        }
    });
}

/// Takes all the common room, then queues a writer for each demand, which has what it is given
/// for good. Room for `each` comes back again and again. Returns whose writers go on, in order.
async fn order(throttle: &Rc<Throttle>, each: u64, demands: Vec<Demand>) -> Vec<u32> {
    let all = throttle.limit_bytes() - throttle.limit_bytes() / 8;
    let rest = all - throttle.dirty_bytes();
    let _ = throttle.admit(bulk(rest, 1000)).await.unwrap().forget();
    let admitted: Rc<RefCell<Vec<u32>>> = Rc::default();
    let tasks = demands.into_iter().map(|demand| {
        let (throttle, admitted) = (throttle.clone(), admitted.clone());
        rt::spawn(async move {
            let _ = throttle.admit(demand).await.unwrap().forget();
            admitted.borrow_mut().push(demand.volume.0);
        })
    });
    let tasks: Vec<_> = tasks.collect();
    rt::sleep(Nanos(1)).await;
    for _ in &tasks {
        throttle.release(Held { common_bytes: each, reserve_bytes: 0 });
        rt::sleep(Nanos(1)).await;
    }
    admitted.take()
}

#[test]
fn a_weight_of_two_is_twice_the_share_of_one() {
    Runtime::simulated(11).block_on(async {
        let throttle = Throttle::new(LIMIT);
        let of = |volume: u32| Demand { weight: volume, ..bulk(1 << 20, volume) };
        let demands = (0..12).flat_map(|_| [of(1), of(2)]).collect();
        let admitted = order(&throttle, 1 << 20, demands).await;
        let heavy = admitted[..9].iter().filter(|volume| **volume == 2).count();
        assert_eq!((admitted.len(), heavy), (24, 6), "{admitted:?}");
    });
}

// Many volumes with a finish tag in the past are forgotten; one that owes is not.
#[test]
fn a_volume_that_took_much_waits_though_many_others_came() {
    // Tasks begin in any order, so that each seed may have another writer come first.
    for seed in 0..8 {
        Runtime::simulated(seed).block_on(async {
            let throttle = Throttle::new(LIMIT);
            for volume in 10..110 {
                let _ = throttle.admit(bulk(4096, volume)).await.unwrap().forget();
            }
            for _ in 0..2 {
                let _ = throttle.admit(bulk(1 << 20, 1)).await.unwrap().forget();
            }
            let _ = throttle.admit(bulk(4096, 200)).await.unwrap().forget();
            let demands = vec![bulk(1 << 20, 1), bulk(1 << 20, 300)];
            assert_eq!(order(&throttle, 1 << 20, demands).await, [300, 1]);
        });
    }
}

#[test]
fn a_durable_write_does_not_wait_while_its_reserve_has_room() {
    Runtime::simulated(2).block_on(async {
        let store = Rc::new(Store::new(Nanos::from_millis(500)));
        for _ in 0..32 {
            let store = store.clone();
            rt::spawn(async move {
                loop {
                    store.write(bulk(1 << 20, 1)).await;
                }
            });
        }
        rt::sleep(Nanos::from_secs(2)).await;
        let mut longest = Nanos::ZERO;
        // 4 MiB in two periods fill no reserve of 4 MiB that is released each period.
        for _ in 0..2_000 {
            let begun = rt::now();
            store.write(durable(4096, 2)).await;
            longest = longest.max(rt::now().since(begun));
            rt::sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(longest, Nanos::ZERO);
    });
}

#[test]
fn durable_writers_beyond_their_reserve_share_with_the_others() {
    Runtime::simulated(3).block_on(async {
        let writers = [(bulk(1 << 20, 1), 8), (durable(1 << 20, 2), 8)];
        let written = race(Nanos::from_millis(100), &writers, Nanos::from_secs(20)).await;
        // What a writer gets of the reserve after it has queued counts as its volume's share.
        let (bulk, durable) = (written[&1] as f64, written[&2] as f64);
        let share = bulk / (bulk + durable);
        assert!((0.48..0.52).contains(&share), "{share}");
    });
}

#[test]
fn volumes_share_by_weight_and_not_by_the_number_of_writers() {
    Runtime::simulated(4).block_on(async {
        // A volume whose writers all wait for replies loses its turn, so each has enough to fill
        // the room.
        let heavy = Demand { weight: 300, ..bulk(256 << 10, 1) };
        let writers = [(heavy, 128), (bulk(1 << 20, 2), 64), (bulk(64 << 10, 3), 1024)];
        let written = race(Nanos::from_millis(100), &writers, Nanos::from_secs(20)).await;
        let ratio = |volume: u32| written[&1] as f64 / written[&volume] as f64;
        assert!((2.9..3.1).contains(&ratio(2)) && (2.9..3.1).contains(&ratio(3)), "{written:?}");
    });
}

#[test]
fn a_volume_alone_takes_all_there_is() {
    Runtime::simulated(5).block_on(async {
        let span = Nanos::from_secs(20);
        let alone = race(Nanos::from_millis(100), &[(bulk(1 << 20, 1), 64)], span).await[&1];
        let idle = Demand { weight: 1000, ..bulk(4096, 2) };
        let beside =
            race(Nanos::from_millis(100), &[(bulk(1 << 20, 1), 64), (idle, 1)], span).await;
        let all = beside[&1] + beside[&2];
        assert!(all * 10 > alone * 9, "{alone} alone, {beside:?} beside another");
    });
}

#[test]
fn a_writer_that_gives_up_leaves_its_place_and_its_room() {
    Runtime::simulated(6).block_on(async {
        let throttle = Throttle::new(LIMIT);
        let all = throttle.admit(bulk(LIMIT, 1)).await.unwrap().forget();
        let (t, u) = (throttle.clone(), throttle.clone());
        let gives_up =
            async move { t.admit(bulk(20 << 20, 1)).await.map(|permit| permit.forget()) };
        let other = rt::spawn(async move { u.admit(bulk(20 << 20, 2)).await.unwrap().forget() });
        let timed = rt::timeout(Nanos::from_secs(1), Box::pin(gives_up)).await;
        assert!(timed.is_err() && !other.is_finished());
        throttle.release(all);
        assert_eq!(other.await.bytes(), throttle.dirty_bytes());
    });
}

// There is room for them, so that no commit is asked for.
#[test]
fn writers_behind_one_that_gives_up_go_on_at_once() {
    Runtime::simulated(9).block_on(async {
        let throttle = Throttle::new(LIMIT);
        let _taken = throttle.admit(bulk(20 << 20, 1)).await.unwrap();
        let (t, u) = (throttle.clone(), throttle.clone());
        let gives_up =
            async move { t.admit(bulk(20 << 20, 1)).await.map(|permit| permit.forget()) };
        let behind = rt::spawn(async move {
            rt::sleep(Nanos(1)).await;
            u.admit(bulk(4096, 1)).await.unwrap().forget()
        });
        let timed = rt::timeout(Nanos::from_secs(1), Box::pin(gives_up)).await;
        assert!(timed.is_err() && !behind.is_finished());
        rt::sleep(Nanos(1)).await;
        assert!(behind.is_finished(), "it waits for a commit");
    });
}

// A suspended pool commits nothing more, so room never comes back.
#[test]
fn writers_that_wait_fail_when_the_throttle_is_closed() {
    Runtime::simulated(7).block_on(async {
        let throttle = Throttle::new(LIMIT);
        let (mut given, mut waiting) = (Vec::new(), Vec::new());
        for demand in [bulk(1 << 20, 1), durable(1 << 20, 2)] {
            for _ in 0..LIMIT >> 20 {
                let throttle = throttle.clone();
                waiting.push(rt::spawn(async move {
                    throttle.admit(demand).await.map(|permit| permit.forget())
                }));
            }
        }
        rt::sleep(Nanos::from_secs(1)).await;
        throttle.close();
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(waiting.iter().all(rt::JoinHandle::is_finished), "one waits for ever");
        for writer in waiting {
            given.extend(writer.await.ok());
        }
        assert_eq!(given.len() as u64, LIMIT >> 20);
        assert!(throttle.admit(durable(4096, 3)).await.is_err());
        given.into_iter().for_each(|held| throttle.release(held));
        assert_eq!(throttle.dirty_bytes(), 0);
        assert!(throttle.admit(bulk(4096, 1)).await.is_err(), "there is room");
    });
}

// Nothing else would admit them: there is room, so no commit is asked for.
#[test]
fn writers_that_wait_for_their_turns_are_admitted_one_after_the_other() {
    Runtime::simulated(8).block_on(async {
        let throttle = Throttle::new(LIMIT);
        throttle.measured(1 << 20, Nanos::from_millis(10));
        let half = throttle.admit(bulk(14 << 20, 1)).await.unwrap().forget();
        let writers: Vec<_> = (0..8)
            .map(|_| {
                let throttle = throttle.clone();
                rt::spawn(async move { throttle.admit(bulk(1 << 20, 1)).await.unwrap().forget() })
            })
            .collect();
        rt::sleep(Nanos::from_millis(1)).await;
        assert!(!throttle.is_full() && !writers.iter().all(rt::JoinHandle::is_finished));
        rt::sleep(Nanos::from_secs(10)).await;
        assert!(writers.iter().all(rt::JoinHandle::is_finished), "one waits for a commit");
        let mut all = half;
        for writer in writers {
            all += writer.await;
        }
        throttle.release(all);
        assert_eq!(throttle.dirty_bytes(), 0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    // A writer is admitted within two commits after the writers before it, room never exceeds
    // the limit, and everything that was given comes back.
    #[test]
    fn every_writer_is_admitted(
        demands in prop::collection::vec((1u64..40, 0u32..4, 1u32..1000, any::<bool>()), 1..200),
        seed in any::<u64>(),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let store = Rc::new(Store::new(Nanos::from_millis(50)));
            let total: u64 = demands.iter().map(|(size, ..)| size * 100_000).sum();
            let tasks = demands.into_iter().map(|(size, volume, weight, is_durable)| {
                let store = store.clone();
                let demand =
                    Demand { bytes: size * 100_000, volume: VolumeId(volume), weight, is_durable };
                rt::spawn(async move { store.write(demand).await })
            });
            let tasks: Vec<_> = tasks.collect();
            let begun = rt::now();
            rt::join_all(tasks).await;
            // At least half of the room is given each period, and no pause is longer than 20 ms.
            let periods = total / (LIMIT / 2) + 3;
            let pauses = Nanos::from_millis(20).0 * 200;
            assert!(rt::now().since(begun).0 <= periods * Nanos::from_millis(50).0 * 2 + pauses);
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(store.throttle.dirty_bytes(), 0);
        });
    }
}
