//! The link between a machine and its disks, which may be cut while the machine runs on.
//!
//! What enters: commands of one machine. What leaves: their answers, once the link is whole. What
//! always holds: a change that was sent while its machine still owned the pool reaches its disk
//! before the next owner reads the log, or never. Who calls: `boot.rs` and `contest.rs`.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes, Layer, Operation,
    ZeroOptions,
};
use forebay_objects::{Answer, Store, StoreError};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::scenario::CutOff;

/// An owner that cannot read its heartbeat sends no change after so long.
const SENDS_FOR: Nanos = Nanos::from_secs(3);
/// How long a request to a store waits for its answer.
const STORE_TIMEOUT: Nanos = Nanos::from_secs(60);
/// How long a command takes that fails because the link is cut.
const FAILS_AFTER: Nanos = Nanos::from_millis(1);

/// A cut that goes on.
#[derive(Clone, Copy)]
struct Cut {
    how: CutOff,
    since: Nanos,
    /// When disks receive what was sent within [`SENDS_FOR`].
    delivers_at: Nanos,
    /// Only stores are cut off.
    has_disks: bool,
}

/// A machine's link to its disks.
pub(crate) struct Link {
    cut: Cell<Option<Cut>>,
    restored: Rc<Notify>,
}

impl Link {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { cut: Cell::new(None), restored: Notify::new() })
    }

    /// `device` as the machine reaches it.
    pub(crate) fn over(self: &Rc<Self>, device: Device) -> Device {
        Rc::new(Linked { inner: device, link: self.clone() })
    }

    /// A client of a store, as the machine reaches it.
    pub(crate) fn to(self: &Rc<Self>, store: Rc<dyn Store>) -> Rc<dyn Store> {
        Rc::new(LinkedStore { inner: store, link: self.clone() })
    }

    /// Cuts the link, or with `has_disks` that to stores. What is sent now reaches its disk
    /// `delivers_after` from now, or later.
    pub(crate) fn cut(&self, how: CutOff, delivers_after: Nanos, has_disks: bool) {
        let since = rt::now();
        let delivers_at = since + delivers_after;
        self.cut.set(Some(Cut { how, since, delivers_at, has_disks }));
    }

    /// How the link to disks is cut, if it is.
    fn cut_of_disks(&self) -> Option<Cut> {
        self.cut.get().filter(|cut| !cut.has_disks)
    }

    /// Repairs the link: what waits is sent and answered.
    pub(crate) fn restore(&self) {
        self.cut.set(None);
        self.restored.notify_all();
    }

    async fn whole(&self) {
        self.restored.until(|| self.cut.get().is_none()).await;
    }

    /// Waits until a change that is sent during `cut` reaches its disk.
    async fn delivered(&self, cut: Cut) {
        if rt::now() > cut.since + SENDS_FOR {
            return self.whole().await;
        }
        let at = std::pin::pin!(rt::sleep_until(cut.delivers_at));
        rt::select(at, std::pin::pin!(self.whole())).await;
    }
}

/// A device behind a link.
struct Linked {
    inner: Device,
    link: Rc<Link>,
}

impl Linked {
    fn error<T>(&self, operation: Operation) -> Result<T, DeviceError> {
        Err(DeviceError::new(self.inner.name(), operation, 0, 0, ErrorKind::Gone))
    }

    /// Passes an answer on once the link is whole, or fails.
    async fn answer<T>(
        &self,
        operation: Operation,
        outcome: Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        match self.link.cut_of_disks() {
            None => return outcome,
            Some(Cut { how: CutOff::Fails, .. }) => return self.error(operation),
            Some(Cut { how: CutOff::Hangs, .. }) => {}
        }
        self.link.whole().await;
        outcome
    }

    /// A change. One that is under way takes effect, whatever its caller does.
    fn change(
        &self,
        operation: Operation,
        command: impl Future<Output = Result<(), DeviceError>> + 'static,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let outcome = match self.link.cut_of_disks() {
                None => command.await,
                Some(Cut { how: CutOff::Fails, .. }) => {
                    rt::sleep(FAILS_AFTER).await;
                    return self.error(operation);
                }
                Some(cut) => {
                    let link = self.link.clone();
                    let sent = rt::spawn(async move {
                        link.delivered(cut).await;
                        command.await
                    });
                    sent.await
                }
            };
            self.answer(operation, outcome).await
        })
    }
}

impl Layer for Linked {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            match self.link.cut_of_disks() {
                None => {}
                Some(Cut { how: CutOff::Fails, .. }) => {
                    rt::sleep(FAILS_AFTER).await;
                    return self.error(Operation::Read);
                }
                Some(_) => self.link.whole().await,
            }
            let outcome = self.inner.read(offset_bytes, buf).await;
            self.answer(Operation::Read, outcome).await
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let inner = self.inner.clone();
        let command = async move { inner.write(offset_bytes, data, fua).await };
        self.change(Operation::Write, command)
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        let inner = self.inner.clone();
        self.change(Operation::Flush, async move { inner.flush().await })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let inner = self.inner.clone();
        let command = async move { inner.discard(offset_bytes, len_bytes, fua).await };
        self.change(Operation::Discard, command)
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let inner = self.inner.clone();
        let command = async move { inner.write_zeroes(offset_bytes, len_bytes, options).await };
        self.change(Operation::WriteZeroes, command)
    }
}

/// A client of a store behind a link.
struct LinkedStore {
    inner: Rc<dyn Store>,
    link: Rc<Link>,
}

impl LinkedStore {
    /// Makes a request. While the link is cut none reaches the store, and no answer comes.
    async fn ask<T>(&self, request: Answer<'_, T>) -> Result<T, StoreError> {
        let answer = match self.link.cut.get() {
            None => Some(request.await),
            Some(_) => None,
        };
        match (self.link.cut.get(), answer) {
            (None, Some(answer)) => answer,
            (Some(Cut { how: CutOff::Fails, .. }), _) => {
                rt::sleep(FAILS_AFTER).await;
                Err(StoreError::Unreachable { text: "no route to host".to_owned() })
            }
            _ => {
                let whole = std::pin::pin!(self.link.whole());
                rt::select(std::pin::pin!(rt::sleep(STORE_TIMEOUT)), whole).await;
                Err(StoreError::Unavailable { text: "timed out".to_owned() })
            }
        }
    }
}

impl Store for LinkedStore {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn put<'a>(&'a self, name: &'a str, parts: Vec<IoBytes>, only_new: bool) -> Answer<'a, ()> {
        Box::pin(self.ask(self.inner.put(name, parts, only_new)))
    }

    fn get<'a>(&'a self, name: &'a str, range: Option<Range<u64>>) -> Answer<'a, Vec<IoBytes>> {
        Box::pin(self.ask(self.inner.get(name, range)))
    }

    fn delete(&self, names: Vec<String>) -> Answer<'_, ()> {
        Box::pin(self.ask(self.inner.delete(names)))
    }

    fn list<'a>(&'a self, prefix: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(self.ask(self.inner.list(prefix)))
    }
}
