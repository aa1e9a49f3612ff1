//! The index: virtual block numbers by fingerprint, in bounded memory.
//!
//! Fingerprints are spread over shards, each an open-addressed table that grows by itself, so that
//! no step moves more than one shard. When growing would take more memory than allowed, the index
//! halves the share of fingerprints that it keeps.

use crate::Fingerprint;

/// Bytes of a slot: a fingerprint and a virtual block number.
pub const SLOT_BYTES: usize = Fingerprint::BYTES + 5;
const SHARDS: usize = 1024;
/// Slots of a shard's first table.
const MIN_SLOTS: usize = 16;
/// A slot with this number is free.
const FREE: u64 = (1 << 40) - 1;

/// Virtual block numbers by fingerprint.
pub struct Index {
    shards: Vec<Shard>,
    limit_bytes: u64,
    slots: u64,
    /// One in `2^sample_bits` fingerprints is kept.
    sample_bits: u32,
}

#[derive(Default)]
struct Shard {
    slots: Vec<[u8; SLOT_BYTES]>,
    used: usize,
}

fn encode(fingerprint: &Fingerprint, block: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..Fingerprint::BYTES].copy_from_slice(&fingerprint.0);
    slot[Fingerprint::BYTES..].copy_from_slice(&block.to_le_bytes()[..5]);
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(Fingerprint, u64)> {
    let (fingerprint, block) = slot.split_at(Fingerprint::BYTES);
    let mut wide = [0; 8];
    wide[..5].copy_from_slice(block);
    let block = u64::from_le_bytes(wide);
    let fingerprint = Fingerprint(fingerprint.try_into().expect("its length is fixed"));
    (block != FREE).then_some((fingerprint, block))
}

impl Shard {
    /// Where a fingerprint is, or the free slot where it belongs. The table has a free slot.
    fn find(&self, fingerprint: &Fingerprint) -> usize {
        let mut at = (fingerprint.place() as usize / SHARDS) % self.slots.len();
        while let Some((other, _)) = decode(&self.slots[at]) {
            if other == *fingerprint {
                break;
            }
            at = (at + 1) % self.slots.len();
        }
        at
    }

    fn get(&self, fingerprint: &Fingerprint) -> Option<u64> {
        if self.slots.is_empty() {
            return None;
        }
        decode(&self.slots[self.find(fingerprint)]).map(|(_, block)| block)
    }

    /// Puts what `keep` accepts into a new table of `slots` slots.
    fn rebuild(&mut self, slots: usize, keep: impl Fn(&Fingerprint, u64) -> bool) {
        let free = [u8::MAX; SLOT_BYTES];
        let old = std::mem::replace(&mut self.slots, vec![free; slots]);
        self.used = 0;
        for (fingerprint, block) in old.iter().filter_map(decode) {
            if keep(&fingerprint, block) {
                let at = self.find(&fingerprint);
                self.slots[at] = encode(&fingerprint, block);
                self.used += 1;
            }
        }
    }

    fn is_full(&self) -> bool {
        (self.used + 1) * 5 > self.slots.len() * 4
    }
}

impl Index {
    /// An empty index that takes at most about `limit_bytes` of memory.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, limit_bytes, slots: 0, sample_bits: 0 }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.slots * SLOT_BYTES as u64 + (SHARDS * size_of::<Shard>()) as u64
    }

    /// Fingerprints in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.used as u64).sum()
    }

    /// Whether it holds no fingerprint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One in so many fingerprints is kept: 1 until the memory does not suffice.
    #[must_use]
    pub fn one_in(&self) -> u64 {
        1 << self.sample_bits
    }

    /// Whether the index would keep this fingerprint.
    #[must_use]
    pub fn keeps(&self, fingerprint: &Fingerprint) -> bool {
        fingerprint.sample() & (self.one_in() - 1) == 0
    }

    /// Changes how much memory it may take. What is too much goes as fingerprints come.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// The virtual block of a fingerprint, as far as the index knows.
    #[must_use]
    pub fn get(&self, fingerprint: &Fingerprint) -> Option<u64> {
        self.shards[fingerprint.place() as usize % SHARDS].get(fingerprint)
    }

    /// Adds a fingerprint, or changes its block. Returns whether the index keeps it. `is_alive`
    /// says which blocks are still there: others make room.
    pub fn insert(
        &mut self,
        fingerprint: &Fingerprint,
        block: u64,
        is_alive: impl Fn(u64) -> bool,
    ) -> bool {
        assert!(block < FREE, "virtual block {block} has more than 40 bits");
        if !self.keeps(fingerprint) {
            return false;
        }
        let shard = fingerprint.place() as usize % SHARDS;
        if self.shards[shard].is_full() {
            self.make_room(shard, is_alive);
        }
        if !self.keeps(fingerprint) {
            return false;
        }
        let shard = &mut self.shards[shard];
        let at = shard.find(fingerprint);
        shard.used += usize::from(decode(&shard.slots[at]).is_none());
        shard.slots[at] = encode(fingerprint, block);
        true
    }

    /// Drops what is not kept any more from a shard, and gives it a larger table if it is still
    /// half full.
    fn make_room(&mut self, number: usize, is_alive: impl Fn(u64) -> bool) {
        loop {
            let mask = self.one_in() - 1;
            let shard = &mut self.shards[number];
            let slots = shard.slots.len();
            let keeps = |fingerprint: &Fingerprint, block| {
                fingerprint.sample() & mask == 0 && is_alive(block)
            };
            let kept = shard.slots.iter().filter_map(decode).filter(|(f, b)| keeps(f, *b)).count();
            let wanted = if kept * 2 < slots { slots } else { (slots * 2).max(MIN_SLOTS) };
            let more_bytes = ((wanted - slots) * SLOT_BYTES) as u64;
            if wanted == slots || slots == 0 || self.memory_bytes() + more_bytes <= self.limit_bytes
            {
                self.shards[number].rebuild(wanted, keeps);
                self.slots += (wanted - slots) as u64;
                return;
            }
            self.sample_bits += 1;
        }
    }

    /// Number of parts that [`Index::part`] takes.
    #[must_use]
    pub fn parts(&self) -> usize {
        SHARDS
    }

    /// A part of the content: what is still kept of one shard.
    pub fn part(&self, number: usize) -> impl Iterator<Item = (Fingerprint, u64)> {
        let all = self.shards.get(number).into_iter().flat_map(|shard| &shard.slots);
        all.filter_map(decode).filter(|(fingerprint, _)| self.keeps(fingerprint))
    }
}

#[cfg(test)]
mod tests;
