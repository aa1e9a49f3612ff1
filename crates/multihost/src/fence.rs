//! The write fence: the right to write, and the device layer that checks it.
//!
//! What enters: times of valid heartbeats, the loss of the pool, its end. What leaves: devices
//! whose writes wait, or fail, without a valid heartbeat. What always holds: a write succeeds only
//! if the heartbeat was valid before the write was issued and after it completed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, FenceLoss, IoBytes, Layer,
    Operation, ZeroOptions,
};
use forebay_format::label::HEARTBEAT_OFFSET_BYTES;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::timing::{HEARTBEAT_VALID_FOR, clock};

/// The right of one owner to write to the devices of its pool.
pub struct Fence {
    /// When the heartbeat was last confirmed. `None`: the fence is open. This is so while a pool is
    /// created and before an import claims its devices: no write of that process could do harm yet.
    confirmed_at: Cell<Option<Nanos>>,
    is_lost: Cell<bool>,
    has_ended: Cell<bool>,
    /// Writes that were given to a device and have not completed, but for heartbeats.
    writes_in_flight: Cell<usize>,
    /// Names of devices that are the owner's: if one of them refuses a write because another
    /// machine has reserved it, the pool has another owner.
    members: RefCell<BTreeSet<String>>,
    /// Called when the pool is lost.
    on_loss: RefCell<Option<Rc<dyn Fn()>>>,
    changed: Rc<Notify>,
}

impl Fence {
    /// An open fence.
    #[must_use]
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            confirmed_at: Cell::new(None),
            is_lost: Cell::new(false),
            has_ended: Cell::new(false),
            writes_in_flight: Cell::new(0),
            members: RefCell::default(),
            on_loss: RefCell::default(),
            changed: Notify::new(),
        })
    }

    /// Has `call` called when the pool is lost, before any write fails for that.
    pub fn on_loss(&self, call: impl Fn() + 'static) {
        *self.on_loss.borrow_mut() = Some(Rc::new(call));
    }

    pub(crate) fn add_member(&self, device: &str) {
        self.members.borrow_mut().insert(device.to_owned());
    }

    pub(crate) fn remove_member(&self, device: &str) {
        self.members.borrow_mut().remove(device);
    }

    /// Puts a device behind this fence.
    #[must_use]
    pub fn guard(self: &Rc<Self>, inner: Device) -> Device {
        Rc::new(FencedDevice { inner, fence: self.clone() })
    }

    /// Confirms ownership: the heartbeat was read at `read_at` or later, and was this owner's. The
    /// first call arms the fence.
    pub fn confirm(&self, read_at: Nanos) {
        let before = self.confirmed_at.get().unwrap_or(Nanos::ZERO);
        self.confirmed_at.set(Some(before.max(read_at)));
        self.changed.notify_all();
    }

    /// Arms an open fence. An import has armed it already with its claim.
    pub fn arm(&self) {
        if self.confirmed_at.get().is_none() {
            self.confirm(clock());
        }
    }

    /// Waits until a heartbeat that is read from now on shows who has the pool. Whether it is this
    /// owner still. An open fence has no other owner to fear.
    pub async fn confirmed_anew(&self) -> bool {
        let asked_at = clock();
        let is_anew = || self.confirmed_at.get().is_none_or(|at| at > asked_at);
        let is_over = || self.is_lost.get() || self.has_ended.get();
        self.changed.until(|| is_over() || is_anew()).await;
        !is_over()
    }

    /// Another owner has the pool: writes fail from now on.
    pub fn lose(&self) {
        let call = self.on_loss.borrow().clone();
        if !self.is_lost.replace(true) {
            if let Some(call) = call {
                call();
            }
        }
        self.changed.notify_all();
    }

    /// Whether another owner has the pool.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// The heartbeat has ended: writes fail from now on.
    pub fn end(&self) {
        self.has_ended.set(true);
        self.changed.notify_all();
    }

    /// Waits until every write that a device was given has completed, but for heartbeats
    /// ([`Monitor::drain`]).
    ///
    /// [`Monitor::drain`]: crate::Monitor::drain
    pub async fn drain(&self) {
        self.changed.until(|| self.writes_in_flight.get() == 0).await;
    }

    pub(crate) fn is_valid(&self) -> bool {
        let is_recent = |at| clock().since(at) <= HEARTBEAT_VALID_FOR;
        self.confirmed_at.get().is_none_or(is_recent)
    }

    /// Waits until the heartbeat is valid, or never will be.
    async fn until_valid(&self) -> Result<(), FenceLoss> {
        let is_decided = || self.is_lost.get() || self.has_ended.get() || self.is_valid();
        self.changed.until(is_decided).await;
        match (self.is_lost.get(), self.has_ended.get()) {
            (true, _) => Err(FenceLoss::TakenOver),
            (_, true) => Err(FenceLoss::Ended),
            _ => Ok(()),
        }
    }
}

/// Counts a write while a device has it.
struct WriteInFlight<'a>(&'a Fence);

impl<'a> WriteInFlight<'a> {
    fn new(fence: &'a Fence) -> Self {
        fence.writes_in_flight.set(fence.writes_in_flight.get() + 1);
        Self(fence)
    }
}

impl Drop for WriteInFlight<'_> {
    fn drop(&mut self) {
        let left = self.0.writes_in_flight.get() - 1;
        self.0.writes_in_flight.set(left);
        if left == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// The device layer: writes, discards and zeroing pass the fence; reads and flushes do not. A
/// conflict of reservations shuts the fence.
struct FencedDevice {
    inner: Device,
    fence: Rc<Fence>,
}

impl FencedDevice {
    fn fenced<'a>(
        &'a self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        call: impl FnOnce() -> DeviceFuture<'a, ()> + 'a,
    ) -> DeviceFuture<'a, ()> {
        Box::pin(async move {
            let refused = |loss: FenceLoss| {
                let kind = ErrorKind::FenceLost(loss);
                DeviceError::new(self.inner.name(), operation, offset_bytes, len_bytes, kind)
            };
            self.fence.until_valid().await.map_err(refused)?;
            // The monitor waits for heartbeats by itself. If they counted, heartbeats that take
            // longer than their interval would follow each other without end.
            let is_heartbeat =
                operation == Operation::Write && offset_bytes == HEARTBEAT_OFFSET_BYTES;
            let _in_flight = (!is_heartbeat).then(|| WriteInFlight::new(&self.fence));
            self.heeded(call()).await?;
            // The kernel may have held the write while this process was paused, and executed it
            // after a new owner had read the log.
            self.fence.until_valid().await.map_err(refused)
        })
    }

    /// Waits for a command. If the device refuses it because another machine has reserved the
    /// device, the pool is lost, and no device is to blame.
    async fn heeded(&self, call: DeviceFuture<'_, ()>) -> Result<(), DeviceError> {
        let name = self.inner.name();
        call.await.map_err(|error| {
            let is_conflict = error.kind == ErrorKind::ReservationConflict;
            if !is_conflict || !self.fence.members.borrow().contains(name) {
                return error;
            }
            self.fence.lose();
            DeviceError { kind: ErrorKind::FenceLost(FenceLoss::TakenOver), ..error }
        })
    }
}

impl Layer for FencedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write_vectored(self, offset_bytes, vec![data], fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum();
        let call = move || self.inner.write_vectored(offset, parts, fua);
        self.fenced(Operation::Write, offset, len_bytes, call)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.heeded(self.inner.flush()))
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = move || self.inner.discard(offset_bytes, len_bytes, fua);
        self.fenced(Operation::Discard, offset_bytes, len_bytes, call)
    }
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let call = move || self.inner.write_zeroes(offset_bytes, len_bytes, options);
        self.fenced(Operation::WriteZeroes, offset_bytes, len_bytes, call)
    }
}

#[cfg(test)]
mod tests;
