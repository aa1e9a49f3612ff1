//! Label check: every few seconds the labels of all devices are read back, and the last frames of
//! the log. A damaged label is written anew with the next root. A device that is smaller than it
//! was, was deleted, lacks a frame, or has the label of another pool, is taken out of use.

use std::fmt;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf};
use forebay_format::checksum::crc64;
use forebay_format::label::{
    ConfigEnvelope, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET_BYTES, label_offsets,
};
use forebay_format::superblock::Superblock;
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos};

use crate::Pool;
use crate::labels::{LabelError, read_config_slot};
use crate::state::WrittenLabels;
use crate::status::PoolEvent;

/// Between two checks. It doubles while labels are found damaged, up to [`MAX_INTERVAL`], so that a
/// device that forgets what is written to it does not cause a root every few seconds.
const INTERVAL: Nanos = Nanos::from_secs(5);
const MAX_INTERVAL: Nanos = Nanos::from_secs(300);

/// What is wrong with a label area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelFault {
    /// It cannot be read.
    Unreadable(DeviceError),
    /// The configuration or the root that was written last is not there.
    Damaged {
        /// First byte of the area.
        offset_bytes: u64,
    },
    /// It has the label of another pool.
    OtherPool {
        /// That pool's id.
        guid: u64,
    },
}

impl fmt::Display for LabelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Damaged { offset_bytes } => {
                write!(f, "the label at offset {offset_bytes} was damaged")
            }
            Self::OtherPool { guid } => write!(f, "it has the label of another pool, {guid}"),
        }
    }
}

/// What a check of all labels found, in devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelFaults {
    /// Devices that were read and lack what was written to them.
    pub damaged: u64,
    /// Devices that could not be read, or have another pool's label.
    pub failed: u64,
}

impl Pool {
    /// Runs until the pool is closed or stopped.
    pub(crate) async fn label_check_loop(self: Rc<Self>) {
        let mut pause = INTERVAL;
        loop {
            let is_over = || self.lifecycle.closing.get() || self.is_stopped();
            let _ = rt::timeout(pause, Box::pin(self.sync.done.until(is_over))).await;
            if is_over() {
                return;
            }
            let found = self.check_labels().await;
            self.check_log().await;
            let is_whole = found == LabelFaults::default();
            pause = if is_whole { INTERVAL } else { (pause + pause).min(MAX_INTERVAL) };
        }
    }

    /// Reads back the newest frame of each ring. A device that lacks it has forgotten what it
    /// acknowledged: the log does without it, and everything in it is committed.
    async fn check_log(&self) {
        let lacking = self.log.check_newest_frames().await;
        if lacking.is_empty() || !self.is_still_owner().await {
            return;
        }
        for (device, error) in lacking {
            self.log.fail_side(device, error);
        }
    }

    /// Whether the pool is this owner's, as heartbeats show that are read from now on. What the
    /// next owner wrote says nothing of the devices.
    async fn is_still_owner(&self) -> bool {
        self.opener.monitor().fence().confirmed_anew().await
    }

    /// Reads back the labels of all devices. Damaged ones are written anew with the next root.
    pub(crate) async fn check_labels(&self) -> LabelFaults {
        let written = self.sync.written.borrow().clone();
        let devices = self.devices_in_use();
        let checks = devices.iter().map(|(id, device)| self.label_fault(*id, device, &written));
        let faults = rt::join_all(checks).await;
        let mut found = LabelFaults::default();
        let is_overwritten = |fault: &Option<LabelFault>| {
            matches!(fault, Some(LabelFault::Damaged { .. } | LabelFault::OtherPool { .. }))
        };
        if faults.iter().any(is_overwritten) && !self.is_still_owner().await {
            return found;
        }
        for ((id, _), fault) in devices.into_iter().zip(faults) {
            // A device may have been taken out of use while it was read.
            let is_in_use = || self.devices_in_use().iter().any(|(other, _)| *other == id);
            if let Some(fault) = fault {
                if is_in_use() && !self.is_stopped() {
                    match &fault {
                        LabelFault::Damaged { .. } => found.damaged += 1,
                        LabelFault::Unreadable(_) | LabelFault::OtherPool { .. } => {
                            found.failed += 1
                        }
                    }
                    self.label_damaged(id, fault);
                }
            }
        }
        found
    }

    /// Bytes of a root and a configuration in both areas of a device.
    pub(crate) fn label_bytes(&self) -> u64 {
        let config = self.config.borrow().encode().len() as u64;
        2 * (SUPERBLOCK_BYTES + config.next_multiple_of(SUPERBLOCK_BYTES))
    }

    /// What is wrong with the label of a device.
    async fn label_fault(
        &self,
        id: DeviceId,
        device: &Device,
        written: &WrittenLabels,
    ) -> Option<LabelFault> {
        if let Err(error) = device.check_presence().await {
            return Some(LabelFault::Unreadable(error));
        }
        for area in label_offsets(device.geometry().size_bytes) {
            if let Some(((generation, sum), holders)) = &written.config {
                if holders.contains(&id) {
                    let at = area + ConfigEnvelope::slot_offset_bytes(*generation);
                    let found = match read_config_slot(device, at).await {
                        Ok(found) => found,
                        Err(error) => return Some(LabelFault::Unreadable(error)),
                    };
                    if let Some(other) = found.as_ref().filter(|found| found.pool != self.guid) {
                        return Some(LabelFault::OtherPool { guid: other.pool });
                    }
                    let is_same = |found: &ConfigEnvelope| {
                        found.generation == *generation && crc64(&found.body) == *sum
                    };
                    // A slot is used again by the configuration after the next.
                    let is_newer = |found: &ConfigEnvelope| found.generation > *generation;
                    if !found.is_some_and(|found| is_same(&found) || is_newer(&found)) {
                        return Some(LabelFault::Damaged { offset_bytes: area });
                    }
                }
            }
            if let Some((root, holders)) = &written.root {
                if holders.contains(&id) {
                    let at = area + SUPERBLOCK_OFFSET_BYTES + root.slot() * SUPERBLOCK_BYTES;
                    let slot = device.read(at, IoBuf::zeroed(SUPERBLOCK_BYTES as usize)).await;
                    match slot.map(|slot| Superblock::decode(&slot)) {
                        Ok(Ok(found)) if found.pool == self.guid && found.commit >= root.commit => {
                        }
                        Ok(_) => return Some(LabelFault::Damaged { offset_bytes: area }),
                        Err(error) => return Some(LabelFault::Unreadable(error)),
                    }
                }
            }
        }
        None
    }

    fn label_damaged(&self, id: DeviceId, fault: LabelFault) {
        let device = self.device_path(id);
        self.health.events.push(PoolEvent::LabelDamaged { device, fault: fault.clone() });
        match fault {
            // What is written to a device that was deleted or cut, or is another pool's, does not
            // help, and may do harm.
            LabelFault::OtherPool { guid } => {
                self.label_device_failed(id, LabelError::OtherPool { guid });
            }
            LabelFault::Unreadable(error) if is_gone(&error) => {
                self.label_device_failed(id, LabelError::Device(error));
            }
            LabelFault::Unreadable(_) | LabelFault::Damaged { .. } => {
                // A log device is in no array.
                let _ = self.store.array.count_checksum_error(id);
                // All labels are written with a configuration, and a root names it.
                self.sync.config_dirty.set(true);
                self.sync.root_wanted.set(true);
                self.sync.wake.notify_all();
            }
        }
    }

    /// Takes a device out of use, if the pool can spare it.
    fn label_device_failed(&self, id: DeviceId, error: LabelError) {
        let is_data = self.store.array.status().iter().any(|member| member.id == id);
        if !is_data {
            return self.fail_log_side(id, &error);
        }
        if let Err(needed) = self.store.array.fault(id, error.device_error()) {
            let event = PoolEvent::StillNeeded { device: self.device_path(id), error: needed };
            self.health.events.push(event);
            return;
        }
        self.take_array_events();
        self.sync.root_wanted.set(true);
        self.sync.wake.notify_all();
    }
}

/// Whether the device is gone or deleted, or smaller than it was when it was opened.
fn is_gone(error: &DeviceError) -> bool {
    use ErrorKind::{Deleted, Gone, OutOfRange, Short};
    matches!(error.kind, Short { .. } | OutOfRange { .. } | Gone | Deleted)
}

#[cfg(test)]
mod tests;
