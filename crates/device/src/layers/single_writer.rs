//! One device for several clients, of which one at a time may write.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_rt::sync::Notify;

use super::Layer;
use crate::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Operation,
    ZeroOptions,
};

/// A device that is opened several times, and written through one of these openings at a time.
///
/// The first write through an opening makes it the writer, if nothing was written through others
/// since it was opened: what its client has read until then still holds. From then on writes
/// through all other openings fail for good. What others had begun before it was opened ends before
/// its first read, so nothing comes late. Reads and flushes are open to all.
pub struct SingleWriter {
    inner: Device,
    /// Counts the openings that have become the writer.
    turn: Cell<u64>,
    /// Counts the commands that change something.
    begun: Cell<u64>,
    /// The numbers of those under way.
    under_way: RefCell<BTreeSet<u64>>,
    changed: Notify,
}

impl SingleWriter {
    /// `inner`, without a writer.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self {
            inner,
            turn: Cell::new(0),
            begun: Cell::new(0),
            under_way: RefCell::default(),
            changed: Notify::default(),
        })
    }

    /// One more opening.
    #[must_use]
    pub fn open(self: &Rc<Self>) -> Rc<WriterOpening> {
        Rc::new(WriterOpening {
            shared: self.clone(),
            opened_at: self.begun.get(),
            turn: Cell::new(None),
        })
    }
}

/// One opening of a [`SingleWriter`].
pub struct WriterOpening {
    shared: Rc<SingleWriter>,
    /// The commands that had begun when it was opened.
    opened_at: u64,
    /// Its turn, once it has written.
    turn: Cell<Option<u64>>,
}

/// A command under way that changes something.
struct UnderWay<'a>(&'a SingleWriter, u64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl WriterOpening {
    /// Whether it is the writer now.
    #[must_use]
    pub fn is_writer(&self) -> bool {
        self.turn.get() == Some(self.shared.turn.get())
    }

    /// Waits until what had begun before it was opened has ended.
    async fn settled(&self) {
        let is_over = || {
            let under_way = self.shared.under_way.borrow();
            under_way.first().is_none_or(|first| *first >= self.opened_at)
        };
        self.shared.changed.until(is_over).await;
    }

    /// Begins a command that changes something, if this opening is the writer or may become it.
    async fn begin(
        &self,
        op: Operation,
        offset: u64,
        len: u64,
    ) -> Result<UnderWay<'_>, DeviceError> {
        self.settled().await;
        let shared = &*self.shared;
        let number = shared.begun.get();
        if self.turn.get().is_none() && number == self.opened_at {
            shared.turn.set(shared.turn.get() + 1);
            self.turn.set(Some(shared.turn.get()));
        }
        if !self.is_writer() {
            let (name, kind) = (shared.inner.name(), ErrorKind::Overtaken);
            return Err(DeviceError::new(name, op, offset, len, kind));
        }
        shared.begun.set(number + 1);
        shared.under_way.borrow_mut().insert(number);
        Ok(UnderWay(shared, number))
    }
}

impl Layer for WriterOpening {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.shared.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.settled().await;
            self.shared.inner.read(offset, buf).await
        })
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Layer::write_vectored(self, offset, vec![data], fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let len = parts.iter().map(|part| part.len() as u64).sum();
            let _under_way = self.begin(Operation::Write, offset, len).await?;
            self.shared.inner.write_vectored(offset, parts, fua).await
        })
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let _under_way = self.begin(Operation::Discard, offset, len).await?;
            self.shared.inner.discard(offset, len, fua).await
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let _under_way = self.begin(Operation::WriteZeroes, offset, len).await?;
            self.shared.inner.write_zeroes(offset, len, options).await
        })
    }
}
