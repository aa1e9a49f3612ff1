use forebay_units::BlockAddr;

use super::*;

const VOLUME: VolumeId = VolumeId(1);

/// A volume with `count` snapshots, each of which has its own version of block 7.
fn volume_with(count: u32) -> Map {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    for number in 0..count {
        let addr = BlockAddr::from_raw(u64::from(number) * 3 + 5);
        map.keep_before_write(VOLUME, Lba(7), 1, &mut |_| {});
        map.set_run(VOLUME, Lba(7), addr, &[9], false, &mut |_, _| {}).unwrap();
        map.add_snapshot(VOLUME, VolumeId(2 + number));
    }
    map
}

#[test]
fn a_search_passes_over_snapshots_that_lack_the_block() {
    for count in [20, 100, 700] {
        let mut map = volume_with(count);
        let snapshots: Vec<_> = (0..count).map(|number| (VolumeId(2 + number), false)).collect();
        for is_linked_anew in [false, true] {
            if is_linked_anew {
                map.set_versions(VOLUME, &[], None);
                map.set_versions(VOLUME, &snapshots, None);
            }
            let index = &map.lines[&VOLUME].index;
            assert_eq!(index.first(0, 0..u32::MAX, &(7..8)), Some(0));
            assert_eq!(index.first(0, count - 2..u32::MAX, &(7..8)), Some(count - 2));
            // The newest has no entry yet, and none has one for another block.
            assert_eq!(index.first(0, count - 1..u32::MAX, &(7..8)), None);
            assert_eq!(index.first(0, 0..u32::MAX, &(8..512)), None);
            assert_eq!(index.first(0, 0..u32::MAX, &(0..7)), None);
        }
    }
}

/// An index in which these snapshots have an entry for block 7 of three leaves.
fn index_of(numbers: Range<u32>) -> LeafIndex {
    let mut index = LeafIndex::default();
    for number in numbers {
        (0..3).for_each(|leaf| index.add(leaf, number, 7..8, |_| None));
    }
    index
}

#[test]
fn the_memory_of_snapshots_that_are_gone_comes_back() {
    for (gone, left) in [(0..512, 512..700), (512..700, 0..512), (0..600, 600..700)] {
        let mut index = index_of(0..700);
        let before = index.memory_bytes();
        for number in gone {
            (0..3).for_each(|leaf| index.remove(leaf, number));
        }
        let now = index.memory_bytes();
        assert_eq!(now, index_of(left).memory_bytes());
        assert!(0 < now && now < before, "{now} bytes, {before} before");
    }
}

#[test]
fn a_writer_without_heirs_is_forgotten() {
    let mut map = Map::new();
    for number in 0..100 {
        map.set_writers(VolumeId(number), &[VolumeId(1000), VolumeId(2000 + number)]);
    }
    assert_eq!(map.heirs.len(), 101);
    for number in 1..100 {
        map.set_writers(VolumeId(number), &[]);
    }
    assert_eq!(map.heirs.keys().collect::<Vec<_>>(), [&VolumeId(1000), &VolumeId(2000)]);
}
