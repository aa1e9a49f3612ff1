//! The queue of records: which of them are split over frames.

use super::*;
use crate::pack::{Queue, Queued};
use crate::ticket::Ticket;

/// Blocks of a record that a frame takes. Its first block is header and table.
fn taken_blocks(blocks: u32, limit_blocks: u64, whole_limit_blocks: u64) -> Option<u64> {
    let mut queue = Queue::default();
    queue.push(Queued::new(write(1, 1, blocks), Ticket::new(1)));
    let block = BLOCK_LEN as u64;
    let packed = queue.pack(limit_blocks * block, whole_limit_blocks * block);
    packed.map(|packed| packed.data_bytes / block)
}

#[test]
fn only_a_record_longer_than_a_frame_is_split() {
    assert_eq!(taken_blocks(5, 6, 32), Some(5));
    assert_eq!(taken_blocks(5, 4, 32), None, "it waits for room");
    assert_eq!(taken_blocks(31, 31, 32), None);
    assert_eq!(taken_blocks(32, 32, 32), Some(31));
    assert_eq!(taken_blocks(32, 4, 32), Some(3));
    assert_eq!(taken_blocks(32, 1, 32), None, "no part without blocks");
}

#[test]
fn a_record_with_which_the_table_takes_another_block_counts_for_both() {
    // So many records have room in the first block, behind the header.
    const FITTING: u64 = 126;
    let mut queue = Queue::default();
    for id in 0..=FITTING {
        queue.push(Queued::new(write(id, 1, 1), Ticket::new(1)));
    }
    // There is room for the data of one more, and not for its table.
    let limit = (1 + FITTING + 1) * BLOCK_LEN as u64;
    let packed = queue.pack(limit, limit).expect("most of it fits");
    assert_eq!((packed.entries.len() as u64, queue.len()), (FITTING, 1));
    assert!(packed.len_bytes() <= limit);
}
