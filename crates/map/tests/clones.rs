//! Clones: promotion beside snapshots that have few entries, and what a rollback counts as shared.

use forebay_format::map_record::HOLE_SEGMENT;
use forebay_map::Map;
use forebay_units::{BlockAddr, Lba, VolumeId};

const PARENT: VolumeId = VolumeId(1);
const ORIGIN: VolumeId = VolumeId(2);
const CLONE: VolumeId = VolumeId(3);

/// Writes one block of a volume at `addr`.
fn write(map: &mut Map, volume: VolumeId, lba: u64, addr: u64) {
    map.keep_before_write(volume, Lba(lba), 1, &mut |_| {});
    let addr = BlockAddr::from_raw(addr);
    map.set_run(volume, Lba(lba), addr, &[7], false, &mut |_, _| {}).unwrap();
}

fn found(map: &Map, version: VolumeId, lba: u64) -> Option<u64> {
    map.lookup(version, Lba(lba)).map(|found| found.addr.raw())
}

/// A volume with a block and a snapshot, and a clone of that.
fn cloned(lba: u64) -> Map {
    let mut map = Map::new();
    map.create_volume(PARENT).unwrap();
    write(&mut map, PARENT, lba, 100);
    map.add_snapshot(PARENT, ORIGIN);
    map.create_volume(CLONE).unwrap();
    map.set_versions(CLONE, &[], Some(ORIGIN));
    map
}

#[test]
fn promotion_takes_along_what_snapshots_have_in_the_first_block_of_a_leaf() {
    for lba in [0, 512, 1023] {
        let mut map = cloned(lba);
        let snapshots: Vec<(VolumeId, u64)> = (0..12).map(|n| (VolumeId(10 + n), 0)).collect();
        let mut held = Vec::new();
        for (number, (snapshot, _)) in snapshots.into_iter().enumerate() {
            map.add_snapshot(PARENT, snapshot);
            held.push((snapshot, found(&map, PARENT, lba)));
            write(&mut map, PARENT, lba, 200 + 10 * number as u64);
        }
        let newest = found(&map, PARENT, lba);
        let mut promotion = map.begin_promotion(CLONE).expect("it is a clone");
        while map.promote_leaf(&mut promotion, &mut |_| {}) {}
        map.finish_promotion(promotion);
        let mine: Vec<(VolumeId, bool)> = held.iter().map(|(id, _)| (*id, false)).collect();
        map.set_versions(PARENT, &mine, Some(ORIGIN));
        map.set_versions(CLONE, &[(ORIGIN, false)], None);
        for version in [CLONE, ORIGIN] {
            assert_eq!(found(&map, version, lba), Some(100), "block {lba} of {version}");
        }
        for (snapshot, addr) in held {
            assert_eq!(found(&map, snapshot, lba), addr, "block {lba} of {snapshot}");
        }
        assert_eq!(found(&map, PARENT, lba), newest);
    }
}

#[test]
fn promotion_takes_along_what_only_the_origin_has() {
    for lba in [0, 700, 5000] {
        let mut map = cloned(lba);
        map.keep_before_clear(PARENT, Lba(lba), 1, &mut |_| {});
        map.clear(PARENT, Lba(lba), 1, &mut |_, _| {}).unwrap();
        assert_eq!((found(&map, PARENT, lba), found(&map, ORIGIN, lba)), (None, Some(100)));
        let mut promotion = map.begin_promotion(CLONE).expect("it is a clone");
        while map.promote_leaf(&mut promotion, &mut |_| {}) {}
        map.finish_promotion(promotion);
        map.set_versions(PARENT, &[], Some(ORIGIN));
        map.set_versions(CLONE, &[(ORIGIN, false)], None);
        assert_eq!(found(&map, PARENT, lba), None, "block {lba} was cleared");
        assert_eq!((found(&map, CLONE, lba), found(&map, ORIGIN, lba)), (Some(100), Some(100)));
    }
}

#[test]
fn a_hole_that_comes_back_in_a_rollback_is_shared_with_no_snapshot() {
    const SNAPSHOT: VolumeId = VolumeId(4);
    let mut map = cloned(5);
    map.clear(CLONE, Lba(5), 1, &mut |_, _| {}).unwrap();
    map.hide_origin(CLONE, Lba(5), 1, &mut |_| {});
    write(&mut map, CLONE, 6, 300);
    map.add_snapshot(CLONE, SNAPSHOT);
    assert_eq!((found(&map, CLONE, 5), map.shared_blocks(CLONE)), (None, 1));
    write(&mut map, CLONE, 5, 400);
    write(&mut map, CLONE, 6, 500);
    assert_eq!(map.shared_blocks(CLONE), 0);
    while map.roll_back(CLONE, &mut |_, _| {}, &mut |_| {}).is_some() {}
    assert_eq!((found(&map, CLONE, 5), found(&map, CLONE, 6)), (None, Some(300)));
    assert_eq!(map.shared_blocks(CLONE), 1);
}

/// What versions get: version, block, blocks, address.
type Got = (VolumeId, u64, u32, Option<u64>);

fn promoted(map: &mut Map) -> Vec<Got> {
    let mut got = Vec::new();
    let mut promotion = map.begin_promotion(CLONE).expect("it is a clone");
    let note = &mut |kept: forebay_map::Kept<'_>| {
        let has_sums = kept.addr.is_some_and(|addr| addr.raw() < 1 << 39);
        assert_eq!(kept.sums.len() as u32, if has_sums { kept.blocks } else { 0 });
        got.push((kept.volume, kept.lba.0, kept.blocks, kept.addr.map(BlockAddr::raw)));
    };
    while map.promote_leaf(&mut promotion, note) {}
    map.finish_promotion(promotion);
    map.set_versions(PARENT, &[], Some(ORIGIN));
    map.set_versions(CLONE, &[(ORIGIN, false)], None);
    got.sort_unstable_by_key(|(version, lba, ..)| (*version, *lba));
    got
}

#[test]
fn promotion_reports_each_run_once_and_leaves_no_entry_for_a_hole() {
    for base in [0, 512, 5120] {
        let hole = Some(BlockAddr::new(HOLE_SEGMENT, base as u32 + 20).raw());
        let mut map = Map::new();
        map.create_volume(PARENT).unwrap();
        // Blocks 2 and 3, and 4 to 11, which follow each other; 14 and 15 are written later.
        for (lba, addr) in (2..4).map(|n| (n, 50 + n)).chain((4..12).map(|n| (n, 100 + n))) {
            write(&mut map, PARENT, base + lba, addr);
        }
        write(&mut map, PARENT, base + 20, 400);
        map.add_snapshot(PARENT, ORIGIN);
        map.create_volume(CLONE).unwrap();
        map.set_versions(CLONE, &[], Some(ORIGIN));
        for lba in [14, 15] {
            write(&mut map, PARENT, base + lba, 200 + lba);
        }
        map.keep_before_clear(PARENT, Lba(base + 20), 1, &mut |_| {});
        map.clear(PARENT, Lba(base + 20), 1, &mut |_, _| {}).unwrap();
        write(&mut map, CLONE, base + 2, 300);
        write(&mut map, CLONE, base + 3, 301);
        let expected = [
            (PARENT, base + 2, 10, None),
            (PARENT, base + 20, 1, hole),
            (ORIGIN, base + 2, 2, Some(52)),
            (ORIGIN, base + 14, 2, None),
            (ORIGIN, base + 20, 1, None),
            // Blocks that the clone shares are its own now.
            (CLONE, base + 4, 8, Some(104)),
            (CLONE, base + 20, 1, Some(400)),
        ];
        assert_eq!(promoted(&mut map), expected, "leaf {}", base / 512);
        let entries = [PARENT, ORIGIN, CLONE].map(|version| map.entries(version));
        assert_eq!(entries, [3, 2, 11]);
    }
}

#[test]
fn promotion_takes_along_blocks_that_each_of_several_snapshots_has() {
    const COUNT: u64 = 6;
    let mut map = Map::new();
    map.create_volume(PARENT).unwrap();
    (0..COUNT).for_each(|block| write(&mut map, PARENT, block * 3, 100 + block));
    map.add_snapshot(PARENT, ORIGIN);
    map.create_volume(CLONE).unwrap();
    map.set_versions(CLONE, &[], Some(ORIGIN));
    let snapshots: Vec<VolumeId> = (0..COUNT as u32).map(|n| VolumeId(10 + n)).collect();
    for (block, snapshot) in snapshots.iter().enumerate() {
        map.add_snapshot(PARENT, *snapshot);
        write(&mut map, PARENT, block as u64 * 3, 200 + block as u64);
    }
    promoted(&mut map);
    let mine: Vec<(VolumeId, bool)> = snapshots.iter().map(|id| (*id, false)).collect();
    map.set_versions(PARENT, &mine, Some(ORIGIN));
    for block in 0..COUNT {
        for version in [CLONE, ORIGIN] {
            assert_eq!(found(&map, version, block * 3), Some(100 + block), "{block} of {version}");
        }
        for (number, snapshot) in snapshots.iter().enumerate() {
            let right = if number as u64 <= block { 100 } else { 200 };
            assert_eq!(found(&map, *snapshot, block * 3), Some(right + block), "{snapshot}");
        }
    }
}

// Their footers may not be on media yet.
#[test]
fn promotion_keeps_the_sums_of_whole_leaves() {
    let sums: Vec<u64> = (0..1500).map(|block| block * 7).collect();
    let mut map = Map::new();
    map.create_volume(PARENT).unwrap();
    map.set_run(PARENT, Lba(0), BlockAddr::from_raw(0), &sums, false, &mut |_, _| {}).unwrap();
    map.add_snapshot(PARENT, ORIGIN);
    map.create_volume(CLONE).unwrap();
    map.set_versions(CLONE, &[], Some(ORIGIN));
    promoted(&mut map);
    for version in [PARENT, ORIGIN, CLONE] {
        let sum = |lba: u64| map.lookup(version, Lba(lba)).and_then(|found| found.sum);
        assert!((0..1500).map(sum).eq(sums.iter().map(|sum| Some(*sum))), "sums of {version}");
    }
}
