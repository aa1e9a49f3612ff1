use std::collections::{BTreeMap, BTreeSet};

use forebay_format::map_record::{decode_leaves, encode_leaves};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

use super::*;
use crate::leaf::Leaf;
use crate::runs::RunList;

const LEAF: u64 = LEAF_BLOCKS as u64;
/// Where the second cluster of blocks lies: in another chapter of the directory.
const FAR: u64 = 40 << 24;

fn located(home: u32, bound: Lba, addr: BlockAddr, sum: Option<u64>) -> Located {
    Located { home: VolumeId(home), bound, addr, sum }
}

/// Footers of even segments are on media.
fn on_media(segment: SegmentId) -> bool {
    segment.0 % 2 == 0
}

#[derive(Clone, Debug)]
enum Op {
    /// Volume, block, blocks, addresses to skip first.
    Set(u32, u64, u64, u32),
    /// Volume, leaf, seed, count: single blocks of one leaf in random order.
    Scatter(u32, u64, u64, u64),
    /// Volume, first leaf, blocks, leaves: the same few blocks of each leaf.
    Spread(u32, u64, u64, u64),
    /// A whole leaf, and then random blocks of it.
    Refill(u32, u64, u64, u64),
    Clear(u32, u64, u64),
    Truncate(u32, u64),
    Seal(u32, u64),
    /// Volume, block, whether the cleaner has the right old address.
    Move(u32, u64, bool),
    Drop(u32),
    /// Images of at most this many leaves, from where the last checkpoint stopped.
    Checkpoint(usize),
}

fn any_lba() -> impl Strategy<Value = u64> {
    prop_oneof![0..4 * LEAF, FAR..FAR + LEAF, Just(MAX_VOLUME_BLOCKS - 800)]
}

fn any_op() -> impl Strategy<Value = Op> {
    let volume = 0..2u32;
    let leaf = prop_oneof![0..4u64, Just(FAR / LEAF)];
    let skip = prop_oneof![3 => Just(0), 1 => 1..100u32, 1 => Just(1 << 19)];
    let blocks = prop_oneof![Just(1), 1..40u64, 1..700u64, Just(LEAF)];
    prop_oneof![
        6 => (volume.clone(), any_lba(), blocks, skip)
            .prop_map(|(v, l, n, s)| Op::Set(v, l, n, s)),
        3 => (volume.clone(), leaf.clone(), any::<u64>(), prop_oneof![1..30u64, 1..1500u64])
            .prop_map(|(v, l, s, n)| Op::Scatter(v, l, s, n)),
        2 => (volume.clone(), leaf.clone(), 1..4u64, prop_oneof![1..20u64, 40..130u64])
            .prop_map(|(v, l, b, n)| Op::Spread(v, l, b, n)),
        3 => (volume.clone(), leaf.clone(), any::<u64>(), 0..1500u64)
            .prop_map(|(v, l, s, n)| Op::Refill(v, l, s, n)),
        3 => (volume.clone(), any_lba(), prop_oneof![1..5u64, 1..900u64, 1..60 * LEAF])
            .prop_map(|(v, l, n)| Op::Clear(v, l, n)),
        1 => (volume.clone(), prop_oneof![Just(0u64), any_lba()])
            .prop_map(|(v, l)| Op::Truncate(v, l)),
        4 => (volume.clone(), leaf).prop_map(|(v, l)| Op::Seal(v, l)),
        4 => (volume.clone(), any_lba(), any::<bool>()).prop_map(|(v, l, r)| Op::Move(v, l, r)),
        1 => volume.prop_map(Op::Drop),
        3 => (1..20usize).prop_map(Op::Checkpoint),
    ]
}

enum Payload {
    Delta(Vec<u8>),
    Leaves(Vec<u8>),
}

/// The map, a plain model of it, the addresses that are not freed, and a journal.
struct World {
    map: Map,
    model: BTreeMap<(u32, u64), Entry>,
    alive: BTreeSet<BlockAddr>,
    next: BlockAddr,
    sums: u64,
    journal: Vec<Payload>,
    cursor: LeafId,
    round_began: usize,
    /// Where a journal may begin: the start of the last completed round of images.
    journal_from: usize,
}

impl World {
    /// A world whose addresses begin near the end of segment `first`.
    fn new(first: u32) -> Self {
        let mut map = Map::new();
        map.create_volume(VolumeId(0)).unwrap();
        map.create_volume(VolumeId(1)).unwrap();
        Self {
            map,
            model: BTreeMap::new(),
            alive: BTreeSet::new(),
            // Consecutive addresses cross the border to the next segment.
            next: BlockAddr::new(SegmentId(first), BlockAddr::MAX_BLOCKS - 3 * 512),
            sums: 0,
            journal: Vec::new(),
            cursor: LeafId::default(),
            round_began: 0,
            journal_from: 0,
        }
    }

    /// Takes up to `blocks` fresh addresses within a segment.
    fn take(&mut self, blocks: u64, skip: u32) -> (BlockAddr, Vec<u64>) {
        let raw = self.next.raw() + u64::from(skip);
        let addr = BlockAddr::from_raw(raw);
        let blocks = blocks.min(u64::from(BlockAddr::MAX_BLOCKS - addr.block()));
        self.next = BlockAddr::from_raw(raw + blocks);
        self.alive.extend((0..blocks).map(|i| addr.plus(i as u32)));
        let sum = |i: u64| (self.sums + i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        let sums = (0..blocks).map(sum).collect();
        self.sums += blocks;
        (addr, sums)
    }

    /// Applies `change` and removes the addresses that it frees.
    fn free<T>(&mut self, change: impl FnOnce(&mut Map, &mut dyn FnMut(BlockAddr, u32)) -> T) -> T {
        let alive = &mut self.alive;
        change(&mut self.map, &mut |addr, blocks| {
            for i in 0..blocks {
                assert!(alive.remove(&addr.plus(i)), "{} freed twice", addr.plus(i));
            }
        })
    }

    fn note(&mut self, delta: Delta) {
        self.journal.extend(delta.encode(2000).into_iter().map(Payload::Delta));
    }

    fn set(&mut self, volume: u32, lba: u64, blocks: u64, skip: u32) {
        let (addr, sums) = self.take(blocks, skip);
        self.free(|map, mut freed| {
            let sealed = on_media(addr.segment());
            map.set_run(VolumeId(volume), Lba(lba), addr, &sums, sealed, &mut freed).unwrap();
        });
        for (i, sum) in sums.iter().enumerate() {
            let entry = Entry { addr: addr.plus(i as u32), sum: *sum };
            self.model.insert((volume, lba + i as u64), entry);
        }
        let mut delta = Delta::new();
        delta.assign(VolumeId(volume), Lba(lba), addr, &sums);
        self.note(delta);
    }

    fn scatter(&mut self, volume: u32, leaf: u64, seed: u64, count: u64) {
        for i in 0..count {
            let block = (seed ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
            self.set(volume, leaf * LEAF + block, 1, (seed >> (i % 60) & 1) as u32);
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Set(volume, lba, blocks, skip) => self.set(volume, lba, blocks, skip),
            Op::Scatter(volume, leaf, seed, count) => self.scatter(volume, leaf, seed, count),
            Op::Spread(volume, leaf, blocks, leaves) => {
                for index in 0..leaves {
                    for block in 0..blocks {
                        self.set(volume, (leaf + index) * LEAF + block * 3 % 8, 1, 0);
                    }
                }
            }
            Op::Refill(volume, leaf, seed, count) => {
                self.set(volume, leaf * LEAF, LEAF, 0);
                self.scatter(volume, leaf, seed, count);
            }
            Op::Clear(volume, lba, blocks) => {
                self.free(|map, mut freed| {
                    map.clear(VolumeId(volume), Lba(lba), blocks, &mut freed).unwrap();
                });
                self.model.retain(|(v, l), _| *v != volume || *l < lba || *l - lba >= blocks);
                let mut delta = Delta::new();
                delta.clear(VolumeId(volume), Lba(lba), blocks.min(MAX_VOLUME_BLOCKS - lba));
                self.note(delta);
            }
            Op::Truncate(volume, blocks) => {
                self.free(|map, mut freed| {
                    map.truncate(VolumeId(volume), blocks, &mut freed).unwrap();
                });
                self.model.retain(|(v, l), _| *v != volume || *l < blocks);
                let mut delta = Delta::new();
                delta.clear(VolumeId(volume), Lba(blocks), MAX_VOLUME_BLOCKS - blocks);
                self.note(delta);
            }
            Op::Seal(volume, leaf) => {
                let id = LeafId::of(VolumeId(volume), Lba(leaf * LEAF));
                self.map.seal(id, &mut on_media);
            }
            Op::Move(volume, lba, right) => {
                let Some(now) = self.model.get(&(volume, lba)).copied() else { return };
                let (addr, sums) = self.take(1, 1);
                let old = if right { now.addr } else { addr };
                let new = Entry { addr, sum: sums[0] };
                let moved = self.map.replace_if(VolumeId(volume), Lba(lba), old, new);
                assert_eq!(moved, right.then_some(VolumeId(volume)));
                self.alive.remove(&old);
                if right {
                    self.model.insert((volume, lba), new);
                    let mut delta = Delta::new();
                    delta.assign(VolumeId(volume), Lba(lba), addr, &sums);
                    self.note(delta);
                }
            }
            Op::Drop(volume) => {
                let id = VolumeId(volume);
                self.free(|map, mut freed| map.drop_volume(id, &mut freed).unwrap());
                self.map.create_volume(id).unwrap();
                self.model.retain(|(v, _), _| *v != volume);
                let mut delta = Delta::new();
                delta.drop_volume(id);
                self.note(delta);
            }
            Op::Checkpoint(count) => self.checkpoint(count),
        }
    }

    fn checkpoint(&mut self, count: usize) {
        let ids: Vec<_> = self.map.leaves_from(self.cursor).take(count).collect();
        let images: Vec<_> = ids.iter().map(|id| self.map.leaf_image(*id)).collect();
        self.journal.extend(encode_leaves(&images, 6000).into_iter().map(Payload::Leaves));
        if ids.len() == count {
            self.cursor = ids[count - 1].next().unwrap();
        } else {
            self.cursor = LeafId::default();
            self.journal_from = self.round_began;
            self.round_began = self.journal.len();
        }
    }

    /// All mapped blocks according to `lookup_range`; checks its invariants.
    fn contents(map: &Map) -> BTreeMap<(u32, u64), Mapped> {
        let mut found = BTreeMap::new();
        for volume in map.volumes() {
            let mut end = 0;
            let mut last: Option<(bool, BlockAddr)> = None;
            map.lookup_range(volume, Lba(0), MAX_VOLUME_BLOCKS, |extent| {
                assert_eq!(extent.lba.0, end);
                assert!(extent.blocks > 0);
                end += extent.blocks;
                let ExtentKind::Mapped { addr, sums, .. } = extent.kind else {
                    assert!(last.is_none_or(|(mapped, _)| mapped), "two holes in a row");
                    last = Some((false, BlockAddr::from_raw(0)));
                    return;
                };
                assert_eq!(sums.iter().count() as u64, extent.blocks);
                if let Some((true, before)) = last {
                    assert!(
                        !crate::change::continues(before, 1, addr),
                        "two extents that should be joined"
                    );
                }
                for (i, sum) in sums.iter().enumerate() {
                    assert_eq!(sums.get(i), sum);
                    let at = addr.plus(i as u32);
                    found.insert((volume.0, extent.lba.0 + i as u64), Mapped { addr: at, sum });
                    last = Some((true, at));
                }
            });
            assert_eq!(end, MAX_VOLUME_BLOCKS);
        }
        found
    }

    fn check(&self) {
        let found = Self::contents(&self.map);
        assert_same(&found, &self.model);
        for volume in 0..2 {
            let count = self.model.range((volume, 0)..(volume + 1, 0)).count() as u64;
            assert_eq!(self.map.mapped_blocks(VolumeId(volume)), count);
        }
        for lba in (0..5 * LEAF).chain(FAR - 5..FAR + LEAF + 5) {
            let one = self.map.lookup(VolumeId(0), Lba(lba));
            assert_eq!(one, found.get(&(0, lba)).map(|at| located(0, Lba(lba), at.addr, at.sum)));
        }
        let starts = [0, 7, LEAF, 2 * LEAF + 100, FAR, MAX_VOLUME_BLOCKS - 600];
        for (start, blocks) in starts.into_iter().zip([u64::MAX, 1, LEAF, 900, 3, 600]) {
            let range = (0, start)..(0, start.saturating_add(blocks));
            let count = self.model.range(range).count() as u64;
            assert_eq!(self.map.mapped_within(VolumeId(0), Lba(start), blocks), count);
        }
        let mut runs = Vec::new();
        self.map.for_each(|volume, lba, addr, blocks| {
            runs.extend((0..blocks).map(|i| ((volume.0, lba.0 + u64::from(i)), addr.plus(i))));
        });
        assert!(runs.iter().copied().eq(self.model.iter().map(|(at, entry)| (*at, entry.addr))));
        let live: BTreeSet<_> = self.model.values().map(|entry| entry.addr).collect();
        assert_eq!(live, self.alive);
        let leaves: BTreeSet<_> =
            self.model.keys().map(|(v, lba)| LeafId::of(VolumeId(*v), Lba(*lba))).collect();
        assert!(self.map.leaves_from(LeafId::default()).eq(leaves));
    }

    fn replay(&self, map: &mut Map, from: usize) {
        for payload in &self.journal[from..] {
            match payload {
                Payload::Delta(bytes) => map.apply(&Delta::decode(bytes).unwrap()),
                Payload::Leaves(bytes) => {
                    decode_leaves(bytes).unwrap().iter().for_each(|image| map.load_leaf(image));
                }
            }
        }
    }
}

/// Checks that addresses are equal, and sums too where no footer has them.
fn assert_same(found: &BTreeMap<(u32, u64), Mapped>, model: &BTreeMap<(u32, u64), Entry>) {
    assert_eq!(found.len(), model.len());
    for ((at, mapped), (expected_at, entry)) in found.iter().zip(model) {
        assert_eq!((at, mapped.addr), (expected_at, entry.addr));
        match mapped.sum {
            Some(sum) => assert_eq!(sum, entry.sum, "sum of {at:?}"),
            None => assert!(on_media(mapped.addr.segment()), "the sum of {at:?} is lost"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn map_agrees_with_a_plain_model(
        ops in proptest::collection::vec(any_op(), 1..40),
        // From segment 4095 on, not all addresses fit four bytes.
        first in prop_oneof![Just(0u32), Just(4094), Just(1 << 17)],
    ) {
        agree(&ops, first);
    }
}

fn agree(ops: &[Op], first: u32) {
    let mut world = World::new(first);
    for op in ops {
        world.step(op);
        world.check();
    }
    // The whole journal restores the map, and so does its part since the last round of images.
    // A second replay changes nothing.
    for from in [0, world.journal_from] {
        let mut map = Map::new();
        world.replay(&mut map, from);
        assert_same(&World::contents(&map), &world.model);
        world.replay(&mut map, from);
        assert_same(&World::contents(&map), &world.model);
    }
    // An empty map keeps no memory.
    let mut ignored = |_, _| {};
    for volume in [VolumeId(0), VolumeId(1)] {
        world.map.truncate(volume, 0, &mut ignored).unwrap();
    }
    assert!(world.map.leaves_from(LeafId::default()).next().is_none());
    world.map.scratch = RunList::default();
    assert!(world.map.memory_bytes() < 3000);
}

#[test]
fn map_agrees_with_a_plain_model_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let first = prop_oneof![Just(0u32), Just(4094), Just(1 << 17)];
    let ops = proptest::collection::vec(any_op(), 20..40);
    TestRunner::new_with_rng(config, drawn)
        .run(&(ops, first), |(ops, first)| {
            agree(&ops, first);
            Ok(())
        })
        .unwrap();
}

fn fresh() -> Map {
    let mut map = Map::new();
    map.create_volume(VolumeId(1)).unwrap();
    map
}

fn place(segment: u32, block: u32) -> BlockAddr {
    BlockAddr::new(SegmentId(segment), block)
}

#[test]
fn invalid_changes_are_refused() {
    let mut map = fresh();
    let one = VolumeId(1);
    let mut freed = |_, _| panic!("nothing was mapped");
    assert_eq!(map.create_volume(one), Err(MapError::VolumeExists(one)));
    let two = VolumeId(2);
    let gone = Err(MapError::NoVolume(two));
    assert_eq!(map.set_run(two, Lba(0), place(1, 0), &[1], false, &mut freed), gone);
    assert_eq!(map.clear(two, Lba(0), 1, &mut freed), gone);
    assert_eq!(map.truncate(two, 0, &mut freed), gone);
    assert_eq!(map.drop_volume(two, &mut freed), gone);
    let new = Entry { addr: place(2, 0), sum: 0 };
    assert_eq!(map.replace_if(two, Lba(0), place(1, 0), new), None);
    assert_eq!(map.lookup(two, Lba(0)), None);
    let last = Lba(MAX_VOLUME_BLOCKS - 1);
    let past = MapError::PastEnd { volume: one, lba: last, blocks: 2 };
    assert_eq!(map.set_run(one, last, place(1, 0), &[1, 2], false, &mut freed), Err(past));
    assert_eq!(map.lookup(one, Lba(u64::MAX)), None);
    map.set_run(one, last, place(1, 0), &[1], false, &mut freed).unwrap();
    assert_eq!(map.lookup(one, last), Some(located(1, last, place(1, 0), Some(1))));
}

#[test]
#[should_panic(expected = "reserved")]
fn run_at_the_reserved_address_panics() {
    let last = BlockAddr::from_raw(RESERVED_ADDR);
    let _ = fresh().set_run(VolumeId(1), Lba(0), last, &[1], false, &mut |_, _| {});
}

#[test]
#[should_panic(expected = "leaves its segment")]
fn run_past_the_end_of_a_segment_panics() {
    let addr = place(1, BlockAddr::MAX_BLOCKS - 1);
    let _ = fresh().set_run(VolumeId(1), Lba(0), addr, &[1, 2], false, &mut |_, _| {});
}

#[test]
fn freed_addresses_are_joined_and_kept_ones_are_not_freed() {
    let mut map = fresh();
    let volume = VolumeId(1);
    let mut reported = Vec::new();
    let mut freed = |addr, blocks| reported.push((addr, blocks));
    let sums = vec![5; 2000];
    map.set_run(volume, Lba(100), place(7, 50), &sums, false, &mut freed).unwrap();
    // The same call again, as after a retry.
    map.set_run(volume, Lba(100), place(7, 50), &sums, false, &mut freed).unwrap();
    map.set_run(volume, Lba(300), place(8, 0), &sums[..700], false, &mut freed).unwrap();
    map.clear(volume, Lba(0), 310, &mut freed).unwrap();
    map.drop_volume(volume, &mut freed).unwrap();
    let expected = [
        (place(7, 250), 700),
        (place(7, 50), 200),
        (place(8, 0), 10),
        (place(8, 10), 690),
        (place(7, 950), 1100),
    ];
    assert_eq!(reported, expected);
}

#[test]
fn leaf_takes_the_smallest_form_and_keeps_its_content() {
    let volume = VolumeId(1);
    let form = |map: &Map| match map.volumes[&volume].leaf(0).unwrap() {
        Leaf::Empty => "empty",
        Leaf::Pair(_) => "pair",
        Leaf::Sealed { .. } => "sealed",
        Leaf::Runs { .. } => "runs",
        Leaf::Packed { .. } => "packed",
        Leaf::Plain { .. } => "plain",
    };
    let mut map = fresh();
    let mut forms = Vec::new();
    let mut note = |map: &Map| {
        if forms.last() != Some(&form(map)) {
            forms.push(form(map));
        }
    };
    // In descending order, so that no two of the 512 blocks join.
    for i in 0..512 {
        map.set_run(volume, Lba(511 - i), place(2, i as u32), &[i], true, &mut |_, _| {}).unwrap();
        note(&map);
    }
    // Runs of single blocks are not sealed.
    assert!(!map.seal(LeafId { volume, leaf: 0 }, &mut |_| true));
    note(&map);
    let whole = vec![3; 512];
    map.set_run(volume, Lba(0), place(4, 0), &whole, false, &mut |_, _| {}).unwrap();
    note(&map);
    assert!(!map.seal(LeafId { volume, leaf: 0 }, &mut |_| false));
    note(&map);
    assert!(map.seal(LeafId { volume, leaf: 0 }, &mut |segment| segment == SegmentId(4)));
    note(&map);
    assert_eq!(map.lookup(volume, Lba(9)), Some(located(1, Lba(9), place(4, 9), None)));
    // Single blocks over the sealed leaf: every second block, then all others but one.
    for i in (0..512).step_by(2).chain((1..511).step_by(2)) {
        map.set_run(volume, Lba(i), place(5, 1000 - i as u32), &[i], true, &mut |_, _| {}).unwrap();
        note(&map);
        let last = map.lookup(volume, Lba(511));
        assert_eq!(last, Some(located(1, Lba(511), place(4, 511), None)));
    }
    // Holes again.
    for i in 0..510 {
        map.clear(volume, Lba(i), 1, &mut |_, _| {}).unwrap();
        note(&map);
    }
    let last = map.lookup(volume, Lba(511));
    assert_eq!(last, Some(located(1, Lba(511), place(4, 511), None)));
    let left = map.lookup(volume, Lba(510));
    assert_eq!(left, Some(located(1, Lba(510), place(5, 490), Some(510))));
    assert_eq!(
        forms,
        [
            "pair", "runs", "packed", "plain", "runs", "sealed", "runs", "plain", "packed", "runs",
            "pair"
        ]
    );
}

#[test]
fn leaf_of_short_addresses_accepts_a_long_one() {
    let volume = VolumeId(1);
    let mut map = fresh();
    let mut ignored = |_, _| {};
    let at = |i: u64| place(i as u32 % 7, 5000 + 3 * i as u32);
    for i in 0..512 {
        map.set_run(volume, Lba(i), at(i), &[i], false, &mut ignored).unwrap();
    }
    let bytes = |map: &Map| map.volumes[&volume].leaf(0).unwrap().heap_bytes();
    assert!(bytes(&map) < 4700, "{} bytes", bytes(&map));
    let far = place((1 << 20) - 1, BlockAddr::MAX_BLOCKS - 2);
    map.set_run(volume, Lba(100), far, &[7], false, &mut ignored).unwrap();
    assert!(bytes(&map) > 5100, "{} bytes", bytes(&map));
    for i in 0..512 {
        let (addr, sum) = if i == 100 { (far, 7) } else { (at(i), i) };
        assert_eq!(map.lookup(volume, Lba(i)), Some(located(1, Lba(i), addr, Some(sum))));
    }
}

#[test]
fn only_runs_with_a_footer_on_media_are_sealed() {
    let mut map = fresh();
    let (volume, id) = (VolumeId(1), LeafId { volume: VolumeId(1), leaf: 0 });
    let sums: Vec<u64> = (0..512).collect();
    let mut ignored = |_, _| {};
    map.set_run(volume, Lba(0), place(1, 0), &sums[..300], true, &mut ignored).unwrap();
    // This completes the leaf; the footer of segment 1 may not be on media.
    map.set_run(volume, Lba(300), place(2, 0), &sums[300..], true, &mut ignored).unwrap();
    let sum = |map: &Map, lba| map.lookup(volume, Lba(lba)).unwrap().sum;
    assert_eq!((sum(&map, 299), sum(&map, 300)), (Some(299), None));
    assert!(map.seal(id, &mut |segment| segment == SegmentId(1)));
    assert_eq!((sum(&map, 299), sum(&map, 300)), (None, None));
    // A run over a whole leaf is sealed as it is written.
    map.set_run(volume, Lba(512), place(3, 7), &sums, true, &mut ignored).unwrap();
    assert_eq!((sum(&map, 512), sum(&map, 1023)), (None, None));
    // Short runs keep their sums.
    map.set_run(volume, Lba(1024), place(3, 600), &sums[..31], true, &mut ignored).unwrap();
    map.set_run(volume, Lba(1100), place(3, 700), &sums[..32], true, &mut ignored).unwrap();
    assert!(map.seal(LeafId { volume, leaf: 2 }, &mut |_| true));
    assert_eq!((sum(&map, 1024), sum(&map, 1100)), (Some(0), None));
}
