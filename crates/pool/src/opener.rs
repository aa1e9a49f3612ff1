//! Opening the devices of a pool.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{Deadline, Device, DeviceError};

use crate::possession::Guarded;
use crate::spec::Told;

/// Opens devices by name: files and disks in production, simulated ones in simulation.
pub trait Opener {
    /// Opens `path` exclusively for this process until the device is dropped.
    fn open(&self, path: &str) -> Result<Device, DeviceError>;

    /// A number that tells this machine from others, for pools on shared devices.
    fn host(&self) -> u64;

    /// Told of each generation of a pool's configuration before a root names it. A list outside of
    /// the pool's devices that keeps the highest generation can tell later whether the present
    /// devices are the newest, because a device that leaves raises the generation (see
    /// [`ImportOptions::known`]). A root waits for this call, so it must end within a few seconds.
    ///
    /// [`ImportOptions::known`]: crate::spec::ImportOptions::known
    fn witness(&self, _pool: u64, _told: Told) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(std::future::ready(()))
    }

    /// Whether the caller of the running command has canceled it. Asked while a region of the log
    /// is written through, which may take minutes and has changed nothing yet.
    fn is_unwanted(&self) -> bool {
        false
    }
}

/// An open device, with its counters.
#[derive(Clone)]
pub(crate) struct OpenDevice {
    pub path: String,
    pub counted: Rc<forebay_device::layers::Counted>,
    pub deadline: Rc<Deadline>,
}

impl OpenDevice {
    pub fn new(path: &str, guarded: Guarded) -> Self {
        let counted = forebay_device::layers::Counted::new(guarded.device);
        Self { path: path.to_owned(), counted, deadline: guarded.deadline }
    }

    pub fn device(&self) -> Device {
        self.counted.clone()
    }
}
