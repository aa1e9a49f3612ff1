//! What a cache device of an earlier import still has: the snapshot of its index, or the footers of
//! its regions.

use std::rc::Rc;

use forebay_cache::{BlockKey, DeviceIndex, INDEX_ENTRY_BYTES, Indexed};
use forebay_device::{Device, IoBuf};
use forebay_format::cache_device::{
    CacheEntry, CacheHeader, CacheShape, RegionFooter, SnapshotHeader,
};
use forebay_rt as rt;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN};

use super::device::{CacheDevice, CacheFault, CacheState, DEADLINE};
use super::fill::Filling;
use crate::Pool;
use crate::opener::OpenDevice;

/// Footers that are read at a time.
const FOOTERS_AT_ONCE: u32 = 32;

/// The header of a cache device, if the device has one.
pub(crate) async fn read_header(device: &Device) -> Result<CacheHeader, CacheFault> {
    let block = device.read(0, IoBuf::zeroed(BLOCK_LEN)).await.map_err(CacheFault::Failed)?;
    CacheHeader::decode(&block).map_err(CacheFault::NoHeader)
}

/// The footers at `offsets`. What cannot be read has nothing.
async fn read_footers(device: &Device, len: usize, offsets: &[u64]) -> Vec<RegionFooter> {
    let reads = offsets.iter().map(|at| device.read(*at, IoBuf::zeroed(len)));
    let footer = |bytes: Result<IoBuf, _>| {
        bytes.ok().and_then(|bytes| RegionFooter::decode(&bytes).ok()).unwrap_or_default()
    };
    rt::join_all(reads).await.into_iter().map(footer).collect()
}

impl Pool {
    /// Opens a cache device and finds out what it has.
    pub(super) async fn load_cache_device(&self, device: &CacheDevice) -> Result<(), CacheFault> {
        let (open, header) = self.open_cache_device(device).await?;
        let mut shape = header.shape;
        // The device may be larger by now, and not smaller.
        let added = CacheShape::of(self.cache_size_of(device.id));
        let now = CacheShape::of(open.device().geometry().size_bytes);
        if shape.regions == 0 || shape != added || now.regions < shape.regions {
            return Err(CacheFault::OtherPool { name: header.pool_name });
        }
        shape.regions = shape.regions.min(self.most_regions(shape));
        device.shape.set(shape);
        device.index.replace(DeviceIndex::new(shape.capacity_blocks()));
        if !self.load_snapshot(device, &open.device()).await {
            self.load_footers(device, &open.device()).await;
        }
        let loaded = u64::from(device.index.borrow().len());
        device.count(|counts| counts.loaded = loaded);
        *device.open.borrow_mut() = Some(open);
        Ok(())
    }

    /// Opens a device if it is not open, and reads its header, which must be the one that this pool
    /// has written.
    pub(super) async fn open_cache_device(
        &self,
        device: &CacheDevice,
    ) -> Result<(OpenDevice, CacheHeader), CacheFault> {
        let held = device.open.take();
        let open = match held {
            Some(open) => open,
            None => {
                let path = self.cache_path(device.id);
                let guarded = self.opener.open(&path).await.map_err(CacheFault::Open)?;
                OpenDevice::new(&path, guarded)
            }
        };
        open.deadline.set_span(DEADLINE);
        let header = read_header(&open.device()).await?;
        match (header.pool, header.device, header.nonce) == (self.guid, device.id, device.nonce) {
            true => Ok((open, header)),
            false => Err(CacheFault::OtherPool { name: header.pool_name }),
        }
    }

    /// Regions whose index takes an eighth of the memory. The rest of the device is not used.
    fn most_regions(&self, shape: CacheShape) -> u32 {
        let Some(memory_bytes) = self.opener.memory_bytes() else { return u32::MAX };
        let region_bytes = INDEX_ENTRY_BYTES * u64::from(shape.data_blocks());
        u32::try_from(memory_bytes / 8 / region_bytes).unwrap_or(u32::MAX).max(1)
    }

    /// Takes the index from the snapshot that an export has left. Returns false without one.
    async fn load_snapshot(&self, device: &CacheDevice, from: &Device) -> bool {
        let shape = device.shape.get();
        let at = device.snapshot_at_bytes;
        let Ok(block) = from.read(at, IoBuf::zeroed(BLOCK_LEN)).await else { return false };
        let Ok(header) = SnapshotHeader::decode(&block) else { return false };
        if header.nonce != device.nonce {
            return false;
        }
        let footer_at = |region| at + BLOCK_BYTES + u64::from(region) * shape.footer_bytes();
        self.load_all(device, from, footer_at).await;
        let next_sequence = header.next_sequence;
        device.filling.replace(Filling::from(next_sequence, true));
        true
    }

    /// Takes the index from the footers of all regions, after a crash.
    async fn load_footers(&self, device: &CacheDevice, from: &Device) {
        let shape = device.shape.get();
        let last = self.load_all(device, from, |region| shape.footer_offset_bytes(region)).await;
        let next_sequence = last.map_or(0, |sequence| sequence + 1);
        device.filling.replace(Filling::from(next_sequence, false));
    }

    /// Enters what the footers at `footer_at` name. Returns the highest number of a region.
    async fn load_all(
        &self,
        device: &CacheDevice,
        from: &Device,
        footer_at: impl Fn(u32) -> u64,
    ) -> Option<u64> {
        let shape = device.shape.get();
        let mut last = None;
        let mut slices = rt::Slices::new();
        let mut region = 0;
        while region < shape.regions && !device.has_left.get() && !self.lifecycle.closing.get() {
            let until = (region + FOOTERS_AT_ONCE).min(shape.regions);
            let offsets: Vec<u64> = (region..until).map(&footer_at).collect();
            let footers = read_footers(from, shape.footer_bytes() as usize, &offsets).await;
            for (number, footer) in (region..until).zip(footers) {
                if footer.nonce != device.nonce {
                    continue;
                }
                last = last.max(Some(footer.sequence));
                let first = number * shape.data_blocks();
                let positions = first..first + shape.data_blocks();
                for (position, entry) in positions.zip(footer.entries) {
                    if device.state.get() != CacheState::Loading {
                        // Taken offline meanwhile, and with it the index.
                        return last;
                    }
                    if let Some(entry) = entry.filter(|entry| self.is_current(entry)) {
                        let key = BlockKey { addr: entry.addr, birth: entry.birth };
                        device.index.borrow_mut().put(position, Indexed { key, sum: entry.sum });
                    }
                    slices.step().await;
                }
            }
            region = until;
        }
        last
    }

    /// Whether the main store may still have this block: its segment was not opened anew since.
    fn is_current(&self, entry: &CacheEntry) -> bool {
        let segment = entry.addr.segment();
        (segment.0 as usize) < self.store.table.count() as usize
            && self.store.table.get(segment).birth == entry.birth
    }

    /// Notes where cache devices were found, for their tasks.
    pub(crate) fn note_cache_paths(&self, found: &[(CacheHeader, String)]) {
        let mut config = self.config.borrow_mut();
        for (header, path) in found.iter().filter(|(header, _)| header.pool == self.guid) {
            let is_it = |device: u32, nonce: u64| (device, nonce) == (header.device, header.nonce);
            let known = config.caches.iter_mut().find(|cache| is_it(cache.device, cache.nonce));
            if let Some(cache) = known.filter(|cache| cache.path != *path) {
                cache.path.clone_from(path);
                self.sync.config_dirty.set(true);
            }
        }
    }

    /// Makes the devices of the configuration known, and starts their tasks. `opened` are those
    /// that are open.
    pub(crate) fn start_cache_devices(self: &Rc<Self>, mut opened: Vec<OpenDevice>) {
        let caches = self.config.borrow().caches.clone();
        for cache in &caches {
            let at = opened.iter().position(|open| open.path == cache.path);
            let open = at.map(|at| opened.swap_remove(at));
            self.start_cache_device(CacheDevice::new(cache, open));
        }
    }
}

#[cfg(test)]
mod tests;
