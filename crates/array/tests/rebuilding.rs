//! Rebuilds step by step: what is read, written and told.

mod common;

use common::{Rig, judge, segment, simulate};
use forebay_array::Rebuilt;
use forebay_units::{BLOCK_BYTES, BlockAddr, DeviceId, Layout};

/// Writes rows while device 2 is away. It is back and lacks them.
async fn without_device_2(rig: &Rig, rows: u32) {
    rig.array.offline(DeviceId(2)).await.expect("two are enough");
    rig.write_rows(segment(0), 0, rows, 1).await.expect("two are enough");
    rig.array.online(DeviceId(2), Some(rig.devices[2].device())).expect("fits");
}

#[test]
fn a_rebuild_in_steps_takes_each_row_once() {
    simulate(1, async {
        let rig = Rig::large(Layout::Raidz1, 3);
        let g = rig.geometry();
        without_device_2(&rig, 3).await;
        let within = |addr: BlockAddr, data: &[u8]| {
            assert!(addr.block() < 3 * g.blocks_per_row(), "{addr} was not written");
            judge(addr, data)
        };
        let mut rebuilding = rig.array.begin_rebuild(segment(0), 3).expect("in range");
        for is_more in [true, false, false] {
            let more = rig.array.rebuild_more(&mut rebuilding, &within).await;
            assert_eq!(more, Ok(is_more));
        }
        assert_eq!(rig.devices[2].writes.get(), 2);
        let (members, written_bytes) = (vec![DeviceId(2)], 3 * g.unit_bytes);
        let expected = Rebuilt { members, written_bytes, ..Rebuilt::default() };
        assert_eq!(rebuilding.end(), expected);
        rig.devices[0].gone.set(true);
        rig.expect_rows(segment(0), 0, 3, 1).await;
    });
}

// The blocks are read one by one then. No more than the rows is written.
#[test]
fn a_rebuild_beside_bad_sectors_in_several_places_recovers_nothing() {
    simulate(1, async {
        let rig = Rig::large(Layout::Raidz2, 4);
        let g = rig.geometry();
        without_device_2(&rig, 3).await;
        let unit = g.unit_bytes / BLOCK_BYTES;
        for (device, place) in [(0, 1), (1, 2), (3, 3)] {
            let block = g.column_start_bytes(0) / BLOCK_BYTES + 2 * unit + place;
            rig.devices[device].bad_blocks.borrow_mut().insert(block);
        }
        let rebuilt = rig.rebuild(segment(0), 3, &judge).await.expect("readable");
        let (members, written_bytes) = (vec![DeviceId(2)], 3 * g.unit_bytes);
        assert_eq!(rebuilt, Rebuilt { members, written_bytes, ..Rebuilt::default() });
        let at = g.column_start_bytes(0) + 3 * g.unit_bytes;
        let rest = rig.devices[2].peek(at, g.column_bytes).await;
        assert!(rest.iter().all(|byte| *byte == 0), "past the rows");
        rig.devices[..2].iter().for_each(|device| device.gone.set(true));
        rig.devices[3].heal();
        rig.expect_rows(segment(0), 0, 3, 1).await;
    });
}

#[test]
fn a_member_that_fails_during_a_rebuild_gets_no_more_of_it() {
    simulate(1, async {
        let rig = Rig::large(Layout::Raidz1, 3);
        without_device_2(&rig, 3).await;
        let mut rebuilding = rig.array.begin_rebuild(segment(0), 3).expect("in range");
        assert_eq!(rig.array.rebuild_more(&mut rebuilding, &judge).await, Ok(true));
        rig.array.fault(DeviceId(2), None).expect("two are enough");
        rig.array.rebuild_more(&mut rebuilding, &judge).await.expect("readable");
        assert_eq!(rig.devices[2].writes.get(), 1);
        assert_eq!(rebuilding.end().members, []);
    });
}

#[test]
fn a_rebuild_without_rows_or_without_members_reads_nothing() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(1), 1).await;
        without_device_2(&rig, 1).await;
        for (index, rows, rebuilt) in [(0, 0, vec![DeviceId(2)]), (1, 4, vec![])] {
            let mut rebuilding = rig.array.begin_rebuild(segment(index), rows).expect("in range");
            assert_eq!(rig.array.rebuild_more(&mut rebuilding, &judge).await, Ok(false));
            assert_eq!(rebuilding.end().members, rebuilt);
        }
        assert!(rig.devices.iter().all(|device| device.reads.get() == 0));
    });
}

#[test]
fn a_rebuild_that_is_given_up_tells_what_it_did() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        without_device_2(&rig, 4).await;
        // Block 4 begins row 1. Only device 2 could give it back.
        rig.devices[0].corrupt(g.column_start_bytes(0) + g.unit_bytes, BLOCK_BYTES).await;
        let mut rebuilding = rig.array.begin_rebuild(segment(0), 4).expect("in range");
        assert_eq!(rig.array.rebuild_more(&mut rebuilding, &judge).await, Ok(false));
        let rebuilt = rebuilding.give_up();
        assert_eq!(rebuilt.damaged, [BlockAddr::new(segment(0), 4)]);
        assert_eq!((rebuilt.members, rebuilt.written_bytes), (vec![], g.column_bytes));
        assert_eq!(rig.array.stale_segments(), [segment(0)]);
    });
}
