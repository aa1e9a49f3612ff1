//! Layers whose writes are acknowledged but lost, torn or misdirected.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, Device, DeviceFuture, IoBuf, IoBytes, Layer, Operation, ZeroOptions,
};
use serde::{Deserialize, Serialize};

use super::rules::{Rules, Trigger};
use crate::{SECTOR_LEN, Seed};

/// Layer: chosen writes are acknowledged and dropped.
pub struct LostWrites {
    inner: Device,
    rules: Rules<()>,
}

impl LostWrites {
    /// A layer without triggers.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new() })
    }

    /// Drops the writes that `trigger` strikes.
    pub fn add(&self, trigger: Trigger) {
        self.rules.add(trigger, ());
    }

    /// Removes all triggers. Lost writes stay lost.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many writes this layer dropped.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }

    fn run<'a>(
        &'a self,
        operation: Operation,
        offset: u64,
        len: u64,
        call: impl FnOnce() -> DeviceFuture<'a, ()>,
    ) -> DeviceFuture<'a, ()> {
        if self.rules.is_empty() || self.rules.strike(operation, offset, len).is_none() {
            return call();
        }
        Box::pin(async {
            forebay_rt::yield_now().await;
            Ok(())
        })
    }
}

impl Layer for LostWrites {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        self.run(Operation::Write, offset, len, || self.inner.write(offset, data, fua))
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        let call = || self.inner.write_zeroes(offset, len, options);
        self.run(Operation::WriteZeroes, offset, len, call)
    }
}

/// How a write is torn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tear {
    /// Only its first sectors are written.
    Prefix {
        /// How many.
        sectors: u64,
    },
    /// A random subset of its sectors is written.
    Scatter {
        /// The seed that selects them.
        seed: u64,
    },
}

/// Layer: chosen writes are acknowledged and written in part.
pub struct TornWrites {
    inner: Device,
    rules: Rules<Tear>,
}

impl TornWrites {
    /// A layer without triggers.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new() })
    }

    /// Tears the writes that `trigger` strikes, at the device's block size.
    pub fn add(&self, trigger: Trigger, tear: Tear) {
        self.rules.add(trigger, tear);
    }

    /// Removes all triggers. Torn writes stay torn.
    pub fn heal(&self) {
        self.rules.clear();
    }

    /// How many writes this layer tore.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }
}

impl Layer for TornWrites {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        let struck = match self.rules.is_empty() {
            true => None,
            false => self.rules.strike(Operation::Write, offset, len),
        };
        let Some(tear) = struck else { return self.inner.write(offset, data, fua) };
        Box::pin(async move {
            let unit = self.inner.geometry().block_bytes as usize;
            let units = data.len() / unit;
            let mut keep: Vec<bool> = match tear {
                Tear::Prefix { sectors } => {
                    let kept = sectors as usize * SECTOR_LEN / unit;
                    (0..units).map(|at| at < kept).collect()
                }
                Tear::Scatter { seed } => {
                    let mut rng = Seed(seed).rng();
                    (0..units).map(|_| rng.chance(500)).collect()
                }
            };
            keep.push(false);
            let mut start = None;
            for (at, kept) in keep.into_iter().enumerate() {
                match (start, kept) {
                    (None, true) => start = Some(at),
                    (Some(from), false) => {
                        let part = data.slice(from * unit, (at - from) * unit);
                        self.inner.write(offset + (from * unit) as u64, part, fua).await?;
                        start = None;
                    }
                    _ => {}
                }
            }
            forebay_rt::yield_now().await;
            Ok(())
        })
    }
}

/// Where a misdirected write lands.
#[derive(Clone, Copy)]
enum Aside {
    /// At this offset.
    At(u64),
    /// At its own offset with one bit flipped, if the device is that large.
    Flipped(u32),
}

impl Aside {
    fn of(self, offset_bytes: u64) -> u64 {
        match self {
            Aside::At(to_bytes) => to_bytes,
            Aside::Flipped(bit) => offset_bytes ^ (1 << bit),
        }
    }
}

/// Layer: chosen writes land elsewhere. Their own place keeps the old bytes, and another place
/// reads as the new bytes. Both are an overlay; the device itself gets the intended write. A later
/// write to either place removes that part of the overlay.
pub struct Misdirected {
    inner: Device,
    rules: Rules<Aside>,
    overlay: RefCell<BTreeMap<u64, Box<[u8]>>>,
}

impl Misdirected {
    /// A layer without triggers.
    #[must_use]
    pub fn new(inner: Device) -> Rc<Self> {
        Rc::new(Self { inner, rules: Rules::new(), overlay: RefCell::default() })
    }

    /// Misdirects the writes that `trigger` strikes to `to_bytes`, truncated at the device's end.
    pub fn add(&self, trigger: Trigger, to_bytes: u64) {
        self.rules.add(trigger, Aside::At(to_bytes / SECTOR_LEN as u64 * SECTOR_LEN as u64));
    }

    /// Flips one bit of the addresses of the writes that `trigger` strikes; `bit` is at least 9, so
    /// that whole sectors move. With the bits of the segment's number the write lands at the same
    /// place of another segment.
    pub fn add_flip(&self, trigger: Trigger, bit: u32) {
        self.rules.add(trigger, Aside::Flipped(bit.clamp(SECTOR_LEN.ilog2(), 62)));
    }

    /// Removes all triggers. Damage stays.
    pub fn disarm(&self) {
        self.rules.clear();
    }

    /// How many writes this layer misdirected.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.rules.struck.get()
    }

    fn forget_overlay(&self, offset: u64, len: u64) {
        let mut overlay = self.overlay.borrow_mut();
        let covered: Vec<u64> = overlay.range(offset..offset + len).map(|(at, _)| *at).collect();
        for at in covered {
            overlay.remove(&at);
        }
    }

    fn add_overlay(&self, offset: u64, bytes: &[u8]) {
        let end = self.inner.geometry().size_bytes;
        let mut overlay = self.overlay.borrow_mut();
        for (index, sector) in bytes.chunks(SECTOR_LEN).enumerate() {
            let at = offset + (index * SECTOR_LEN) as u64;
            if at + SECTOR_LEN as u64 <= end {
                overlay.insert(at, sector.into());
            }
        }
    }

    fn apply_overlay(&self, offset: u64, buf: &mut [u8]) {
        for (at, sector) in self.overlay.borrow().range(offset..offset + buf.len() as u64) {
            let within = (at - offset) as usize;
            buf[within..within + SECTOR_LEN].copy_from_slice(sector);
        }
    }
}

impl Layer for Misdirected {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn read(&self, offset: u64, buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        let call = self.inner.read(offset, buf);
        if self.overlay.borrow().is_empty() {
            return call;
        }
        Box::pin(async move {
            let mut buf = call.await?;
            self.apply_overlay(offset, &mut buf);
            Ok(buf)
        })
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let len = data.len() as u64;
        let struck = match self.rules.is_empty() {
            true => None,
            false => self.rules.strike(Operation::Write, offset, len),
        };
        let Some(aside) = struck else {
            self.forget_overlay(offset, len);
            return self.inner.write(offset, data, fua);
        };
        Box::pin(async move {
            let mut old = self.inner.read(offset, IoBuf::zeroed(data.len())).await?;
            self.apply_overlay(offset, &mut old);
            self.inner.write(offset, data.clone(), fua).await?;
            self.add_overlay(offset, &old);
            self.add_overlay(aside.of(offset), &data);
            Ok(())
        })
    }
    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        self.forget_overlay(offset, len);
        self.inner.discard(offset, len, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.forget_overlay(offset, len);
        self.inner.write_zeroes(offset, len, options)
    }
}
