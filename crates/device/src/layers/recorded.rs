//! A layer that records the commands of a device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_rt as rt;
use forebay_units::Nanos;

use super::Layer;
use crate::{
    BlockDevice, Device, DeviceError, DeviceFuture, IoBuf, IoBytes, Operation, ZeroOptions,
};

/// A command that passed a [`Recorded`] layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandRecord {
    /// When it was issued.
    pub issued: Nanos,
    /// When it completed.
    pub completed: Nanos,
    /// What it was.
    pub operation: Operation,
    /// Where.
    pub offset_bytes: u64,
    /// How much.
    pub len_bytes: u64,
    /// Whether it asked for durability.
    pub fua: bool,
    /// Whether it succeeded.
    pub ok: bool,
}

/// Keeps a record of operations.
pub struct Recorded {
    inner: Device,
    records: RefCell<Vec<CommandRecord>>,
    limit: Cell<usize>,
    dropped: Cell<u64>,
}

impl Recorded {
    /// Keeps at most `limit` operations on top of `inner` until they are taken; later ones are
    /// dropped. With 0 nothing is recorded.
    #[must_use]
    pub fn new(inner: Device, limit: usize) -> Rc<Self> {
        let (records, limit) = (RefCell::default(), Cell::new(limit));
        Rc::new(Self { inner, records, limit, dropped: Cell::new(0) })
    }

    /// Changes how many operations are kept.
    pub fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    /// Takes the record so far.
    #[must_use]
    pub fn take(&self) -> Vec<CommandRecord> {
        self.records.take()
    }

    /// Takes the first `most` operations of the record.
    #[must_use]
    pub fn take_first(&self, most: usize) -> Vec<CommandRecord> {
        let mut records = self.records.borrow_mut();
        let count = most.min(records.len());
        records.drain(..count).collect()
    }

    /// How many operations were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.take()
    }

    /// Whether commands pass without a record, and without its cost.
    fn is_off(&self) -> bool {
        self.limit.get() == 0
    }

    async fn note<T>(
        &self,
        call: DeviceFuture<'_, T>,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        fua: bool,
    ) -> Result<T, DeviceError> {
        let issued = rt::now();
        let outcome = call.await;
        let mut records = self.records.borrow_mut();
        if records.len() >= self.limit.get() {
            self.dropped.set(self.dropped.get() + u64::from(self.limit.get() > 0));
        } else {
            let (completed, ok) = (rt::now(), outcome.is_ok());
            records.push(CommandRecord {
                issued,
                completed,
                operation,
                offset_bytes,
                len_bytes,
                fua,
                ok,
            });
        }
        outcome
    }
}

impl Layer for Recorded {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let len = buf.len() as u64;
        let call = self.inner.read(offset_bytes, buf);
        if self.is_off() {
            return call;
        }
        Box::pin(self.note(call, Operation::Read, offset_bytes, len, false))
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write_vectored(self, offset_bytes, vec![data], fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let call = self.inner.write_vectored(offset, parts, fua);
        if self.is_off() {
            return call;
        }
        Box::pin(self.note(call, Operation::Write, offset, len, fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.note(self.inner.flush(), Operation::Flush, 0, 0, false))
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = self.inner.discard(offset_bytes, len_bytes, fua);
        Box::pin(self.note(call, Operation::Discard, offset_bytes, len_bytes, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = self.inner.write_zeroes(offset, len, options);
        Box::pin(self.note(call, Operation::WriteZeroes, offset, len, options.fua))
    }
}
