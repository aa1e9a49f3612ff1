//! The task of a cache device: opens it, writes its regions, and saves its index at the end.

use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::device::{CacheDevice, CacheFault, CacheState};
use crate::Pool;
use crate::admin::caches::clear_header;
use crate::status::PoolEvent;

/// Between two attempts to open a cache device.
const RETRY_EVERY: Nanos = Nanos::from_secs(10);

impl Pool {
    /// Takes a cache device into use, or begins to try.
    pub(crate) fn start_cache_device(self: &Rc<Self>, device: Rc<CacheDevice>) {
        self.cache_devices.devices.borrow_mut().push(device.clone());
        self.cache_devices.resize_ghosts();
        self.cache.note_evictions(true);
        let task = rt::spawn(self.clone().cache_device_task(device));
        self.lifecycle.tasks.borrow_mut().push(task);
    }

    /// Lets a cache device go for good: its header is cleared, and it is closed.
    pub(crate) async fn leave_cache_device(&self, id: u32) {
        let Some(device) = self.cache_devices.get(id) else { return };
        device.has_left.set(true);
        self.cache_devices.devices.borrow_mut().retain(|other| other.id != id);
        self.cache_devices.resize_ghosts();
        self.cache.note_evictions(!self.cache_devices.is_empty());
        // Its task may be looking at it just now.
        device.wake.notify_all();
        device.wake.until(|| device.has_ended.get()).await;
    }

    /// What may be written to cache devices, by the property `cache_dwpd`.
    pub(crate) fn apply_cache_budget(&self) {
        for device in self.cache_devices.devices.borrow().iter() {
            device.set_budget(self.settings.get().cache_milli_dwpd);
        }
    }

    /// A cache device is given up. Reads go to the main store from here on.
    pub(super) fn cache_device_failed(&self, device: &CacheDevice, fault: CacheFault) {
        if !matches!(device.state.get(), CacheState::Loading | CacheState::Online) {
            return;
        }
        device.close(CacheState::Faulted);
        *device.why.borrow_mut() = Some(fault.clone());
        let path = self.cache_path(device.id);
        self.health.events.push(PoolEvent::CacheDeviceFailed { device: path, fault });
    }

    pub(super) fn cache_path(&self, id: u32) -> String {
        let config = self.config.borrow();
        let found = config.caches.iter().find(|cache| cache.device == id);
        found.map(|cache| cache.path.clone()).unwrap_or_default()
    }

    /// The size that a device had when it was added.
    pub(super) fn cache_size_of(&self, id: u32) -> u64 {
        let config = self.config.borrow();
        let found = config.caches.iter().find(|cache| cache.device == id);
        found.map_or(0, |cache| cache.size_bytes)
    }

    async fn cache_device_task(self: Rc<Self>, device: Rc<CacheDevice>) {
        let is_over = || device.has_left.get() || self.is_stopped() || self.lifecycle.closing.get();
        while !is_over() {
            match device.state.get() {
                CacheState::Waiting | CacheState::Loading => {
                    device.state.set(CacheState::Loading);
                    let outcome = self.load_cache_device(&device).await;
                    // Interrupted, it may have an index that lacks the rest, which no snapshot
                    // must be made of.
                    if is_over() {
                        break;
                    }
                    if device.state.get() != CacheState::Loading {
                        device.close(device.state.get());
                        continue;
                    }
                    self.note_loaded(&device, outcome);
                }
                CacheState::Online if device.has_full_region() => {
                    self.write_out(&device, false).await;
                    continue;
                }
                CacheState::Online | CacheState::Offline | CacheState::Faulted => {}
            }
            let state = device.state.get();
            let has_work = || is_over() || device.has_full_region() || device.state.get() != state;
            let ended = Box::pin(self.sync.done.until(is_over));
            let work = Box::pin(device.wake.until(has_work));
            let waited = rt::select(work, ended);
            if state == CacheState::Waiting {
                let _ = rt::timeout(RETRY_EVERY, waited).await;
            } else {
                waited.await;
            }
        }
        self.end_cache_device(&device).await;
    }

    fn note_loaded(&self, device: &CacheDevice, outcome: Result<(), CacheFault>) {
        match outcome {
            Ok(()) => {
                device.set_budget(self.settings.get().cache_milli_dwpd);
                device.why.take();
                device.state.set(CacheState::Online);
                self.cache_devices.resize_ghosts();
            }
            // It may come back.
            Err(fault) => {
                device.close(CacheState::Waiting);
                *device.why.borrow_mut() = Some(fault);
            }
        }
    }

    /// Writes what waits.
    async fn write_out(&self, device: &CacheDevice, partial: bool) {
        let Some(open) = device.open.borrow().clone() else { return };
        loop {
            match device.write_region(&open, partial).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    device.count(|counts| counts.write_errors += 1);
                    return self.cache_device_failed(device, CacheFault::Failed(error));
                }
            }
        }
    }

    /// Before an export, everything that the device has is noted on it.
    async fn end_cache_device(&self, device: &CacheDevice) {
        let open = device.open.borrow().clone();
        if device.has_left.get() || self.cache_devices.are_abandoned.get() {
            // Also one that was not in use: its header may say whose it is.
            let open = match open {
                Some(open) => Ok(open),
                None => self.open_cache_device(device).await.map(|(open, _)| open),
            };
            if let Ok(open) = open {
                clear_header(&open.device()).await;
            }
        } else if let Some(open) = open.filter(|_| !self.is_stopped()) {
            self.write_out(device, true).await;
            // Without a snapshot, the next import reads the footers.
            let _ = device.write_snapshot(&open).await;
        }
        device.has_ended.set(true);
        device.close(CacheState::Offline);
    }
}
