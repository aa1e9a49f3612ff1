//! The map of one volume.

use forebay_format::map_record::{LEAF_BLOCKS, LeafRun, MAX_VOLUME_BLOCKS, RESERVED_ADDR};
use forebay_format::packed::PackedRef;
use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};

use crate::change::{Freed, NewRun, continues, is_marker, is_place, is_ref};
use crate::directory::Directory;
use crate::entry::Mapped;
use crate::leaf::Leaf;
use crate::runs::RunList;
use crate::sums::{SumBytes, wide};

const LEAF: u64 = LEAF_BLOCKS as u64;
/// Most blocks of a mapped extent, so that its sums fit half a MiB.
const MAX_EXTENT_BLOCKS: u64 = 1 << 16;
/// Marks a sum that is in the footer; sums have 40 bits.
pub(crate) const IN_FOOTER: u64 = u64::MAX;

/// Consecutive blocks at consecutive addresses, or with a marker.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) lba: u64,
    pub(crate) addr: BlockAddr,
    pub(crate) blocks: u32,
    /// Their sums; empty when the footer has them, and for markers.
    pub(crate) sums: &'a [u64],
}

impl<'a> Part<'a> {
    /// The parts of consecutive blocks; `sums` has [`IN_FOOTER`] for those without a sum.
    pub(crate) fn all(
        lba: u64,
        addr: BlockAddr,
        sums: &'a [u64],
    ) -> impl Iterator<Item = Part<'a>> {
        let mut at = 0;
        sums.chunk_by(|a, b| (*a == IN_FOOTER) == (*b == IN_FOOTER)).map(move |run| {
            let (lba, addr, blocks) = (lba + u64::from(at), addr.plus(at), run.len() as u32);
            at += blocks;
            let sums = if run[0] == IN_FOOTER { &[] } else { run };
            Part { lba, addr, blocks, sums }
        })
    }
}

/// A part of a range that was looked up: a hole or a mapped run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent<'a> {
    /// The first block.
    pub lba: Lba,
    /// Blocks, at least one.
    pub blocks: u64,
    /// Hole or mapped.
    pub kind: ExtentKind<'a>,
}

/// The kind of a [`MapExtent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind<'a> {
    /// The blocks are not mapped.
    Hole,
    /// Consecutive addresses of one segment.
    Mapped {
        /// The volume whose version has them. Their checksums bind this volume, or the one that
        /// wrote them.
        home: VolumeId,
        /// The block of that volume that the first one's checksum binds.
        bound: Lba,
        /// Where the first block lies.
        addr: BlockAddr,
        /// Their sums, as far as the map has them.
        sums: Sums<'a>,
    },
    /// Consecutive references into packed blocks.
    Packed {
        /// The volume whose version has them.
        home: VolumeId,
        /// The first block there.
        bound: Lba,
        /// The first reference.
        addr: BlockAddr,
    },
}

impl<'a> MapExtent<'a> {
    /// The extent, as packed if its address is a reference into packed blocks.
    pub(crate) fn with_packed(self) -> Self {
        match self.kind {
            ExtentKind::Mapped { home, bound, addr, .. } if PackedRef::of(addr).is_some() => {
                Self { kind: ExtentKind::Packed { home, bound, addr }, ..self }
            }
            _ => self,
        }
    }
}

/// The sums of an extent, block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums<'a>(pub(crate) &'a [u64]);

impl Sums<'_> {
    /// The sum of the `index`th block; `None` when only the footer of its segment has it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<u64> {
        Some(self.0[index]).filter(|sum| *sum != IN_FOOTER)
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = Option<u64>> {
        self.0.iter().map(|sum| Some(*sum).filter(|sum| *sum != IN_FOOTER))
    }
}

#[derive(Default)]
pub(crate) struct VolumeMap {
    leaves: Directory,
    /// Blocks with an entry, and how many of those are markers and references.
    mapped: u64,
    markers: u64,
    refs: u64,
    pub(crate) link: Link,
    leaf_heap_bytes: u64,
}

/// How the map of a version is read where it has no entry.
#[derive(Default)]
pub(crate) struct Link {
    /// The volume whose versions these are; `None`: this is the volume.
    pub(crate) home: Option<VolumeId>,
    /// Snapshots of a volume are numbered, oldest first.
    pub(crate) number: u32,
    /// The snapshot that the volume was cloned from.
    pub(crate) origin: Option<VolumeId>,
}

impl Link {
    /// Whether blocks without an entry may be another version's.
    pub(crate) fn takes_from_others(&self) -> bool {
        self.home.is_some() || self.origin.is_some()
    }
}

/// The leaf of a block and the block's number in it; `None` past the end of any volume.
#[inline]
fn leaf_and_block(lba: u64) -> Option<(u32, u32)> {
    Some((u32::try_from(lba / LEAF).ok()?, (lba % LEAF) as u32))
}

impl VolumeMap {
    #[inline]
    pub(crate) fn lookup(&self, lba: u64) -> Option<Mapped> {
        let (leaf, block) = leaf_and_block(lba)?;
        self.leaves.get(leaf)?.get(block)
    }

    /// Blocks with an address of their own.
    pub(crate) fn mapped_blocks(&self) -> u64 {
        self.mapped - self.markers
    }

    /// Blocks that take a place in the main store of their own.
    pub(crate) fn placed_blocks(&self) -> u64 {
        self.mapped - self.markers - self.refs
    }

    pub(crate) fn has_refs(&self) -> bool {
        self.refs > 0
    }

    /// Whether every entry is a place in the main store.
    pub(crate) fn has_places_only(&self) -> bool {
        self.markers == 0 && self.refs == 0
    }

    /// Entries, markers included.
    pub(crate) fn entries(&self) -> u64 {
        self.mapped
    }

    pub(crate) fn first_leaf_from(&self, first: u32) -> Option<u32> {
        self.leaves.first_from(first)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.leaves.memory_bytes() + self.leaf_heap_bytes
    }

    pub(crate) fn leaf(&self, number: u32) -> Option<&Leaf> {
        self.leaves.get(number)
    }

    pub(crate) fn leaves_from(&self, first: u32) -> impl Iterator<Item = u32> {
        self.leaves.iter_from(first).map(|(number, _)| number)
    }

    pub(crate) fn change<T>(&mut self, number: u32, change: impl FnOnce(&mut Leaf) -> T) -> T {
        let Self { leaves, mapped, leaf_heap_bytes, .. } = self;
        leaves.change(number, |leaf| {
            let (blocks, bytes) = (u64::from(leaf.mapped()), leaf.heap_bytes());
            let result = change(leaf);
            *mapped = *mapped + u64::from(leaf.mapped()) - blocks;
            *leaf_heap_bytes = *leaf_heap_bytes + leaf.heap_bytes() - bytes;
            result
        })
    }

    pub(crate) fn set_run(
        &mut self,
        mut lba: u64,
        mut addr: BlockAddr,
        mut sums: &[u64],
        sums_on_media: bool,
        freed: &mut Freed<'_>,
        scratch: &mut RunList,
    ) {
        let end = u64::from(addr.block()) + sums.len() as u64;
        assert!(end <= u64::from(BlockAddr::MAX_BLOCKS), "a run at {addr} leaves its segment");
        assert!(addr.raw() + sums.len() as u64 <= RESERVED_ADDR, "a run at {addr} is reserved");
        while !sums.is_empty() {
            let (leaf, start) = leaf_and_block(lba).expect("the range was checked");
            let blocks = sums.len().min((LEAF_BLOCKS - start) as usize);
            let (now, later) = sums.split_at(blocks);
            let new = NewRun { start, blocks: blocks as u32, addr, sums: now };
            let before = (freed.markers, freed.refs);
            self.change(leaf, |leaf| leaf.assign(new, sums_on_media, freed, scratch));
            self.uncount(freed, before);
            if !later.is_empty() {
                addr = addr.plus(blocks as u32);
            }
            lba += blocks as u64;
            sums = later;
        }
    }

    /// Sets blocks whose sums are in the footer, or markers. Blocks that had an entry are freed.
    pub(crate) fn set_sealed(
        &mut self,
        mut lba: u64,
        mut addr: BlockAddr,
        mut blocks: u32,
        freed: &mut Freed<'_>,
        scratch: &mut RunList,
    ) {
        self.clear(lba, u64::from(blocks), freed, scratch);
        if is_marker(addr) {
            self.markers += u64::from(blocks);
        } else if is_ref(addr) {
            self.refs += u64::from(blocks);
        }
        while blocks > 0 {
            let (leaf, start) = leaf_and_block(lba).expect("the range was checked");
            let now = blocks.min(LEAF_BLOCKS - start);
            let new = NewRun { start, blocks: now, addr, sums: &[] };
            self.change(leaf, |leaf| leaf.assign(new, false, freed, scratch));
            blocks -= now;
            lba += u64::from(now);
            if blocks > 0 {
                addr = addr.plus(now);
            }
        }
    }

    /// Sets blocks as another map had them.
    pub(crate) fn put(&mut self, part: &Part<'_>, freed: &mut Freed<'_>, scratch: &mut RunList) {
        let Part { lba, addr, blocks, sums } = *part;
        match sums.is_empty() {
            true => self.set_sealed(lba, addr, blocks, freed, scratch),
            false => self.set_run(lba, addr, sums, false, freed, scratch),
        }
    }

    /// Replaces a leaf.
    pub(crate) fn store_leaf(&mut self, number: u32, from: &RunList) {
        let old = self.special_in(number);
        self.change(number, |leaf| leaf.store(from));
        let new = self.special_in(number);
        self.markers = self.markers + new.0 - old.0;
        self.refs = self.refs + new.1 - old.1;
    }

    /// Markers and references in a leaf.
    fn special_in(&self, number: u32) -> (u64, u64) {
        let (mut markers, mut refs) = (0, 0);
        if let Some(leaf) = self.leaves.get(number) {
            leaf.visit((0, LEAF_BLOCKS), |run, _| {
                markers += if is_marker(run.addr) { u64::from(run.blocks) } else { 0 };
                refs += if is_ref(run.addr) { u64::from(run.blocks) } else { 0 };
            });
        }
        (markers, refs)
    }

    /// Takes the markers and references that went since `before` out of the counts.
    fn uncount(&mut self, freed: &Freed<'_>, before: (u64, u64)) {
        self.markers -= freed.markers - before.0;
        self.refs -= freed.refs - before.1;
    }

    pub(crate) fn clear(
        &mut self,
        lba: u64,
        blocks: u64,
        freed: &mut Freed<'_>,
        scratch: &mut RunList,
    ) {
        let end = lba.saturating_add(blocks).min(MAX_VOLUME_BLOCKS);
        let mut at = lba;
        while at < end {
            let from = (at / LEAF) as u32;
            let Some(leaf) = self.leaves.first_from(from) else { break };
            let base = u64::from(leaf) * LEAF;
            let (start, stop) = (at.max(base) - base, end.min(base + LEAF).saturating_sub(base));
            if start < stop {
                let range = (start as u32, stop as u32);
                let before = (freed.markers, freed.refs);
                self.change(leaf, |leaf| leaf.clear(range, freed, scratch));
                self.uncount(freed, before);
            }
            at = base + LEAF;
        }
    }

    pub(crate) fn seal(
        &mut self,
        leaf: u32,
        on_media: &mut impl FnMut(SegmentId) -> bool,
        scratch: &mut RunList,
    ) -> bool {
        self.change(leaf, |leaf| leaf.seal(on_media, scratch))
    }

    /// Calls `run` for every run of entries, markers included.
    pub(crate) fn for_each(&self, run: &mut impl FnMut(u64, BlockAddr, u32)) {
        for (number, leaf) in self.leaves.iter_from(0) {
            let base = u64::from(number) * LEAF;
            leaf.visit((0, LEAF_BLOCKS), |found, _| {
                run(base + u64::from(found.start), found.addr, found.blocks);
            });
        }
    }

    /// Blocks of a range with an address of their own.
    pub(crate) fn mapped_within(&self, lba: u64, blocks: u64) -> u64 {
        if self.markers == 0 {
            return self.entries_within(lba, blocks);
        }
        let mut mapped = 0;
        self.lookup_range(VolumeId(0), lba, blocks, &mut |extent| {
            if let ExtentKind::Mapped { addr, .. } = extent.kind {
                mapped += if is_marker(addr) { 0 } else { extent.blocks };
            }
        });
        mapped
    }

    /// Blocks of a range that take a place in the main store of their own.
    pub(crate) fn placed_within(&self, lba: u64, blocks: u64) -> u64 {
        if self.refs == 0 {
            return self.mapped_within(lba, blocks);
        }
        let mut placed = 0;
        self.lookup_range(VolumeId(0), lba, blocks, &mut |extent| {
            if let ExtentKind::Mapped { addr, .. } = extent.kind {
                placed += if is_place(addr) { extent.blocks } else { 0 };
            }
        });
        placed
    }

    /// Blocks of a range with an entry, markers included.
    pub(crate) fn entries_within(&self, lba: u64, blocks: u64) -> u64 {
        let end = lba.saturating_add(blocks);
        let Some((first, _)) = leaf_and_block(lba) else { return 0 };
        let mut mapped = 0;
        for (number, leaf) in self.leaves.iter_from(first) {
            let base = u64::from(number) * LEAF;
            if base >= end {
                break;
            }
            let range = (lba.max(base) - base, end.min(base + LEAF) - base);
            if range == (0, LEAF) {
                mapped += u64::from(leaf.mapped());
            } else {
                leaf.visit((range.0 as u32, range.1 as u32), |run, _| {
                    mapped += u64::from(run.blocks);
                });
            }
        }
        mapped
    }

    pub(crate) fn lookup_range(
        &self,
        home: VolumeId,
        lba: u64,
        blocks: u64,
        visit: &mut dyn FnMut(MapExtent<'_>),
    ) {
        let end = lba.saturating_add(blocks);
        let mut extents = Extents { home, at: lba, open: None, sums: Vec::new(), visit };
        if let Some((first, _)) = leaf_and_block(lba) {
            for (number, leaf) in self.leaves.iter_from(first) {
                let base = u64::from(number) * LEAF;
                if base >= end {
                    break;
                }
                let range = (lba.max(base) - base, end.min(base + LEAF) - base);
                leaf.visit((range.0 as u32, range.1 as u32), |run, sums| {
                    extents.mapped(base + u64::from(run.start), run, sums);
                });
            }
        }
        extents.finish(end);
    }
}

/// Joins runs to extents and adds the holes between them.
struct Extents<'v> {
    home: VolumeId,
    /// The end of the last run.
    at: u64,
    /// The extent that may still grow: first block, address, blocks.
    open: Option<(u64, BlockAddr, u64)>,
    /// Its sums.
    sums: Vec<u64>,
    visit: &'v mut dyn FnMut(MapExtent<'_>),
}

impl Extents<'_> {
    fn mapped(&mut self, lba: u64, run: LeafRun, sums: SumBytes<'_>) {
        let blocks = u64::from(run.blocks);
        match &mut self.open {
            Some((_, addr, count))
                if lba == self.at
                    && continues(*addr, *count as u32, run.addr)
                    && *count + blocks <= MAX_EXTENT_BLOCKS =>
            {
                *count += blocks;
            }
            _ => {
                self.flush();
                self.hole(lba);
                self.open = Some((lba, run.addr, blocks));
            }
        }
        if run.sealed {
            self.sums.extend((0..run.blocks).map(|_| IN_FOOTER));
        } else {
            self.sums.extend(sums.iter(run.blocks).map(wide));
        }
        self.at = lba + blocks;
    }

    fn flush(&mut self) {
        if let Some((lba, addr, blocks)) = self.open.take() {
            let (home, bound, sums) = (self.home, Lba(lba), Sums(&self.sums));
            let kind = ExtentKind::Mapped { home, bound, addr, sums };
            (self.visit)(MapExtent { lba: Lba(lba), blocks, kind });
            self.sums.clear();
        }
    }

    /// Shows the hole between the last run and `end`, if there is one.
    fn hole(&mut self, end: u64) {
        if self.at < end {
            let (lba, blocks) = (Lba(self.at), end - self.at);
            (self.visit)(MapExtent { lba, blocks, kind: ExtentKind::Hole });
        }
    }

    fn finish(mut self, end: u64) {
        self.flush();
        self.hole(end);
    }
}
