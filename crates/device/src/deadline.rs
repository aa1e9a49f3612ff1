//! Command timeout: a device that does not answer in time is abandoned.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use forebay_rt as rt;
use forebay_units::Nanos;

use crate::{
    Allocation, BlockDevice, Device, DeviceError, DeviceFuture, DramChange, DramStatus, ErrorKind,
    Geometry, IoBuf, IoBytes, ObjectStats, Operation, ReservationChange, Reservations, ZeroOptions,
};

/// A task counts the ages of commands in this many parts of the span. Ages are not read off the
/// clock: a process that was stopped for an hour finds its commands no older than before.
const TICKS: u64 = 8;

/// A layer that abandons its device when a command takes longer than a span.
///
/// From then on every command, the late one included, fails with [`ErrorKind::TimedOut`], and none
/// reaches the device. An abandoned command may still have its effect later:
/// [`Deadline::revive`] takes the device back only when all abandoned commands have ended.
pub struct Deadline {
    shared: Rc<Shared>,
}

struct Shared {
    name: String,
    geometry: Geometry,
    allocates_on_write: bool,
    /// `None` once it is closed.
    inner: RefCell<Option<Device>>,
    span: Cell<Nanos>,
    tick: Cell<u64>,
    watched: Cell<bool>,
    /// Number of the task that counts; each change of the span starts another task.
    watcher: Cell<u64>,
    given_up: Cell<bool>,
    next: Cell<u64>,
    /// Commands under way, in order of issue.
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    /// Commands that were abandoned and have not ended.
    late: Cell<u64>,
}

impl Deadline {
    /// Abandons `inner` when a command takes longer than `span` (plus at most an eighth); zero:
    /// never.
    #[must_use]
    pub fn new(inner: Device, span: Nanos) -> Rc<Self> {
        let shared = Shared {
            name: inner.name().to_owned(),
            geometry: inner.geometry(),
            allocates_on_write: inner.allocates_on_write(),
            inner: RefCell::new(Some(inner)),
            span: Cell::new(span),
            tick: Cell::new(0),
            watched: Cell::new(false),
            watcher: Cell::new(0),
            given_up: Cell::new(false),
            next: Cell::new(0),
            waiting: RefCell::default(),
            late: Cell::new(0),
        };
        Rc::new(Self { shared: Rc::new(shared) })
    }

    /// Changes the span, for commands under way too; zero: never.
    pub fn set_span(&self, span: Nanos) {
        if self.shared.span.replace(span) == span {
            return;
        }
        self.shared.watcher.set(self.shared.watcher.get() + 1);
        self.shared.watched.set(false);
        if !self.shared.waiting.borrow().is_empty() {
            self.shared.watch();
        }
    }

    /// Takes an abandoned device back. Fails, with the number of late commands, while abandoned
    /// commands have not ended: they could still have their effect, over newer data.
    pub fn revive(&self) -> Result<(), u64> {
        let shared = &self.shared;
        // Commands whose tasks have not run since count as late; none was issued after it.
        let late = match shared.given_up.get() {
            true => shared.late.get() + shared.waiting.borrow().len() as u64,
            false => shared.late.get(),
        };
        if late > 0 {
            return Err(late);
        }
        shared.given_up.set(false);
        Ok(())
    }

    /// Lets the device go, even if this layer is still held: every later command fails with
    /// [`ErrorKind::Gone`]. Fails, and changes nothing, while commands are under way, with their
    /// number.
    pub fn close(&self) -> Result<(), u64> {
        let under_way = self.shared.late.get() + self.shared.waiting.borrow().len() as u64;
        if under_way > 0 {
            return Err(under_way);
        }
        self.shared.inner.take();
        Ok(())
    }

    fn run<T: 'static, F>(
        &self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        issue: impl FnOnce(Device) -> F,
    ) -> DeviceFuture<'_, T>
    where
        F: Future<Output = Result<T, DeviceError>> + 'static,
    {
        let shared = self.shared.clone();
        let Some(inner) = shared.inner.borrow().clone() else {
            return Box::pin(async move {
                rt::yield_now().await;
                let (name, kind) = (&shared.name, ErrorKind::Gone);
                Err(DeviceError::new(name, operation, offset_bytes, len_bytes, kind))
            });
        };
        if shared.given_up.get() {
            return Box::pin(async move {
                // A caller that tries block after block must let other tasks run.
                rt::yield_now().await;
                Err(shared.too_late(operation, offset_bytes, len_bytes))
            });
        }
        let id = shared.next.get();
        shared.next.set(id + 1);
        shared.waiting.borrow_mut().insert(id, (shared.tick.get(), None));
        shared.watch();
        let call = Box::pin(issue(inner));
        Box::pin(Command { shared, id, call: Some(call), operation, offset_bytes, len_bytes })
    }
}

impl Shared {
    fn too_late(&self, operation: Operation, offset_bytes: u64, len_bytes: u64) -> DeviceError {
        let kind = ErrorKind::TimedOut { after_secs: self.span.get().0.div_ceil(1_000_000_000) };
        DeviceError::new(&self.name, operation, offset_bytes, len_bytes, kind)
    }

    /// Starts the task that counts, unless it runs.
    fn watch(self: &Rc<Self>) {
        if self.span.get() > Nanos(0) && !self.watched.replace(true) {
            // The task must not keep a device open that is no longer used.
            rt::spawn(count(Rc::downgrade(self), self.span.get(), self.watcher.get()));
        }
    }

    /// Counts one tick. Returns whether there is more to count.
    fn advance(&self) -> bool {
        self.tick.set(self.tick.get() + 1);
        let oldest = self.waiting.borrow().first_key_value().map(|(_, (tick, _))| *tick);
        if oldest.is_some_and(|tick| self.tick.get() - tick <= TICKS) {
            return true;
        }
        self.watched.set(false);
        if oldest.is_some() {
            self.given_up.set(true);
            let waiting: Vec<Waker> =
                self.waiting.borrow_mut().values_mut().filter_map(|w| w.1.take()).collect();
            waiting.into_iter().for_each(Waker::wake);
            let inner = self.inner.borrow().clone();
            if let Some(inner) = inner {
                inner.abandon();
            }
        }
        false
    }
}

async fn count(shared: Weak<Shared>, span: Nanos, watcher: u64) {
    loop {
        rt::sleep(Nanos(span.0 / TICKS)).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.watcher.get() != watcher || !shared.advance() {
            return;
        }
    }
}

/// The tick at which a command was issued, and the waker of its task.
type Waiting = (u64, Option<Waker>);

type Call<T> = Pin<Box<dyn Future<Output = Result<T, DeviceError>>>>;

/// A command on its way.
struct Command<T: 'static> {
    shared: Rc<Shared>,
    id: u64,
    call: Option<Call<T>>,
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
}

impl<T> Future for Command<T> {
    type Output = Result<T, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared.clone();
        let call = self.call.as_mut().expect("polled after its end");
        if let Poll::Ready(out) = call.as_mut().poll(cx) {
            self.call = None;
            // A device that was told to end its commands fails them for this reason.
            return Poll::Ready(match out {
                Err(_) if shared.given_up.get() => {
                    Err(shared.too_late(self.operation, self.offset_bytes, self.len_bytes))
                }
                out => out,
            });
        }
        if shared.given_up.get() {
            let late = self.call.take().expect("it is pending");
            shared.late.set(shared.late.get() + 1);
            let error = shared.too_late(self.operation, self.offset_bytes, self.len_bytes);
            // No task waits for the result, but `revive` must know when the command has ended.
            rt::spawn_detached(Box::pin(async move {
                drop(late.await);
                shared.late.set(shared.late.get() - 1);
            }));
            return Poll::Ready(Err(error));
        }
        if let Some((_, waker)) = shared.waiting.borrow_mut().get_mut(&self.id) {
            match waker {
                Some(known) => known.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
        }
        Poll::Pending
    }
}

impl<T> Drop for Command<T> {
    fn drop(&mut self) {
        self.shared.waiting.borrow_mut().remove(&self.id);
    }
}

impl BlockDevice for Deadline {
    fn name(&self) -> &str {
        &self.shared.name
    }
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }
    fn allocates_on_write(&self) -> bool {
        self.shared.allocates_on_write
    }
    fn check_presence(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Check, 0, 0, |inner| async move { inner.check_presence().await })
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let len = buf.len() as u64;
        let call = move |inner: Device| async move { inner.read(offset, buf).await };
        self.run(Operation::Read, offset, len, call)
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.write_vectored(offset, vec![data], fua)
    }
    fn write_vectored(&self, offset: u64, parts: Vec<IoBytes>, fua: bool) -> DeviceFuture<'_, ()> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let call =
            move |inner: Device| async move { inner.write_vectored(offset, parts, fua).await };
        self.run(Operation::Write, offset, len, call)
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        self.run(Operation::Flush, 0, 0, |inner| async move { inner.flush().await })
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = move |inner: Device| async move { inner.discard(offset, len, fua).await };
        self.run(Operation::Discard, offset, len, call)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call =
            move |inner: Device| async move { inner.write_zeroes(offset, len, options).await };
        self.run(Operation::WriteZeroes, offset, len, call)
    }
    fn allocation(&self, offset: u64, len: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        let call = move |inner: Device| async move { inner.allocation(offset, len).await };
        self.run(Operation::Allocation, offset, len, call)
    }
    /// Under no time limit of this layer: a save may take long, and the device under it has its own
    /// limits.
    fn save(&self) -> DeviceFuture<'_, ()> {
        let inner = self.shared.inner.borrow().clone();
        Box::pin(async move {
            match inner {
                Some(inner) => inner.save().await,
                None => Ok(()),
            }
        })
    }
    fn abandon(&self) {
        let inner = self.shared.inner.borrow().clone();
        if let Some(inner) = inner {
            inner.abandon();
        }
    }
    fn dram(&self) -> Option<DramStatus> {
        self.shared.inner.borrow().as_ref().and_then(|inner| inner.dram())
    }
    fn objects(&self) -> Option<ObjectStats> {
        self.shared.inner.borrow().as_ref().and_then(|inner| inner.objects())
    }
    fn take_dram_changes(&self) -> Vec<DramChange> {
        self.shared.inner.borrow().as_ref().map_or_else(Vec::new, |d| d.take_dram_changes())
    }
    fn reservations(&self) -> DeviceFuture<'_, Reservations> {
        let call = |inner: Device| async move { inner.reservations().await };
        self.run(Operation::Reservation, 0, 0, call)
    }
    fn change_reservations(&self, change: ReservationChange) -> DeviceFuture<'_, ()> {
        let call = move |inner: Device| async move { inner.change_reservations(change).await };
        self.run(Operation::Reservation, 0, 0, call)
    }
}
