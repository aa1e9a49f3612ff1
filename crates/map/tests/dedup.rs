//! References to de-duplicated contents against a plain model: volumes of content numbers.

use std::collections::BTreeMap;

use forebay_map::{DEDUP_VOLUME, Delta, Entry, ExtentKind, LeafId, Map, dedup_block, dedup_ref};
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

const BLOCKS: u64 = 1400;
/// Where numbers begin: their runs meet the border between two segments of references.
const FIRST: u64 = (1 << 20) - 300;

#[derive(Clone, Debug)]
enum Op {
    /// Volume, block, blocks: contents of its own.
    Write(u32, u64, u64),
    /// Volume, block, blocks: new contents.
    Store(u32, u64, u64),
    /// Volume, block, blocks, and where among the contents: known ones.
    Refer(u32, u64, u64, usize),
    Clear(u32, u64, u64),
    /// A snapshot of the first volume, whose entries move to it.
    Snapshot,
    /// The cleaner moves a content.
    Move(usize),
    Seal,
}

fn any_op() -> impl Strategy<Value = Op> {
    let range = (0..2u32, 0..BLOCKS - 700, prop_oneof![Just(1), 1..50u64, 1..700u64]);
    prop_oneof![
        2 => range.clone().prop_map(|(v, l, n)| Op::Write(v, l, n)),
        4 => range.clone().prop_map(|(v, l, n)| Op::Store(v, l, n)),
        4 => (range.clone(), any::<usize>()).prop_map(|((v, l, n), c)| Op::Refer(v, l, n, c)),
        2 => range.prop_map(|(v, l, n)| Op::Clear(v, l, n)),
        1 => Just(Op::Snapshot),
        2 => any::<usize>().prop_map(Op::Move),
        1 => Just(Op::Seal),
    ]
}

/// What a block holds: a content, or its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Content(u64),
    Own(BlockAddr),
}

type Volume = BTreeMap<u64, Held>;

struct World {
    map: Map,
    /// The volumes, and after them the snapshots, oldest first.
    model: Vec<Volume>,
    /// Where each content is.
    places: BTreeMap<u64, BlockAddr>,
    counts: BTreeMap<u64, u64>,
    next_content: u64,
    next_addr: u64,
    journal: Vec<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let mut map = Map::new();
        for volume in [VolumeId(0), VolumeId(1), DEDUP_VOLUME] {
            map.create_volume(volume).unwrap();
        }
        Self {
            map,
            model: vec![Volume::new(), Volume::new()],
            places: BTreeMap::new(),
            counts: BTreeMap::new(),
            next_content: FIRST,
            next_addr: 7 << 20,
            journal: Vec::new(),
        }
    }

    fn take(&mut self, blocks: u64) -> (BlockAddr, Vec<u64>) {
        let addr = BlockAddr::from_raw(self.next_addr);
        let addr = match addr.block() as u64 + blocks > u64::from(BlockAddr::MAX_BLOCKS) {
            true => BlockAddr::new(addr.segment().next(), 0),
            false => addr,
        };
        self.next_addr = addr.raw() + blocks;
        (addr, (0..blocks).map(|block| addr.raw() + block).collect())
    }

    /// Applies a change, and what it frees, as a group does.
    fn change(
        &mut self,
        delta: &mut Delta,
        change: impl FnOnce(&mut Map, &mut Delta, &mut Vec<(BlockAddr, u32)>),
    ) {
        let mut freed = Vec::new();
        change(&mut self.map, delta, &mut freed);
        for (addr, blocks) in freed {
            let Some(first) = dedup_block(addr) else { continue };
            for content in first.0..first.0 + u64::from(blocks) {
                *self.counts.get_mut(&content).expect("it was counted") -= 1;
            }
        }
        let unused: Vec<u64> =
            self.counts.iter().filter(|(_, n)| **n == 0).map(|(c, _)| *c).collect();
        for content in unused {
            self.counts.remove(&content);
            let place = self.places.remove(&content).unwrap();
            let mut freed = Vec::new();
            let free = &mut |addr, blocks| freed.push((addr, blocks));
            self.map.clear(DEDUP_VOLUME, Lba(content), 1, free).unwrap();
            delta.clear(DEDUP_VOLUME, Lba(content), 1);
            assert_eq!(freed, [(place, 1)]);
        }
    }

    /// Lets blocks refer to contents from `content` on.
    fn refer(&mut self, volume: u32, lba: u64, blocks: u64, content: u64, delta: &mut Delta) {
        let segment = |content: u64| dedup_ref(Lba(content)).segment();
        let (mut done, id) = (0, VolumeId(volume));
        // As in a group, nothing is unused before all references are there.
        (content..content + blocks).for_each(|c| *self.counts.entry(c).or_default() += 1);
        while done < blocks {
            let (at, first) = (Lba(lba + done), content + done);
            let fits = (done..blocks).take_while(|more| segment(content + more) == segment(first));
            let count = fits.count() as u64;
            self.change(delta, |map, delta, freed| {
                map.keep_before_write(id, at, count, &mut |kept| kept.note_in(delta));
                let free = &mut |addr, blocks| freed.push((addr, blocks));
                map.set_refs(id, at, dedup_ref(Lba(first)), count as u32, free);
                delta.assign_sealed(id, at, dedup_ref(Lba(first)), count as u32);
            });
            done += count;
        }
        let held = (0..blocks).map(|block| (lba + block, Held::Content(content + block)));
        self.model[volume as usize].extend(held);
    }

    /// Writes new contents.
    fn store(&mut self, (volume, lba, blocks): (u32, u64, u64), delta: &mut Delta) {
        let (addr, sums) = self.take(blocks);
        let content = self.next_content;
        self.next_content += blocks;
        let mut ignored = |_, _| panic!("a number was given twice");
        self.map.set_run(DEDUP_VOLUME, Lba(content), addr, &sums, false, &mut ignored).unwrap();
        delta.assign(DEDUP_VOLUME, Lba(content), addr, &sums);
        let places = (0..blocks).map(|b| (content + b, addr.plus(b as u32)));
        self.places.extend(places);
        self.refer(volume, lba, blocks, content, delta);
    }

    fn step(&mut self, op: &Op) {
        let mut delta = Delta::new();
        match *op {
            Op::Write(volume, lba, blocks) => {
                let (addr, sums) = self.take(blocks);
                let (id, at) = (VolumeId(volume), Lba(lba));
                self.change(&mut delta, |map, delta, freed| {
                    map.keep_before_write(id, at, blocks, &mut |kept| kept.note_in(delta));
                    let free = &mut |addr, blocks| freed.push((addr, blocks));
                    map.set_run(id, at, addr, &sums, false, free).unwrap();
                    delta.assign(id, at, addr, &sums);
                });
                let held = (0..blocks).map(|b| (lba + b, Held::Own(addr.plus(b as u32))));
                self.model[volume as usize].extend(held);
            }
            Op::Store(volume, lba, blocks) => self.store((volume, lba, blocks), &mut delta),
            Op::Refer(volume, lba, blocks, choice) => {
                let Some(content) = self.places.keys().nth(choice % self.places.len().max(1))
                else {
                    return;
                };
                let content = *content;
                let there = (content..content + blocks).take_while(|c| self.places.contains_key(c));
                let blocks = there.count() as u64;
                self.refer(volume, lba, blocks, content, &mut delta);
            }
            Op::Clear(volume, lba, blocks) => {
                let (id, at) = (VolumeId(volume), Lba(lba));
                delta.clear(id, at, blocks);
                self.change(&mut delta, |map, delta, freed| {
                    map.keep_before_clear(id, at, blocks, &mut |kept| kept.note_in(delta));
                    let free = &mut |addr, blocks| freed.push((addr, blocks));
                    map.clear(id, at, blocks, free).unwrap();
                });
                self.model[volume as usize].retain(|b, _| !(lba..lba + blocks).contains(b));
            }
            Op::Snapshot => {
                self.model.push(self.model[0].clone());
                self.link();
            }
            Op::Move(choice) => {
                let Some((content, old)) =
                    self.places.iter().nth(choice % self.places.len().max(1))
                else {
                    return;
                };
                let (content, old) = (*content, *old);
                let (addr, sums) = self.take(1);
                let entry = Entry { addr, sum: sums[0] };
                let moved = self.map.replace_if(DEDUP_VOLUME, Lba(content), old, entry);
                assert_eq!(moved, Some(DEDUP_VOLUME));
                delta.assign(DEDUP_VOLUME, Lba(content), addr, &sums);
                self.places.insert(content, addr);
            }
            Op::Seal => {
                let leaves: Vec<LeafId> = self.map.leaves_from(LeafId::default()).collect();
                for leaf in leaves {
                    self.map.seal(leaf, &mut |segment| segment.0 % 2 == 0);
                }
            }
        }
        self.journal.extend(delta.encode(2000));
    }

    /// The id of a volume or snapshot of the model.
    fn id(&self, index: usize) -> VolumeId {
        VolumeId(if index < 2 { index as u32 } else { index as u32 + 8 })
    }

    fn link(&mut self) {
        let snapshots: Vec<_> = (2..self.model.len()).map(|at| (self.id(at), false)).collect();
        self.map.set_versions(VolumeId(0), &snapshots, None);
    }

    fn check(&self, map: &Map) {
        for (index, volume) in self.model.iter().enumerate() {
            let mut found = BTreeMap::new();
            map.lookup_range(self.id(index), Lba(0), BLOCKS, |extent| {
                let ExtentKind::Mapped { home, bound, addr, .. } = extent.kind else { return };
                for block in 0..extent.blocks {
                    let bound = Lba(bound.0 + block);
                    let place = (home, bound, addr.plus(block as u32));
                    found.insert(extent.lba.0 + block, place);
                }
            });
            let expected: BTreeMap<u64, (VolumeId, Lba, BlockAddr)> = volume
                .iter()
                .map(|(block, held)| match held {
                    Held::Content(c) => (*block, (DEDUP_VOLUME, Lba(*c), self.places[c])),
                    Held::Own(addr) => {
                        let home = if index < 2 { self.id(index) } else { VolumeId(0) };
                        (*block, (home, Lba(*block), *addr))
                    }
                })
                .collect();
            assert_eq!(found, expected);
            for block in (0..BLOCKS).step_by(7) {
                let one = map.lookup(self.id(index), Lba(block));
                let one = one.map(|one| (one.home, one.bound, one.addr));
                assert_eq!(one, expected.get(&block).copied());
            }
        }
        let mut counts = BTreeMap::new();
        map.for_each_ref(|first, blocks| {
            for content in first.0..first.0 + u64::from(blocks) {
                *counts.entry(content).or_default() += 1;
            }
        });
        assert_eq!(counts, self.counts);
        let own = self.model[1].values().filter(|held| matches!(held, Held::Own(_))).count() as u64;
        assert_eq!(map.placed_blocks(VolumeId(1)), own);
        assert_eq!(map.mapped_blocks(VolumeId(1)), self.model[1].len() as u64);
        assert_eq!(map.unshared_within(VolumeId(1), Lba(0), BLOCKS), own);
        assert_eq!(map.placed_blocks(DEDUP_VOLUME), self.places.len() as u64);
        map.for_each(|_, _, addr, _| assert!(addr.segment() < SegmentId(1000), "no reference"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn references_agree_with_a_plain_model(ops in proptest::collection::vec(any_op(), 1..40)) {
        agree(&ops);
    }
}

fn agree(ops: &[Op]) {
    let mut world = World::new();
    for op in ops {
        world.step(op);
        world.check(&world.map);
    }
    // The journal gives the same map; versions are linked after it was read.
    let mut map = Map::new();
    for payload in &world.journal {
        map.apply(&Delta::decode(payload).unwrap());
    }
    for volume in [VolumeId(0), VolumeId(1), DEDUP_VOLUME] {
        let _ = map.create_volume(volume);
    }
    std::mem::swap(&mut map, &mut world.map);
    world.link();
    world.check(&world.map);
}

#[test]
fn references_agree_with_a_plain_model_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(5) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let ops = proptest::collection::vec(any_op(), 20..40);
    TestRunner::new_with_rng(config, drawn)
        .run(&ops, |ops| {
            agree(&ops);
            Ok(())
        })
        .unwrap();
}
