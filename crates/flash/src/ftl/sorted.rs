//! Closed blocks in order of live slots: greedy cleaning finds its victim in constant time.
//!
//! A ring holds the blocks sorted by key; `start[v]` is where keys of `v` or more begin. Lowering a
//! key by one swaps the block with the first of its bucket and moves one boundary: constant time,
//! three small arrays, no links. Buckets are contiguous, so a random member costs one draw.

use crate::chance::Chance;

const ABSENT: u32 = u32::MAX;

/// Blocks (local numbers) sorted by key, a number from 0 to the highest key inclusive.
#[derive(Clone, Debug)]
pub(super) struct SortedBlocks {
    ring: Vec<u32>,
    mask: u32,
    /// Positions grow for ever and are masked; `rebase` keeps them far from wrapping.
    head: u32,
    tail: u32,
    position: Vec<u32>,
    /// A boundary below `head` stands for `head`: removals do not rewrite the lower ones.
    start: Vec<u32>,
}

impl SortedBlocks {
    pub(super) fn new(blocks: u32, highest_key: u32) -> Self {
        let ring_len = blocks.max(1).next_power_of_two();
        Self {
            ring: vec![ABSENT; ring_len as usize],
            mask: ring_len - 1,
            head: 0,
            tail: 0,
            position: vec![ABSENT; blocks as usize],
            start: vec![0; highest_key as usize + 1],
        }
    }

    pub(super) fn contains(&self, block: u32) -> bool {
        self.position[block as usize] != ABSENT
    }

    /// The block with the lowest key that the ring meets first.
    pub(super) fn first(&self) -> Option<u32> {
        (self.head != self.tail).then(|| self.ring[(self.head & self.mask) as usize])
    }

    fn begin(&self, key: u32) -> u32 {
        match self.start.get(key as usize) {
            Some(&start) => start.max(self.head),
            None => self.tail,
        }
    }

    fn put(&mut self, position: u32, block: u32) {
        self.ring[(position & self.mask) as usize] = block;
        self.position[block as usize] = position;
    }

    pub(super) fn insert(&mut self, block: u32, key: u32) {
        debug_assert!(!self.contains(block));
        if self.tail > u32::MAX / 2 {
            self.rebase();
        }
        let mut hole = self.tail;
        self.tail += 1;
        for bucket in (key as usize + 1..self.start.len()).rev() {
            let first = self.start[bucket].max(self.head);
            if first != hole {
                let moved = self.ring[(first & self.mask) as usize];
                self.put(hole, moved);
            }
            hole = first;
            self.start[bucket] = first + 1;
        }
        self.put(hole, block);
    }

    /// Lowers the key of a member from `key` (above 0) by one.
    #[inline]
    pub(super) fn lower(&mut self, block: u32, key: u32) {
        let first = self.start[key as usize].max(self.head);
        let here = self.position[block as usize];
        let other = self.ring[(first & self.mask) as usize];
        self.put(here, other);
        self.put(first, block);
        self.start[key as usize] = first + 1;
    }

    /// Takes out a random member of the lowest bucket, whose key is `key`.
    pub(super) fn take_lowest(&mut self, key: u32, chance: &mut Chance) -> u32 {
        let ties = self.begin(key + 1) - self.head;
        let chosen_at = self.head + chance.below(ties);
        let chosen = self.ring[(chosen_at & self.mask) as usize];
        let first = self.ring[(self.head & self.mask) as usize];
        self.put(chosen_at, first);
        self.position[chosen as usize] = ABSENT;
        self.head += 1;
        chosen
    }

    /// Takes out a member whose key is `key`.
    pub(super) fn take(&mut self, block: u32, key: u32) {
        for key in (0..=key).rev() {
            self.lower(block, key);
        }
        // Below every key now, so it stands first.
        debug_assert_eq!(self.position[block as usize], self.head);
        self.position[block as usize] = ABSENT;
        self.head += 1;
    }

    /// Moves all positions down by whole turns of the ring.
    fn rebase(&mut self) {
        let turns = self.head & !self.mask;
        self.head -= turns;
        self.tail -= turns;
        for start in &mut self.start {
            *start = start.saturating_sub(turns);
        }
        for position in &mut self.position {
            if *position != ABSENT {
                *position -= turns;
            }
        }
    }
}

#[cfg(test)]
mod tests;
