//! Audit of the translation layer's invariants, and a digest of its whole state.

use super::{BlockState, Ftl, NONE};

impl Ftl {
    /// Recounts everything that is kept incrementally, in one pass over the device. For tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn audit(&self) -> Result<(), String> {
        let n = self.config.slots_per_block;
        let mut live_slots = vec![0_u32; self.state.len()];
        let mut mapped = 0;
        for (unit, &slot) in self.map.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            let block = slot / n;
            if self.block_of(slot) != block {
                return Err(format!(
                    "slot {slot}: block {} instead of {block}",
                    self.block_of(slot)
                ));
            }
            if self.unit_at(slot) != Some(unit as u32) {
                return Err(format!("unit {unit}: slot {slot} holds {:?}", self.unit_at(slot)));
            }
            live_slots[block as usize] += self.slots_of(unit as u32);
            mapped += 1;
        }
        if mapped != self.mapped_units {
            return Err(format!("{mapped} units mapped, {} counted", self.mapped_units));
        }
        let bits: u32 = self.live.iter().map(|word| word.count_ones()).sum();
        if bits != mapped {
            return Err(format!("{mapped} units mapped, {bits} live marks"));
        }
        for (block, &live) in live_slots.iter().enumerate() {
            if live != self.live_slots[block] {
                let kept = self.live_slots[block];
                return Err(format!("block {block}: {live} slots live, {kept} counted"));
            }
            if live > 0 && matches!(self.state[block], BlockState::Free | BlockState::Bad) {
                return Err(format!("block {block}: {:?} with live data", self.state[block]));
            }
        }
        self.audit_pools(&live_slots)
    }

    fn audit_pools(&self, live_slots: &[u32]) -> Result<(), String> {
        let per_pool = self.config.blocks_per_pool as usize;
        for (number, pool) in self.pools.iter().enumerate() {
            let blocks = number * per_pool..(number + 1) * per_pool;
            let count = |wanted: BlockState| {
                self.state[blocks.clone()].iter().filter(|state| **state == wanted).count()
            };
            if count(BlockState::Free) != pool.free.len() {
                let (is, listed) = (count(BlockState::Free), pool.free.len());
                return Err(format!("pool {number}: {is} blocks free, {listed} listed"));
            }
            let open = [pool.host, pool.clean].iter().filter(|open| open.block != NONE).count();
            if count(BlockState::Open) != open {
                let is = count(BlockState::Open);
                return Err(format!("pool {number}: {is} blocks open, {open} being filled"));
            }
            if count(BlockState::Cleaning) != usize::from(pool.victim.is_some()) {
                return Err(format!("pool {number}: blocks in cleaning without a victim"));
            }
            if count(BlockState::Closed) != pool.candidate_count() {
                let (is, listed) = (count(BlockState::Closed), pool.candidate_count());
                return Err(format!("pool {number}: {is} blocks closed, {listed} candidates"));
            }
            let live: u64 = live_slots[blocks].iter().map(|&slots| u64::from(slots)).sum();
            if live != pool.live_slots {
                return Err(format!(
                    "pool {number}: {live} slots live, {} counted",
                    pool.live_slots
                ));
            }
        }
        Ok(())
    }

    /// A number that follows from the whole state: equal for equal histories.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let c = &self.counters;
        let counters = [c.host_units, c.moved_units, c.padded_slots, c.erases, self.clock_slots];
        let tables = [&self.map, &self.live_slots, &self.erase_count];
        let table_words = tables.into_iter().flatten().map(|&word| u64::from(word));
        counters.into_iter().chain(table_words).fold(0x9e37_79b9_7f4a_7c15, |digest, word| {
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31)
        })
    }
}
