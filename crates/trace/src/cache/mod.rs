//! Cache simulation: the misses of a trace, by policy and size. A request touches every block that
//! it overlaps, in ascending order; each touch is one access, and a miss admits the block.
//!
//! The first pass numbers the blocks, which gives the footprint; the second runs every policy at
//! every size side by side. Memory grows with the footprint, never with the length of the trace.

use forebay_cache::{Policy, Replacement};
use forebay_units::FixedMap;
use serde::Serialize;

use crate::event::{Event, Op, Stage};

/// A request that overlaps more blocks than this is no access of a cache, and is left out.
const MAX_BLOCKS_A_REQUEST: u64 = 1 << 20;

/// The misses of one policy at one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MissCount {
    /// The policy.
    pub policy: Policy,
    /// The cache's size.
    pub capacity_blocks: u64,
    /// Accesses that missed.
    pub misses: u64,
}

/// A trace against caches.
pub struct CacheStudy {
    block_bytes: u64,
    stage: Stage,
    reads_only: bool,
    numbers: FixedMap<(u32, u64), u32>,
    accesses: u64,
    left_out: u64,
    caches: Vec<Cache>,
    /// What an access drove out, which does not matter here.
    left: Vec<u32>,
}

struct Cache {
    policy: Policy,
    capacity_blocks: u64,
    misses: u64,
    replacement: Box<dyn Replacement>,
}

impl CacheStudy {
    /// A study of blocks of `block_bytes` (at least 1), of requests at `stage`. `reads_only`:
    /// writes neither count nor admit.
    #[must_use]
    pub fn new(block_bytes: u64, stage: Stage, reads_only: bool) -> Self {
        assert!(block_bytes > 0, "a block has bytes");
        Self {
            block_bytes,
            stage,
            reads_only,
            numbers: FixedMap::default(),
            accesses: 0,
            left_out: 0,
            caches: Vec::new(),
            left: Vec::new(),
        }
    }

    /// The blocks that a request touches.
    fn blocks(&self, event: &Event) -> Option<std::ops::RangeInclusive<u64>> {
        let is_at_stage = event.stage == self.stage || event.stage == Stage::Request;
        let is_wanted = event.op == Op::Read || (event.op == Op::Write && !self.reads_only);
        if !is_at_stage || !is_wanted || event.len_bytes == 0 {
            return None;
        }
        let first = event.offset_bytes / self.block_bytes;
        Some(first..=(event.end_bytes() - 1) / self.block_bytes)
    }

    fn is_too_long(blocks: &std::ops::RangeInclusive<u64>) -> bool {
        blocks.end() - blocks.start() >= MAX_BLOCKS_A_REQUEST
    }

    /// First pass: numbers the blocks of `event`.
    pub fn number_blocks(&mut self, event: &Event) {
        let Some(blocks) = self.blocks(event) else { return };
        if Self::is_too_long(&blocks) {
            return;
        }
        for block in blocks {
            let next = self.numbers.len() as u32;
            self.numbers.entry((event.device.0, block)).or_insert(next);
        }
    }

    /// Distinct blocks of the first pass.
    #[must_use]
    pub fn footprint_blocks(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// Adds a cache of `capacity_blocks`, at least one.
    pub fn add_cache(&mut self, policy: Policy, capacity_blocks: u64) {
        let capacity_blocks = capacity_blocks.max(1);
        let mut replacement = policy.replacement(capacity_blocks);
        replacement.reserve(self.numbers.len());
        self.caches.push(Cache { policy, capacity_blocks, misses: 0, replacement });
    }

    /// Second pass: the accesses of `event`, in the same order as in the first.
    pub fn access(&mut self, event: &Event) {
        let Some(blocks) = self.blocks(event) else { return };
        if Self::is_too_long(&blocks) {
            self.left_out += 1;
            return;
        }
        for block in blocks {
            // A source that changed between the passes has blocks that the first did not see.
            let Some(number) = self.numbers.get(&(event.device.0, block)) else { continue };
            self.accesses += 1;
            for cache in &mut self.caches {
                cache.misses += u64::from(!cache.replacement.access(*number, &mut self.left));
                self.left.clear();
            }
        }
    }

    /// Accesses of the second pass.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Requests that were too long to be an access.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Each cache's misses, in the order of their addition.
    #[must_use]
    pub fn misses(&self) -> Vec<MissCount> {
        let count = |cache: &Cache| MissCount {
            policy: cache.policy,
            capacity_blocks: cache.capacity_blocks,
            misses: cache.misses,
        };
        self.caches.iter().map(count).collect()
    }
}

#[cfg(test)]
mod tests;
