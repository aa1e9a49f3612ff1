//! A log device in memory between two steps: where a step fails, the process ends, or an answer
//! comes late.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::layers::Layer;
use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, DramState, ErrorKind, IoBuf, IoBytes,
    MemoryDevice, Operation,
};
use forebay_dram::{
    DramDevice, Host, OpeningMemory, PowerReading, PowerSource, Preparation, Reading,
    RemovingMemory, prepare_backup,
};
use forebay_format::dram::{DramProtection, IMAGE_START_BYTES};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_sim::SimHost;
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos};

const SIZE_BYTES: u64 = 2 << 20;
/// A place that a restore comes to with its second read.
const LATE_BYTES: u64 = 3 << 19;

/// A machine and its backup device, and what goes wrong there.
#[derive(Default)]
struct Faults {
    /// Headers fail before they reach the backup device.
    fails_headers: Cell<bool>,
    /// Headers reach it, and are never answered.
    holds_headers: Cell<bool>,
    /// So many reads of the second half of the image fail.
    failing_reads: Cell<u32>,
    /// How long the power supply takes to answer.
    answers_after: Cell<Nanos>,
    is_silent: Cell<bool>,
}

impl Faults {
    fn failure(device: &Device, operation: Operation, at: u64, len: usize) -> DeviceError {
        let kind = ErrorKind::Os { errno: 5 };
        DeviceError::new(device.name(), operation, at, len as u64, kind)
    }
}

struct Faulty {
    inner: Device,
    faults: Rc<Faults>,
}

impl Layer for Faulty {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let left = self.faults.failing_reads.get();
            if offset_bytes == IMAGE_START_BYTES + SIZE_BYTES / 2 && left > 0 {
                self.faults.failing_reads.set(left - 1);
                let op = Operation::Read;
                return Err(Faults::failure(&self.inner, op, offset_bytes, buf.len()));
            }
            self.inner.read(offset_bytes, buf).await
        })
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let is_header = offset_bytes < 2 * BLOCK_BYTES;
            if is_header && self.faults.fails_headers.get() {
                let op = Operation::Write;
                return Err(Faults::failure(&self.inner, op, offset_bytes, data.len()));
            }
            self.inner.write(offset_bytes, data, fua).await?;
            if is_header && self.faults.holds_headers.get() {
                std::future::pending::<()>().await;
            }
            Ok(())
        })
    }
}

/// The machine of a rig: its memories, and its power supply.
struct Machine {
    host: Rc<SimHost>,
    faults: Rc<Faults>,
}

impl Host for Machine {
    fn open_memory<'a>(&'a self, path: &'a str) -> OpeningMemory<'a> {
        self.host.open_memory(path)
    }
    fn create_memory<'a>(&'a self, path: &'a str, len_bytes: u64) -> OpeningMemory<'a> {
        self.host.create_memory(path, len_bytes)
    }
    fn remove_memory<'a>(&'a self, path: &'a str) -> RemovingMemory<'a> {
        self.host.remove_memory(path)
    }
    fn power(self: Rc<Self>, _ups: &str) -> Option<Rc<dyn PowerSource>> {
        Some(Rc::new(Supply(self.faults.clone())))
    }
}

/// A supply that is on line.
struct Supply(Rc<Faults>);

impl PowerSource for Supply {
    fn read(&self) -> Reading<'_> {
        Box::pin(async move {
            while self.0.is_silent.get() {
                rt::sleep(Nanos::from_secs(1)).await;
            }
            rt::sleep(self.0.answers_after.get()).await;
            Ok(PowerReading { status: "OL".to_owned(), runtime_secs: Some(1_000) })
        })
    }
}

/// What outlives a process.
#[derive(Clone)]
struct Rig {
    disk: Device,
    host: Rc<SimHost>,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let disk: Device = Rc::new(MemoryDevice::new("backup", SIZE_BYTES + (1 << 20)));
        let backup = disk.clone();
        Runtime::simulated(seed).block_on(async move {
            let protection = DramProtection::Ups { name: "u".to_owned() };
            let memory = "m".to_owned();
            let made = Preparation { size_bytes: SIZE_BYTES, memory, protection };
            prepare_backup(&backup, &made).await.unwrap();
        });
        Self { disk, host: SimHost::new(0) }
    }

    async fn open(&self) -> (Device, Rc<Faults>) {
        let faults = Rc::<Faults>::default();
        let backup = Rc::new(Faulty { inner: self.disk.clone(), faults: faults.clone() });
        let machine = Rc::new(Machine { host: self.host.clone(), faults: faults.clone() });
        (DramDevice::open(backup, machine).await.expect("it opens"), faults)
    }

    /// A process that ends with `work`.
    fn boot(&self, seed: u64, work: impl AsyncFnOnce(Device, Rc<Faults>) + 'static) {
        let rig = self.clone();
        Runtime::simulated(seed).block_on(async move {
            let (device, faults) = rig.open().await;
            work(device, faults).await;
        });
    }
}

fn state_of(device: &Device) -> DramState {
    device.dram().unwrap().state
}

async fn write(device: &Device, at: u64, salt: u8) {
    device.write(at, IoBuf::copy_of(&[salt; BLOCK_LEN]).freeze(), true).await.unwrap();
}

async fn has(device: &Device, at: u64, salt: u8) {
    let found = device.read(at, IoBuf::zeroed(BLOCK_LEN)).await.unwrap();
    assert!(found.iter().all(|byte| *byte == salt), "{} at {at}, not {salt}", found[0]);
}

/// Writes, and waits until a write goes to memory alone.
async fn armed(device: &Device) {
    write(device, 0, 1).await;
    while state_of(device) != DramState::Armed {
        rt::sleep(Nanos::from_millis(10)).await;
    }
}

// The backup device may have either header, and the one in use before names the memory.
#[test]
fn a_save_whose_header_failed_is_made_again_before_the_memory_is_given_back() {
    let rig = Rig::new(31);
    rig.boot(32, async |device, faults| {
        armed(&device).await;
        write(&device, LATE_BYTES, 2).await;
        faults.fails_headers.set(true);
        device.save().await.unwrap_err();
        assert_eq!(state_of(&device), DramState::SaveFailed);
        faults.fails_headers.set(false);
        device.save().await.unwrap();
        assert_eq!(state_of(&device), DramState::Saved);
    });
    rig.host.lose_memory();
    rig.boot(33, async |device, _| has(&device, LATE_BYTES, 2).await);
}

#[test]
fn memory_is_found_by_a_header_that_was_never_answered() {
    let rig = Rig::new(34);
    rig.boot(35, async |device, faults| {
        faults.holds_headers.set(true);
        write(&device, LATE_BYTES, 3).await;
        rt::sleep(Nanos::from_secs(5)).await;
        assert_eq!(state_of(&device), DramState::Restored, "it is being armed");
    });
    rig.boot(36, async |device, _| {
        assert_eq!(state_of(&device), DramState::Disarmed);
        has(&device, LATE_BYTES, 3).await;
    });
}

#[test]
fn what_a_failed_restore_has_not_come_to_is_read_from_the_image() {
    let rig = Rig::new(37);
    rig.boot(38, async |device, faults| {
        faults.is_silent.set(true);
        write(&device, LATE_BYTES, 4).await;
    });
    rig.boot(39, async |device, faults| {
        faults.failing_reads.set(1);
        write(&device, 0, 5).await;
        while faults.failing_reads.get() > 0 {
            rt::sleep(Nanos::from_millis(1)).await;
        }
        rt::sleep(Nanos::from_millis(1)).await;
        assert_eq!(state_of(&device), DramState::Saved);
        has(&device, LATE_BYTES, 4).await;
        has(&device, 0, 5).await;
        // It is restored with the next look.
        armed(&device).await;
        has(&device, LATE_BYTES, 4).await;
    });
}

// The power may have gone between the question and the answer.
#[test]
fn an_answer_of_the_supply_counts_from_when_it_was_asked() {
    let rig = Rig::new(40);
    rig.boot(41, async |device, faults| {
        faults.answers_after.set(Nanos::from_secs(4));
        armed(&device).await;
        let answered_at = rt::now();
        faults.is_silent.set(true);
        write(&device, 0, 6).await;
        assert_eq!((state_of(&device), rt::now()), (DramState::Armed, answered_at));
        // Six seconds after the question.
        rt::sleep(Nanos::from_secs(2)).await;
        write(&device, 0, 7).await;
        assert_eq!(state_of(&device), DramState::Saved, "not from memory alone");
        has(&device, 0, 7).await;
    });
}
