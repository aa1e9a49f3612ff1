//! A disk with a volatile write cache.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use forebay_device::{
    BlockDevice, DeviceError, DeviceFuture, Geometry, IoBuf, IoBytes, Operation, ZeroOptions,
    check_range,
};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::world::CommandEvent;
use crate::{Fate, LatencyModel, Media, Rng, SECTOR_LEN, Seed, Unflushed, World};

/// What a discarded range reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiscardReads {
    /// Zeros.
    Zeros,
    /// What was there before.
    Old,
    /// Each discard one of zeros, the old data, or garbage: all that the contract allows.
    Anything,
}

/// A disk's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The name that messages use.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Smallest unit of a command, 512 or 4096.
    pub block_bytes: u32,
    /// Whether completed writes wait in a cache that a power cut empties.
    pub volatile_cache: bool,
    /// How long commands take.
    pub latency: LatencyModel,
    /// What a discarded range reads as.
    pub discard_reads: DiscardReads,
}

impl DiskConfig {
    /// A flash drive with a volatile cache.
    #[must_use]
    pub fn flash(name: &str, size_bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            size_bytes,
            block_bytes: 512,
            volatile_cache: true,
            latency: LatencyModel::flash(),
            discard_reads: DiscardReads::Anything,
        }
    }

    /// A log device: quick, flat, and with a volatile cache all the same.
    #[must_use]
    pub fn log(name: &str, size_bytes: u64) -> Self {
        Self { latency: LatencyModel::log(), ..Self::flash(name, size_bytes) }
    }
}

#[derive(Clone)]
enum Payload {
    Data(IoBytes),
    Fill(u8),
}

/// A change to the media that is not durable yet.
#[derive(Clone)]
struct Change {
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
    payload: Payload,
    fua: bool,
    /// Sectors that a later durable write took away, one bit each; empty while there are none.
    superseded: Vec<u64>,
}

impl Change {
    fn sectors(&self) -> u64 {
        self.len_bytes / SECTOR_LEN as u64
    }

    fn overlap(&self, offset_bytes: u64, len_bytes: u64) -> Option<(u64, u64)> {
        let from = self.offset_bytes.max(offset_bytes);
        let to = (self.offset_bytes + self.len_bytes).min(offset_bytes + len_bytes);
        (from < to).then_some((from, to))
    }

    fn supersede(&mut self, offset_bytes: u64, len_bytes: u64) {
        let Some((from, to)) = self.overlap(offset_bytes, len_bytes) else { return };
        let words = self.sectors().div_ceil(64) as usize;
        self.superseded.resize(words, 0);
        let unit = SECTOR_LEN as u64;
        for sector in (from - self.offset_bytes) / unit..(to - self.offset_bytes) / unit {
            self.superseded[(sector / 64) as usize] |= 1 << (sector % 64);
        }
    }

    fn is_superseded(&self, sector: u64) -> bool {
        self.superseded.get((sector / 64) as usize).is_some_and(|w| w >> (sector % 64) & 1 == 1)
    }

    fn apply_whole(&self, media: &mut Media) {
        if self.superseded.is_empty() {
            match &self.payload {
                Payload::Data(data) => media.write_shared(self.offset_bytes, data),
                Payload::Fill(byte) => media.fill(self.offset_bytes, self.len_bytes, *byte),
            }
        } else {
            self.apply(media, |_| true);
        }
    }

    fn apply(&self, media: &mut Media, mut keep: impl FnMut(u64) -> bool) {
        for sector in 0..self.sectors() {
            if !keep(sector) || self.is_superseded(sector) {
                continue;
            }
            let within = sector as usize * SECTOR_LEN;
            let at = self.offset_bytes + within as u64;
            match &self.payload {
                Payload::Data(data) => media.write(at, &data[within..within + SECTOR_LEN]),
                Payload::Fill(byte) => media.fill(at, SECTOR_LEN as u64, *byte),
            }
        }
    }

    fn apply_fate(&self, media: &mut Media, fate: Fate) {
        match fate {
            Fate::Kept => self.apply_whole(media),
            Fate::Lost => {}
            Fate::Prefix { sectors } => self.apply(media, |sector| sector < sectors),
            Fate::Scatter { seed } => {
                let mut rng = Seed(seed).rng();
                self.apply(media, |_| rng.chance(500));
            }
        }
    }
}

struct InFlight {
    change: Change,
    /// Set when the caller has gone: the disk still does it, at this time.
    abandoned_until: Option<Nanos>,
}

struct State {
    /// What survives a power cut.
    stable: Media,
    /// What reads return.
    view: Media,
    cached: VecDeque<(u64, Change)>,
    in_flight: BTreeMap<u64, InFlight>,
    next_id: u64,
    rng: Rng,
}

/// A disk's whole state at one instant.
#[derive(Clone)]
pub(crate) struct DiskImage {
    stable: Media,
    view: Media,
    cached: Vec<Change>,
    in_flight: Vec<Change>,
    rng: Rng,
}

/// A simulated disk. It outlives runtimes, as disks outlive kernels.
pub struct SimDisk {
    world: Rc<World>,
    number: usize,
    config: DiskConfig,
    state: RefCell<State>,
    abandoned: Cell<usize>,
}

impl SimDisk {
    /// A new disk of zeros in `world`.
    #[must_use]
    pub fn new(world: &Rc<World>, config: DiskConfig) -> Rc<Self> {
        let number = world.disk_count();
        let media = Media::new(config.size_bytes);
        let rng = world.seed().derive("disk").derive(&number.to_string()).rng();
        let state = State {
            stable: media.clone(),
            view: media,
            cached: VecDeque::new(),
            in_flight: BTreeMap::new(),
            next_id: 0,
            rng,
        };
        let disk = Rc::new(Self {
            world: world.clone(),
            number,
            config,
            state: RefCell::new(state),
            abandoned: Cell::new(0),
        });
        let weak: Weak<Self> = Rc::downgrade(&disk);
        world.add(weak);
        disk
    }

    /// Its number in the world, as [`Unflushed::disk`] has it.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// What is durable now, without the caches: for tests and for damage done from outside.
    #[must_use]
    pub fn stable(&self) -> Media {
        self.state.borrow().stable.clone()
    }

    /// Changes bytes behind everybody's back, durably: rot, or a screwdriver.
    pub fn damage(&self, offset_bytes: u64, change: impl Fn(&mut [u8]), len_bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        let mut bytes = vec![0; len_bytes];
        for media in [&mut state.stable, &mut state.view] {
            media.read(offset_bytes, &mut bytes);
            change(&mut bytes);
            media.write(offset_bytes, &bytes);
        }
    }

    /// Forgets what its cache holds: reads return it still, a later flush writes none of it. What
    /// some kernels do to dirty pages after a failed flush.
    pub fn forget_cached(&self) {
        self.state.borrow_mut().cached.clear();
    }

    /// The disk as it was at an earlier [`SimDisk::stable`], durably: an old mirror side that
    /// comes back. Panics when the size differs.
    pub fn set_stable(&self, media: Media) {
        assert_eq!(media.size_bytes(), self.config.size_bytes, "media of another size");
        let state = &mut *self.state.borrow_mut();
        state.view = media.clone();
        state.stable = media;
        state.cached.clear();
    }

    pub(crate) fn unflushed(&self) -> Vec<Unflushed> {
        let state = self.state.borrow();
        let describe = |change: &Change, in_flight| Unflushed {
            disk: self.number,
            operation: change.operation,
            offset_bytes: change.offset_bytes,
            len_bytes: change.len_bytes,
            in_flight,
            fua: change.fua,
        };
        let cached = state.cached.iter().map(|(_, change)| describe(change, false));
        let in_flight = state.in_flight.values().map(|write| describe(&write.change, true));
        cached.chain(in_flight).collect()
    }

    pub(crate) fn draw_crash_outcome(&self, decide: &mut dyn FnMut(&Unflushed) -> Fate) {
        let writes = self.unflushed();
        let state = &mut *self.state.borrow_mut();
        let cached = std::mem::take(&mut state.cached).into_iter().map(|(_, change)| change);
        let in_flight = std::mem::take(&mut state.in_flight).into_values().map(|w| w.change);
        for (write, change) in writes.iter().zip(cached.chain(in_flight)) {
            change.apply_fate(&mut state.stable, decide(write));
        }
        state.view = state.stable.clone();
        self.abandoned.set(0);
    }

    pub(crate) fn image(&self) -> DiskImage {
        let state = self.state.borrow();
        DiskImage {
            stable: state.stable.clone(),
            view: state.view.clone(),
            cached: state.cached.iter().map(|(_, change)| change.clone()).collect(),
            in_flight: state.in_flight.values().map(|write| write.change.clone()).collect(),
            rng: state.rng.clone(),
        }
    }

    pub(crate) fn restore(&self, image: &DiskImage) {
        let state = &mut *self.state.borrow_mut();
        state.stable = image.stable.clone();
        state.view = image.view.clone();
        state.rng = image.rng.clone();
        state.cached.clear();
        state.in_flight.clear();
        for change in &image.cached {
            state.next_id += 1;
            state.cached.push_back((state.next_id, change.clone()));
        }
        for change in &image.in_flight {
            state.next_id += 1;
            let change = change.clone();
            state.in_flight.insert(state.next_id, InFlight { change, abandoned_until: None });
        }
        self.abandoned.set(0);
    }

    fn event(
        &self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> CommandEvent {
        CommandEvent { disk: self.number, operation, offset_bytes, len_bytes, fua, content: 0 }
    }

    async fn dark() -> ! {
        std::future::pending::<()>().await;
        unreachable!("nothing ends without power")
    }

    /// Takes the time that the command takes: at least one turn of the executor.
    async fn take_time(&self, deadline: Nanos) {
        if deadline > self.world.now() {
            rt::sleep_until(deadline).await;
        } else {
            rt::yield_now().await;
        }
        if !self.world.is_powered() {
            Self::dark().await;
        }
    }

    fn deadline(&self, operation: Operation, len_bytes: u64) -> Nanos {
        let rng = &mut self.state.borrow_mut().rng;
        self.world.now() + self.config.latency.sample(operation, len_bytes, rng)
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.config.name, &self.geometry(), op, offset, len)
    }

    /// Finishes what callers who went away had asked for, once its time has come.
    fn finish_abandoned(&self) {
        if self.abandoned.get() == 0 {
            return;
        }
        let now = self.world.now();
        let state = &mut *self.state.borrow_mut();
        let due: Vec<u64> = state
            .in_flight
            .iter()
            .filter(|(_, write)| write.abandoned_until.is_some_and(|until| until <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.abandoned.set(self.abandoned.get() - 1);
            if let Some(write) = state.in_flight.remove(&id) {
                self.take_effect(state, write.change);
            }
        }
    }

    /// A completed change becomes visible; durable only with FUA or without a cache.
    fn take_effect(&self, state: &mut State, change: Change) {
        change.apply_whole(&mut state.view);
        if change.fua || !self.config.volatile_cache {
            change.apply_whole(&mut state.stable);
            // An older cached write must not come back over this one.
            for (_, older) in &mut state.cached {
                older.supersede(change.offset_bytes, change.len_bytes);
            }
        } else {
            state.next_id += 1;
            state.cached.push_back((state.next_id, change));
        }
    }

    fn drain_cache(&self, covered: u64) {
        let state = &mut *self.state.borrow_mut();
        while state.cached.front().is_some_and(|(id, _)| *id <= covered) {
            let (_, change) = state.cached.pop_front().expect("just seen");
            change.apply_whole(&mut state.stable);
        }
    }

    async fn change(&self, change: Option<Change>, event: CommandEvent) -> Result<(), DeviceError> {
        self.check(event.operation, event.offset_bytes, event.len_bytes)?;
        if !self.world.before_submit(&event) {
            Self::dark().await;
        }
        self.finish_abandoned();
        let deadline = self.deadline(event.operation, event.len_bytes);
        let mut guard = Guard { disk: self, id: None, deadline };
        if let Some(change) = change {
            let state = &mut *self.state.borrow_mut();
            state.next_id += 1;
            state.in_flight.insert(state.next_id, InFlight { change, abandoned_until: None });
            guard.id = Some(state.next_id);
        }
        self.world.after_submit();
        self.take_time(deadline).await;
        self.finish_abandoned();
        if let Some(id) = guard.id.take() {
            let state = &mut *self.state.borrow_mut();
            let write = state.in_flight.remove(&id).expect("it stays until it completes");
            self.take_effect(state, write.change);
        }
        if !self.world.after_complete(&event) {
            Self::dark().await;
        }
        Ok(())
    }
}

/// Marks a command whose caller went away.
struct Guard<'a> {
    disk: &'a SimDisk,
    id: Option<u64>,
    deadline: Nanos,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        if !self.disk.world.is_powered() {
            return; // it stays in flight for World::draw_crash_outcome
        }
        if let Some(write) = self.disk.state.borrow_mut().in_flight.get_mut(&id) {
            write.abandoned_until = Some(self.deadline);
            self.disk.abandoned.set(self.disk.abandoned.get() + 1);
        }
    }
}

/// A cheap number that changes with the data nearly always: for the event digest.
fn content_of(data: &[u8]) -> u64 {
    let mut sum = 0u64;
    for sector in data.chunks(SECTOR_LEN) {
        for word in sector.chunks_exact(8).take(4) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            sum = (sum.rotate_left(9) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }
    sum
}

impl BlockDevice for SimDisk {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.config.size_bytes,
            block_bytes: self.config.block_bytes,
            volatile_cache: self.config.volatile_cache,
            discard_bytes: 4096,
            read_only: false,
        }
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let len_bytes = buf.len() as u64;
            self.check(Operation::Read, offset_bytes, len_bytes)?;
            let event = self.event(Operation::Read, offset_bytes, len_bytes, false);
            if !self.world.before_submit(&event) {
                Self::dark().await;
            }
            self.world.after_submit();
            self.take_time(self.deadline(Operation::Read, len_bytes)).await;
            self.finish_abandoned();
            // Imports read a whole log, most of which is a hole: it need not be cleared each time.
            if self.state.borrow().view.is_hole(offset_bytes, len_bytes) {
                buf = IoBuf::zeroed(len_bytes as usize);
            } else {
                self.state.borrow().view.read(offset_bytes, &mut buf);
            }
            if !self.world.after_complete(&event) {
                Self::dark().await;
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len_bytes = data.len() as u64;
        let mut event = self.event(Operation::Write, offset_bytes, len_bytes, fua);
        event.content = content_of(&data);
        let change = Change {
            operation: Operation::Write,
            offset_bytes,
            len_bytes,
            payload: Payload::Data(data),
            fua,
            superseded: Vec::new(),
        };
        Box::pin(self.change(Some(change), event))
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let event = self.event(Operation::Flush, 0, 0, false);
            if !self.world.before_submit(&event) {
                Self::dark().await;
            }
            self.finish_abandoned();
            // Only what had completed when the flush was issued is covered by it.
            let covered = self.state.borrow().next_id;
            self.world.after_submit();
            self.take_time(self.deadline(Operation::Flush, 0)).await;
            self.finish_abandoned();
            self.drain_cache(covered);
            if !self.world.after_complete(&event) {
                Self::dark().await;
            }
            Ok(())
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let event = self.event(Operation::Discard, offset_bytes, len_bytes, fua);
        let fill = match self.config.discard_reads {
            DiscardReads::Zeros => Some(0),
            DiscardReads::Old => None,
            DiscardReads::Anything => match self.state.borrow_mut().rng.below(3) {
                0 => Some(0),
                1 => Some(0xa5),
                _ => None,
            },
        };
        let change = fill.map(|byte| Change {
            operation: Operation::Discard,
            offset_bytes,
            len_bytes,
            payload: Payload::Fill(byte),
            fua,
            superseded: Vec::new(),
        });
        Box::pin(self.change(change, event))
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let event = self.event(Operation::WriteZeroes, offset_bytes, len_bytes, options.fua);
        let change = Change {
            operation: Operation::WriteZeroes,
            offset_bytes,
            len_bytes,
            payload: Payload::Fill(0),
            fua: options.fua,
            superseded: Vec::new(),
        };
        Box::pin(self.change(Some(change), event))
    }
}
