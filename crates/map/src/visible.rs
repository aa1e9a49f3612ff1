//! What a volume or snapshot shows: its own blocks, and those that it takes from other versions.

use forebay_units::{Lba, VolumeId};

use crate::{ExtentKind, LEAF_BLOCKS, Map};

const LEAF: u64 = LEAF_BLOCKS as u64;

impl Map {
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

    /// Whether a volume or snapshot has a block from `lba` on that is no hole, those that other
    /// versions hold included.
    #[must_use]
    pub fn is_visible_from(&self, volume: VolumeId, lba: Lba) -> bool {
        let mut from = Some(lba);
        while let Some(leaf) = from.and_then(|from| self.next_entry(volume, from)) {
            let first = leaf.max(lba);
            if self.visible_within(volume, first, leaf.0 + LEAF - first.0) > 0 {
                return true;
            }
            from = leaf.0.checked_add(LEAF).map(Lba);
        }
        false
    }
}
