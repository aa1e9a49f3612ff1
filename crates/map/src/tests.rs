use std::collections::{BTreeMap, BTreeSet};

use forebay_format::map_record::{decode_leaves, encode_leaves};
use proptest::prelude::*;

use super::*;

const LEAF: u64 = LEAF_BLOCKS as u64;
/// Where the second cluster of blocks lies: in another chapter of the directory.
const FAR: u64 = 40 << 24;

/// Footers of even segments are on media.
fn on_media(segment: SegmentId) -> bool {
    segment.0.is_multiple_of(2)
}

#[derive(Clone, Debug)]
enum Op {
    /// Volume, block, blocks, addresses to skip before taking some.
    Set(u32, u64, u64, u32),
    /// Volume, leaf, seed, count: single blocks of one leaf in random order.
    Scatter(u32, u64, u64, u64),
    /// A whole leaf, and then random blocks of it.
    Refill(u32, u64, u64, u64),
    Clear(u32, u64, u64),
    Truncate(u32, u64),
    Seal(u32, u64),
    /// Volume, block, blocks, whether the cleaner saw the right old addresses.
    Move(u32, u64, u64, bool),
    MoveOne(u32, u64, bool),
    Drop(u32),
    /// Images of at most so many leaves, going on where the last ones stopped.
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
        6 => (volume.clone(), any_lba(), blocks.clone(), skip)
            .prop_map(|(v, l, n, s)| Op::Set(v, l, n, s)),
        3 => (volume.clone(), leaf.clone(), any::<u64>(), prop_oneof![1..30u64, 1..1500u64])
            .prop_map(|(v, l, s, n)| Op::Scatter(v, l, s, n)),
        3 => (volume.clone(), leaf.clone(), any::<u64>(), 0..1500u64)
            .prop_map(|(v, l, s, n)| Op::Refill(v, l, s, n)),
        3 => (volume.clone(), any_lba(), prop_oneof![1..5u64, 1..900u64])
            .prop_map(|(v, l, n)| Op::Clear(v, l, n)),
        1 => (volume.clone(), prop_oneof![Just(0u64), any_lba()])
            .prop_map(|(v, l)| Op::Truncate(v, l)),
        4 => (volume.clone(), leaf).prop_map(|(v, l)| Op::Seal(v, l)),
        2 => (volume.clone(), any_lba(), blocks, any::<bool>())
            .prop_map(|(v, l, n, r)| Op::Move(v, l, n, r)),
        2 => (volume.clone(), any_lba(), any::<bool>()).prop_map(|(v, l, r)| Op::MoveOne(v, l, r)),
        1 => volume.prop_map(Op::Drop),
        3 => (1..20usize).prop_map(Op::Checkpoint),
    ]
}

enum Payload {
    Delta(Vec<u8>),
    Leaves(Vec<u8>),
}

/// The map, the plainest map there is, what freeing left alive, and a journal.
struct World {
    map: Map,
    model: BTreeMap<(u32, u64), Entry>,
    alive: BTreeSet<BlockAddr>,
    next: BlockAddr,
    sums: u64,
    journal: Vec<Payload>,
    cursor: LeafId,
    round_began: usize,
    /// Where a journal may begin: the start of the last round of images that was completed.
    journal_from: usize,
}

impl World {
    fn new() -> Self {
        let mut map = Map::new();
        map.create_volume(VolumeId(0)).unwrap();
        map.create_volume(VolumeId(1)).unwrap();
        Self {
            map,
            model: BTreeMap::new(),
            alive: BTreeSet::new(),
            // Near the end of a segment: addresses whose numbers follow each other across it.
            next: BlockAddr::new(SegmentId(0), BlockAddr::MAX_BLOCKS - 3 * 512),
            sums: 0,
            journal: Vec::new(),
            cursor: LeafId::default(),
            round_began: 0,
            journal_from: 0,
        }
    }

    /// Fresh addresses, within a segment: as many as asked for or as its end allows.
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

    /// Makes one change through `change`, which also hears where to tell of freed addresses.
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
            Op::Move(volume, lba, blocks, right) => self.move_run(volume, lba, blocks, right),
            Op::MoveOne(volume, lba, right) => {
                let Some(now) = self.model.get(&(volume, lba)).copied() else { return };
                let (addr, sums) = self.take(1, 1);
                let old = if right { now.addr } else { addr };
                let new = Entry { addr, sum: sums[0] };
                assert_eq!(self.map.replace_if(VolumeId(volume), Lba(lba), old, new), right);
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

    fn move_run(&mut self, volume: u32, lba: u64, blocks: u64, right: bool) {
        let old = self.model.get(&(volume, lba)).map(|entry| entry.addr);
        let old = old.filter(|_| right).unwrap_or(BlockAddr::new(SegmentId(9999), 0));
        let (new, sums) = self.take(blocks, 1);
        let mut delta = Delta::new();
        let mut moved = 0;
        for (i, sum) in sums.iter().enumerate() {
            let at = (volume, lba + i as u64);
            let was = old.raw() + i as u64;
            if self.model.get(&at).is_some_and(|entry| entry.addr.raw() == was) {
                let addr = new.plus(i as u32);
                self.model.insert(at, Entry { addr, sum: *sum });
                self.alive.remove(&BlockAddr::from_raw(was));
                delta.assign(VolumeId(volume), Lba(at.1), addr, &[*sum]);
                moved += 1;
            }
        }
        let told = self.free(|map, mut stale| {
            map.replace_run_if(VolumeId(volume), Lba(lba), old, new, &sums, &mut stale)
        });
        assert_eq!(told, moved);
        self.note(delta);
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

    /// All that is mapped, block by block, as `lookup_range` tells it; checks its promises.
    fn contents(map: &Map) -> BTreeMap<(u32, u64), Mapped> {
        let mut found = BTreeMap::new();
        for volume in map.volumes() {
            let mut end = 0;
            let mut last: Option<(bool, BlockAddr)> = None;
            map.lookup_range(volume, Lba(0), MAX_VOLUME_BLOCKS, |piece| {
                assert_eq!(piece.lba.0, end);
                assert!(piece.blocks > 0);
                end += piece.blocks;
                let PieceKind::Mapped { addr, sums } = piece.kind else {
                    assert!(last.is_none_or(|(mapped, _)| mapped), "two holes in a row");
                    last = Some((false, BlockAddr::from_raw(0)));
                    return;
                };
                assert_eq!(sums.len() as u64, piece.blocks);
                if let Some((true, before)) = last {
                    assert!(!runs::continues(before, 1, addr), "two pieces that are one");
                }
                for (i, sum) in sums.iter().enumerate() {
                    assert_eq!(sums.get(i), sum);
                    let at = addr.plus(i as u32);
                    found.insert((volume.0, piece.lba.0 + i as u64), Mapped { addr: at, sum });
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
            assert_eq!(one, found.get(&(0, lba)).copied());
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

/// The same addresses; the same sums, or none where a footer has them.
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
    fn agrees_with_a_plain_map(ops in proptest::collection::vec(any_op(), 1..40)) {
        let mut world = World::new();
        for op in &ops {
            world.step(op);
            world.check();
        }
        // A journal gives the map back: all of it, what is left after a round of images, and
        // each of them over again.
        for from in [0, world.journal_from] {
            let mut map = Map::new();
            world.replay(&mut map, from);
            assert_same(&World::contents(&map), &world.model);
            world.replay(&mut map, from);
            assert_same(&World::contents(&map), &world.model);
        }
        // Nothing mapped, nothing kept.
        let mut ignored = |_, _| {};
        for volume in [VolumeId(0), VolumeId(1)] {
            world.map.truncate(volume, 0, &mut ignored).unwrap();
        }
        prop_assert!(world.map.leaves_from(LeafId::default()).next().is_none());
        world.map.scratch = RunList::default();
        prop_assert!(world.map.memory_bytes() < 2000);
    }
}
