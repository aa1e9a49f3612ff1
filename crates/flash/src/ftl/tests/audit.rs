//! Audit of the translation layer's invariants.

use crate::ftl::pool::Candidates;
use crate::ftl::{BlockState, Ftl, NONE};

impl Ftl {
    /// Recounts everything that is kept incrementally, in one pass over the device. Panics on the
    /// first invariant that does not hold.
    pub(crate) fn audit(&self) {
        let n = self.config.slots_per_block;
        let mut live_slots = vec![0_u32; self.state.len()];
        let mut mapped = 0;
        for (unit, &slot) in self.map.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
            let block = slot / n;
            assert_eq!(self.block_of(slot), block, "the block of slot {slot}");
            assert_eq!(self.unit_at(slot), Some(unit as u32), "the unit at slot {slot}");
            live_slots[block as usize] += self.slots_of(unit as u32);
            mapped += 1;
        }
        assert_eq!(self.mapped_units, mapped, "units that are mapped");
        let marks: u32 = self.live.iter().map(|word| word.count_ones()).sum();
        assert_eq!(marks, mapped, "live marks");
        for (block, &live) in live_slots.iter().enumerate() {
            assert_eq!(self.live_slots[block], live, "live slots of block {block}");
            let state = self.state[block];
            let is_empty = matches!(state, BlockState::Free | BlockState::Bad);
            assert!(live == 0 || !is_empty, "block {block} is {state:?} with live data");
        }
        self.audit_pools(&live_slots);
    }

    fn audit_pools(&self, live_slots: &[u32]) {
        let per_pool = self.config.blocks_per_pool as usize;
        for (number, pool) in self.pools.iter().enumerate() {
            let blocks = number * per_pool..(number + 1) * per_pool;
            let count = |wanted: BlockState| {
                self.state[blocks.clone()].iter().filter(|state| **state == wanted).count()
            };
            assert_eq!(pool.free.len(), count(BlockState::Free), "free, pool {number}");
            let open = pool.parked.iter().chain([&pool.host, &pool.clean]);
            let open = open.filter(|open| open.block != NONE).count();
            assert_eq!(open, count(BlockState::Open), "being filled, pool {number}");
            let victims = usize::from(pool.victim.is_some());
            assert_eq!(victims, count(BlockState::Cleaning), "being cleaned, pool {number}");
            let candidates = match &pool.candidates {
                Candidates::Sorted(sorted) => {
                    (0..per_pool as u32).filter(|&local| sorted.contains(local)).count()
                }
                Candidates::Queued(queue) => queue.len(),
                Candidates::Listed { blocks, .. } => blocks.len(),
            };
            assert_eq!(candidates, count(BlockState::Closed), "candidates, pool {number}");
            let live: u64 = live_slots[blocks].iter().map(|&slots| u64::from(slots)).sum();
            assert_eq!(pool.live_slots, live, "live slots, pool {number}");
        }
    }
}
