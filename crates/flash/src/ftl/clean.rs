//! Cleaning: full blocks are closed, victims chosen, their live units moved.

use super::pool::{Candidates, OpenBlock, Victim};
use super::{BlockState, Ftl, Media, NONE, Origin, WornOut};
use crate::spec::{CleaningPolicy, Frontiers, Pace};

const OWED_ONE: u64 = 1 << 16;

impl Ftl {
    /// Makes sure that `slots` slots fit the host's open block of `pool`.
    #[inline]
    pub(super) fn make_room<M: Media>(
        &mut self,
        pool: usize,
        slots: u32,
        media: &mut M,
    ) -> Result<(), WornOut> {
        if self.worn_out {
            return Err(WornOut);
        }
        if self.pools[pool].victim.is_some() {
            self.clean_in_step(pool, slots, media)?;
        }
        if self.pools[pool].host.next + slots <= self.config.slots_per_block {
            return Ok(());
        }
        self.open_for_host(pool, slots, media)
    }

    fn open_for_host<M: Media>(
        &mut self,
        pool: usize,
        slots: u32,
        media: &mut M,
    ) -> Result<(), WornOut> {
        let n = self.config.slots_per_block;
        let reserve = self.config.reserve_blocks as usize;
        // With a shared frontier, cleaning itself opens the block the host goes on in, and may even
        // fill it.
        let mut rounds = 0_u64;
        while self.pools[pool].host.next + slots > n {
            // There is always a dead slot somewhere, and every policy comes by in time.
            assert!(rounds < 1024 * (u64::from(self.config.blocks_per_pool) + 64), "no progress");
            rounds += 1;
            self.close(pool, Origin::Host, media);
            if self.pools[pool].free.len() > reserve {
                self.open(pool, Origin::Host)?;
            } else {
                self.clean_victim(pool, media)?;
            }
        }
        let low = reserve + usize::from(self.config.frontiers == Frontiers::Apart);
        if self.config.pace == Pace::Paced && self.pools[pool].free.len() <= low {
            self.choose_if_none(pool, media)?;
        }
        Ok(())
    }

    /// Closes the open block of this origin, if there is one; its unfilled slots are padding.
    fn close<M: Media>(&mut self, pool: usize, origin: Origin, media: &mut M) {
        let n = self.config.slots_per_block;
        let open = *self.pools[pool].open_mut(origin);
        if open.block == NONE {
            return;
        }
        if open.next < n {
            self.pad(pool, origin, n - open.next, media);
        }
        self.closed_at[open.block as usize] = self.clock_slots;
        self.state[open.block as usize] = BlockState::Closed;
        *self.pools[pool].open_mut(origin) = OpenBlock { block: NONE, next: n };
        let live_slots = self.live_slots[open.block as usize];
        self.pools[pool].add_candidate(open.block, live_slots);
    }

    fn open(&mut self, pool: usize, origin: Origin) -> Result<(), WornOut> {
        // A shared open block continues with host data, whichever stream opened it.
        let first_data = match self.config.frontiers {
            Frontiers::Apart => origin,
            Frontiers::Shared => Origin::Host,
        };
        let Some(block) = self.pools[pool].free.pop(first_data) else {
            self.worn_out = true;
            return Err(WornOut);
        };
        self.state[block as usize] = BlockState::Open;
        *self.pools[pool].open_mut(origin) = OpenBlock { block, next: 0 };
        Ok(())
    }

    /// Cleans one victim to its end: the one begun, or a new one.
    fn clean_victim<M: Media>(&mut self, pool: usize, media: &mut M) -> Result<(), WornOut> {
        self.choose_if_none(pool, media)?;
        if self.pools[pool].victim.is_some() {
            self.move_units(pool, u64::MAX, media)?;
        }
        Ok(())
    }

    /// Moves what the host's next `slots` slots owe the victim.
    fn clean_in_step<M: Media>(
        &mut self,
        pool: usize,
        slots: u32,
        media: &mut M,
    ) -> Result<(), WornOut> {
        let Some(victim) = &mut self.pools[pool].victim else { return Ok(()) };
        victim.owed += victim.pace * u64::from(slots);
        let due = victim.owed / OWED_ONE;
        victim.owed %= OWED_ONE;
        if due > 0 && self.move_units(pool, due, media)? {
            let low = self.config.reserve_blocks as usize
                + usize::from(self.config.frontiers == Frontiers::Apart);
            if self.pools[pool].free.len() <= low {
                self.choose_if_none(pool, media)?;
            }
        }
        Ok(())
    }

    /// Works towards `free_target` free blocks in every pool while `go_on` says so, called before
    /// each victim. Returns whether anything was cleaned.
    pub fn clean_ahead<M: Media>(
        &mut self,
        free_target: u32,
        media: &mut M,
        mut go_on: impl FnMut(&M) -> bool,
    ) -> bool {
        let mut cleaned = false;
        for pool in 0..self.pools.len() {
            while !self.worn_out
                && self.pools[pool].free.len() < free_target as usize
                && self.has_dead_slots(pool)
                && go_on(media)
            {
                if self.clean_victim(pool, media).is_err() {
                    return cleaned;
                }
                cleaned = true;
            }
        }
        cleaned
    }

    /// Whether cleaning the least live closed block would gain a slot.
    fn has_dead_slots(&self, pool: usize) -> bool {
        let pool = &self.pools[pool];
        let gains = |local: u32| {
            self.live_slots[(pool.first_block + local) as usize] < self.config.slots_per_block
        };
        pool.victim.is_some()
            || match &pool.candidates {
                Candidates::Sorted(sorted) => sorted.first().is_some_and(gains),
                Candidates::Listed { blocks, .. } => blocks.iter().any(|&local| gains(local)),
                Candidates::Queued(queue) => queue.iter().any(|&local| gains(local)),
            }
    }

    /// Moves the live units of `block` at once, unless another is being cleaned. An open block is
    /// closed first. Returns whether it did.
    pub(crate) fn refresh<M: Media>(&mut self, block: u32, media: &mut M) -> Result<bool, WornOut> {
        let pool = self.pool_of(block);
        if self.pools[pool].victim.is_some() || self.pools[pool].free.len() < 2 {
            return Ok(false);
        }
        for origin in [Origin::Host, Origin::Clean] {
            if self.pools[pool].open_mut(origin).block == block {
                self.close(pool, origin, media);
            }
        }
        if self.state[block as usize] != BlockState::Closed {
            return Ok(false);
        }
        let live_slots = self.live_slots[block as usize];
        self.pools[pool].remove_candidate(block, live_slots);
        self.state[block as usize] = BlockState::Cleaning;
        self.pools[pool].victim = Some(Victim { block, next_word: 0, pace: 0, owed: 0 });
        self.counters.refreshes += 1;
        self.move_units(pool, u64::MAX, media)
    }

    fn choose_if_none<M: Media>(&mut self, pool: usize, media: &mut M) -> Result<(), WornOut> {
        if self.pools[pool].victim.is_some() {
            return Ok(());
        }
        let Some(block) = self.cold_victim(pool).or_else(|| self.choose(pool)) else {
            self.worn_out = true;
            return Err(WornOut);
        };
        self.state[block as usize] = BlockState::Cleaning;
        let live = u64::from(self.live_slots[block as usize]);
        let gain = u64::from(self.config.slots_per_block).saturating_sub(live).max(1);
        // Moves counted in slots, each moved slot freeing nothing: to gain `gain` slots, `live` are
        // moved. One more 1/65536 than needed, so that rounding never falls behind.
        let pace = live * OWED_ONE / gain + 1;
        self.pools[pool].victim = Some(Victim { block, next_word: 0, pace, owed: 0 });
        if live == 0 {
            self.move_units(pool, 0, media)?;
        }
        Ok(())
    }

    /// Takes the policy's victim out of the candidates.
    fn choose(&mut self, pool: usize) -> Option<u32> {
        let first = self.pools[pool].first_block;
        let live = |local: u32| self.live_slots[(first + local) as usize];
        let chance = &mut self.chance;
        let local = match (&mut self.pools[pool].candidates, self.config.policy) {
            (Candidates::Sorted(sorted), _) => {
                let lowest = live(sorted.first()?);
                return Some(first + sorted.take_lowest(lowest, chance));
            }
            (Candidates::Queued(queue), _) => return queue.pop_front().map(|local| first + local),
            (Candidates::Listed { blocks, .. }, _) if blocks.is_empty() => return None,
            (Candidates::Listed { blocks, .. }, CleaningPolicy::DChoices(d)) => (0..d)
                .map(|_| blocks[chance.below(blocks.len() as u32) as usize])
                .min_by_key(|&local| live(local))?,
            (Candidates::Listed { blocks, .. }, CleaningPolicy::CostBenefit) => {
                let blocks_of_pool = first as usize..(first + self.config.blocks_per_pool) as usize;
                let live_slots = &self.live_slots[blocks_of_pool.clone()];
                let closed_at = &self.closed_at[blocks_of_pool];
                self.benefit.best(blocks, live_slots, closed_at, self.clock_slots)
            }
            (Candidates::Listed { blocks, .. }, _) => {
                blocks[chance.below(blocks.len() as u32) as usize]
            }
        };
        let block = first + local;
        let live_slots = self.live_slots[block as usize];
        self.pools[pool].remove_candidate(block, live_slots);
        Some(block)
    }

    /// Moves up to about `most` live slots of the victim and erases it when none is left. Returns
    /// whether it was erased. On error the victim stays as it is and nothing is lost.
    fn move_units<M: Media>(
        &mut self,
        pool: usize,
        most: u64,
        media: &mut M,
    ) -> Result<bool, WornOut> {
        let n = self.config.slots_per_block;
        let Some(mut victim) = self.pools[pool].victim else { return Ok(false) };
        let block = victim.block;
        let words = block as usize * self.live_words;
        let mut moved = 0;
        while (victim.next_word as usize) < self.live_words {
            let word = self.live[words + victim.next_word as usize];
            if word == 0 {
                victim.next_word += 1;
                continue;
            }
            if moved >= most {
                break;
            }
            let slot = block * n + victim.next_word * 64 + word.trailing_zeros();
            let unit = self.unit_of[slot as usize];
            let slots = self.slots_of(unit);
            if self.pools[pool].open_mut(Origin::Clean).next + slots > n {
                self.close(pool, Origin::Clean, media);
                if let Err(worn_out) = self.open(pool, Origin::Clean) {
                    self.pools[pool].victim = Some(victim);
                    return Err(worn_out);
                }
            }
            media.read(slot, slots);
            self.live[words + victim.next_word as usize] &= word - 1;
            self.live_slots[block as usize] -= slots;
            self.pools[pool].live_slots -= u64::from(slots);
            self.counters.moved_units += 1;
            self.counters.moved_slots += u64::from(slots);
            self.append(pool, unit, slots, Origin::Clean, media);
            moved += u64::from(slots);
        }
        if (victim.next_word as usize) < self.live_words {
            self.pools[pool].victim = Some(victim);
            return Ok(false);
        }
        debug_assert_eq!(self.live_slots[block as usize], 0);
        self.pools[pool].victim = None;
        self.erase(block, media);
        Ok(true)
    }
}
