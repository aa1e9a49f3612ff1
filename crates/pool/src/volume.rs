//! A volume: the block device that clients of the pool see.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_compress::Compression;
use forebay_device::{
    Allocation, BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes,
    Operation, ZeroOptions, check_range,
};
use forebay_format::config::VolumeConfig;
use forebay_format::receiving::RECEIVING;
use forebay_intent_log::Record;
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_txg::Demand;
use forebay_units::{BLOCK_BYTES, Nanos, SECTOR_BYTES, TxgId, VolumeId, parse_bytes};

use crate::Pool;
use crate::dedup::DedupMode;
use crate::holes::Zeroed;
use crate::rate_limit::RateLimit;
use crate::read_ahead::Streams;
use crate::status::volume_times::VolumeTimes;

/// The property `sync` of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// FUA and FLUSH are durable when they are answered.
    #[default]
    Standard,
    /// Every write is durable when it is answered.
    Always,
    /// A write is durable when its group is committed. For data that can be made again.
    Disabled,
}

impl SyncMode {
    /// From the property's value.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "standard" => Some(Self::Standard),
            "always" => Some(Self::Always),
            "disabled" => Some(Self::Disabled),
            _ => None,
        }
    }

    /// The property's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Always => "always",
            Self::Disabled => "disabled",
        }
    }
}

/// Whether a volume is being received: no client sees it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is a volume like any other.
    Whole,
    /// A stream arrives.
    Underway,
    /// A stream was interrupted.
    Interrupted,
}

/// The running state of a volume.
pub(crate) struct VolumeState {
    pub id: VolumeId,
    pub name: RefCell<String>,
    pub size_bytes: Cell<u64>,
    /// No space is set aside for it.
    pub sparse: Cell<bool>,
    pub sync: Cell<SyncMode>,
    pub gone: Cell<bool>,
    pub properties: RefCell<BTreeMap<String, String>>,
    /// Writes that are neither in the log nor committed, oldest first.
    pub pending: RefCell<Vec<Record>>,
    pub pending_bytes: Cell<u64>,
    /// Tickets of the appends to the log that are not durable yet.
    pub appending: RefCell<BTreeSet<u64>>,
    pub next_append: Cell<u64>,
    pub appended: Rc<Notify>,
    /// Groups before this one hold writes that were never pending. A flush waits for their commit.
    pub log_from: Cell<TxgId>,
    /// Blocks that a partial write is merging. Other writes of them wait.
    pub merging: RefCell<BTreeSet<u64>>,
    pub merged: Rc<Notify>,
    /// How many changes of the whole volume merges must wait for.
    pub merge_stops: Cell<u32>,
    /// Sequential readers, and what is being read ahead of them.
    pub streams: RefCell<Streams>,
    pub part_was_read: Rc<Notify>,
    /// Share of the pool's room for dirty data, against those of other volumes.
    pub weight: Cell<u32>,
    /// Whether reads go through the read cache, and whether writes go there too.
    pub is_cached: Cell<bool>,
    pub caches_writes: Cell<bool>,
    /// Whether and how its blocks are de-duplicated.
    pub dedup: Cell<DedupMode>,
    /// How its blocks are compressed.
    pub compression: Cell<Compression>,
    /// Blocks may take less space than they were promised: one of the two is on, or was since the
    /// import.
    pub may_take_less: Cell<bool>,
    /// Requests a second, and bytes of reads and writes a second.
    pub iops_limit: RateLimit,
    pub bandwidth_limit: RateLimit,
    /// It is a snapshot: it cannot be written.
    pub is_snapshot: bool,
    /// A snapshot of it is being taken or destroyed: after a power cut the snapshot may be there,
    /// and hold what is overwritten until a root says so.
    pub is_being_shared: Cell<bool>,
    /// Whether it is being received.
    pub arrival: Cell<Arrival>,
    /// When the volume was last flushed, and the bytes written since.
    pub flushed: Cell<Option<Nanos>>,
    pub since_flush_bytes: Cell<u64>,
    /// How long its operations took.
    pub times: VolumeTimes,
}

/// A flush within this time and these bytes says that clients wait for durability.
const FLUSHED_WITHIN: Nanos = Nanos::from_secs(1);
const FLUSHED_WITHIN_BYTES: u64 = 1 << 20;
/// Weight of a volume without the property `weight`.
const WEIGHT: u32 = 100;

/// Whether a volume with this value of `primarycache` is cached.
fn is_cached(value: Option<&String>) -> bool {
    value.is_none_or(|value| value == "all")
}

impl VolumeState {
    /// Whether no write merges one of these blocks.
    pub fn is_free_of_merges(&self, first: u64, end: u64) -> bool {
        self.merging.borrow().range(first..end).next().is_none()
    }

    pub fn new(config: &VolumeConfig) -> Rc<Self> {
        Rc::new(Self::with(config, false))
    }

    /// The state of a snapshot.
    pub fn of_snapshot(config: &VolumeConfig) -> Rc<Self> {
        Rc::new(Self::with(config, true))
    }

    fn with(config: &VolumeConfig, is_snapshot: bool) -> Self {
        let sync = config.properties.get("sync").and_then(|v| SyncMode::parse(v));
        let dedup = config.properties.get("dedup").and_then(|v| DedupMode::parse(v));
        let compression = config.properties.get("compression");
        let compression = compression.and_then(|v| Compression::parse(v)).unwrap_or_default();
        let dedup = dedup.unwrap_or_default();
        let number = |name: &str| config.properties.get(name).and_then(|v| parse_bytes(v).ok());
        Self {
            id: VolumeId(config.id),
            name: RefCell::new(config.name.clone()),
            size_bytes: Cell::new(config.size_bytes),
            sparse: Cell::new(config.sparse),
            sync: Cell::new(sync.unwrap_or_default()),
            gone: Cell::new(false),
            properties: RefCell::new(config.properties.clone()),
            pending: RefCell::default(),
            pending_bytes: Cell::new(0),
            appending: RefCell::default(),
            next_append: Cell::new(0),
            appended: Notify::new(),
            log_from: Cell::new(TxgId(0)),
            merging: RefCell::default(),
            merged: Notify::new(),
            merge_stops: Cell::new(0),
            streams: RefCell::default(),
            part_was_read: Notify::new(),
            weight: Cell::new(number("weight").map_or(WEIGHT, |weight| weight as u32)),
            is_cached: Cell::new(is_cached(config.properties.get("primarycache"))),
            caches_writes: Cell::new(
                config.properties.get("cache_writes").is_some_and(|value| value == "on"),
            ),
            dedup: Cell::new(dedup),
            compression: Cell::new(compression),
            may_take_less: Cell::new(dedup != DedupMode::Off || compression != Compression::Off),
            iops_limit: RateLimit::new(number("iops_limit")),
            bandwidth_limit: RateLimit::new(number("bandwidth_limit")),
            is_snapshot,
            is_being_shared: Cell::new(false),
            arrival: Cell::new(match config.properties.contains_key(RECEIVING) && !is_snapshot {
                true => Arrival::Interrupted,
                false => Arrival::Whole,
            }),
            flushed: Cell::new(None),
            since_flush_bytes: Cell::new(0),
            times: VolumeTimes::default(),
        }
    }

    /// Takes over a property that holds at once.
    pub fn apply_property(&self, name: &str, value: &str) {
        let number = parse_bytes(value).ok();
        match name {
            "weight" => self.weight.set(number.map_or(WEIGHT, |weight| weight as u32)),
            "primarycache" => self.is_cached.set(value == "all"),
            "cache_writes" => self.caches_writes.set(value == "on"),
            "dedup" => self.dedup.set(DedupMode::parse(value).unwrap_or_default()),
            "compression" => self.compression.set(Compression::parse(value).unwrap_or_default()),
            "iops_limit" => self.iops_limit.set(number),
            "bandwidth_limit" => self.bandwidth_limit.set(number),
            _ => {}
        }
    }

    /// The volume is no more. Requests that wait for its limits find that out at once: they would
    /// hold the pool and its devices for as long as they wait.
    pub fn end(&self) {
        self.gone.set(true);
        self.lift_limits();
    }

    /// Lets requests that wait for their turn go on.
    pub fn lift_limits(&self) {
        self.iops_limit.set(None);
        self.bandwidth_limit.set(None);
    }

    /// Waits until the limits let a request begin.
    async fn wait_for_turn(&self, op: Operation, bytes: u64) {
        self.iops_limit.take(1).await;
        if matches!(op, Operation::Read | Operation::Write) {
            self.bandwidth_limit.take(bytes).await;
        }
    }

    /// What a write of `bytes` asks of the throttle. Clients of a volume that was flushed a short
    /// time and few bytes ago wait for durability as well: databases write, and then flush.
    pub fn demand(&self, bytes: u64, fua: bool) -> Demand {
        let flushed = self.flushed.get();
        let since_bytes = self.since_flush_bytes.get() + bytes;
        self.since_flush_bytes.set(since_bytes);
        let is_flushed_often = since_bytes <= FLUSHED_WITHIN_BYTES
            && flushed.is_some_and(|at| rt::now().since(at) <= FLUSHED_WITHIN);
        let is_durable = match self.sync.get() {
            SyncMode::Standard => fua || is_flushed_often,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        };
        Demand { bytes, volume: self.id, weight: self.weight.get(), is_durable }
    }

    /// Notes a flush at `now`.
    pub fn note_flush(&self, now: Nanos) {
        self.flushed.set(Some(now));
        self.since_flush_bytes.set(0);
    }

    /// Forgets pending writes that are committed by now.
    pub fn committed(&self, txg: TxgId) {
        let mut pending = self.pending.borrow_mut();
        let done = pending.partition_point(|record| record.txg <= txg);
        for record in pending.drain(..done) {
            self.pending_bytes.set(self.pending_bytes.get() - record_bytes(&record));
        }
    }
}

pub(crate) fn record_bytes(record: &Record) -> u64 {
    record.data.iter().map(|piece| piece.len() as u64).sum()
}

/// The block device of a volume. It stays open when its pool is suspended, and goes on with the
/// pool that follows.
pub struct Volume {
    at: RefCell<Attached>,
    id: VolumeId,
    name: String,
    /// Operations that a suspended pool fails wait for the pool that follows.
    goes_on: bool,
}

/// A volume in the pool that has it now.
#[derive(Clone)]
struct Attached {
    pool: Rc<Pool>,
    state: Rc<VolumeState>,
}

impl Volume {
    pub(crate) fn new(pool: Rc<Pool>, state: Rc<VolumeState>) -> Self {
        let name = format!("{}/{}", pool.name(), state.name.borrow());
        Self { id: state.id, at: RefCell::new(Attached { pool, state }), name, goes_on: true }
    }

    /// A volume that ends with its pool: operations that a suspended pool fails have failed.
    pub(crate) fn of_this_pool_only(pool: Rc<Pool>, state: Rc<VolumeState>) -> Self {
        Self { goes_on: false, ..Self::new(pool, state) }
    }

    /// The pool that has the volume now, which may follow a suspended one.
    fn attached(&self) -> Attached {
        loop {
            let at = self.at.borrow().clone();
            let next = at.pool.next().filter(|_| self.goes_on);
            let followed = next.and_then(|pool| Some((pool.state_of(self.id)?, pool)));
            let Some((state, pool)) = followed else { return at };
            *self.at.borrow_mut() = Attached { pool, state };
        }
    }

    fn gone(&self, op: Operation, offset: u64, len: u64) -> DeviceError {
        DeviceError::new(&self.name, op, offset, len, ErrorKind::Gone)
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        let state = self.attached().state;
        if state.gone.get() || state.arrival.get() != Arrival::Whole {
            return Err(self.gone(op, offset, len));
        }
        let changes = matches!(op, Operation::Write | Operation::Discard | Operation::WriteZeroes);
        if state.is_snapshot && changes {
            return Err(DeviceError::new(&self.name, op, offset, len, ErrorKind::ReadOnly));
        }
        check_range(&self.name, &self.geometry(), op, offset, len)
    }

    /// Runs an operation. When a suspended pool fails it, runs it again with the pool that follows;
    /// `attempt` keeps in mind what it has done.
    async fn run<T>(
        &self,
        (op, offset, len): (Operation, u64, u64),
        attempt: impl AsyncFn(Attached) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if op != Operation::Flush {
            self.attached().state.wait_for_turn(op, len).await;
        }
        loop {
            let at = self.attached();
            let pool = at.pool.clone();
            let outcome = match pool.has_closed_devices() {
                true => Err(self.gone(op, offset, len)),
                false => match self.check(op, offset, len) {
                    Ok(()) => attempt(at).await,
                    Err(error) => Err(error),
                },
            };
            let Err(error) = outcome else { return outcome };
            if !pool.is_stopped() || !self.goes_on {
                return Err(error);
            }
            let Some(next) = pool.successor().await else { return Err(error) };
            if next.state_of(self.id).is_none() {
                return Err(error);
            }
        }
    }

    /// Writes zeroes as data.
    async fn write_zeros(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> Result<(), DeviceError> {
        const STEP_BYTES: u64 = 1 << 20;
        if options.fast {
            let (op, kind) = (Operation::WriteZeroes, ErrorKind::Unsupported);
            return Err(DeviceError::new(&self.name, op, offset_bytes, len_bytes, kind));
        }
        let zeros = IoBuf::zeroed(STEP_BYTES.min(len_bytes) as usize).freeze();
        let end_bytes = offset_bytes + len_bytes;
        let mut at = offset_bytes;
        while at < end_bytes {
            let step = (end_bytes - at).min(STEP_BYTES);
            let data = zeros.slice(0, step as usize);
            // A durable write makes all earlier writes of its volume durable.
            let fua = options.fua && at + step == end_bytes;
            self.write(at, data, fua).await?;
            at += step;
        }
        Ok(())
    }
}

impl BlockDevice for Volume {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        let state = self.attached().state;
        Geometry {
            size_bytes: state.size_bytes.get(),
            block_bytes: SECTOR_BYTES as u32,
            volatile_cache: true,
            discard_bytes: BLOCK_BYTES as u32,
            read_only: state.is_snapshot,
        }
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let len = buf.len();
            let kept = Cell::new(Some(buf));
            let what = (Operation::Read, offset_bytes, len as u64);
            self.run(what, async |Attached { pool, state }| {
                // The buffer of an attempt that failed is gone.
                let buf = kept.take().unwrap_or_else(|| IoBuf::recycled(len));
                pool.read(&state, &self.name, offset_bytes, buf).await
            })
            .await
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let absorbed = Cell::new(0);
            let what = (Operation::Write, offset_bytes, data.len() as u64);
            self.run(what, async |Attached { pool, state }| {
                pool.write(&state, &self.name, offset_bytes, data.clone(), fua, &absorbed).await
            })
            .await
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.run((Operation::Flush, 0, 0), async |Attached { pool, state }| {
                pool.flush(&state, &self.name).await
            })
            .await
        })
    }

    /// Trimmed blocks read as zeros; the parts of blocks at the edges are left as they are.
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let absorbed = Cell::new(0);
            let what = (Operation::Discard, offset_bytes, len_bytes);
            self.run(what, async |Attached { pool, state }| {
                let name = &self.name;
                pool.trim(&state, name, offset_bytes, len_bytes, fua, &absorbed).await
            })
            .await
        })
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::WriteZeroes, offset_bytes, len_bytes)?;
            if options.no_hole && self.attached().state.sparse.get() {
                // On a sparse volume only written data keeps its space.
                return self.write_zeros(offset_bytes, len_bytes, options).await;
            }
            let absorbed = Zeroed::default();
            let what = (Operation::WriteZeroes, offset_bytes, len_bytes);
            self.run(what, async |Attached { pool, state }| {
                let (name, fua) = (&self.name, options.fua);
                pool.zero(&state, name, offset_bytes, len_bytes, fua, &absorbed).await
            })
            .await
        })
    }

    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Box::pin(async move {
            let what = (Operation::Allocation, offset_bytes, len_bytes);
            self.run(what, async |Attached { pool, state }| {
                Ok(pool.allocation(&state, offset_bytes, len_bytes))
            })
            .await
        })
    }
}

#[cfg(test)]
mod tests;
