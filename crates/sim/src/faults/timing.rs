//! Layers whose commands are slow, hang, or are acknowledged too early.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceFuture, IoBuf, IoBytes, Layer, Operation, ZeroOptions,
};
use forebay_rt as rt;
use forebay_units::Nanos;

use super::rules::{Ops, Rules, Trigger};
use crate::{Latency, Rng, Seed};

/// Layer: chosen commands start late, or are answered late.
pub struct Slow {
    inner: Device,
    delay: Cell<Option<(Ops, Latency)>>,
    answer_delay: Cell<Option<(Ops, Latency)>>,
    areas: RefCell<Vec<(Range<u64>, Latency)>>,
    rng: RefCell<Rng>,
    struck: Cell<u64>,
}

impl Slow {
    /// A layer without delay. `seed` draws later delays.
    #[must_use]
    pub fn new(inner: Device, seed: Seed) -> Rc<Self> {
        let (delay, answer_delay) = (Cell::new(None), Cell::new(None));
        let (rng, struck) = (RefCell::new(seed.rng()), Cell::new(0));
        let areas = RefCell::default();
        Rc::new(Self { inner, delay, answer_delay, areas, rng, struck })
    }

    /// Delays commands of these kinds; `None` ends the delay.
    pub fn set_delay(&self, delay: Option<(Ops, Latency)>) {
        self.delay.set(delay);
    }

    /// Delays the answers to commands of these kinds, which have their effect before; `None` ends
    /// the delay.
    pub fn set_answer_delay(&self, delay: Option<(Ops, Latency)>) {
        self.answer_delay.set(delay);
    }

    /// Delays writes that begin in these bytes, beside other delays.
    pub fn add_area(&self, bytes: Range<u64>, latency: Latency) {
        self.areas.borrow_mut().push((bytes, latency));
    }

    /// Ends the delays of areas.
    pub fn clear_areas(&self) {
        self.areas.borrow_mut().clear();
    }

    /// How many commands this layer delayed.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    /// How long one of these delays is for a command of this kind.
    fn span(&self, delay: &Cell<Option<(Ops, Latency)>>, operation: Operation) -> Option<Nanos> {
        let (_, latency) = delay.get().filter(|(ops, _)| ops.has(operation))?;
        self.struck.set(self.struck.get() + 1);
        Some(latency.sample(&mut self.rng.borrow_mut()))
    }

    /// How long a write at `offset` is delayed for its place.
    fn span_at(&self, offset: u64) -> Option<Nanos> {
        let areas = self.areas.borrow();
        let (_, latency) = areas.iter().find(|(bytes, _)| bytes.contains(&offset))?;
        self.struck.set(self.struck.get() + 1);
        Some(latency.sample(&mut self.rng.borrow_mut()))
    }

    fn run<'a, T: 'a>(
        &'a self,
        operation: Operation,
        call: impl FnOnce() -> DeviceFuture<'a, T>,
    ) -> DeviceFuture<'a, T> {
        let before = self.span(&self.delay, operation);
        let after = self.span(&self.answer_delay, operation);
        let call = call();
        if before.is_none() && after.is_none() {
            return call;
        }
        Box::pin(async move {
            if let Some(span) = before {
                rt::sleep(span).await;
            }
            let outcome = call.await;
            if let Some(span) = after {
                rt::sleep(span).await;
            }
            outcome
        })
    }
}

impl Layer for Slow {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.run(Operation::Read, || self.inner.read(offset, buf))
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let write = self.run(Operation::Write, || self.inner.write(offset, data, fua));
        let Some(span) = self.span_at(offset) else { return write };
        Box::pin(async move {
            rt::sleep(span).await;
            write.await
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.run(Operation::WriteZeroes, || self.inner.write_zeroes(offset, len, options))
    }
}

/// Layer: chosen commands hang until release; then they reach the device.
pub struct Hung {
    inner: Device,
    ops: Cell<Ops>,
    released: Rc<rt::sync::Notify>,
    struck: Cell<u64>,
}

impl Hung {
    /// A layer that hangs no command.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        let released = rt::sync::Notify::new();
        Rc::new(Self { inner, ops: Cell::new(Ops(0)), released, struck: Cell::new(0) })
    }

    /// Makes commands of these kinds hang.
    pub fn hang(&self, ops: Ops) {
        self.ops.set(ops);
    }

    /// Releases the commands that hang, and lets later ones pass.
    pub fn release(&self) {
        self.ops.set(Ops(0));
        self.released.notify_all();
    }

    /// How many commands hung in this layer.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    fn run<'a, T: 'a>(
        &'a self,
        operation: Operation,
        call: impl FnOnce() -> DeviceFuture<'a, T>,
    ) -> DeviceFuture<'a, T> {
        if !self.ops.get().has(operation) {
            return call();
        }
        self.struck.set(self.struck.get() + 1);
        let call = call();
        Box::pin(async move {
            self.released.until(|| !self.ops.get().has(operation)).await;
            call.await
        })
    }
}

impl Layer for Hung {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        self.run(Operation::Read, || self.inner.read(offset, buf))
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Write, || self.inner.write(offset, data, fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.run(Operation::WriteZeroes, || self.inner.write_zeroes(offset, len, options))
    }
}

/// Layer: chosen commands reach the device late, while later ones pass them.
pub struct Late {
    inner: Device,
    rules: Rules<Nanos>,
}

impl Late {
    /// A layer without triggers.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new() })
    }

    /// Holds the commands that `trigger` strikes back for `span`.
    pub fn add(&self, trigger: Trigger, span: Nanos) {
        self.rules.add(trigger, span);
    }

    /// Removes all triggers. Commands that are held back stay so.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many commands this layer held back.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }

    fn run<'a, T: 'a>(
        &'a self,
        operation: Operation,
        (offset, len): (u64, u64),
        call: impl FnOnce() -> DeviceFuture<'a, T>,
    ) -> DeviceFuture<'a, T> {
        if self.rules.is_empty() {
            return call();
        }
        let Some(span) = self.rules.strike(operation, offset, len) else { return call() };
        let call = call();
        Box::pin(async move {
            rt::sleep(span).await;
            call.await
        })
    }
}

impl Layer for Late {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let range = (offset, buf.len() as u64);
        self.run(Operation::Read, range, || self.inner.read(offset, buf))
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let range = (offset, data.len() as u64);
        self.run(Operation::Write, range, || self.inner.write(offset, data, fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, (0, 0), || self.inner.flush())
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.run(Operation::Discard, (offset, len), || self.inner.discard(offset, len, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = || self.inner.write_zeroes(offset, len, options);
        self.run(Operation::WriteZeroes, (offset, len), call)
    }
}

/// Layer: flushes do nothing and FUA is ignored, while both are acknowledged.
pub struct LyingFlush {
    inner: Device,
    is_lying: Cell<bool>,
    struck: Cell<u64>,
}

impl LyingFlush {
    /// A layer that passes flushes and FUA on.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, is_lying: Cell::new(false), struck: Cell::new(0) })
    }

    /// Starts or stops lying.
    pub fn set_lying(&self, is_lying: bool) {
        self.is_lying.set(is_lying);
    }

    /// How many flushes and FUA flags this layer ignored.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    fn effective_fua(&self, fua: bool) -> bool {
        if fua && self.is_lying.get() {
            self.struck.set(self.struck.get() + 1);
        }
        fua && !self.is_lying.get()
    }
}

impl Layer for LyingFlush {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner.write(offset, data, self.effective_fua(fua))
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        if !self.is_lying.get() {
            return self.inner.flush();
        }
        self.struck.set(self.struck.get() + 1);
        Box::pin(async {
            rt::sleep(Nanos::from_micros(5)).await;
            Ok(())
        })
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.inner.discard(offset, len, self.effective_fua(fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let options = ZeroOptions { fua: self.effective_fua(options.fua), ..options };
        self.inner.write_zeroes(offset, len, options)
    }
}
