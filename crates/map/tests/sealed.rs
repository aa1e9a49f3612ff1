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

// A full leaf of one run takes no memory of its own, however its blocks came.
#[test]
fn runs_that_are_sealed_one_after_the_other_become_one() {
    let memory_bytes = |part: u32| {
        let mut map = Map::new();
        map.create_volume(VOLUME).unwrap();
        for leaf in 0..8 {
            for start in (0..512).step_by(part as usize) {
                let block = leaf * 512 + start;
                let to = BlockAddr::new(SegmentId(1), block);
                let sums = vec![9; part as usize];
                let (lba, is_on_media) = (Lba(u64::from(block)), false);
                map.set_run(VOLUME, lba, to, &sums, is_on_media, &mut |_, _| {}).unwrap();
                assert!(map.seal(LeafId { volume: VOLUME, leaf }, &mut |_| true));
            }
        }
        // The scratch space is as long as the longest list of runs was.
        let mut copy = Map::new();
        (0..8).for_each(|leaf| copy.load_leaf(&map.leaf_image(LeafId { volume: VOLUME, leaf })));
        copy.memory_bytes()
    };
    assert_eq!(memory_bytes(64), memory_bytes(512));
}

#[test]
fn the_leaf_after_the_last_of_a_volume_is_the_first_of_the_next() {
    let last = LeafId { volume: VOLUME, leaf: u32::MAX };
    assert_eq!(last.next(), Some(LeafId { volume: VolumeId(4), leaf: 0 }));
    assert_eq!(LeafId { volume: VolumeId(u32::MAX), ..last }.next(), None);
}
