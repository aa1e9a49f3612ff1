//! One cache device: what it has, how it is read, and when it is given up.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use forebay_cache::{BlockKey, DeviceIndex};
use forebay_device::{DeviceError, ErrorKind, IoBuf};
use forebay_format::FormatError;
use forebay_format::cache_device::CacheShape;
use forebay_format::config::{CacheConfig, MemberUse};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::{BLOCK_LEN, Nanos};

use super::fill::Filling;
use crate::opener::OpenDevice;
use crate::status::stats::io_counts;
use crate::status::{CacheDeviceStats, Health, IoCounts, VdevNote};

const ENOENT: i32 = 2;
const EACCES: i32 = 13;

/// How long a reader waits for a cache device before it turns to the main store.
const PATIENCE: Nanos = Nanos::from_millis(50);
/// How long a device that was too slow is left alone: the first time, and at most.
const FIRST_PAUSE: Nanos = Nanos::from_millis(100);
const LONGEST_PAUSE: Nanos = Nanos::from_secs(10);
/// Bad reads after which a device is given up, if they are more than one in a hundred.
const MOST_BAD_READS: u64 = 64;
/// After this long without an answer, a device is given up.
pub(super) const DEADLINE: Nanos = Nanos::from_secs(5);

/// What is wrong with a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheFault {
    /// It cannot be opened.
    Open(DeviceError),
    /// It failed a command.
    Failed(DeviceError),
    /// It has no header of a cache device.
    NoHeader(FormatError),
    /// It is a cache device of another pool, or was added anew since.
    OtherPool {
        /// The name of the pool.
        name: String,
    },
    /// Many of its reads failed or gave wrong data.
    ManyBadReads {
        /// How many.
        count: u64,
    },
}

impl CacheFault {
    /// The same as a note in `pool status`.
    fn note(&self) -> VdevNote {
        let (Self::Open(error) | Self::Failed(error)) = self else {
            return match self {
                Self::NoHeader(_) => VdevNote::NoLabel,
                Self::OtherPool { name } => VdevNote::OtherPool { name: name.clone() },
                _ => VdevNote::TooManyErrors,
            };
        };
        match error.kind {
            ErrorKind::Os { errno: ENOENT } => VdevNote::Missing,
            ErrorKind::Os { errno: EACCES } => VdevNote::NoPermission,
            ErrorKind::TimedOut { .. } => VdevNote::NoAnswer,
            ErrorKind::Busy => VdevNote::InUse,
            _ => VdevNote::NotOpened { error: error.to_string() },
        }
    }
}

impl fmt::Display for CacheFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) | Self::Failed(error) => write!(f, "{error}"),
            Self::NoHeader(_) => write!(f, "it is not a cache device of this pool"),
            Self::OtherPool { name } => write!(f, "it is a cache device of pool '{name}' by now"),
            Self::ManyBadReads { count } => write!(f, "{count} reads failed or gave wrong data"),
        }
    }
}

/// How far a cache device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheState {
    /// To be opened.
    Waiting,
    /// Its index is being read.
    Loading,
    /// In use.
    Online,
    /// Taken offline by the operator.
    Offline,
    /// Given up until an operator, or the next import, tries again.
    Faulted,
}

/// A cache device of a pool.
pub(crate) struct CacheDevice {
    pub id: u32,
    pub nonce: u64,
    pub state: Cell<CacheState>,
    /// Why it is not in use.
    pub why: RefCell<Option<CacheFault>>,
    /// It no longer belongs to the pool.
    pub has_left: Cell<bool>,
    /// Its task has ended, and has let the device go.
    pub has_ended: Cell<bool>,
    /// Notified when there is something for its task.
    pub wake: Rc<Notify>,
    pub(super) open: RefCell<Option<OpenDevice>>,
    /// Its regions, as far as there is memory for their index.
    pub(super) shape: Cell<CacheShape>,
    /// Where the snapshot of the index lies.
    pub(super) snapshot_at_bytes: u64,
    pub(super) index: RefCell<DeviceIndex>,
    pub(super) filling: RefCell<Filling>,
    pub(super) counts: Cell<Counts>,
    leave_alone_until: Cell<Nanos>,
    pause: Cell<Nanos>,
}

/// Counts since import.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub hits: u64,
    pub slow: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub wrong: u64,
    pub admitted: u64,
    pub refused_busy: u64,
    pub refused_budget: u64,
    pub loaded: u64,
}

impl CacheDevice {
    /// A device, with what it was opened as if it is open.
    pub fn new(config: &CacheConfig, open: Option<OpenDevice>) -> Rc<Self> {
        let shape = CacheShape::of(config.size_bytes);
        Rc::new(Self {
            id: config.device,
            nonce: config.nonce,
            state: Cell::new(match config.state {
                MemberUse::Offline => CacheState::Offline,
                MemberUse::Online | MemberUse::Faulted => CacheState::Waiting,
            }),
            why: RefCell::default(),
            has_left: Cell::new(false),
            has_ended: Cell::new(false),
            wake: Notify::new(),
            open: open.into(),
            shape: Cell::new(shape),
            snapshot_at_bytes: shape.snapshot_offset_bytes(),
            index: DeviceIndex::new(0).into(),
            filling: RefCell::default(),
            counts: Cell::default(),
            leave_alone_until: Cell::default(),
            pause: Cell::new(FIRST_PAUSE),
        })
    }

    pub fn shape(&self) -> CacheShape {
        self.shape.get()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    pub fn count_hits(&self, blocks: u64) {
        self.count(|counts| counts.hits += blocks);
    }

    /// Where a block is, and its checksum, if the device can be read now. An entry with another
    /// checksum than `sum` is forgotten.
    pub fn find(&self, key: BlockKey, sum: Option<u64>) -> Option<(u32, u64)> {
        if self.state.get() != CacheState::Online || rt::now() < self.leave_alone_until.get() {
            return None;
        }
        let (position, known) = self.index.borrow().get(key)?;
        if sum.is_some_and(|sum| sum != known) {
            self.index.borrow_mut().forget(position);
            return None;
        }
        Some((position, known))
    }

    /// Whether no footer lies between two positions.
    pub fn are_adjacent(&self, first: u32, last: u32) -> bool {
        let blocks = self.shape.get().data_blocks();
        first / blocks == last / blocks
    }

    /// A block has a new place in the main store.
    pub fn rename(&self, old: BlockKey, new: BlockKey) {
        self.index.borrow_mut().rename(old, new);
    }

    /// Reads blocks. `None` when they did not come, or not in time. An error when the device is to
    /// be given up.
    pub async fn read(&self, position: u32, blocks: u32) -> Result<Option<IoBuf>, CacheFault> {
        let Some(open) = self.open.borrow().clone() else { return Ok(None) };
        let buf = IoBuf::recycled(blocks as usize * BLOCK_LEN);
        let at_bytes = self.shape.get().block_offset_bytes(position);
        let device = open.device();
        match rt::timeout(PATIENCE, device.read(at_bytes, buf)).await {
            Ok(Ok(data)) => {
                self.pause.set(FIRST_PAUSE);
                Ok(Some(data))
            }
            Ok(Err(error)) => {
                self.count(|counts| counts.read_errors += 1);
                // The same place would fail again.
                (0..blocks).for_each(|index| self.index.borrow_mut().forget(position + index));
                self.judge(error)?;
                Ok(None)
            }
            Err(rt::Elapsed) => {
                self.count(|counts| counts.slow += 1);
                self.leave_alone_until.set(rt::now() + self.pause.get());
                self.pause.set(Nanos(2 * self.pause.get().0).min(LONGEST_PAUSE));
                Ok(None)
            }
        }
    }

    /// The block at `position` does not have the checksum `sum`. That is no fault of the device if
    /// it was overwritten meanwhile. An error when the device is to be given up.
    pub fn note_wrong(&self, position: u32, sum: u64) -> Result<(), CacheFault> {
        let is_there = self.index.borrow().at(position).is_some_and(|found| found.sum == sum);
        if !is_there {
            return Ok(());
        }
        self.index.borrow_mut().forget(position);
        self.count(|counts| counts.wrong += 1);
        self.judge_reads()
    }

    /// An error when `error` is one that stays.
    fn judge(&self, error: DeviceError) -> Result<(), CacheFault> {
        match error.kind {
            ErrorKind::TimedOut { .. } | ErrorKind::Gone => Err(CacheFault::Failed(error)),
            _ => self.judge_reads(),
        }
    }

    fn judge_reads(&self) -> Result<(), CacheFault> {
        let Counts { hits, read_errors, wrong, .. } = self.counts.get();
        let count = read_errors + wrong;
        if count >= MOST_BAD_READS && count > hits / 100 {
            return Err(CacheFault::ManyBadReads { count });
        }
        Ok(())
    }

    /// Lets the device go, and what is known of it.
    pub fn close(&self, state: CacheState) {
        self.state.set(state);
        self.open.take();
        self.index.replace(DeviceIndex::new(0));
        self.filling.take();
        self.wake.notify_all();
    }

    /// Blocks that it has, and has room for.
    pub fn used_blocks(&self) -> (u32, u32) {
        (self.index.borrow().len(), self.shape.get().capacity_blocks())
    }

    pub fn health(&self) -> Health {
        match self.state.get() {
            CacheState::Waiting => Health::Unavail,
            CacheState::Loading | CacheState::Online => Health::Online,
            CacheState::Offline => Health::Offline,
            CacheState::Faulted => Health::Faulted,
        }
    }

    /// Why it is not in use.
    pub fn note(&self) -> Option<VdevNote> {
        let is_out = matches!(self.state.get(), CacheState::Waiting | CacheState::Faulted);
        self.why.borrow().as_ref().filter(|_| is_out).map(CacheFault::note)
    }

    /// Forgets its errors. A device in one of `states` is opened anew, and what it has looked at.
    pub fn begin_anew(&self, states: &[CacheState]) {
        self.count(|counts| {
            (counts.read_errors, counts.write_errors, counts.wrong) = (0, 0, 0);
        });
        if states.contains(&self.state.get()) {
            self.close(CacheState::Waiting);
        }
    }

    /// Reads, writes and checksums that were wrong.
    pub fn errors(&self) -> (u64, u64, u64) {
        let Counts { read_errors, write_errors, wrong, .. } = self.counts.get();
        (read_errors, write_errors, wrong)
    }

    pub fn io(&self) -> IoCounts {
        let open = self.open.borrow();
        open.as_ref().map(|open| io_counts(&open.counted.counts())).unwrap_or_default()
    }

    pub fn stats(&self, config: &CacheConfig, now_secs: u64) -> CacheDeviceStats {
        const DAY_SECS: f64 = 86_400.0;
        let counts = self.counts.get();
        let written_bytes =
            self.filling.borrow().regions_written() * self.shape.get().region_bytes();
        let days = now_secs.saturating_sub(config.added_at) as f64 / DAY_SECS;
        let drive_writes = written_bytes as f64 / config.size_bytes as f64;
        let index = self.index.borrow();
        CacheDeviceStats {
            name: config.path.clone(),
            size_bytes: config.size_bytes,
            used_bytes: u64::from(index.len()) * BLOCK_LEN as u64,
            memory_bytes: index.memory_bytes(),
            hits: counts.hits,
            slow_reads: counts.slow,
            admitted: counts.admitted,
            refused_busy: counts.refused_busy,
            refused_budget: counts.refused_budget,
            loaded: counts.loaded,
            written_bytes,
            drive_writes,
            // Of a device that is younger than a day, as if it were a day old.
            drive_writes_per_day: drive_writes / days.max(1.0),
        }
    }
}

#[cfg(test)]
mod tests;
