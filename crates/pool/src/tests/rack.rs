//! Devices in memory that can be pulled, fail reads, take time and lose power at any command, and
//! machines that share them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer, MemoryDevice,
    Operation, ZeroOptions,
};

use forebay_rt as rt;
use forebay_units::Nanos;

use crate::Opener;

/// Faults that all devices of a rack obey.
#[derive(Default)]
pub(crate) struct Switches {
    /// Commands that changed a device, or would have without the power cut.
    pub changes: Cell<u64>,
    /// Number of changes that still happen before the power fails without an error.
    pub power: Cell<Option<u64>>,
    /// Devices that are absent.
    pub pulled: RefCell<BTreeSet<String>>,
    /// Devices that fail every read of their body.
    pub unreadable: RefCell<BTreeSet<String>>,
    /// Blocks, by their first byte, that cannot be read until they are written.
    pub bad_blocks: RefCell<BTreeSet<(String, u64)>>,
}

/// One slot: a device behind the switches.
struct Slot {
    inner: Device,
    switches: Rc<Switches>,
}

impl Slot {
    fn check(&self, operation: Operation, at: u64, len: u64) -> Result<(), DeviceError> {
        let name = self.inner.name();
        let fail = |kind| Err(DeviceError::new(name, operation, at, len, kind));
        if self.switches.pulled.borrow().contains(name) {
            return fail(ErrorKind::Gone);
        }
        let body = at >= 1 << 20;
        let bad = self.switches.bad_blocks.borrow();
        let touched = (name.to_owned(), at)..(name.to_owned(), at + len);
        if operation == Operation::Read && bad.range(touched).next().is_some() {
            return fail(ErrorKind::Other { detail: "a bad sector".to_owned() });
        }
        if operation == Operation::Read && body && self.switches.unreadable.borrow().contains(name)
        {
            return fail(ErrorKind::Other { detail: "a bad sector".to_owned() });
        }
        Ok(())
    }

    /// Counts a change. Returns whether it still happens.
    fn change(&self) -> bool {
        self.switches.changes.set(self.switches.changes.get() + 1);
        match self.switches.power.get() {
            None => true,
            Some(0) => false,
            Some(left) => {
                self.switches.power.set(Some(left - 1));
                true
            }
        }
    }
}

impl Layer for Slot {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, at: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.check(Operation::Read, at, buf.len() as u64)?;
            self.inner.read(at, buf).await
        })
    }
    fn write(&self, at: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Write, at, data.len() as u64)?;
            if !self.change() {
                return Ok(());
            }
            let written = at..at + data.len() as u64;
            let name = self.inner.name();
            let lasts = |(of, block): &(String, u64)| of != name || !written.contains(block);
            self.switches.bad_blocks.borrow_mut().retain(lasts);
            self.inner.write(at, data, fua).await
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Flush, 0, 0)?;
            self.inner.flush().await
        })
    }
    fn discard(&self, at: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Discard, at, len)?;
            if self.change() { self.inner.discard(at, len, fua).await } else { Ok(()) }
        })
    }
    fn write_zeroes(&self, at: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::WriteZeroes, at, len)?;
            if self.change() { self.inner.write_zeroes(at, len, options).await } else { Ok(()) }
        })
    }
}

/// Devices by name. They live as long as the rack.
pub(crate) struct Rack {
    devices: BTreeMap<String, Device>,
    pub switches: Rc<Switches>,
}

impl Rack {
    pub fn new(names: &[&str], size_bytes: u64) -> Rc<Self> {
        let switches = Rc::new(Switches::default());
        let device = |n: &&str| {
            let inner: Device = Rc::new(MemoryDevice::new(n, size_bytes));
            let device: Device = Rc::new(Slot { inner, switches: switches.clone() });
            ((*n).to_owned(), device)
        };
        Rc::new(Self { devices: names.iter().map(device).collect(), switches })
    }

    /// The same devices, opened by machine `host`.
    pub fn host(self: &Rc<Self>, host: u64) -> Rc<dyn Opener> {
        Rc::new(Machine { rack: self.clone(), host })
    }

    pub fn device(&self, name: &str) -> Device {
        self.devices[name].clone()
    }

    pub fn pull(&self, names: &[&str]) {
        self.switches.pulled.borrow_mut().extend(names.iter().map(|n| (*n).to_owned()));
    }

    pub fn put_back(&self, names: &[&str]) {
        self.switches.pulled.borrow_mut().retain(|n| !names.contains(&n.as_str()));
    }

    pub fn changes(&self) -> u64 {
        self.switches.changes.get()
    }
}

struct Machine {
    rack: Rc<Rack>,
    host: u64,
}

impl Opener for Machine {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        let gone = || DeviceError::new(path, Operation::Open, 0, 0, ErrorKind::Gone);
        if self.rack.switches.pulled.borrow().contains(path) {
            return Err(gone());
        }
        self.rack.devices.get(path).cloned().ok_or_else(gone)
    }
    fn host(&self) -> u64 {
        self.host
    }
}

/// Delay of a command by device and offset.
pub(crate) type Pace = Rc<dyn Fn(&str, Operation, u64) -> Option<Nanos>>;

/// A machine whose devices take time, so that other tasks run meanwhile.
pub(crate) struct Paced {
    pub inner: Rc<dyn Opener>,
    pub pace: Pace,
}

struct PacedDevice {
    inner: Device,
    pace: Pace,
}

impl PacedDevice {
    async fn wait(&self, operation: Operation, at: u64) {
        if let Some(time) = (self.pace)(self.inner.name(), operation, at) {
            rt::sleep(time).await;
        }
    }
}

impl Layer for PacedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, at: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.wait(Operation::Read, at).await;
            self.inner.read(at, buf).await
        })
    }
    fn write(&self, at: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.wait(Operation::Write, at).await;
            self.inner.write(at, data, fua).await
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.wait(Operation::Flush, 0).await;
            self.inner.flush().await
        })
    }
}

impl Opener for Paced {
    fn open(&self, path: &str) -> Result<Device, DeviceError> {
        let inner = self.inner.open(path)?;
        Ok(Rc::new(PacedDevice { inner, pace: self.pace.clone() }))
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}
