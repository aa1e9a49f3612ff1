//! The line of a volume's versions: its snapshots in order, and where they have entries.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_format::map_record::LEAF_BLOCKS;
use forebay_units::{Lba, VolumeId};

use crate::entry::Mapped;
use crate::leaf_index::LeafIndex;
use crate::map::Map;
use crate::memory::used_btree_bytes;
use crate::volume::{ExtentKind, Link, VolumeMap};

const LEAF: u64 = LEAF_BLOCKS as u64;
/// The numbers of all snapshots.
const ALL: Range<u32> = 0..u32::MAX;

/// The versions of a volume.
#[derive(Default)]
pub(crate) struct Line {
    /// Its snapshots by number, oldest first.
    pub(crate) snapshots: BTreeMap<u32, VolumeId>,
    /// The number of the newest living snapshot, which gets the entries that the volume gives up.
    /// Those after it are being destroyed. `None`: nothing is kept.
    living: Option<u32>,
    /// Blocks of the volume's own that the newest living snapshot has as well.
    pub(crate) shared: u64,
    /// Where the snapshots have entries.
    pub(crate) index: LeafIndex,
}

impl Line {
    /// The newest living snapshot.
    pub(crate) fn keeper(&self) -> Option<VolumeId> {
        self.snapshots.get(&self.living?).copied()
    }

    /// The newest living snapshot and those after it: what they have, the volume does not share.
    pub(crate) fn keepers(&self) -> Option<Range<u32>> {
        self.living.map(|living| living..u32::MAX)
    }

    /// The newest snapshot.
    pub(crate) fn newest(&self) -> Option<VolumeId> {
        self.snapshots.last_key_value().map(|(_, id)| *id)
    }

    /// The snapshot before number `number`.
    pub(crate) fn next_older(&self, number: u32) -> Option<VolumeId> {
        self.snapshots.range(..number).next_back().map(|(_, id)| *id)
    }

    fn next_number(&self) -> u32 {
        self.snapshots.last_key_value().map_or(0, |(last, _)| last + 1)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let snapshots = used_btree_bytes(self.snapshots.len(), size_of::<(u32, VolumeId)>());
        snapshots + self.index.memory_bytes()
    }
}

/// The parts of a range by leaf: number of the leaf, and blocks in it.
pub(crate) fn by_leaf(lba: u64, blocks: u64) -> impl Iterator<Item = (u32, Range<u32>)> {
    let end = lba.saturating_add(blocks);
    (lba / LEAF..end.div_ceil(LEAF)).map_while(move |leaf| {
        let base = leaf * LEAF;
        let range = (lba.max(base) - base) as u32..(end.min(base + LEAF) - base) as u32;
        Some((u32::try_from(leaf).ok()?, range))
    })
}

impl Map {
    /// Says which versions a volume has: its snapshots, oldest first, each with whether it is being
    /// destroyed, and the snapshot that it was cloned from. Versions without a map get an empty
    /// one.
    pub fn set_versions(
        &mut self,
        volume: VolumeId,
        snapshots: &[(VolumeId, bool)],
        origin: Option<VolumeId>,
    ) {
        let before = self.volumes.entry(volume).or_default().link.origin;
        let mut line = self.remove_line(volume).unwrap_or_default();
        let is_prefix = line
            .snapshots
            .values()
            .eq(snapshots.iter().map(|(id, _)| id).take(line.snapshots.len()));
        let is_kept = is_prefix && before == origin;
        if !is_kept {
            line = Line::default();
        }
        self.volumes.entry(volume).or_default().link = Link { origin, ..Link::default() };
        let known = line.snapshots.len();
        for (id, _) in &snapshots[known..] {
            let number = line.next_number();
            let link = Link { home: Some(volume), number, origin };
            self.volumes.entry(*id).or_default().link = link;
            line.snapshots.insert(number, *id);
        }
        let new: Vec<_> = line.snapshots.iter().skip(known).map(|(no, id)| (*no, *id)).collect();
        let newest = snapshots.iter().rfind(|(_, is_dying)| !is_dying).map(|(id, _)| *id);
        let living = newest.and_then(|id| self.volumes.get(&id)).map(|map| map.link.number);
        let is_known = is_kept && line.living == living;
        line.living = living;
        if line.snapshots.is_empty() {
            return;
        }
        self.lines.insert(volume, line);
        for (number, id) in new {
            let leaves: Vec<u32> =
                self.volumes.get(&id).map_or(Vec::new(), |map| map.leaves_from(0).collect());
            for leaf in leaves {
                let mut runs = Vec::new();
                if let Some(found) = self.volumes.get(&id).and_then(|map| map.leaf(leaf)) {
                    found.visit((0, LEAF_BLOCKS), |run, _| runs.push(run.start..run.end()));
                }
                runs.into_iter().for_each(|run| self.index_leaf((volume, number), leaf, run));
            }
        }
        if !is_known {
            self.count_shared(volume);
        }
    }

    /// Adds a snapshot that was just taken: it has no entries, and shares all of the volume.
    pub fn add_snapshot(&mut self, volume: VolumeId, snapshot: VolumeId) {
        let map = self.volumes.entry(volume).or_default();
        let (origin, shared) = (map.link.origin, map.mapped_blocks());
        let line = self.lines.entry(volume).or_default();
        let number = line.next_number();
        line.snapshots.insert(number, snapshot);
        (line.living, line.shared) = (Some(number), shared);
        let link = Link { home: Some(volume), number, origin };
        self.volumes.entry(snapshot).or_default().link = link;
    }

    /// Removes the map of a snapshot that has no entries any more. Returns whether it was so.
    pub fn drop_empty(&mut self, snapshot: VolumeId) -> bool {
        let is_empty = self.volumes.get(&snapshot).is_none_or(|map| map.entries() == 0);
        if is_empty {
            self.unlink(snapshot);
            self.volumes.remove(&snapshot);
        }
        is_empty
    }

    /// Takes a version out of its line, or a volume's line away.
    pub(crate) fn unlink(&mut self, version: VolumeId) {
        self.remove_line(version);
        let Some((home, number)) = self.numbered(version) else { return };
        let leaves: Vec<u32> =
            self.volumes.get(&version).map_or(Vec::new(), |map| map.leaves_from(0).collect());
        let Some(line) = self.lines.get_mut(&home) else { return };
        leaves.into_iter().for_each(|leaf| line.index.remove(leaf, number));
        line.snapshots.remove(&number);
        if line.snapshots.is_empty() {
            self.remove_line(home);
        }
    }

    pub(crate) fn remove_line(&mut self, volume: VolumeId) -> Option<Line> {
        let line = self.lines.remove(&volume);
        if self.lines.is_empty() {
            // An emptied tree keeps memory.
            self.lines = BTreeMap::new();
        }
        line
    }

    /// The volume of a snapshot, and the snapshot's number.
    fn numbered(&self, version: VolumeId) -> Option<(VolumeId, u32)> {
        let link = &self.volumes.get(&version)?.link;
        Some((link.home?, link.number))
    }

    /// The line of a snapshot, and the snapshot's number.
    pub(crate) fn line_of(&self, version: VolumeId) -> Option<(&Line, u32)> {
        let (home, number) = self.numbered(version)?;
        Some((self.lines.get(&home)?, number))
    }

    fn index_leaf(&mut self, (home, number): (VolumeId, u32), leaf: u32, blocks: Range<u32>) {
        let Self { volumes, lines, .. } = self;
        let Some(Line { snapshots, index, .. }) = lines.get_mut(&home) else { return };
        let leaf_of = |number| volumes.get(snapshots.get(&number)?)?.leaf(leaf);
        index.add(leaf, number, blocks, leaf_of);
    }

    /// A version has got entries in a range.
    pub(crate) fn has_got(&mut self, version: VolumeId, lba: u64, blocks: u64) {
        let Some(at) = self.numbered(version) else { return };
        by_leaf(lba, blocks).for_each(|(leaf, range)| self.index_leaf(at, leaf, range));
    }

    /// A version has lost entries in a range.
    pub(crate) fn has_lost(&mut self, version: VolumeId, lba: u64, blocks: u64) {
        let Some((home, number)) = self.numbered(version) else { return };
        let Self { volumes, lines, .. } = self;
        let Some(map) = volumes.get(&version) else { return };
        let Some(Line { index, .. }) = lines.get_mut(&home) else { return };
        let (mut at, end, mine) = (lba, lba.saturating_add(blocks), number..number + 1);
        while let Some(leaf) = index.first_leaf(at, end, &mine) {
            if map.leaf(leaf).is_none() {
                index.remove(leaf, number);
            }
            at = (u64::from(leaf) + 1) * LEAF;
            if at >= end {
                break;
            }
        }
    }

    /// Counts the blocks that a volume shares with its newest living snapshot.
    fn count_shared(&mut self, volume: VolumeId) {
        let Some(line) = self.lines.get(&volume) else { return };
        let mut shared = 0;
        if let Some((map, numbers)) = self.volumes.get(&volume).zip(line.keepers()) {
            shared = map.mapped_blocks();
            let keepers = line.snapshots.range(numbers).filter_map(|(_, id)| self.volumes.get(id));
            let leaves: BTreeSet<u32> = keepers.flat_map(|kept| kept.leaves_from(0)).collect();
            for leaf in leaves {
                let lba = Lba(u64::from(leaf) * LEAF);
                shared -= self.unshared(volume, lba, LEAF, VolumeMap::mapped_within);
            }
        }
        if let Some(line) = self.lines.get_mut(&volume) {
            line.shared = shared;
        }
    }

    /// The parts of a range in which none of these snapshots has an entry of its own.
    pub(crate) fn untouched(
        &self,
        line: &Line,
        numbers: &Range<u32>,
        lba: u64,
        blocks: u64,
    ) -> Vec<(u64, u64)> {
        let (mut at, end) = (lba, lba + blocks);
        let mut left: Vec<(u64, u64)> = Vec::new();
        let mut add = |lba: u64, blocks: u64| match left.last_mut() {
            Some((first, count)) if *first + *count == lba => *count += blocks,
            _ if blocks > 0 => left.push((lba, blocks)),
            _ => {}
        };
        while at < end {
            let leaf = line.index.first_leaf(at, end, numbers);
            let base = leaf.map_or(end, |leaf| u64::from(leaf) * LEAF);
            let from = base.clamp(at, end);
            add(at, from - at);
            at = end.min(base.saturating_add(LEAF));
            if let Some(leaf) = leaf.filter(|_| from < end) {
                let ranges = self.untouched_in_leaf(line, numbers, leaf, (from, at - from));
                ranges.into_iter().for_each(|(lba, blocks)| add(lba, blocks));
            }
        }
        left
    }

    /// As [`Map::untouched`], within a leaf.
    fn untouched_in_leaf(
        &self,
        line: &Line,
        numbers: &Range<u32>,
        leaf: u32,
        range: (u64, u64),
    ) -> Vec<(u64, u64)> {
        let (mut ranges, mut from) = (vec![range], numbers.start);
        while let (Some((first, _)), Some((last, blocks))) = (ranges.first(), ranges.last()) {
            let within = (first % LEAF) as u32..((last + blocks - 1) % LEAF) as u32 + 1;
            let Some(number) = line.index.first(leaf, from..numbers.end, &within) else { break };
            from = number + 1;
            let id = line.snapshots.get(&number);
            let Some(map) = id.and_then(|id| self.volumes.get(id)) else { continue };
            let mut left = Vec::with_capacity(ranges.len());
            for (lba, blocks) in ranges {
                map.lookup_range(VolumeId(0), lba, blocks, &mut |extent| {
                    if extent.kind == ExtentKind::Hole {
                        left.push((extent.lba.0, extent.blocks));
                    }
                });
            }
            ranges = left;
        }
        ranges
    }

    /// The entry for a block of the oldest snapshot of a line, from number `from` on, that has one
    /// for which `is_wanted`.
    pub(crate) fn entry_from(
        &self,
        line: &Line,
        mut from: u32,
        lba: u64,
        is_wanted: impl Fn(Mapped) -> bool,
    ) -> Option<(VolumeId, Mapped)> {
        let (leaf, range) = by_leaf(lba, 1).next()?;
        loop {
            let number = line.index.first(leaf, from..ALL.end, &range)?;
            from = number + 1;
            let Some(id) = line.snapshots.get(&number) else { continue };
            let found = self.volumes.get(id).and_then(|map| map.lookup(lba));
            if let Some(found) = found.filter(|found| is_wanted(*found)) {
                return Some((*id, found));
            }
        }
    }
}

#[cfg(test)]
mod tests;
