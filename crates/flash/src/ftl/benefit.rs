//! Cost-benefit cleaning: the block with the largest (1 - u) * age / (1 + u), u its live share.
//!
//! An estimate without a division passes over most blocks. The few that come near the best one so
//! far are computed exactly, so that the choice is that of the formula for every block.

/// An estimate differs from the exact benefit by four roundings at most, 2.4e-7 of it.
const NEAR: f32 = 0.999_999;

#[derive(Clone, Debug)]
pub(super) struct Benefit {
    slots_per_block: f32,
    /// (1 - u) / (1 + u) by live slots.
    factor: Vec<f32>,
}

impl Benefit {
    pub(super) fn new(slots_per_block: u32) -> Self {
        let slots = slots_per_block as f32;
        let factor = |live: u32| (1.0 - live as f32 / slots) / (1.0 + live as f32 / slots);
        Self { slots_per_block: slots, factor: (0..=slots_per_block).map(factor).collect() }
    }

    fn exact(&self, live_slots: u32, age: f32) -> f32 {
        let used = live_slots as f32 / self.slots_per_block;
        (1.0 - used) * age / (1.0 + used)
    }

    /// The first of `blocks` with the largest benefit. Live slots, and the number of slots that
    /// were programmed when a block was closed, are by block; `now` were programmed by now.
    pub(super) fn best(
        &self,
        blocks: &[u32],
        live_slots: &[u32],
        closed_at: &[u64],
        now: u64,
    ) -> u32 {
        let (mut best, mut most, mut near) = (blocks[0], f32::MIN, f32::MIN);
        for &block in blocks {
            let live = live_slots[block as usize];
            // A signed number becomes a float in one instruction; no age has 63 bits.
            let age = (now - closed_at[block as usize] + 1) as i64 as f32;
            if self.factor[live as usize] * age < near {
                continue;
            }
            let benefit = self.exact(live, age);
            if benefit > most {
                (best, most, near) = (block, benefit, benefit * NEAR);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
