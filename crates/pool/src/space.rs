//! Space accounts: what volumes may take, own, and are about to take.

use std::cell::Cell;

use forebay_txg::Content;
use forebay_units::{Lba, VolumeId};

use crate::Pool;
use crate::volume::VolumeState;

/// Space accounts of sparse volumes. Other volumes own what they reserved.
#[derive(Default)]
pub(crate) struct Space {
    /// Blocks that volumes may take in all.
    pub usable_blocks: Cell<u64>,
    /// Blocks reserved for volumes that are not sparse.
    pub reserved_blocks: Cell<u64>,
    /// Mapped blocks of sparse volumes, as of the last root.
    pub sparse_blocks: Cell<u64>,
    /// Blocks that sparse volumes will gain or lose when all absorbed changes are under a root.
    pub promised_blocks: Cell<i64>,
    /// The part of `promised_blocks` that the syncing group brings.
    pub syncing_blocks: Cell<i64>,
}

impl Pool {
    /// Reserves the space that a change of a sparse volume needs, or notes what it gives back.
    /// Returns whether there is enough.
    pub(crate) fn reserve_space(
        &self,
        volume: &VolumeState,
        lba: Lba,
        blocks: u64,
        content: &Content,
    ) -> bool {
        if !volume.sparse.get() {
            return true;
        }
        let held = self.held_blocks(volume.id, lba, blocks);
        let more = match content {
            Content::Data(_) => (blocks - held) as i64,
            Content::Zero => -(held as i64),
        };
        if more > 0 && more as u64 > self.free_blocks() {
            return false;
        }
        let promised = &self.dirty.space.promised_blocks;
        promised.set(promised.get() + more);
        true
    }

    /// Blocks in this range that hold data, once all that was absorbed is under a root.
    pub(crate) fn held_blocks(&self, volume: VolumeId, lba: Lba, blocks: u64) -> u64 {
        let map = self.store.map.borrow();
        let pieces = self.dirty.groups.borrow().lookup(volume, lba, blocks);
        let held = |piece: &forebay_txg::OverlayExtent| match piece.content {
            Some(Content::Data(_)) => piece.blocks,
            Some(Content::Zero) => 0,
            None => map.mapped_within(volume, piece.lba, piece.blocks),
        };
        pieces.iter().map(held).sum()
    }
}
