//! What a block device is: the one trait that a pool consumes below and offers above.
//!
//! What enters: owned, aligned buffers and byte ranges.
//! What leaves: the same buffers, filled, or an error that names device, offset and expectation.
//! What always holds: the durability contract of [`BlockDevice`]; a buffer lent to a device stays
//! alive until the device is done with it, even when the caller has gone.
//! Who calls me: every room that reads or writes; the lab drives volumes, disks and simulated
//! devices through the same trait.

mod buffer;
mod deadline;
mod error;
mod file;
pub mod layers;
mod memory;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

pub use buffer::{BUFFER_ALIGN, IoBuf, IoBytes, keep_freed};
pub use deadline::Deadline;
pub use error::{DeviceError, ErrorKind, Operation};
pub use file::{FileDevice, OpenOptions, probe_size_bytes};
pub use layers::Layer;
pub use memory::MemoryDevice;

/// What a device call returns while it runs.
pub type DeviceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DeviceError>> + 'a>>;

/// A shared device of whatever kind.
pub type Device = Rc<dyn BlockDevice>;

/// What callers must know of a device before they use it.
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
    /// Nothing is stored here, and it reads as zeros.
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
/// operations that are in flight together: whoever needs one waits.
///
/// After a failed write or flush nothing is known of the range written (of anything since the
/// last good flush), and asking again proves nothing: the caller must not retry into success.
///
/// A future that is dropped may or may not have had its effect.
pub trait BlockDevice {
    /// The name that messages use (a path, mostly).
    fn name(&self) -> &str;

    /// Size, alignment and abilities. The size may change (a volume can be resized).
    fn geometry(&self) -> Geometry;

    /// Whether the first write of a place costs more than later ones, because something below
    /// must find space for it (a file system, for a file).
    fn allocates_on_write(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset_bytes` on.
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf>;

    /// Writes `data` at `offset_bytes`; with `fua` it is durable on completion.
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()>;

    /// Makes every write that has completed durable.
    fn flush(&self) -> DeviceFuture<'_, ()>;

    /// Says that the range is not needed. It may read as anything after, unless the device says
    /// otherwise. Devices that cannot discard succeed without doing anything.
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()>;

    /// Makes the range read as zeros.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if options.fast {
                let kind = ErrorKind::Unsupported;
                let error = DeviceError::new(
                    self.name(),
                    Operation::WriteZeroes,
                    offset_bytes,
                    len_bytes,
                    kind,
                );
                return Err(error);
            }
            const CHUNK_BYTES: u64 = 1 << 20;
            let zeros = IoBuf::zeroed(CHUNK_BYTES.min(len_bytes) as usize).freeze();
            let mut done_bytes = 0;
            while done_bytes < len_bytes {
                let step = (len_bytes - done_bytes).min(CHUNK_BYTES);
                let piece = zeros.slice(0, step as usize);
                self.write(offset_bytes + done_bytes, piece, options.fua).await?;
                done_bytes += step;
            }
            Ok(())
        })
    }

    /// What of the range is allocated: runs that cover it from its start, at least one, perhaps
    /// fewer than reach its end. "All allocated" is always a right answer; a hole over data that
    /// is still on its way to the media never is.
    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        let _ = offset_bytes;
        Box::pin(async move { Ok(vec![Allocation { len_bytes, hole: false }]) })
    }
}

/// Checks a range against a geometry: aligned, not empty, inside.
pub fn check_range(
    name: &str,
    geometry: &Geometry,
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
) -> Result<(), DeviceError> {
    let refuse = |kind| Err(DeviceError::new(name, operation, offset_bytes, len_bytes, kind));
    let unit = u64::from(geometry.block_bytes);
    if !offset_bytes.is_multiple_of(unit) || !len_bytes.is_multiple_of(unit) {
        return refuse(ErrorKind::Misaligned { block_bytes: geometry.block_bytes });
    }
    match offset_bytes.checked_add(len_bytes) {
        Some(end) if end <= geometry.size_bytes => Ok(()),
        _ => refuse(ErrorKind::OutOfRange { size_bytes: geometry.size_bytes }),
    }
}

#[cfg(test)]
mod tests;
