use forebay_format::footer::usual_footer_blocks;
use forebay_rt::Runtime;
use forebay_units::Layout;

use super::*;
use crate::Pool;
use crate::spec::LogSpec;
use crate::tests::rack::memory;
use crate::tests::{names, spec};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

#[test]
fn segments_with_the_ids_of_references_are_refused() {
    let reaches = |end: u32| {
        let first_segment = end.saturating_sub(10);
        let group = GroupConfig {
            layout: Layout::Mirror,
            unit_bytes: UNIT_BYTES,
            column_bytes: UNIT_BYTES,
            data_start_bytes: 0,
            first_segment,
            segments: end - first_segment,
            members: Vec::new(),
        };
        check_ids(&group).is_ok()
    };
    assert!(reaches(10) && reaches(DEDUP_REF_SEGMENT.0));
    assert!(!reaches(DEDUP_REF_SEGMENT.0 + 1) && !reaches(u32::MAX));
}

// These are the examples of the format.
#[test]
fn devices_are_divided_as_the_format_says() {
    let shape = |size_bytes| group_shape(size_bytes, reserve_bytes(size_bytes), 1, None);
    assert_eq!(shape(64 * MIB), (5 * MIB, 256 * KIB, 232));
    assert_eq!(shape(TIB), (257 * MIB, 16 * MIB, 65519));
    // A 64th of the device, in whole mebibytes, 4 to 256.
    let reserves = [(64 * MIB, 4), (320 * MIB, 5), (383 * MIB, 5), (TIB / 100, 163), (TIB, 256)];
    for (size_bytes, mib) in reserves {
        assert_eq!(reserve_bytes(size_bytes), mib * MIB, "{size_bytes}");
    }
    let end = 63 * MIB;
    assert_eq!(log_range(64 * MIB), (MIB, end - MIB));
    assert_eq!(log_range(TIB), (MIB, 16 << 30), "no log needs more");
}

/// The share of a group's space that columns of this size cost: footers as they mostly are, and 18
/// segments that are held back.
fn cost(body_bytes: u64, data_columns: u64, column: u64) -> f64 {
    let blocks = column / BLOCK_BYTES * data_columns;
    let segments = (body_bytes / column).max(1);
    f64::from(usual_footer_blocks(blocks as u32)) / blocks as f64 + 18.0 / segments as f64
}

#[test]
fn a_column_is_the_largest_that_costs_hardly_more_than_the_cheapest() {
    const ROUNDING: f64 = 3e-6;
    let smallest = [(1, 256), (2, 256), (3, 128), (4, 128), (5, 64), (8, 64), (12, 64)];
    for (data_columns, least_kib) in smallest {
        for body_bytes in [58, 251, 1000, 5000, 60_000, 500_000, 1 << 20].map(|mib| mib * MIB) {
            let column = column_bytes(body_bytes, data_columns);
            let units = least_kib * KIB / UNIT_BYTES..=16 * MIB / UNIT_BYTES;
            assert!(units.contains(&(column / UNIT_BYTES)) && column % UNIT_BYTES == 0);
            let all = units.map(|units| units * UNIT_BYTES);
            let all: Vec<u64> = all.filter(|size| body_bytes / size <= MOST_SEGMENTS).collect();
            let of = |size: &u64| cost(body_bytes, data_columns, *size);
            let cheapest = all.iter().map(of).fold(f64::MAX, f64::min);
            assert!(of(&column) <= cheapest + 0.001 + ROUNDING, "{body_bytes} {data_columns}");
            let mut larger = all.iter().filter(|size| **size > column);
            assert!(larger.all(|size| of(size) > cheapest + 0.001 - ROUNDING), "{body_bytes}");
        }
    }
    // No column of 16 MiB at most leaves as few segments as a group may have.
    let large = [
        (2 * TIB, 1, 32),
        (2 * TIB + 64 * MIB, 1, 64),
        (100 * TIB, 1, 2048),
        (100 * TIB, 16, 256),
        (24 * TIB, 24, 128),
    ];
    for (body_bytes, data_columns, mib) in large {
        assert_eq!(column_bytes(body_bytes, data_columns), mib * MIB, "{body_bytes}");
    }
}

#[test]
fn segments_of_a_later_group_are_about_as_large_as_those_before() {
    for (data_columns, column_kib) in [(1, 1024), (2, 512), (3, 352), (4, 256)] {
        let (start, column, segments) = group_shape(TIB / 64, 256 * MIB, data_columns, Some(MIB));
        assert_eq!((start, column), (257 * MIB, column_kib * KIB), "{data_columns}");
        let end = start + column * u64::from(segments);
        assert!(end <= TIB / 64 - MIB && end + column > TIB / 64 - MIB);
    }
    // A group has no more segments than that.
    let (_, column, segments) = group_shape(16 * TIB, 256 * MIB, 1, Some(MIB));
    assert!(column < 257 * MIB && u64::from(segments) <= MOST_SEGMENTS, "{column} {segments}");
    assert!(u64::from(segments) > MOST_SEGMENTS - 100, "{segments}");
}

const DEVICES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

/// The rings of a log in the pool: number and devices of each. Of the first members some are left
/// out.
fn rings_in(layout: Layout, groups: &[usize], leave_out: fn(&mut [MemberConfig])) -> Rings {
    let groups = groups.to_vec();
    Runtime::simulated(4061).block_on(async move {
        let shelf = memory(&DEVICES, 64 << 20);
        let mut wanted = spec(layout, &DEVICES[..groups[0]], &[]);
        let mut taken = groups[0];
        for members in &groups[1..] {
            let more = spec(layout, &DEVICES[taken..taken + members], &[]);
            wanted.groups.extend(more.groups);
            taken += members;
        }
        let pool = Pool::create(shelf, "tank", &wanted).await.unwrap();
        let mut config = pool.config.borrow().clone();
        leave_out(&mut config.groups[0].members);
        let rings = log_rings_of(&config, &pool.devices.borrow());
        for ring in &rings {
            assert_eq!(ring.len_bytes, config.reserve_bytes);
            assert!(ring.sides.iter().all(|side| side.start_bytes == MIB));
        }
        let kept = ring_configs(&config, &rings);
        let ids = |ring: &RingConfig| {
            assert_eq!((ring.len_bytes, ring.start_bytes), (config.reserve_bytes, MIB));
            (ring.ring, ring.sides.iter().map(|side| side.device).collect())
        };
        kept.iter().map(ids).collect()
    })
}

type Rings = Vec<(u32, Vec<u32>)>;

#[test]
fn a_log_in_the_pool_lies_on_one_member_more_than_may_fail() {
    let all = |_: &mut [MemberConfig]| {};
    let pairs = |firsts: &[u32]| -> Rings {
        (32..).zip(firsts).map(|(ring, first)| (ring, vec![*first, first + 1])).collect()
    };
    assert_eq!(rings_in(Layout::Raidz1, &[9], all), pairs(&[0, 2, 4, 6]));
    assert_eq!(rings_in(Layout::Raidz1, &[3], all), pairs(&[0]));
    assert_eq!(rings_in(Layout::Mirror, &[3], all), [(32, vec![0, 1, 2])]);
    assert_eq!(rings_in(Layout::Raidz2, &[5], all), [(32, vec![0, 1, 2])]);
    assert_eq!(rings_in(Layout::Mirror, &[2, 2], all), pairs(&[0, 2]));
    let alone = |ring: u32| (ring, vec![ring - 32]);
    assert_eq!(rings_in(Layout::Raid0, &[3, 3], all), (32..36).map(alone).collect::<Rings>());
}

#[test]
fn a_log_in_the_pool_does_not_lie_on_members_that_miss_something() {
    let stale = |members: &mut [MemberConfig]| members[0].stale_since = Some(1);
    let parts = |members: &mut [MemberConfig]| members[0].stale = vec![(1, 2)];
    let faulted = |members: &mut [MemberConfig]| members[0].state = MemberUse::Faulted;
    for leave_out in [stale, parts, faulted] {
        let rings = rings_in(Layout::Raidz1, &[5], leave_out);
        assert_eq!(rings, [(32, vec![1, 2]), (33, vec![3, 4])]);
    }
    // With fewer members than copies there is one ring on those that are left.
    let two = |members: &mut [MemberConfig]| {
        members[..2].iter_mut().for_each(|member| member.state = MemberUse::Offline);
    };
    assert_eq!(rings_in(Layout::Raidz1, &[3], two), [(32, vec![2])]);
}

#[test]
fn a_log_whose_devices_are_out_of_use_lies_in_the_pool() {
    Runtime::simulated(4062).block_on(async {
        let shelf = memory(&DEVICES, 64 << 20);
        let wanted = spec(Layout::Mirror, &["a", "b"], &["c", "d"]);
        let pool = Pool::create(shelf, "tank", &wanted).await.unwrap();
        let mut config = pool.config.borrow().clone();
        let rings = |config: &PoolConfig| -> Rings {
            let rings = log_rings_of(config, &pool.devices.borrow());
            let sides = |ring: &LogRing| ring.sides.iter().map(|s| s.device_id.0).collect();
            rings.iter().map(|ring| (ring.index.into(), sides(ring))).collect()
        };
        let on_log = rings(&config);
        assert!(on_log.len() == 1 && on_log[0].0 == 0 && on_log[0].1.len() == 2, "{on_log:?}");
        config.logs[0].sides[0].state = MemberUse::Faulted;
        assert_eq!(rings(&config), [(0, vec![config.logs[0].sides[1].device])]);
        config.logs[0].sides[1].state = MemberUse::Offline;
        let members = config.groups[0].members.iter().map(|member| member.device);
        assert_eq!(rings(&config), [(32, members.collect::<Vec<u32>>())]);
        pool.export().await.unwrap();
    });
}

#[test]
fn no_two_groups_and_mirrors_of_a_log_have_one_name() {
    Runtime::simulated(4063).block_on(async {
        let shelf = memory(&DEVICES, 64 << 20);
        let mut wanted = spec(Layout::Mirror, &["a", "b"], &["c", "d"]);
        wanted.groups.extend(spec(Layout::Mirror, &["e", "f"], &[]).groups);
        wanted.logs.push(LogSpec { devices: names(&["g"]) });
        wanted.logs.push(LogSpec { devices: names(&["h", "i"]) });
        let pool = Pool::create(shelf, "tank", &wanted).await.unwrap();
        let status = pool.status();
        let shown = status.groups.iter().chain(&status.logs).map(|vdev| vdev.name.as_str());
        assert_eq!(
            shown.collect::<Vec<_>>(),
            ["mirror-0", "mirror-1", "mirror-2", "g", "mirror-4"]
        );
        let mut config = pool.config.borrow().clone();
        for (name, is_known) in
            [("mirror-0", true), ("mirror-2", true), ("mirror-3", false), ("mirror-4", true)]
        {
            assert_eq!(has_group(&config, name), is_known, "{name}");
        }
        assert!(has_data_group(&config, "mirror-1") && !has_data_group(&config, "mirror-2"));
        assert!(!has_group(&config, "replacing-1"));
        let other = config.groups[1].members[0].clone();
        config.groups[0].members[1].replacement = Some(Box::new(other));
        assert!(has_group(&config, "replacing-1") && !has_group(&config, "replacing-0"));
        pool.export().await.unwrap();
    });
}
