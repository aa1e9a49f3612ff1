//! Frames of the map journal that are put together from blocks and their copies, on one device.

use forebay_device::ErrorKind;

use super::*;

/// Where the copies begin: in the second half of a column.
const HALF: u64 = 128 << 10;

/// Which sectors a device cannot read.
struct Unreadable {
    offsets: Vec<u64>,
}

impl Script for Unreadable {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let range = command.offset_bytes..command.offset_bytes + command.len_bytes;
        let is_read = command.operation == Operation::Read;
        let fails = is_read && self.offsets.iter().any(|at| range.contains(at));
        Box::pin(async move {
            match fails {
                true => Decision::Fail(ErrorKind::Os { errno: 5 }),
                false => Decision::Run,
            }
        })
    }
}

/// What is wrong with a frame of 30 blocks.
#[derive(Default)]
struct Damage<'a> {
    blocks: &'a [u64],
    copies: &'a [u64],
    unreadable: &'a [u64],
}

/// Whether the frame is read in spite of the damage.
fn is_read(unit_bytes: u64, damage: &Damage<'_>) -> bool {
    let offset = |block: &u64| block * BLOCK_LEN as u64;
    let blocks = damage.blocks.iter().map(offset);
    let copies = damage.copies.iter().map(|block| HALF + offset(block));
    let wrong: Vec<_> = blocks.chain(copies).map(|at| (0, at, BLOCK_LEN as u64)).collect();
    let offsets = damage.unreadable.iter().map(offset).collect();
    Runtime::simulated(41).block_on(async move {
        let sectors = Rc::new(Unreadable { offsets });
        let probed = |device| -> Device { Probe::new(device, sectors.clone()) };
        let b = bench_with(Layout::Raid0, 1, (unit_bytes, 2 * HALF, 3), probed);
        journal::read_damaged(&b, &wrong).await
    })
}

const UNIT: u64 = 16 << 10;

#[test]
fn up_to_ten_differing_blocks_are_mixed_in_every_way() {
    let (blocks, copies) = (&[1, 3, 5, 7, 9], &[2, 4, 6, 8, 10]);
    assert!(is_read(UNIT, &Damage { blocks, copies, ..Damage::default() }));
    // Only the first block comes from the copies.
    let copies = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    assert!(is_read(UNIT, &Damage { blocks: &[0], copies, ..Damage::default() }));
    assert!(!is_read(UNIT, &Damage { blocks: &[4], copies: &[4], ..Damage::default() }));
}

#[test]
fn a_range_of_a_device_is_taken_from_the_copies() {
    let all: Vec<u64> = (1..30).collect();
    assert!(is_read(UNIT, &Damage { blocks: &all, ..Damage::default() }));
    // A range within units, and wrong copies on both sides of it.
    let copies = &[1, 2, 21, 22];
    assert!(is_read(UNIT, &Damage { blocks: &all[2..20], copies, ..Damage::default() }));
    assert!(is_read(UNIT, &Damage { blocks: &[0], copies: &all, ..Damage::default() }));
}

#[test]
fn whole_units_are_taken_from_either_side() {
    // One block of the first unit, and every second unit after it.
    let blocks = &[3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27];
    let copies = &[4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23];
    assert!(is_read(UNIT, &Damage { blocks, copies, ..Damage::default() }));
    // Units of one block: the first eleven that differ are from any side, the others from one.
    let blocks = &[1, 3, 5, 7, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20];
    let copies = &[2, 4, 6, 8, 10, 11];
    assert!(is_read(BLOCK_LEN as u64, &Damage { blocks, copies, ..Damage::default() }));
}

#[test]
fn a_block_that_cannot_be_read_is_taken_from_its_copy() {
    let (unreadable, blocks, copies) = (&[5, 6], &[9], &[7, 8]);
    assert!(is_read(UNIT, &Damage { blocks, copies, unreadable }));
    assert!(!is_read(UNIT, &Damage { blocks: &[], copies: &[6], unreadable }));
    // All others are right where they are, and few or many of their copies are not.
    let all: Vec<u64> = (7..30).collect();
    assert!(is_read(UNIT, &Damage { blocks: &[], copies, unreadable }));
    assert!(is_read(UNIT, &Damage { blocks: &[], copies: &all, unreadable }));
}

// The import writes what it has put together back to both places: either may be lost next.
#[test]
fn what_was_put_together_is_repaired_in_both_places() {
    Runtime::simulated(42).block_on(async {
        let b = bench_with(Layout::Raid0, 1, (UNIT, 2 * HALF, 3), |device| device);
        let (start, end, payload) = journal::write_frame(&b).await;
        let block = |at: u64| (0, at * BLOCK_LEN as u64, BLOCK_LEN as u64);
        let copy = |at: u64| (0, HALF + at * BLOCK_LEN as u64, BLOCK_LEN as u64);
        journal::damage(&b, &[block(3), copy(5)]).await;
        let read = async || {
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            let is_right = reader.next().await.unwrap().is_some_and(|f| f.payload() == payload);
            assert!(is_right && reader.next().await.unwrap().is_none());
            reader.take_repairs()
        };
        for (addr, bytes) in read().await {
            b.array.repair(addr, &bytes).await.unwrap();
        }
        journal::damage(&b, &[copy(3), block(5)]).await;
        assert!(!read().await.is_empty());
    });
}
