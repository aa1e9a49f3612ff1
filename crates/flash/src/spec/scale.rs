//! Sizes that follow from a description; smaller devices with the same behavior.

use super::{DeviceSpec, FlashSpec, Frontiers, MediaSpec};

/// How the translation layer sees the array: pools of superblocks made of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Groups of dies that open and clean blocks on their own.
    pub pools: u32,
    /// Dies of one pool.
    pub dies_per_pool: u32,
    /// Superblocks of one pool.
    pub blocks_per_pool: u32,
    /// Slots of one superblock.
    pub slots_per_block: u32,
    /// Slots one die programs at once.
    pub slots_per_stripe: u32,
    /// Slots one page of one plane holds (at least 1: a unit may span planes).
    pub slots_per_page: u32,
    /// Bytes of one slot.
    pub slot_bytes: u32,
    /// Slots of an uncompressed mapping unit.
    pub slots_per_unit: u32,
    /// Whether moved data has its own open block.
    pub frontiers: Frontiers,
    /// Streams of host data.
    pub streams: u32,
}

impl Layout {
    pub(crate) fn total_slots(&self) -> u128 {
        u128::from(self.pools) * u128::from(self.blocks_per_pool) * u128::from(self.slots_per_block)
    }

    pub(crate) fn open_blocks(&self) -> u64 {
        u64::from(self.streams) + u64::from(self.frontiers == Frontiers::Apart)
    }
}

impl FlashSpec {
    /// Raw bytes of the array, spare bytes not counted.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        let g = &self.geometry;
        [g.dies_per_channel, g.planes_per_die, g.blocks_per_plane, g.pages_per_block, g.page_bytes]
            .iter()
            .fold(u64::from(g.channels), |product, &n| product.saturating_mul(u64::from(n)))
    }

    pub(crate) fn layout(&self) -> Layout {
        let g = &self.geometry;
        let unit = self.ftl.mapping_unit_bytes;
        let slot_bytes = self.controller.compression.as_ref().map_or(unit, |z| z.granule_bytes);
        let dies = g.channels.saturating_mul(g.dies_per_channel);
        let dies_per_pool = match self.ftl.superblock_dies {
            0 => dies,
            n => n.min(dies),
        };
        let stripe_bytes = g.page_bytes.saturating_mul(g.planes_per_die);
        let slots_per_stripe = stripe_bytes / slot_bytes;
        Layout {
            pools: dies / dies_per_pool.max(1),
            dies_per_pool,
            blocks_per_pool: g.blocks_per_plane,
            slots_per_block: slots_per_stripe
                .saturating_mul(dies_per_pool)
                .saturating_mul(g.pages_per_block),
            slots_per_stripe,
            slots_per_page: (g.page_bytes / slot_bytes).max(1),
            slot_bytes,
            slots_per_unit: unit / slot_bytes,
            frontiers: self.ftl.frontiers,
            // Each active zone has an open stripe, as each stream has.
            streams: self.zones.as_ref().map_or(self.ftl.streams, |zones| zones.max_active),
        }
    }
}

impl DeviceSpec {
    /// Spare space of a flash device as a share of its raw space, (raw - offered) / raw, before
    /// reserve and open blocks are taken off; `None` for other media.
    #[must_use]
    pub fn spare_fraction(&self) -> Option<f64> {
        match &self.media {
            MediaSpec::Flash(flash) => {
                let raw = flash.raw_bytes() as f64;
                Some((raw - self.offered_bytes() as f64) / raw)
            }
            MediaSpec::Dram(_) | MediaSpec::Disk(_) => None,
        }
    }

    /// The same device with 1/`divisor` of its space: fewer blocks per plane for flash, so that
    /// speeds, spare fraction and block size stay and filling takes 1/`divisor` of the time.
    /// DRAM and disk keep their rates. A divisor of 0 counts as 1. Check the result: a device cut
    /// too far has no room for its reserve.
    #[must_use]
    pub fn scaled(&self, divisor: u32) -> DeviceSpec {
        let divisor = divisor.max(1);
        let mut small = self.clone();
        small.capacity_bytes /= u64::from(divisor);
        if let MediaSpec::Flash(flash) = &mut small.media {
            let before = flash.geometry.blocks_per_plane;
            flash.geometry.blocks_per_plane = before / divisor;
            // Rounding must not change the spare fraction.
            let exact = f64::from(flash.geometry.blocks_per_plane) / f64::from(before);
            small.capacity_bytes = (self.capacity_bytes as f64 * exact) as u64;
        }
        small
    }
}
