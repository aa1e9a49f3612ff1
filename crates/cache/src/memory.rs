//! The cache: blocks by address and birth, under one policy.

use forebay_device::{BlockSlab, SlabBlock};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, BlockAddr, FixedMap};

use crate::policy::{Policy, Replacement};

/// What a block of the main store is called for good: its address, and the group in which its
/// segment was last opened. Both together are never written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// Its address.
    pub addr: BlockAddr,
    /// The birth of its segment.
    pub birth: u64,
}

/// Why a block is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A client asked for it.
    Read,
    /// A client may ask for it soon. The first time that it does tells the policy nothing.
    Ahead,
    /// A client wrote it.
    Written,
}

/// Counters since the cache was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Blocks that were found.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Blocks kept again a short time after they had left: a larger cache would have had them.
    pub ghost_hits: u64,
    /// Blocks that were put into the cache.
    pub kept: u64,
    /// Blocks that left because the cache was full.
    pub evictions: u64,
    /// Blocks that were read ahead.
    pub read_ahead: u64,
    /// Blocks that were read ahead and left before a client asked for them.
    pub read_ahead_unused: u64,
}

struct Entry {
    key: BlockKey,
    data: Option<SlabBlock>,
    is_unused_ahead: bool,
}

/// Bytes of an entry beside its block: what is here, in the index, and in the policy's queues.
const ENTRY_BYTES: u64 = size_of::<Entry>() as u64 + 17 + 10;

/// The read cache of a pool, in memory.
pub struct MemoryCache {
    policy: Policy,
    limit_bytes: u64,
    index: FixedMap<BlockAddr, u32>,
    entries: Vec<Entry>,
    unused: Vec<u32>,
    replacement: Box<dyn Replacement>,
    slab: BlockSlab,
    left: Vec<u32>,
    /// Blocks that left since they were last taken, if the cache's owner wants them.
    evicted: Option<Vec<BlockKey>>,
    counts: CacheCounts,
}

fn capacity_of(limit_bytes: u64) -> u64 {
    limit_bytes / BLOCK_BYTES
}

impl MemoryCache {
    /// An empty cache of `limit_bytes`. One of less than a block keeps nothing.
    #[must_use]
    pub fn new(policy: Policy, limit_bytes: u64) -> Self {
        Self {
            policy,
            limit_bytes,
            index: FixedMap::default(),
            entries: Vec::new(),
            unused: Vec::new(),
            replacement: policy.replacement(capacity_of(limit_bytes)),
            slab: BlockSlab::default(),
            left: Vec::new(),
            evicted: None,
            counts: CacheCounts::default(),
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Most bytes of blocks.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes of the blocks that are kept.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.replacement.resident() * BLOCK_BYTES
    }

    /// Bytes of everything that the cache takes, the blocks included.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.used_bytes() + self.entries.len() as u64 * ENTRY_BYTES
    }

    /// Counters.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Whether nothing is ever kept.
    #[must_use]
    pub fn is_off(&self) -> bool {
        capacity_of(self.limit_bytes) == 0
    }

    fn entry_of(&self, key: BlockKey) -> Option<u32> {
        let entry = *self.index.get(&key.addr)?;
        (self.entries[entry as usize].key == key).then_some(entry)
    }

    /// Whether the block is kept. Not a use of it.
    #[must_use]
    pub fn contains(&self, key: BlockKey) -> bool {
        self.entry_of(key).is_some_and(|entry| self.entries[entry as usize].data.is_some())
    }

    /// Copies a block of 4096 bytes to `out` and returns true, when it is kept.
    pub fn get(&mut self, key: BlockKey, out: &mut [u8]) -> bool {
        let found = self.entry_of(key);
        let Some(data) = found.and_then(|entry| self.entries[entry as usize].data.as_ref()) else {
            self.counts.misses += 1;
            return false;
        };
        out.copy_from_slice(self.slab.bytes(data));
        self.note_hit(found.expect("it has data"));
        true
    }

    /// As [`MemoryCache::get`] for each of `blocks`, a key and the place in `out`. Returns which of
    /// them are kept. Each step is done for all of them before the next one, so that the processor
    /// waits for the index, the entries and the blocks once and not a block at a time.
    pub fn get_all(&mut self, blocks: &[(BlockKey, usize)], out: &mut [u8]) -> Vec<bool> {
        let mut found: Vec<_> =
            blocks.iter().map(|(key, _)| self.index.get(&key.addr).copied()).collect();
        for (found, (key, _)) in found.iter_mut().zip(blocks) {
            *found = found.filter(|entry| {
                let entry = &self.entries[*entry as usize];
                entry.key == *key && entry.data.is_some()
            });
        }
        for entry in found.iter().flatten() {
            self.note_hit(*entry);
        }
        for (found, (_, at)) in found.iter().zip(blocks) {
            let data = found.and_then(|entry| self.entries[entry as usize].data.as_ref());
            match data {
                Some(data) => out[*at..*at + BLOCK_LEN].copy_from_slice(self.slab.bytes(data)),
                None => self.counts.misses += 1,
            }
        }
        found.into_iter().map(|entry| entry.is_some()).collect()
    }

    /// A client has found the block of an entry.
    fn note_hit(&mut self, entry: u32) {
        self.counts.hits += 1;
        if !std::mem::take(&mut self.entries[entry as usize].is_unused_ahead) {
            self.replacement.access(entry, &mut self.left);
        }
    }

    /// Keeps a block of 4096 bytes.
    pub fn keep(&mut self, key: BlockKey, data: &[u8], why: Kept) {
        if self.is_off() || self.contains(key) {
            return;
        }
        let Some(block) = self.slab.take() else { return };
        self.slab.bytes_mut(&block).copy_from_slice(data);
        let entry = match self.entry_of(key) {
            Some(ghost) => ghost,
            None => self.new_entry(key),
        };
        self.counts.kept += 1;
        self.counts.ghost_hits += u64::from(self.replacement.is_ghost(entry));
        self.counts.read_ahead += u64::from(why == Kept::Ahead);
        self.replacement.access(entry, &mut self.left);
        self.let_go();
        let entry = &mut self.entries[entry as usize];
        entry.data = Some(block);
        entry.is_unused_ahead = why == Kept::Ahead;
    }

    /// A block has a new place, with the same content.
    pub fn rename(&mut self, old: BlockKey, new: BlockKey) {
        let Some(entry) = self.entry_of(old) else { return };
        self.forget_addr(new.addr);
        self.index.remove(&old.addr);
        self.index.insert(new.addr, entry);
        self.entries[entry as usize].key = new;
    }

    /// Drops the `blocks` blocks from `addr` on, which are no longer part of a volume.
    pub fn drop_run(&mut self, addr: BlockAddr, blocks: u32) {
        if self.index.is_empty() {
            return;
        }
        for block in 0..blocks {
            self.forget_addr(addr.plus(block));
        }
    }

    /// Changes the size. What no longer fits leaves.
    pub fn set_limit(&mut self, limit_bytes: u64) {
        if limit_bytes == self.limit_bytes {
            return;
        }
        let is_smaller = limit_bytes < self.limit_bytes;
        self.limit_bytes = limit_bytes;
        if self.is_off() {
            let (counts, evicted) = (self.counts, self.evicted.take());
            *self = Self { counts, evicted, ..Self::new(self.policy, limit_bytes) };
            return;
        }
        self.replacement.set_capacity(capacity_of(limit_bytes), &mut self.left);
        self.let_go();
        if is_smaller {
            self.slab.shrink();
        }
    }

    /// From now on, or no longer, notes which blocks leave because the cache is full.
    pub fn note_evictions(&mut self, wanted: bool) {
        self.evicted = wanted.then(Vec::new);
    }

    /// Calls `each` with the blocks that have left since the last call. Those that were read ahead
    /// for nothing are left out.
    pub fn take_evicted(&mut self, each: impl FnMut(BlockKey)) {
        self.evicted.iter_mut().flat_map(|evicted| evicted.drain(..)).for_each(each);
    }

    fn forget_addr(&mut self, addr: BlockAddr) {
        if let Some(entry) = self.index.remove(&addr) {
            self.replacement.remove(entry);
            if let Some(data) = self.entries[entry as usize].data.take() {
                self.slab.give_back(data);
            }
            self.unused.push(entry);
        }
    }

    fn new_entry(&mut self, key: BlockKey) -> u32 {
        // What was here before an earlier birth.
        self.forget_addr(key.addr);
        let new = Entry { key, data: None, is_unused_ahead: false };
        let entry = match self.unused.pop() {
            Some(entry) => {
                self.entries[entry as usize] = new;
                entry
            }
            None => {
                self.entries.push(new);
                // Grown with the entries' own array, which doubles.
                self.replacement.reserve(self.entries.capacity());
                self.entries.len() as u32 - 1
            }
        };
        self.index.insert(key.addr, entry);
        entry
    }

    /// Frees the blocks of entries that left the cache, and the entries that are no ghosts either.
    fn let_go(&mut self) {
        while let Some(entry) = self.left.pop() {
            if self.replacement.is_resident(entry) {
                continue;
            }
            let slot = &mut self.entries[entry as usize];
            if let Some(data) = slot.data.take() {
                self.slab.give_back(data);
                self.counts.evictions += 1;
                self.counts.read_ahead_unused += u64::from(slot.is_unused_ahead);
                if let Some(evicted) = self.evicted.as_mut().filter(|_| !slot.is_unused_ahead) {
                    evicted.push(slot.key);
                }
            }
            if !self.replacement.is_ghost(entry) {
                let addr = slot.key.addr;
                // An entry may have left twice: the cache, and then the ghosts.
                if self.index.get(&addr) == Some(&entry) {
                    self.index.remove(&addr);
                    self.unused.push(entry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
