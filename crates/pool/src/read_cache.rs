//! The read cache of a pool: what it may take, and what goes into it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_cache::{BlockKey, Kept, MemoryCache, Policy};
use forebay_rt as rt;
use forebay_units::{BLOCK_LEN, BlockAddr, Nanos, VolumeId};

use crate::Pool;
use crate::opener::Memory;
use crate::settings::Settings;
use crate::status::CacheStats;
use crate::volume::VolumeState;

/// Between two looks at the free memory.
const LOOK_EVERY: Nanos = Nanos::from_secs(1);
/// The cache leaves an eighth of the memory free, within these bounds. The lower one is above what
/// makes a pool refuse writes.
const LEAST_FREE_BYTES: u64 = 128 << 20;
const MOST_FREE_BYTES: u64 = 1 << 30;
/// Size of the cache where the size of the memory is not known, and the least by itself.
const DEFAULT_BYTES: u64 = 64 << 20;

/// Blocks in memory, and the size that is set for them.
pub(crate) struct ReadCache {
    memory: RefCell<MemoryCache>,
    size_bytes: Cell<u64>,
}

/// The size that the cache may have now. It grows by half of what is free at most until the next
/// look.
fn fitting_bytes(size_bytes: u64, used_bytes: u64, free_bytes: u64, memory_bytes: u64) -> u64 {
    let reserve_bytes = (memory_bytes / 8).clamp(LEAST_FREE_BYTES, MOST_FREE_BYTES);
    let fitting = if free_bytes > reserve_bytes {
        used_bytes + (free_bytes - reserve_bytes) / 2
    } else {
        used_bytes.saturating_sub(reserve_bytes - free_bytes)
    };
    fitting.min(size_bytes)
}

impl ReadCache {
    /// A cache that keeps nothing yet; see [`Pool::apply_cache_size`].
    pub fn new(policy: Policy) -> Self {
        Self { memory: MemoryCache::new(policy, 0).into(), size_bytes: Cell::new(0) }
    }

    /// Copies a block to `out` and returns true, when it is kept.
    pub fn get(&self, key: BlockKey, out: &mut [u8]) -> bool {
        self.memory.borrow_mut().get(key, out)
    }

    /// Copies those of `blocks`, a key and the place in `out`, that are kept. Returns which are.
    pub fn get_all(&self, blocks: &[(BlockKey, usize)], out: &mut [u8]) -> Vec<bool> {
        self.memory.borrow_mut().get_all(blocks, out)
    }

    /// Whether a block is kept.
    pub fn contains(&self, key: BlockKey) -> bool {
        self.memory.borrow().contains(key)
    }

    /// Keeps the blocks of a verified read that begins at `first`.
    pub fn keep(&self, first: BlockKey, data: &[u8], why: Kept) {
        let mut memory = self.memory.borrow_mut();
        for (index, block) in (0..).zip(data.chunks_exact(BLOCK_LEN)) {
            let key = BlockKey { addr: first.addr.plus(index), ..first };
            memory.keep(key, block, why);
        }
    }

    /// Notes, or no longer, which blocks leave.
    pub fn note_evictions(&self, wanted: bool) {
        self.memory.borrow_mut().note_evictions(wanted);
    }

    /// Calls `each` with the blocks that have left.
    pub fn take_evicted(&self, each: impl FnMut(BlockKey)) {
        self.memory.borrow_mut().take_evicted(each);
    }

    /// A block was moved.
    pub fn rename(&self, old: BlockKey, new: BlockKey) {
        self.memory.borrow_mut().rename(old, new);
    }

    /// Blocks of the main store are no longer part of a volume.
    pub fn drop_run(&self, addr: BlockAddr, blocks: u32) {
        self.memory.borrow_mut().drop_run(addr, blocks);
    }

    /// Whether nothing is kept.
    pub fn is_off(&self) -> bool {
        self.memory.borrow().is_off()
    }

    /// Most bytes of blocks.
    pub fn limit_bytes(&self) -> u64 {
        self.memory.borrow().limit_bytes()
    }
}

impl Pool {
    /// What a block at `addr` is called in the cache.
    pub(crate) fn block_key(&self, addr: BlockAddr) -> BlockKey {
        BlockKey { addr, birth: self.store.table.get(addr.segment()).birth }
    }

    /// A block was moved, with the same content.
    pub(crate) fn rename_cached(&self, old: BlockAddr, new: BlockAddr) {
        let (old, new) = (self.block_key(old), self.block_key(new));
        self.cache.rename(old, new);
        self.cache_devices.rename(old, new);
    }

    /// Whether reads of this volume go through the cache.
    pub(crate) fn caches(&self, volume: &VolumeState) -> bool {
        volume.is_cached.get() && !self.cache.is_off()
    }

    /// Whether what is written to this volume goes to the cache.
    pub(crate) fn caches_writes(&self, volume: VolumeId) -> bool {
        let volumes = self.volumes.borrow();
        let volume = volumes.get(&volume);
        volume.is_some_and(|volume| volume.caches_writes.get() && self.caches(volume))
    }

    /// Takes over the size that is set, as far as there is memory for it.
    pub(crate) fn apply_cache_size(&self) {
        let Settings { cache_size, .. } = self.settings.get();
        let quarter = self.opener.memory_bytes().map_or(0, |bytes| bytes / 4);
        self.cache.size_bytes.set(cache_size.unwrap_or(quarter.max(DEFAULT_BYTES)));
        self.fit_cache();
    }

    /// Makes the cache as large as it is set to be, or as the free memory permits.
    fn fit_cache(&self) {
        let fitting = self.fitting_cache_bytes(&Memory {
            free_bytes: self.opener.free_memory_bytes(),
            all_bytes: self.opener.memory_bytes(),
        });
        self.cache.memory.borrow_mut().set_limit(fitting);
    }

    fn fitting_cache_bytes(&self, memory: &Memory) -> u64 {
        let size_bytes = self.cache.size_bytes.get();
        let used_bytes = self.cache.memory.borrow().used_bytes();
        match (memory.free_bytes, memory.all_bytes) {
            (Some(free), Some(all)) => fitting_bytes(size_bytes, used_bytes, free, all),
            _ => size_bytes,
        }
    }

    /// As [`Pool::fit_cache`], and gives back in steps what does not fit, so that no client waits
    /// for all of it.
    async fn fit_cache_in_steps(&self, memory: &Memory) {
        const STEP_BYTES: u64 = 4 << 20;
        let fits_memory = self.fitting_cache_bytes(memory);
        loop {
            // A smaller size may have been set since the last step.
            let fitting = fits_memory.min(self.cache.size_bytes.get());
            let used = self.cache.memory.borrow().used_bytes();
            let limit_bytes = used.saturating_sub(STEP_BYTES).max(fitting);
            self.cache.memory.borrow_mut().set_limit(limit_bytes);
            if limit_bytes == fitting {
                return;
            }
            rt::yield_now().await;
        }
    }

    /// Fits the cache into the free memory again and again.
    pub(crate) async fn cache_size_loop(self: Rc<Self>) {
        let over = || self.is_stopped() || self.lifecycle.closing.get();
        let mut is_known = self.opener.memory_bytes().is_some();
        while is_known && !over() {
            let ended = Box::pin(self.sync.done.until(over));
            rt::select(Box::pin(rt::sleep(LOOK_EVERY)), ended).await;
            let memory = self.opener.count_memory().await;
            is_known = memory.all_bytes.is_some();
            if self.cache.size_bytes.get() > 0 && !over() {
                self.fit_cache_in_steps(&memory).await;
            }
        }
    }

    pub(crate) fn cache_stats(&self) -> CacheStats {
        let memory = self.cache.memory.borrow();
        let counts = memory.counts();
        CacheStats {
            policy: memory.policy().name().to_owned(),
            size_bytes: self.cache.size_bytes.get(),
            limit_bytes: memory.limit_bytes(),
            used_bytes: memory.used_bytes(),
            memory_bytes: memory.memory_bytes(),
            hits: counts.hits,
            misses: counts.misses,
            ghost_hits: counts.ghost_hits,
            kept: counts.kept,
            evictions: counts.evictions,
            read_ahead: counts.read_ahead,
            read_ahead_unused: counts.read_ahead_unused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_cache_grows_by_half_of_what_is_free() {
        assert_eq!(fitting_bytes(4 * GIB, 0, 3 * GIB, 8 * GIB), GIB);
        assert_eq!(fitting_bytes(4 * GIB, GIB, 2 * GIB, 8 * GIB), GIB + GIB / 2);
        assert_eq!(fitting_bytes(GIB, GIB, 6 * GIB, 8 * GIB), GIB, "no more than it is set to");
    }

    #[test]
    fn a_cache_gives_back_what_others_need() {
        assert_eq!(fitting_bytes(4 * GIB, 2 * GIB, GIB / 4, 8 * GIB), GIB + GIB / 4);
        assert_eq!(fitting_bytes(4 * GIB, GIB / 8, 0, 8 * GIB), 0);
        // Machines of all sizes keep what a pool needs to take writes.
        assert_eq!(fitting_bytes(GIB, 64 << 20, 128 << 20, GIB / 2), 64 << 20);
    }
}
