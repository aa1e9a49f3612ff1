//! Tests by subject, and the device that most of them serve.

mod bench;
mod client;
mod codec;
mod contexts;
mod handshake;
mod hostile;
mod kernel;
mod outbox;
mod serve;
mod shares;
mod tls;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf, IoBytes,
    Operation, ZeroOptions, check_range,
};
use forebay_rt as rt;
use forebay_rt::net;
use forebay_units::Nanos;

use crate::client::Client;
use crate::exports::FixedExports;
use crate::limits::Limits;
use crate::server::Server;

/// A device with a volatile cache that answers after a random delay.
struct CachedDevice {
    geometry: Cell<Geometry>,
    /// The content that reads return.
    seen: RefCell<Vec<u8>>,
    /// The content that a power failure would leave.
    durable: RefCell<Vec<u8>>,
    /// Whether each 512-byte sector is allocated.
    stored: RefCell<Vec<bool>>,
    max_delay: Nanos,
    /// Offset and length of each read.
    reads: RefCell<Vec<(u64, u64)>>,
    writes_begun: Cell<u64>,
    /// Trims and zeroes.
    holes_begun: Cell<u64>,
    flushes_begun: Cell<u64>,
    in_flight: Cell<u64>,
    max_in_flight: Cell<u64>,
    fail_next: RefCell<Option<ErrorKind>>,
    /// Whether it answers what is allocated.
    tells_allocation: Cell<bool>,
}

impl CachedDevice {
    fn new(size_bytes: usize) -> Rc<Self> {
        Rc::new(Self {
            geometry: Cell::new(Geometry {
                size_bytes: size_bytes as u64,
                block_bytes: 512,
                volatile_cache: true,
                discard_bytes: 4096,
                read_only: false,
            }),
            seen: RefCell::new(vec![0; size_bytes]),
            durable: RefCell::new(vec![0; size_bytes]),
            stored: RefCell::new(vec![false; size_bytes / 512]),
            max_delay: Nanos::from_millis(2),
            reads: RefCell::default(),
            writes_begun: Cell::new(0),
            holes_begun: Cell::new(0),
            flushes_begun: Cell::new(0),
            in_flight: Cell::new(0),
            max_in_flight: Cell::new(0),
            fail_next: RefCell::new(None),
            tells_allocation: Cell::new(true),
        })
    }

    async fn delay(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.max_in_flight.set(self.max_in_flight.get().max(self.in_flight.get()));
        rt::sleep(Nanos(1 + rt::random_below(self.max_delay.0))).await;
        self.in_flight.set(self.in_flight.get() - 1);
    }

    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        if let Some(kind) = self.fail_next.borrow_mut().take() {
            return Err(DeviceError::new("secret-path", op, offset, len, kind));
        }
        check_range("secret-path", &self.geometry.get(), op, offset, len)
    }

    fn put(&self, offset: u64, data: &[u8], stored: bool, fua: bool) {
        let (start, end) = (offset as usize, offset as usize + data.len());
        self.seen.borrow_mut()[start..end].copy_from_slice(data);
        self.stored.borrow_mut()[start / 512..end / 512].fill(stored);
        if fua {
            self.durable.borrow_mut()[start..end].copy_from_slice(data);
        }
    }
}

impl BlockDevice for CachedDevice {
    fn name(&self) -> &str {
        "secret-path"
    }
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }
    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.reads.borrow_mut().push((offset_bytes, buf.len() as u64));
            self.delay().await;
            self.check(Operation::Read, offset_bytes, buf.len() as u64)?;
            let start = offset_bytes as usize;
            let len = buf.len();
            buf.copy_from_slice(&self.seen.borrow()[start..start + len]);
            Ok(buf)
        })
    }
    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            assert!(data.is_aligned_to(4096), "payloads arrive in aligned memory");
            self.writes_begun.set(self.writes_begun.get() + 1);
            self.delay().await;
            self.check(Operation::Write, offset_bytes, data.len() as u64)?;
            self.put(offset_bytes, &data, true, fua);
            Ok(())
        })
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.flushes_begun.set(self.flushes_begun.get() + 1);
            // A flush covers the writes that had completed when it was issued, and no others.
            let covered = self.seen.borrow().clone();
            self.delay().await;
            self.check(Operation::Flush, 0, 0)?;
            *self.durable.borrow_mut() = covered;
            Ok(())
        })
    }
    fn discard(&self, offset_bytes: u64, len_bytes: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.holes_begun.set(self.holes_begun.get() + 1);
            self.delay().await;
            self.check(Operation::Discard, offset_bytes, len_bytes)?;
            self.put(offset_bytes, &vec![0; len_bytes as usize], false, fua);
            Ok(())
        })
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.holes_begun.set(self.holes_begun.get() + 1);
            self.delay().await;
            self.check(Operation::WriteZeroes, offset, len)?;
            if options.fast && options.no_hole {
                let kind = ErrorKind::Unsupported;
                return Err(DeviceError::new("x", Operation::WriteZeroes, offset, len, kind));
            }
            self.put(offset, &vec![0; len as usize], options.no_hole, options.fua);
            Ok(())
        })
    }
    fn allocation(&self, offset: u64, len: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Box::pin(async move {
            self.delay().await;
            if !self.tells_allocation.get() {
                return Ok(Vec::new());
            }
            let stored = self.stored.borrow();
            let sectors = &stored[offset as usize / 512..(offset + len) as usize / 512];
            // One run per sector, so that the server has to merge.
            Ok(sectors.iter().map(|s| Allocation { len_bytes: 512, hole: !s }).collect())
        })
    }
}

/// A server of `device` as the exports "vol" and "".
fn server_of(device: Rc<CachedDevice>, limits: Limits) -> Rc<Server> {
    let exports = FixedExports::new().with("vol", device.clone()).with("", device);
    Server::new(Rc::new(exports), limits)
}

/// A connected stream; the tests in `tests/` use real sockets instead.
fn connect_raw(server: &Rc<Server>) -> net::Stream {
    let (here, there) = net::pair();
    assert!(server.adopt(there), "there was no room");
    here
}

async fn connect(server: &Rc<Server>) -> Client {
    Client::over(connect_raw(server), "vol", "test").await.expect("the export exists")
}

/// A client without structured replies.
async fn connect_simple(server: &Rc<Server>) -> Client {
    let opened = Client::open(connect_raw(server), "vol", "test", false, None);
    opened.await.expect("the export exists")
}

fn pattern(len: usize, salt: u64) -> IoBytes {
    let mut buf = IoBuf::recycled(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte =
            ((i as u64).wrapping_mul(31).wrapping_add(salt.wrapping_mul(131)) >> 3) as u8 ^ 0x5a;
    }
    buf.freeze()
}
