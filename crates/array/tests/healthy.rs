//! Arrays without faults: every layout, whole and partial rows, and the statistics.

mod common;

use common::{Rig, block, segment, shapes, simulate};
use forebay_array::{ArrayError, Health, WriteKind};
use forebay_device::IoBuf;
use forebay_units::{BLOCK_LEN, BlockAddr, Layout, SegmentId};

#[test]
fn reads_return_written_blocks_in_every_layout() {
    for (shape, (layout, members)) in shapes().into_iter().enumerate() {
        simulate(shape as u64, async move {
            let rig = Rig::new(layout, members);
            // Enough segments that every column of a small group has every role.
            for index in 0..common::SEGMENTS {
                rig.fill(segment(index), u64::from(index)).await;
            }
            rig.array.flush().await.expect("healthy");
            for index in 0..common::SEGMENTS {
                rig.expect_segment(segment(index), u64::from(index)).await;
            }
            assert_eq!(rig.array.health(), vec![Health::Online]);
            assert!(rig.array.events().take().is_empty());
        });
    }
}

#[test]
fn batch_is_one_write_per_device() {
    for (layout, members) in shapes() {
        simulate(1, async move {
            let rig = Rig::new(layout, members);
            let g = rig.geometry();
            let written = rig.write_rows(segment(0), 1, 3, 0).await.expect("healthy");
            assert!(rig.devices.iter().all(|device| device.writes.get() == 1));
            let column_bytes = 3 * g.unit_bytes;
            assert_eq!(written.data_bytes, column_bytes * g.data_columns() as u64);
            assert_eq!(written.redundancy_bytes, column_bytes * g.parity_columns() as u64);
            assert_eq!(rig.array.totals(WriteKind::User), written);
            assert_eq!(rig.array.totals(WriteKind::Map), forebay_array::Written::default());
        });
    }
}

#[test]
fn segment_read_is_one_read_per_data_column() {
    simulate(1, async move {
        let rig = Rig::new(Layout::Raidz2, 5);
        rig.fill(segment(2), 0).await;
        rig.read_rows(segment(2), 0, 4).await.expect("healthy");
        let reads: u64 = rig.devices.iter().map(|device| device.reads.get()).sum();
        assert_eq!(reads, 3);
    });
}

#[test]
fn blocks_not_put_into_a_batch_are_zeros() {
    simulate(1, async move {
        let rig = Rig::new(Layout::Raidz1, 4);
        // Leaves its bytes in recycled memory.
        rig.fill(segment(0), 9).await;
        let mut batch = rig.array.begin_batch(segment(1), 0, 4, WriteKind::User).expect("fits");
        let addr = batch.addr(5);
        batch.put(5, IoBuf::copy_of(&block(addr, 1)).freeze());
        assert_eq!(batch.block(5), Some(&block(addr, 1)[..]));
        assert_eq!(batch.block(4), None);
        let run: Vec<u8> = (7..12).flat_map(|index| block(batch.addr(index), 2)).collect();
        let run = IoBuf::copy_of(&run).freeze();
        for index in 7..12 {
            batch.put(index, run.slice((index as usize - 7) * BLOCK_LEN, BLOCK_LEN));
        }
        rig.array.write_batch(batch).await.expect("healthy");
        let got = rig.read_rows(segment(1), 0, 4).await.expect("healthy");
        for (index, got) in got.chunks(BLOCK_LEN).enumerate() {
            let addr = BlockAddr::new(segment(1), index as u32);
            let want = match index {
                5 => block(addr, 1),
                7..12 => block(addr, 2),
                _ => [0; BLOCK_LEN],
            };
            assert!(got == want, "{addr}");
        }
    });
}

#[test]
fn flush_reaches_only_devices_with_unflushed_writes() {
    simulate(1, async move {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.array.flush().await.expect("nothing to do");
        assert!(rig.devices.iter().all(|device| device.flushes.get() == 0));
        rig.fill(segment(0), 0).await;
        rig.array.flush().await.expect("healthy");
        rig.array.flush().await.expect("nothing to do");
        assert!(rig.devices.iter().all(|device| device.flushes.get() == 1));
    });
}

#[test]
fn ranges_past_the_end_are_refused() {
    simulate(1, async move {
        let rig = Rig::new(Layout::Raidz1, 3);
        let array = &rig.array;
        let blocks = rig.geometry().blocks_per_segment();
        let past = array.read(BlockAddr::new(segment(0), blocks - 1), 2).await;
        assert!(matches!(past, Err(ArrayError::OutOfRange { limit, .. }) if limit == blocks));
        for (first, rows) in [(4, 1), (0, 5), (0, 0), (u32::MAX, 2)] {
            let refused = array.begin_batch(segment(0), first, rows, WriteKind::User).err();
            assert!(matches!(refused, Some(ArrayError::OutOfRange { .. })));
        }
        let nowhere = SegmentId(common::FIRST_SEGMENT - 1);
        let refused = array.read(BlockAddr::new(nowhere, 0), 1).await.err();
        assert_eq!(refused, Some(ArrayError::NoSuchSegment { segment: nowhere }));
    });
}
