//! Scrubs from a later row on: what is read, named, rewritten and left.

mod common;

use common::{FaultyDevice, Rig, addr, block, judge, segment, simulate};
use forebay_array::{ArrayError, ArrayEvent, BlockVerdict, MemberState, Mismatch, WriteKind};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, DeviceId, Layout};

/// Flips bits of blocks of segment 0's column on a device.
async fn corrupt(rig: &Rig, device: usize, column_block: u64, blocks: u64) {
    let at = rig.geometry().column_start_bytes(0) + column_block * BLOCK_BYTES;
    rig.devices[device].corrupt(at, blocks * BLOCK_BYTES).await;
}

/// Addresses, lengths and proof of the repairs that were told.
fn repaired(rig: &Rig) -> Vec<(u32, u32, u64, bool)> {
    let repaired = |event| match event {
        ArrayEvent::Repaired { device, addr, len_bytes, is_proved } => {
            Some((device.0, addr.block(), len_bytes, is_proved))
        }
        _ => None,
    };
    rig.array.events().take().into_iter().filter_map(repaired).collect()
}

fn checksum_errors(rig: &Rig) -> Vec<u64> {
    rig.array.status().iter().map(|member| member.errors.checksum).collect()
}

#[test]
fn a_scrub_reads_each_device_once() {
    simulate(1, async {
        for (layout, members) in [(Layout::Raidz2, 5), (Layout::Mirror, 3), (Layout::Raid0, 2)] {
            let rig = Rig::new(layout, members);
            rig.fill(segment(0), 1).await;
            let scrubbed = rig.array.scrub_rows(segment(0), 1, 2, &judge).await;
            assert_eq!(scrubbed, Ok(forebay_array::Scrubbed::default()));
            assert!(rig.devices.iter().all(|device| device.reads.get() == 1), "{layout}");
        }
    });
}

#[test]
fn a_check_names_rows_and_devices_in_order_and_changes_nothing() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 3);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        // Rows 1 and 2 of one copy, the second block of row 1 to the first of row 3 of another.
        corrupt(&rig, 1, 2, 4).await;
        corrupt(&rig, 2, 3, 4).await;
        let content = async |device: &FaultyDevice| {
            device.peek(g.column_start_bytes(0), g.column_bytes).await.to_vec()
        };
        let before = [content(&rig.devices[1]).await, content(&rig.devices[2]).await];
        let found = rig.array.check_parity(segment(0), 1, 3).await.expect("readable");
        let named = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)];
        assert_eq!(found, named.map(|(row, at)| Mismatch { row, device: DeviceId(at) }));
        assert!(before == [content(&rig.devices[1]).await, content(&rig.devices[2]).await]);
        assert_eq!(checksum_errors(&rig), [0; 3]);
        assert!(rig.array.events().take().is_empty());
    });
}

// A dead block beside a live one is rewritten by itself, but its row is named once.
#[test]
fn a_row_with_two_runs_of_wrong_blocks_is_named_once() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        corrupt(&rig, 1, 2, 4).await;
        let judge = |addr: BlockAddr, data: &[u8]| match addr.block() {
            2 => BlockVerdict::Dead,
            _ => judge(addr, data),
        };
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        let named = [(1, 1), (2, 1)];
        assert_eq!(
            scrubbed.mismatches,
            named.map(|(row, at)| Mismatch { row, device: DeviceId(at) })
        );
        assert_eq!(scrubbed.repaired_bytes, 4 * BLOCK_BYTES);
        assert_eq!(repaired(&rig), [(1, 2, BLOCK_BYTES, false), (1, 3, 3 * BLOCK_BYTES, true)]);
        assert_eq!(checksum_errors(&rig), [0, 3]);
    });
}

#[test]
fn rows_that_cannot_be_read_are_not_checked() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        rig.spoil(0, 4);
        rig.spoil(1, 4);
        let failed = rig.array.check_parity(segment(0), 1, 3).await.expect_err("row 2 is lost");
        assert!(
            matches!(failed, ArrayError::Unreadable { addr: at, blocks: 1, .. } if at == addr(8)),
            "{failed:?}"
        );
    });
}

#[test]
fn rows_past_a_segment_are_not_scrubbed() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        rig.fill(segment(0), 1).await;
        for (first, rows) in [(3, 2), (4, 1), (0, 0)] {
            let refused = rig.array.scrub_rows(segment(0), first, rows, &judge).await;
            assert!(matches!(refused, Err(ArrayError::OutOfRange { .. })), "{refused:?}");
        }
    });
}

#[test]
fn what_a_scrub_may_not_rewrite_is_not_counted_as_rewritten() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        corrupt(&rig, 1, 2, 1).await;
        rig.devices[1].fail_writes.set(true);
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 1, &judge).await.expect("readable");
        assert_eq!((scrubbed.mismatches.len(), scrubbed.repaired_bytes), (1, 0));
        assert_eq!(repaired(&rig), []);
        // Nor by a repair.
        rig.devices[1].heal();
        rig.array.online(DeviceId(1), None).expect("it has its device");
        rig.array.reset_segment(segment(0)).expect("exists");
        rig.devices[1].fail_writes.set(true);
        assert_eq!(rig.array.repair(addr(2), &block(addr(2), 1)).await, Ok(0));
        assert_eq!(repaired(&rig), []);
        assert_eq!(checksum_errors(&rig), [0, 1], "it was wrong all the same");
    });
}

#[test]
fn bad_sectors_of_later_rows_are_rewritten_and_what_is_lost_is_left() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 4);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        // One in each row, each in another column.
        for (device, column_block) in [(1, 2), (0, 5), (3, 6)] {
            rig.spoil(device, column_block);
        }
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        // What cannot be read in part is rewritten whole.
        assert_eq!((scrubbed.damaged, scrubbed.repaired_bytes), (vec![], 3 * 6 * BLOCK_BYTES));
        assert!(rig.devices.iter().all(|device| device.bad_blocks.borrow().is_empty()));
        let online = |rig: &Rig| rig.array.status().iter().all(|m| m.state == MemberState::Online);
        assert!(online(&rig), "each reads what was rewritten");
        rig.expect_segment(segment(0), 1).await;
        // Two in the second block of row 2's units, and one in another row.
        for (device, column_block) in [(0, 5), (2, 5), (1, 7)] {
            rig.spoil(device, column_block);
        }
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        let row = 2 * g.blocks_per_row();
        assert_eq!(scrubbed.damaged, [addr(row + 1), addr(row + 5)]);
        assert_eq!(scrubbed.repaired_bytes, 3 * 4 * BLOCK_BYTES, "the two rows beside it");
        let left = rig.devices.iter().map(|device| device.bad_blocks.borrow().len());
        assert_eq!(left.collect::<Vec<_>>(), [1, 0, 1, 0]);
    });
}

#[test]
fn zeros_that_cannot_be_read_are_written_again() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raid0, 1);
        let batch = rig.array.begin_batch(segment(0), 0, 4, WriteKind::User).expect("in range");
        rig.array.write_batch(batch).await.expect("healthy");
        rig.spoil(0, 3);
        let zeros = |_: BlockAddr, data: &[u8]| match data.iter().all(|byte| *byte == 0) {
            true => BlockVerdict::Good,
            false => BlockVerdict::Bad,
        };
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 3, &zeros).await.expect("readable");
        assert_eq!((scrubbed.damaged, scrubbed.repaired_bytes), (vec![], 6 * BLOCK_BYTES));
        let got = rig.array.read(addr(3), 1).await.expect("it was written");
        assert!(got[..] == [0; BLOCK_LEN]);
    });
}

#[test]
fn a_block_that_only_a_faulted_member_has_is_written_to_the_others() {
    simulate(1, async {
        let rig = Rig::new(Layout::Mirror, 2);
        rig.fill(segment(0), 1).await;
        rig.array.fault(DeviceId(1), None).expect("one is enough");
        rig.spoil(0, 3);
        let scrubbed = rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        assert_eq!((scrubbed.damaged, scrubbed.repaired_bytes), (vec![], 6 * BLOCK_BYTES));
        rig.expect_segment(segment(0), 1).await;
    });
}

// Blocks that are dead make parity of them doubtful, in their row alone, and no other data.
#[test]
fn a_dead_block_clears_its_own_row_of_doubt_alone() {
    simulate(1, async {
        let rig = Rig::new(Layout::Raidz1, 3);
        let g = rig.geometry();
        rig.fill(segment(0), 1).await;
        let row = g.blocks_per_row();
        let judge = |addr: BlockAddr, data: &[u8]| match addr.block() {
            block if block == 2 * row => BlockVerdict::Dead,
            _ => judge(addr, data),
        };
        // The dead block, so that parity, on device 2, does not fit it.
        corrupt(&rig, 0, 4, 1).await;
        rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        assert_eq!(repaired(&rig), [(2, 2 * row, BLOCK_BYTES, false)]);
        assert_eq!(checksum_errors(&rig), [0, 0, 0]);
        // A live block beside it, and parity of another row.
        corrupt(&rig, 1, 4, 1).await;
        corrupt(&rig, 2, 6, 2).await;
        rig.array.scrub_rows(segment(0), 1, 3, &judge).await.expect("readable");
        assert_eq!(checksum_errors(&rig), [0, 1, 2]);
        let (first, second) =
            ((1, 2 * row + 2, BLOCK_BYTES, true), (2, 3 * row, 2 * BLOCK_BYTES, true));
        assert_eq!(repaired(&rig), [first, second]);
    });
}
