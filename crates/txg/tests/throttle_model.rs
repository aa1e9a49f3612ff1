//! Model test of the throttle against a queue of writers, in virtual time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_txg::{Demand, Held, Throttle};
use forebay_units::{Nanos, VolumeId};
use proptest::prelude::*;

const LIMIT: u64 = 64 << 20;
/// Room for writes that need not be durable: an eighth of the limit is kept for those that must.
const ROOM: u64 = LIMIT / 8 * 7;

/// A write of `bytes` by the only volume.
fn demand(bytes: u64) -> Demand {
    Demand { bytes, volume: VolumeId(1), weight: 100, is_durable: false }
}

#[derive(Clone, Debug)]
enum Step {
    /// A writer of this many bytes comes.
    Write(u64),
    /// A writer of this many bytes comes, and gives up when it has to wait.
    GiveUp(u64),
    /// A commit releases all bytes admitted so far.
    Commit,
    /// The store was measured to take this many nanoseconds for a MiB.
    Pace(u64),
    /// Enough time passes for every delay to end.
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

/// The throttle, and a model of its queue.
struct Rig {
    throttle: Rc<Throttle>,
    /// Admitted writers: number and bytes, in order.
    entered: Rc<RefCell<Vec<(u64, u64)>>>,
    /// Bytes admitted since the last commit.
    absorbed: Rc<Cell<Held>>,
    tasks: Vec<rt::JoinHandle<()>>,
    /// The model's queue: number and bytes.
    queue: VecDeque<(u64, u64)>,
    free_bytes: u64,
    /// Writers that the model has admitted.
    expected: Vec<(u64, u64)>,
    next_writer: u64,
}

/// Longer than any pauses of the throttle between so many writers.
async fn rest() {
    rt::sleep(Nanos::from_secs(2)).await;
}

impl Rig {
    fn new() -> Self {
        Self {
            throttle: Throttle::new(LIMIT),
            entered: Rc::default(),
            absorbed: Rc::default(),
            tasks: Vec::new(),
            queue: VecDeque::new(),
            free_bytes: ROOM,
            expected: Vec::new(),
            next_writer: 0,
        }
    }

    async fn write(&mut self, bytes: u64) {
        let number = self.next_writer;
        self.next_writer += 1;
        let (throttle, entered, absorbed) =
            (self.throttle.clone(), self.entered.clone(), self.absorbed.clone());
        self.tasks.push(rt::spawn(async move {
            let took = throttle.admit(demand(bytes)).await.unwrap().forget();
            assert_eq!(took, Held { common_bytes: bytes.min(ROOM), reserve_bytes: 0 });
            assert!(throttle.dirty_bytes() <= ROOM);
            entered.borrow_mut().push((number, took.bytes()));
            let mut sum = absorbed.get();
            sum += took;
            absorbed.set(sum);
        }));
        // The writer is queued before the next one comes.
        rt::yield_now().await;
        rest().await;
        self.queue.push_back((number, bytes.min(ROOM)));
    }

    async fn give_up(&self, bytes: u64) {
        let must_wait = !self.queue.is_empty() || self.free_bytes < bytes.min(ROOM);
        // Longer than any delay of an admitted writer.
        let timeout = Nanos::from_millis(500);
        let outcome = rt::timeout(timeout, Box::pin(self.throttle.admit(demand(bytes)))).await;
        assert_eq!(outcome.is_err(), must_wait);
        // A dropped permit is released at once.
        drop(outcome);
    }

    /// Releases all bytes admitted so far, and returns them.
    fn commit(&mut self) -> u64 {
        let held = self.absorbed.take();
        self.throttle.release(held);
        self.free_bytes += held.bytes();
        held.bytes()
    }

    /// Admits writers of the model's queue while they fit.
    fn admit_in_model(&mut self) {
        while let Some((number, bytes)) = self.queue.front().copied() {
            if bytes > self.free_bytes {
                return;
            }
            self.queue.pop_front();
            self.free_bytes -= bytes;
            self.expected.push((number, bytes));
        }
    }

    async fn check(&mut self) {
        self.admit_in_model();
        rest().await;
        assert_eq!(self.throttle.dirty_bytes(), ROOM - self.free_bytes);
        assert_eq!(self.throttle.is_full(), !self.queue.is_empty());
        let mut entered = self.entered.borrow().clone();
        // Admitted tasks run in any order.
        entered.sort_unstable();
        assert_eq!(entered, self.expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn writers_are_admitted_in_order_and_within_the_limit(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let mut rig = Rig::new();
            for step in steps.into_iter().chain([Step::Rest]) {
                match step {
                    Step::Write(bytes) => rig.write(bytes).await,
                    Step::GiveUp(bytes) => rig.give_up(bytes).await,
                    Step::Commit => {
                        rest().await;
                        rig.commit();
                    }
                    Step::Pace(nanos_per_mib) => {
                        rig.throttle.measured(8 << 20, Nanos(nanos_per_mib * 8));
                    }
                    Step::Rest => rest().await,
                }
                rig.check().await;
            }
            // Commits admit every waiting writer.
            while !rig.queue.is_empty() {
                assert!(rig.commit() > 0, "writers wait although nothing is dirty");
                rig.admit_in_model();
                rest().await;
            }
            let Rig { throttle, absorbed, tasks, .. } = rig;
            rt::join_all(tasks).await;
            throttle.release(absorbed.get());
            assert_eq!(throttle.dirty_bytes(), 0);
        });
    }

    // The pause after a write rises with the dirty bytes: none up to half of the room, and at most
    // 20 ms.
    #[test]
    fn pause_rises_from_half_of_the_room_up_to_a_maximum(
        seed in any::<u64>(),
        nanos_per_mib in 0u64..100_000_000,
        bytes in 1u64..(4 << 20),
        fills in prop::collection::vec(0u64..ROOM - (4 << 20), 1..12),
    ) {
        Runtime::simulated(seed).block_on(async move {
            let throttle = Throttle::new(LIMIT);
            throttle.measured(1 << 20, Nanos(nanos_per_mib));
            let mut fills = fills;
            fills.sort_unstable();
            let mut before = Nanos(0);
            for fill in fills {
                let held = throttle.admit(demand(fill)).await;
                rest().await;
                let first = throttle.admit(demand(bytes)).await;
                let begun = rt::now();
                drop(throttle.admit(demand(1)).await);
                let took = rt::now().since(begun);
                let full_pace = (nanos_per_mib as f64 * bytes as f64 / (1 << 20) as f64) as u64;
                assert!(took >= before, "the pause shrinks at {fill} dirty bytes");
                assert!(took <= Nanos::from_millis(20) && took.0 <= full_pace);
                assert!(fill + bytes > ROOM / 2 || took == Nanos(0));
                if fill + bytes >= ROOM / 4 * 3 {
                    let all = Nanos(full_pace).min(Nanos::from_millis(20));
                    assert!(took == all || (took == Nanos(0) && all <= Nanos::from_micros(50)));
                }
                before = took;
                drop((held, first));
                assert_eq!(throttle.dirty_bytes(), 0);
                rest().await;
            }
        });
    }

    // The pace holds for all writers together.
    #[test]
    fn parallel_writers_share_one_pace(
        seed in any::<u64>(),
        nanos_per_mib in 0u64..40_000_000,
        writers in 1u64..8,
    ) {
        Runtime::simulated(seed).block_on(async move {
            let throttle = Throttle::new(LIMIT);
            throttle.measured(1 << 20, Nanos(nanos_per_mib));
            let _held = throttle.admit(demand(ROOM / 4 * 3)).await;
            rest().await;
            let begun = rt::now();
            let tasks = (0..writers).map(|_| {
                let throttle = throttle.clone();
                rt::spawn(async move { throttle.admit(demand(1 << 20)).await.unwrap().forget() })
            });
            rt::join_all(tasks.collect::<Vec<_>>()).await;
            let took = rt::now().since(begun).0;
            let all = Nanos(nanos_per_mib).min(Nanos::from_millis(20)).0 * (writers - 1);
            // A writer may be early by the shortest pause that is slept.
            assert!(took <= all && took + 50_000 * writers >= all, "{took} instead of {all} ns");
        });
    }
}

const MIB: u64 = 1 << 20;

/// How long the next writer waits after a write of `bytes`, while `dirty` bytes are held.
async fn pause_after(throttle: &Throttle, dirty: u64, bytes: u64) -> Nanos {
    rest().await; // no earlier writer delays this one
    let held = throttle.admit(demand(dirty)).await.unwrap();
    rest().await;
    let write = throttle.admit(demand(bytes)).await.unwrap();
    let begun = rt::now();
    let next = throttle.admit(demand(1)).await.unwrap();
    drop((next, write, held));
    rt::now().since(begun)
}

#[test]
fn the_next_writer_waits_as_long_as_the_store_takes() {
    Runtime::simulated(1).block_on(async {
        let throttle = Throttle::new(LIMIT);
        // The room is 56 MiB.
        assert_eq!(pause_after(&throttle, 50 * MIB, MIB).await, Nanos::ZERO, "nothing is measured");
        throttle.measured(4 * MIB, Nanos::from_millis(8));
        let ms = Nanos::from_millis;
        assert_eq!(pause_after(&throttle, 27 * MIB, MIB).await, Nanos::ZERO, "half of the room");
        assert_eq!(pause_after(&throttle, 34 * MIB, MIB).await, ms(1), "half way to the pace");
        assert_eq!(pause_after(&throttle, 41 * MIB, MIB).await, ms(2), "three quarters");
        assert_eq!(pause_after(&throttle, 52 * MIB, MIB).await, ms(2));
        assert_eq!(pause_after(&throttle, 45 * MIB, 3 * MIB).await, ms(6));
        assert_eq!(pause_after(&throttle, 26 * MIB, 29 * MIB).await, ms(20), "the longest pause");
        throttle.measured(MIB - 1, ms(50));
        assert_eq!(pause_after(&throttle, 50 * MIB, MIB).await, ms(2), "too little to measure");
        throttle.measured(MIB, ms(3));
        assert_eq!(pause_after(&throttle, 50 * MIB, MIB).await, ms(3));
    });
}

#[test]
fn short_pauses_are_slept_together() {
    Runtime::simulated(1).block_on(async {
        let throttle = Throttle::new(LIMIT);
        throttle.measured(MIB, Nanos::from_micros(80));
        assert_eq!(pause_after(&throttle, 34 * MIB, MIB).await, Nanos::ZERO);
        assert_eq!(pause_after(&throttle, 41 * MIB, MIB).await, Nanos::from_micros(80));
        rest().await;
        let _held = throttle.admit(demand(50 * MIB)).await.unwrap();
        rest().await;
        let begun = rt::now();
        let mut permits = Vec::new();
        for _ in 0..3 {
            permits.push(throttle.admit(demand(MIB / 2)).await.unwrap());
        }
        assert_eq!(rt::now().since(begun), Nanos::from_micros(80));
    });
}

#[test]
fn a_closed_throttle_admits_no_writer_and_wakes_those_that_wait() {
    Runtime::simulated(1).block_on(async {
        let throttle = Throttle::new(LIMIT);
        let held = throttle.admit(demand(LIMIT)).await.unwrap();
        let writers: Vec<_> = [demand(1), Demand { is_durable: true, ..demand(20 * MIB) }]
            .into_iter()
            .map(|demand| {
                let throttle = throttle.clone();
                rt::spawn(async move { throttle.admit(demand).await.is_err() })
            })
            .collect();
        rest().await;
        assert!(throttle.is_full(), "the writers wait");
        throttle.close();
        assert_eq!(rt::join_all(writers).await, [true, true], "they fail");
        drop(held);
        assert!(throttle.admit(demand(1)).await.is_err());
        assert_eq!(throttle.dirty_bytes(), 0);
    });
}
