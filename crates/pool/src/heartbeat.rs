//! The pool's heartbeat task: it shows other machines that the pool is in use, and stops the pool
//! when another machine has taken it. The mechanism is the crate `multihost`.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use forebay_format::label::Heartbeat;
use forebay_format::superblock::Superblock;
use forebay_multihost::{
    HEARTBEAT_INTERVAL, Owner, PollMode, RETRY_INTERVAL, STORE_HEARTBEAT_INTERVAL, Verdict,
    leave_heartbeat, write_heartbeat,
};
use forebay_rt as rt;
use forebay_units::{Nanos, OwnerNonce, PoolGuid};

use crate::Pool;
use crate::admin::candidate::release_all;
use crate::commit::error::{CommitError, SuspendReason};
use crate::labels::write_root;
use crate::store_watch::is_in_store;

/// Heartbeats of this owner so far.
#[derive(Default)]
pub(crate) struct Heartbeats {
    count: Cell<u64>,
    /// When a device in an object store last took one.
    stored_at: Cell<Option<Nanos>>,
}

impl Pool {
    fn next_heartbeat(&self) -> Heartbeat {
        let beats = &self.health.heartbeats;
        beats.count.set(beats.count.get() + 1);
        self.heartbeat(beats.count.get())
    }

    /// Writes a root, and with it a heartbeat if that then costs no request of its own.
    pub(crate) async fn write_root_and_heartbeat(
        &self,
        device: &Device,
        root: &Superblock,
    ) -> Result<(), DeviceError> {
        if !is_in_store(device) {
            return write_root(device, root).await;
        }
        leave_heartbeat(device, &self.next_heartbeat()).await?;
        write_root(device, root).await?;
        self.health.heartbeats.stored_at.set(Some(rt::now()));
        Ok(())
    }

    /// Whether the first device needs no heartbeat yet.
    fn is_heartbeat_recent(&self, devices: &[Device]) -> bool {
        let is_recent = |at: Nanos| rt::now().since(at) < STORE_HEARTBEAT_INTERVAL;
        devices.first().is_some_and(is_in_store)
            && self.health.heartbeats.stored_at.get().is_some_and(is_recent)
    }

    fn heartbeat(&self, beat: u64) -> Heartbeat {
        Heartbeat { pool: self.guid, nonce: self.nonce, host: self.opener.host(), beat }
    }

    /// Writes this owner's heartbeat to a device that has returned with an older one.
    pub(crate) async fn write_first_heartbeat(&self, device: &Device) {
        // An error is not reported: the device has nothing of the pool yet that it could lose, and
        // it gets a configuration next.
        let _ = write_heartbeat(device, &self.heartbeat(0)).await;
    }

    /// Has the pool stop, before any write fails, when another machine has taken it.
    pub(crate) fn stop_when_taken_over(self: &Rc<Self>) {
        let pool = Rc::downgrade(self);
        self.opener.monitor().fence().on_loss(move || {
            if let Some(pool) = pool.upgrade() {
                pool.stop(SuspendReason::TakenOver);
            }
        });
    }

    /// Gives up the reservations of all devices.
    pub(crate) async fn release_devices(&self) {
        let devices: Vec<Device> = self.devices.borrow().values().map(|d| d.device()).collect();
        release_all(&self.opener, &devices).await;
    }

    /// Runs until the pool is closed or stopped, or has another owner.
    pub(crate) async fn heartbeat_loop(self: Rc<Self>) {
        self.renew_heartbeat().await;
        self.opener.monitor().drain().await;
    }

    async fn renew_heartbeat(&self) {
        let monitor = self.opener.monitor();
        let fence = monitor.fence();
        let owner = Owner { pool: PoolGuid(self.guid), nonce: OwnerNonce(self.nonce) };
        let mut pause = HEARTBEAT_INTERVAL;
        fence.arm();
        loop {
            let is_ending = || self.lifecycle.closed.get() || self.is_stopped();
            let next_at = rt::now() + pause;
            let _ = rt::timeout(pause, Box::pin(self.sync.done.until(is_ending))).await;
            if is_ending() {
                // Writes that devices were given still count, so the heartbeat goes on until they
                // end.
                let left = next_at.since(rt::now());
                if rt::timeout(left, Box::pin(fence.drain())).await.is_ok() {
                    return fence.end();
                }
            }
            let devices = self.heartbeat_devices();
            if devices.is_empty() {
                // No device takes a heartbeat any more, so none goes on for writes that wait.
                self.suspend_without_devices();
                return fence.end();
            }
            match monitor.check(&devices, PollMode::FirstHeartbeat, owner).await {
                Verdict::Confirmed(mut devices) => {
                    pause = HEARTBEAT_INTERVAL;
                    devices.extend(self.heartbeat_devices());
                    if !self.is_heartbeat_recent(&devices) {
                        if devices.first().is_some_and(is_in_store) {
                            self.health.heartbeats.stored_at.set(Some(rt::now()));
                        }
                        monitor.write_to_first(&devices, self.next_heartbeat()).await;
                    }
                    self.handle_failed_heartbeats();
                }
                Verdict::Unproven => pause = RETRY_INTERVAL,
                // This stops the pool, as a device does that another machine has reserved.
                Verdict::OtherOwner => return fence.lose(),
            }
        }
    }

    /// All devices are out of use. The commit that should notice may wait, and meanwhile no device
    /// says whether another machine has taken the pool.
    fn suspend_without_devices(&self) {
        if let Err(error) = self.store.array.check_writable() {
            self.stop(CommitError::from(error).into());
        }
    }

    fn handle_failed_heartbeats(&self) {
        for (device, error) in self.opener.monitor().take_failed_writes() {
            let in_use = self.devices_in_use();
            // A device that has left the pool meanwhile holds nothing of it.
            if let Some((id, _)) = in_use.iter().find(|(_, used)| Rc::ptr_eq(used, &device)) {
                self.durable_write_failed(*id, error);
            }
        }
    }

    /// Devices to poll, in order: all of them have this owner's heartbeat, or get it when those
    /// before them do not answer. Log devices come last.
    fn heartbeat_devices(&self) -> Vec<Device> {
        self.devices_in_use().into_iter().map(|(_, device)| device).collect()
    }
}
