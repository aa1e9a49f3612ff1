//! Layers whose commands fail with an error.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Layer, Operation,
    ZeroOptions,
};
use serde::{Deserialize, Serialize};

use super::rules::{Rules, Trigger, fail};

/// The error of a failing command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// An input/output error.
    Eio,
    /// No space left.
    NoSpace,
    /// Another errno.
    Errno(i32),
}

impl Failure {
    fn kind(self) -> ErrorKind {
        match self {
            Failure::Eio => ErrorKind::Os { errno: 5 },
            Failure::NoSpace => ErrorKind::NoSpace,
            Failure::Errno(errno) => ErrorKind::Os { errno },
        }
    }
}

/// Whether a failing command takes effect; the host cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The command never reaches the device.
    None,
    /// The device executes the command and then reports a failure.
    Full,
}

/// Layer: chosen commands fail, once or permanently.
pub struct Errors {
    inner: Device,
    rules: Rules<(Failure, Effect)>,
}

impl Errors {
    /// A layer without triggers.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new() })
    }

    /// Makes the commands that `trigger` strikes fail.
    pub fn add(&self, trigger: Trigger, failure: Failure, effect: Effect) {
        self.rules.add(trigger, (failure, effect));
    }

    /// Removes all triggers.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many commands this layer failed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }

    fn run<'a, T: 'a>(
        &'a self,
        operation: Operation,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> DeviceFuture<'a, T>,
    ) -> DeviceFuture<'a, T> {
        if self.rules.is_empty() {
            return call();
        }
        let Some((failure, effect)) = self.rules.strike(operation, offset, len) else {
            return call();
        };
        let error = fail(self.inner.name(), operation, offset, len, failure.kind());
        let done = (effect == Effect::Full).then(call);
        Box::pin(async move {
            match done {
                Some(done) => drop(done.await?),
                None => forebay_rt::yield_now().await,
            }
            Err(error)
        })
    }
}

impl Layer for Errors {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.run(Operation::Read, offset, buf.len() as u64, || self.inner.read(offset, buf))
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        self.run(Operation::Write, offset, len, || self.inner.write(offset, data, fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, 0, 0, || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, offset, len, || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = || self.inner.write_zeroes(offset, len, options);
        self.run(Operation::WriteZeroes, offset, len, call)
    }
}

/// Layer: a flush fails, and the next flush succeeds without writing what the first one dropped.
pub struct FlushErrors {
    inner: Device,
    rules: Rules<()>,
    on_failure: Box<dyn Fn()>,
}

impl FlushErrors {
    /// A layer without triggers. `on_failure` runs at each failed flush. To lose the unwritten data
    /// for good, it drops the device's cache ([`crate::SimDisk::forget_cached`]).
    #[must_use]
    pub fn new(inner: Device, on_failure: impl Fn() + 'static) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new(), on_failure: Box::new(on_failure) })
    }

    /// Makes the flushes that `trigger` strikes fail.
    pub fn add(&self, trigger: Trigger) {
        self.rules.add(trigger, ());
    }

    /// Removes all triggers.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many flushes this layer failed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }
}

impl Layer for FlushErrors {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        if self.rules.strike(Operation::Flush, 0, 0).is_none() {
            return self.inner.flush();
        }
        (self.on_failure)();
        let error = fail(self.inner.name(), Operation::Flush, 0, 0, Failure::Eio.kind());
        Box::pin(async move {
            forebay_rt::yield_now().await;
            Err(error)
        })
    }
}

/// Layer: a thin device runs out of space. Writes to new 4 KiB blocks fail once the budget is
/// spent. Blocks that were written before stay writable, and discards return space.
pub struct NoSpace {
    inner: Device,
    budget_blocks: Cell<Option<u64>>,
    written: RefCell<BTreeSet<u64>>,
    struck: Cell<u64>,
}

const THIN_BLOCK_BYTES: u64 = 4096;

impl NoSpace {
    /// A layer without a limit.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        let (budget_blocks, struck) = (Cell::new(None), Cell::new(0));
        Rc::new(Self { inner, budget_blocks, written: RefCell::default(), struck })
    }

    /// Limits newly written blocks to `bytes` in total; `None` removes the limit. Blocks that were
    /// written before the limit count as new.
    pub fn limit(&self, bytes: Option<u64>) {
        self.budget_blocks.set(bytes.map(|bytes| bytes / THIN_BLOCK_BYTES));
        if bytes.is_none() {
            self.written.borrow_mut().clear();
        }
    }

    /// How many commands this layer refused.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    fn allocate(&self, offset: u64, len: u64) -> bool {
        let Some(budget) = self.budget_blocks.get() else { return true };
        let mut written = self.written.borrow_mut();
        let blocks = offset / THIN_BLOCK_BYTES..(offset + len).div_ceil(THIN_BLOCK_BYTES);
        let new: Vec<u64> = blocks.filter(|block| !written.contains(block)).collect();
        if new.len() as u64 > budget {
            self.struck.set(self.struck.get() + 1);
            return false;
        }
        self.budget_blocks.set(Some(budget - new.len() as u64));
        written.extend(new);
        true
    }

    fn release(&self, offset: u64, len: u64) {
        let Some(budget) = self.budget_blocks.get() else { return };
        let mut written = self.written.borrow_mut();
        let whole = offset.div_ceil(THIN_BLOCK_BYTES)..(offset + len) / THIN_BLOCK_BYTES;
        let released = whole.filter(|block| written.remove(block)).count() as u64;
        self.budget_blocks.set(Some(budget + released));
    }

    fn refuse(&self, op: Operation, offset: u64, len: u64) -> DeviceFuture<'_, ()> {
        let error = fail(self.inner.name(), op, offset, len, ErrorKind::NoSpace);
        Box::pin(async move {
            forebay_rt::yield_now().await;
            Err(error)
        })
    }
}

impl Layer for NoSpace {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        if !self.allocate(offset, data.len() as u64) {
            return self.refuse(Operation::Write, offset, data.len() as u64);
        }
        self.inner.write(offset, data, fua)
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.release(offset, len);
        self.inner.discard(offset, len, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        if !self.allocate(offset, len) {
            return self.refuse(Operation::WriteZeroes, offset, len);
        }
        self.inner.write_zeroes(offset, len, options)
    }
}

/// Layer: the device disappears, at once or at a command. Every command fails until it comes back.
pub struct Gone {
    inner: Device,
    gone: Cell<bool>,
    rules: Rules<Effect>,
}

impl Gone {
    /// A layer whose device is present.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, gone: Cell::new(false), rules: Rules::new() })
    }

    /// Makes the device disappear.
    pub fn vanish(&self) {
        if !self.gone.replace(true) {
            self.rules.struck.set(self.rules.struck.get() + 1);
        }
    }

    /// Makes the device disappear at the first command that `trigger` strikes. With
    /// [`Effect::Full`] that command takes effect and its answer is lost.
    pub fn vanish_at(&self, trigger: Trigger, effect: Effect) {
        self.rules.add(trigger, effect);
    }

    /// Brings the device back with its contents.
    pub fn come_back(&self) {
        self.rules.clear();
        self.gone.set(false);
    }

    /// How many times the device disappeared.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }

    fn run<'a, T: 'a>(
        &'a self,
        operation: Operation,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> DeviceFuture<'a, T>,
    ) -> DeviceFuture<'a, T> {
        let mut effect = Effect::None;
        if !self.gone.get() {
            match self.rules.strike(operation, offset, len) {
                Some(struck) => {
                    self.gone.set(true);
                    effect = struck;
                }
                // A command in flight when the device disappears takes effect but fails.
                None => {
                    let call = call();
                    return Box::pin(async move {
                        let out = call.await;
                        if self.gone.get() { Err(self.error(operation, offset, len)) } else { out }
                    });
                }
            }
        }
        let done = (effect == Effect::Full).then(call);
        Box::pin(async move {
            match done {
                Some(done) => drop(done.await),
                None => forebay_rt::yield_now().await,
            }
            Err(self.error(operation, offset, len))
        })
    }

    fn error(&self, op: Operation, offset: u64, len: u64) -> forebay_device::DeviceError {
        fail(self.inner.name(), op, offset, len, ErrorKind::Gone)
    }
}

impl Layer for Gone {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.run(Operation::Read, offset, buf.len() as u64, || self.inner.read(offset, buf))
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        self.run(Operation::Write, offset, len, || self.inner.write(offset, data, fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, 0, 0, || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, offset, len, || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = || self.inner.write_zeroes(offset, len, options);
        self.run(Operation::WriteZeroes, offset, len, call)
    }
}

/// Layer: the device becomes read-only, as worn-out flash does.
pub struct ReadOnly {
    inner: Device,
    is_read_only: Cell<bool>,
    struck: Cell<u64>,
}

impl ReadOnly {
    /// A layer whose device is writable.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, is_read_only: Cell::new(false), struck: Cell::new(0) })
    }

    /// Makes the device read-only, or writable again.
    pub fn set_read_only(&self, on: bool) {
        self.is_read_only.set(on);
    }

    /// How many commands this layer refused.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    fn run<'a>(
        &'a self,
        operation: Operation,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> DeviceFuture<'a, ()>,
    ) -> DeviceFuture<'a, ()> {
        if !self.is_read_only.get() {
            return call();
        }
        self.struck.set(self.struck.get() + 1);
        let error = fail(self.inner.name(), operation, offset, len, ErrorKind::ReadOnly);
        Box::pin(async move {
            forebay_rt::yield_now().await;
            Err(error)
        })
    }
}

impl Layer for ReadOnly {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn geometry(&self) -> Geometry {
        let geometry = self.inner.geometry();
        Geometry { read_only: geometry.read_only || self.is_read_only.get(), ..geometry }
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        self.run(Operation::Write, offset, len, || self.inner.write(offset, data, fua))
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, offset, len, || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = || self.inner.write_zeroes(offset, len, options);
        self.run(Operation::WriteZeroes, offset, len, call)
    }
}
