use super::CacheStudy;
use crate::event::{DeviceIndex, Event, Flags, Op, Stage};
use forebay_cache::Policy;
use forebay_units::Nanos;
use proptest::prelude::*;

fn access(block: u64) -> Event {
    Event {
        time: Nanos::ZERO,
        latency: None,
        offset_bytes: block * 4096,
        len_bytes: 4096,
        device: DeviceIndex(0),
        pid: 0,
        op: Op::Read,
        stage: Stage::Request,
        flags: Flags::default(),
    }
}

fn misses(policy: Policy, capacity: u64, blocks: &[u64]) -> u64 {
    let mut study = CacheStudy::new(4096, Stage::Request, false);
    blocks.iter().for_each(|block| study.number_blocks(&access(*block)));
    study.add_cache(policy, capacity);
    blocks.iter().for_each(|block| study.access(&access(*block)));
    assert_eq!(study.accesses(), blocks.len() as u64);
    study.misses()[0].misses
}

#[test]
fn small_caches_miss_as_worked_out_by_hand() {
    // Two blocks; 1 2 1 3 1: LRU keeps 1, FIFO drops it for 3.
    let order = [1, 2, 1, 3, 1];
    assert_eq!(misses(Policy::Lru, 2, &order), 3);
    assert_eq!(misses(Policy::Fifo, 2, &order), 4);
    // SIEVE: the hand finds 1 used, clears it, and takes 2.
    assert_eq!(misses(Policy::Sieve, 2, &order), 3);
}

#[test]
fn a_request_touches_each_block_that_it_overlaps() {
    let mut request = access(0);
    (request.offset_bytes, request.len_bytes) = (4095, 4098);
    let mut study = CacheStudy::new(4096, Stage::Request, false);
    study.number_blocks(&request);
    assert_eq!(study.footprint_blocks(), 3);
    request.op = Op::Discard;
    study.access(&request);
    assert_eq!(study.accesses(), 0, "a discard is no access");
}

#[test]
fn an_endless_request_is_left_out() {
    let mut request = access(0);
    request.len_bytes = u64::MAX;
    let mut study = CacheStudy::new(4096, Stage::Request, false);
    study.number_blocks(&request);
    study.access(&request);
    assert_eq!((study.footprint_blocks(), study.accesses(), study.left_out()), (0, 0, 1));
}

proptest! {
    /// A cache as large as the footprint misses each block once; none misses less.
    #[test]
    fn misses_lie_between_footprint_and_accesses(
        blocks in prop::collection::vec(0u64..40, 1..400),
        capacity in 1u64..50,
    ) {
        let mut distinct = blocks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let footprint = distinct.len() as u64;
        for policy in Policy::ALL {
            let got = misses(policy, capacity, &blocks);
            prop_assert!(got >= footprint && got <= blocks.len() as u64, "{} {}", policy, got);
        }
        for policy in [Policy::Lru, Policy::Fifo, Policy::Sieve, Policy::Arc] {
            prop_assert_eq!(misses(policy, footprint, &blocks), footprint, "{}", policy);
        }
    }

    /// LRU is a stack algorithm: a larger cache never misses more.
    #[test]
    fn larger_lru_caches_miss_no_more(
        blocks in prop::collection::vec(0u64..60, 1..400),
        capacity in 1u64..50,
    ) {
        let at = |capacity| misses(Policy::Lru, capacity, &blocks);
        prop_assert!(at(capacity + 1) <= at(capacity));
    }
}
