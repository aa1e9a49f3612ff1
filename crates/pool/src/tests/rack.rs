//! Devices in memory that can be pulled, fail reads, take time and lose power at any command, and
//! machines that share them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, ErrorKind, Layer, MemoryDevice, ObjectStats, Operation,
};
use forebay_format::label::CONFIG_SLOT_BYTES;
use forebay_rt as rt;
use forebay_testkit::{Answer, Command, Decision, Probe, Script, Shelf};
use forebay_units::Nanos;

use crate::{OpenWith, Opener, Opening};

/// Faults that all devices of a rack obey.
#[derive(Default)]
pub(crate) struct Switches {
    /// Commands that changed a device, or would have without the power cut.
    pub changes: Cell<u64>,
    /// Number of changes that still happen before the power fails without an error.
    pub power: Cell<Option<u64>>,
    /// Number of changes that still happen before every command but reads fails.
    pub works_for: Cell<Option<u64>>,
    /// Devices that are absent.
    pub pulled: RefCell<BTreeSet<String>>,
    /// Devices that fail every read of their body.
    pub unreadable: RefCell<BTreeSet<String>>,
    /// Devices that fail every write.
    pub unwritable: RefCell<BTreeSet<String>>,
    /// Devices that fail every write of a configuration.
    pub unconfigurable: RefCell<BTreeSet<String>>,
    /// Devices that fail every write of their body.
    pub unwritable_bodies: RefCell<BTreeSet<String>>,
    /// Blocks, by their first byte, that cannot be read until they are written.
    pub bad_blocks: RefCell<BTreeSet<(String, u64)>>,
    /// How long a read takes before the device executes it.
    pub reads_take: Cell<Nanos>,
}

impl Switches {
    fn failure(&self, command: Command<'_>) -> Option<ErrorKind> {
        let Command { device, operation, offset_bytes, .. } = command;
        if self.pulled.borrow().contains(device) {
            return Some(ErrorKind::Gone);
        }
        let name = || device.to_owned();
        let touched = (name(), offset_bytes)..(name(), command.end_bytes());
        let is_bad = match operation {
            Operation::Read => {
                let is_body = offset_bytes >= 1 << 20;
                self.bad_blocks.borrow().range(touched).next().is_some()
                    || is_body && self.unreadable.borrow().contains(device)
            }
            Operation::Write => {
                let is_config = offset_bytes < 2 * CONFIG_SLOT_BYTES;
                self.unwritable.borrow().contains(device)
                    || offset_bytes >= 5 << 20 && self.unwritable_bodies.borrow().contains(device)
                    || is_config && self.unconfigurable.borrow().contains(device)
            }
            _ => false,
        };
        is_bad.then_some(ErrorKind::Os { errno: 5 })
    }

    fn decide(&self, command: Command<'_>) -> Decision {
        if let Some(kind) = self.failure(command) {
            return Decision::Fail(kind);
        }
        let is_broken = self.works_for.get() == Some(0);
        if is_broken && command.operation != Operation::Read {
            return Decision::Fail(ErrorKind::Os { errno: 5 });
        }
        if !command.changes_data() {
            return Decision::Run;
        }
        self.works_for.set(self.works_for.get().map(|left| left - 1));
        self.changes.set(self.changes.get() + 1);
        match self.power.get() {
            None => {}
            Some(0) => return Decision::Drop,
            Some(left) => self.power.set(Some(left - 1)),
        }
        if command.operation == Operation::Write {
            let written = command.offset_bytes..command.end_bytes();
            let lasts =
                |(of, block): &(String, u64)| of != command.device || !written.contains(block);
            self.bad_blocks.borrow_mut().retain(lasts);
        }
        Decision::Run
    }
}

impl Script for Switches {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        Box::pin(async move {
            if command.operation == Operation::Read && self.reads_take.get() > Nanos::ZERO {
                rt::sleep(self.reads_take.get()).await;
            }
            self.decide(command)
        })
    }
}

/// Devices by name. They live as long as the rack.
pub(crate) struct Rack {
    shelf: Rc<Shelf>,
    pub switches: Rc<Switches>,
}

impl Rack {
    pub fn new(names: &[&str], size_bytes: u64) -> Rc<Self> {
        let switches = Rc::new(Switches::default());
        let device = |name: &&str| -> Device {
            Probe::new(Rc::new(MemoryDevice::new(name, size_bytes)), switches.clone())
        };
        let shelf = Shelf::new(names.iter().map(device));
        Rc::new(Self { shelf, switches })
    }

    /// The same devices, opened by machine `host`.
    pub fn host(self: &Rc<Self>, host: u64) -> Rc<dyn Opener> {
        let rack = self.clone();
        OpenWith::new(host, move |name| rack.open_here(name))
    }

    /// Opens a device that was not pulled.
    pub fn open_here(&self, name: &str) -> Result<Device, DeviceError> {
        self.check_here(name).and_then(|()| self.shelf.open(name))
    }

    /// The same on machine 1, where one process at a time can open a device.
    pub fn locked(self: &Rc<Self>) -> Rc<dyn Opener> {
        let rack = self.clone();
        OpenWith::new(1, move |name| {
            rack.check_here(name).and_then(|()| rack.shelf.open_alone(name))
        })
    }

    fn check_here(&self, name: &str) -> Result<(), DeviceError> {
        match self.switches.pulled.borrow().contains(name) {
            true => Err(DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Gone)),
            false => Ok(()),
        }
    }

    pub fn device(&self, name: &str) -> Device {
        self.shelf.open(name).expect("the rack has it")
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

/// A device that says of itself that it is in an object store.
struct InStore(MemoryDevice);

impl Layer for InStore {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }
    fn objects(&self) -> Option<ObjectStats> {
        Some(ObjectStats::default())
    }
}

pub(crate) fn in_store(name: &str, size_bytes: u64) -> Device {
    Rc::new(InStore(MemoryDevice::new(name, size_bytes)))
}

/// Devices in memory without faults, on machine 1.
pub(crate) fn memory(names: &[&str], size_bytes: u64) -> Rc<dyn Opener> {
    let device = |name: &&str| -> Device { Rc::new(MemoryDevice::new(name, size_bytes)) };
    let shelf = Shelf::new(names.iter().map(device));
    OpenWith::new(1, move |name| shelf.open(name))
}

/// Machine `inner` with `script` above each of its devices.
pub(crate) fn scripted(inner: Rc<dyn Opener>, script: Rc<impl Script + 'static>) -> Rc<dyn Opener> {
    Rc::new(Scripted { inner, script })
}

struct Scripted<S> {
    inner: Rc<dyn Opener>,
    script: Rc<S>,
}

impl<S: Script + 'static> Opener for Scripted<S> {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move {
            let inner = self.inner.open(path).await?;
            Ok(Probe::new(inner, self.script.clone()) as Device)
        })
    }
    fn host(&self) -> u64 {
        self.inner.host()
    }
}

/// The time that a command takes, by device, operation and offset.
struct Pace<F>(F);

impl<F: Fn(&str, Operation, u64) -> Option<Nanos>> Script for Pace<F> {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let paced =
            matches!(command.operation, Operation::Read | Operation::Write | Operation::Flush);
        Box::pin(async move {
            let time = || self.0(command.device, command.operation, command.offset_bytes);
            if let Some(time) = paced.then(time).flatten() {
                rt::sleep(time).await;
            }
            Decision::Run
        })
    }
}

/// A machine whose devices take time, so that other tasks run meanwhile.
pub(crate) fn paced(
    inner: Rc<dyn Opener>,
    pace: impl Fn(&str, Operation, u64) -> Option<Nanos> + 'static,
) -> Rc<dyn Opener> {
    scripted(inner, Rc::new(Pace(pace)))
}
