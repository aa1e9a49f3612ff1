//! Wear: the limit of each block, blocks that fail, wear leveling.

use super::{BlockState, Ftl, Media};
use crate::chance::Chance;
use crate::spec::Frontiers;

/// Spread of erase counts over the blocks that have not failed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WearSpread {
    /// Fewest erases of a block.
    pub min: u32,
    /// Most erases of a block.
    pub max: u32,
    /// Mean erases of a block.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// Blocks that have failed, from the factory or since.
    pub bad_blocks: u32,
    /// All superblocks, failed ones included.
    pub blocks: u32,
}

impl Ftl {
    pub(super) fn draw_limits(&mut self, seed: u64) {
        let mut chance = Chance::derive(seed, "endurance");
        let (mean, sd) = (self.config.cycles_mean, self.config.cycles_sd_fraction);
        if mean > 0.0 {
            let draw = |_| (mean * (1.0 + sd * chance.normal())).clamp(1.0, 4e9) as u32;
            self.cycle_limit = (0..self.state.len()).map(draw).collect();
        }
        let bad = f64::from(self.config.blocks_per_pool) * self.config.factory_bad_fraction;
        let blocks_per_pool = self.config.blocks_per_pool;
        for pool in 0..self.pools.len() {
            let first = self.pools[pool].first_block;
            let mut left = bad.ceil() as u32;
            while left > 0 {
                let block = first + chance.below(blocks_per_pool);
                if self.state[block as usize] != BlockState::Bad {
                    self.state[block as usize] = BlockState::Bad;
                    self.pools[pool].bad_blocks += 1;
                    self.bad_blocks += 1;
                    left -= 1;
                }
            }
            self.pools[pool].free.clear();
            for block in first..first + blocks_per_pool {
                if self.state[block as usize] != BlockState::Bad {
                    self.pools[pool].free.push(block, 0);
                }
            }
        }
    }

    pub(super) fn give_back(&mut self, block: u32) {
        self.state[block as usize] = BlockState::Free;
        let pool = self.pool_of(block);
        self.pools[pool].free.push(block, self.erase_count[block as usize]);
    }

    /// Erases a block without live data; it becomes free, or bad when its cycles are used up.
    pub(super) fn erase<M: Media>(&mut self, block: u32, media: &mut M) {
        media.erase(block);
        self.counters.erases += 1;
        self.erase_count[block as usize] += 1;
        let pool = self.pool_of(block);
        self.pools[pool].erases_since_wear_check += 1;
        let limit = self.cycle_limit.get(block as usize);
        if limit.is_none_or(|&limit| self.erase_count[block as usize] < limit) {
            self.give_back(block);
            return;
        }
        self.state[block as usize] = BlockState::Bad;
        self.pools[pool].bad_blocks += 1;
        self.bad_blocks += 1;
        if self.room_slots() < self.needed_slots() {
            self.worn_out = true;
        }
    }

    /// A closed block so little worn that its data must be cold, when one is due to be moved.
    pub(super) fn cold_victim(&mut self, pool: usize) -> Option<u32> {
        let gap = self.config.static_wear_gap;
        // Looking costs a pass over all blocks: not at each erase.
        let interval = (self.config.blocks_per_pool / 8).clamp(4, 64);
        if gap == 0 || self.pools[pool].erases_since_wear_check < interval {
            return None;
        }
        self.pools[pool].erases_since_wear_check = 0;
        let first = self.pools[pool].first_block;
        let blocks = first..first + self.config.blocks_per_pool;
        let good = blocks.filter(|&block| self.state[block as usize] != BlockState::Bad);
        let most = good.clone().map(|block| self.erase_count[block as usize]).max()?;
        let coldest = good
            .filter(|&block| self.state[block as usize] == BlockState::Closed)
            .min_by_key(|&block| self.erase_count[block as usize])?;
        if most - self.erase_count[coldest as usize] <= gap {
            return None;
        }
        let live_slots = self.live_slots[coldest as usize];
        self.pools[pool].remove_candidate(coldest, live_slots);
        self.counters.static_moves += 1;
        Some(coldest)
    }

    /// Slots a pool can hold live and still clean.
    fn pool_room(&self, pool: usize) -> u64 {
        let open = self.config.streams + u32::from(self.config.frontiers == Frontiers::Apart);
        let kept = self.config.blocks_per_pool - self.pools[pool].bad_blocks;
        let blocks = kept.saturating_sub(self.config.reserve_blocks + open);
        // A block may end in slots too few for another unit.
        let slots = self.config.slots_per_block.saturating_sub(self.config.slots_per_unit - 1);
        u64::from(blocks) * u64::from(slots)
    }

    pub(super) fn room_slots(&self) -> u64 {
        (0..self.pools.len()).map(|pool| self.pool_room(pool)).sum()
    }

    pub(super) fn needed_slots(&self) -> u64 {
        u64::from(self.config.units) * u64::from(self.config.slots_per_unit)
    }

    /// `wanted`, or the next pool with room for more live data.
    #[must_use]
    pub fn pick_pool(&self, wanted: usize) -> usize {
        let pools = self.pools.len();
        if pools == 1 {
            return 0;
        }
        let fair = self.needed_slots() / pools as u64;
        let fits = |pool: usize| {
            let room = self.pool_room(pool);
            // Half of its spare space at most may go to more than a fair share, or cleaning in
            // this pool would stall while others have space.
            let most = fair.min(room) + room.saturating_sub(fair) / 2;
            self.pools[pool].live_slots < most
        };
        (0..pools).map(|step| (wanted + step) % pools).find(|&pool| fits(pool)).unwrap_or_else(
            || {
                let live = |&pool: &usize| self.pools[pool].live_slots;
                (0..pools).min_by_key(live).unwrap_or(wanted)
            },
        )
    }

    /// How evenly blocks are worn.
    #[must_use]
    pub fn wear_spread(&self) -> WearSpread {
        let good = || {
            let counts = self.state.iter().zip(&self.erase_count);
            counts.filter(|(state, _)| **state != BlockState::Bad).map(|(_, &count)| count)
        };
        let n = good().count().max(1) as f64;
        let mean = good().map(f64::from).sum::<f64>() / n;
        let variance = good().map(|count| (f64::from(count) - mean).powi(2)).sum::<f64>() / n;
        WearSpread {
            min: good().min().unwrap_or(0),
            max: good().max().unwrap_or(0),
            mean,
            deviation: variance.sqrt(),
            bad_blocks: self.bad_blocks,
            blocks: self.state.len() as u32,
        }
    }
}
