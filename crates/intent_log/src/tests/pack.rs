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
}
