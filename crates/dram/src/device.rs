//! The log device: where its reads and writes go in each state.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_device::{
    BlockDevice, Cause, Device, DeviceError, DeviceFuture, DramChange, DramReason, DramState,
    DramStatus, ErrorKind, Geometry, IoBuf, IoBytes, Operation, check_range,
};
use forebay_format::dram::{
    BackupHeader, CHUNK_BYTES, DramKind, DramPlace, DramProtection, IMAGE_START_BYTES,
    MemoryHeader, chunks_of, content_start_bytes,
};
use forebay_rt as rt;
use forebay_rt::sync::{Mutex, Notify};
use forebay_units::{BLOCK_BYTES, BLOCK_LEN, Nanos};

use crate::error::{DramError, FoundMemory};
use crate::host::{Host, Memory};
use crate::power::{PowerReading, PowerSource, READING_MAX_AGE, judge};
use crate::restore::Restoring;

/// Time between two questions to the power supply.
const POLL_INTERVAL: Nanos = Nanos::from_secs(1);
/// Most changes of state that are kept for [`BlockDevice::take_dram_changes`].
const CHANGES_MAX: usize = 64;

/// A log device in memory.
pub struct DramDevice {
    shared: Rc<Shared>,
}

pub(crate) struct Shared {
    name: String,
    geometry: Geometry,
    host: Rc<dyn Host>,
    /// `None` for a memory without one.
    pub backup: Option<Device>,
    power: Option<Rc<dyn PowerSource>>,
    pub header: RefCell<BackupHeader>,
    pub memory: RefCell<Option<Rc<dyn Memory>>>,
    /// While the image goes to the memory.
    pub restoring: RefCell<Option<Restoring>>,
    pub state: Cell<DramState>,
    pub reason: RefCell<Option<DramReason>>,
    /// Until when the last answer of the power supply counts.
    pub armed_until: Cell<Nanos>,
    reading: RefCell<Option<PowerReading>>,
    pub changed: Rc<Notify>,
    changes: RefCell<Vec<DramChange>>,
    /// Writes on their way to the backup device.
    pub through: Cell<u64>,
    /// Of saves, restores and arming: one at a time.
    pub turn: Mutex<()>,
    /// The task that asks the power supply runs.
    is_started: Cell<bool>,
    /// It is not armed any more: it was saved to stay so, or its last holder let it go.
    pub is_closed: Cell<bool>,
}

/// What kind of log device in memory begins with what `device` begins with, if any.
pub async fn kind_of(device: &Device) -> Result<Option<DramKind>, DeviceError> {
    Ok(DramKind::of(&device.read(0, IoBuf::zeroed(2 * BLOCK_LEN)).await?))
}

impl DramDevice {
    /// The log device whose backup device this is. A memory that is ahead of the image is looked
    /// for on `host`; without it, what was in it is lost, and so is the device.
    pub async fn open(backup: Device, host: Rc<dyn Host>) -> Result<Device, DeviceError> {
        let slots = backup.read(0, IoBuf::zeroed(2 * BLOCK_LEN)).await?;
        let failed = |error: DramError| failed_open(backup.name(), error);
        let header = BackupHeader::decode(&slots).map_err(|e| failed(DramError::Header(e)))?;
        let geometry = backup.geometry();
        let needed_bytes = IMAGE_START_BYTES + header.size_bytes;
        if geometry.size_bytes < needed_bytes {
            return Err(failed(DramError::TooSmall { needed_bytes }));
        }
        let mut memory = None;
        if header.place == DramPlace::Memory {
            memory = Some(find_memory(&*host, &header, backup.name()).await?);
        }
        let state = match (header.place, &header.protection) {
            (DramPlace::Image, _) => DramState::Saved,
            (DramPlace::Memory, DramProtection::None) => DramState::Unprotected,
            (DramPlace::Memory, _) => DramState::Disarmed,
        };
        let power = match &header.protection {
            DramProtection::Ups { name } => {
                let unknown = || failed(DramError::NoSupply { name: name.clone() });
                Some(host.clone().power(name).ok_or_else(unknown)?)
            }
            DramProtection::None | DramProtection::Persistent | DramProtection::Mirror => None,
        };
        let geometry = Geometry {
            size_bytes: header.size_bytes,
            volatile_cache: false,
            discard_bytes: 0,
            ..geometry
        };
        let name = backup.name().to_owned();
        Ok(Self::of(name, geometry, host, (Some(backup), power), (header, memory), state))
    }

    /// The log device in a memory without a backup device, at this path.
    pub async fn open_alone(path: &str, host: Rc<dyn Host>) -> Result<Device, DeviceError> {
        let memory = host.open_memory(path).await.map_err(|e| not_opened(path, &e))?;
        let (id, size_bytes, protection) = alone(&*memory).map_err(|e| failed_open(path, e))?;
        let state = match protection {
            DramProtection::Persistent if !memory.is_persistent() => {
                return Err(failed_open(
                    path,
                    DramError::NotPersistent { memory: path.to_owned() },
                ));
            }
            // The pool uses it in a mirror only.
            DramProtection::Persistent | DramProtection::Mirror => DramState::Armed,
            DramProtection::None | DramProtection::Ups { .. } => DramState::Unprotected,
        };
        let header = BackupHeader {
            id,
            sequence: 0,
            generation: 0,
            place: DramPlace::Memory,
            size_bytes,
            save_bytes_per_s: 0,
            memory: path.to_owned(),
            protection,
        };
        let geometry = Geometry {
            size_bytes,
            block_bytes: 512,
            volatile_cache: false,
            discard_bytes: 0,
            read_only: false,
        };
        let (name, contents) = (path.to_owned(), (header, Some(memory)));
        let device = Self::of(name, geometry, host, (None, None), contents, state);
        Ok(device)
    }

    fn of(
        name: String,
        geometry: Geometry,
        host: Rc<dyn Host>,
        (backup, power): (Option<Device>, Option<Rc<dyn PowerSource>>),
        (header, memory): (BackupHeader, Option<Rc<dyn Memory>>),
        state: DramState,
    ) -> Device {
        let is_armed_for_good =
            matches!(header.protection, DramProtection::Persistent | DramProtection::Mirror);
        let shared = Shared {
            name,
            geometry,
            host,
            backup,
            power,
            header: RefCell::new(header),
            memory: RefCell::new(memory),
            restoring: RefCell::new(None),
            state: Cell::new(state),
            reason: RefCell::new((state == DramState::Disarmed).then_some(DramReason::Opened)),
            armed_until: Cell::new(if is_armed_for_good { Nanos(u64::MAX) } else { Nanos::ZERO }),
            reading: RefCell::new(None),
            changed: Notify::new(),
            changes: RefCell::default(),
            through: Cell::new(0),
            turn: Mutex::new(()),
            is_started: Cell::new(false),
            is_closed: Cell::new(false),
        };
        let device = Self { shared: Rc::new(shared) };
        if state == DramState::Disarmed {
            // What only the memory has must not wait for the first write: an import may take long.
            device.shared.clone().start();
        }
        Rc::new(device)
    }
}

fn failed_open(name: &str, error: DramError) -> DeviceError {
    DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Layer(Cause::new(error)))
}

fn not_opened(name: &str, error: &std::io::Error) -> DeviceError {
    if error.kind() == std::io::ErrorKind::WouldBlock {
        return DeviceError::new(name, Operation::Open, 0, 0, ErrorKind::Busy);
    }
    DeviceError::os(name, Operation::Open, 0, 0, error)
}

/// Id, size and protection of a memory without a backup device.
fn alone(memory: &dyn Memory) -> Result<(u64, u64, DramProtection), DramError> {
    let needed_bytes = BLOCK_BYTES;
    if memory.len_bytes() < needed_bytes {
        return Err(DramError::TooSmall { needed_bytes });
    }
    let mut bytes = vec![0; BLOCK_LEN];
    memory.read(0, &mut bytes);
    let header = MemoryHeader::decode(&bytes).map_err(DramError::Header)?;
    let needed_bytes = content_start_bytes(header.size_bytes) + header.size_bytes;
    if memory.len_bytes() < needed_bytes {
        return Err(DramError::TooSmall { needed_bytes });
    }
    Ok((header.id, header.size_bytes, header.alone.unwrap_or(DramProtection::None)))
}

/// The memory that is ahead of the image.
async fn find_memory(
    host: &dyn Host,
    header: &BackupHeader,
    name: &str,
) -> Result<Rc<dyn Memory>, DeviceError> {
    let lost =
        |found| failed_open(name, DramError::MemoryLost { memory: header.memory.clone(), found });
    let memory = match host.open_memory(&header.memory).await {
        Ok(memory) => memory,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            return Err(not_opened(name, &error));
        }
        Err(error) => return Err(lost(FoundMemory::Nothing(error.kind()))),
    };
    let len_bytes = content_start_bytes(header.size_bytes) + header.size_bytes;
    if memory.len_bytes() != len_bytes {
        return Err(lost(FoundMemory::Other));
    }
    let mut bytes = vec![0; BLOCK_LEN];
    memory.read(0, &mut bytes);
    match MemoryHeader::decode(&bytes) {
        Ok(found) if (found.id, found.generation) == (header.id, header.generation) => Ok(memory),
        _ => Err(lost(FoundMemory::Other)),
    }
}

impl Shared {
    pub fn error(
        &self,
        operation: Operation,
        offset: u64,
        len: u64,
        kind: ErrorKind,
    ) -> DeviceError {
        DeviceError::new(&self.name, operation, offset, len, kind)
    }

    pub fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes
    }

    pub fn set_state(&self, to: DramState, reason: Option<DramReason>) {
        let from = self.state.replace(to);
        *self.reason.borrow_mut() = reason.clone();
        let mut changes = self.changes.borrow_mut();
        if from != to && changes.len() < CHANGES_MAX {
            changes.push(DramChange { from, to, reason });
        }
        drop(changes);
        self.changed.notify_all();
    }

    /// Whether a write may be acknowledged from memory alone, now.
    fn is_armed(&self) -> bool {
        match self.state.get() {
            DramState::Armed => rt::now_with_suspension() <= self.armed_until.get(),
            DramState::Unprotected => true,
            _ => false,
        }
    }

    /// The flags of the chunks from `first` to `last`.
    pub fn mark(&self, memory: &dyn Memory, offset_bytes: u64, len_bytes: u64, flag: u8) {
        let first = offset_bytes / CHUNK_BYTES;
        let last = (offset_bytes + len_bytes.max(1) - 1) / CHUNK_BYTES;
        for chunk in first..=last {
            memory.write(BLOCK_BYTES + chunk, &[flag]);
        }
    }

    /// Where the content begins in the memory.
    pub fn content_start(&self) -> u64 {
        content_start_bytes(self.size_bytes())
    }

    /// Chunks that the image lacks.
    pub fn unsaved_chunks(&self, memory: &dyn Memory) -> Vec<u64> {
        let mut flags = vec![0; chunks_of(self.size_bytes()) as usize];
        memory.read(BLOCK_BYTES, &mut flags);
        let marked = flags.iter().enumerate().filter(|(_, flag)| **flag != 0);
        marked.map(|(chunk, _)| chunk as u64).collect()
    }

    fn write_memory(&self, offset_bytes: u64, data: &[u8]) {
        let memory = self.memory.borrow();
        let memory = memory.as_ref().expect("a device that is armed has its memory");
        // The flag comes first: a process that is killed in between has marked too much.
        self.mark(&**memory, offset_bytes, data.len() as u64, 1);
        memory.write(self.content_start() + offset_bytes, data);
    }

    async fn write(self: Rc<Self>, offset: u64, data: IoBytes) -> Result<(), DeviceError> {
        let len = data.len() as u64;
        check_range(&self.name, &self.geometry, Operation::Write, offset, len)?;
        self.clone().start();
        loop {
            if self.is_armed() {
                self.write_memory(offset, &data);
                return Ok(());
            }
            match self.state.get() {
                // The last answer of the power supply is too old.
                DramState::Armed => self.clone().save_at_once(DramReason::Stale),
                DramState::Saved | DramState::Restoring | DramState::Restored => {
                    return self.write_through(offset, data).await;
                }
                DramState::SaveFailed => {
                    return Err(self.save_failed(Operation::Write, offset, len));
                }
                DramState::Disarmed | DramState::Saving | DramState::Unprotected => {}
            }
            let state = self.state.get();
            self.changed.until(|| self.state.get() != state || self.is_armed()).await;
        }
    }

    fn save_failed(&self, operation: Operation, offset: u64, len: u64) -> DeviceError {
        let kind = match &*self.reason.borrow() {
            Some(DramReason::BackupFailed { cause }) => ErrorKind::Layer(cause.clone()),
            _ => ErrorKind::Gone,
        };
        self.error(operation, offset, len, kind)
    }

    async fn read(self: Rc<Self>, offset: u64, mut buf: IoBuf) -> Result<IoBuf, DeviceError> {
        let len = buf.len() as u64;
        check_range(&self.name, &self.geometry, Operation::Read, offset, len)?;
        let memory = self.memory.borrow().clone();
        let is_whole = match &*self.restoring.borrow() {
            Some(restoring) => restoring.has(offset, len),
            None => true,
        };
        if let Some(memory) = memory.filter(|_| is_whole) {
            memory.read(self.content_start() + offset, &mut buf);
            return Ok(buf);
        }
        let backup = self.backup.clone().expect("without one there is a memory");
        backup.read(IMAGE_START_BYTES + offset, buf).await.map_err(|e| self.renamed(e))
    }

    /// An error of the backup device, at the place of this device.
    fn renamed(&self, error: DeviceError) -> DeviceError {
        let offset_bytes = error.offset_bytes.saturating_sub(IMAGE_START_BYTES);
        DeviceError { offset_bytes, ..error }
    }

    /// Waits until what was written is where it stays.
    async fn settled(self: Rc<Self>) -> Result<(), DeviceError> {
        loop {
            match self.state.get() {
                DramState::Disarmed | DramState::Saving => self.clone().start(),
                DramState::SaveFailed => return Err(self.save_failed(Operation::Flush, 0, 0)),
                DramState::Armed | DramState::Unprotected => return Ok(()),
                // A write that a process before this one had under way may be there to be read, and
                // not be durable.
                DramState::Saved | DramState::Restoring | DramState::Restored => {
                    let backup = self.backup.clone().expect("it has the image");
                    return backup.flush().await;
                }
            }
            let state = self.state.get();
            self.changed.until(|| self.state.get() != state).await;
        }
    }

    /// Starts the task that keeps the states, unless it runs. A device that is only looked at needs
    /// none.
    fn start(self: Rc<Self>) {
        if self.backup.is_some() && !self.is_started.replace(true) {
            let power = self.power.clone();
            rt::spawn(keep(Rc::downgrade(&self), power));
        }
    }

    /// Saves without anybody waiting for it.
    fn save_at_once(self: Rc<Self>, reason: DramReason) {
        self.set_state(DramState::Saving, Some(reason.clone()));
        rt::spawn(async move { drop(self.save(reason).await) });
    }

    /// What a save of the whole memory takes, in seconds.
    pub fn save_secs(&self) -> u64 {
        let header = self.header.borrow();
        header.size_bytes.div_ceil(header.save_bytes_per_s.max(1))
    }

    /// Takes notice of an answer of the power supply, which was asked at `asked_at`.
    async fn hear(self: Rc<Self>, judged: Result<(), DramReason>, asked_at: Nanos) {
        let state = self.state.get();
        match judged {
            Ok(()) => {
                self.armed_until.set(asked_at + READING_MAX_AGE);
                match state {
                    DramState::Disarmed => self.set_state(DramState::Armed, None),
                    DramState::Saved | DramState::Restored => self.arm().await,
                    DramState::SaveFailed => drop(self.save(DramReason::Opened).await),
                    _ => {}
                }
            }
            // One question that was lost is no reason while the answer before still counts.
            Err(DramReason::NoAnswer { .. }) if state == DramState::Armed && self.is_armed() => {}
            Err(reason) => match state {
                DramState::Armed | DramState::Disarmed | DramState::SaveFailed => {
                    drop(self.save(reason).await);
                }
                _ => *self.reason.borrow_mut() = Some(reason),
            },
        }
    }

    /// A memory that was deleted is gone when this process ends.
    async fn check_memory(self: &Rc<Self>) {
        let memory = self.memory.borrow().clone();
        let Some(memory) = memory.filter(|memory| !memory.is_linked()) else { return };
        drop(memory);
        let kind = ErrorKind::Deleted;
        let error = self.error(Operation::Check, 0, 0, kind);
        let saved = self.clone().save(DramReason::NoMemory { cause: Cause::new(error) }).await;
        if saved.is_ok() && self.header.borrow().place == DramPlace::Image {
            *self.memory.borrow_mut() = None;
        }
    }
}

/// Asks the power supply, arms, disarms and restores, as long as the device is there. It does not
/// keep the device while it waits.
async fn keep(shared: Weak<Shared>, power: Option<Rc<dyn PowerSource>>) {
    // A command that ends at once needs no memory. Writes that wait are another matter.
    let is_ahead = shared.upgrade().is_some_and(|device| device.memory.borrow().is_some());
    if !is_ahead {
        rt::sleep(POLL_INTERVAL).await;
    }
    loop {
        let asked_at = rt::now_with_suspension();
        let asked = match &power {
            Some(power) => Some(power.read().await),
            None => None,
        };
        let Some(device) = shared.upgrade().filter(|device| !device.is_closed.get()) else {
            return;
        };
        device.check_memory().await;
        let can_restore = matches!(device.state.get(), DramState::Saved | DramState::Restored);
        if can_restore && device.memory.borrow().is_none() {
            device.clone().restore(&*device.host).await;
        }
        let (save_secs, is_armed) = (device.save_secs(), device.state.get() == DramState::Armed);
        let judged = match &asked {
            None => Ok(()),
            Some(Err(cause)) => Err(DramReason::NoAnswer { cause: cause.clone() }),
            Some(Ok(reading)) => judge(reading, save_secs, is_armed),
        };
        *device.reading.borrow_mut() = asked.and_then(Result::ok);
        device.clone().hear(judged, asked_at).await;
        drop(device);
        rt::sleep(POLL_INTERVAL).await;
    }
}

impl Drop for DramDevice {
    fn drop(&mut self) {
        self.shared.is_closed.set(true);
    }
}

impl BlockDevice for DramDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if let Some(backup) = &self.shared.backup {
                return backup.check_presence().await;
            }
            let is_linked = self.shared.memory.borrow().as_ref().is_some_and(|m| m.is_linked());
            let deleted = || self.shared.error(Operation::Check, 0, 0, ErrorKind::Deleted);
            is_linked.then_some(()).ok_or_else(deleted)
        })
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(self.shared.clone().read(offset_bytes, buf))
    }
    /// Durable on completion, with `fua` and without.
    fn write(&self, offset_bytes: u64, data: IoBytes, _fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(self.shared.clone().write(offset_bytes, data))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.shared.clone().settled())
    }
    /// Changes nothing.
    fn discard(&self, offset_bytes: u64, len_bytes: u64, _fua: bool) -> DeviceFuture<'_, ()> {
        let shared = &self.shared;
        let op = Operation::Discard;
        let checked = check_range(&shared.name, &shared.geometry, op, offset_bytes, len_bytes);
        Box::pin(std::future::ready(checked))
    }
    fn save(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let shared = self.shared.clone();
            if shared.backup.is_none() {
                return Ok(());
            }
            shared.is_closed.set(true);
            shared.clone().save(DramReason::Closed).await?;
            // The next use restores it.
            let path = shared.header.borrow().memory.clone();
            if shared.memory.borrow_mut().take().is_some() {
                shared.host.remove_memory(&path).await;
            }
            Ok(())
        })
    }
    fn dram(&self) -> Option<DramStatus> {
        let shared = &self.shared;
        let header = shared.header.borrow();
        let ups = match &header.protection {
            DramProtection::Ups { name } => Some(name.clone()),
            DramProtection::None | DramProtection::Persistent | DramProtection::Mirror => None,
        };
        let is_ahead = shared.backup.is_some() && header.place == DramPlace::Memory;
        let memory = shared.memory.borrow().clone().filter(|_| is_ahead);
        let unsaved = memory.map_or(0, |memory| shared.unsaved_chunks(&*memory).len() as u64);
        Some(DramStatus {
            state: shared.state.get(),
            reason: shared.reason.borrow().clone(),
            memory: header.memory.clone(),
            ups,
            is_persistent: header.protection == DramProtection::Persistent,
            needs_mirror: header.protection == DramProtection::Mirror,
            has_backup: shared.backup.is_some(),
            unsaved_bytes: unsaved * CHUNK_BYTES,
            save_secs: if shared.backup.is_some() { shared.save_secs() } else { 0 },
            ups_status: shared.reading.borrow().as_ref().map(|r| r.status.clone()),
            runtime_secs: shared.reading.borrow().as_ref().and_then(|r| r.runtime_secs),
        })
    }
    fn take_dram_changes(&self) -> Vec<DramChange> {
        self.shared.changes.take()
    }
}
