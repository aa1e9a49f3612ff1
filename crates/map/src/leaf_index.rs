//! Which snapshots of a volume have entries in which leaves. Snapshots are numbered, oldest first,
//! and 64 of them share a record for each leaf. A record of many also says which blocks some of
//! them have, and so does a set for 512 snapshots where they have several records: a search for a
//! block passes over all of them at once. Both may name more blocks than there are, never fewer.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_format::map_record::LEAF_BLOCKS;

use crate::leaf::Leaf;
use crate::memory::{heap_bytes, used_btree_bytes};

const LEAF: u64 = LEAF_BLOCKS as u64;
const GROUP: u32 = u64::BITS;
/// Snapshots of a record from which on it says which blocks they have.
const MIN_FILTERED: u32 = 8;
/// The same going down, so that one snapshot's coming and going does not cost each time.
const MIN_KEPT: u32 = 4;
/// Groups of 64 that share a wide set, once so many of them have a record.
const WIDE: u32 = 8;
const MIN_WIDE: usize = 2;

/// A bit for each block of a leaf.
#[derive(Clone, Copy, Default)]
struct BlockSet([u64; 8]);

impl BlockSet {
    fn insert(&mut self, range: Range<u32>) {
        for (word, mask) in masks(range) {
            self.0[word] |= mask;
        }
    }

    fn meets(&self, range: Range<u32>) -> bool {
        masks(range).any(|(word, mask)| self.0[word] & mask != 0)
    }
}

/// The words of a bit set that hold a range, each with the range's bits in it.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = range;
    (start / GROUP..end.div_ceil(GROUP)).map(move |word| {
        let first = word * GROUP;
        let (from, to) = (start.max(first) - first, end.min(first + GROUP) - first);
        (word as usize, bits(from..to))
    })
}

/// The bits of a range within a word.
fn bits(Range { start, end }: Range<u32>) -> u64 {
    if start >= end {
        return 0;
    }
    (u64::MAX >> (GROUP - (end - start))) << start
}

#[derive(Default)]
struct Record {
    /// A bit for each of 64 snapshots that has entries in the leaf.
    snapshots: u64,
    /// Blocks that some of them have, once they are many.
    blocks: Option<Box<BlockSet>>,
}

/// Which snapshots of a volume have entries in which leaves.
#[derive(Default)]
pub(crate) struct LeafIndex {
    /// By leaf, and by the snapshots' numbers over 64.
    records: BTreeMap<(u32, u32), Record>,
    /// Records with block sets.
    filtered: u64,
    /// By leaf, and by the snapshots' numbers over 512: blocks that some of them have.
    wide: BTreeMap<(u32, u32), Box<BlockSet>>,
}

/// The blocks that the snapshots of a record of group `group` have.
fn all_blocks<'m>(
    set: &mut BlockSet,
    record: &Record,
    group: u32,
    leaf_of: &impl Fn(u32) -> Option<&'m Leaf>,
) {
    for bit in (0..GROUP).filter(|bit| record.snapshots >> bit & 1 == 1) {
        if let Some(leaf) = leaf_of(group * GROUP + bit) {
            leaf.visit((0, LEAF_BLOCKS), |run, _| set.insert(run.start..run.end()));
        }
    }
}

impl LeafIndex {
    /// Snapshot `number` has got entries for these blocks of a leaf. `leaf_of` returns the leaf of
    /// any snapshot.
    pub(crate) fn add<'m>(
        &mut self,
        leaf: u32,
        number: u32,
        blocks: Range<u32>,
        leaf_of: impl Fn(u32) -> Option<&'m Leaf>,
    ) {
        let group = number / GROUP;
        let record = self.records.entry((leaf, group)).or_default();
        record.snapshots |= 1 << (number % GROUP);
        if let Some(set) = &mut record.blocks {
            set.insert(blocks.clone());
        } else if record.snapshots.count_ones() >= MIN_FILTERED {
            let mut set = Box::<BlockSet>::default();
            all_blocks(&mut set, record, group, &leaf_of);
            record.blocks = Some(set);
            self.filtered += 1;
        }
        let wide = (leaf, group / WIDE);
        if let Some(set) = self.wide.get_mut(&wide) {
            set.insert(blocks);
        } else if self.groups_of(wide).count() >= MIN_WIDE {
            let mut set = Box::<BlockSet>::default();
            for ((_, group), record) in self.groups_of(wide) {
                all_blocks(&mut set, record, *group, &leaf_of);
            }
            self.wide.insert(wide, set);
        }
    }

    /// The records that share a wide set.
    fn groups_of(&self, (leaf, wide): (u32, u32)) -> impl Iterator<Item = (&(u32, u32), &Record)> {
        self.records.range((leaf, wide * WIDE)..=(leaf, wide * WIDE + WIDE - 1))
    }

    /// Snapshot `number` has no entries in a leaf any more.
    pub(crate) fn remove(&mut self, leaf: u32, number: u32) {
        let key = (leaf, number / GROUP);
        let Some(record) = self.records.get_mut(&key) else { return };
        record.snapshots &= !(1 << (number % GROUP));
        let left = record.snapshots.count_ones();
        if left < MIN_KEPT && record.blocks.take().is_some() {
            self.filtered -= 1;
        }
        if left == 0 {
            self.records.remove(&key);
            let wide = (leaf, key.1 / WIDE);
            if self.groups_of(wide).next().is_none() {
                self.wide.remove(&wide);
            }
        }
        // An emptied tree keeps memory.
        if self.records.is_empty() {
            self.records = BTreeMap::new();
        }
        if self.wide.is_empty() {
            self.wide = BTreeMap::new();
        }
    }

    /// The oldest of some snapshots that may have an entry for some of these blocks of a leaf.
    pub(crate) fn first(&self, leaf: u32, numbers: Range<u32>, blocks: &Range<u32>) -> Option<u32> {
        let lacks = |set: Option<&BlockSet>| set.is_some_and(|set| !set.meets(blocks.clone()));
        let last = numbers.end.checked_sub(1)? / GROUP;
        let mut from = numbers.start / GROUP;
        let mut wide = None;
        while from <= last {
            let mut left = self.records.range((leaf, from)..=(leaf, last));
            from = loop {
                let (&(_, group), record) = left.next()?;
                if wide != Some(group / WIDE) {
                    wide = Some(group / WIDE);
                    if lacks(self.wide.get(&(leaf, group / WIDE)).map(Box::as_ref)) {
                        break (group / WIDE + 1) * WIDE;
                    }
                }
                if lacks(record.blocks.as_deref()) {
                    continue;
                }
                if let Some(found) = record.first(group, &numbers) {
                    return Some(found);
                }
            };
        }
        None
    }

    /// The first leaf with blocks from `lba` up to `end` in which one of some snapshots has
    /// entries.
    pub(crate) fn first_leaf(&self, lba: u64, end: u64, numbers: &Range<u32>) -> Option<u32> {
        let groups = numbers.start / GROUP..numbers.end.div_ceil(GROUP);
        let (mut leaf, mut from) = (u32::try_from(lba / LEAF).ok()?, groups.start);
        let last = u32::try_from(end.checked_sub(1)? / LEAF).unwrap_or(u32::MAX).max(leaf);
        loop {
            // A write asks for its own leaf: millions of others may have older snapshots' records.
            let mut left = self.records.range((leaf, from)..=(last, u32::MAX));
            let (&(found, group), record) = left.next()?;
            if groups.contains(&group) && record.first(group, numbers).is_some() {
                return Some(found);
            }
            // On to the next record that may do.
            (leaf, from) = match group {
                group if group < groups.start => (found, groups.start),
                group if group + 1 < groups.end => (found, group + 1),
                _ if found == last => return None,
                _ => (found + 1, groups.start),
            };
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let records = used_btree_bytes(self.records.len(), size_of::<((u32, u32), Record)>());
        let wide = used_btree_bytes(self.wide.len(), size_of::<((u32, u32), Box<BlockSet>)>());
        let sets = self.filtered + self.wide.len() as u64;
        records + wide + sets * heap_bytes(size_of::<BlockSet>())
    }
}

impl Record {
    /// The oldest of some snapshots that this record, of a group, has.
    fn first(&self, group: u32, numbers: &Range<u32>) -> Option<u32> {
        let first = group * GROUP;
        let from = numbers.start.saturating_sub(first).min(GROUP);
        let to = numbers.end.saturating_sub(first).min(GROUP);
        let found = self.snapshots & bits(from..to);
        (found != 0).then(|| first + found.trailing_zeros())
    }
}

#[cfg(test)]
mod tests;
