//! Opening the devices of a pool, each under a deadline and behind the pool's write fence.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::layers::Counted;
use forebay_device::{Deadline, Device, DeviceError, ErrorKind, Operation};
use forebay_multihost::Monitor;
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::spec::Told;

/// How long a device may take for a command until the pool's own limits are known.
const INITIAL_DEVICE_TIMEOUT: Nanos = Nanos::from_secs(30);

/// How long a device that another process has open may take for a command that reads its label.
const LOOK_TIMEOUT: Nanos = Nanos::from_secs(5);

/// What [`Opener::open`] returns while it runs.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Device, DeviceError>> + 'a>>;

/// Memory that this process may take; `None` where there is no limit to know of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What it may still take.
    pub free_bytes: Option<u64>,
    /// What it may take in all.
    pub all_bytes: Option<u64>,
}

/// What [`Opener::count_memory`] returns while it runs.
pub type Counting<'a> = Pin<Box<dyn Future<Output = Memory> + 'a>>;

/// What [`Opener::answers`] returns while it runs.
pub type Answering<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// Opens devices by name: files and disks in production, simulated ones in simulation.
pub trait Opener {
    /// Opens `path` exclusively for this process until the device is dropped. The pool waits for
    /// a device's time limit at most; a device that opens later than that is closed again.
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a>;

    /// Opens `path` to read its label, also while another process has it open. Fails where that
    /// cannot be: then the device is not taken for one of the pool.
    fn open_to_look<'a>(&'a self, path: &'a str) -> Opening<'a> {
        self.open(path)
    }

    /// A number that tells this machine from others, for pools on shared devices.
    fn host(&self) -> u64;

    /// Bytes of memory that this process may still take; `None` if there is no limit to know of. An
    /// import whose map would not fit is refused.
    fn free_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of memory that this process may take in all; `None` if there is no limit to know of.
    /// The read cache takes a part of it.
    fn memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Both, counted while other work goes on: the kernel may take milliseconds to sum up what a
    /// control group has.
    fn count_memory(&self) -> Counting<'_> {
        Box::pin(std::future::ready(Memory {
            free_bytes: self.free_memory_bytes(),
            all_bytes: self.memory_bytes(),
        }))
    }

    /// Whether a device answers that may come back by itself, such as one on another host; `None`
    /// if an operator brings it back. Must end within seconds. Such a device may be opened while it
    /// is open.
    fn answers<'a>(&'a self, _path: &'a str) -> Option<Answering<'a>> {
        None
    }

    /// Told of each generation of a pool's configuration before a root names it, and of the paths
    /// of its `devices`. A list outside of the pool's devices that keeps the highest generation can
    /// tell later whether the present devices are the newest, because a device that leaves raises
    /// the generation (see [`ImportOptions::known`]). A root waits for this call, so it must end
    /// within a few seconds.
    ///
    /// [`ImportOptions::known`]: crate::spec::ImportOptions::known
    fn witness(
        &self,
        _pool: u64,
        _told: Told,
        _devices: Vec<String>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(std::future::ready(()))
    }

    /// Whether the caller of the running command has canceled it. Asked while a region of the log
    /// is written through, which may take minutes and has changed nothing yet.
    fn is_unwanted(&self) -> bool {
        false
    }
}

/// Opens devices with a function: for devices that are not files.
pub struct OpenWith<F> {
    host: u64,
    open: F,
}

impl<F: Fn(&str) -> Result<Device, DeviceError>> OpenWith<F> {
    /// An opener of machine `host` that calls `open` with the name of each device.
    #[must_use]
    pub fn new(host: u64, open: F) -> Rc<Self> {
        Rc::new(Self { host, open })
    }
}

impl<F: Fn(&str) -> Result<Device, DeviceError>> Opener for OpenWith<F> {
    fn open<'a>(&'a self, path: &'a str) -> Opening<'a> {
        Box::pin(async move { (self.open)(path) })
    }

    fn host(&self) -> u64 {
        self.host
    }
}

/// A device under a deadline (`deadline`), with the write fence above it (`device`).
#[derive(Clone)]
pub(crate) struct Guarded {
    pub deadline: Rc<Deadline>,
    pub device: Device,
}

/// Opens all devices of one pool.
pub(crate) struct FencedOpener {
    inner: Rc<dyn Opener>,
    monitor: Rc<Monitor>,
}

impl FencedOpener {
    /// An opener whose fence is open until a claim or the pool's heartbeat arms it.
    pub fn new(inner: Rc<dyn Opener>) -> Rc<Self> {
        Rc::new(Self { inner, monitor: Monitor::new() })
    }

    /// Opens a device, for as long as a command may take. Waiting at the fence does not count
    /// against its deadline.
    pub async fn open(&self, path: &str) -> Result<Guarded, DeviceError> {
        let opened = opened_within(INITIAL_DEVICE_TIMEOUT, path, self.inner.open(path)).await?;
        let device = self.monitor.fence().guard(opened.clone());
        Ok(Guarded { deadline: opened, device })
    }

    /// See [`Opener::open_to_look`]. A device that hangs is given up soon: it keeps its lock for as
    /// long, whatever became of the process.
    pub async fn open_to_look(&self, path: &str) -> Result<Device, DeviceError> {
        Ok(opened_within(LOOK_TIMEOUT, path, self.inner.open_to_look(path)).await?)
    }

    /// What opens the devices below the fence.
    pub fn source(&self) -> Rc<dyn Opener> {
        self.inner.clone()
    }

    /// Checks who owns the devices, and renews their fence.
    pub fn monitor(&self) -> &Rc<Monitor> {
        &self.monitor
    }

    /// See [`Opener::host`].
    pub fn host(&self) -> u64 {
        self.inner.host()
    }

    /// See [`Opener::free_memory_bytes`].
    pub fn free_memory_bytes(&self) -> Option<u64> {
        self.inner.free_memory_bytes()
    }

    /// See [`Opener::count_memory`].
    pub async fn count_memory(&self) -> Memory {
        self.inner.count_memory().await
    }

    /// See [`Opener::memory_bytes`].
    pub fn memory_bytes(&self) -> Option<u64> {
        self.inner.memory_bytes()
    }

    /// See [`Opener::witness`].
    pub async fn witness(&self, pool: u64, told: Told, devices: Vec<String>) {
        self.inner.witness(pool, told, devices).await;
    }

    /// See [`Opener::is_unwanted`].
    pub fn is_unwanted(&self) -> bool {
        self.inner.is_unwanted()
    }
}

/// The device that `opening` gives, under a deadline of `at_most` as the opening is itself.
async fn opened_within(
    at_most: Nanos,
    path: &str,
    opening: Opening<'_>,
) -> Result<Rc<Deadline>, DeviceError> {
    let opened = rt::timeout(at_most, opening).await.unwrap_or_else(|rt::Elapsed| {
        let kind = ErrorKind::TimedOut { after_secs: at_most.0.div_ceil(1_000_000_000) };
        Err(DeviceError::new(path, Operation::Open, 0, 0, kind))
    });
    Ok(Deadline::new(opened?, at_most))
}

/// An open device, with its counters.
#[derive(Clone)]
pub(crate) struct OpenDevice {
    pub path: String,
    pub counted: Rc<Counted>,
    pub deadline: Rc<Deadline>,
}

impl OpenDevice {
    pub fn new(path: &str, guarded: Guarded) -> Self {
        let counted = Counted::new(guarded.device);
        Self { path: path.to_owned(), counted, deadline: guarded.deadline }
    }

    pub fn device(&self) -> Device {
        self.counted.clone()
    }
}
