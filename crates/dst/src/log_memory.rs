//! Log devices in memory: the machine with the memory and the power supply, and what befalls it.
//!
//! What always holds: the memory outlives a crash, and the battery holds for as long as the supply
//! says. When it is empty the power fails, and the memory is lost with it.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Deadline, Device, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes,
    Operation,
};
use forebay_dram::{DramDevice, DramProtection, Preparation, prepare_alone, prepare_backup};
use forebay_rt as rt;
use forebay_sim::{SimHost, Supply, World};
use forebay_units::Nanos;

use crate::scenario::{Power, TimedPower};

/// For how long the battery holds. A log device in memory saves itself when 9 seconds are left.
pub(crate) const BATTERY_SECS: u64 = 11;
/// How long a backup device may take for a command, as the product has it.
const BACKUP_TIMEOUT: Nanos = Nanos::from_secs(30);

/// The machine of a run.
pub(crate) struct Machine {
    host: Rc<SimHost>,
    /// The battery is empty.
    is_empty: Rc<Cell<bool>>,
    /// Changes of the power so far.
    changes: Rc<Cell<u64>>,
}

/// A device that cannot be opened.
struct Unopened(String);

impl Unopened {
    fn refuse<T: 'static>(&self, operation: Operation) -> DeviceFuture<'_, T> {
        let error = DeviceError::new(&self.0, operation, 0, 0, ErrorKind::Gone);
        Box::pin(async move {
            rt::yield_now().await;
            Err(error)
        })
    }
}

impl BlockDevice for Unopened {
    fn name(&self) -> &str {
        &self.0
    }
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: 1 << 30,
            block_bytes: 512,
            volatile_cache: false,
            discard_bytes: 0,
            read_only: false,
        }
    }
    fn read(&self, _offset_bytes: u64, _buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.refuse(Operation::Read)
    }
    fn write(&self, _offset_bytes: u64, _data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        self.refuse(Operation::Write)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.refuse(Operation::Flush)
    }
    fn discard(&self, _offset: u64, _len: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        self.refuse(Operation::Discard)
    }
}

impl Machine {
    pub fn new() -> Self {
        Self { host: SimHost::new(BATTERY_SECS), is_empty: Rc::default(), changes: Rc::default() }
    }

    /// Before a boot: the line is back.
    pub fn start(&self) {
        self.host.set_supply(Supply::OnLine { runtime_secs: BATTERY_SECS });
    }

    /// After a boot: memory is gone with the power.
    pub fn power_off(&self) {
        if self.is_empty.replace(false) {
            self.host.lose_memory();
        }
    }

    /// Makes `disk` the backup device of a log device in memory, unless it is one.
    pub async fn prepare(&self, disk: &Device, size_bytes: u64) {
        let protection = DramProtection::Ups { name: "ups".to_owned() };
        let made = Preparation { size_bytes, memory: disk.name().to_owned(), protection };
        prepare_backup(disk, &made).await.expect("no fault strikes before the pool is created");
    }

    /// The log device whose backup device this is.
    pub async fn open(&self, disk: &Device) -> Device {
        let backup = Deadline::new(disk.clone(), BACKUP_TIMEOUT);
        let opened = DramDevice::open(backup, self.host.clone()).await;
        opened.unwrap_or_else(|_| Rc::new(Unopened(disk.name().to_owned())))
    }

    /// All memory is lost.
    pub fn lose_memory(&self) {
        self.host.lose_memory();
    }

    /// The log device in a memory that the other side of its mirror protects, at the place of
    /// `disk`. One that was lost is made anew, without a label.
    pub async fn open_mirrored(&self, disk: &Device, size_bytes: u64) -> Device {
        let memory = disk.name().to_owned();
        let open = async || DramDevice::open_alone(&memory, self.host.clone()).await;
        if let Ok(device) = open().await {
            return device;
        }
        let protection = DramProtection::Mirror;
        let made = Preparation { size_bytes, memory: memory.clone(), protection };
        prepare_alone(&*self.host, &made).await.expect("the simulated machine has memory");
        open().await.expect("it was just made")
    }

    /// Has the power change at its commands.
    pub fn schedule(&self, world: &Rc<World>, power: &[TimedPower]) {
        for timed in power {
            let (host, is_empty) = (self.host.clone(), self.is_empty.clone());
            let changes = self.changes.clone();
            let (inner, power) = (world.clone(), timed.power);
            let change = move || {
                inner.tell(|| format!("power: {power:?}"));
                let until = rt::now() + Nanos::from_secs(BATTERY_SECS);
                let supply = match power {
                    Power::Line => Supply::OnLine { runtime_secs: BATTERY_SECS },
                    Power::Battery => Supply::OnBattery { until },
                    Power::SilentBattery => Supply::Silent,
                };
                host.set_supply(supply);
                let change = changes.get() + 1;
                changes.set(change);
                if power == Power::Line {
                    return;
                }
                rt::spawn(async move {
                    rt::sleep_until(until).await;
                    if changes.get() == change {
                        is_empty.set(true);
                        inner.power_cut();
                    }
                });
            };
            world.at_command(timed.at_command, change);
        }
    }

    /// Whether the battery will be empty if the line does not come back.
    pub fn is_on_battery(&self) -> bool {
        !matches!(self.host.supply(), Supply::OnLine { .. })
    }
}
