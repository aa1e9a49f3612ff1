//! Promotion of a clone: its origin and the older snapshots become versions of the clone, and the
//! volume that they were of, the parent, becomes a clone of the origin. What a version holds stays.
//!
//! An address is in one map: that of the newest version of its line that has it. So what the origin
//! shares with the parent moves to the clone, as far as the clone shares it too, or to the origin.

use forebay_format::map_record::{HOLE_SEGMENT, LEAF_BLOCKS, ORIGIN_SEGMENT};
use forebay_units::{BlockAddr, Lba, VolumeId};

use crate::change::{Freed, continues};
use crate::map::Map;
use crate::runs::RunList;
use crate::versions::{Kept, Piece, marker, pieces};
use crate::volume::{IN_FOOTER, Part, VolumeMap};

const LEAF: u64 = LEAF_BLOCKS as u64;

/// A promotion that is being worked out. Nothing else may change the map meanwhile.
pub struct Promotion {
    parent: VolumeId,
    clone: VolumeId,
    /// The snapshot that the clone began as, and its number.
    origin: VolumeId,
    number: u32,
    /// What the maps of the parent and of the clone become.
    parent_map: VolumeMap,
    clone_map: VolumeMap,
    /// What snapshots get, or lose.
    edits: Vec<(VolumeId, Piece)>,
    /// The leaf from which on there is work.
    next: Option<u32>,
    scratch: RunList,
}

impl Promotion {
    /// The volume that becomes a clone.
    #[must_use]
    pub fn parent(&self) -> VolumeId {
        self.parent
    }
}

/// The entry of a block: its address or marker, and its sum.
type Cell = Option<(BlockAddr, u64)>;

/// The entries of a version in a leaf.
struct Column {
    version: VolumeId,
    before: Vec<Cell>,
    after: Vec<Cell>,
}

/// What a version holds at a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Hole,
    /// What the origin of the parent holds.
    Origin,
    /// The entry of this column.
    Entry(usize),
}

impl Column {
    fn of(map: &Map, version: VolumeId, base: u64) -> Self {
        let mut before = Vec::with_capacity(LEAF_BLOCKS as usize);
        for Piece { blocks, addr, sums, .. } in pieces(map.volumes.get(&version), base, LEAF) {
            let cell = |at: u32| addr.map(|addr| (addr.plus(at), sums[at as usize]));
            before.extend((0..blocks as u32).map(cell));
        }
        Self { version, after: vec![None; before.len()], before }
    }

    /// The new entries of the blocks for which `is_wanted`.
    fn pieces(&self, base: u64, is_wanted: impl Fn(usize) -> bool) -> Vec<Piece> {
        let mut found: Vec<Piece> = Vec::new();
        for (block, cell) in self.after.iter().enumerate().filter(|(block, _)| is_wanted(*block)) {
            let lba = base + block as u64;
            let goes_on = |last: &&mut Piece| {
                let follows = match (last.addr, cell) {
                    (None, None) => true,
                    (Some(first), Some((addr, _))) => continues(first, last.blocks as u32, *addr),
                    _ => false,
                };
                last.lba + last.blocks == lba && follows
            };
            let sum = cell.map(|(_, sum)| sum);
            match found.last_mut().filter(goes_on) {
                Some(last) => {
                    last.blocks += 1;
                    last.sums.extend(sum);
                }
                None => {
                    let (addr, sums) = (cell.map(|(addr, _)| addr), sum.into_iter().collect());
                    found.push(Piece { lba, blocks: 1, addr, sums });
                }
            }
        }
        found
    }

    fn changed(&self, base: u64) -> Vec<Piece> {
        self.pieces(base, |block| self.before[block] != self.after[block])
    }
}

/// Fills `seen` with what the versions of a line hold at a block: `beyond` without an entry, and
/// `origin` by a marker. `columns` are the versions, oldest first.
fn look(
    columns: &[Column],
    (first, block): (usize, usize),
    (beyond, origin): (Seen, Seen),
    seen: &mut Vec<Seen>,
) {
    let mut next = beyond;
    seen.resize(first + columns.len(), Seen::Hole);
    for (at, column) in columns.iter().enumerate().rev() {
        next = match column.before[block].map(|(addr, _)| addr.segment()) {
            None => next,
            Some(HOLE_SEGMENT) => Seen::Hole,
            Some(ORIGIN_SEGMENT) => origin,
            Some(_) => Seen::Entry(first + at),
        };
        seen[first + at] = next;
    }
}

/// Gives the versions of a line, `order` from the newest to the oldest, the entries with which they
/// hold at block `lba` what they have `seen`.
fn write(
    columns: &mut [Column],
    order: impl Iterator<Item = usize>,
    (block, lba): (usize, u64),
    (beyond, origin): (Seen, Seen),
    seen: &[Seen],
) {
    let mut next = beyond;
    for at in order {
        let now = seen[at];
        let is_hole = now == Seen::Hole;
        columns[at].after[block] = match now {
            _ if now == next => None,
            _ if now == origin && !is_hole => Some((marker(ORIGIN_SEGMENT, lba), IN_FOOTER)),
            Seen::Entry(from) => columns[from].before[block],
            // A version that sees the parent's origin although its own origin holds something else
            // was cleared where that origin has a hole.
            Seen::Hole | Seen::Origin => Some((marker(HOLE_SEGMENT, lba), IN_FOOTER)),
        };
        next = now;
    }
}

impl Map {
    /// Says which other volumes wrote blocks that versions of `volume` may have.
    pub fn set_writers(&mut self, volume: VolumeId, writers: &[VolumeId]) {
        self.heirs.values_mut().for_each(|heirs| heirs.retain(|heir| *heir != volume));
        writers.iter().for_each(|writer| self.heirs.entry(*writer).or_default().push(volume));
        self.heirs.retain(|_, heirs| !heirs.is_empty());
        if self.heirs.is_empty() {
            // An emptied tree keeps memory.
            self.heirs = Default::default();
        }
    }

    /// Begins to work out the promotion of a clone; `None` when the volume is none.
    #[must_use]
    pub fn begin_promotion(&self, clone: VolumeId) -> Option<Promotion> {
        let origin = self.volumes.get(&clone)?.link.origin?;
        let link = &self.volumes.get(&origin)?.link;
        let (parent, number) = (link.home?, link.number);
        Some(Promotion {
            parent,
            clone,
            origin,
            number,
            parent_map: VolumeMap::default(),
            clone_map: VolumeMap::default(),
            edits: Vec::new(),
            next: Some(0),
            scratch: RunList::default(),
        })
    }

    /// Works out the next leaf. Reports what each version gets, for the journal. Returns whether
    /// there was one.
    pub fn promote_leaf(&self, promotion: &mut Promotion, kept: &mut impl FnMut(Kept<'_>)) -> bool {
        let Some(leaf) = promotion.next.and_then(|from| self.leaf_to_promote(promotion, from))
        else {
            return false;
        };
        promotion.next = leaf.checked_add(1);
        let base = u64::from(leaf) * LEAF;
        let mut columns = vec![Column::of(self, promotion.origin, base)];
        self.add_columns(&mut columns, promotion.parent, (leaf, promotion.number + 1));
        let parents = columns.len();
        self.add_columns(&mut columns, promotion.clone, (leaf, 0));
        let parent_is_clone = self.is_clone(promotion.parent);
        let beyond = if parent_is_clone { Seen::Origin } else { Seen::Hole };
        let mut seen = Vec::new();
        for block in 0..LEAF_BLOCKS as usize {
            let lba = base + block as u64;
            look(&columns[..parents], (0, block), (beyond, Seen::Origin), &mut seen);
            let shared = seen[0];
            look(&columns[parents..], (parents, block), (shared, shared), &mut seen);
            let of_clone = (parents..columns.len()).rev().chain([0]);
            write(&mut columns, of_clone, (block, lba), (beyond, beyond), &seen);
            write(&mut columns, (1..parents).rev(), (block, lba), (shared, shared), &seen);
        }
        promotion.take_leaf(leaf, &columns, kept);
        true
    }

    /// The next leaf, from `from` on, in which a version has an entry that may move.
    fn leaf_to_promote(&self, promotion: &Promotion, from: u32) -> Option<u32> {
        let of_line = |volume, number: u32| {
            let line = self.lines.get(&volume)?;
            line.index.first_leaf(u64::from(from) * LEAF, u64::MAX, &(number..u32::MAX))
        };
        let of_map = |volume| self.volumes.get(&volume)?.first_leaf_from(from);
        let Promotion { parent, clone, number, .. } = *promotion;
        let all = [of_line(parent, number), of_map(parent), of_line(clone, 0), of_map(clone)];
        all.into_iter().flatten().min()
    }

    /// Adds the snapshots of a volume from number `from` on that have entries in a leaf, oldest
    /// first, and the volume.
    fn add_columns(
        &self,
        columns: &mut Vec<Column>,
        volume: VolumeId,
        (leaf, mut from): (u32, u32),
    ) {
        let base = u64::from(leaf) * LEAF;
        if let Some(line) = self.lines.get(&volume) {
            while let Some(at) = line.index.first(leaf, from..u32::MAX, &(0..LEAF_BLOCKS)) {
                from = at + 1;
                columns.extend(line.snapshots.get(&at).map(|id| Column::of(self, *id, base)));
            }
        }
        columns.push(Column::of(self, volume, base));
    }

    /// Makes a promotion true that was worked out to its end. [`Map::set_versions`] must follow for
    /// both volumes before anything is looked up.
    pub fn finish_promotion(&mut self, promotion: Promotion) {
        let Promotion { parent, clone, parent_map, clone_map, edits, .. } = promotion;
        self.remove_line(parent);
        self.remove_line(clone);
        self.volumes.insert(parent, parent_map);
        self.volumes.insert(clone, clone_map);
        for (version, piece) in edits {
            self.take(version, piece.lba, piece.blocks);
            if piece.addr.is_some() {
                self.put_entries(version, &piece, &mut |_| {});
            }
        }
    }
}

impl Promotion {
    /// Notes what a leaf becomes, and reports what changes.
    fn take_leaf(&mut self, leaf: u32, columns: &[Column], kept: &mut impl FnMut(Kept<'_>)) {
        let base = u64::from(leaf) * LEAF;
        for column in columns {
            let volume = column.version;
            let changed = column.changed(base);
            for Piece { lba, blocks, addr, sums } in &changed {
                let Some(addr) = *addr else {
                    let (lba, blocks) = (Lba(*lba), *blocks as u32);
                    kept(Kept { volume, lba, blocks, addr: None, sums: &[] });
                    continue;
                };
                for Part { lba, addr, blocks, sums } in Part::all(*lba, addr, sums) {
                    kept(Kept { volume, lba: Lba(lba), blocks, addr: Some(addr), sums });
                }
            }
            let map = match volume {
                _ if volume == self.parent => &mut self.parent_map,
                _ if volume == self.clone => &mut self.clone_map,
                _ => {
                    self.edits.extend(changed.into_iter().map(|piece| (volume, piece)));
                    continue;
                }
            };
            let mut ignored = |_, _| {};
            let mut freed = Freed::new(&mut ignored);
            for Piece { lba, addr, sums, .. } in column.pieces(base, |_| true) {
                let parts = addr.into_iter().flat_map(|addr| Part::all(lba, addr, &sums));
                parts.for_each(|part| map.put(&part, &mut freed, &mut self.scratch));
            }
            if map.leaf(leaf).is_some() {
                // Chooses the smallest form.
                map.seal(leaf, &mut |_| false, &mut self.scratch);
            }
        }
    }
}
