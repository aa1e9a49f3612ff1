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
    map.create_volume(VolumeId(0)).unwrap();
    map.drop_volume(VolumeId(0), &mut |_, _| {}).unwrap();
    assert!(map.heirs.is_empty());
}

/// A volume with a block in each of two leaves, and `count` snapshots that have these blocks.
fn volume_of_two_leaves(count: u32) -> Map {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    for number in 0..=count {
        for lba in [7, 700] {
            map.keep_before_write(VOLUME, Lba(lba), 1, &mut |_| {});
            let addr = BlockAddr::from_raw(u64::from(number) * 3000 + lba);
            map.set_run(VOLUME, Lba(lba), addr, &[9], false, &mut |_, _| {}).unwrap();
        }
        if number < count {
            map.add_snapshot(VOLUME, VolumeId(2 + number));
        }
    }
    map
}

#[test]
fn nothing_is_left_of_a_version_that_is_dropped() {
    let mut map = volume_of_two_leaves(3);
    map.drop_volume(VolumeId(4), &mut |_, _| {}).unwrap();
    let index = &map.lines[&VOLUME].index;
    for leaf in [0, 1] {
        assert_eq!(index.first(leaf, 0..u32::MAX, &(0..512)), Some(0));
        assert_eq!(index.first(leaf, 2..u32::MAX, &(0..512)), None);
    }
    for snapshot in [2, 3] {
        map.drop_volume(VolumeId(snapshot), &mut |_, _| {}).unwrap();
    }
    assert!(map.lines.is_empty());
    // So it is when a volume goes before its snapshots: another of its id has none.
    let mut map = volume_of_two_leaves(2);
    map.drop_volume(VOLUME, &mut |_, _| {}).unwrap();
    assert!(map.lines.is_empty());
    map.create_volume(VOLUME).unwrap();
    map.keep_before_write(VOLUME, Lba(7), 1, &mut |_| panic!("nothing is kept"));
    let mut map = volume_of_two_leaves(0);
    map.set_versions(VOLUME, &[], None);
    assert!(map.lines.is_empty());
}

#[test]
fn a_line_that_is_linked_with_another_origin_takes_from_that() {
    let mut map = volume_of_two_leaves(1);
    let (snapshot, other, origin) = (VolumeId(2), VolumeId(50), VolumeId(51));
    let found = |map: &Map, version| map.lookup(version, Lba(8)).map(|found| found.addr.raw());
    map.create_volume(other).unwrap();
    let addr = BlockAddr::from_raw(1 << 20);
    map.set_run(other, Lba(8), addr, &[9], false, &mut |_, _| {}).unwrap();
    map.add_snapshot(other, origin);
    for _ in 0..2 {
        for (origin, seen) in [(Some(origin), Some(1 << 20)), (None, None)] {
            map.set_versions(VOLUME, &[(snapshot, false)], origin);
            assert_eq!((found(&map, VOLUME), found(&map, snapshot)), (seen, seen));
            assert_eq!(map.lookup(snapshot, Lba(7)).map(|found| found.addr.raw()), Some(7));
            assert_eq!(map.shared_blocks(VOLUME), 0);
        }
    }
    // What the snapshot has instead of the volume's block is that it takes it from the origin.
    map.set_versions(VOLUME, &[(snapshot, false)], Some(origin));
    map.keep_before_write(VOLUME, Lba(8), 1, &mut |_| {});
    map.set_run(VOLUME, Lba(8), BlockAddr::from_raw(99), &[9], false, &mut |_, _| {}).unwrap();
    assert_eq!((found(&map, VOLUME), found(&map, snapshot)), (Some(99), Some(1 << 20)));
    map.set_versions(VOLUME, &[(snapshot, false)], None);
    assert_eq!((found(&map, VOLUME), found(&map, snapshot)), (Some(99), None));
}
