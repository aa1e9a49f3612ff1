//! A simulated disk over a device model of `forebay-flash`.
//!
//! What enters: block commands and power events. What leaves: completions at the model's times, and
//! after a power cut the contents that the model's damage report allows. What always holds: the
//! model decides latency, durability and damage; this file keeps the bytes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Cause, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    check_range,
};
use forebay_flash::{
    Chance, Completion, CutReport, Damage, DeviceSpec, Fate, Model, Request, SpecError, Stats,
    Status, WriteId,
};
use forebay_rt as rt;
use forebay_units::Nanos;

use crate::Media;

/// The byte that fills an unreadable range. The model fails reads of the range; a read that came
/// through by mistake would return no data that a client wrote.
const UNREADABLE_BYTE: u8 = 0xdb;

enum Payload {
    Data(IoBytes),
    Zeros,
}

/// A change that a power cut may still undo, with the bytes it replaced.
struct Change {
    /// The write's id; for a trim, the id of the last write before it.
    write: WriteId,
    trim: bool,
    offset_bytes: u64,
    len_bytes: u64,
    payload: Payload,
    before: Vec<u8>,
}

struct State {
    model: Box<dyn Model>,
    media: Media,
    /// In order of submission.
    journal: VecDeque<Change>,
    chance: Chance,
    /// How far the device's clock is ahead of the runtime's.
    ahead: Nanos,
    latest: Nanos,
}

/// A simulated SSD, DRAM SSD or disk. It outlives runtimes, as a disk outlives kernels.
///
/// A write changes the contents at submission, so the contents follow the model's write numbers. A
/// power cut undoes changes in reverse order. A dropped future has had its effect.
pub struct FlashDisk {
    name: String,
    geometry: Geometry,
    powered: Cell<bool>,
    state: RefCell<State>,
}

impl FlashDisk {
    /// A new device of zeros with power. Every random choice derives from `seed`.
    ///
    /// # Errors
    /// [`SpecError`] when `spec` describes no possible device.
    pub fn new(name: &str, spec: &DeviceSpec, seed: u64) -> Result<Rc<Self>, SpecError> {
        let model = forebay_flash::build(spec, seed)?;
        let identity = model.identity();
        // Whole blocks only: the rest at the end of a scaled device is unused.
        let size_bytes = identity.capacity_bytes / 4096 * 4096;
        let geometry = Geometry {
            size_bytes,
            block_bytes: 512,
            volatile_cache: identity.volatile_cache,
            discard_bytes: 4096,
            read_only: false,
        };
        let state = State {
            model,
            media: Media::new(size_bytes),
            journal: VecDeque::new(),
            chance: Chance::derive(seed, "cuts"),
            ahead: Nanos(0),
            latest: Nanos(0),
        };
        let (powered, state) = (Cell::new(true), RefCell::new(state));
        Ok(Rc::new(Self { name: name.to_owned(), geometry, powered, state }))
    }

    /// The model's statistics up to the last command or power event.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.state.borrow();
        state.model.stats(state.latest)
    }

    /// A hash of the model's state, equal for equal histories.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.state.borrow().model.digest()
    }

    /// The contents as reads see them.
    #[must_use]
    pub fn contents(&self) -> Media {
        self.state.borrow().media.clone()
    }

    /// Cuts this device's power: no later command completes. Call it inside the runtime for every
    /// device that shares the supply, then call [`rt::halt`].
    pub fn power_cut(&self) -> CutReport {
        if !self.powered.replace(false) {
            return CutReport::default();
        }
        let state = &mut *self.state.borrow_mut();
        let now = state.tick();
        let report = state.model.power_cut(now, &mut state.chance);
        state.apply(&report);
        report
    }

    /// Restores power `off` after the cut; the old runtime must be gone. Returns damage that shows
    /// only now, such as a backup that cannot be restored.
    pub fn power_on(&self, off: Nanos) -> Vec<Damage> {
        if self.powered.replace(true) {
            return Vec::new();
        }
        let state = &mut *self.state.borrow_mut();
        state.latest = state.latest + off;
        // The next runtime's clock starts at 0.
        state.ahead = state.latest;
        let on = state.model.power_on(state.latest, &mut state.chance);
        for hit in &on.damage {
            state.make_unreadable(hit);
        }
        on.damage
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, &self.geometry, operation, offset, len)
    }

    fn error(&self, operation: Operation, offset: u64, len: u64, kind: ErrorKind) -> DeviceError {
        DeviceError::new(&self.name, operation, offset, len, kind)
    }

    async fn wait_without_power() -> ! {
        std::future::pending::<()>().await;
        unreachable!("no command completes without power")
    }

    /// Waits until the model's completion time: at least one turn of the executor.
    async fn wait(&self, at: Nanos) {
        let ahead = self.state.borrow().ahead;
        let deadline = Nanos(at.0.saturating_sub(ahead.0));
        if deadline > rt::now() {
            rt::sleep_until(deadline).await;
        } else {
            rt::yield_now().await;
        }
        if !self.powered.get() {
            Self::wait_without_power().await;
        }
    }

    /// Submits a request to the model and, when it took effect, changes the contents.
    fn submit(
        &self,
        operation: Operation,
        request: &Request<'_>,
        payload: Option<Payload>,
    ) -> Result<Completion, DeviceError> {
        let state = &mut *self.state.borrow_mut();
        let now = state.tick();
        let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
        let done = state.model.submit(now, request).map_err(|e| {
            self.error(operation, offset_bytes, len_bytes, ErrorKind::Layer(Cause::new(e)))
        })?;
        if let (Some(payload), Status::Done) = (payload, done.status) {
            let mut before = vec![0; len_bytes as usize];
            state.media.read(offset_bytes, &mut before);
            let trim = operation == Operation::Discard;
            let write = done.write;
            let change = Change { write, trim, offset_bytes, len_bytes, payload, before };
            change.apply(&mut state.media, 0, len_bytes);
            state.journal.push_back(change);
        }
        let bound = state.model.durable_before(now);
        while state.journal.front().is_some_and(|change| change.write < bound) {
            state.journal.pop_front();
        }
        Ok(done)
    }

    async fn change(
        &self,
        operation: Operation,
        request: Request<'_>,
        payload: Payload,
    ) -> Result<(), DeviceError> {
        let (offset_bytes, len_bytes) = (request.offset_bytes, request.len_bytes);
        self.check(operation, offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        if !self.powered.get() {
            Self::wait_without_power().await;
        }
        let done = self.submit(operation, &request, Some(payload))?;
        self.wait(done.at).await;
        match done.status {
            Status::WornOut => {
                Err(self.error(operation, offset_bytes, len_bytes, ErrorKind::WornOut))
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// Advances the device's clock to the runtime's time.
    fn tick(&mut self) -> Nanos {
        self.latest = self.latest.max(self.ahead + rt::now());
        self.latest
    }

    /// Computes the contents after a power cut: undoes every undecided change, then redoes each
    /// write except for the damage that the report names.
    fn apply(&mut self, report: &CutReport) {
        for change in self.journal.iter().rev() {
            self.media.write(change.offset_bytes, &change.before);
        }
        for change in std::mem::take(&mut self.journal) {
            if report.undone_from.is_some_and(|first| change.write >= first) {
                continue;
            }
            let hits: Vec<&Damage> = report
                .damage
                .iter()
                .filter(|hit| !change.trim && hit.write == Some(change.write))
                .collect();
            change.apply_without(&mut self.media, &hits);
        }
        for hit in &report.damage {
            if hit.write.is_none() || hit.fate == Fate::Unreadable {
                self.make_unreadable(hit);
            }
        }
    }

    fn make_unreadable(&mut self, hit: &Damage) {
        // The model's device may be slightly larger than the whole blocks in use.
        let end = (hit.offset_bytes + hit.len_bytes).min(self.media.size_bytes());
        if hit.offset_bytes < end {
            self.media.fill(hit.offset_bytes, end - hit.offset_bytes, UNREADABLE_BYTE);
        }
    }
}

impl Change {
    /// Writes bytes `from..to` of this change, counted from its start.
    fn apply(&self, media: &mut Media, from: u64, to: u64) {
        if from >= to {
            return;
        }
        match &self.payload {
            Payload::Data(data) => {
                media.write(self.offset_bytes + from, &data[from as usize..to as usize]);
            }
            Payload::Zeros => media.fill(self.offset_bytes + from, to - from, 0),
        }
    }

    /// Writes the whole change except for the damaged ranges.
    fn apply_without(&self, media: &mut Media, hits: &[&Damage]) {
        let mut lost: Vec<(u64, u64)> = Vec::new();
        for hit in hits {
            let intact_bytes = match hit.fate {
                Fate::Shorn { intact_bytes } => intact_bytes,
                Fate::Lost | Fate::RolledBack | Fate::Unreadable => 0,
            };
            // A damaged range may be a whole mapping unit, wider than this write.
            let from = (hit.offset_bytes + intact_bytes).max(self.offset_bytes);
            let to = (hit.offset_bytes + hit.len_bytes).min(self.offset_bytes + self.len_bytes);
            if from < to {
                lost.push((from - self.offset_bytes, to - self.offset_bytes));
            }
        }
        lost.sort_unstable();
        let mut at = 0;
        for (from, to) in lost {
            self.apply(media, at, from);
            at = at.max(to);
        }
        self.apply(media, at, self.len_bytes);
    }
}

impl BlockDevice for FlashDisk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let len_bytes = buf.len() as u64;
            self.check(Operation::Read, offset_bytes, len_bytes)?;
            if len_bytes == 0 {
                return Ok(buf);
            }
            if !self.powered.get() {
                Self::wait_without_power().await;
            }
            let request = Request::read(offset_bytes, len_bytes);
            let done = self.submit(Operation::Read, &request, None)?;
            self.wait(done.at).await;
            if let Status::Unreadable { offset_bytes: lost, len_bytes: lost_bytes } = done.status {
                let kind = ErrorKind::Unreadable { offset_bytes: lost, len_bytes: lost_bytes };
                return Err(self.error(Operation::Read, offset_bytes, len_bytes, kind));
            }
            self.state.borrow().media.read(offset_bytes, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let held = data.clone();
            let request = Request::write(offset_bytes, data.len() as u64)
                .with(forebay_flash::Content::Bytes(&held));
            let request = if fua { request.fua() } else { request };
            self.change(Operation::Write, request, Payload::Data(data)).await
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if !self.powered.get() {
                Self::wait_without_power().await;
            }
            let done = self.submit(Operation::Flush, &Request::flush(), None)?;
            self.wait(done.at).await;
            Ok(())
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let request = Request::trim(offset_bytes, len_bytes);
            self.change(Operation::Discard, request, Payload::Zeros).await?;
            if fua { self.flush().await } else { Ok(()) }
        })
    }
}

#[cfg(test)]
mod tests;
