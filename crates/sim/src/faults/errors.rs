//! Commands that fail, and say so.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Device, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    ZeroOptions,
};
use serde::{Deserialize, Serialize};

use super::{Rules, Trigger, fail, pass};

/// What a failing command says.
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

/// Whether a failing command has its effect all the same: the host cannot know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// It never reaches the device.
    None,
    /// The device does it, and then says that it failed.
    Full,
}

/// Chosen commands fail, once or for good.
pub struct Errors {
    inner: Device,
    rules: Rules<(Failure, Effect)>,
}

impl Errors {
    /// Without rules: nothing fails.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new() })
    }

    /// From now on commands that `trigger` strikes fail.
    pub fn add(&self, trigger: Trigger, failure: Failure, effect: Effect) {
        self.rules.add(trigger, (failure, effect));
    }

    /// Takes all rules away.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many commands failed here.
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

impl BlockDevice for Errors {
    pass!(name);
    pass!(geometry);
    pass!(allocation);
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

/// A flush fails, and the next one succeeds although nothing was written in between: the trap that
/// several databases fell into.
pub struct FlushErrors {
    inner: Device,
    rules: Rules<()>,
    on_failure: Box<dyn Fn()>,
}

impl FlushErrors {
    /// Without rules. `on_failure` runs at each failed flush: let it drop the device's cache
    /// ([`crate::SimDisk::forget_cached`]) to lose for good what the flush did not write.
    #[must_use]
    pub fn new(inner: Device, on_failure: impl Fn() + 'static) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new(), on_failure: Box::new(on_failure) })
    }

    /// From now on flushes that `trigger` strikes fail.
    pub fn add(&self, trigger: Trigger) {
        self.rules.add(trigger, ());
    }

    /// Takes all rules away.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many flushes failed here.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }
}

impl BlockDevice for FlushErrors {
    pass!(name);
    pass!(geometry);
    pass!(allocation);
    pass!(read);
    pass!(discard);
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner.write(offset, data, fua)
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
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.inner.write_zeroes(offset, len, options)
    }
}

/// The space underneath runs out: new 4 KiB blocks are refused once the budget is spent; blocks
/// written before can be overwritten, and discards give back.
pub struct NoSpace {
    inner: Device,
    budget_blocks: Cell<Option<u64>>,
    written: RefCell<BTreeSet<u64>>,
    struck: Cell<u64>,
}

const THIN_BLOCK_BYTES: u64 = 4096;

impl NoSpace {
    /// Without a limit.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        let (budget_blocks, struck) = (Cell::new(None), Cell::new(0));
        Rc::new(Self { inner, budget_blocks, written: RefCell::default(), struck })
    }

    /// From now on only `bytes` (whole 4 KiB blocks) can be newly written; `None` lifts the limit.
    /// Blocks written before the first limit count as new.
    pub fn limit(&self, bytes: Option<u64>) {
        self.budget_blocks.set(bytes.map(|bytes| bytes / THIN_BLOCK_BYTES));
        if bytes.is_none() {
            self.written.borrow_mut().clear();
        }
    }

    /// How many commands were refused.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    fn take(&self, offset: u64, len: u64) -> bool {
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

    fn give(&self, offset: u64, len: u64) {
        let Some(budget) = self.budget_blocks.get() else { return };
        let mut written = self.written.borrow_mut();
        let whole = offset.div_ceil(THIN_BLOCK_BYTES)..(offset + len) / THIN_BLOCK_BYTES;
        let given = whole.filter(|block| written.remove(block)).count() as u64;
        self.budget_blocks.set(Some(budget + given));
    }

    fn refuse(&self, op: Operation, offset: u64, len: u64) -> DeviceFuture<'_, ()> {
        let error = fail(self.inner.name(), op, offset, len, ErrorKind::NoSpace);
        Box::pin(async move {
            forebay_rt::yield_now().await;
            Err(error)
        })
    }
}

impl BlockDevice for NoSpace {
    pass!(name);
    pass!(geometry);
    pass!(allocation);
    pass!(read);
    pass!(flush);
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        if !self.take(offset, data.len() as u64) {
            return self.refuse(Operation::Write, offset, data.len() as u64);
        }
        self.inner.write(offset, data, fua)
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.give(offset, len);
        self.inner.discard(offset, len, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        if !self.take(offset, len) {
            return self.refuse(Operation::WriteZeroes, offset, len);
        }
        self.inner.write_zeroes(offset, len, options)
    }
}

/// The device disappears, at once or at a command; every command fails until it comes back.
pub struct Gone {
    inner: Device,
    gone: Cell<bool>,
    rules: Rules<Effect>,
}

impl Gone {
    /// Present.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, gone: Cell::new(false), rules: Rules::new() })
    }

    /// It disappears now.
    pub fn vanish(&self) {
        if !self.gone.replace(true) {
            self.rules.struck.set(self.rules.struck.get() + 1);
        }
    }

    /// It disappears at the command that `trigger` strikes first; with [`Effect::Full`] after that
    /// command's effect, whose answer is lost.
    pub fn vanish_at(&self, trigger: Trigger, effect: Effect) {
        self.rules.add(trigger, effect);
    }

    /// It is back, with what it held.
    pub fn come_back(&self) {
        self.rules.clear();
        self.gone.set(false);
    }

    /// Whether it is away.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// How many times it disappeared.
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
                // A command in flight when the device goes has its effect, but no answer.
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

impl BlockDevice for Gone {
    pass!(name);
    pass!(geometry);
    pass!(allocation);
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

/// The device turns read-only, as worn-out flash does.
pub struct ReadOnly {
    inner: Device,
    on: Cell<bool>,
    struck: Cell<u64>,
}

impl ReadOnly {
    /// Writable.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, on: Cell::new(false), struck: Cell::new(0) })
    }

    /// Turns it on or off.
    pub fn set(&self, on: bool) {
        self.on.set(on);
    }

    /// How many commands were refused.
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
        if !self.on.get() {
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

impl BlockDevice for ReadOnly {
    pass!(name);
    pass!(allocation);
    pass!(read);
    pass!(flush);
    fn geometry(&self) -> Geometry {
        let geometry = self.inner.geometry();
        Geometry { read_only: geometry.read_only || self.on.get(), ..geometry }
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
