//! Requests that are given up: a client goes away while they are in flight.
//!
//! What enters: requests of one client, and when it goes. What leaves: their answers, or
//! [`GivenUp`]. What always holds: a direct call ends with its future, so it has no later effect; a
//! server may still perform what it was sent. Who calls: clients (`client.rs`).

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Cause, Device, DeviceError, DeviceFuture, ErrorKind, IoBuf, IoBytes,
    Layer, Operation, ZeroOptions,
};
use forebay_rt as rt;
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

/// The error of a request that its client has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// It may still take effect.
    pub may_follow: bool,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client has gone away")
    }
}

impl Error for GivenUp {}

/// Why a request was given up, if that is what the error says.
#[must_use]
pub fn given_up(error: &DeviceError) -> Option<GivenUp> {
    let ErrorKind::Layer(cause) = &error.kind else { return None };
    cause.error().downcast_ref().copied()
}

/// The departure of a client, which ends all its requests in flight at one instant.
pub struct Departure {
    /// The client goes when its requests have had to wait so often, and this span has passed.
    waits: Cell<u64>,
    after: Nanos,
    /// It closes its connections in the middle of whatever they carry.
    is_abrupt: bool,
    has_gone: Cell<bool>,
    gone: Rc<Notify>,
}

impl Departure {
    /// A departure at the `waits`-th wait of the requests, and `after` later.
    #[must_use]
    pub fn new(waits: u64, after: Nanos, is_abrupt: bool) -> Rc<Self> {
        let waits = Cell::new(waits.max(1));
        Rc::new(Self { waits, after, is_abrupt, has_gone: Cell::new(false), gone: Notify::new() })
    }

    /// True when the client has gone.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.has_gone.get()
    }

    /// Notes that a request must wait.
    fn note_wait(self: &Rc<Self>) {
        let left = self.waits.get();
        self.waits.set(left.saturating_sub(1));
        if left != 1 {
            return;
        }
        if self.after == Nanos::ZERO {
            return self.go();
        }
        let departure = self.clone();
        rt::spawn(async move {
            rt::sleep(departure.after).await;
            departure.go();
        });
    }

    fn go(&self) {
        self.has_gone.set(true);
        self.gone.notify_all();
    }
}

/// A device of a client that goes away.
pub struct Leaving {
    inner: Device,
    departure: Rc<Departure>,
    is_remote: bool,
}

impl Leaving {
    /// `inner` until the client has gone.
    #[must_use]
    pub fn over(inner: Device, departure: &Rc<Departure>, is_remote: bool) -> Device {
        Rc::new(Self { inner, departure: departure.clone(), is_remote })
    }

    async fn until_gone<T>(
        &self,
        operation: Operation,
        mut call: DeviceFuture<'_, T>,
    ) -> Result<T, DeviceError> {
        let departure = &self.departure;
        let counted = poll_fn(|cx| {
            let polled = call.as_mut().poll(cx);
            if polled.is_pending() {
                departure.note_wait();
            }
            polled
        });
        let gone = std::pin::pin!(departure.gone.until(|| departure.has_gone()));
        let outcome = match rt::select(counted, gone).await {
            // Of a connection that has just been closed.
            rt::Either::Left((Err(_), _)) if departure.has_gone() => None,
            rt::Either::Left((outcome, _)) => Some(outcome),
            rt::Either::Right(_) => None,
        };
        outcome.unwrap_or_else(|| {
            if self.is_remote && departure.is_abrupt {
                self.inner.abandon();
            }
            let given_up = GivenUp { may_follow: self.is_remote };
            let kind = ErrorKind::Layer(Cause::new(given_up));
            Err(DeviceError::new(self.inner.name(), operation, 0, 0, kind))
        })
    }
}

impl Layer for Leaving {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(self.until_gone(Operation::Read, self.inner.read(offset_bytes, buf)))
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(self.until_gone(Operation::Write, self.inner.write(offset_bytes, data, fua)))
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(self.until_gone(Operation::Flush, self.inner.flush()))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        let call = self.inner.discard(offset_bytes, len_bytes, fua);
        Box::pin(self.until_gone(Operation::Discard, call))
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        let call = self.inner.write_zeroes(offset_bytes, len_bytes, options);
        Box::pin(self.until_gone(Operation::WriteZeroes, call))
    }

    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        let call = self.inner.allocation(offset_bytes, len_bytes);
        Box::pin(self.until_gone(Operation::Allocation, call))
    }
}
