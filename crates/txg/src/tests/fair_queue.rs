//! The order in which the throttle admits writers, against a model of start-time fair queueing
//! (Goyal, Vin and Cheng, 1996) that forgets nothing.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_rt::sync::Closed;
use forebay_units::VolumeId;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::{Demand, Permit, Throttle};

const KIB: u64 = 1 << 10;
const RESERVE: u64 = 1024 * KIB;
const COMMON: u64 = 7 * RESERVE;
/// What a smaller write costs.
const LEAST_COST: u64 = 16 * KIB;

#[derive(Clone, Debug)]
enum Step {
    Come(Demand),
    /// Volumes that were not seen before have a small write each, and leave.
    Crowd,
    /// A writer that was admitted gives its room back.
    Release(Index),
    /// A writer that waits gives up.
    GiveUp(Index),
}

fn step() -> impl Strategy<Value = Step> {
    let sizes = [1, 4, 8, 15, 16, 17, 64, 512, 1024, 3500].map(|kib| kib * KIB);
    let bytes = prop_oneof![
        4 => prop::sample::select(sizes.to_vec()),
        1 => prop::sample::select(vec![COMMON - KIB, COMMON, COMMON + KIB, RESERVE + KIB]),
    ];
    let volume = prop_oneof![3 => 0u32..3, 1 => 3u32..200].prop_map(VolumeId);
    // Shares of a power of two are exact in the model's integers.
    let weight = prop::sample::select(vec![1u32, 2, 8]);
    let demand = (bytes, volume, weight, prop::bool::weighted(0.2)).prop_map(
        |(bytes, volume, weight, is_durable)| Demand { bytes, volume, weight, is_durable },
    );
    prop_oneof![
        12 => demand.prop_map(Step::Come),
        8 => any::<Index>().prop_map(Step::Release),
        2 => any::<Index>().prop_map(Step::GiveUp),
        1 => Just(Step::Crowd),
    ]
}

/// A writer of the model: its number, its start tag, and what it asks for.
#[derive(Clone, Debug)]
struct Writer {
    number: usize,
    start: u64,
    demand: Demand,
}

#[derive(Default)]
struct Model {
    now: u64,
    finish: BTreeMap<VolumeId, u64>,
    /// Writers that wait, in the order of their arrival.
    waiting: Vec<Writer>,
    /// Of each writer that is admitted: bytes of the common room and of the reserve.
    admitted: BTreeMap<usize, (u64, u64)>,
}

impl Model {
    fn held(&self) -> (u64, u64) {
        let held = self.admitted.values();
        held.fold((0, 0), |(common, reserve), (c, r)| (common + c, reserve + r))
    }

    fn come(&mut self, number: usize, demand: Demand) {
        let demand = Demand { bytes: demand.bytes.min(COMMON), ..demand };
        let has_reserve = self.held().1 + demand.bytes <= RESERVE;
        let is_first = !self.waiting.iter().any(|writer| writer.demand.is_durable);
        if demand.is_durable && is_first && has_reserve {
            self.admitted.insert(number, (0, demand.bytes));
            return;
        }
        let finish = self.finish.entry(demand.volume).or_default();
        let start = self.now.max(*finish);
        *finish = start + 8 * demand.bytes.max(LEAST_COST) / u64::from(demand.weight);
        self.waiting.push(Writer { number, start, demand });
        self.admit();
    }

    /// A writer gives up, or gives its room back.
    fn leave(&mut self, number: usize) {
        self.waiting.retain(|writer| writer.number != number);
        self.admitted.remove(&number);
        self.admit();
    }

    fn admit(&mut self) {
        while !self.waiting.is_empty() {
            let (common, reserve) = self.held();
            let first = |durable: bool| {
                let of = self.waiting.iter().enumerate();
                let of = of.filter(|(_, writer)| !durable || writer.demand.is_durable);
                of.min_by_key(|(_, writer)| (writer.start, writer.number)).map(|(at, _)| at)
            };
            let bytes = |at: usize| self.waiting[at].demand.bytes;
            let kept = first(true).filter(|at| reserve + bytes(*at) <= RESERVE);
            let shared = first(false).filter(|at| common + bytes(*at) <= COMMON);
            let (at, is_kept) = match (kept, shared) {
                (Some(at), _) => (at, true),
                (None, Some(at)) => (at, false),
                (None, None) => return,
            };
            let Writer { number, start, demand } = self.waiting.remove(at);
            if is_kept {
                self.admitted.insert(number, (0, demand.bytes));
            } else {
                self.now = start;
                self.admitted.insert(number, (demand.bytes, 0));
            }
        }
    }
}

type Admission = Pin<Box<dyn Future<Output = Result<Permit, Closed>>>>;

/// The throttle, with the writers that wait and those that were admitted.
struct Rig {
    throttle: Rc<Throttle>,
    waiting: BTreeMap<usize, Admission>,
    admitted: BTreeMap<usize, Permit>,
}

impl Rig {
    fn come(&mut self, number: usize, demand: Demand) {
        let throttle = self.throttle.clone();
        self.waiting.insert(number, Box::pin(async move { throttle.admit(demand).await }));
    }

    fn leave(&mut self, number: usize) {
        drop(self.waiting.remove(&number));
        drop(self.admitted.remove(&number));
    }

    /// Lets each writer that waits look whether it is admitted.
    fn poll(&mut self) {
        let context = &mut Context::from_waker(Waker::noop());
        self.waiting.retain(|number, admission| match admission.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(permit) => {
                self.admitted.insert(*number, permit.unwrap());
                false
            }
        });
    }
}

/// Plays steps on the throttle and the model, and compares them after each.
fn play(steps: Vec<Step>) {
    let throttle = Throttle::new(COMMON + RESERVE);
    let mut rig = Rig { throttle, waiting: BTreeMap::new(), admitted: BTreeMap::new() };
    let mut model = Model::default();
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Come(demand) => {
                rig.come(number, demand);
                model.come(number, demand);
            }
            Step::Crowd => {
                for one in 0..40 {
                    let volume = VolumeId((1000 + 40 * number + one) as u32);
                    let demand = Demand { bytes: 1, volume, weight: 1, is_durable: false };
                    rig.come(number, demand);
                    rig.poll();
                    model.come(number, demand);
                    rig.leave(number);
                    model.leave(number);
                }
            }
            Step::Release(index) if !model.admitted.is_empty() => {
                let number = *index.get(&model.admitted.keys().copied().collect::<Vec<_>>());
                rig.leave(number);
                model.leave(number);
            }
            Step::GiveUp(index) if !model.waiting.is_empty() => {
                let number = model.waiting[index.index(model.waiting.len())].number;
                rig.leave(number);
                model.leave(number);
            }
            _ => {}
        }
        rig.poll();
        let expected: Vec<_> = model.admitted.keys().collect();
        assert_eq!(rig.admitted.keys().collect::<Vec<_>>(), expected, "after step {number}");
        let (common, reserve) = model.held();
        assert_eq!(rig.throttle.dirty_bytes(), common + reserve, "after step {number}");
        assert_eq!(rig.throttle.is_full(), !model.waiting.is_empty(), "after step {number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn writers_are_admitted_as_fair_queueing_says(
        steps in prop::collection::vec(step(), 1..250),
    ) {
        play(steps);
    }
}
