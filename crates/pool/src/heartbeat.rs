//! The pool's heartbeat task: it shows other machines that the pool is in use, and stops the pool
//! when another machine has taken it. The mechanism is the crate `multihost`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{Device, DeviceError};
use forebay_format::label::Heartbeat;
use forebay_format::superblock::Superblock;
use forebay_multihost::{
    HEARTBEAT_INTERVAL, Owner, PollMode, RETRY_INTERVAL, STORE_HEARTBEAT_INTERVAL, Verdict,
    leave_heartbeat, write_heartbeat,
};
use forebay_rt as rt;
use forebay_units::{DeviceId, Nanos, OwnerNonce, PoolGuid};

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

impl Heartbeats {
    /// Counts on from the last heartbeat of the import's claim.
    pub(crate) fn go_on_after(&self, count: u64) {
        self.count.set(count);
    }
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

    /// Leaves out devices in object stores while these need no heartbeat yet.
    fn leave_out_store(&self, devices: &mut Vec<Device>) {
        let is_recent = |at: Nanos| rt::now().since(at) < STORE_HEARTBEAT_INTERVAL;
        if self.health.heartbeats.stored_at.get().is_some_and(is_recent) {
            devices.retain(|device| !is_in_store(device));
        }
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
            let carriers = self.heartbeat_devices();
            let devices = carriers_first(&carriers, self.devices_in_use());
            if devices.is_empty() {
                // No device takes a heartbeat any more, so none goes on for writes that wait.
                self.suspend_without_devices();
                return fence.end();
            }
            let mut beside = carriers.iter().skip(1).cloned().collect();
            self.leave_out_store(&mut beside);
            monitor.watch(&beside, owner);
            match monitor.check(&devices, PollMode::FirstHeartbeat, owner).await {
                Verdict::Confirmed(heard) => {
                    pause = HEARTBEAT_INTERVAL;
                    self.leave_heartbeats(&heard).await;
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
                self.durable_write_failed(*id, &device, error);
            }
        }
    }

    /// Has the heartbeat go on: on the devices of [`Pool::heartbeat_devices`], and on all when one
    /// of those hangs or only others were `heard`. Another machine may need just the one that
    /// hangs, and does not know yet what this owner has taken in meanwhile.
    async fn leave_heartbeats(&self, heard: &[Device]) {
        let monitor = self.opener.monitor();
        let mut devices = self.heartbeat_devices();
        let is_heard = heard.is_empty() || heard.iter().any(|device| is_among(&devices, device));
        if !is_heard || monitor.is_writing(&devices) {
            devices = carriers_first(&devices, self.devices_in_use());
        }
        self.leave_out_store(&mut devices);
        if devices.iter().any(is_in_store) {
            self.health.heartbeats.stored_at.set(Some(rt::now()));
        }
        monitor.write_to_each(&devices, self.next_heartbeat()).await;
    }

    /// The devices on which this owner's heartbeat goes on. Every import needs one of them, so it
    /// finds the pool in use whatever other devices it misses: they are so many columns of one
    /// group that it lacks too many without them. Of all groups it is the one where these devices
    /// are the fewest; one in an object store only when there is no other, for each heartbeat is a
    /// request there.
    fn heartbeat_devices(&self) -> Vec<Device> {
        let groups = self.store.array.groups();
        let mut columns: Vec<BTreeMap<usize, Vec<Device>>> = vec![BTreeMap::new(); groups.len()];
        let devices = self.devices.borrow();
        for member in self.store.array.status().iter().filter(|member| member.state.is_in_use()) {
            let device = devices.get(&member.id).map(|open| open.device());
            columns[member.group].entry(member.column).or_default().extend(device);
        }
        let needed = groups.iter().zip(columns).map(|(geometry, columns)| {
            let columns = columns.into_values().take(geometry.parity_columns() + 1);
            let mut devices: Vec<Device> = columns.flatten().collect();
            devices.sort_by_key(is_in_store);
            devices
        });
        let in_use = needed.filter(|devices| !devices.is_empty());
        in_use.min_by_key(|devices| (is_in_store(&devices[0]), devices.len())).unwrap_or_default()
    }
}

fn is_among(devices: &[Device], device: &Device) -> bool {
    devices.iter().any(|other| Rc::ptr_eq(other, device))
}

/// All devices to poll, those first that have the newest heartbeats. The others have this owner's
/// too, from its import. Log devices come last.
fn carriers_first(carriers: &[Device], in_use: Vec<(DeviceId, Device)>) -> Vec<Device> {
    let others = in_use.into_iter().map(|(_, device)| device);
    carriers.iter().cloned().chain(others.filter(|other| !is_among(carriers, other))).collect()
}
