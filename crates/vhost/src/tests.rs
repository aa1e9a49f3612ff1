//! Guests that break their rings, and what a record of requests in flight keeps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_device::MemoryDevice;
use forebay_rt::Runtime;
use forebay_rt::sync::{Notify, Semaphore};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{Bytes, GuestAddress};

use crate::inflight::Inflight;
use crate::memory::Memory;
use crate::request::Target;
use crate::ring::{Addresses, Ring, Shared};

const MEMORY_BYTES: usize = 64 << 10;
const SIZE: u16 = 8;
const RING: Addresses = Addresses { descriptors: 0, available: 0x1000, used: 0x2000 };
const HEADER: u64 = 0x3000;
const STATUS: u64 = 0x4000;
const DATA: u64 = 0x5000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn shared() -> Rc<Shared> {
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
        run: 1,
        name: "p/v".into(),
        events: Rc::default(),
        inflight: RefCell::default(),
    })
}

/// A guest's memory with an empty ring.
struct Guest {
    memory: Rc<Memory>,
}

impl Guest {
    fn new() -> Self {
        let file = forebay_rt::sys::memory_file(c"guest", MEMORY_BYTES as u64).unwrap();
        let region = VhostUserMemoryRegion::new(0, MEMORY_BYTES as u64, 0, 0);
        Self { memory: Rc::new(Memory::map(&[region], vec![file]).unwrap()) }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.mapped().write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn byte(&self, at: u64) -> u8 {
        self.memory.mapped().read_obj(GuestAddress(at)).unwrap()
    }

    fn descriptor(&self, index: u64, at: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(16 * index, &bytes);
    }

    /// A request with one piece of data, at descriptor 0.
    fn request(&self, kind: u32, sector: u64, len: u32, data_flags: u16) {
        let mut header = kind.to_le_bytes().to_vec();
        header.extend([0; 4]);
        header.extend(sector.to_le_bytes());
        self.put(HEADER, &header);
        self.put(STATUS, &[0xee]);
        self.descriptor(0, HEADER, 16, NEXT, 1);
        self.descriptor(1, DATA, len, NEXT | data_flags, 2);
        self.descriptor(2, STATUS, 1, WRITE, 0);
    }

    fn offer(&self, index: u16, head: u16) {
        self.put(RING.available + 4 + 2 * u64::from((index - 1) % SIZE), &head.to_le_bytes());
        self.put(RING.available + 2, &index.to_le_bytes());
    }

    /// Lets a ring take what is offered. Returns why the connection ended, if it did.
    fn play(&self) -> Option<&'static str> {
        let (shared, memory) = (shared(), self.memory.clone());
        Runtime::simulated(1).block_on(async move {
            let ring = Ring::new(0, shared.clone());
            ring.size.set(SIZE);
            ring.addresses.set(Some(RING));
            ring.is_enabled.set(true);
            ring.is_started.set(true);
            ring.start(&memory, false);
            let idle = || shared.takers.get() == 0 && shared.in_flight.get() == 0;
            shared.is_paused.set(false);
            while !idle() {
                forebay_rt::sleep(forebay_units::Nanos::from_millis(1)).await;
            }
            assert_eq!(shared.total_bytes.available(), 64 << 10, "memory that is not given back");
            shared.broken.get()
        })
    }
}

#[test]
fn requests_are_answered() {
    let guest = Guest::new();
    guest.request(1, 8, 4096, 0);
    guest.offer(1, 0);
    assert_eq!(guest.play(), None);
    assert_eq!((guest.byte(STATUS), guest.byte(RING.used + 2)), (0, 1));
}

#[test]
fn requests_outside_of_the_disk_are_errors_and_no_more() {
    for (kind, sector, len) in
        [(0, 2048, 512), (1, u64::MAX, 512), (0, u64::MAX / 512, 1024), (0, 0, 511), (1, 0, 40960)]
    {
        let guest = Guest::new();
        guest.request(kind, sector, len, if kind == 0 { WRITE } else { 0 });
        guest.offer(1, 0);
        assert_eq!(guest.play(), None, "{kind} {sector} {len}");
        assert_eq!(guest.byte(STATUS), 1, "{kind} {sector} {len}");
    }
}

#[test]
fn unknown_requests_are_unsupported() {
    let guest = Guest::new();
    guest.request(77, 0, 512, 0);
    guest.offer(1, 0);
    assert_eq!((guest.play(), guest.byte(STATUS)), (None, 2));
}

#[test]
fn broken_rings_end_the_connection() {
    type Break = fn(&Guest);
    let breaks: [(&str, Break); 8] = [
        ("wild index", |guest| guest.put(RING.available + 2, &999u16.to_le_bytes())),
        ("wild descriptor", |guest| guest.offer(1, 500)),
        ("loop", |guest| guest.descriptor(2, STATUS, 1, NEXT | WRITE, 2)),
        ("data outside", |guest| guest.descriptor(1, u64::MAX - 8, 4096, NEXT, 2)),
        ("status outside", |guest| guest.descriptor(2, MEMORY_BYTES as u64, 1, WRITE, 0)),
        ("no status", |guest| guest.descriptor(2, STATUS, 1, 0, 0)),
        ("short header", |guest| guest.descriptor(0, HEADER, 3, WRITE, 0)),
        ("wild table", |guest| guest.descriptor(0, 1 << 40, 32, INDIRECT, 0)),
    ];
    for (name, harm) in breaks {
        let guest = Guest::new();
        guest.request(1, 0, 512, 0);
        guest.offer(1, 0);
        harm(&guest);
        assert!(guest.play().is_some(), "{name} was taken");
    }
}

#[test]
fn any_bytes_as_a_ring_harm_no_more_than_their_connection() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    for _ in 0..300 {
        let guest = Guest::new();
        guest.request(random() % 16, u64::from(random() % 4096), 512, 0);
        guest.offer(1 + (random() % 3) as u16, 0);
        for _ in 0..random() % 6 {
            let place = [0, RING.available, HEADER][random() as usize % 3];
            guest.put(place + u64::from(random() % 64), &[random() as u8]);
        }
        guest.play();
    }
}

#[test]
fn record_gives_back_what_was_not_answered() {
    let (file, len) = Inflight::create(2, SIZE).unwrap();
    let map = || Inflight::map(file.try_clone().unwrap(), 0, len, (2, SIZE)).unwrap();
    let record = map().queue(1, SIZE).unwrap();
    assert_eq!(record.take_over(5).unwrap(), Vec::<u16>::new());
    for (head, number) in [(3, 10), (1, 11), (6, 12)] {
        record.taken(head, number);
    }
    record.answering(1);
    record.answered(1, 6);
    assert_eq!(map().queue(1, SIZE).unwrap().take_over(6).unwrap(), [3, 6]);
    // Answered, and the server died before it noted that.
    record.answering(3);
    assert_eq!(map().queue(1, SIZE).unwrap().take_over(7).unwrap(), [6]);
    map().set_unflushed(9);
    assert_eq!(map().unflushed(), 9);
}

#[test]
fn memory_that_is_taken_away_is_noticed() {
    let file = forebay_rt::sys::memory_file(c"guest", 1 << 16).unwrap();
    // Of a file that is shorter than what the front end says, as of one that it cuts off later.
    let region = VhostUserMemoryRegion::new(0, 1 << 17, 0x7000, 0);
    let memory = Memory::map(&[region], vec![file]).unwrap();
    assert_eq!(memory.guest_address(0x7010), Some(GuestAddress(0x10)));
    assert_eq!(memory.guest_address(0x6fff), None);
    memory.scatter(&[7], &[(GuestAddress(8), 1)]).unwrap();
    assert!(!memory.is_lost());
    let mut byte = [1];
    memory.gather(&[(GuestAddress(1 << 16), 1)], &mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert!(memory.is_lost());
}
