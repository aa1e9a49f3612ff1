//! Commands on cache devices.

use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_format::cache_device::{CacheHeader, CacheShape};
use forebay_format::config::{CacheConfig, MemberUse, PoolConfig};
use forebay_units::BLOCK_LEN;

use crate::Pool;
use crate::admin::error::AdminError;
use crate::cache_devices::{CacheDevice, CacheState};
use crate::opener::OpenDevice;

/// Writes the header of a new cache device, durably.
pub(crate) async fn write_header(
    config: &PoolConfig,
    cache: &CacheConfig,
    open: &OpenDevice,
) -> Result<(), DeviceError> {
    let header = CacheHeader {
        pool: config.guid,
        pool_name: config.name.clone(),
        device: cache.device,
        nonce: cache.nonce,
        shape: CacheShape::of(cache.size_bytes),
    };
    open.device().write(0, IoBuf::copy_of(&header.encode()).freeze(), true).await
}

/// Clears the header of a cache device, so that other pools can take it. One that cannot be written
/// keeps its header, which names a pool that does not know the device.
pub(crate) async fn clear_header(device: &Device) {
    let _ = device.write(0, IoBuf::zeroed(BLOCK_LEN).freeze(), true).await;
}

impl Pool {
    /// Writes the headers of the last devices that the configuration got, and begins to use them.
    /// A device that cannot be written leaves the configuration again, with those after it.
    pub(super) async fn prepare_cache_devices(
        self: &Rc<Self>,
        opened: Vec<OpenDevice>,
    ) -> Result<(), AdminError> {
        for open in opened {
            let config = self.config.borrow().clone();
            let is_it = |cache: &&CacheConfig| cache.path == open.path;
            let Some(cache) = config.caches.iter().rev().find(is_it) else { continue };
            if let Err(error) = write_header(&config, cache, &open).await {
                self.config.borrow_mut().caches.retain(|other| other.device < cache.device);
                self.commit_config().await?;
                return Err(error.into());
            }
            self.start_cache_device(CacheDevice::new(cache, Some(open)));
        }
        Ok(())
    }

    fn set_cache_use(&self, device: u32, state: MemberUse) {
        let mut config = self.config.borrow_mut();
        for cache in config.caches.iter_mut().filter(|cache| cache.device == device) {
            cache.state = state;
        }
    }

    /// Takes a cache device out of use until it is brought online again.
    pub(super) async fn offline_cache(&self, cache: &CacheConfig) -> Result<(), AdminError> {
        self.set_cache_use(cache.device, MemberUse::Offline);
        if let Some(device) = self.cache_devices.get(cache.device) {
            device.close(CacheState::Offline);
        }
        self.commit_config().await
    }

    /// Brings a cache device back into use. What it has is looked at in the background.
    pub(super) async fn online_cache(&self, cache: &CacheConfig) -> Result<(), AdminError> {
        self.set_cache_use(cache.device, MemberUse::Online);
        if let Some(device) = self.cache_devices.get(cache.device) {
            device.begin_anew(&[CacheState::Offline, CacheState::Faulted]);
        }
        self.commit_config().await
    }

    /// Clears the errors of a cache device, or of all, and tries those again that were given up.
    pub(crate) fn clear_caches(&self, named: Option<&CacheConfig>) {
        for cache in &self.config.borrow().caches {
            let is_meant = named.is_none_or(|named| named.device == cache.device);
            if let Some(device) = self.cache_devices.get(cache.device).filter(|_| is_meant) {
                device.begin_anew(&[CacheState::Faulted]);
            }
        }
    }

    /// Removes a cache device.
    pub(super) async fn remove_cache(&self, cache: &CacheConfig) -> Result<(), AdminError> {
        self.leave_cache_device(cache.device).await;
        self.config.borrow_mut().caches.retain(|other| other.device != cache.device);
        self.commit_config().await
    }
}
