//! References into packed blocks: snapshots keep them, lookups show them, and the journal has them.

use std::collections::BTreeMap;

use forebay_map::{DEDUP_VOLUME, Delta, ExtentKind, Map, PACKED_VOLUME, PackedRef, dedup_ref};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

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

/// Blocks of the volume in the test against a model.
const BLOCKS: u64 = 40;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// A unit: its first block, and how many.
    Write(u64, u64),
    Clear(u64, u64),
    Snapshot,
    /// A unit gets other references: which one, its first block that does, and how many.
    Repack(usize, u64, u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..BLOCKS - 4, 1..5_u64).prop_map(|(lba, blocks)| Op::Write(lba, blocks)),
        2 => (0..BLOCKS - 9, 1..10_u64).prop_map(|(lba, blocks)| Op::Clear(lba, blocks)),
        1 => Just(Op::Snapshot),
        6 => (any::<usize>(), 0..4_u64, 1..5_u64).prop_map(|(u, at, n)| Op::Repack(u, at, n)),
    ]
}

/// A volume with snapshots, and what each of them should have: the reference of each block.
#[derive(Default)]
struct World {
    map: Map,
    delta: Delta,
    volume: BTreeMap<u64, BlockAddr>,
    snapshots: Vec<BTreeMap<u64, BlockAddr>>,
    /// Units that were written or packed again: first block, first reference, blocks.
    units: Vec<(u64, BlockAddr, u64)>,
}

impl World {
    fn versions(&self) -> Vec<(VolumeId, bool)> {
        (0..self.snapshots.len() as u32).map(|at| (VolumeId(10 + at), false)).collect()
    }

    fn step(&mut self, op: Op) {
        let next = packed(self.units.len() as u64, 0);
        match op {
            Op::Write(lba, blocks) => {
                set(&mut self.map, &mut self.delta, lba, next, blocks as u32);
                self.volume.extend((0..blocks).map(|at| (lba + at, next.plus(at as u32))));
                self.units.push((lba, next, blocks));
            }
            Op::Clear(lba, blocks) => {
                let kept = &mut |kept: forebay_map::Kept<'_>| kept.note_in(&mut self.delta);
                self.map.keep_before_clear(V, Lba(lba), blocks, kept);
                self.map.clear(V, Lba(lba), blocks, &mut |_, _| {}).unwrap();
                self.delta.clear(V, Lba(lba), blocks);
                self.volume.retain(|at, _| !(lba..lba + blocks).contains(at));
            }
            Op::Snapshot => {
                self.snapshots.push(self.volume.clone());
                self.map.set_versions(V, &self.versions(), None);
            }
            Op::Repack(which, first, blocks) => {
                let Some(unit) = self.units.get(which % self.units.len().max(1)) else { return };
                let (first, (lba, old, all)) = (first.min(unit.2 - 1), *unit);
                let blocks = blocks.min(all - first);
                self.repack(lba + first, old.plus(first as u32), next, blocks);
                self.units.push((lba + first, next, blocks));
            }
        }
    }

    fn repack(&mut self, lba: u64, old: BlockAddr, new: BlockAddr, blocks: u64) {
        let mut seen = Vec::new();
        let delta = &mut self.delta;
        self.map.replace_refs((V, Lba(lba)), old, new, blocks as u32, |owner, at, addr, count| {
            seen.extend((0..count).map(|more| (owner.is_some(), at.0 + u64::from(more))));
            assert_eq!(addr.raw() - new.raw(), at.0 - lba);
            if let Some(owner) = owner {
                delta.assign_sealed(owner, at, addr, count);
            }
        });
        // Each block was shown, in order, with whether some version had it.
        let had = |at: u64| {
            let old = old.plus((at - lba) as u32);
            let has = |version: &BTreeMap<u64, BlockAddr>| version.get(&at) == Some(&old);
            has(&self.volume) || self.snapshots.iter().any(has)
        };
        let expected: Vec<(bool, u64)> = (lba..lba + blocks).map(|at| (had(at), at)).collect();
        assert_eq!(seen, expected);
        for version in self.snapshots.iter_mut().chain([&mut self.volume]) {
            for at in lba..lba + blocks {
                let more = (at - lba) as u32;
                if version.get(&at) == Some(&old.plus(more)) {
                    version.insert(at, new.plus(more));
                }
            }
        }
    }

    fn check(&self, map: &Map) {
        let mut all = Vec::new();
        for (index, version) in self.snapshots.iter().enumerate() {
            all.push((VolumeId(10 + index as u32), version));
        }
        all.push((V, &self.volume));
        for (id, version) in all {
            let held = |at: u64| version.get(&at).map(|addr| (V, at, *addr));
            assert_eq!(shown(map, id, 0, BLOCKS), (0..BLOCKS).map(held).collect::<Vec<_>>());
        }
        // No reference is in two maps, so each counts once.
        let mut refs = Vec::new();
        map.for_each_packed_ref(|addr, blocks| {
            refs.extend((0..blocks).map(|more| addr.plus(more).raw()));
        });
        let count = refs.len();
        refs.sort_unstable();
        refs.dedup();
        assert_eq!(refs.len(), count);
    }
}

proptest! {
    #[test]
    fn versions_keep_what_they_had_when_units_are_packed_again(
        ops in proptest::collection::vec(any_op(), 1..80),
    ) {
        keep(&ops);
    }
}

fn keep(ops: &[Op]) {
    let mut world = World::default();
    world.map.create_volume(V).unwrap();
    for &op in ops {
        world.step(op);
        world.check(&world.map);
    }
    let mut replayed = Map::new();
    replayed.create_volume(V).unwrap();
    for payload in world.delta.encode(4096) {
        replayed.apply(&Delta::decode(&payload).unwrap());
    }
    replayed.set_versions(V, &world.versions(), None);
    world.check(&replayed);
}

#[test]
fn versions_keep_what_they_had_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let ops = proptest::collection::vec(any_op(), 40..80);
    TestRunner::new_with_rng(config, drawn)
        .run(&ops, |ops| {
            keep(&ops);
            Ok(())
        })
        .unwrap();
}

// Segments of such high numbers leave no bit to spare; those of references are higher still.
#[test]
fn a_run_that_makes_a_leaf_plain_fits_to_its_end() {
    let number = |at: u64| 0xB0000 << 20 | at;
    for singles in 300..510u64 {
        let mut map = Map::new();
        let volume = VolumeId(1);
        map.create_volume(volume).unwrap();
        let mut set = |lba: u64, first: u64, blocks: usize| {
            let (addr, sums) = (BlockAddr::from_raw(number(first)), vec![7; blocks]);
            map.set_run(volume, Lba(lba), addr, &sums, false, &mut |_, _| {}).unwrap();
        };
        (0..singles).for_each(|at| set(at, at * 1021 % 4093, 1));
        // The second one of them needs a bit more than all others.
        set(510, 4095, 2);
        let found = |lba| map.lookup(volume, Lba(lba)).map(|found| found.addr.raw());
        assert_eq!([found(510), found(511)], [Some(number(4095)), Some(number(4096))]);
        for at in 0..singles {
            assert_eq!(found(at), Some(number(at * 1021 % 4093)), "{at} of {singles}");
        }
    }
}
