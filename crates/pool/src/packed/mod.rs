//! Compression: which packed blocks are in use, and by how many blocks of volumes.
//!
//! Compressed units of volumes lie one after the other in packed blocks, which are blocks of a
//! hidden volume. Maps refer to units by packed block and slot. References are counted from the map
//! at import, so no count has to survive a crash. See `docs/rfcs/0015-compression.md`.

mod density;
mod read;

use std::cell::{Cell, RefCell};

use forebay_format::packed::{PackedTable, Packer};
use forebay_map::{ExtentKind, LEAF_BLOCKS, LeafId, Map, PACKED_VOLUME, PackedRef};
use forebay_units::{BLOCK_BYTES, BlockAddr, Lba, VolumeId};

use crate::Pool;
use crate::status::CompressionStats;

use density::{Density, WHOLE};
pub(crate) use read::{PackedPart, PackedPlan, WholeUnit};

/// The packed blocks of a pool.
pub(crate) struct Packed {
    /// Blocks of units that lie in each packed block, also in part, and how full it is.
    density: RefCell<Density>,
    /// Blocks of volumes that are compressed.
    referenced_blocks: Cell<u64>,
    /// Packed blocks that lost their last reference in this group.
    unused: RefCell<Vec<u64>>,
    /// Blocks since the import: that became smaller, and that did not.
    packed: Cell<u64>,
    plain: Cell<u64>,
    /// Packed blocks since the import that were packed anew.
    repacked: Cell<u64>,
    /// Where the search for packed blocks with gaps goes on.
    cursor: Cell<u64>,
}

/// Packed blocks of which so much is in use are packed anew.
const SPARSE_SHARE: u64 = WHOLE / 2;
/// As [`SPARSE_SHARE`], when space is short.
const SPARSE_SHARE_WHEN_SHORT: u64 = WHOLE * 3 / 4;
/// The part of all packed blocks that may be gaps.
const ALLOWED_GAPS: u64 = WHOLE / 4;
/// Packed blocks that are looked at in one go.
const MAX_LOOKED_AT: usize = 1 << 14;

/// Packed blocks that are worth a look.
#[derive(Default)]
pub(crate) struct Sparse {
    /// Much of them is not in use.
    pub repacked: Vec<u64>,
    /// How much of them is in use is not known.
    pub unknown: Vec<u64>,
}

/// Calls `visit` for each of `blocks` references from `addr` on.
fn each_ref(addr: BlockAddr, blocks: u32, mut visit: impl FnMut(PackedRef)) {
    for raw in addr.raw()..addr.raw() + u64::from(blocks) {
        visit(PackedRef::of(BlockAddr::from_raw(raw)).expect("only references are counted"));
    }
}

impl Packed {
    /// From the map, with the packer of the next group.
    pub fn restored(map: &Map) -> (Self, Packer) {
        let this = Self {
            density: RefCell::default(),
            referenced_blocks: Cell::new(0),
            unused: RefCell::default(),
            packed: Cell::new(0),
            plain: Cell::new(0),
            repacked: Cell::new(0),
            cursor: Cell::new(0),
        };
        map.for_each_packed_ref(|addr, blocks| this.refer(addr, blocks));
        let mut next = 0;
        map.for_each(|volume, lba, _, blocks| {
            if volume == PACKED_VOLUME {
                next = next.max(lba.0 + u64::from(blocks));
                let all = lba.0..lba.0 + u64::from(blocks);
                let is_unused = |number: &u64| this.density.borrow().count(*number) == 0;
                this.unused.borrow_mut().extend(all.filter(is_unused));
            }
        });
        (this, Packer::new(next))
    }

    /// Counts references that were made.
    pub fn refer(&self, addr: BlockAddr, blocks: u32) {
        let mut density = self.density.borrow_mut();
        each_ref(addr, blocks, |to| density.add(to.block.0, to.span()));
        self.referenced_blocks.set(self.referenced_blocks.get() + u64::from(blocks));
    }

    /// Counts references that went.
    pub fn release(&self, addr: BlockAddr, blocks: u32) {
        let mut density = self.density.borrow_mut();
        let mut unused = self.unused.borrow_mut();
        each_ref(addr, blocks, |to| {
            density.remove(to.block.0, to.span(), |number| unused.push(number));
        });
        self.referenced_blocks.set(self.referenced_blocks.get() - u64::from(blocks));
    }

    /// Whether no unit lies in a packed block.
    pub fn is_unused(&self, number: u64) -> bool {
        self.count(number) == 0
    }

    /// Blocks of units that lie in a packed block, also in part.
    pub fn count(&self, number: u64) -> u64 {
        self.density.borrow().count(number)
    }

    /// Notes how many blocks of volumes fit into a packed block like this one.
    pub fn note_table(&self, number: u64, table: &PackedTable) {
        self.density.borrow_mut().set_fitting(number, table.fitting_blocks());
    }

    /// A packed block cannot be packed closer than it is.
    pub fn note_dense(&self, number: u64) {
        let count = self.count(number);
        self.density.borrow_mut().set_fitting(number, count);
    }

    /// Counts a packed block that was packed anew.
    pub fn count_repacked(&self) {
        self.repacked.set(self.repacked.get() + 1);
    }

    /// Bytes of packed blocks that are not in use, as far as it is known.
    fn gap_bytes(&self) -> u64 {
        self.density.borrow().used_and_gaps().1 / (WHOLE / BLOCK_BYTES)
    }

    /// The next packed blocks that are worth packing anew, at most `most`, when gaps take more than
    /// they may, and `most_unknown` of those that are not known. Packing the former anew frees at
    /// least a quarter of them.
    pub fn next_sparse(&self, most: usize, most_unknown: usize, is_short: bool) -> Sparse {
        let density = self.density.borrow();
        let (used, gaps) = density.used_and_gaps();
        let wants_room = gaps > if is_short { 0 } else { used * ALLOWED_GAPS };
        let most_share = if is_short { SPARSE_SHARE_WHEN_SHORT } else { SPARSE_SHARE };
        let most = if wants_room { most } else { 0 };
        let most_unknown = most_unknown.min(density.unknown() as usize);
        let (mut found, mut in_use) = (Sparse::default(), 0);
        if most + most_unknown == 0 {
            return found;
        }
        let mut next = 0;
        for (looked_at, number) in density.used_from(self.cursor.get()).enumerate() {
            let is_full = found.repacked.len() >= most && found.unknown.len() >= most_unknown;
            if is_full || looked_at == MAX_LOOKED_AT {
                next = number;
                break;
            }
            match density.share(number) {
                None if found.unknown.len() < most_unknown => found.unknown.push(number),
                Some(share) if share <= most_share && found.repacked.len() < most => {
                    found.repacked.push(number);
                    in_use += share;
                }
                _ => {}
            }
        }
        self.cursor.set(next);
        let (all, left) = (found.repacked.len(), in_use.div_ceil(WHOLE) as usize);
        if left == all || left > all * 3 / 4 {
            found.repacked.clear();
        }
        found
    }

    /// The packed blocks without references since the last call, in order.
    pub fn take_unused(&self) -> Vec<u64> {
        let mut unused = self.unused.take();
        unused.sort_unstable();
        unused.dedup();
        unused.retain(|number| self.is_unused(*number));
        unused
    }

    /// Whether any block is compressed.
    pub fn is_used(&self) -> bool {
        self.referenced_blocks.get() > 0
    }

    /// Counts blocks of a group that became smaller, or that are stored as they are.
    pub fn count_written(&self, blocks: u64, is_packed: bool) {
        let counter = if is_packed { &self.packed } else { &self.plain };
        counter.set(counter.get() + blocks);
    }
}

/// Leaves of a volume's map that its ratio is taken from.
const SAMPLED_LEAVES: usize = 32;

impl Pool {
    /// What a volume's blocks would take for each 100 bytes that they take, from a sample of its
    /// map. A packed block counts in equal parts for the blocks in it.
    pub(crate) fn compress_percent(&self, volume: VolumeId) -> u64 {
        let map = self.store.map.borrow();
        if !map.has_refs(volume) {
            return 100;
        }
        let first = LeafId { volume, leaf: 0 };
        let leaves: Vec<LeafId> =
            map.leaves_from(first).take_while(|leaf| leaf.volume == volume).collect();
        let density = self.packed.density.borrow();
        let (mut all, mut stored) = (0.0, 0.0);
        for leaf in leaves.iter().step_by(leaves.len().div_ceil(SAMPLED_LEAVES)) {
            let lba = Lba(u64::from(leaf.leaf) * u64::from(LEAF_BLOCKS));
            map.lookup_range(volume, lba, LEAF_BLOCKS.into(), |part| match part.kind {
                ExtentKind::Packed { addr, .. } => each_ref(addr, part.blocks as u32, |to| {
                    let share = |number| 1.0 / density.count(number).max(1) as f64;
                    let numbers = to.block.0..to.block.0 + to.span();
                    all += 1.0;
                    stored += numbers.map(share).sum::<f64>();
                }),
                ExtentKind::Mapped { .. } => {
                    all += part.blocks as f64;
                    stored += part.blocks as f64;
                }
                ExtentKind::Hole => {}
            });
        }
        if stored > 0.0 { (all * 100.0 / stored).round() as u64 } else { 100 }
    }

    /// What compression saves and costs.
    pub(crate) fn compression_stats(&self) -> CompressionStats {
        let packed = &self.packed;
        CompressionStats {
            referenced_bytes: packed.referenced_blocks.get() * BLOCK_BYTES,
            stored_bytes: self.store.map.borrow().placed_blocks(PACKED_VOLUME) * BLOCK_BYTES,
            packed_blocks: packed.packed.get(),
            plain_blocks: packed.plain.get(),
            repacked_blocks: packed.repacked.get(),
            gap_bytes: packed.gap_bytes(),
            memory_bytes: packed.density.borrow().memory_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
