//! The monitor of one owner: it checks the heartbeats on the devices and renews the fence.
//!
//! What enters: the devices, and which owner checks. What leaves: a verdict, heartbeats. What
//! always holds: the fence is renewed only by reads that prove ownership, after a gap by the gap
//! rule (see the README). Called by the claim of an import, then by the pool's heartbeat task.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use forebay_format::label::Heartbeat;
use forebay_units::{Nanos, OwnerNonce};

use crate::error::MultihostError;
use crate::fence::Fence;
use crate::heartbeat::Owner;
use crate::poller::{Answer, PollMode, Poller};
use crate::reservation::{key_of, release, reserve};
use crate::timing::{HEARTBEAT_VALID_FOR, ONE_DEVICE_CONFIRMS_AFTER, clock};

/// What one check of the heartbeats shows.
pub enum Verdict {
    /// The pool is this owner's. The devices that answered; empty if all of them failed to read.
    Confirmed(Vec<Device>),
    /// A device has the heartbeat of another owner.
    OtherOwner,
    /// No answer proves ownership: no device was asked or answered, or the answers are too old, or
    /// too few after a gap. To be checked again soon.
    Unproven,
}

/// Ownership of one pool's devices by this process.
pub struct Monitor {
    fence: Rc<Fence>,
    poller: Rc<Poller>,
    /// Owners that this one replaced: their heartbeats are ignored.
    predecessors: RefCell<BTreeSet<OwnerNonce>>,
    gap: RefCell<Option<Gap>>,
    /// The owner, as soon as there is one.
    nonce: Cell<Option<OwnerNonce>>,
    /// Names of the devices that are reserved for it.
    reserved: RefCell<BTreeSet<String>>,
}

/// A time without a valid heartbeat. A late heartbeat of this owner may lie over another owner's
/// now, so one device is not enough to end it.
struct Gap {
    began_at: Nanos,
    /// Devices that have shown no other owner since.
    heard: BTreeSet<usize>,
    /// When the last check ended. If that is long ago, another gap has begun since.
    checked_at: Nanos,
}

impl Monitor {
    /// A monitor with an open fence.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            fence: Fence::new(),
            poller: Poller::new(),
            predecessors: RefCell::default(),
            gap: RefCell::default(),
            nonce: Cell::default(),
            reserved: RefCell::default(),
        })
    }

    /// The fence that this monitor renews.
    #[must_use]
    pub fn fence(&self) -> &Rc<Fence> {
        &self.fence
    }

    pub(crate) fn set_predecessors(&self, nonces: BTreeSet<OwnerNonce>) {
        *self.predecessors.borrow_mut() = nonces;
    }

    /// The owner that devices are reserved for from now on.
    pub fn set_owner(&self, nonce: OwnerNonce) {
        self.nonce.set(Some(nonce));
    }

    /// Makes `device` one of the owner's, and reserves it if it has reservations. Refuses a device
    /// that is reserved for an unknown owner, unless `force` is set.
    pub async fn reserve(&self, device: &Device, force: bool) -> Result<(), MultihostError> {
        let Some(nonce) = self.nonce.get() else { return Ok(()) };
        let known = self.predecessors.borrow().clone();
        let may_preempt = |holder| force || known.iter().any(|nonce| key_of(*nonce) == holder);
        let is_reserved = reserve(device, key_of(nonce), may_preempt).await?;
        let name = device.name();
        self.fence.add_member(name);
        if is_reserved {
            self.reserved.borrow_mut().insert(name.to_owned());
        }
        Ok(())
    }

    /// Ends the owner's reservation of a device that is no longer its own.
    pub async fn release(&self, device: &Device) {
        self.fence.remove_member(device.name());
        if self.reserved.borrow_mut().remove(device.name()) {
            if let Some(nonce) = self.nonce.get() {
                release(device, key_of(nonce)).await;
            }
        }
    }

    /// Whether the device of this name is reserved for the owner.
    #[must_use]
    pub fn has_reserved(&self, device: &str) -> bool {
        !self.fence.is_lost() && self.reserved.borrow().contains(device)
    }

    /// Whether `heartbeat` is of this pool, but neither of `owner` nor of one that it replaced.
    pub(crate) fn is_other_owner(&self, heartbeat: &Heartbeat, owner: Owner) -> bool {
        let found = Owner::of(heartbeat);
        let is_known =
            found.nonce == owner.nonce || self.predecessors.borrow().contains(&found.nonce);
        found.pool == owner.pool && !is_known
    }

    /// Reads heartbeats and renews the fence if they prove that `owner` has the pool. After a gap
    /// it asks all devices, whatever `mode` says.
    pub async fn check(&self, devices: &[Device], mode: PollMode, owner: Owner) -> Verdict {
        if devices.is_empty() {
            return Verdict::Unproven;
        }
        let begun = clock();
        let gap_began_at = self.update_gap(begun);
        let mode = if gap_began_at.is_some() { PollMode::AllDevices } else { mode };
        let answers = self.poller.poll(devices, mode).await;
        let mut heartbeats = answers.iter().filter_map(|answer| answer.heartbeat);
        if heartbeats.any(|heartbeat| self.is_other_owner(&heartbeat, owner)) {
            return Verdict::OtherOwner;
        }
        // A read that was issued before the gap, or too long ago, does not show who owns the pool
        // now.
        let (oldest, now) = (gap_began_at.unwrap_or(Nanos::ZERO), clock());
        let counts = |at: Nanos| at >= oldest && now.since(at) <= HEARTBEAT_VALID_FOR;
        let heard = || answers.iter().filter(|answer| counts(answer.asked_at));
        // If every read failed at once, the next root fails on these devices too and handles it.
        let all_failed = answers.is_empty() && self.poller.has_no_reads_in_flight();
        let asked_at = heard().map(|answer| answer.asked_at).max();
        let Some(asked_at) = asked_at.or(all_failed.then_some(begun)) else {
            return Verdict::Unproven;
        };
        if let Some(gap) = &mut *self.gap.borrow_mut() {
            gap.heard.extend(heard().map(Answer::key));
            gap.checked_at = now;
            if gap.heard.len() < 2 && asked_at < gap.began_at + ONE_DEVICE_CONFIRMS_AFTER {
                return Verdict::Unproven;
            }
        }
        self.fence.confirm(asked_at);
        match self.fence.is_valid() {
            true => Verdict::Confirmed(heard().map(|answer| answer.device.clone()).collect()),
            false => Verdict::Unproven,
        }
    }

    /// Begins to read the heartbeats of `devices`, and does not wait for them. If one of them is
    /// another owner's, the fence is lost: [`PollMode::FirstHeartbeat`] asks one device alone, and
    /// a machine that takes the pool over may reach others.
    pub fn watch(self: &Rc<Self>, devices: &[Device], owner: Owner) {
        for device in devices {
            let monitor = self.clone();
            self.poller.look(device, move |found| {
                if monitor.is_other_owner(&found, owner) {
                    monitor.fence.lose();
                }
            });
        }
    }

    /// Begins or ends the gap, and returns when it began.
    fn update_gap(&self, now: Nanos) -> Option<Nanos> {
        let mut gap = self.gap.borrow_mut();
        let is_over = |gap: &Gap| now.since(gap.checked_at) > HEARTBEAT_VALID_FOR;
        if self.fence.is_valid() {
            *gap = None;
        } else if gap.as_ref().is_none_or(is_over) {
            *gap = Some(Gap { began_at: now, heard: BTreeSet::new(), checked_at: now });
        }
        gap.as_ref().map(|gap| gap.began_at)
    }

    /// Writes a heartbeat to each of `devices` that has none under way, to one after the other.
    /// Does not wait long for devices that hang.
    pub async fn write_to_each(&self, devices: &[Device], heartbeat: Heartbeat) {
        self.poller.write_to_each(devices, heartbeat).await;
    }

    /// Whether a heartbeat is under way to one of `devices`, which may hang.
    #[must_use]
    pub fn is_writing(&self, devices: &[Device]) -> bool {
        devices.iter().any(|device| self.poller.is_writing(device))
    }

    /// Heartbeats that failed since the last call, with their devices. Such a device may have lost
    /// other writes that it held unflushed.
    #[must_use]
    pub fn take_failed_writes(&self) -> Vec<(Device, DeviceError)> {
        self.poller.take_failed_writes()
    }

    /// Waits until no heartbeat is being read or written.
    pub async fn drain(&self) {
        self.poller.drain().await;
    }
}

#[cfg(test)]
mod tests;
