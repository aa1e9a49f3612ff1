//! Sizes of devices: what each device of a group or log must have, and the segments of groups.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, MemoryDevice};
use forebay_format::label::{MIN_DEVICE_BYTES, body_range};
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::compression::scan_ended;
use super::spec;
use crate::layout::geometry_of;
use crate::spec::PoolSpec;
use crate::status::Health;
use crate::{AdminError, CandidateError, OpenWith, Opener, Pool};

const SIZE: u64 = 64 << 20;

fn group(layout: Layout, devices: &[&str]) -> PoolSpec {
    spec(layout, devices, &[])
}

/// Devices that are as large as the number in their names says, in bytes.
fn by_size() -> Rc<dyn Opener> {
    let devices: RefCell<BTreeMap<String, Device>> = RefCell::default();
    OpenWith::new(1, move |name| {
        let size_bytes = name.rsplit(':').next().and_then(|size| size.parse().ok());
        let made = || -> Device { Rc::new(MemoryDevice::new(name, size_bytes.expect("a size"))) };
        Ok(devices.borrow_mut().entry(name.to_owned()).or_insert_with(made).clone())
    })
}

fn sized(name: &str, size_bytes: u64) -> String {
    format!("{name}:{size_bytes}")
}

#[test]
fn the_smallest_device_of_a_pool_has_a_size() {
    Runtime::simulated(88).block_on(async {
        let [less, least] =
            [MIN_DEVICE_BYTES - 4096, MIN_DEVICE_BYTES].map(|size| sized("a", size));
        let refused = Pool::create(by_size(), "tank", &group(Layout::Raid0, &[&less])).await.err();
        let (size_bytes, needed_bytes) = (MIN_DEVICE_BYTES - 4096, MIN_DEVICE_BYTES);
        let small = CandidateError::TooSmall { device: less, size_bytes, needed_bytes };
        assert_eq!(refused, Some(AdminError::Candidate(small)));
        Pool::create(by_size(), "tank", &group(Layout::Raid0, &[&least])).await.unwrap();
    });
}

fn needed(outcome: Result<(), AdminError>) -> u64 {
    match outcome {
        Err(AdminError::Candidate(CandidateError::TooSmall { needed_bytes, .. })) => needed_bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_joins_a_group_or_a_log_is_as_large_as_the_others_of_it() {
    Runtime::simulated(89).block_on(async {
        let small = ["a", "b"].map(|name| sized(name, SIZE));
        let large = ["c", "d", "l"].map(|name| sized(name, 2 * SIZE));
        let [a, b, c, d, l]: [&str; 5] = [&small[0], &small[1], &large[0], &large[1], &large[2]];
        let options = spec(Layout::Mirror, &[a, b], &[l]);
        let pool = Pool::create(by_size(), "tank", &options).await.unwrap();
        pool.add(&group(Layout::Mirror, &[c, d])).await.unwrap();
        let too_small = sized("e", SIZE);
        let of_pair = needed(pool.replace(c, Some(&too_small), false).await);
        assert_eq!(needed(pool.attach(d, &too_small, false).await), of_pair);
        let of_log = needed(pool.attach(l, &too_small, false).await);
        {
            // Behind the last byte of data or of the log there is room for the label.
            let config = pool.config.borrow();
            let end = geometry_of(&config.groups[1]).needed_bytes();
            assert!((SIZE..=2 * SIZE).contains(&of_pair) && body_range(of_pair).1 >= end);
            let ring = &config.logs[0];
            let end = ring.start_bytes + ring.len_bytes;
            assert!(of_log <= 2 * SIZE && body_range(of_log).1 >= end);
        }
        for (device, least, new) in [(c, of_pair, "f"), (l, of_log, "m")] {
            let less = sized(new, least - 4096);
            assert_eq!(needed(pool.attach(device, &less, false).await), least);
            pool.attach(device, &sized(new, least), false).await.unwrap();
        }
        // What a small group needs has nothing to do with the others.
        pool.replace(a, Some(&too_small), false).await.unwrap();
        scan_ended(&pool).await;
        // A larger one may come.
        pool.replace(b, Some(&sized("g", 2 * SIZE)), false).await.unwrap();
        scan_ended(&pool).await;
        assert_eq!(pool.summary().health, Health::Online);
        pool.export().await.unwrap();
    });
}

// The label is at a whole mebibyte before the end, wherever the data ends.
#[test]
fn the_label_of_a_device_of_the_least_size_lies_behind_its_data() {
    Runtime::simulated(90).block_on(async {
        let pair = ["a", "b"].map(|name| sized(name, SIZE));
        let pair = group(Layout::Mirror, &[&pair[0], &pair[1]]);
        let pool = Pool::create(by_size(), "tank", &pair).await.unwrap();
        let mut uneven = 0;
        for (number, mib) in (1..).zip(64..70) {
            // Three columns of data, so that no column is a power of two.
            let devices = ["c", "d", "e", "f"].map(|name| sized(name, mib << 20));
            let devices = devices.each_ref().map(String::as_str);
            let raidz = PoolSpec { force: true, ..group(Layout::Raidz1, &devices) };
            pool.add(&raidz).await.unwrap();
            let added = pool.config.borrow().groups[number].clone();
            let end = geometry_of(&added).needed_bytes();
            uneven += u64::from(end % (1 << 20) != 0);
            let least = pool.needed_bytes(&added.members[0]).unwrap();
            assert!(body_range(least).1 >= end, "{mib} MiB: {least} for data up to {end}");
            assert!(least <= mib << 20);
        }
        assert!(uneven > 0, "it was not seen");
        pool.export().await.unwrap();
    });
}

// Reserves are counted in segments.
#[test]
fn segments_of_a_group_that_is_added_are_as_large_as_the_others() {
    Runtime::simulated(79).block_on(async {
        let small = ["a", "b"].map(|name| sized(name, SIZE));
        let large = ["c", "d", "e"].map(|name| sized(name, 1 << 30));
        let pair = group(Layout::Mirror, &[&small[0], &small[1]]);
        let pool = Pool::create(by_size(), "tank", &pair).await.unwrap();
        let raidz = group(Layout::Raidz1, &[&large[0], &large[1], &large[2]]);
        pool.add(&PoolSpec { force: true, ..raidz }).await.unwrap();
        let blocks = |at: usize| geometry_of(&pool.config.borrow().groups[at]).blocks_per_segment();
        assert_eq!(blocks(0), blocks(1));
        pool.export().await.unwrap();
    });
}
