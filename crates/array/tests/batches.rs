//! Batches: copies, shortened ones, and members that cannot take their part.

mod common;

use common::{Rig, block, segment, simulate};
use forebay_array::{
    ArrayError, ArrayEvent, BlockVerdict, MemberState, RowBatch, WriteKind, Written,
};
use forebay_device::{ErrorKind, FenceLoss, IoBuf};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout, Nanos};

fn put(batch: &mut RowBatch, is_put: impl Fn(u32) -> bool) {
    for index in (0..batch.blocks()).filter(|index| is_put(*index)) {
        let block = block(batch.addr(index), 1);
        batch.put(index, IoBuf::copy_of(&block).freeze());
    }
}

#[test]
fn the_copies_of_a_batch_hold_its_blocks() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 3);
        let g = rig.geometry();
        let mut batch = rig.array.begin_batch(segment(1), 1, 1, WriteKind::Map).expect("in range");
        let is_put = |index: u32| index % 4 != 1;
        put(&mut batch, is_put);
        let addrs: Vec<BlockAddr> = (0..batch.blocks()).map(|index| batch.addr(index)).collect();
        let copy = batch.copied().expect("it is in the first half");
        let row_bytes = 3 * g.unit_bytes;
        let written = rig.array.write_batch(copy).await;
        assert_eq!(written, Ok(Written { data_bytes: 0, redundancy_bytes: row_bytes }));
        let written = rig.array.write_batch(batch).await;
        assert_eq!(written, Ok(Written { data_bytes: row_bytes, redundancy_bytes: 0 }));
        for (index, addr) in (0..).zip(addrs) {
            let copy = g.copy_of(addr.block()).expect("it is in the first half");
            let want = if is_put(index) { block(addr, 1) } else { [0; BLOCK_LEN] };
            for at in [addr, BlockAddr::new(segment(1), copy)] {
                let got = rig.array.read(at, 1).await.expect("readable");
                assert!(got[..] == want[..], "{at} for {addr}");
            }
        }
    });
}

#[test]
fn a_shortened_batch_writes_its_first_rows_alone() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        let mut batch = rig.array.begin_batch(segment(0), 1, 3, WriteKind::User).expect("in range");
        put(&mut batch, |_| true);
        batch.truncate_rows(7);
        assert_eq!(batch.blocks(), 3 * g.blocks_per_row());
        batch.truncate_rows(1);
        assert_eq!(batch.blocks(), g.blocks_per_row());
        assert_eq!(batch.block(g.blocks_per_row()), None);
        let written = rig.array.write_batch(batch).await.expect("healthy");
        assert_eq!(written.data_bytes, 2 * g.unit_bytes);
        rig.expect_rows(segment(0), 1, 1, 1).await;
        for device in &rig.devices {
            let at = g.column_start_bytes(0) + 2 * g.unit_bytes;
            let rest = device.peek(at, 2 * g.unit_bytes).await;
            assert!(rest.iter().all(|byte| *byte == 0), "rows that were cut off");
        }
    });
}

// What the members that went had of the segment counts: nothing came in its place.
#[test]
fn members_that_go_while_parity_is_computed_lack_nothing_of_the_segment() {
    simulate(1, async {
        let rig = Rig::large(Layout::Raidz1, 3);
        rig.write_rows(segment(0), 0, 1, 1).await.expect("healthy");
        rig.array.flush().await.expect("healthy");
        rig.devices[..2].iter().for_each(|device| device.gone.set(true));
        let (written, read) =
            rt::join(rig.write_rows(segment(0), 1, 1, 1), rig.read_rows(segment(0), 0, 1)).await;
        assert!(read.is_err(), "it finds that they are gone");
        let Err(ArrayError::NotWritable { have: 1, need: 2, .. }) = written else {
            panic!("{written:?}")
        };
        for at in 0..2 {
            rig.devices[at].gone.set(false);
            let device = rig.devices[at].device();
            rig.array.online(DeviceId(at as u32), Some(device)).expect("it is back");
        }
        assert_eq!(rig.array.stale_segments(), []);
        rig.expect_rows(segment(0), 0, 1, 1).await;
    });
}

#[test]
fn a_segment_that_was_reset_fails_no_flush() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.array.reset_segment(segment(0)).expect("exists");
        rig.devices[..2].iter().for_each(|device| device.fail_writes.set(true));
        let lost = rig.write_rows(segment(0), 0, 1, 2).await;
        assert!(matches!(lost, Err(ArrayError::SegmentLost { .. })), "{lost:?}");
        rig.array.flush().await.expect("no successful batch is lost");
    });
}

#[test]
fn a_faulted_member_is_not_written() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.array.fault(DeviceId(1), None).expect("two are enough");
        let written = rig.write_rows(segment(0), 0, 2, 1).await;
        let column_bytes = 2 * rig.geometry().unit_bytes;
        let one = Written { data_bytes: column_bytes, redundancy_bytes: column_bytes };
        assert_eq!(written, Ok(one), "a data column and parity");
        assert_eq!(rig.devices[1].writes.get(), 0);
        let addr = BlockAddr::new(segment(0), 0);
        rig.devices[0].corrupt(rig.geometry().column_start_bytes(0), BLOCK_BYTES).await;
        rig.array.repair(addr, &block(addr, 1)).await.expect("one column is there");
        assert_eq!(rig.devices[1].writes.get(), 0);
    });
}

#[test]
fn a_member_that_returns_during_a_write_lacks_its_segment_at_once() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.array.offline(DeviceId(1)).await.expect("one is enough");
        rig.devices[0].write_takes.set(Nanos::from_millis(1));
        let returns = async {
            rt::sleep(Nanos(10_000)).await;
            rig.array.online(DeviceId(1), Some(rig.devices[1].device())).expect("fits");
            assert_eq!(rig.array.stale_segments(), [segment(0)]);
        };
        rt::join(rig.fill(segment(0), 1), returns).await;
        assert_eq!(rig.array.stale_segments(), [segment(0)]);
    });
}

#[test]
fn a_member_that_fails_lacks_each_segment_that_is_written() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        // The first write to the segment ends and is flushed while the second one is under way.
        rig.devices[1].write_takes.set(Nanos(20_000));
        let second = async {
            rt::sleep(Nanos(5_000)).await;
            rig.devices[1].write_takes.set(Nanos::from_millis(1));
            rig.write_rows(segment(0), 1, 1, 1).await.expect("healthy");
        };
        let fails = async {
            rt::sleep(Nanos(50_000)).await;
            rig.array.flush().await.expect("healthy");
            rig.array.fault(DeviceId(1), None).expect("one is enough");
            assert_eq!(rig.array.status()[1].stale_segments, 1);
        };
        let first = async { rig.write_rows(segment(0), 0, 1, 1).await.expect("healthy") };
        rt::join(first, rt::join(second, fails)).await;
    });
}

#[test]
fn a_member_whose_writes_the_fence_refuses_stays_in_service_and_is_outdated() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.devices[1].failure.replace(ErrorKind::FenceLost(FenceLoss::Ended));
        rig.devices[1].fail_writes.set(true);
        rig.fill(segment(1), 1).await;
        let judge = |addr: BlockAddr, data: &[u8]| match data == block(addr, 1) {
            true => BlockVerdict::Good,
            false => BlockVerdict::Bad,
        };
        let rebuilt = rig.rebuild(segment(1), 4, &judge).await.expect("readable");
        assert_eq!(rebuilt.members, [], "it took nothing");
        assert_eq!(rig.array.stale_segments(), [segment(1)]);
        let member = &rig.array.status()[1];
        assert_eq!((member.state, member.errors.write), (MemberState::Online, 0));
        let changed = |event: &ArrayEvent| matches!(event, ArrayEvent::StateChanged { .. });
        assert!(!rig.array.events().take().iter().any(changed));
    });
}
