#![doc = include_str!("../README.md")]

mod block_slab;
mod buffer;
mod cause;
mod deadline;
mod dram;
mod error;
mod file;
pub mod layers;
mod mapping;
mod memory;
mod objects;
mod pmem;
mod reservation;
mod submission;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

pub use block_slab::{BlockSlab, SlabBlock};
pub use buffer::{BUFFER_ALIGN, IoBuf, IoBytes, keep_freed};
pub use cause::Cause;
pub use deadline::Deadline;
pub use dram::{DramChange, DramReason, DramState, DramStatus};
pub use error::{DeviceError, ErrorKind, FenceLoss, Operation};
pub use file::{FileDevice, OpenOptions, probe_size_bytes};
pub use layers::Layer;
pub use mapping::Mapping;
pub use memory::MemoryDevice;
pub use objects::{FailingRequest, ObjectStats, StoreRequest};
pub use reservation::{ReservationChange, ReservationKey, Reservations};

/// What a device call returns while it runs.
pub type DeviceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DeviceError>> + 'a>>;

/// A shared device of any kind.
pub type Device = Rc<dyn BlockDevice>;

/// Size, alignment and abilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths must be multiples of this (a power of two, 512 to 4096).
    pub block_bytes: u32,
    /// Whether writes may be lost by a power cut before a flush (FUA writes never).
    pub volatile_cache: bool,
    /// Discards should be multiples of this; 0 when the device cannot discard.
    pub discard_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// One run of a volume's allocation, as `BLOCK_STATUS` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Length in bytes.
    pub len_bytes: u64,
    /// The run stores nothing, and reads as zeros.
    pub hole: bool,
}

/// How `write_zeroes` may work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroOptions {
    /// Durable before it completes.
    pub fua: bool,
    /// Space must stay allocated (or reserved), so that a later write cannot fail for lack of it.
    pub no_hole: bool,
    /// Fail with [`ErrorKind::Unsupported`] at once when zeroing is no faster than writing.
    pub fast: bool,
}

/// A block device.
///
/// Durability: a write is durable when it was issued with `fua` and completed, or when it had
/// completed before a `flush` was issued that succeeded. Anything else may be lost, torn at any
/// 512-byte boundary, or kept, in any combination, by a power cut. There is no order between
/// operations that are in flight together: a caller that needs an order waits.
///
/// After a failed write the range written holds anything; after a failed flush the same is true of
/// everything written since the last good flush. A second attempt that succeeds proves nothing: the
/// caller must not retry into success.
///
/// A future that is dropped may or may not have had its effect.
pub trait BlockDevice {
    /// The name for messages (a path, mostly).
    fn name(&self) -> &str;

    /// Size, alignment and abilities. The size may change (a volume can be resized).
    fn geometry(&self) -> Geometry;

    /// Whether the first write to a place costs more than later ones, because a file system must
    /// allocate space for it.
    fn allocates_on_write(&self) -> bool {
        false
    }

    /// Checks that what was opened is still there, without a look at its content. A file that was
    /// deleted fails with [`ErrorKind::Deleted`]: it is gone when this process closes it. One that
    /// became smaller fails with [`ErrorKind::OutOfRange`].
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Fills `buf` from `offset_bytes` on.
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf>;

    /// Writes `data` at `offset_bytes`; with `fua` it is durable on completion.
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()>;

    /// Writes `parts`, one behind the other, as one [`BlockDevice::write`]. A device that cannot
    /// take them where they are gets a copy of all.
    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<IoBytes>,
        fua: bool,
    ) -> DeviceFuture<'_, ()> {
        self.write(offset_bytes, IoBytes::joined(parts), fua)
    }

    /// Makes every write that has completed durable.
    fn flush(&self) -> DeviceFuture<'_, ()>;

    /// Tells the device that the range is not needed. It may read as anything afterwards, unless
    /// the device promises otherwise. Devices that cannot discard succeed without doing anything.
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()>;

    /// Makes the range read as zeros.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        if options.fast {
            let (op, kind) = (Operation::WriteZeroes, ErrorKind::Unsupported);
            let error = DeviceError::new(self.name(), op, offset_bytes, len_bytes, kind);
            return Box::pin(async { Err(error) });
        }
        Box::pin(write_zeroes_as_data(self, offset_bytes, len_bytes, options.fua))
    }

    /// The allocation of a range: at least one run, from the start of the range on; the runs may
    /// end before the range does. "All allocated" is always a right answer. A hole over data that
    /// is still on its way to the media is always a wrong one.
    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        let _ = offset_bytes;
        Box::pin(async move { Ok(vec![Allocation { len_bytes, hole: false }]) })
    }

    /// The device's persistent reservations; [`ErrorKind::Unsupported`] if it has none.
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        Box::pin(std::future::ready(Err(no_reservations(self.name()))))
    }

    /// Brings to a safe place what only memory has, before the device is closed for longer. Devices
    /// without such memory have nothing to do.
    fn save(&self) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Told that no command under way is waited for any more. A device that can end them does: a
    /// connection is closed.
    fn abandon(&self) {}

    /// What it shows of itself, if it is a log device in memory.
    fn dram(&self) -> Option<DramStatus> {
        None
    }

    /// What it shows of itself, if its content is in an object store.
    fn objects(&self) -> Option<ObjectStats> {
        None
    }

    /// The changes of its state since the last call, if it is a log device in memory.
    fn take_dram_changes(&self) -> Vec<DramChange> {
        Vec::new()
    }

    /// Changes the device's persistent reservations. Fails with [`ErrorKind::Unsupported`] if it
    /// has none, and with [`ErrorKind::ReservationConflict`] if those of other initiators forbid
    /// it.
    fn change_reservations(&self, _change: ReservationChange) -> DeviceFuture<'_, ()> {
        Box::pin(std::future::ready(Err(no_reservations(self.name()))))
    }
}

fn no_reservations(name: &str) -> DeviceError {
    DeviceError::new(name, Operation::Reservation, 0, 0, ErrorKind::Unsupported)
}

/// Writes zeros as data, for devices that have no command of their own for it.
async fn write_zeroes_as_data<D: BlockDevice + ?Sized>(
    device: &D,
    offset_bytes: u64,
    len_bytes: u64,
    fua: bool,
) -> Result<(), DeviceError> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let zeros = IoBuf::zeroed(CHUNK_BYTES.min(len_bytes) as usize).freeze();
    let mut done_bytes = 0;
    while done_bytes < len_bytes {
        let step_bytes = (len_bytes - done_bytes).min(CHUNK_BYTES);
        let chunk = zeros.slice(0, step_bytes as usize);
        device.write(offset_bytes + done_bytes, chunk, fua).await?;
        done_bytes += step_bytes;
    }
    Ok(())
}

/// Checks a range against a geometry: aligned, and inside the device.
pub fn check_range(
    name: &str,
    geometry: &Geometry,
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<(), DeviceError> {
    let refuse = |kind| Err(DeviceError::new(name, operation, offset_bytes, len_bytes, kind));
    let unit = u64::from(geometry.block_bytes);
    if offset_bytes % unit != 0 || len_bytes % unit != 0 {
        return refuse(ErrorKind::Misaligned { block_bytes: geometry.block_bytes });
    }
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= geometry.size_bytes => Ok(()),
        _ => refuse(ErrorKind::OutOfRange { size_bytes: geometry.size_bytes }),
    }
}

#[cfg(test)]
mod tests;
