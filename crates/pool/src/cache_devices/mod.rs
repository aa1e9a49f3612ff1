//! Cache devices: blocks that are read again and again, on fast devices beside the main store.
//!
//! What always holds: a cache device can cost time, and nothing else. A block that it gives is
//! checked against the pool's checksum, and read from the main store if it is wrong, late or
//! missing. No write waits for one, and no import.

mod device;
mod fill;
mod load;
mod task;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_cache::{BlockKey, Ghosts, Indexed, Kept};
use forebay_device::IoBuf;
use forebay_format::checksum::block_sum;
use forebay_format::config::CacheConfig;
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Lba};

use crate::Pool;
use crate::read_path::Fetch;
use crate::status::report::leaf;
use crate::status::{CacheDeviceStats, VdevSpace, VdevStatus};
use crate::volume::VolumeState;

pub use device::CacheFault;
pub(crate) use device::{CacheDevice, CacheState};
pub(crate) use load::read_header;

/// The cache devices of a pool.
#[derive(Default)]
pub(crate) struct CacheDevices {
    devices: RefCell<Vec<Rc<CacheDevice>>>,
    /// Blocks that have left the cache in memory: one that is read again goes to a device.
    ghosts: RefCell<Option<Ghosts>>,
    /// The device that takes the next region.
    turn: Cell<usize>,
    /// The pool is being destroyed.
    pub are_abandoned: Cell<bool>,
}

/// A part of a read that lies on a cache device: consecutive blocks there and in the main store.
pub(crate) struct CachedPart {
    device: Rc<CacheDevice>,
    position: u32,
    sums: Vec<u64>,
    pub fetch: Fetch,
}

impl CacheDevices {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.devices.borrow().is_empty()
    }

    /// The device with this id.
    pub fn get(&self, id: u32) -> Option<Rc<CacheDevice>> {
        self.devices.borrow().iter().find(|device| device.id == id).cloned()
    }

    /// Where a block is, and its checksum. An entry with another checksum than `sum` is forgotten.
    fn find(&self, key: BlockKey, sum: Option<u64>) -> Option<(Rc<CacheDevice>, u32, u64)> {
        let devices = self.devices.borrow();
        devices.iter().find_map(|device| {
            let (position, sum) = device.find(key, sum)?;
            Some((device.clone(), position, sum))
        })
    }

    /// Whether a device has the block.
    pub fn contains(&self, key: BlockKey) -> bool {
        self.find(key, None).is_some()
    }

    /// A block has a new place in the main store.
    pub fn rename(&self, old: BlockKey, new: BlockKey) {
        for device in self.devices.borrow().iter() {
            device.rename(old, new);
        }
    }

    /// A block has left the cache in memory.
    pub fn remember(&self, key: BlockKey) {
        if let Some(ghosts) = &mut *self.ghosts.borrow_mut() {
            ghosts.remember(key);
        }
    }

    /// Remembers as many blocks as the devices can hold.
    fn resize_ghosts(&self) {
        let capacity = |device: &Rc<CacheDevice>| device.shape().capacity_blocks() as usize;
        let blocks: usize = self.devices.borrow().iter().map(capacity).sum();
        *self.ghosts.borrow_mut() = (blocks > 0).then(|| Ghosts::new(blocks));
    }

    /// Takes a verified block, when a device has room and is allowed to write.
    fn admit(&self, block: Indexed, data: &[u8]) {
        let devices = self.devices.borrow();
        for _ in 0..devices.len() {
            let device = &devices[self.turn.get() % devices.len()];
            match device.admit(block, data) {
                fill::Admitted::Yes => return,
                // The next region goes to the next device.
                fill::Admitted::LastOfRegion => return self.turn.set(self.turn.get() + 1),
                fill::Admitted::No => self.turn.set(self.turn.get() + 1),
            }
        }
    }
}

impl CachedPart {
    /// Whether `block` lies next, in the main store and at `position` of `device`.
    fn is_followed_by(&self, device: &Rc<CacheDevice>, position: u32, block: &Fetch) -> bool {
        Rc::ptr_eq(&self.device, device)
            && self.position + self.sums.len() as u32 == position
            && device.are_adjacent(self.position, position)
            && self.fetch.is_followed_by(block)
    }

    fn push(&mut self, sum: u64, block: Fetch) {
        self.sums.push(sum);
        self.fetch.push(block);
    }
}

impl Pool {
    /// Takes out of `fetches` what lies on cache devices.
    pub(crate) fn cached_parts(
        &self,
        volume: &VolumeState,
        fetches: Vec<Fetch>,
    ) -> (Vec<CachedPart>, Vec<Fetch>) {
        if self.cache_devices.is_empty() || !self.caches(volume) {
            return (Vec::new(), fetches);
        }
        let mut parts: Vec<CachedPart> = Vec::new();
        let mut others: Vec<Fetch> = Vec::new();
        for fetch in fetches {
            for index in 0..fetch.wanted.blocks {
                let block = fetch.block(index);
                let found = self.cache_devices.find(block.key, block.wanted.sums[0]);
                let Some((device, position, sum)) = found else {
                    match others.last_mut().filter(|other| other.is_followed_by(&block)) {
                        Some(other) => other.push(block),
                        None => others.push(block),
                    }
                    continue;
                };
                let last = parts.last_mut();
                match last.filter(|part| part.is_followed_by(&device, position, &block)) {
                    Some(part) => part.push(sum, block),
                    None => {
                        let sums = vec![sum];
                        parts.push(CachedPart { device, position, sums, fetch: block });
                    }
                }
            }
        }
        (parts, others)
    }

    /// Reads parts from cache devices into `buf`. Returns what must be read from the main store
    /// after all.
    pub(crate) async fn read_cached(&self, parts: Vec<CachedPart>, buf: &mut [u8]) -> Vec<Fetch> {
        let reads = parts.iter().map(|part| self.read_part_cached(part));
        let got = rt::join_all(reads).await;
        let mut missed = Vec::new();
        for (got, part) in got.into_iter().zip(parts) {
            match got {
                Some(data) => {
                    let at_bytes = part.fetch.at_bytes;
                    buf[at_bytes..at_bytes + data.len()].copy_from_slice(&data);
                    self.keep_in_memory(part.fetch.key, &data, Kept::Read);
                }
                None => missed.push(part.fetch),
            }
        }
        missed
    }

    async fn read_part_cached(&self, part: &CachedPart) -> Option<IoBuf> {
        let CachedPart { device, position, sums, fetch } = part;
        let data = match device.read(*position, sums.len() as u32).await {
            Ok(data) => data?,
            Err(fault) => {
                self.cache_device_failed(device, fault);
                return None;
            }
        };
        let mut is_right = true;
        for ((block, sum), index) in data.chunks_exact(BLOCK_LEN).zip(sums).zip(0..) {
            let lba = Lba(fetch.wanted.lba.0 + u64::from(index));
            if !self.store.reader.fits((fetch.wanted.volume, lba), block, *sum) {
                is_right = false;
                if let Err(fault) = device.note_wrong(*position + index, *sum) {
                    self.cache_device_failed(device, fault);
                }
            }
        }
        if is_right {
            device.count_hits(sums.len() as u64);
        }
        is_right.then_some(data)
    }

    /// A client has read these verified blocks from the main store. Those that it had read a short
    /// time ago go to a cache device.
    pub(crate) fn consider_for_devices(&self, fetch: &Fetch, data: &[u8]) {
        if self.cache_devices.is_empty() {
            return;
        }
        for (index, block) in (0..).zip(data.chunks_exact(BLOCK_LEN)) {
            let key = BlockKey { addr: fetch.key.addr.plus(index), ..fetch.key };
            let is_ghost = |ghosts: &mut Option<Ghosts>| ghosts.as_mut()?.take(key).then_some(());
            if is_ghost(&mut self.cache_devices.ghosts.borrow_mut()).is_some() {
                let lba = Lba(fetch.wanted.lba.0 + u64::from(index));
                let known = fetch.wanted.sums[index as usize];
                let sum =
                    known.unwrap_or_else(|| block_sum(self.guid, fetch.wanted.volume, lba, block));
                self.cache_devices.admit(Indexed { key, sum }, block);
            }
        }
    }

    /// The cache devices, as `pool status` shows them.
    pub(crate) fn cache_device_status(&self) -> Vec<VdevStatus> {
        let mut all = Vec::new();
        for cache in &self.config.borrow().caches {
            let Some(device) = self.cache_devices.get(cache.device) else { continue };
            let (used, capacity) = device.used_blocks();
            let mut vdev = leaf(&cache.path, cache.size_bytes, device.health());
            vdev.space = Some(VdevSpace {
                raw_size_bytes: u64::from(capacity) * BLOCK_BYTES,
                raw_alloc_bytes: Some(u64::from(used) * BLOCK_BYTES),
            });
            (vdev.read_errors, vdev.write_errors, vdev.checksum_errors) = device.errors();
            vdev.note = device.note();
            vdev.io = device.io();
            all.push(vdev);
        }
        all
    }

    /// What the cache devices have done, for `pool stats`.
    pub(crate) fn cache_device_stats(&self) -> Vec<CacheDeviceStats> {
        let now = rt::wall_clock();
        let stats = |cache: &CacheConfig| {
            let device = self.cache_devices.get(cache.device)?;
            Some(device.stats(cache, now))
        };
        self.config.borrow().caches.iter().filter_map(stats).collect()
    }
}

#[cfg(test)]
mod tests;
