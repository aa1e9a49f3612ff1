//! A layer that counts the commands of a device.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::Layer;
use crate::{
    Allocation, BlockDevice, Device, DeviceError, DeviceFuture, IoBuf, IoBytes, ZeroOptions,
};

/// What a device has done since it was wrapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads completed, and their bytes.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Writes that started where the last one ended.
    pub sequential_writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Discards completed.
    pub discards: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
    /// Allocation queries completed.
    pub allocation_queries: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Time spent in operations, summed over all of them.
    pub busy: Nanos,
}

/// Counts what passes through.
pub struct Counted {
    inner: Device,
    counts: Cell<Counts>,
    write_end_bytes: Cell<u64>,
}

impl Counted {
    /// Counts on top of `inner`.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, counts: Cell::default(), write_end_bytes: Cell::new(u64::MAX) })
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    async fn note<T>(
        &self,
        call: DeviceFuture<'_, T>,
        note: impl FnOnce(&mut Counts),
    ) -> Result<T, DeviceError> {
        let begun = rt::now();
        let outcome = call.await;
        let mut counts = self.counts.get();
        counts.busy = counts.busy + rt::now().since(begun);
        match &outcome {
            Ok(_) => note(&mut counts),
            Err(_) => counts.errors += 1,
        }
        self.counts.set(counts);
        outcome
    }
}

impl Layer for Counted {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let len = buf.len() as u64;
        Box::pin(self.note(self.inner.read(offset_bytes, buf), move |c| {
            c.reads += 1;
            c.read_bytes += len;
        }))
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write_vectored(self, offset_bytes, vec![data], fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        // Order of issue, not of completion: that is what the device's heads or frontiers see.
        let sequential = self.write_end_bytes.replace(offset + len) == offset;
        Box::pin(self.note(self.inner.write_vectored(offset, parts, fua), move |c| {
            c.writes += 1;
            c.write_bytes += len;
            c.sequential_writes += u64::from(sequential);
        }))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.note(self.inner.flush(), |c| c.flushes += 1))
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(self.note(self.inner.discard(offset_bytes, len_bytes, fua), move |c| {
            c.discards += 1;
            c.discard_bytes += len_bytes;
        }))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(self.note(self.inner.write_zeroes(offset, len, options), move |c| {
            c.writes += 1;
            c.write_bytes += len;
        }))
    }
    fn allocation(&self, offset: u64, len: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        let call = self.inner.allocation(offset, len);
        Box::pin(self.note(call, |c| c.allocation_queries += 1))
    }
}
