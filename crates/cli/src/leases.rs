//! Leases: volumes as NBD clients hold them.
//!
//! What enters: opened volumes. What leaves: block devices that can be revoked. What always holds:
//! after a revocation every operation of a holder fails, and the volume is closed.
//! Who calls: the set of open pools.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use forebay_device::{
    Allocation, BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf,
    IoBytes, Operation, ZeroOptions,
};
use forebay_nbd::Revocation;
use forebay_rt as rt;

use crate::client_classes::{Class, ClientClasses, Request};

/// A volume that can be revoked: then every further operation fails with [`ErrorKind::Gone`], and
/// the volume itself is closed.
struct Lease {
    name: String,
    device: RefCell<Option<Device>>,
    geometry: Cell<Geometry>,
    /// The client of each hold, by the number of the hold.
    holders: RefCell<BTreeMap<u64, String>>,
    /// Ends the connections of the holders.
    revocation: Rc<Revocation>,
}

impl Lease {
    fn geometry(&self) -> Geometry {
        if let Some(device) = &*self.device.borrow() {
            self.geometry.set(device.geometry());
        }
        self.geometry.get()
    }

    fn device(&self, what: (Operation, u64, u64)) -> Result<Device, DeviceError> {
        self.device.borrow().clone().ok_or_else(|| self.gone(what))
    }

    fn is_revoked(&self) -> bool {
        self.device.borrow().is_none()
    }

    fn gone(&self, (operation, at, len): (Operation, u64, u64)) -> DeviceError {
        DeviceError::new(&self.name, operation, at, len, ErrorKind::Gone)
    }
}

/// A volume as one of its holders has it: what that does is counted for its class.
pub struct Holder {
    lease: Rc<Lease>,
    class: Class,
    classes: Rc<ClientClasses>,
}

impl Holder {
    /// What ends the connections of the holders when the lease is revoked.
    #[must_use]
    pub fn revocation(&self) -> Rc<Revocation> {
        self.lease.revocation.clone()
    }

    /// Waits for `work`, and counts it if it succeeds. It is given up after a revocation: a write
    /// that waits for its turn would come into a volume that has gone back to a snapshot meanwhile.
    async fn counted<T>(
        &self,
        request: Request,
        what: (Operation, u64, u64),
        work: impl Future<Output = Result<T, DeviceError>>,
    ) -> Result<T, DeviceError> {
        let begun = rt::now();
        let mut work = std::pin::pin!(work);
        let lease = &self.lease;
        let done = poll_fn(|cx| match lease.is_revoked() {
            true => Poll::Ready(Err(lease.gone(what))),
            false => work.as_mut().poll(cx),
        })
        .await?;
        self.classes.note(self.class, request, what.2, rt::now().since(begun));
        Ok(done)
    }
}

impl BlockDevice for Holder {
    fn name(&self) -> &str {
        &self.lease.name
    }

    fn geometry(&self) -> Geometry {
        self.lease.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let what = (Operation::Read, offset_bytes, buf.len() as u64);
            let device = self.lease.device(what)?;
            self.counted(Request::Read, what, device.read(offset_bytes, buf)).await
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let what = (Operation::Write, offset_bytes, data.len() as u64);
            let device = self.lease.device(what)?;
            self.counted(Request::write(fua), what, device.write(offset_bytes, data, fua)).await
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let what = (Operation::Flush, 0, 0);
            let device = self.lease.device(what)?;
            self.counted(Request::Flush, what, device.flush()).await
        })
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let what = (Operation::Discard, offset_bytes, len_bytes);
            let device = self.lease.device(what)?;
            let work = device.discard(offset_bytes, len_bytes, fua);
            self.counted(Request::Trim, what, work).await
        })
    }

    fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        options: ZeroOptions,
    ) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let what = (Operation::WriteZeroes, offset_bytes, len_bytes);
            let device = self.lease.device(what)?;
            let work = device.write_zeroes(offset_bytes, len_bytes, options);
            self.counted(Request::Trim, what, work).await
        })
    }

    fn allocation(&self, offset_bytes: u64, len_bytes: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Box::pin(async move {
            let device = self.lease.device((Operation::Allocation, offset_bytes, len_bytes))?;
            device.allocation(offset_bytes, len_bytes).await
        })
    }
}

/// Counts one holder for as long as it lives.
pub struct Hold(Rc<Lease>, u64);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holders.borrow_mut().remove(&self.1);
    }
}

/// The leases of a serving process, by `POOL/VOL`.
#[derive(Default)]
pub struct Leases {
    by_name: RefCell<BTreeMap<String, Rc<Lease>>>,
    next: Cell<u64>,
    classes: Rc<ClientClasses>,
}

impl Leases {
    /// The operations of all holders, by class.
    #[must_use]
    pub fn classes(&self) -> &ClientClasses {
        &self.classes
    }

    /// A lease on `name` for the client `who`: the lease that other clients hold already, or a new
    /// one on the device that `open` gives.
    pub fn take(
        &self,
        name: &str,
        (who, class): (&str, Class),
        open: impl FnOnce() -> Option<Device>,
    ) -> Option<(Rc<Holder>, Hold)> {
        let held = self.by_name.borrow().get(name).cloned();
        let lease = match held.filter(|lease| !lease.holders.borrow().is_empty()) {
            Some(lease) => lease,
            None => {
                let device = open()?;
                let geometry = Cell::new(device.geometry());
                let lease = Rc::new(Lease {
                    name: name.to_owned(),
                    device: RefCell::new(Some(device)),
                    geometry,
                    holders: RefCell::default(),
                    revocation: Revocation::new(),
                });
                self.by_name.borrow_mut().insert(name.to_owned(), lease.clone());
                lease
            }
        };
        let number = self.next.get();
        self.next.set(number + 1);
        lease.holders.borrow_mut().insert(number, who.to_owned());
        let classes = self.classes.clone();
        let holder = Rc::new(Holder { lease: lease.clone(), class, classes });
        Some((holder, Hold(lease, number)))
    }

    /// How many connections hold volumes of `pool`, or the one volume `POOL/VOL`.
    #[must_use]
    pub fn holders(&self, name: &str) -> usize {
        self.who_holds(name).values().map(Vec::len).sum()
    }

    /// The clients that hold volumes of `pool`, or the one volume `POOL/VOL`, by volume.
    #[must_use]
    pub fn who_holds(&self, name: &str) -> BTreeMap<String, Vec<String>> {
        let leases = self.by_name.borrow();
        let all = leases.iter().filter(|(of, _)| is_within(of, name));
        let who = |lease: &Lease| lease.holders.borrow().values().cloned().collect::<Vec<_>>();
        all.map(|(of, lease)| (of.clone(), who(lease))).filter(|(_, who)| !who.is_empty()).collect()
    }

    /// Revokes the volumes of `pool`, or the one volume `POOL/VOL`, and ends the connections of
    /// their holders.
    pub fn revoke(&self, name: &str) {
        self.by_name.borrow_mut().retain(|of, lease| {
            let keep = !is_within(of, name);
            if !keep {
                lease.device.take();
                lease.revocation.revoke();
            }
            keep
        });
    }
}

fn is_within(volume: &str, name: &str) -> bool {
    volume == name || volume.split_once('/').is_some_and(|(pool, _)| pool == name)
}

#[cfg(test)]
mod tests;
