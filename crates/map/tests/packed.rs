//! References into packed blocks: snapshots keep them, lookups show them, and the journal has them.

use forebay_map::{DEDUP_VOLUME, Delta, ExtentKind, Map, PACKED_VOLUME, PackedRef, dedup_ref};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

const V: VolumeId = VolumeId(1);
const SNAPSHOT: VolumeId = VolumeId(2);

/// What a block shows: the volume and block that wrote it, and its address.
type Shown = Option<(VolumeId, u64, BlockAddr)>;

fn shown(map: &Map, volume: VolumeId, lba: u64, blocks: u64) -> Vec<Shown> {
    let mut all = Vec::new();
    map.lookup_range(volume, Lba(lba), blocks, |part| match part.kind {
        ExtentKind::Hole => all.extend((0..part.blocks).map(|_| None)),
        ExtentKind::Packed { home, bound, addr } => all.extend((0..part.blocks).map(|at| {
            let addr = BlockAddr::from_raw(addr.raw() + at);
            assert!(PackedRef::of(addr).is_some(), "{addr} is a place");
            Some((home, bound.0 + at, addr))
        })),
        ExtentKind::Mapped { home, bound, addr, .. } => all.extend((0..part.blocks).map(|at| {
            let addr = addr.plus(at as u32);
            assert_eq!(PackedRef::of(addr), None);
            Some((home, bound.0 + at, addr))
        })),
    });
    for (index, shown) in all.iter().enumerate() {
        let found = map.lookup(volume, Lba(lba + index as u64));
        assert_eq!(found.map(|found| (found.home, found.bound.0, found.addr)), *shown);
    }
    all
}

fn packed(block: u64, slot: u8) -> BlockAddr {
    PackedRef { block: Lba(block), slot, index: 0 }.addr()
}

fn set(
    map: &mut Map,
    delta: &mut Delta,
    lba: u64,
    addr: BlockAddr,
    blocks: u32,
) -> Vec<(u64, u32)> {
    let mut freed = Vec::new();
    map.keep_before_write(V, Lba(lba), blocks.into(), &mut |kept| kept.note_in(delta));
    map.set_refs(V, Lba(lba), addr, blocks, &mut |addr, n| freed.push((addr.raw(), n)));
    delta.assign_sealed(V, Lba(lba), addr, blocks);
    freed
}

#[test]
fn snapshots_keep_references_and_the_journal_has_them() {
    let mut map = Map::new();
    let mut delta = Delta::new();
    for volume in [V, DEDUP_VOLUME, PACKED_VOLUME] {
        map.create_volume(volume).unwrap();
    }
    let mut none = |_, _| panic!("nothing was there");
    for number in 9..12 {
        let addr = BlockAddr::new(SegmentId(5), number);
        map.set_run(PACKED_VOLUME, Lba(number.into()), addr, &[7], false, &mut none).unwrap();
        delta.assign(PACKED_VOLUME, Lba(number.into()), addr, &[7]);
    }
    assert_eq!(set(&mut map, &mut delta, 4, packed(9, 0), 4), []);
    assert_eq!(set(&mut map, &mut delta, 8, packed(9, 14), 4), []);
    // A content that is compressed, and a block that refers to it.
    map.set_refs(DEDUP_VOLUME, Lba(70), packed(11, 1), 1, &mut none);
    delta.assign_sealed(DEDUP_VOLUME, Lba(70), packed(11, 1), 1);
    assert_eq!(set(&mut map, &mut delta, 12, dedup_ref(Lba(70)), 1), []);
    map.set_versions(V, &[(SNAPSHOT, false)], None);

    // A write over a part of a unit: the snapshot has it from now on.
    assert_eq!(set(&mut map, &mut delta, 6, packed(11, 2), 1), []);
    let at = |lba: u64, addr: BlockAddr, more: u64| {
        Some((V, lba, BlockAddr::from_raw(addr.raw() + more)))
    };
    let content = Some((DEDUP_VOLUME, 70, packed(11, 1)));
    let check = |map: &Map| {
        let new = shown(map, V, 3, 11);
        assert_eq!(new[..2], [None, at(4, packed(9, 0), 0)]);
        assert_eq!(new[3..5], [at(6, packed(11, 2), 0), at(7, packed(9, 0), 3)]);
        assert_eq!(new[8..], [at(11, packed(9, 14), 3), content, None]);
        assert_eq!(shown(map, SNAPSHOT, 6, 1), [at(6, packed(9, 0), 2)]);
        assert_eq!(shown(map, SNAPSHOT, 12, 1), [content]);
        let mut refs = Vec::new();
        map.for_each_packed_ref(|addr, blocks| refs.push((addr.raw(), blocks)));
        assert_eq!(refs.iter().map(|(_, blocks)| blocks).sum::<u32>(), 10);
        assert!(map.has_refs(V) && map.has_refs(SNAPSHOT) && !map.has_refs(PACKED_VOLUME));
        assert_eq!((map.placed_blocks(V), map.placed_blocks(PACKED_VOLUME)), (0, 3));
        assert!(map.has_packed(11) && !map.has_packed(12));
    };
    check(&map);
    let mut replayed = Map::new();
    for payload in delta.encode(4096) {
        replayed.apply(&Delta::decode(&payload).unwrap());
    }
    replayed.set_versions(V, &[(SNAPSHOT, false)], None);
    check(&replayed);

    // Runs that are given back are references, and not places.
    let mut freed = Vec::new();
    map.clear(V, Lba(0), 100, &mut |addr, blocks| freed.push((addr, blocks))).unwrap();
    assert_eq!(freed.iter().map(|(_, blocks)| blocks).sum::<u32>(), 9);
    assert!(freed.iter().all(|(addr, _)| addr.segment() >= SegmentId(0xc_0000)));
}
