//! A shelf of devices that are opened by name, one holder at a time, as files with locks are.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::layers::Counted;
use forebay_device::{Device, DeviceError, ErrorKind, Operation};

/// Devices by name.
pub struct Shelf {
    devices: BTreeMap<String, Device>,
    /// Handles of [`Shelf::open_alone`], while they live.
    held: RefCell<BTreeMap<String, Weak<Counted>>>,
}

impl Shelf {
    /// A shelf with these devices, each under its own name.
    #[must_use]
    pub fn new(devices: impl IntoIterator<Item = Device>) -> Rc<Self> {
        let named = devices.into_iter().map(|device| (device.name().to_owned(), device));
        Rc::new(Self { devices: named.collect(), held: RefCell::default() })
    }

    /// Opens a device, even if it is open already. Fails as a missing file does.
    pub fn open(&self, name: &str) -> Result<Device, DeviceError> {
        let found = self.devices.get(name).cloned();
        found.ok_or_else(|| DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Gone))
    }

    /// Opens a device that nothing else opened so and still holds.
    pub fn open_alone(&self, name: &str) -> Result<Device, DeviceError> {
        let device = self.open(name)?;
        let mut held = self.held.borrow_mut();
        if held.get(name).is_some_and(|handle| handle.strong_count() > 0) {
            return Err(DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Busy));
        }
        // The layer only serves as a handle: while it lives, the device is held.
        let handle = Counted::new(device);
        held.insert(name.to_owned(), Rc::downgrade(&handle));
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device::MemoryDevice;

    fn shelf() -> Rc<Shelf> {
        let device = |name: &str| Rc::new(MemoryDevice::new(name, 1 << 20)) as Device;
        Shelf::new(["a", "b"].map(device))
    }

    #[test]
    fn a_device_is_held_by_one_until_it_is_dropped() {
        let shelf = shelf();
        let held = shelf.open_alone("a").expect("free");
        let kind = |name: &str| shelf.open_alone(name).map(drop).map_err(|error| error.kind);
        assert_eq!(kind("a"), Err(ErrorKind::Busy));
        assert_eq!(kind("b"), Ok(()));
        assert!(shelf.open("a").is_ok());
        drop(held);
        assert_eq!(kind("a"), Ok(()));
    }

    #[test]
    fn unknown_device_is_gone() {
        let error = shelf().open_alone("c").map(drop).expect_err("there is none");
        assert_eq!(error.kind, ErrorKind::Gone);
    }
}
