//! A simulated disk with a volatile write cache.
//!
//! What enters: block commands. What leaves: completions after a sampled latency. What always
//! holds: no command completes inline; a flush makes durable exactly what had completed when it was
//! issued; without power no command has an effect or completes.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, DeviceError, DeviceFuture, Geometry, IoBuf, IoBytes, Operation, ZeroOptions,
    check_range,
};
use forebay_rt as rt;
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::disk_state::{Change, DiskState, Payload};
use crate::world::CommandEvent;
use crate::{LatencyModel, Media, SECTOR_LEN, World};

/// What a discarded range reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiscardReads {
    /// Zeros.
    Zeros,
    /// The data from before the discard.
    Old,
    /// Each discard draws zeros, the old data or garbage, as the contract allows.
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
    /// Completed writes wait in a cache that a power cut empties.
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

    /// A log device: short, nearly constant latency, and a volatile cache too.
    #[must_use]
    pub fn log(name: &str, size_bytes: u64) -> Self {
        Self { latency: LatencyModel::log(), ..Self::flash(name, size_bytes) }
    }
}

/// A simulated disk. It outlives runtimes, as a disk outlives kernels.
pub struct SimDisk {
    world: Rc<World>,
    config: DiskConfig,
    state: Rc<RefCell<DiskState>>,
}

impl SimDisk {
    /// A new disk of zeros in `world`.
    #[must_use]
    pub fn new(world: &Rc<World>, config: DiskConfig) -> Rc<Self> {
        let number = world.disk_count();
        let rng = world.seed().derive("disk").derive(&number.to_string()).rng();
        let state = DiskState::new(number, config.size_bytes, config.volatile_cache, rng);
        let state = Rc::new(RefCell::new(state));
        world.add(Rc::downgrade(&state));
        Rc::new(Self { world: world.clone(), config, state })
    }

    /// Its number in the world, as in [`Unflushed::disk`](crate::Unflushed::disk).
    #[must_use]
    pub fn number(&self) -> usize {
        self.state.borrow().number()
    }

    /// The durable contents, without the cache.
    #[must_use]
    pub fn stable(&self) -> Media {
        self.state.borrow().stable.clone()
    }

    /// Changes bytes durably without a command, as damage at rest does.
    pub fn damage(&self, offset_bytes: u64, change: impl Fn(&mut [u8]), len_bytes: usize) {
        let state = &mut *self.state.borrow_mut();
        let mut bytes = vec![0; len_bytes];
        for media in [&mut state.stable, &mut state.view] {
            media.read(offset_bytes, &mut bytes);
            change(&mut bytes);
            media.write(offset_bytes, &bytes);
        }
    }

    /// Drops the cached writes: reads still return them, and no later flush writes them. Some
    /// kernels treat dirty pages like this after a failed flush.
    pub fn forget_cached(&self) {
        self.state.borrow_mut().forget_cached();
    }

    /// Replaces the contents durably, for example by an earlier [`SimDisk::stable`]. Panics when
    /// the size differs.
    pub fn set_stable(&self, media: Media) {
        assert_eq!(media.size_bytes(), self.config.size_bytes, "media of another size");
        self.state.borrow_mut().set_stable(media);
    }

    fn event(
        &self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> CommandEvent {
        CommandEvent { disk: self.number(), operation, offset_bytes, len_bytes, fua, content: 0 }
    }

    async fn wait_without_power() -> ! {
        std::future::pending::<()>().await;
        unreachable!("no command completes without power")
    }

    /// Waits until the command's completion: at least one turn of the executor.
    async fn take_time(&self, deadline: Nanos) {
        if deadline > self.world.now() {
            rt::sleep_until(deadline).await;
        } else {
            rt::yield_now().await;
        }
        if !self.world.is_powered() {
            Self::wait_without_power().await;
        }
    }

    fn deadline(&self, operation: Operation, len_bytes: u64) -> Nanos {
        let rng = &mut self.state.borrow_mut().rng;
        self.world.now() + self.config.latency.sample(operation, len_bytes, rng)
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.config.name, &self.geometry(), op, offset, len)
    }

    fn finish_abandoned(&self) {
        self.state.borrow_mut().finish_abandoned(self.world.now());
    }

    /// Runs a command that changes data. A discard that keeps the old data has no `change`.
    async fn change(&self, change: Option<Change>, event: CommandEvent) -> Result<(), DeviceError> {
        self.check(event.operation, event.offset_bytes, event.len_bytes)?;
        if !self.world.before_submit(&event) {
            Self::wait_without_power().await;
        }
        self.finish_abandoned();
        let deadline = self.deadline(event.operation, event.len_bytes);
        let mut guard = Guard { disk: self, id: None, deadline };
        let machine = self.world.machine();
        guard.id = change.map(|change| self.state.borrow_mut().begin(change, machine));
        self.world.after_submit();
        self.take_time(deadline).await;
        self.finish_abandoned();
        if let Some(id) = guard.id.take() {
            self.state.borrow_mut().complete(id);
        }
        if !self.world.after_complete(&event) {
            Self::wait_without_power().await;
        }
        Ok(())
    }
}

/// Marks a command as abandoned when its caller drops it.
struct Guard<'a> {
    disk: &'a SimDisk,
    id: Option<u64>,
    deadline: Nanos,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        // Without power the change stays in flight for World::draw_crash_outcome.
        if self.disk.world.is_powered() {
            self.disk.state.borrow_mut().abandon(id, self.deadline);
        }
    }
}

/// A cheap hash of written data, for the event digest.
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
                Self::wait_without_power().await;
            }
            self.world.after_submit();
            self.take_time(self.deadline(Operation::Read, len_bytes)).await;
            self.finish_abandoned();
            // Imports read a whole log, mostly holes: a fresh zeroed buffer saves clearing.
            if self.state.borrow().view.is_hole(offset_bytes, len_bytes) {
                buf = IoBuf::zeroed(len_bytes as usize);
            } else {
                self.state.borrow().view.read(offset_bytes, &mut buf);
            }
            if !self.world.after_complete(&event) {
                Self::wait_without_power().await;
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len_bytes = data.len() as u64;
        let mut event = self.event(Operation::Write, offset_bytes, len_bytes, fua);
        event.content = content_of(&data);
        let payload = Payload::Data(data);
        let change = Change::new(Operation::Write, offset_bytes, len_bytes, payload, fua);
        Box::pin(self.change(Some(change), event))
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let event = self.event(Operation::Flush, 0, 0, false);
            if !self.world.before_submit(&event) {
                Self::wait_without_power().await;
            }
            self.finish_abandoned();
            // The flush covers only what had completed when it was issued.
            let covered = self.state.borrow().flush_covers();
            self.world.after_submit();
            self.take_time(self.deadline(Operation::Flush, 0)).await;
            self.finish_abandoned();
            self.state.borrow_mut().drain_cache(covered);
            if !self.world.after_complete(&event) {
                Self::wait_without_power().await;
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
        let change = fill.map(|byte| {
            let payload = Payload::Fill(byte);
            Change::new(Operation::Discard, offset_bytes, len_bytes, payload, fua)
        });
        Box::pin(self.change(change, event))
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let operation = Operation::WriteZeroes;
        let event = self.event(operation, offset_bytes, len_bytes, options.fua);
        let payload = Payload::Fill(0);
        let change = Change::new(operation, offset_bytes, len_bytes, payload, options.fua);
        Box::pin(self.change(Some(change), event))
    }
}
