//! A device that several initiators (machines) share, with persistent reservations.
//!
//! What enters: commands of initiators, by number. What leaves: the commands of those that may
//! write, or a conflict. What always holds: a write is checked when the device accepts it. It takes
//! effect later, unless its initiator was preempted with an abort in between.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBytes, Layer, Operation,
    ReservationChange, ReservationKey, Reservations, ZeroOptions,
};
use forebay_rt as rt;
use forebay_units::Nanos;

/// A shared device. It outlives the machines that use it.
pub struct SharedDisk {
    inner: Device,
    /// Keys of the registered initiators.
    registered: RefCell<BTreeMap<u64, ReservationKey>>,
    holder: Cell<Option<u64>>,
    /// Writes that were accepted and have not taken effect: whose they are, and whether they were
    /// aborted.
    accepted: RefCell<Vec<(u64, Rc<Cell<bool>>)>>,
    /// Between the acceptance of a write and its effect.
    delay: Cell<Nanos>,
    /// Writes by initiator: those that took effect, and those that were refused or aborted.
    writes: RefCell<BTreeMap<u64, (u64, u64)>>,
}

impl SharedDisk {
    /// Shares `inner`, which no initiator has reserved.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self {
            inner,
            registered: RefCell::default(),
            holder: Cell::default(),
            accepted: RefCell::default(),
            delay: Cell::new(Nanos::ZERO),
            writes: RefCell::default(),
        })
    }

    /// The device as initiator `number` sees it.
    #[must_use]
    pub fn initiator(self: &Rc<Self>, number: u64) -> Device {
        Rc::new(Initiator { disk: self.clone(), number })
    }

    /// Lets writes take effect only this long after they were accepted.
    pub fn set_delay(&self, delay: Nanos) {
        self.delay.set(delay);
    }

    /// How many writes of an initiator took effect, and how many were refused or aborted. Flushes,
    /// discards and zeroing count as writes.
    #[must_use]
    pub fn writes(&self, initiator: u64) -> (u64, u64) {
        self.writes.borrow().get(&initiator).copied().unwrap_or_default()
    }

    fn reservations(&self) -> Reservations {
        let registered = self.registered.borrow();
        let holder = self.holder.get().and_then(|holder| registered.get(&holder));
        Reservations { keys: registered.values().copied().collect(), holder: holder.copied() }
    }

    fn may_write(&self, initiator: u64) -> bool {
        self.holder.get().is_none() || self.registered.borrow().contains_key(&initiator)
    }

    fn refuse(&self, initiator: u64) {
        self.writes.borrow_mut().entry(initiator).or_default().1 += 1;
    }

    /// Changes reservations for `initiator`. Returns whether they permit it.
    fn change(&self, initiator: u64, change: ReservationChange) -> bool {
        use ReservationChange::{Clear, Preempt, Register, Reserve, Unregister};
        if let Register { key } = change {
            self.registered.borrow_mut().insert(initiator, key);
            return true;
        }
        let (Unregister { key } | Reserve { key } | Preempt { key, .. } | Clear { key }) = change
        else {
            return false;
        };
        if self.registered.borrow().get(&initiator) != Some(&key) {
            return false;
        }
        match change {
            Register { .. } => true,
            Unregister { .. } => {
                self.registered.borrow_mut().remove(&initiator);
                if self.holder.get() == Some(initiator) {
                    self.holder.set(None);
                }
                true
            }
            Reserve { .. } => {
                let is_free = self.holder.get().is_none_or(|holder| holder == initiator);
                if is_free {
                    self.holder.set(Some(initiator));
                }
                is_free
            }
            Preempt { victim, abort, .. } => self.preempt(initiator, victim, abort),
            Clear { .. } => {
                self.registered.borrow_mut().clear();
                self.holder.set(None);
                true
            }
        }
    }

    fn preempt(&self, initiator: u64, victim: ReservationKey, abort: bool) -> bool {
        let mut registered = self.registered.borrow_mut();
        let has_key = |(_, key): &(&u64, &ReservationKey)| **key == victim;
        let victims: Vec<u64> = registered.iter().filter(has_key).map(|(who, _)| *who).collect();
        if victims.is_empty() {
            return false;
        }
        if self.holder.get().is_some_and(|holder| victims.contains(&holder)) {
            self.holder.set(Some(initiator));
        }
        registered.retain(|who, _| *who == initiator || !victims.contains(who));
        if abort {
            let accepted = self.accepted.borrow();
            let is_theirs = |(who, _): &&(u64, Rc<Cell<bool>>)| victims.contains(who);
            accepted.iter().filter(is_theirs).for_each(|(_, is_aborted)| is_aborted.set(true));
        }
        true
    }
}

/// The device as one initiator sees it.
struct Initiator {
    disk: Rc<SharedDisk>,
    number: u64,
}

impl Initiator {
    fn conflict(&self, operation: Operation, (offset_bytes, len_bytes): (u64, u64)) -> DeviceError {
        let kind = ErrorKind::ReservationConflict;
        DeviceError::new(self.disk.inner.name(), operation, offset_bytes, len_bytes, kind)
    }

    async fn accept<'a>(
        &'a self,
        operation: Operation,
        range: (u64, u64),
        call: impl FnOnce() -> DeviceFuture<'a, ()>,
    ) -> Result<(), DeviceError> {
        let disk = &self.disk;
        if !disk.may_write(self.number) {
            disk.refuse(self.number);
            return Err(self.conflict(operation, range));
        }
        let is_aborted = Rc::new(Cell::new(false));
        disk.accepted.borrow_mut().push((self.number, is_aborted.clone()));
        rt::sleep(disk.delay.get()).await;
        disk.accepted.borrow_mut().retain(|(_, other)| !Rc::ptr_eq(other, &is_aborted));
        if is_aborted.get() {
            disk.refuse(self.number);
            return Err(self.conflict(operation, range));
        }
        disk.writes.borrow_mut().entry(self.number).or_default().0 += 1;
        call().await
    }
}

impl Layer for Initiator {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.disk.inner
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let range = (offset_bytes, data.len() as u64);
        let call = move || self.disk.inner.write(offset_bytes, data, fua);
        Box::pin(self.accept(Operation::Write, range, call))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.accept(Operation::Flush, (0, 0), || self.disk.inner.flush()))
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = move || self.disk.inner.discard(offset_bytes, len_bytes, fua);
        Box::pin(self.accept(Operation::Discard, (offset_bytes, len_bytes), call))
    }
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let call = move || self.disk.inner.write_zeroes(offset_bytes, len_bytes, options);
        Box::pin(self.accept(Operation::WriteZeroes, (offset_bytes, len_bytes), call))
    }
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        Box::pin(async move {
            rt::yield_now().await;
            Ok(self.disk.reservations())
        })
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            rt::yield_now().await;
            match self.disk.change(self.number, change) {
                true => Ok(()),
                false => Err(self.conflict(Operation::Reservation, (0, 0))),
            }
        })
    }
}

#[cfg(test)]
mod tests;
