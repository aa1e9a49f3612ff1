//! A guest with one ring, for tests and the fuzz target `vhost_ring`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::MemoryDevice;
use forebay_rt::Runtime;
use forebay_rt::sync::{Notify, Semaphore};
use forebay_units::Nanos;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{Bytes, GuestAddress};

use crate::memory::Memory;
use crate::request::Target;
use crate::ring::{Addresses, Ring, Shared};

pub(crate) const MEMORY_BYTES: usize = 64 << 10;
pub(crate) const SIZE: u16 = 8;
pub(crate) const RING: Addresses = Addresses { descriptors: 0, available: 0x1000, used: 0x2000 };
pub(crate) const HEADER: u64 = 0x3000;
pub(crate) const STATUS: u64 = 0x4000;
pub(crate) const DATA: u64 = 0x5000;
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;

pub(crate) fn shared() -> Rc<Shared> {
    let target = Target {
        device: Rc::new(MemoryDevice::new("memory", 1 << 20)),
        id: "p-v".into(),
        flushes: Cell::new(true),
        is_writeback: Cell::new(true),
        read_only: false,
        request_max_bytes: 32 << 10,
        must_fail_flush: Cell::new(false),
        cached_writes: Cell::new(0),
        flushed_writes: Cell::new(0),
    };
    Rc::new(Shared {
        target,
        broken: Cell::new(None),
        changed: Notify::new(),
        in_flight: Cell::new(0),
        takers: Cell::new(0),
        is_paused: Cell::new(false),
        connection_bytes: Semaphore::new(64 << 10),
        total_bytes: Semaphore::new(64 << 10),
        taken: Cell::new(0),
        is_stopping: Rc::default(),
        run: 1,
        name: "p/v".into(),
        events: Rc::default(),
        inflight: RefCell::default(),
    })
}

/// A guest's memory with an empty ring.
pub(crate) struct Guest {
    pub(crate) memory: Rc<Memory>,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let file = forebay_rt::sys::memory_file(c"guest", MEMORY_BYTES as u64).unwrap();
        let region = VhostUserMemoryRegion::new(0, MEMORY_BYTES as u64, 0, 0);
        Self { memory: Rc::new(Memory::map(&[region], vec![file]).unwrap()) }
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.mapped().write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(crate) fn descriptor(&self, index: u64, at: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(16 * index, &bytes);
    }

    /// A request with one piece of data, at descriptor 0.
    pub(crate) fn request(&self, kind: u32, sector: u64, len: u32, data_flags: u16) {
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.put(HEADER, &header);
        self.put(STATUS, &[0xee]);
        self.descriptor(0, HEADER, 16, NEXT, 1);
        self.descriptor(1, DATA, len, NEXT | data_flags, 2);
        self.descriptor(2, STATUS, 1, WRITE, 0);
    }

    pub(crate) fn offer(&self, index: u16, head: u16) {
        self.put(RING.available + 4 + 2 * u64::from((index - 1) % SIZE), &head.to_le_bytes());
        self.put(RING.available + 2, &index.to_le_bytes());
    }

    /// Lets a ring take what is offered. Returns why the connection ended, if it did.
    pub(crate) fn play(&self) -> Option<&'static str> {
        self.play_on(shared())
    }

    /// The same with what the connection has.
    pub(crate) fn play_on(&self, shared: Rc<Shared>) -> Option<&'static str> {
        let memory = self.memory.clone();
        Runtime::simulated(1).block_on(async move {
            let ring = Ring::new(0, shared.clone());
            ring.size.set(SIZE);
            ring.addresses.set(Some(RING));
            ring.is_enabled.set(true);
            ring.is_started.set(true);
            ring.start(&memory, false);
            let idle = || shared.takers.get() == 0 && shared.in_flight.get() == 0;
            shared.is_paused.set(false);
            let begun = forebay_rt::now();
            while !idle() {
                forebay_rt::sleep(Nanos::from_millis(1)).await;
                assert!(forebay_rt::now() < begun + Nanos::from_secs(60), "a ring without an end");
            }
            assert_eq!(shared.total_bytes.available(), 64 << 10, "memory that is not given back");
            shared.broken.get()
        })
    }
}

/// What the fuzzer may lay over a valid request: where, and how many bytes.
#[cfg(feature = "fuzzing")]
const PATCH_HEAD_BYTES: usize = 3;

/// Any bytes as changes to the memory of a guest whose ring offers a valid request: no panic, an
/// end, and all memory given back. Each change is a place, a length and as many bytes; the first
/// byte chooses the request.
#[cfg(feature = "fuzzing")]
pub fn check_ring(bytes: &[u8]) {
    let guest = Guest::new();
    let (first, mut rest) = bytes.split_first().unwrap_or((&1, &[]));
    let is_read = *first % 16 == 0;
    guest.request(u32::from(*first % 16), 8, 512, if is_read { WRITE } else { 0 });
    guest.offer(1, 0);
    while rest.len() > PATCH_HEAD_BYTES {
        let at = u64::from(u16::from_le_bytes([rest[0], rest[1]]));
        let len = usize::from(rest[2]).min(rest.len() - PATCH_HEAD_BYTES);
        let (patch, after) = rest[PATCH_HEAD_BYTES..].split_at(len);
        guest.put(at, &patch[..patch.len().min(MEMORY_BYTES - at as usize)]);
        rest = after;
    }
    guest.play();
}
