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
    let first = LeafId { volume: VOLUME, leaf: 0 };
    assert_eq!(first.next(), Some(LeafId { volume: VOLUME, leaf: 1 }));
    let last = LeafId { volume: VOLUME, leaf: u32::MAX };
    assert_eq!(last.next(), Some(LeafId { volume: VolumeId(4), leaf: 0 }));
    assert_eq!(LeafId { volume: VolumeId(u32::MAX), ..last }.next(), None);
}

/// Writes a run of the volume.
fn write(map: &mut Map, lba: u64, addr: BlockAddr, blocks: usize, is_on_media: bool) {
    let sums: Vec<u64> = (0..blocks as u64).map(|block| (lba + block) * 7).collect();
    map.set_run(VOLUME, Lba(lba), addr, &sums, is_on_media, &mut |_, _| {}).unwrap();
}

/// The blocks of the first leaf without a sum, as ranges. Others have the sums that were written.
fn sealed(map: &Map) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for (lba, sum) in (0..512).filter_map(|lba| Some((lba, map.lookup(VOLUME, Lba(lba))?.sum?))) {
        assert_eq!(sum, lba * 7, "the sum of block {lba}");
    }
    for lba in (0..512).filter(|lba| map.lookup(VOLUME, Lba(*lba)).is_some_and(|f| f.sum.is_none()))
    {
        match found.last_mut().filter(|(_, end)| *end == lba) {
            Some((_, end)) => *end += 1,
            None => found.push((lba, lba + 1)),
        }
    }
    found
}

#[test]
fn runs_of_32_blocks_and_the_two_runs_of_a_full_leaf_are_sealed() {
    let id = LeafId { volume: VOLUME, leaf: 0 };
    let at = |segment: u32, block: u32| BlockAddr::new(SegmentId(segment), block);
    // Runs of a leaf as (first block, blocks, segment), and what is sealed of the even segments.
    type Case = (&'static [(u64, usize, u32)], &'static [(u64, u64)]);
    let cases: [Case; 9] = [
        (&[(0, 31, 2)], &[]),
        (&[(0, 32, 2)], &[(0, 32)]),
        (&[(0, 32, 1), (32, 32, 2), (64, 31, 4), (100, 300, 6)], &[(32, 64), (100, 400)]),
        (&[(0, 10, 2), (10, 502, 4)], &[(0, 512)]),
        (&[(0, 502, 2), (502, 10, 3)], &[(0, 502)]),
        (&[(0, 10, 2), (10, 492, 4), (502, 10, 6)], &[(10, 502)]),
        (&[(0, 10, 2), (10, 501, 4)], &[(10, 511)]),
        (&[(0, 10, 1), (10, 502, 3)], &[]),
        (&[(0, 40, 2), (50, 9, 3), (60, 40, 4), (200, 31, 6), (300, 50, 5)], &[(0, 40), (60, 100)]),
    ];
    for (runs, expected) in cases {
        let mut map = Map::new();
        map.create_volume(VOLUME).unwrap();
        for (lba, blocks, segment) in runs {
            write(&mut map, *lba, at(*segment, 0), *blocks, false);
        }
        assert_eq!(sealed(&map), []);
        let mut asked = Vec::new();
        let mut on_media = |segment: SegmentId| {
            asked.push(segment.0);
            segment.0 % 2 == 0
        };
        assert_eq!(map.seal(id, &mut on_media), !expected.is_empty(), "{runs:?}");
        assert_eq!(sealed(&map), expected, "{runs:?}");
        // What is sealed stays so, and nothing else is left to seal.
        assert_eq!(map.seal(id, &mut |_| false), !expected.is_empty(), "{runs:?}");
        assert_eq!(sealed(&map), expected, "{runs:?}");
    }
}

#[test]
fn a_run_that_completes_a_leaf_drops_the_sums_of_its_segment() {
    let at = |segment: u32, block: u32| BlockAddr::new(SegmentId(segment), block);
    // What the leaf has, the run that is written, whether its footer is on media, what is sealed.
    type Case = ((u64, usize), (u64, usize), bool, &'static [(u64, u64)]);
    let cases: [Case; 7] = [
        ((0, 480), (480, 32), true, &[(480, 512)]),
        ((0, 511), (511, 1), true, &[(511, 512)]),
        ((0, 480), (480, 32), false, &[]),
        ((0, 479), (480, 32), true, &[]),
        ((0, 512), (0, 512), true, &[(0, 512)]),
        ((0, 512), (200, 32), true, &[(200, 232)]),
        ((0, 0), (0, 512), true, &[(0, 512)]),
    ];
    for ((lba, blocks), (new, count), is_on_media, expected) in cases {
        let mut map = Map::new();
        map.create_volume(VOLUME).unwrap();
        write(&mut map, lba, at(1, 0), blocks, false);
        write(&mut map, new, at(2, 0), count, is_on_media);
        assert_eq!(sealed(&map), expected, "{count} blocks at {new}");
    }
    // A sealed run that goes on is the same run: a full leaf of two then takes no memory.
    let mut map = Map::new();
    let mut delta = Delta::default();
    for lba in 0..512 {
        delta.assign_sealed(VOLUME, Lba(lba), at(1 + lba as u32 / 300, lba as u32), 1);
        map.apply(&delta);
        delta = Delta::default();
    }
    let leaf = map.leaf_image(LeafId { volume: VOLUME, leaf: 0 });
    assert_eq!((leaf.runs.len(), leaf.sums.len()), (2, 0));
    assert!(!map.seal(LeafId { volume: VOLUME, leaf: 1 }, &mut |_| true));
}

#[test]
fn a_full_leaf_of_two_runs_is_sealed_although_a_part_is_sealed_already() {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    let at = |segment: u32, block: u32| BlockAddr::new(SegmentId(segment), block);
    let mut delta = Delta::default();
    delta.assign_sealed(VOLUME, Lba(0), at(2, 0), 300);
    map.apply(&delta);
    write(&mut map, 300, at(2, 300), 10, false);
    write(&mut map, 310, at(4, 0), 202, false);
    assert_eq!(sealed(&map), [(0, 300)]);
    assert!(map.seal(LeafId { volume: VOLUME, leaf: 0 }, &mut |_| true));
    assert_eq!(sealed(&map), [(0, 512)]);
}

#[test]
fn blocks_that_come_without_a_sum_leave_the_sums_of_others() {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    let at = |block| BlockAddr::new(SegmentId(1), block);
    write(&mut map, 0, at(0), 480, false);
    let mut delta = Delta::default();
    delta.assign_sealed(VOLUME, Lba(480), at(480), 32);
    map.apply(&delta);
    assert_eq!(sealed(&map), [(480, 512)]);
}
