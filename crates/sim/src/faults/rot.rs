//! Layer of bit rot: bits that flip at rest.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, DeviceFuture, IoBuf, IoBytes, Layer, ZeroOptions};

/// Layer: chosen bytes read with flipped bits until a write replaces them.
pub struct BitRot {
    inner: Device,
    flips: RefCell<BTreeMap<u64, u8>>,
    struck: Cell<u64>,
    seen: Cell<u64>,
}

impl BitRot {
    /// A layer without rot.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        let (struck, seen) = (Cell::new(0), Cell::new(0));
        Rc::new(Self { inner, flips: RefCell::default(), struck, seen })
    }

    /// Flips the bits of `mask` (not 0) in the byte at `offset_bytes`.
    pub fn flip(&self, offset_bytes: u64, mask: u8) {
        self.flips.borrow_mut().insert(offset_bytes, mask.max(1));
        self.struck.set(self.struck.get() + 1);
    }

    /// How many bytes were flipped so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.get()
    }

    /// How many reads returned flipped bytes.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen.get()
    }

    fn forget_flips(&self, offset: u64, len: u64) {
        let mut flips = self.flips.borrow_mut();
        if flips.is_empty() {
            return;
        }
        let covered: Vec<u64> = flips.range(offset..offset + len).map(|(at, _)| *at).collect();
        for at in covered {
            flips.remove(&at);
        }
    }
}

impl Layer for BitRot {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let call = self.inner.read(offset, buf);
        if self.flips.borrow().is_empty() {
            return call;
        }
        Box::pin(async move {
            let mut buf = call.await?;
            let flips = self.flips.borrow();
            let mut any = 0;
            for (at, mask) in flips.range(offset..offset + buf.len() as u64) {
                buf[(at - offset) as usize] ^= mask;
                any = 1;
            }
            self.seen.set(self.seen.get() + any);
            Ok(buf)
        })
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        self.forget_flips(offset, data.len() as u64);
        self.inner.write(offset, data, fua)
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.forget_flips(offset, len);
        self.inner.discard(offset, len, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.forget_flips(offset, len);
        self.inner.write_zeroes(offset, len, options)
    }
}
