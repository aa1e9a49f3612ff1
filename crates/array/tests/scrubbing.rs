//! Scrubs from a later row on: what is read, named, rewritten and left.

mod common;

use common::{Rig, block, segment, simulate};
use forebay_array::{ArrayEvent, BlockVerdict, Mismatch};
use forebay_units::{BLOCK_BYTES, BlockAddr, DeviceId, Layout};

fn judge(addr: BlockAddr, data: &[u8]) -> BlockVerdict {
    if data == block(addr, 1) { BlockVerdict::Good } else { BlockVerdict::Bad }
}

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
