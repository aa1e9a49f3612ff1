//! Leaves in which some sums are in memory and others in footers, in every form of a leaf.

use forebay_map::{Delta, LeafId, Map};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

const VOLUME: VolumeId = VolumeId(3);

#[test]
fn each_block_keeps_its_own_sum_beside_sealed_blocks() {
    for count in [1, 2, 3, 40, 170, 300, 512] {
        // Scattered blocks at scattered addresses; every other one is sealed.
        let block = |at: u64| at * 512 / count;
        let addr = |at: u64| BlockAddr::new(SegmentId(at as u32 % 7), at as u32 * 11 % 5000);
        let sum = |at: u64| (at % 2 == 1).then_some(1000 + at);
        let mut delta = Delta::default();
        for at in 0..count {
            match sum(at) {
                Some(sum) => delta.assign(VOLUME, Lba(block(at)), addr(at), &[sum]),
                None => delta.assign_sealed(VOLUME, Lba(block(at)), addr(at), 1),
            }
        }
        let mut map = Map::new();
        map.apply(&delta);
        let mut loaded = Map::new();
        loaded.load_leaf(&map.leaf_image(LeafId { volume: VOLUME, leaf: 0 }));
        for map in [&map, &loaded] {
            for at in 0..count {
                let found = map.lookup(VOLUME, Lba(block(at))).expect("it is mapped");
                assert_eq!((found.addr, found.sum), (addr(at), sum(at)), "block {at} of {count}");
            }
            assert_eq!(map.mapped_blocks(VOLUME), count);
        }
    }
}

#[test]
fn the_leaf_after_the_last_of_a_volume_is_the_first_of_the_next() {
    let last = LeafId { volume: VOLUME, leaf: u32::MAX };
    assert_eq!(last.next(), Some(LeafId { volume: VolumeId(4), leaf: 0 }));
    assert_eq!(LeafId { volume: VolumeId(u32::MAX), ..last }.next(), None);
}
