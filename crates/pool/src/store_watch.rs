//! Object stores that do not answer: events, and how long durable writes go on without one.
//!
//! What enters: figures of data devices, of the log and of the throttle. What leaves: events, the
//! reserve and the condition that `pool status` shows. Who calls: the task of `log_memory`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use forebay_device::Device;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::Pool;
use crate::status::objects::whole_secs;
use crate::status::{ObjectsStatus, OutageReserve, PoolCondition, PoolEvent};

/// The time that rates are a mean of.
const RATE_SPAN_SECS: f64 = 10.0;

/// What was told of object stores, and how fast clients write.
#[derive(Default)]
pub(crate) struct StoreWatch {
    /// Devices whose store is silent, and was told so.
    silent: RefCell<BTreeSet<String>>,
    /// Devices of which a request fails alone, and was told to.
    failing: RefCell<BTreeSet<String>>,
    is_low: Cell<bool>,
    log: Rate,
    writes: Rate,
    looked_at: Cell<Nanos>,
}

/// Bytes a second, as an exponential mean.
#[derive(Default)]
struct Rate {
    total_bytes: Cell<u64>,
    per_sec: Cell<f64>,
}

impl Rate {
    fn step(&self, total_bytes: u64, secs: f64) {
        let new = total_bytes.saturating_sub(self.total_bytes.replace(total_bytes)) as f64 / secs;
        let weight = (secs / RATE_SPAN_SECS).min(1.0);
        self.per_sec.set(self.per_sec.get() + (new - self.per_sec.get()) * weight);
    }
}

/// Whether a device is in an object store: each write to it is a request that costs money, and a
/// store may be away for long.
pub(crate) fn is_in_store(device: &Device) -> bool {
    device.objects().is_some()
}

impl Pool {
    /// Whether a data device is in an object store.
    pub(crate) fn has_store_member(&self) -> bool {
        self.label_devices().iter().any(|(_, open)| is_in_store(&open.device()))
    }

    /// Devices of this pool in object stores, by path.
    pub(crate) fn stores(&self) -> Vec<(String, ObjectsStatus)> {
        let devices = self.devices.borrow();
        let each = devices.values().filter_map(|open| {
            Some((open.path.clone(), ObjectsStatus::from(open.device().objects()?)))
        });
        each.collect()
    }

    /// Looks at the stores, and at how fast clients write.
    pub(crate) fn look_at_stores(&self) {
        let (now, watch) = (rt::now(), &self.health.stores);
        let secs = now.since(watch.looked_at.replace(now)).as_secs_f64().max(1e-3);
        watch.log.step(self.log.stats().frame_bytes, secs);
        watch.writes.step(self.stats.written_bytes(), secs);
        let stores = self.stores();
        if stores.is_empty() {
            return;
        }
        let reserve = self.outage_reserve();
        for (device, store) in &stores {
            self.tell_of_store(device, store, reserve);
        }
        let is_silent = stores.iter().any(|(_, store)| store.silent_secs.is_some());
        let warns_below = self.settings.get().outage_warning_secs;
        let low = reserve.and_then(|reserve| reserve.secs);
        let low = low.filter(|secs| is_silent && warns_below.is_some_and(|most| *secs < most));
        let was_low = watch.is_low.replace(low.is_some());
        if let (Some(lasts_secs), false) = (low, was_low) {
            self.health.events.push(PoolEvent::OutageReserveLow { lasts_secs });
        }
    }

    fn tell_of_store(&self, device: &str, store: &ObjectsStatus, reserve: Option<OutageReserve>) {
        let (watch, device) = (&self.health.stores, device.to_owned());
        let mut silent = watch.silent.borrow_mut();
        if store.silent_secs.is_some() {
            if silent.insert(device.clone()) {
                let lasts_secs = reserve.and_then(|reserve| reserve.secs);
                let (device, error) = (device.clone(), store.silent_error.clone());
                self.health.events.push(PoolEvent::StoreSilent { device, error, lasts_secs });
            }
        } else if silent.remove(&device) {
            self.health.events.push(PoolEvent::StoreAnswers { device: device.clone() });
        }
        let mut told = watch.failing.borrow_mut();
        let Some(failing) = store.failing.first().cloned() else {
            told.remove(&device);
            return;
        };
        if told.insert(device.clone()) {
            self.health.events.push(PoolEvent::StoreRequestFails { device, failing });
        }
    }

    /// How long durable writes go on without the object store, if the pool is in one.
    pub(crate) fn outage_reserve(&self) -> Option<OutageReserve> {
        let stores = self.stores();
        let silent_secs = stores.iter().filter_map(|(_, store)| store.silent_secs).max();
        let timeout = self.settings.get().device_timeout;
        let watch = &self.health.stores;
        let throttle = &self.dirty.throttle;
        (!stores.is_empty()).then(|| {
            OutageReserve {
                log_free_bytes: self.log.capacity_bytes().saturating_sub(self.log.used_bytes()),
                log_bytes_per_sec: watch.log.per_sec.get() as u64,
                memory_free_bytes: throttle.limit_bytes().saturating_sub(throttle.dirty_bytes()),
                write_bytes_per_sec: watch.writes.per_sec.get() as u64,
                timeout_secs: (timeout > Nanos::ZERO)
                    .then(|| whole_secs(timeout).saturating_sub(silent_secs.unwrap_or(0))),
                ..OutageReserve::default()
            }
            .of()
        })
    }

    /// What is wrong with the pool's object stores, if anything is.
    pub(crate) fn store_condition(&self) -> Option<PoolCondition> {
        let stores = self.stores();
        let silent = stores.iter().find_map(|(device, store)| {
            let (device, secs) = (device.clone(), store.silent_secs?);
            let (error, reserve) = (store.silent_error.clone(), self.outage_reserve());
            Some(PoolCondition::StoreSilent { device, secs, error, reserve })
        });
        silent.or_else(|| {
            stores.into_iter().find_map(|(device, mut store)| {
                let failing = (!store.failing.is_empty()).then(|| store.failing.remove(0))?;
                Some(PoolCondition::StoreRequestFails { device, failing })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_what_is_written_now() {
        let rate = Rate::default();
        (1..=200u64).for_each(|step| rate.step(step * 500, 0.5));
        assert!((rate.per_sec.get() - 1000.0).abs() < 10.0, "{}", rate.per_sec.get());
        (0..200).for_each(|_| rate.step(100_000, 0.5));
        assert!(rate.per_sec.get() < 10.0, "{}", rate.per_sec.get());
    }
}
