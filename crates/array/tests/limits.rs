//! What an array refuses, and what it does at the ends of segments, batches and groups.

mod common;

use std::rc::Rc;

use common::{Rig, block, geometry, judge, segment, simulate};
use forebay_array::{Array, ArrayError, GroupGeometry, GroupSpec, MemberSpec, WriteKind};
use forebay_device::{Device, IoBuf, MemoryDevice};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout};

fn memory(number: usize, geometry: &GroupGeometry) -> (DeviceId, Device) {
    let device = MemoryDevice::new(&format!("m{number}"), geometry.needed_bytes());
    (DeviceId(number as u32), Rc::new(device))
}

fn members(count: usize, geometry: &GroupGeometry) -> Vec<(DeviceId, Device)> {
    (0..count).map(|number| memory(number, geometry)).collect()
}

#[test]
fn a_group_that_its_layout_does_not_allow_is_refused() {
    for (layout, count, is_allowed) in [
        (Layout::Raidz2, 2, false),
        (Layout::Raidz2, 3, true),
        (Layout::Mirror, 24, true),
        (Layout::Mirror, 25, false),
    ] {
        let geometry = geometry(layout, count);
        let group = GroupSpec::healthy(geometry, members(count, &geometry));
        assert_eq!(Array::new(vec![group]).is_ok(), is_allowed, "{layout} of {count}");
    }
}

#[test]
fn a_mirror_takes_no_more_than_the_most_members() {
    let geometry = geometry(Layout::Mirror, 23);
    let group = GroupSpec::healthy(geometry, members(23, &geometry));
    let array = Array::new(vec![group]).expect("sound");
    let attach = |number| {
        let (id, device) = memory(number, &geometry);
        array.attach(DeviceId(0), id, device)
    };
    assert_eq!(attach(23), Ok(()));
    assert_eq!(attach(24), Err(ArrayError::Full { device: DeviceId(24) }));
}

#[test]
fn addresses_and_rows_past_a_segment_are_refused() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        let limit = rig.geometry().blocks_per_segment();
        let past = BlockAddr::new(segment(0), limit);
        let refused =
            Err(ArrayError::OutOfRange { segment: segment(0), first: limit, count: 1, limit });
        assert_eq!(rig.array.alternatives(past).await.map(|_| ()), refused);
        assert_eq!(rig.array.repair(past, &[0; BLOCK_LEN]).await.map(|_| ()), refused);
        assert!(rig.array.alternatives(BlockAddr::new(segment(0), limit - 1)).await.is_ok());
        let rows = rig.geometry().rows();
        assert!(rig.array.begin_rebuild(segment(0), rows).is_ok());
        assert!(rig.array.begin_rebuild(segment(0), rows + 1).is_err());
    });
}

#[test]
fn a_batch_has_just_the_blocks_that_were_put() {
    let geometry = GroupGeometry { column_bytes: 256 * BLOCK_BYTES, ..geometry(Layout::Raid0, 2) };
    let array =
        Array::new(vec![GroupSpec::healthy(geometry, members(2, &geometry))]).expect("sound");
    let mut batch = array.begin_batch(segment(0), 0, 100, WriteKind::User).expect("in range");
    let is_put = |index: u32| index % 3 == 1 || index % 64 == 0;
    for index in (0..batch.blocks()).filter(|index| is_put(*index)) {
        let block = block(batch.addr(index), 1);
        batch.put(index, IoBuf::copy_of(&block).freeze());
    }
    for index in 0..batch.blocks() {
        let expected = is_put(index).then(|| block(batch.addr(index), 1));
        assert_eq!(batch.block(index), expected.as_ref().map(|block| &block[..]), "block {index}");
    }
}

// A member may leave only if every segment can be read without it, whatever its number.
#[test]
fn each_segment_of_a_large_group_keeps_its_last_source() {
    const SEGMENTS: u32 = 130;
    let geometry = GroupGeometry { segments: SEGMENTS, ..geometry(Layout::Mirror, 2) };
    let first = geometry.first_segment;
    for stale in [0, 1, 62, 63, 64, 127, 128, 129] {
        let slot = |(id, device): (DeviceId, Device)| {
            let lacks = first + stale..first + stale + 1;
            let stale = if id.0 == 1 { vec![lacks] } else { Vec::new() };
            vec![MemberSpec { stale, ..MemberSpec::healthy(id, device) }]
        };
        let slots = members(2, &geometry).into_iter().map(slot).collect();
        let array = Array::new(vec![GroupSpec { geometry, slots }]).expect("sound");
        let lost = ArrayError::WouldLose { device: DeviceId(0), segment: segment(stale) };
        assert_eq!(array.fault(DeviceId(0), None), Err(lost));
        assert_eq!(array.fault(DeviceId(1), None), Ok(()));
    }
}

#[test]
fn groups_may_follow_each_other_and_not_overlap() {
    let at = |first_segment: u32, id: usize| {
        let geometry = GroupGeometry { first_segment, ..geometry(Layout::Raid0, 1) };
        GroupSpec::healthy(geometry, vec![memory(id, &geometry)])
    };
    let len = geometry(Layout::Raid0, 1).segments;
    for first in [0, 1, 20] {
        let array = Array::new(vec![at(first + len, 0)]).expect("sound");
        assert_eq!(array.add_group(at(first + 2 * len, 1)), Ok(1), "after it");
        assert_eq!(array.add_group(at(first, 2)), Ok(2), "before it");
        for start in [first, first + 1, first + len + 1, first + 3 * len - 1] {
            let refused = array.add_group(at(start, 3));
            let overlaps = |error: &ArrayError| matches!(error, ArrayError::Geometry(_));
            assert!(refused.as_ref().is_err_and(overlaps), "at {start}: {refused:?}");
        }
    }
}

#[test]
fn rows_past_the_first_half_have_no_copies() {
    let geometry = geometry(Layout::Raid0, 2);
    let array =
        Array::new(vec![GroupSpec::healthy(geometry, members(2, &geometry))]).expect("sound");
    let batch = |first, rows| array.begin_batch(segment(0), first, rows, WriteKind::Map);
    for (first, rows, is_copied) in
        [(0, 2, true), (1, 1, true), (1, 2, false), (2, 1, false), (3, 1, false)]
    {
        let copy = batch(first, rows).expect("in range").copied();
        assert_eq!(copy.is_some(), is_copied, "{rows} rows from {first}");
    }
}

#[test]
fn a_read_without_one_device_reads_each_other_device_once() {
    simulate(4, async {
        let rig = Rig::new(Layout::Raidz1, 4);
        rig.fill(segment(0), 1).await;
        rig.devices[1].gone.set(true);
        rig.read_rows(segment(0), 0, 1).await.expect("parity has the rest");
        let reads = |rig: &Rig| rig.devices.iter().map(|d| d.reads.get()).collect::<Vec<_>>();
        assert_eq!(reads(&rig), [1, 0, 1, 1]);
    });
}

#[test]
fn a_discarded_segment_is_discarded_on_each_device() {
    simulate(5, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.close(DeviceId(2)).expect("one can be spared");
        rig.array.discard_segment(segment(0)).await.expect("exists");
        let discards: Vec<u64> = rig.devices.iter().map(|device| device.discards.get()).collect();
        assert_eq!(discards, [1, 1, 0]);
    });
}

#[test]
fn a_frozen_array_repairs_nothing() {
    simulate(2, async {
        for is_frozen in [false, true] {
            let rig = Rig::new(Layout::Mirror, 2);
            rig.fill(segment(0), 1).await;
            let start_bytes = rig.geometry().column_start_bytes(0);
            rig.devices[0].corrupt(start_bytes, BLOCK_BYTES).await;
            let wrong = rig.devices[0].peek(start_bytes, BLOCK_BYTES).await;
            if is_frozen {
                rig.array.freeze();
            }
            let addr = BlockAddr::new(segment(0), 0);
            let repaired = rig.array.repair(addr, &block(addr, 1)).await;
            assert_eq!(repaired, Ok(usize::from(!is_frozen)));
            let now = rig.devices[0].peek(start_bytes, BLOCK_BYTES).await;
            assert_eq!(now[..] == wrong[..], is_frozen);
        }
    });
}

#[test]
fn a_scrub_leaves_the_row_of_a_damaged_block_and_repairs_others() {
    simulate(3, async {
        for row in 0..4 {
            let rig = Rig::new(Layout::Raidz1, 3);
            let g = rig.geometry();
            rig.fill(segment(0), 1).await;
            let start_bytes = g.column_start_bytes(0);
            // Both data columns of one row, and the parity of each.
            for role in 0..2 {
                let at = start_bytes + row * g.unit_bytes;
                rig.devices[g.column_of(0, role)].corrupt(at, BLOCK_BYTES).await;
            }
            let parity = &rig.devices[g.column_of(0, 2)];
            for other in 0..4 {
                parity.corrupt(start_bytes + other * g.unit_bytes + BLOCK_BYTES, BLOCK_BYTES).await;
            }
            let before = parity.peek(start_bytes + row * g.unit_bytes, g.unit_bytes).await;
            let scrubbed = rig.array.scrub_rows(segment(0), 0, 4, &judge).await.expect("readable");
            assert_eq!(scrubbed.damaged.len(), 2);
            assert_eq!(scrubbed.repaired_bytes, 3 * BLOCK_BYTES);
            let after = parity.peek(start_bytes + row * g.unit_bytes, g.unit_bytes).await;
            assert!(after[..] == before[..], "row {row} is not rewritten");
        }
    });
}
