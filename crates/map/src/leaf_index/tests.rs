use std::collections::BTreeSet;

use forebay_format::map_record::LeafRun;
use forebay_units::BlockAddr;

use super::*;
use crate::runs::RunList;

/// An index, and what it is of.
#[derive(Default)]
struct World {
    index: LeafIndex,
    /// By leaf and snapshot: the blocks, and the leaf that has them.
    model: BTreeMap<(u32, u32), (BTreeSet<u32>, Leaf)>,
    seed: u64,
}

impl World {
    /// A number below `end`.
    fn draw(&mut self, end: u32) -> u32 {
        self.seed =
            self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.seed >> 33) as u32 % end
    }

    fn add(&mut self, leaf: u32, number: u32, blocks: Range<u32>) {
        let entry = self.model.entry((leaf, number)).or_default();
        entry.0.extend(blocks.clone());
        let mut list = RunList::default();
        for block in &entry.0 {
            let addr = BlockAddr::from_raw(u64::from(*block));
            list.push_run(LeafRun { start: *block, blocks: 1, addr, sealed: true });
        }
        entry.1.store(&list);
        let Self { index, model, .. } = self;
        index.add(leaf, number, blocks, |number| Some(&model.get(&(leaf, number))?.1));
    }

    fn remove(&mut self, leaf: u32, number: u32) {
        self.model.remove(&(leaf, number));
        self.index.remove(leaf, number);
    }

    /// A search may stop at a snapshot that lacks the block. It passes over none that has it.
    fn check(&self, leaf: u32, numbers: Range<u32>, blocks: Range<u32>) {
        let found = self.index.first(leaf, numbers.clone(), &blocks);
        let mut there = self.model.range((leaf, numbers.start)..(leaf, numbers.end));
        let right = there.find(|(_, (has, _))| has.range(blocks.clone()).next().is_some());
        let right = right.map(|((_, number), _)| *number);
        let what = format!("{blocks:?} of leaf {leaf} in {numbers:?}");
        assert!(right.is_none_or(|right| found.is_some_and(|found| found <= right)), "{what}");
        if let Some(found) = found {
            assert!(numbers.contains(&found) && self.model.contains_key(&(leaf, found)), "{what}");
        }
    }

    fn check_leaves(&self, leaves: Range<u32>, numbers: Range<u32>) {
        let has = |leaf: &u32| {
            let mut there = self.model.range((*leaf, numbers.start)..(*leaf, numbers.end));
            there.next().is_some()
        };
        let right = leaves.clone().find(has);
        let (lba, end) = (u64::from(leaves.start) * LEAF, u64::from(leaves.end) * LEAF);
        for (lba, end) in [(lba, end), (lba + LEAF - 1, end - LEAF + 1)] {
            let found = self.index.first_leaf(lba, end, &numbers);
            assert_eq!(found, right, "blocks {lba} to {end} in {numbers:?}");
        }
    }

    fn check_some(&mut self, count: u32) {
        for _ in 0..count {
            let (leaf, first, block) = (self.draw(4), self.draw(1300), self.draw(505));
            let last = [first, first + 1, first + 60, 1300, u32::MAX][self.draw(5) as usize];
            let blocks = block..block + 1 + self.draw(3) * self.draw(4);
            self.check(leaf, first..last.max(first), blocks);
            let end = leaf + 1 + self.draw(4);
            self.check_leaves(leaf..end, first..last.max(first));
        }
    }
}

#[test]
fn a_search_passes_over_no_snapshot_that_has_the_block() {
    for seed in 0..3 {
        let mut world = World { seed, ..World::default() };
        let mut next = 0;
        for round in 0..700 {
            let (leaf, block) = (world.draw(3) * 2, world.draw(500));
            match world.draw(16) {
                // A new snapshot, perhaps the first one of a group.
                0..7 => {
                    next += 1 + world.draw(2) * world.draw(50);
                    let blocks = block..block + 1 + world.draw(3);
                    world.add(leaf % 4, next % 1300, blocks);
                }
                // An older snapshot gets what a newer one had.
                7..11 => {
                    let (from, all) = (world.draw(1300), world.model.len() as u32);
                    let number = world.draw(all.max(1)) as usize;
                    let known = world.model.keys().nth(number).map_or(from, |(_, number)| *number);
                    world.add(leaf % 4, known, block..block + 1);
                }
                11..15 => {
                    let all = world.model.len().max(1) as u32;
                    let at = world.draw(all) as usize;
                    if let Some((leaf, number)) = world.model.keys().nth(at).copied() {
                        world.remove(leaf, number);
                    }
                }
                // All of some groups go.
                _ if round % 3 == 0 => {
                    let first = world.draw(10) * 128;
                    for number in first..first + 256 {
                        world.remove(leaf % 4, number);
                    }
                }
                _ => {}
            }
            world.check_some(6);
        }
        let all: Vec<(u32, u32)> = world.model.keys().copied().collect();
        for ((leaf, number), (has, _)) in &world.model {
            has.iter().for_each(|block| world.check(*leaf, 0..u32::MAX, *block..*block + 1));
            let block = *has.first().expect("it has one");
            world.check(*leaf, *number..*number + 1, block..block + 1);
        }
        all.into_iter().for_each(|(leaf, number)| world.remove(leaf, number));
        assert_eq!(world.index.memory_bytes(), 0);
        world.check_some(3);
    }
}

// The last group of a wide set counts like the others, although it has its record first.
#[test]
fn a_wide_set_has_the_blocks_of_its_last_group() {
    for (last, others) in [(511, [447, 383]), (448, [0, 63]), (0, [448, 511]), (1023, [512, 600])] {
        let mut world = World::default();
        world.add(1, last, 9..10);
        for (number, block) in others.into_iter().zip([1, 300]) {
            world.add(1, number, block..block + 1);
            world.check(1, 0..u32::MAX, 9..10);
            world.check(1, number..u32::MAX, block..block + 1);
            world.check(0, 0..u32::MAX, 9..10);
        }
        others.into_iter().for_each(|number| world.remove(1, number));
        world.check(1, 0..u32::MAX, 9..10);
        world.check(1, last..last + 1, 9..10);
        world.add(1, others[0], 1..2);
        world.check(1, 0..u32::MAX, 9..10);
        world.remove(1, last);
        world.remove(1, others[0]);
        assert_eq!(world.index.memory_bytes(), 0);
    }
}

#[test]
fn each_group_of_512_has_a_wide_set_of_its_own() {
    let mut world = World::default();
    // Of two groups of 64 each, and one of a single group, which has another block.
    for first in [0, 512, 4096, 4608] {
        world.add(1, first + 3, 1..2);
        world.add(1, first + 70, 1..2);
    }
    for single in [64 * 17, 64 * 40, 64 * 100, 64 * 130] {
        world.add(1, single, 9..10);
        world.check(1, 0..u32::MAX, 9..10);
        world.check(1, single..single + 1, 9..10);
        world.remove(1, single);
    }
    for number in [70, 512 + 70, 4096 + 70] {
        world.add(1, number, 9..10);
        world.check(1, 0..u32::MAX, 9..10);
        world.check(1, 300..u32::MAX, 9..10);
        world.check(1, number..u32::MAX, 9..10);
        world.remove(1, number);
    }
}

#[test]
fn the_memory_of_wide_sets_counts() {
    let mut world = World::default();
    for leaf in 0..100 {
        world.add(leaf, 0, 5..6);
        world.add(leaf, 64, 6..7);
    }
    let (records, wide) = (used_btree_bytes(200, 24), used_btree_bytes(100, 16));
    assert_eq!(world.index.memory_bytes(), records + wide + 100 * 80);
}
