//! A disk with delays, injected failures, and a power cut at any command.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes, Operation,
    check_range,
};
use forebay_rt as rt;
use forebay_units::Nanos;

/// Counts submissions and completions over all disks, and cuts the power at one of them.
#[derive(Default)]
pub(super) struct Power {
    pub(super) steps: Cell<u64>,
    pub(super) cut_at: Cell<u64>,
}

impl Power {
    pub(super) fn is_cut(&self) -> bool {
        self.cut_at.get() != 0 && self.steps.get() >= self.cut_at.get()
    }

    async fn step(&self) {
        self.steps.set(self.steps.get() + 1);
        self.stop_if_cut().await;
    }

    /// The task that runs at the cut continues until its next await; it must not reach a disk.
    async fn stop_if_cut(&self) {
        if self.is_cut() {
            rt::halt();
            std::future::pending::<()>().await;
        }
    }
}

pub(super) struct Disk {
    pub(super) id: u32,
    name: String,
    geometry: Geometry,
    media: RefCell<Vec<u8>>,
    in_flight: RefCell<BTreeMap<u64, (u64, IoBytes)>>,
    power: Rc<Power>,
    pub(super) max_delay: Nanos,
    /// Added to the time of each read.
    pub(super) read_delay: Cell<Nanos>,
    /// The write (counted from 1) from which on all writes fail.
    pub(super) fails_from: Cell<u64>,
    /// Reads that touch this range fail.
    pub(super) unreadable: Cell<(u64, u64)>,
    writes: RefCell<Vec<(u64, u64)>>,
}

impl Disk {
    pub(super) fn new(id: u32, size_bytes: u64, max_delay_us: u64, power: &Rc<Power>) -> Rc<Self> {
        Rc::new(Self {
            id,
            name: format!("disk{id}"),
            geometry: Geometry {
                size_bytes,
                block_bytes: 512,
                volatile_cache: true,
                discard_bytes: 4096,
                read_only: false,
            },
            media: RefCell::new(vec![0; size_bytes as usize]),
            in_flight: RefCell::default(),
            power: power.clone(),
            max_delay: Nanos::from_micros(max_delay_us),
            read_delay: Cell::default(),
            fails_from: Cell::new(u64::MAX),
            unreadable: Cell::new((0, 0)),
            writes: RefCell::default(),
        })
    }

    /// A disk of 2 MiB whose power never fails.
    pub(super) fn alone(id: u32) -> Rc<Self> {
        Self::new(id, 2 << 20, 5, &Rc::new(Power::default()))
    }

    /// Offset and length of each write so far, in the order of issue.
    pub(super) fn writes(&self) -> Vec<(u64, u64)> {
        self.writes.borrow().clone()
    }

    pub(super) fn flip(&self, offset: u64) {
        self.media.borrow_mut()[offset as usize] ^= 0x10;
    }

    pub(super) fn erase(&self, offset: u64, len: u64) {
        self.media.borrow_mut()[offset as usize..(offset + len) as usize].fill(0);
    }

    pub(super) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        self.media.borrow()[offset as usize..offset as usize + len].to_vec()
    }

    /// Applies a power cut: of each write in flight all, none, or any sectors reach the media.
    pub(super) fn draw_crash_outcome(&self, mut chance: impl FnMut() -> u64) {
        for (_, (offset, data)) in std::mem::take(&mut *self.in_flight.borrow_mut()) {
            match chance() % 4 {
                0 => {}
                1 => self.apply(offset, &data),
                _ => self.tear(offset, &data, &mut chance),
            }
        }
    }

    fn tear(&self, offset: u64, data: &[u8], chance: &mut impl FnMut() -> u64) {
        for (i, sector) in data.chunks(512).enumerate() {
            if chance() % 2 == 0 {
                self.apply(offset + 512 * i as u64, sector);
            }
        }
    }

    pub(super) fn apply(&self, offset: u64, data: &[u8]) {
        self.media.borrow_mut()[offset as usize..offset as usize + data.len()]
            .copy_from_slice(data);
    }

    fn error(&self, operation: Operation, offset: u64, len: u64) -> DeviceError {
        DeviceError::new(&self.name, operation, offset, len, ErrorKind::Os { errno: 5 })
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            let len = buf.len() as u64;
            check_range(&self.name, &self.geometry, Operation::Read, offset, len)?;
            let delay = Nanos(1 + rt::random_below(self.max_delay.0));
            rt::sleep(delay + self.read_delay.get()).await;
            let (from, to) = self.unreadable.get();
            if offset < to && offset + len > from {
                return Err(self.error(Operation::Read, offset, len));
            }
            buf.copy_from_slice(&self.media.borrow()[offset as usize..(offset + len) as usize]);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            assert!(fua, "log writes must be durable on completion");
            let len = data.len() as u64;
            self.power.stop_if_cut().await;
            check_range(&self.name, &self.geometry, Operation::Write, offset, len)?;
            let number = {
                let mut writes = self.writes.borrow_mut();
                writes.push((offset, len));
                writes.len() as u64
            };
            for (other, bytes) in self.in_flight.borrow().values() {
                let apart = offset + len <= *other || other + bytes.len() as u64 <= offset;
                assert!(apart, "two writes in flight overlap");
            }
            self.in_flight.borrow_mut().insert(number, (offset, data.clone()));
            self.power.step().await;
            rt::sleep(Nanos(1 + rt::random_below(self.max_delay.0))).await;
            self.power.step().await;
            self.in_flight.borrow_mut().remove(&number);
            if number >= self.fails_from.get() {
                self.tear(offset, &data, &mut rt::random_u64);
                return Err(self.error(Operation::Write, offset, len));
            }
            self.apply(offset, &data);
            Ok(())
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _: u64, _: u64, _: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
