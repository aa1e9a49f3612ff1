//! Filling a cache device: what is admitted, what a budget allows, and how regions are written.

use std::rc::Rc;

use forebay_rt::Runtime;

use super::*;
use crate::cache_devices::tests::{Behavior, block, config, online, put};

const DATA: [u8; BLOCK_LEN] = [7; BLOCK_LEN];

#[test]
fn a_budget_fills_with_time() {
    Runtime::simulated(1).block_on(async {
        let size = 86_400 * 1000;
        let mut budget = Budget { milli_dwpd: Some(1000), ..Budget::default() };
        // One drive write a day of this device is a thousand bytes a second.
        rt::sleep(Nanos::from_secs(10)).await;
        assert!(budget.take(10_000, size) && !budget.take(1, size));
        rt::sleep(Nanos::from_secs(3600)).await;
        let most = BURST_SECS * 1000;
        assert!(budget.take(most, size) && !budget.take(1, size));
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(!budget.take(2000, size), "saved up for");
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(budget.take(2000, size));
        budget.milli_dwpd = None;
        assert!(budget.take(u64::MAX, size));
    });
}

#[test]
fn a_budget_that_is_asked_often_fills_as_well() {
    Runtime::simulated(4321).block_on(async {
        // A thousand bytes a second: a tenth of a byte between two questions.
        let size = 86_400 * 1000;
        let mut budget = Budget { milli_dwpd: Some(1000), ..Budget::default() };
        for _ in 0..20_000 {
            rt::sleep(Nanos::from_micros(100)).await;
            assert!(!budget.take(1_000_000, size));
        }
        assert!(budget.take(1900, size));
    });
}

#[test]
fn a_small_budget_is_saved_up_until_a_region_may_be_written() {
    Runtime::simulated(4322).block_on(async {
        // A byte a second: the writes of ten minutes are less than what is asked for.
        let mut budget = Budget { milli_dwpd: Some(1000), ..Budget::default() };
        rt::sleep(Nanos::from_secs(999)).await;
        assert!(!budget.take(1000, DAY_SECS));
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(budget.take(1000, DAY_SECS) && !budget.take(1, DAY_SECS));
        // Half a drive write a day.
        budget.milli_dwpd = Some(500);
        rt::sleep(Nanos::from_secs(1000)).await;
        assert!(!budget.take(501, DAY_SECS) && budget.take(500, DAY_SECS));
    });
}

#[test]
fn blocks_are_left_out_while_four_regions_wait() {
    Runtime::simulated(4323).block_on(async {
        let device = online(Rc::default()).await;
        let region = device.shape().data_blocks();
        for number in 0..4 * region {
            let is_last = number % region == region - 1;
            let admitted = device.admit(block(number), &DATA);
            assert!(!matches!(admitted, Admitted::No), "{number}");
            assert_eq!(matches!(admitted, Admitted::LastOfRegion), is_last, "{number}");
        }
        for number in 0..3 {
            assert!(matches!(device.admit(block(1000 + number), &DATA), Admitted::No));
        }
        let stats = device.stats(&config(), 0);
        let figures = (stats.admitted, stats.refused_busy, stats.refused_budget);
        assert_eq!(figures, (4 * u64::from(region), 3, 0));
    });
}

#[test]
fn the_second_time_around_waits_for_the_budget() {
    Runtime::simulated(4324).block_on(async {
        let device = online(Rc::default()).await;
        let regions = u64::from(device.shape().regions);
        let is_admitted = || !matches!(device.admit(block(1), &DATA), Admitted::No);
        let refused = || device.stats(&config(), 0).refused_budget;
        device.filling.replace(Filling::from(regions - 1, false));
        device.set_budget(Some(1000));
        assert!(is_admitted() && refused() == 0, "the first time around is free");
        device.filling.replace(Filling::from(regions, false));
        device.set_budget(Some(1000));
        // All regions a day.
        let span = Nanos(DAY_SECS * 1_000_000_000 / regions);
        rt::sleep(Nanos(span.0 - 1_000_000_000)).await;
        assert!(!is_admitted() && refused() == 1);
        rt::sleep(Nanos::from_secs(2)).await;
        assert!(is_admitted() && refused() == 1);
        device.filling.replace(Filling::from(regions, false));
        assert!(is_admitted() && refused() == 1, "without a budget");
    });
}

fn admit_all(device: &CacheDevice, blocks: impl Iterator<Item = Indexed>) {
    for block in blocks {
        assert!(!matches!(device.admit(block, &DATA), Admitted::No));
    }
}

/// A device that has a block at each of the first sixty positions, whose next region is the second,
/// and whose writes take some time.
async fn second_time_around() -> (Rc<CacheDevice>, OpenDevice, u64) {
    let behavior = Rc::<Behavior>::default();
    let device = online(behavior.clone()).await;
    let next = u64::from(device.shape().regions) + 1;
    device.filling.replace(Filling::from(next, false));
    (0..60).for_each(|position| put(&device, position));
    behavior.writes_take.set(Nanos::from_millis(10));
    let open = device.open.borrow().clone().unwrap();
    (device, open, next)
}

fn positions(device: &CacheDevice, blocks: impl Fn(u32) -> Indexed) -> Vec<u32> {
    let index = device.index.borrow();
    (0..60).filter(|at| index.at(*at) == Some(blocks(*at))).collect()
}

#[test]
fn what_a_region_had_is_forgotten_while_it_is_written() {
    Runtime::simulated(4325).block_on(async {
        let (device, open, next) = second_time_around().await;
        assert_eq!(device.shape().data_blocks(), 15);
        let new = |at: u32| block(at + 1000);
        admit_all(&device, (15..30).map(new));
        let writing = rt::spawn({
            let (device, open) = (device.clone(), open.clone());
            async move { device.write_region(&open, false).await }
        });
        rt::sleep(Nanos::from_millis(5)).await;
        let others: Vec<u32> = (0..15).chain(30..60).collect();
        assert_eq!(positions(&device, block), others);
        assert!(positions(&device, new).is_empty());
        assert_eq!(writing.await, Ok(true));
        assert_eq!(positions(&device, block), others);
        assert_eq!(positions(&device, new), (15..30).collect::<Vec<_>>());
        assert_eq!(device.filling.borrow().regions_written(), next + 1);
        // One that is not full is written at the end only.
        assert!(matches!(device.admit(block(2000), &DATA), Admitted::Yes));
        assert_eq!(device.write_region(&open, false).await, Ok(false));
        assert_eq!(device.write_region(&open, true).await, Ok(true));
        assert_eq!(device.write_region(&open, true).await, Ok(false));
        assert_eq!(device.find(block(2000).key, None), Some((30, 2100)));
        assert_eq!(device.filling.borrow().regions_written(), next + 2);
    });
}

#[test]
fn a_region_of_a_device_that_goes_offline_meanwhile_is_not_noted() {
    Runtime::simulated(4326).block_on(async {
        let (device, open, _) = second_time_around().await;
        admit_all(&device, (1000..1015).map(block));
        let writing = rt::spawn({
            let device = device.clone();
            async move { device.write_region(&open, false).await }
        });
        rt::sleep(Nanos::from_millis(5)).await;
        device.close(CacheState::Offline);
        assert_eq!(writing.await, Ok(false));
        assert_eq!((device.used_blocks().0, device.has_full_region()), (0, false));
    });
}
