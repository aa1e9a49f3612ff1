//! Numbers and fingerprints of contents: what an import restores, what is kept, and what is free.

use forebay_device::IoBuf;
use forebay_format::map_record::dedup_ref;
use forebay_units::{BLOCK_LEN, BlockAddr, SegmentId, VolumeId};

use super::*;

const INDEX_BYTES: u64 = 1 << 20;

fn print(number: u64) -> Fingerprint {
    let mut bytes = [0; Fingerprint::BYTES];
    bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    Fingerprint(bytes)
}

fn data() -> IoBytes {
    IoBuf::zeroed(BLOCK_LEN).freeze()
}

fn restored(map: &Map, next: u64, records: &[(u64, u64)]) -> Dedup {
    let records = records.iter().map(|(of, block)| (print(*of).0, *block)).collect();
    Dedup::restored(7, map, &Fingerprints { next, records }, INDEX_BYTES)
}

/// A map with contents 5 to 8, of which a volume refers to 6 and 7.
fn map() -> Map {
    let mut map = Map::new();
    map.create_volume(DEDUP_VOLUME).unwrap();
    map.create_volume(VolumeId(3)).unwrap();
    let place = BlockAddr::new(SegmentId(1), 0);
    let mut freed = |_, _| {};
    map.set_run(DEDUP_VOLUME, Lba(5), place, &[1, 2, 3, 4], false, &mut freed).unwrap();
    map.set_refs(VolumeId(3), Lba(40), dedup_ref(Lba(6)), 2, &mut freed);
    map
}

#[test]
fn an_import_goes_on_behind_the_highest_number_that_was_ever_given() {
    for (next, expected) in [(0, 9), (8, 9), (9, 9), (20, 20)] {
        let dedup = restored(&map(), next, &[]);
        assert_eq!(dedup.give_number(print(1), data()), Some(expected));
        assert_eq!(dedup.give_number(print(2), data()), Some(expected + 1));
        let unwritten = dedup.take_unwritten().unwrap();
        assert_eq!(unwritten.next, expected + 2);
        assert_eq!(unwritten.records, [(print(1).0, expected), (print(2).0, expected + 1)]);
        assert!(dedup.take_unwritten().is_none());
    }
}

#[test]
fn an_import_finds_what_is_referred_to_and_frees_what_is_not() {
    let dedup = restored(&map(), 9, &[(1, 5), (2, 6), (3, 7), (4, 8), (5, 99)]);
    let found = |of| dedup.find(&print(of)).map(|(block, _)| block);
    assert_eq!([1, 2, 3, 4, 5].map(found), [None, Some(6), Some(7), None, None]);
    assert_eq!(dedup.take_unused(), [5, 8]);
    assert!(dedup.take_unused().is_empty());
    // The last reference goes, and comes back within the group.
    dedup.release(Lba(6), 2);
    dedup.refer(Lba(7), 1);
    assert_eq!([2, 3].map(found), [None, Some(7)]);
    assert_eq!(dedup.take_unused(), [6]);
}

#[test]
fn numbers_that_lost_their_last_reference_are_told_once_and_in_order() {
    let dedup = restored(&Map::new(), 0, &[]);
    dedup.refer(Lba(1), 9);
    for first in [7, 3, 5] {
        dedup.release(Lba(first), 1);
    }
    dedup.refer(Lba(3), 1);
    dedup.release(Lba(3), 1);
    assert_eq!(dedup.take_unused(), [3, 5, 7]);
}

#[test]
fn a_content_that_finds_no_number_is_stored_for_itself() {
    let last = forebay_format::map_record::MAX_DEDUP_BLOCKS - 1;
    let dedup = restored(&Map::new(), last, &[]);
    assert_eq!(dedup.give_number(print(1), data()), Some(last));
    assert_eq!(dedup.give_number(print(2), data()), None);
    assert!(dedup.find(&print(2)).is_none());
}

#[test]
fn a_new_content_is_found_by_its_data_until_its_group_is_applied() {
    let dedup = restored(&Map::new(), 0, &[]);
    assert!(!dedup.is_used());
    assert_eq!(dedup.give_number(print(1), data()), Some(0));
    assert!(dedup.is_used());
    let found = dedup.find(&print(1)).map(|(block, data)| (block, data.is_some()));
    assert_eq!(found, Some((0, true)));
    dedup.refer(Lba(0), 1);
    dedup.group_is_applied();
    let found = dedup.find(&print(1)).map(|(block, data)| (block, data.is_some()));
    assert_eq!(found, Some((0, false)));
    assert!(restored(&Map::new(), 1, &[]).is_used());
}

#[test]
fn the_oldest_neighbors_make_room_for_new_ones() {
    let mut neighbors = Neighbors::default();
    let most = MAX_NEIGHBORS as u64;
    neighbors.insert(print(0), 0);
    // It is no newer than before, and there is one of it.
    neighbors.insert(print(0), 77);
    (1..most).for_each(|number| neighbors.insert(print(number), number));
    let block_of = |neighbors: &Neighbors, of| neighbors.blocks.get(&print(of)).copied();
    assert_eq!(block_of(&neighbors, 0), Some(77));
    neighbors.insert(print(most), most);
    let found = [0, 1, most].map(|of| block_of(&neighbors, of));
    assert_eq!(found, [None, Some(1), Some(most)]);
    assert_eq!((neighbors.blocks.len(), neighbors.order.len()), (MAX_NEIGHBORS, MAX_NEIGHBORS));
}
