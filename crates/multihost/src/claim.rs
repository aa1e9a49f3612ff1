//! An import's activity check, and its claim on the devices.
//!
//! What enters: devices, their heartbeats, owners that wrote roots. What leaves: a refusal, or this
//! import's reservation and heartbeat on every device, the heartbeat renewed until the claim is
//! dropped. A claim writes nothing if it finds an unknown owner's heartbeat or reservation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use forebay_device::Device;
use forebay_format::label::Heartbeat;
use forebay_rt as rt;
use forebay_units::{Nanos, OwnerNonce, PoolGuid};

use crate::error::MultihostError;
use crate::heartbeat::{Owner, read_heartbeat, write_heartbeat};
use crate::monitor::{Monitor, Verdict};
use crate::poller::PollMode;
use crate::reservation::{holder_of, key_of};
use crate::timing::{
    ACTIVITY_CHECK_DURATION, HEARTBEAT_INTERVAL, RETRY_INTERVAL, STORE_ACTIVITY_CHECK_DURATION,
    clock,
};

/// A device that was found with a label of the pool.
pub struct LabeledDevice {
    /// Names the device in errors.
    pub path: String,
    /// The device.
    pub device: Device,
    /// The heartbeat that was read with the label.
    pub heartbeat: Option<Heartbeat>,
}

/// Watches the heartbeats for [`ACTIVITY_CHECK_DURATION`], or longer if one is in an object store;
/// an error if one of them changes. Returns the owners of `pool` whose heartbeats stood still.
pub async fn check_activity(
    devices: &[LabeledDevice],
    pool: PoolGuid,
) -> Result<BTreeSet<OwnerNonce>, MultihostError> {
    let before = read_heartbeats(devices).await;
    let is_slow = devices.iter().any(|found| found.device.objects().is_some());
    rt::sleep(if is_slow { STORE_ACTIVITY_CHECK_DURATION } else { ACTIVITY_CHECK_DURATION }).await;
    let after = read_heartbeats(devices).await;
    let mut silent = BTreeSet::new();
    for (at, found) in devices.iter().enumerate() {
        // A device that did not answer the first read is compared with its label, read just before.
        // One that did not answer the second read proves nothing.
        let label = found.heartbeat.map(Some);
        let Some((then, now)) = before[at].or(label).zip(after[at]) else { continue };
        if now != then {
            return Err(MultihostError::InUse { device: found.path.clone() });
        }
        let owner = now.as_ref().map(Owner::of).filter(|owner| owner.pool == pool);
        silent.extend(owner.map(|owner| owner.nonce));
    }
    Ok(silent)
}

/// The heartbeat of each device. The inner `None` is a device without heartbeat, the outer one a
/// device that does not answer.
async fn read_heartbeats(devices: &[LabeledDevice]) -> Vec<Option<Option<Heartbeat>>> {
    let mut heartbeats = Vec::new();
    for found in devices {
        heartbeats.push(read_heartbeat(&found.device).await.ok());
    }
    heartbeats
}

/// Whether a device has the heartbeat of an owner that has written no root: an import that is under
/// way on another machine, or that was cut short.
#[must_use]
pub fn is_claimed(
    devices: &[LabeledDevice],
    pool: PoolGuid,
    root_owners: &BTreeSet<OwnerNonce>,
) -> bool {
    label_nonces(devices, pool).any(|nonce| !root_owners.contains(&nonce))
}

/// Whether a device is reserved for an initiator that is none of `known`, nor an owner whose
/// heartbeat was read with a label: an import may be under way on another machine.
pub async fn is_reserved(
    devices: &[LabeledDevice],
    pool: PoolGuid,
    known: &BTreeSet<OwnerNonce>,
) -> bool {
    let known: BTreeSet<_> =
        known.iter().copied().chain(label_nonces(devices, pool)).map(key_of).collect();
    for found in devices {
        if holder_of(&found.device).await.is_some_and(|holder| !known.contains(&holder)) {
            return true;
        }
    }
    false
}

fn label_nonces(
    devices: &[LabeledDevice],
    pool: PoolGuid,
) -> impl Iterator<Item = OwnerNonce> + '_ {
    let owners = devices.iter().filter_map(|found| found.heartbeat.as_ref()).map(Owner::of);
    owners.filter(move |owner| owner.pool == pool).map(|owner| owner.nonce)
}

/// An import's heartbeat on every device that it found, renewed until this is dropped. The fence
/// ends with it, unless the pool's own heartbeat follows ([`Claim::hand_over`]).
pub struct Claim {
    claimed: Rc<Claimed>,
    is_handed_over: bool,
}

struct Claimed {
    monitor: Rc<Monitor>,
    /// Empty once the claim was dropped: a device that leaves the pool is closed at once.
    devices: RefCell<Vec<Device>>,
    /// What is written, but for the counter.
    heartbeat: Heartbeat,
    /// The count of the last heartbeat.
    beat: Cell<u64>,
}

impl Claim {
    /// Claims `devices` with `heartbeat`, and reserves those that have reservations. Replaces the
    /// owners in `known`: those that wrote roots, and those that were watched in silence. A device
    /// that an unknown owner has reserved is taken only if `force` is set.
    pub async fn new(
        devices: &[LabeledDevice],
        known: BTreeSet<OwnerNonce>,
        monitor: &Rc<Monitor>,
        heartbeat: Heartbeat,
        force: bool,
    ) -> Result<Self, MultihostError> {
        let owner = Owner::of(&heartbeat);
        let heartbeat = Heartbeat { beat: 0, ..heartbeat };
        // A device that is away now, or whose heartbeat could not be read, may return with that of
        // any earlier owner.
        let mut predecessors = known;
        predecessors.extend(label_nonces(devices, owner.pool));
        monitor.set_predecessors(predecessors);
        let devices: Vec<Device> = devices.iter().map(|found| found.device.clone()).collect();
        let begun = clock();
        for device in &devices {
            let Ok(Some(found)) = read_heartbeat(device).await else { continue };
            if monitor.is_other_owner(&found, owner) {
                return Err(MultihostError::UnknownOwner);
            }
        }
        // Reservations come first: a device that the old owner has reserved refuses heartbeats.
        monitor.set_owner(owner.nonce);
        reserve_all(&devices, monitor, force).await?;
        let (monitor, devices) = (monitor.clone(), RefCell::new(devices));
        let claimed = Rc::new(Claimed { monitor, devices, heartbeat, beat: Cell::new(0) });
        // From here on this process may be paused and replaced: its first heartbeat is fenced
        // already.
        claimed.monitor.fence().confirm(begun);
        rt::spawn_detached(Box::pin(renew_until_dropped(Rc::downgrade(&claimed))));
        claimed.write_to_all().await;
        Ok(Self { claimed, is_handed_over: false })
    }

    /// Ends the claim of an import that has succeeded: the pool's heartbeat must follow at once.
    /// Returns the count of the last one. The next ones count on from there: a machine that watches
    /// meanwhile would take an equal count for silence.
    pub fn hand_over(mut self) -> u64 {
        self.is_handed_over = true;
        self.claimed.beat.get()
    }

    /// Reads all heartbeats; an error if another owner has replaced this claim.
    pub async fn verify(&self) -> Result<(), MultihostError> {
        let Claimed { monitor, heartbeat, .. } = &*self.claimed;
        let devices = self.claimed.devices.borrow().clone();
        for device in &devices {
            if let Ok(Some(found)) = read_heartbeat(device).await {
                if monitor.is_other_owner(&found, Owner::of(heartbeat)) {
                    return Err(MultihostError::Lost);
                }
            }
        }
        Ok(())
    }
}

/// Reserves all of `devices` that have reservations, or none of them.
async fn reserve_all(
    devices: &[Device],
    monitor: &Monitor,
    force: bool,
) -> Result<(), MultihostError> {
    for (done, device) in devices.iter().enumerate() {
        let Err(error) = monitor.reserve(device, force).await else { continue };
        for taken in &devices[..done] {
            monitor.release(taken).await;
        }
        return Err(error);
    }
    Ok(())
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claimed.devices.borrow_mut().clear();
        if !self.is_handed_over {
            // What waits for a valid heartbeat would wait forever, and keep its device open: the
            // next attempt to import the pool needs the device.
            self.claimed.monitor.fence().end();
        }
    }
}

impl Claimed {
    async fn write_to_all(&self) {
        let devices = self.devices.borrow().clone();
        for device in &devices {
            // An error is not reported: what an import relies on was flushed before, and what it
            // replays is written again.
            let _ = write_heartbeat(device, &self.heartbeat).await;
        }
    }

    /// Writes the next heartbeat where this owner is found. Returns after how long another one is
    /// due; `None` when there is none.
    async fn renew(&self) -> Option<Nanos> {
        let owner = Owner::of(&self.heartbeat);
        let devices = self.devices.borrow().clone();
        let verdict = self.monitor.check(&devices, PollMode::AllDevices, owner).await;
        if self.devices.borrow().is_empty() {
            return None;
        }
        match verdict {
            Verdict::Confirmed(devices) => {
                self.beat.set(self.beat.get() + 1);
                let heartbeat = Heartbeat { beat: self.beat.get(), ..self.heartbeat };
                self.monitor.write_to_each(&devices, heartbeat).await;
                Some(HEARTBEAT_INTERVAL)
            }
            Verdict::Unproven => Some(RETRY_INTERVAL),
            // The other owner's heartbeat stays in place, and this import fails.
            Verdict::OtherOwner => {
                self.monitor.fence().lose();
                None
            }
        }
    }
}

/// Renews a claim until it is dropped. Keeps no device open meanwhile: another process may open it
/// as soon as the pool is exported.
async fn renew_until_dropped(claimed: Weak<Claimed>) {
    let mut pause = HEARTBEAT_INTERVAL;
    loop {
        rt::sleep(pause).await;
        let Some(claimed) = claimed.upgrade() else { return };
        match claimed.renew().await {
            Some(next) => pause = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests;
