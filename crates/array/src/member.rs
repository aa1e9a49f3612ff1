//! A member: one device of a group, with its state, outdated segments and error counters.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf, IoBytes, Operation};
use forebay_rt::sync::Semaphore;
use forebay_units::DeviceId;

use crate::segment_set::SegmentSet;

/// Most reads in flight on a device: more than any device needs to be busy. Further reads wait
/// here. In the device's queue they would delay writes and label reads, and 64 MiB of scattered
/// reads would make a disk of 150 reads a second miss its deadline.
const MAX_READS_IN_FLIGHT: u64 = 128;

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Read and written.
    Online,
    /// A write or flush failed, but the group needs the member: its earlier data are read, and
    /// nothing is written.
    Degraded,
    /// Taken offline by the operator.
    Offline,
    /// Failed; neither read nor written.
    Faulted,
    /// Could not be opened.
    Unavail,
    /// Went away while in use.
    Removed,
}

impl MemberState {
    /// Whether the device is read.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::Online | Self::Degraded)
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemberState::Online => "ONLINE",
            MemberState::Degraded => "DEGRADED",
            MemberState::Offline => "OFFLINE",
            MemberState::Faulted => "FAULTED",
            MemberState::Unavail => "UNAVAIL",
            MemberState::Removed => "REMOVED",
        })
    }
}

/// Errors of a member since its counters were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    /// Reads that failed.
    pub read: u64,
    /// Writes and flushes that failed.
    pub write: u64,
    /// Blocks that were read without an error and were wrong.
    pub checksum: u64,
}

/// A member as the pool's configuration describes it.
#[derive(Clone)]
pub struct MemberSpec {
    /// Its id.
    pub id: DeviceId,
    /// The device, if it is open.
    pub device: Option<Device>,
    /// Its state. An online member without a device becomes `Unavail`.
    pub state: MemberState,
    /// Segments (ids) whose column is missing or outdated here.
    pub stale: Vec<Range<u32>>,
    /// Its error counters.
    pub errors: ErrorCounts,
}

impl MemberSpec {
    /// A member that is online and up to date.
    #[must_use]
    pub fn healthy(id: DeviceId, device: Device) -> Self {
        let (state, errors) = (MemberState::Online, ErrorCounts::default());
        Self { id, device: Some(device), state, stale: Vec::new(), errors }
    }
}

/// Writes to a member that are not known to be durable.
#[derive(Default)]
struct Unflushed {
    /// Number of completed writes.
    seq: u64,
    /// Segments with completed writes, and the number of the last one.
    dirty: BTreeMap<u32, u64>,
    /// Segments with writes in flight, and how many.
    in_flight: BTreeMap<u32, u32>,
    /// Segments whose column was rebuilt, and the number of completed writes then. They are
    /// current, but outdated again after a crash.
    rebuilt: BTreeMap<u32, u64>,
}

/// One device of a group.
pub(crate) struct Member {
    pub(crate) id: DeviceId,
    device: RefCell<Option<Device>>,
    state: Cell<MemberState>,
    /// What its state comes from, if from a failure.
    failure: RefCell<Option<DeviceError>>,
    stale: RefCell<SegmentSet>,
    errors: Cell<ErrorCounts>,
    unflushed: RefCell<Unflushed>,
    /// Counts changes of state, so that operations in flight notice them.
    epoch: Cell<u64>,
    /// Counts writes that this member missed, so that a rebuild notices them.
    misses: Cell<u64>,
    /// Includes reads that wait for `read_turns`.
    reads_in_flight: Cell<u32>,
    read_turns: Rc<Semaphore>,
    read_end_bytes: Cell<u64>,
    reads: Cell<u64>,
}

impl Member {
    pub(crate) fn new(config: MemberSpec, segments: u32, first_segment: u32) -> Self {
        let MemberSpec { id, device, state, stale, errors } = config;
        let mut set = SegmentSet::new(segments);
        for segment in stale.into_iter().flatten() {
            if segment >= first_segment && segment - first_segment < segments {
                set.insert(segment - first_segment);
            }
        }
        let state =
            if state.is_in_use() && device.is_none() { MemberState::Unavail } else { state };
        Self {
            id,
            device: RefCell::new(device),
            state: Cell::new(state),
            failure: RefCell::new(None),
            stale: RefCell::new(set),
            errors: Cell::new(errors),
            unflushed: RefCell::default(),
            epoch: Cell::new(0),
            misses: Cell::new(0),
            reads_in_flight: Cell::new(0),
            read_turns: Semaphore::new(MAX_READS_IN_FLIGHT),
            read_end_bytes: Cell::new(u64::MAX),
            reads: Cell::new(0),
        }
    }

    pub(crate) fn state(&self) -> MemberState {
        self.state.get()
    }

    pub(crate) fn device(&self) -> Option<Device> {
        self.device.borrow().clone()
    }

    /// Whether this is its device.
    pub(crate) fn has_device(&self, device: Option<&Device>) -> bool {
        let now = self.device.borrow();
        now.as_ref().zip(device).is_some_and(|(now, device)| Rc::ptr_eq(now, device))
    }

    /// Whether a write or flush that failed on `device` says something of the device that is here
    /// now. One that was closed meanwhile may be gone, or may not answer, while the one that is
    /// here does. Any other error is of the medium, which may be the same.
    pub(crate) fn is_told_of(&self, device: Option<&Device>, cause: &DeviceError) -> bool {
        let is_lost = matches!(cause.kind, ErrorKind::Gone | ErrorKind::TimedOut { .. });
        !is_lost || self.has_device(device)
    }

    pub(crate) fn set_device(&self, device: Option<Device>) {
        *self.device.borrow_mut() = device;
    }

    /// Whether it serves reads of segments that are not stale.
    pub(crate) fn is_readable(&self) -> bool {
        self.state.get().is_in_use()
    }

    /// Whether its device can be read, trusted or not.
    pub(crate) fn is_open(&self) -> bool {
        self.device.borrow().is_some()
            && (self.is_readable() || self.state() == MemberState::Faulted)
    }

    /// Whether it accepts writes.
    pub(crate) fn is_writable(&self) -> bool {
        self.state.get() == MemberState::Online
    }

    /// Whether a segment's column may be read here.
    pub(crate) fn is_current(&self, index: u32) -> bool {
        self.is_readable() && !self.is_stale(index)
    }

    /// Whether a segment's column is missing or outdated here.
    pub(crate) fn is_stale(&self, index: u32) -> bool {
        self.stale.borrow().contains(index)
    }

    /// 64 bits of [`Member::is_stale`].
    pub(crate) fn stale_word(&self, at: usize) -> u64 {
        self.stale.borrow().word(at)
    }

    pub(crate) fn stale_count(&self) -> u32 {
        self.stale.borrow().len()
    }

    pub(crate) fn stale_ranges(&self) -> Vec<Range<u32>> {
        self.stale.borrow().ranges()
    }

    /// Stale segments after a crash at this moment.
    pub(crate) fn durable_stale_ranges(&self) -> Vec<Range<u32>> {
        let mut set = self.stale.borrow().clone();
        for index in self.unflushed.borrow().rebuilt.keys() {
            set.insert(*index);
        }
        set.ranges()
    }

    pub(crate) fn mark_stale(&self, index: u32) {
        self.misses.set(self.misses.get() + 1);
        self.stale.borrow_mut().insert(index);
        self.unflushed.borrow_mut().rebuilt.remove(&index);
    }

    pub(crate) fn mark_all_stale(&self, segments: u32) {
        *self.stale.borrow_mut() = SegmentSet::full(segments);
    }

    /// Marks the segment's column as current, because nothing in the segment is live.
    pub(crate) fn reset_segment(&self, index: u32) {
        self.stale.borrow_mut().remove(index);
        self.unflushed.borrow_mut().rebuilt.remove(&index);
    }

    /// A mark that must not change during a rebuild.
    pub(crate) fn rebuild_mark(&self) -> (u64, u64) {
        (self.epoch.get(), self.misses.get())
    }

    /// Marks the segment's column as rebuilt, but not yet durable. Returns false when the member
    /// failed or missed a write since `mark` was taken.
    pub(crate) fn mark_rebuilt(&self, index: u32, mark: (u64, u64)) -> bool {
        if self.rebuild_mark() != mark || !self.is_writable() {
            return false;
        }
        if self.stale.borrow_mut().remove(index) {
            let mut unflushed = self.unflushed.borrow_mut();
            let seq = unflushed.seq;
            unflushed.rebuilt.insert(index, seq);
        }
        true
    }

    pub(crate) fn errors(&self) -> ErrorCounts {
        self.errors.get()
    }

    pub(crate) fn clear_errors(&self) {
        self.errors.set(ErrorCounts::default());
    }

    fn count(&self, change: impl FnOnce(&mut ErrorCounts)) {
        let mut errors = self.errors.get();
        change(&mut errors);
        self.errors.set(errors);
    }

    pub(crate) fn count_write_error(&self) {
        self.count(|errors| errors.write += 1);
    }

    pub(crate) fn count_checksum_errors(&self, blocks: u64) {
        self.count(|errors| errors.checksum += blocks);
    }

    /// What its state comes from, if from a failure.
    pub(crate) fn failure(&self) -> Option<DeviceError> {
        self.failure.borrow().clone()
    }

    /// Notes what a change of state came from.
    pub(crate) fn set_failure(&self, cause: Option<DeviceError>) {
        *self.failure.borrow_mut() = cause;
    }

    /// Changes the state. Leaving `Online` makes all unflushed segments stale.
    pub(crate) fn set_state(&self, state: MemberState) {
        let before = self.state.replace(state);
        if before == state {
            return;
        }
        self.epoch.set(self.epoch.get() + 1);
        if before == MemberState::Online {
            let mut unflushed = self.unflushed.borrow_mut();
            let mut stale = self.stale.borrow_mut();
            for index in std::mem::take(&mut unflushed.dirty).into_keys() {
                stale.insert(index);
            }
            for index in std::mem::take(&mut unflushed.rebuilt).into_keys() {
                stale.insert(index);
            }
            for index in unflushed.in_flight.keys() {
                stale.insert(*index);
            }
        }
    }

    fn gone(&self, operation: Operation, offset_bytes: u64, len_bytes: u64) -> DeviceError {
        let name = format!("device {}", self.id);
        DeviceError::new(&name, operation, offset_bytes, len_bytes, ErrorKind::Gone)
    }

    /// Reads from the device and counts errors; the caller acts on them.
    pub(crate) async fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<IoBuf, DeviceError> {
        let Some(device) = self.device() else {
            return Err(self.gone(Operation::Read, offset_bytes, len_bytes));
        };
        let _busy = Busy::new(&self.reads_in_flight);
        self.read_end_bytes.set(offset_bytes + len_bytes);
        self.reads.set(self.reads.get() + 1);
        let _turn = self.read_turns.acquire(1).await.expect("never closed");
        // The device may have been replaced or closed meanwhile.
        if !self.has_device(Some(&device)) {
            return Err(self.gone(Operation::Read, offset_bytes, len_bytes));
        }
        let outcome = device.read(offset_bytes, IoBuf::recycled(len_bytes as usize)).await;
        if outcome.is_err() {
            self.count(|errors| errors.read += 1);
        }
        outcome
    }

    /// Cost of a read on this member. Fewest reads in flight come first, then a member whose last
    /// read ended at this offset, then the member with the fewest reads so far.
    pub(crate) fn read_cost(&self, offset_bytes: u64) -> (u32, bool, u64) {
        let is_sequential = self.read_end_bytes.get() == offset_bytes;
        (self.reads_in_flight.get(), !is_sequential, self.reads.get())
    }

    /// Writes to a segment's column. A failed write makes the segment stale here; the caller
    /// counts it and fails the member.
    pub(crate) async fn write(
        &self,
        index: u32,
        offset_bytes: u64,
        parts: Vec<IoBytes>,
    ) -> Result<(), DeviceError> {
        let ticket = WriteTicket::new(self, index);
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum();
        let outcome = match self.device() {
            Some(device) => device.write_vectored(offset_bytes, parts, false).await,
            None => Err(self.gone(Operation::Write, offset_bytes, len_bytes)),
        };
        drop(ticket);
        outcome.inspect_err(|_| self.mark_stale(index))
    }

    /// Whether any write completed since the last successful flush.
    pub(crate) fn needs_flush(&self) -> bool {
        let unflushed = self.unflushed.borrow();
        !unflushed.dirty.is_empty() || !unflushed.rebuilt.is_empty()
    }

    /// Flushes the device. The caller counts an error and fails the member.
    pub(crate) async fn flush(&self) -> Result<(), DeviceError> {
        let (seq, epoch) = (self.unflushed.borrow().seq, self.epoch.get());
        let outcome = match self.device() {
            Some(device) => device.flush().await,
            None => Err(self.gone(Operation::Flush, 0, 0)),
        };
        if outcome.is_ok() && epoch == self.epoch.get() {
            let mut unflushed = self.unflushed.borrow_mut();
            unflushed.dirty.retain(|_, last| *last > seq);
            unflushed.rebuilt.retain(|_, last| *last > seq);
        }
        outcome
    }
}

/// Counts a write as in flight until dropped. An abandoned write counts as completed, because it
/// may have reached the media.
struct WriteTicket<'a> {
    member: &'a Member,
    index: u32,
    epoch: u64,
}

impl<'a> WriteTicket<'a> {
    fn new(member: &'a Member, index: u32) -> Self {
        *member.unflushed.borrow_mut().in_flight.entry(index).or_insert(0) += 1;
        Self { member, index, epoch: member.epoch.get() }
    }
}

impl Drop for WriteTicket<'_> {
    fn drop(&mut self) {
        let (member, index) = (self.member, self.index);
        let mut unflushed = member.unflushed.borrow_mut();
        if let Some(count) = unflushed.in_flight.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                unflushed.in_flight.remove(&index);
            }
        }
        unflushed.seq += 1;
        let seq = unflushed.seq;
        if member.epoch.get() == self.epoch {
            unflushed.dirty.insert(index, seq);
        } else {
            // The member failed meanwhile, so the write's outcome is unknown.
            drop(unflushed);
            member.mark_stale(index);
        }
    }
}

/// Counts a read as in flight until dropped.
struct Busy<'a>(&'a Cell<u32>);

impl<'a> Busy<'a> {
    fn new(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
