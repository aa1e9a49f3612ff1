//! Opening the devices of a pool.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::{Deadline, Device, DeviceError};

use crate::possession::Guarded;
use crate::spec::Told;

/// Opens devices by name: files and disks in production, simulated ones in simulation.
pub trait Opener {
    /// Opens `path` for this process alone, until the device is dropped. Errors say why in one
    /// line ([`DeviceError`]).
    fn open(&self, path: &str) -> Result<Device, DeviceError>;

    /// A number that tells this machine from others, for pools on shared devices.
    fn host(&self) -> u64;

    /// Told of each generation of a pool's configuration before a root names it. Who keeps the
    /// highest one elsewhere than on the pool's devices knows later whether those that are there
    /// are the newest: a device that leaves raises it. (See [`ImportOptions::known`].) A root waits
    /// until this is done: it must end, in a few seconds at most.
    ///
    /// [`ImportOptions::known`]: crate::spec::ImportOptions::known
    fn witness(&self, _pool: u64, _told: Told) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(std::future::ready(()))
    }

    /// Whether whoever gave the running command wants it ended. Asked while a log's place is being
    /// written through, which may take minutes, and nothing has changed yet.
    fn is_unwanted(&self) -> bool {
        false
    }
}

/// A device that is open, with its counters.
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
