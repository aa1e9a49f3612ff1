//! Edges of the interface: versions that do not exist, empty ranges, the ends of leaves and
//! volumes, and exactly which blocks an answer is about.

use forebay_map::{
    DEDUP_VOLUME, Delta, Entry, ExtentKind, LeafId, MAX_VOLUME_BLOCKS, Map, dedup_ref,
};
use forebay_units::{BlockAddr, Lba, VolumeId};

const VOLUME: VolumeId = VolumeId(3);
const FIRST: VolumeId = VolumeId(4);
const SECOND: VolumeId = VolumeId(5);
const CLONE: VolumeId = VolumeId(6);

fn new() -> Map {
    let mut map = Map::new();
    map.create_volume(VOLUME).unwrap();
    map
}

/// Writes blocks at addresses from `addr` on.
fn write(map: &mut Map, volume: VolumeId, (lba, blocks): (u64, u64), addr: u64) {
    map.keep_before_write(volume, Lba(lba), blocks, &mut |_| {});
    let (addr, sums) = (BlockAddr::from_raw(addr), vec![7; blocks as usize]);
    map.set_run(volume, Lba(lba), addr, &sums, false, &mut |_, _| {}).unwrap();
}

fn clear(map: &mut Map, volume: VolumeId, (lba, blocks): (u64, u64)) {
    map.keep_before_clear(volume, Lba(lba), blocks, &mut |_| {});
    map.clear(volume, Lba(lba), blocks, &mut |_, _| {}).unwrap();
    map.hide_origin(volume, Lba(lba), blocks, &mut |_| {});
}

/// The extents of a range: blocks, and the address of the first.
fn extents(map: &Map, volume: VolumeId, lba: u64, blocks: u64) -> Vec<(u64, Option<u64>)> {
    let (mut all, mut end) = (Vec::new(), lba);
    map.lookup_range(volume, Lba(lba), blocks, |extent| {
        assert_eq!(extent.lba.0, end);
        end += extent.blocks;
        let addr = match extent.kind {
            ExtentKind::Hole => None,
            ExtentKind::Mapped { addr, .. } | ExtentKind::Packed { addr, .. } => Some(addr.raw()),
        };
        all.push((extent.blocks, addr));
    });
    all
}

fn changes(map: &Map, since: VolumeId, until: VolumeId, range: (u64, u64)) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    map.changes((since, until), Lba(range.0), range.1, &mut |blocks, is| all.push((blocks, is)));
    all
}

#[test]
fn a_version_that_does_not_exist_has_nothing() {
    let mut map = new();
    let gone = VolumeId(9);
    for lba in [0, 700, u64::MAX] {
        assert_eq!(map.lookup(gone, Lba(lba)), None);
        assert_eq!(map.next_entry(gone, Lba(lba)), None);
        assert_eq!(map.unique_blocks(gone, Lba(lba)), None);
        assert_eq!(map.owner(gone, Lba(lba), BlockAddr::from_raw(5)), None);
        assert_eq!(map.lookup(VOLUME, Lba(lba)), None);
        assert_eq!(map.next_entry(VOLUME, Lba(lba)), None);
    }
    for volume in [gone, VOLUME] {
        assert_eq!(extents(&map, volume, 5, 0), []);
        assert_eq!(extents(&map, volume, 5, 1), [(1, None)]);
        assert_eq!(extents(&map, volume, 5, 900), [(900, None)]);
        assert_eq!((map.mapped_blocks(volume), map.placed_blocks(volume)), (0, 0));
        assert_eq!((map.visible_blocks(volume), map.entries(volume)), (0, 0));
        assert_eq!(map.mapped_within(volume, Lba(0), 9000), 0);
        assert_eq!(map.visible_within(volume, Lba(0), 9000), 0);
        assert_eq!(map.unshared_within(volume, Lba(0), 9000), 0);
        assert_eq!(map.shared_blocks(volume), 0);
        assert!(!map.has_refs(volume) && !map.is_clone(volume));
        assert!(!map.seal(LeafId { volume, leaf: 0 }, &mut |_| true));
        assert_eq!(map.leaf_image(LeafId { volume, leaf: 0 }).runs, []);
        assert!(map.begin_promotion(volume).is_none());
        map.keep_before_write(volume, Lba(0), 9, &mut |_| panic!("nothing is kept"));
        map.keep_before_clear(volume, Lba(0), 9, &mut |_| panic!("nothing is kept"));
        map.hide_origin(volume, Lba(0), 9, &mut |_| panic!("nothing is hidden"));
        assert_eq!(map.let_go(volume, &mut |_, _| {}, &mut |_| {}), None);
        assert_eq!(map.roll_back(volume, &mut |_, _| {}, &mut |_| {}), None);
    }
    assert!(!map.has_packed(0));
    assert_eq!(changes(&map, gone, VOLUME, (3, 9)), [(9, false)]);
    map.set_refs(gone, Lba(0), dedup_ref(Lba(1)), 1, &mut |_, _| {});
    assert_eq!(map.volumes().collect::<Vec<_>>(), [VOLUME]);
    assert!(map.drop_empty(gone) && map.drop_empty(VOLUME));
    assert_eq!(map.volumes().count(), 0);
    assert_eq!(map.largest_volume(), None);
}

#[test]
fn a_reference_to_a_content_that_is_not_there_is_a_hole() {
    let mut map = new();
    map.set_refs(VOLUME, Lba(7), dedup_ref(Lba(100)), 3, &mut |_, _| {});
    for has_volume in [false, true] {
        if has_volume {
            map.create_volume(DEDUP_VOLUME).unwrap();
        }
        assert_eq!(extents(&map, VOLUME, 6, 6), [(1, None), (3, None), (2, None)]);
        assert_eq!(map.lookup(VOLUME, Lba(8)), None);
    }
    write(&mut map, DEDUP_VOLUME, (101, 1), 9000);
    let found = [(1, None), (1, None), (1, Some(9000)), (1, None), (2, None)];
    assert_eq!(extents(&map, VOLUME, 6, 6), found);
    assert_eq!((map.placed_blocks(VOLUME), map.mapped_blocks(VOLUME)), (0, 3));
    assert_eq!(map.unshared_within(VOLUME, Lba(0), 20), 0);
    // What overwrites or clears them takes them out of the counts.
    write(&mut map, VOLUME, (8, 1), 9100);
    assert_eq!((map.placed_blocks(VOLUME), map.mapped_blocks(VOLUME)), (1, 3));
    assert!(map.has_refs(VOLUME));
    clear(&mut map, VOLUME, (7, 1));
    map.set_refs(VOLUME, Lba(9), dedup_ref(Lba(101)), 1, &mut |addr, blocks| {
        assert_eq!((addr, blocks), (dedup_ref(Lba(102)), 1));
    });
    assert_eq!((map.placed_blocks(VOLUME), map.mapped_blocks(VOLUME)), (1, 2));
    clear(&mut map, VOLUME, (9, 1));
    assert!(!map.has_refs(VOLUME));
    assert_eq!((map.placed_blocks(VOLUME), map.mapped_blocks(VOLUME)), (1, 1));
}

#[test]
fn ranges_end_with_leaves_and_with_volumes() {
    let mut map = new();
    let last = MAX_VOLUME_BLOCKS - 1;
    for lba in [0, 511, 512, 1023, 512 * 64 - 1, 512 * 64, last - 512, last] {
        write(&mut map, VOLUME, (lba, 1), 70_000 + 10 * lba % 1000);
    }
    let within = |lba, blocks| {
        let visible = map.visible_within(VOLUME, Lba(lba), blocks);
        assert_eq!(map.mapped_within(VOLUME, Lba(lba), blocks), visible);
        assert_eq!(map.unshared_within(VOLUME, Lba(lba), blocks), visible);
        visible
    };
    assert_eq!((within(0, 1), within(1, 510), within(1, 511), within(511, 1)), (1, 0, 1, 1));
    assert_eq!((within(512, 511), within(512, 512), within(511, 2)), (1, 2, 2));
    assert_eq!((within(0, 512 * 64), within(0, 512 * 64 + 1)), (5, 6));
    assert_eq!((within(last - 512, 512), within(last - 512, 513), within(last, 1)), (1, 2, 1));
    let next = |lba: u64| map.next_entry(VOLUME, Lba(lba)).map(|lba| lba.0);
    assert_eq!(
        (next(0), next(511), next(513), next(1024)),
        (Some(0), Some(0), Some(512), Some(512 * 63))
    );
    assert_eq!(
        (next(512 * 65), next(last), next(last + 1)),
        (Some(last - 1023), Some(last - 511), None)
    );
    // A clear may go on past the end of any volume.
    let mut freed = Vec::new();
    map.clear(VOLUME, Lba(last), 5000, &mut |addr, blocks| freed.push((addr.raw(), blocks)))
        .unwrap();
    assert_eq!(freed, [(70_000 + 10 * last % 1000, 1)]);
    map.truncate(VOLUME, 1023, &mut |_, blocks| freed.push((0, blocks))).unwrap();
    assert_eq!((freed.len(), map.mapped_blocks(VOLUME)), (5, 3));
    map.clear(VOLUME, Lba(512), 0, &mut |_, _| panic!("an empty range")).unwrap();
    map.clear(VOLUME, Lba(1), 510, &mut |_, _| panic!("holes")).unwrap();
}

#[test]
fn exactly_what_was_written_since_a_snapshot_has_changed() {
    let mut map = new();
    write(&mut map, VOLUME, (100, 1000), 1000);
    map.add_snapshot(VOLUME, FIRST);
    assert_eq!(changes(&map, FIRST, VOLUME, (0, 2000)), [(2000, false)]);
    write(&mut map, VOLUME, (510, 4), 5000);
    write(&mut map, VOLUME, (1023, 1), 6000);
    map.add_snapshot(VOLUME, SECOND);
    write(&mut map, VOLUME, (0, 1), 7000);
    clear(&mut map, VOLUME, (513, 2));
    let first = [(510, false), (4, true), (509, false), (1, true), (976, false)];
    assert_eq!(changes(&map, FIRST, SECOND, (0, 2000)), first);
    let second = [(1, true), (512, false), (2, true), (1485, false)];
    assert_eq!(changes(&map, SECOND, VOLUME, (0, 2000)), second);
    assert_eq!(changes(&map, FIRST, FIRST, (0, 2000)), [(2000, false)]);
    // Ranges that begin or end within what has changed.
    assert_eq!(changes(&map, FIRST, VOLUME, (0, 512)), [(1, true), (509, false), (2, true)]);
    assert_eq!(changes(&map, FIRST, VOLUME, (512, 2)), [(2, true)]);
    assert_eq!(changes(&map, FIRST, VOLUME, (511, 5)), [(4, true), (1, false)]);
    assert_eq!(changes(&map, FIRST, VOLUME, (1023, 1)), [(1, true)]);
    assert_eq!(changes(&map, FIRST, VOLUME, (1022, 1)), [(1, false)]);
}

#[test]
fn what_a_snapshot_keeps_is_told_block_by_block() {
    let mut map = new();
    write(&mut map, VOLUME, (500, 40), 1000);
    map.add_snapshot(VOLUME, FIRST);
    assert_eq!((map.shared_blocks(VOLUME), map.unshared_within(VOLUME, Lba(0), 2000)), (40, 0));
    let mut kept = Vec::new();
    let mut note = |got: forebay_map::Kept<'_>| {
        assert_eq!(got.volume, FIRST);
        kept.push((got.lba.0, got.blocks, got.addr.map(BlockAddr::raw), got.sums.len()));
    };
    map.keep_before_clear(VOLUME, Lba(0), 502, &mut note);
    map.keep_before_clear(VOLUME, Lba(0), 502, &mut note);
    map.keep_before_write(VOLUME, Lba(539), 2, &mut note);
    assert_eq!(kept[..2], [(500, 2, Some(1000), 2), (539, 1, Some(1039), 1)]);
    // Of block 540 the snapshot has a hole.
    assert_eq!((kept.len(), kept[2].0, kept[2].1, kept[2].3), (3, 540, 1, 0));
    assert_eq!(map.lookup(FIRST, Lba(540)), None);
    assert_eq!((map.shared_blocks(VOLUME), map.entries(FIRST)), (37, 4));
    assert_eq!((map.mapped_blocks(FIRST), map.visible_blocks(FIRST)), (3, 40));
    assert_eq!(map.unique_blocks(FIRST, Lba(0)), Some((2, Lba(512))));
    assert_eq!(map.unique_blocks(FIRST, Lba(512)), Some((1, Lba(1024))));
    assert_eq!(map.unique_blocks(FIRST, Lba(1)), map.unique_blocks(FIRST, Lba(512)));
    assert_eq!(map.unique_blocks(FIRST, Lba(1024)), None);
    // What the snapshot has goes leaf by leaf.
    let mut freed = Vec::new();
    let mut free = |addr: BlockAddr, blocks: u32| freed.push((addr.raw(), blocks));
    assert!(!map.drop_empty(FIRST));
    assert_eq!(map.let_go(FIRST, &mut free, &mut |_| {}), Some((Lba(0), 512)));
    assert_eq!(map.let_go(FIRST, &mut free, &mut |_| {}), Some((Lba(512), 512)));
    assert_eq!(map.let_go(FIRST, &mut free, &mut |_| {}), None);
    assert!(map.drop_empty(FIRST));
    assert_eq!(freed, [(1000, 2), (1039, 1)]);
    assert_eq!((map.shared_blocks(VOLUME), map.unshared_within(VOLUME, Lba(0), 2000)), (0, 37));
}

#[test]
fn a_moved_block_stays_with_its_version() {
    let mut map = new();
    write(&mut map, VOLUME, (5, 2), 1000);
    map.add_snapshot(VOLUME, FIRST);
    write(&mut map, VOLUME, (5, 1), 2000);
    let entry = |addr| Entry { addr: BlockAddr::from_raw(addr), sum: 9 };
    let old = |addr| BlockAddr::from_raw(addr);
    assert_eq!(map.replace_if(VOLUME, Lba(5), old(1000), entry(3000)), Some(FIRST));
    assert_eq!(map.replace_if(VOLUME, Lba(5), old(1000), entry(3001)), None);
    assert_eq!(map.replace_if(VOLUME, Lba(6), old(1001), entry(3002)), Some(VOLUME));
    assert_eq!(map.replace_if(CLONE, Lba(6), old(3002), entry(3003)), None);
    map.set_writers(VOLUME, &[CLONE]);
    assert_eq!(map.replace_if(CLONE, Lba(6), old(3002), entry(3003)), Some(VOLUME));
    assert_eq!(extents(&map, FIRST, 5, 2), [(1, Some(3000)), (1, Some(3003))]);
    assert_eq!(extents(&map, VOLUME, 5, 2), [(1, Some(2000)), (1, Some(3003))]);
    map.set_writers(VOLUME, &[]);
    assert_eq!(map.owner(CLONE, Lba(6), old(3003)), None);
}

#[test]
fn the_largest_volume_is_the_one_whose_leaves_take_most() {
    let mut map = new();
    map.create_volume(CLONE).unwrap();
    for block in 0..400 {
        write(&mut map, VOLUME, (block * 2, 1), 90_000 - 3 * block);
        write(&mut map, CLONE, (block * 2 + block % 2, 1), 50_000 - 3 * block);
    }
    let (volume, bytes) = map.largest_volume().expect("there are two");
    assert!(bytes > 4000 && bytes < map.memory_bytes(), "{bytes} bytes");
    clear(&mut map, volume, (0, 800));
    let (other, _) = map.largest_volume().expect("there are two");
    assert_ne!(volume, other);
}

// Markers are numbered like the blocks of a segment.
#[test]
fn holes_over_the_end_of_a_segment_of_markers_are_kept() {
    const BORDER: u64 = BlockAddr::MAX_BLOCKS as u64;
    let mut map = new();
    write(&mut map, VOLUME, (BORDER - 2000, 1), 1000);
    map.add_snapshot(VOLUME, FIRST);
    map.create_volume(CLONE).unwrap();
    map.set_versions(CLONE, &[], Some(FIRST));
    map.add_snapshot(CLONE, SECOND);
    for volume in [VOLUME, CLONE] {
        write(&mut map, volume, (BORDER - 600, 1200), 4 << 20);
        let snapshot = if volume == VOLUME { FIRST } else { SECOND };
        assert_eq!(extents(&map, snapshot, BORDER - 700, 1400), [(1400, None)]);
        assert_eq!((map.entries(snapshot), map.mapped_blocks(snapshot)), (1200, 0));
        map.for_each(|_, _, addr, _| assert!(addr.raw() < 5 << 20, "{addr} is no block"));
    }
}

#[test]
fn what_is_a_hole_anyway_takes_no_entry() {
    let mut map = new();
    write(&mut map, VOLUME, (5, 1), 1000);
    map.add_snapshot(VOLUME, FIRST);
    map.create_volume(CLONE).unwrap();
    map.set_versions(CLONE, &[], Some(FIRST));
    // Only block 5 would show what the origin has.
    clear(&mut map, CLONE, (0, 900));
    assert_eq!((map.entries(CLONE), map.visible_blocks(CLONE)), (1, 0));
    // A rollback to holes, and to what the origin has.
    write(&mut map, VOLUME, (7, 2), 2000);
    assert_eq!((map.entries(VOLUME), map.entries(FIRST)), (3, 2));
    map.set_versions(CLONE, &[], Some(FIRST));
    clear(&mut map, VOLUME, (8, 1));
    while map.roll_back(VOLUME, &mut |_, _| {}, &mut |_| {}).is_some() {}
    assert_eq!((map.entries(VOLUME), map.entries(FIRST)), (1, 0));
    map.add_snapshot(CLONE, SECOND);
    write(&mut map, CLONE, (5, 4), 3000);
    assert_eq!((map.entries(CLONE), map.entries(SECOND)), (4, 4));
    while map.roll_back(CLONE, &mut |_, _| {}, &mut |_| {}).is_some() {}
    assert_eq!((map.entries(CLONE), map.visible_blocks(CLONE)), (1, 0));
}

#[test]
fn two_blocks_of_which_a_snapshot_has_one_are_half_shared() {
    let mut map = new();
    write(&mut map, VOLUME, (510, 4), 1000);
    map.add_snapshot(VOLUME, FIRST);
    write(&mut map, VOLUME, (511, 2), 2000);
    let unshared = |lba, blocks| map.unshared_within(VOLUME, Lba(lba), blocks);
    assert_eq!((unshared(510, 1), unshared(511, 1), unshared(510, 2)), (0, 1, 1));
    assert_eq!((unshared(511, 2), unshared(512, 2), unshared(513, 2)), (2, 1, 0));
    assert_eq!((map.shared_blocks(VOLUME), unshared(0, 2000)), (2, 2));
}

/// How many blocks a version has in all, with an address, and with a place of their own.
fn counts(map: &Map, version: VolumeId) -> [u64; 3] {
    [map.entries(version), map.mapped_blocks(version), map.placed_blocks(version)]
}

#[test]
fn an_image_of_a_leaf_brings_its_holes_and_references() {
    let mut map = new();
    write(&mut map, VOLUME, (0, 100), 1000);
    map.set_refs(VOLUME, Lba(3), dedup_ref(Lba(70)), 5, &mut |_, _| {});
    map.set_refs(VOLUME, Lba(0), dedup_ref(Lba(90)), 1, &mut |_, _| {});
    map.add_snapshot(VOLUME, FIRST);
    // The snapshot gets holes, references and places.
    write(&mut map, VOLUME, (99, 8), 5000);
    write(&mut map, VOLUME, (0, 6), 6000);
    assert_eq!((counts(&map, FIRST), counts(&map, VOLUME)), ([14, 7, 3], [107, 107, 105]));
    let image = |map: &Map, volume| map.leaf_image(LeafId { volume, leaf: 0 });
    let mut loaded = Map::new();
    for round in 0..2 {
        for volume in [VOLUME, FIRST] {
            loaded.load_leaf(&image(&map, volume));
            assert_eq!(counts(&loaded, volume), counts(&map, volume), "round {round}");
            assert_eq!(loaded.has_refs(volume), map.has_refs(volume));
            assert_eq!(image(&loaded, volume), image(&map, volume));
        }
    }
    // An image replaces what was there.
    let mut other = image(&map, FIRST);
    other.volume = VOLUME;
    loaded.load_leaf(&other);
    assert_eq!(
        (counts(&loaded, VOLUME), loaded.mapped_within(VOLUME, Lba(0), 9000)),
        ([14, 7, 3], 7)
    );
    (other.runs, other.sums) = (Vec::new(), Vec::new());
    loaded.load_leaf(&other);
    assert_eq!((counts(&loaded, VOLUME), loaded.has_refs(VOLUME)), ([0; 3], false));
    assert_eq!(loaded.leaves_from(LeafId::default()).count(), 1);
}

#[test]
fn a_sealed_run_over_the_end_of_a_leaf_goes_on_at_the_next_address() {
    for blocks in [1, 2, 3, 513, 1500] {
        let mut map = new();
        let mut delta = Delta::new();
        let first = BlockAddr::from_raw(7000);
        delta.assign_sealed(VOLUME, Lba(510), first, blocks);
        map.apply(&delta);
        assert_eq!(extents(&map, VOLUME, 510, blocks.into()), [(blocks.into(), Some(7000))]);
        assert_eq!(counts(&map, VOLUME), [u64::from(blocks); 3]);
        assert!(!map.has_refs(VOLUME));
        map.set_refs(VOLUME, Lba(510), dedup_ref(Lba(9)), blocks, &mut |_, _| {});
        let mut refs = Vec::new();
        map.for_each_ref(|lba, blocks| refs.extend((0..blocks).map(|at| lba.0 + u64::from(at))));
        assert!(refs.into_iter().eq(9..9 + u64::from(blocks)));
        assert_eq!(counts(&map, VOLUME), [blocks.into(), blocks.into(), 0]);
    }
}

#[test]
fn a_snapshot_keeps_the_sums_that_its_volume_had() {
    // Every third group of 50 blocks has its sums in the footer.
    let sum = |lba: u64| (lba / 50 % 3 != 1).then_some(lba * 7);
    let mut map = new();
    let mut delta = Delta::new();
    for lba in 0..1100 {
        let addr = BlockAddr::from_raw(3000 + lba);
        match sum(lba) {
            Some(sum) => delta.assign(VOLUME, Lba(lba), addr, &[sum]),
            None => delta.assign_sealed(VOLUME, Lba(lba), addr, 1),
        }
    }
    map.apply(&delta);
    map.add_snapshot(VOLUME, FIRST);
    let mut kept = Delta::new();
    map.keep_before_write(VOLUME, Lba(0), 1100, &mut |got| got.note_in(&mut kept));
    let mut replayed = Map::new();
    replayed.apply(&kept);
    replayed.set_versions(VOLUME, &[(FIRST, false)], None);
    for map in [&map, &replayed] {
        assert_eq!((counts(map, VOLUME), counts(map, FIRST)), ([0; 3], [1100; 3]));
        for lba in 0..1100 {
            let found = map.lookup(FIRST, Lba(lba)).expect("it is mapped");
            assert_eq!((found.addr.raw(), found.sum), (3000 + lba, sum(lba)), "block {lba}");
        }
    }
}

#[test]
fn an_extent_has_at_most_65536_blocks() {
    let mut map = new();
    let mut delta = Delta::new();
    delta.assign_sealed(VOLUME, Lba(100), BlockAddr::from_raw(3000), 140_000);
    map.apply(&delta);
    let found = [(100, None), (65_436, Some(3000)), (65_536, Some(68_436)), (9028, Some(133_972))];
    assert_eq!(extents(&map, VOLUME, 0, 140_100), found);
    assert_eq!(extents(&map, VOLUME, 512, 65_536), [(65_536, Some(3412))]);
    assert_eq!(extents(&map, VOLUME, 512, 65_537), [(65_536, Some(3412)), (1, Some(68_948))]);
    assert_eq!(map.mapped_within(VOLUME, Lba(u64::MAX / 2), 5), 0);
}

#[test]
fn blocks_that_follow_each_other_are_one_run_whichever_came_first() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [0, 3, 1, 2], [3, 0, 2, 1]] {
        let mut map = new();
        for part in order {
            write(&mut map, VOLUME, (100 * part + 50, 100), 5000 + 100 * part);
        }
        let image = map.leaf_image(LeafId { volume: VOLUME, leaf: 0 });
        assert_eq!(image.runs.len(), 1, "{order:?}");
    }
}

#[test]
fn leaves_go_on_from_a_cursor_and_runs_of_two_blocks_are_joined() {
    let mut map = new();
    map.create_volume(CLONE).unwrap();
    for volume in [VOLUME, CLONE] {
        for lba in [0, 1, 512 * 7, 512 * 9] {
            write(&mut map, volume, (lba, 1), u64::from(volume.0) << 20 | lba);
        }
    }
    let id = |volume, leaf| LeafId { volume, leaf };
    let all = [0, 7, 9].map(|leaf| id(VOLUME, leaf)).into_iter();
    let all: Vec<LeafId> = all.chain([0, 7, 9].map(|leaf| id(CLONE, leaf))).collect();
    let from = |cursor| map.leaves_from(cursor).collect::<Vec<_>>();
    assert_eq!(from(LeafId::default()), all);
    assert_eq!(from(id(VOLUME, 1)), all[1..]);
    assert_eq!(from(id(VOLUME, 9)), all[2..]);
    assert_eq!(from(id(VOLUME, 10)), all[3..]);
    assert_eq!(from(id(CLONE, 8)), all[5..]);
    let mut runs = Vec::new();
    map.for_each(|volume, lba, addr, blocks| runs.push((volume, lba.0, addr.raw(), blocks)));
    assert_eq!(runs.len(), 6);
    assert_eq!((runs[0], runs[3]), ((VOLUME, 0, 3 << 20, 2), (CLONE, 0, 6 << 20, 2)));
}

#[test]
fn blocks_that_only_a_snapshot_has_are_those_that_older_ones_have_otherwise() {
    let mut map = new();
    write(&mut map, VOLUME, (5, 4), 1000);
    map.add_snapshot(VOLUME, FIRST);
    write(&mut map, VOLUME, (5, 2), 2000);
    map.add_snapshot(VOLUME, SECOND);
    write(&mut map, VOLUME, (6, 3), 3000);
    // The older snapshot has blocks 5 and 6 of its own, and takes 7 and 8 from the newer one.
    assert_eq!(map.unique_blocks(FIRST, Lba(0)), Some((2, Lba(512))));
    assert_eq!(map.unique_blocks(SECOND, Lba(0)), Some((1, Lba(512))));
    assert_eq!(counts(&map, SECOND), [3, 3, 3]);
    // A snapshot that loses a block keeps others of the leaf.
    map.clear(SECOND, Lba(6), 1, &mut |_, _| {}).unwrap();
    let held = [5, 7, 8].map(|lba| map.lookup(SECOND, Lba(lba)).map(|found| found.addr.raw()));
    assert_eq!(held, [Some(2000), Some(1002), Some(1003)]);
    assert_eq!(extents(&map, FIRST, 5, 4), [(2, Some(1000)), (2, Some(1002))]);
}
