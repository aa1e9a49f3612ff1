//! Versions of volumes: snapshots, and clones of snapshots.
//!
//! A snapshot has entries only for blocks that the volume has changed since; every other block is
//! as in the next newer version. A clone has entries only for blocks that differ from its origin.
//! So each address is in one map, and a snapshot begins empty.

use forebay_format::map_record::{Delta, HOLE_SEGMENT, LEAF_BLOCKS, ORIGIN_SEGMENT};
use forebay_units::{BlockAddr, Lba, VolumeId};

use crate::change::{Freed, is_marker, is_shared};
use crate::entry::{Located, Mapped};
use crate::line::{Line, by_leaf};
use crate::map::Map;
use crate::volume::{ExtentKind, MapExtent, Part, Sums, VolumeMap};

const LEAF: u64 = LEAF_BLOCKS as u64;

/// What a version has got: consecutive blocks at consecutive addresses, markers, or no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The version.
    pub volume: VolumeId,
    /// The first block.
    pub lba: Lba,
    /// Blocks, at least one.
    pub blocks: u32,
    /// Where the first block lies, or its marker; `None`: it has no entry any more.
    pub addr: Option<BlockAddr>,
    /// Their sums; empty when the footer has them, and for markers.
    pub sums: &'a [u64],
}

impl Kept<'_> {
    /// Adds to a delta what the version has got.
    pub fn note_in(&self, delta: &mut Delta) {
        let Self { volume, lba, blocks, addr, sums } = *self;
        match addr {
            None => delta.clear(volume, lba, u64::from(blocks)),
            Some(addr) if sums.is_empty() => delta.assign_sealed(volume, lba, addr, blocks),
            Some(addr) => delta.assign(volume, lba, addr, sums),
        }
    }
}

/// Consecutive entries of a map, on their way to another.
pub(crate) struct Piece {
    pub(crate) lba: u64,
    pub(crate) blocks: u64,
    /// `None`: no entry.
    pub(crate) addr: Option<BlockAddr>,
    /// Sums as in [`Sums`]; empty without an entry.
    pub(crate) sums: Vec<u64>,
}

impl Piece {
    fn of(extent: MapExtent<'_>) -> Self {
        let MapExtent { lba: Lba(lba), blocks, kind } = extent;
        match kind {
            ExtentKind::Hole => Self { lba, blocks, addr: None, sums: Vec::new() },
            ExtentKind::Mapped { addr, sums: Sums(sums), .. } => {
                Self { lba, blocks, addr: Some(addr), sums: sums.to_vec() }
            }
            // Only lookups through versions show these.
            ExtentKind::Packed { .. } => unreachable!("a map of one version shows addresses"),
        }
    }

    fn is_real(&self) -> bool {
        self.addr.is_some_and(|addr| !is_marker(addr))
    }
}

/// A marker of kind `segment` for a block.
pub(crate) fn marker(segment: forebay_units::SegmentId, lba: u64) -> BlockAddr {
    BlockAddr::new(segment, (lba % u64::from(BlockAddr::MAX_BLOCKS)) as u32)
}

/// The pieces of a range of one map, without gaps.
pub(crate) fn pieces(map: Option<&VolumeMap>, lba: u64, blocks: u64) -> Vec<Piece> {
    let Some(map) = map else {
        return vec![Piece { lba, blocks, addr: None, sums: Vec::new() }];
    };
    let mut found = Vec::new();
    map.lookup_range(VolumeId(0), lba, blocks, &mut |extent| found.push(Piece::of(extent)));
    found
}

/// A part of a range that is being looked up.
enum Todo {
    /// To be looked up in a version; `None`: it is a hole.
    Look(Option<VolumeId>, u64, u64),
    /// Within a leaf, to be looked up in the snapshots from `number` on of the line of `version`.
    LookIn { version: VolumeId, number: u32, lba: u64, blocks: u64 },
    /// What a volume or one of its snapshots has.
    Show(VolumeId, Piece),
}

impl Map {
    /// Visits a range in order: how many blocks, and whether the volume has changed them between
    /// its snapshot `since` and its newer version `until` (another snapshot, or the volume). Blocks
    /// that were written with what they held count as changed.
    pub fn changes(
        &self,
        (since, until): (VolumeId, VolumeId),
        lba: Lba,
        blocks: u64,
        visit: &mut dyn FnMut(u64, bool),
    ) {
        let untouched = match self.line_of(since) {
            Some((line, first)) => {
                let end = self.line_of(until).map_or(u32::MAX, |(_, number)| number);
                self.untouched(line, &(first..end), lba.0, blocks)
            }
            None => vec![(lba.0, blocks)],
        };
        let mut from = lba.0;
        for (unchanged, length) in untouched {
            if unchanged > from {
                visit(unchanged - from, true);
            }
            visit(length, false);
            from = unchanged + length;
        }
        if lba.0 + blocks > from {
            visit(lba.0 + blocks - from, true);
        }
    }

    /// Blocks of a volume's own that its newest snapshot has as well: an overwrite takes new space
    /// for them.
    #[must_use]
    pub fn shared_blocks(&self, volume: VolumeId) -> u64 {
        self.lines.get(&volume).map_or(0, |line| line.shared)
    }

    /// Blocks of a volume's own in a range that neither a snapshot has nor another block can refer
    /// to: an overwrite takes no new space for them.
    #[must_use]
    pub fn unshared_within(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        self.unshared(volume, lba, blocks, VolumeMap::placed_within)
    }

    /// Blocks in a range that no snapshot has, counted by `within`.
    pub(crate) fn unshared(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        within: impl Fn(&VolumeMap, u64, u64) -> u64,
    ) -> u64 {
        let Some(map) = self.volumes.get(&volume) else { return 0 };
        let all = within(map, lba.0, blocks);
        let line = self.lines.get(&volume);
        let Some((line, keepers)) = line.and_then(|line| Some((line, line.keepers()?))) else {
            return all;
        };
        if blocks == 1 {
            let is_kept = self.entry_from(line, keepers.start, lba.0, |_| true).is_some();
            return if is_kept { all } else { 0 };
        }
        let shared = self.untouched(line, &keepers, lba.0, blocks).into_iter();
        all - shared.map(|(lba, n)| within(map, lba, n)).sum::<u64>()
    }

    /// Whether a volume is a clone.
    #[must_use]
    pub fn is_clone(&self, volume: VolumeId) -> bool {
        self.volumes.get(&volume).is_some_and(|map| map.link.origin.is_some())
    }

    /// Entries of a version, those included that only say where else to look.
    #[must_use]
    pub fn entries(&self, version: VolumeId) -> u64 {
        self.volumes.get(&version).map_or(0, VolumeMap::entries)
    }

    /// The version whose own entry for `lba` is at `addr`, where volume `writer` wrote the block: a
    /// version of that volume, or of one that has taken over some of them.
    #[must_use]
    pub fn owner(&self, writer: VolumeId, lba: Lba, addr: BlockAddr) -> Option<(VolumeId, Mapped)> {
        let heirs = self.heirs.get(&writer).into_iter().flatten();
        [&writer].into_iter().chain(heirs).find_map(|home| self.owner_in(*home, lba, addr))
    }

    /// The version of `home` whose own entry for `lba` is at `addr`.
    fn owner_in(&self, home: VolumeId, lba: Lba, addr: BlockAddr) -> Option<(VolumeId, Mapped)> {
        let found = self.volumes.get(&home).and_then(|map| map.lookup(lba.0));
        if let Some(found) = found.filter(|found| found.addr == addr) {
            return Some((home, found));
        }
        self.entry_from(self.lines.get(&home)?, 0, lba.0, |found| found.addr == addr)
    }

    /// As [`Map::lookup`], for a block of which the version has no address of its own.
    pub(crate) fn lookup_versions(&self, volume: VolumeId, lba: Lba) -> Option<Located> {
        let mut at = volume;
        loop {
            let map = self.volumes.get(&at)?;
            let found = match self.line_of(at) {
                Some((line, number)) => {
                    self.entry_from(line, number, lba.0, |_| true).map(|(_, found)| found)
                }
                None => map.lookup(lba.0),
            };
            at = match found {
                None => map.link.home.or(map.link.origin)?,
                Some(found) if found.addr.segment() == HOLE_SEGMENT => return None,
                Some(found) if found.addr.segment() == ORIGIN_SEGMENT => map.link.origin?,
                Some(found) if is_shared(found.addr) => return self.lookup_ref(found.addr),
                Some(Mapped { addr, sum }) => {
                    let home = map.link.home.unwrap_or(at);
                    return Some(Located { home, bound: lba, addr, sum });
                }
            };
        }
    }

    /// As [`Map::lookup_range`], for a version that takes blocks from others.
    pub(crate) fn lookup_range_of_versions(
        &self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        visit: &mut dyn FnMut(MapExtent<'_>),
    ) {
        let mut todo = vec![Todo::Look(Some(volume), lba.0, blocks)];
        let mut hole = (lba.0, 0);
        while let Some(next) = todo.pop() {
            let from = todo.len();
            match next {
                Todo::Look(None, _, blocks) => hole.1 += blocks,
                Todo::Look(Some(version), lba, blocks) => match self.line_of(version) {
                    Some((line, number)) => {
                        self.split_at_leaves(version, (line, number), (lba, blocks), &mut todo);
                    }
                    None => self.look_at(version, None, (lba, blocks), &mut todo),
                },
                Todo::LookIn { version, number, lba, blocks } => {
                    self.look_in_line(version, number, (lba, blocks), &mut todo);
                }
                Todo::Show(home, Piece { lba, blocks, addr, sums }) => {
                    show_hole(hole, visit);
                    hole = (lba + blocks, 0);
                    let addr = addr.expect("only mapped pieces are shown");
                    let (lba, bound, sums) = (Lba(lba), Lba(lba), Sums(&sums));
                    match is_shared(addr) {
                        true => self.show_refs(lba, addr, blocks, visit),
                        false => {
                            let kind = ExtentKind::Mapped { home, bound, addr, sums };
                            visit(MapExtent { lba, blocks, kind }.with_packed());
                        }
                    }
                }
            }
            todo[from..].reverse();
        }
        show_hole(hole, visit);
    }

    /// Where to look for a range of a snapshot: for leaves in which it or newer ones have entries,
    /// among these, for others in the volume.
    fn split_at_leaves(
        &self,
        version: VolumeId,
        (line, number): (&Line, u32),
        (lba, blocks): (u64, u64),
        todo: &mut Vec<Todo>,
    ) {
        let home = self.volumes.get(&version).and_then(|map| map.link.home);
        let (mut at, end) = (lba, lba + blocks);
        while at < end {
            let leaf = line.index.first_leaf(at, end, &(number..u32::MAX));
            let base = leaf.map_or(end, |leaf| u64::from(leaf) * LEAF);
            let from = base.clamp(at, end);
            if at < from {
                todo.push(Todo::Look(home, at, from - at));
            }
            at = end.min(base.saturating_add(LEAF));
            if from < at {
                todo.push(Todo::LookIn { version, number, lba: from, blocks: at - from });
            }
        }
    }

    /// Looks a range within a leaf up in the first snapshot from number `number` on, of the line
    /// of `version`, that may have some of it.
    fn look_in_line(
        &self,
        version: VolumeId,
        number: u32,
        (lba, blocks): (u64, u64),
        todo: &mut Vec<Todo>,
    ) {
        let home = self.volumes.get(&version).and_then(|map| map.link.home);
        let found = self.line_of(version).zip(by_leaf(lba, blocks).next());
        let found = found.and_then(|((line, _), (leaf, range))| {
            let number = line.index.first(leaf, number..u32::MAX, &range)?;
            Some((*line.snapshots.get(&number)?, number))
        });
        match found {
            Some((id, number)) => self.look_at(id, Some(number + 1), (lba, blocks), todo),
            None => todo.push(Todo::Look(home, lba, blocks)),
        }
    }

    /// Looks a range up in one map. What that has no entry for is sought among the snapshots from
    /// number `newer` on, or in the origin.
    fn look_at(
        &self,
        version: VolumeId,
        newer: Option<u32>,
        (lba, blocks): (u64, u64),
        todo: &mut Vec<Todo>,
    ) {
        let map = self.volumes.get(&version);
        let (home, origin) = map.map_or((None, None), |map| (map.link.home, map.link.origin));
        let beyond = home.or(origin);
        let home = home.unwrap_or(version);
        todo.extend(pieces(map, lba, blocks).into_iter().map(|piece| {
            let Piece { lba, blocks, .. } = piece;
            match (piece.addr.map(BlockAddr::segment), newer) {
                (None, Some(number)) => Todo::LookIn { version, number, lba, blocks },
                (None, None) => Todo::Look(beyond, lba, blocks),
                (Some(HOLE_SEGMENT), _) => Todo::Look(None, lba, blocks),
                (Some(ORIGIN_SEGMENT), _) => Todo::Look(origin, lba, blocks),
                (Some(_), _) => Todo::Show(home, piece),
            }
        }));
    }

    /// As [`Map::visible_blocks`], within a range.
    #[must_use]
    pub fn visible_within(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        let mut visible = 0;
        self.lookup_range(volume, lba, blocks, |extent| {
            visible += if extent.kind == ExtentKind::Hole { 0 } else { extent.blocks };
        });
        visible
    }

    /// Blocks of a volume or snapshot that are no holes, those that other versions hold included.
    #[must_use]
    pub fn visible_blocks(&self, volume: VolumeId) -> u64 {
        let Some(map) = self.volumes.get(&volume) else { return 0 };
        if !map.link.takes_from_others() {
            return map.mapped_blocks();
        }
        let mut visible = 0;
        let mut from = Some(Lba(0));
        while let Some(at) = from.and_then(|from| self.next_entry(volume, from)) {
            visible += self.visible_within(volume, at, LEAF);
            from = at.0.checked_add(LEAF).map(Lba);
        }
        visible
    }

    /// The first block of the first leaf, from that of `lba` on, in which this version or one that
    /// it takes blocks from has an entry.
    #[must_use]
    pub fn next_entry(&self, volume: VolumeId, lba: Lba) -> Option<Lba> {
        let first = u32::try_from(lba.0 / LEAF).ok()?;
        let (mut at, mut least) = (Some(volume), None);
        while let Some(map) = at.and_then(|at| self.volumes.get(&at)) {
            let leaf = match at.and_then(|at| self.line_of(at)) {
                Some((line, number)) => line.index.first_leaf(lba.0, u64::MAX, &(number..u32::MAX)),
                None => map.first_leaf_from(first),
            };
            least = [least, leaf].into_iter().flatten().min();
            at = map.link.home.or(map.link.origin);
        }
        least.map(|leaf: u32| Lba(u64::from(leaf) * LEAF))
    }

    /// Gives the newest snapshot what the volume has in a range that is about to be overwritten.
    /// Reports each entry that the snapshot gets.
    pub fn keep_before_write(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        kept: &mut impl FnMut(Kept<'_>),
    ) {
        let Some(line) = self.lines.get(&volume) else { return };
        let Some((keeper, keepers)) = line.keeper().zip(line.keepers()) else { return };
        for (lba, blocks) in self.untouched(line, &keepers, lba.0, blocks) {
            for piece in pieces(self.volumes.get(&volume), lba, blocks) {
                if piece.is_real() {
                    if let Some(line) = self.lines.get_mut(&volume) {
                        line.shared -= piece.blocks;
                    }
                }
                if piece.addr.is_some() {
                    self.take(volume, piece.lba, piece.blocks);
                }
                self.put(keeper, &piece, kept);
            }
        }
    }

    /// As [`Map::keep_before_write`], for a range that is about to be cleared.
    pub fn keep_before_clear(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        kept: &mut impl FnMut(Kept<'_>),
    ) {
        if self.lines.get(&volume).is_none_or(|line| line.keeper().is_none()) {
            return;
        }
        let mut mapped = Vec::new();
        self.lookup_range(volume, lba, blocks, |extent| {
            if extent.kind != ExtentKind::Hole {
                mapped.push((extent.lba, extent.blocks));
            }
        });
        for (lba, blocks) in mapped {
            self.keep_before_write(volume, lba, blocks, kept);
        }
    }

    /// Hides what a clone would take from its origin in a range that was cleared. Reports each
    /// entry that the clone gets.
    pub fn hide_origin(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        blocks: u64,
        kept: &mut impl FnMut(Kept<'_>),
    ) {
        let Some(origin) = self.volumes.get(&volume).and_then(|map| map.link.origin) else {
            return;
        };
        let mut mapped = Vec::new();
        self.lookup_range(origin, lba, blocks, |extent| {
            if extent.kind != ExtentKind::Hole {
                mapped.push((extent.lba.0, extent.blocks));
            }
        });
        for (lba, blocks) in mapped {
            let addr = Some(marker(HOLE_SEGMENT, lba));
            self.put(volume, &Piece { lba, blocks, addr, sums: Vec::new() }, kept);
        }
    }

    /// Removes entries of a map without freeing their addresses.
    pub(crate) fn take(&mut self, volume: VolumeId, lba: u64, blocks: u64) {
        let mut ignored = |_, _| {};
        let Self { volumes, scratch, .. } = self;
        if let Some(map) = volumes.get_mut(&volume) {
            map.clear(lba, blocks, &mut Freed::new(&mut ignored), scratch);
            self.has_lost(volume, lba, blocks);
        }
    }

    /// Gives entries to a map that has none there. Without an address: a marker that says so.
    fn put(&mut self, volume: VolumeId, piece: &Piece, kept: &mut impl FnMut(Kept<'_>)) {
        self.put_entries(volume, piece, kept);
        self.has_got(volume, piece.lba, piece.blocks);
    }

    pub(crate) fn put_entries(
        &mut self,
        volume: VolumeId,
        piece: &Piece,
        kept: &mut impl FnMut(Kept<'_>),
    ) {
        let mut ignored = |_, _| {};
        let mut freed = Freed::new(&mut ignored);
        let Self { volumes, scratch, .. } = self;
        let Some(map) = volumes.get_mut(&volume) else { return };
        let Some(addr) = piece.addr.filter(|addr| !is_marker(*addr)) else {
            let segment = match piece.addr {
                Some(addr) => addr.segment(),
                None if map.link.origin.is_some() => ORIGIN_SEGMENT,
                None => HOLE_SEGMENT,
            };
            let (mut lba, end) = (piece.lba, piece.lba + piece.blocks);
            while lba < end {
                // Markers are numbered like blocks of a segment, and do not go on past its end.
                let addr = marker(segment, lba);
                let left = BlockAddr::MAX_BLOCKS - addr.block();
                let blocks = (end - lba).min(u64::from(left)) as u32;
                map.set_sealed(lba, addr, blocks, &mut freed, scratch);
                kept(Kept { volume, lba: Lba(lba), blocks, addr: Some(addr), sums: &[] });
                lba += u64::from(blocks);
            }
            return;
        };
        for part in Part::all(piece.lba, addr, &piece.sums) {
            map.put(&part, &mut freed, scratch);
            let Part { lba, addr, blocks, sums } = part;
            kept(Kept { volume, lba: Lba(lba), blocks, addr: Some(addr), sums });
        }
    }

    /// The snapshot of the same volume that was taken before this one.
    fn next_older(&self, snapshot: VolumeId) -> Option<VolumeId> {
        let (line, number) = self.line_of(snapshot)?;
        line.next_older(number)
    }

    /// Lets go of what a snapshot has in its first leaf: the next older snapshot gets what it
    /// lacks, and the rest is freed. Returns the range that the snapshot has no entries in any
    /// more, or `None` when it has none at all.
    pub fn let_go(
        &mut self,
        snapshot: VolumeId,
        freed: &mut impl FnMut(BlockAddr, u32),
        kept: &mut impl FnMut(Kept<'_>),
    ) -> Option<(Lba, u64)> {
        let map = self.volumes.get(&snapshot)?;
        let lba = u64::from(map.first_leaf_from(0)?) * LEAF;
        if let Some(older) = self.next_older(snapshot) {
            let gaps = pieces(self.volumes.get(&older), lba, LEAF);
            for gap in gaps.into_iter().filter(|gap| gap.addr.is_none()) {
                let mine = pieces(self.volumes.get(&snapshot), gap.lba, gap.blocks);
                for piece in mine.into_iter().filter(|piece| piece.addr.is_some()) {
                    self.take(snapshot, piece.lba, piece.blocks);
                    self.put(older, &piece, kept);
                }
            }
        }
        let Self { volumes, scratch, .. } = self;
        let mut freed = Freed::new(freed);
        volumes.get_mut(&snapshot)?.clear(lba, LEAF, &mut freed, scratch);
        freed.finish();
        self.has_lost(snapshot, lba, LEAF);
        Some((Lba(lba), LEAF))
    }

    /// Gives a volume back what its newest snapshot has in the snapshot's first leaf, and frees
    /// what the volume had there instead. Returns the range that is as in the snapshot now, or
    /// `None` when all of the volume is. Reports what the volume gets.
    pub fn roll_back(
        &mut self,
        volume: VolumeId,
        freed: &mut impl FnMut(BlockAddr, u32),
        kept: &mut impl FnMut(Kept<'_>),
    ) -> Option<(Lba, u64)> {
        let snapshot = self.lines.get(&volume)?.newest()?;
        let lba = u64::from(self.volumes.get(&snapshot)?.first_leaf_from(0)?) * LEAF;
        let is_clone = self.volumes.get(&volume)?.link.origin.is_some();
        let theirs = pieces(self.volumes.get(&snapshot), lba, LEAF);
        for piece in theirs.into_iter().filter(|piece| piece.addr.is_some()) {
            let Self { volumes, scratch, .. } = self;
            let mut freed = Freed::new(freed);
            volumes.get_mut(&volume)?.clear(piece.lba, piece.blocks, &mut freed, scratch);
            freed.finish();
            let (lba, blocks) = (Lba(piece.lba), piece.blocks as u32);
            kept(Kept { volume, lba, blocks, addr: None, sums: &[] });
            self.take(snapshot, piece.lba, piece.blocks);
            let segment = piece.addr.map(BlockAddr::segment);
            // Without an entry a volume has a hole there, and a clone what its origin has.
            if segment == Some(ORIGIN_SEGMENT) || (segment == Some(HOLE_SEGMENT) && !is_clone) {
                continue;
            }
            if piece.is_real() {
                if let Some(line) = self.lines.get_mut(&volume) {
                    line.shared += piece.blocks;
                }
            }
            self.put(volume, &piece, kept);
        }
        Some((Lba(lba), LEAF))
    }

    /// Blocks that only this snapshot has, in its next leaf from `lba` on, and the block from which
    /// to go on; `None` after the last leaf. They are freed when it is destroyed.
    #[must_use]
    pub fn unique_blocks(&self, snapshot: VolumeId, lba: Lba) -> Option<(u64, Lba)> {
        let map = self.volumes.get(&snapshot)?;
        let first = u32::try_from(lba.0.div_ceil(LEAF)).ok()?;
        let lba = u64::from(map.first_leaf_from(first)?) * LEAF;
        let next = Lba(lba + LEAF);
        let Some(older) = self.next_older(snapshot) else {
            return Some((map.mapped_within(lba, LEAF), next));
        };
        let mut unique = 0;
        for piece in pieces(self.volumes.get(&older), lba, LEAF) {
            unique += piece.addr.map_or(0, |_| map.mapped_within(piece.lba, piece.blocks));
        }
        Some((unique, next))
    }
}

fn show_hole((lba, blocks): (u64, u64), visit: &mut dyn FnMut(MapExtent<'_>)) {
    if blocks > 0 {
        visit(MapExtent { lba: Lba(lba), blocks, kind: ExtentKind::Hole });
    }
}
