//! Guests that break their rings, and what a record of requests in flight keeps.

use std::rc::Rc;

use forebay_device::{BlockDevice, DeviceFuture, Layer, MemoryDevice};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{Bytes, GuestAddress};

use crate::guest::{Guest, HEADER, MEMORY_BYTES, NEXT, RING, SIZE, STATUS, WRITE, shared};
use crate::inflight::Inflight;
use crate::limits::MEMORY_SLOTS_MAX;
use crate::memory::{Memory, Slots};

const INDIRECT: u16 = 4;

impl Guest {
    fn byte(&self, at: u64) -> u8 {
        self.memory.mapped().read_obj(GuestAddress(at)).unwrap()
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
    assert_eq!(record.take_over(5).unwrap(), None);
    for (head, number) in [(3, 10), (1, 11), (6, 12)] {
        record.taken(head, number);
    }
    record.answering(1);
    record.answered(1, 6);
    assert_eq!(map().queue(1, SIZE).unwrap().take_over(6).unwrap(), Some(vec![3, 6]));
    // Answered, and the server died before it noted that.
    record.answering(3);
    assert_eq!(map().queue(1, SIZE).unwrap().take_over(7).unwrap(), Some(vec![6]));
    map().set_unflushed(9);
    assert_eq!(map().unflushed(), 9);
}

#[test]
fn requests_that_fail_because_the_server_ends_are_left_to_the_next_one() {
    for (is_stopping, has_record) in [(true, true), (true, false), (false, true)] {
        let (file, len) = Inflight::create(1, SIZE).unwrap();
        let map = || Inflight::map(file.try_clone().unwrap(), 0, len, (1, SIZE)).unwrap();
        let (guest, shared) = (Guest::new(), shared());
        shared.is_stopping.set(is_stopping);
        *shared.inflight.borrow_mut() = has_record.then(map);
        // Behind the end of the disk.
        guest.request(1, 2048, 512, 0);
        guest.offer(1, 0);
        assert_eq!(guest.play_on(shared), None);
        let is_left = is_stopping && has_record;
        let answer = if is_left { (0xee, 0) } else { (1, 1) };
        assert_eq!((guest.byte(STATUS), guest.byte(RING.used + 2)), answer);
        let used = u16::from(guest.byte(RING.used + 2));
        let left = map().queue(0, SIZE).unwrap().take_over(used).unwrap().unwrap_or_default();
        assert_eq!(left, if is_left { vec![0] } else { vec![] }, "{is_stopping} {has_record}");
    }
}

#[test]
fn answered_request_is_not_taken_again_whatever_base_the_front_end_has() {
    let (file, len) = Inflight::create(1, SIZE).unwrap();
    let guest = Guest::new();
    guest.request(1, 0, 512, 0);
    guest.offer(1, 0);
    // The second connection has the base that the first one began with.
    for _ in 0..2 {
        let shared = shared();
        let inflight = Inflight::map(file.try_clone().unwrap(), 0, len, (1, SIZE)).unwrap();
        *shared.inflight.borrow_mut() = Some(inflight);
        assert_eq!(guest.play_on(shared), None);
        assert_eq!(guest.byte(RING.used + 2), 1);
    }
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

#[test]
fn pieces_of_memory_come_and_go() {
    const PIECE: u64 = 64 << 10;
    let piece = |number: u64| VhostUserMemoryRegion::new(number * PIECE, PIECE, 1 << 40, 0);
    let file = || forebay_rt::sys::memory_file(c"piece", PIECE).unwrap();
    let has = |slots: &Slots, number: u64| {
        slots.map().unwrap().has(&[(GuestAddress(number * PIECE), PIECE as u32)])
    };
    let mut slots = Slots::default();
    slots.add(piece(0), file()).unwrap();
    slots.add(piece(2), file()).unwrap();
    assert!(has(&slots, 0) && has(&slots, 2) && !has(&slots, 1));
    slots.remove(&piece(0)).unwrap();
    assert!(!has(&slots, 0) && has(&slots, 2));
    assert!(slots.remove(&piece(0)).is_err(), "it is gone");
    // One in the place of another maps nothing at all.
    slots.add(piece(2), file()).unwrap();
    assert!(slots.map().is_err());
    slots.remove(&piece(2)).unwrap();
    assert!(has(&slots, 2));
    for number in 3..2 + MEMORY_SLOTS_MAX as u64 {
        slots.add(piece(number), file()).unwrap();
    }
    assert!(slots.add(piece(99), file()).is_err(), "more than it may have");
}

/// A device whose flush takes a second.
struct SlowFlush(MemoryDevice);

impl Layer for SlowFlush {
    fn inner(&self) -> &dyn BlockDevice {
        &self.0
    }
    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            rt::sleep(Nanos::from_secs(1)).await;
            self.0.flush().await
        })
    }
}

// The next run of the server would promise the guest what is not durable.
#[test]
fn what_is_written_during_a_flush_waits_for_the_next_one() {
    Runtime::simulated(1).block_on(async {
        let mut shared = shared();
        let slow = Rc::new(SlowFlush(MemoryDevice::new("slow", 1 << 20)));
        Rc::get_mut(&mut shared).unwrap().target.device = slow;
        shared.target.cached_writes.set(1);
        let flushing = rt::spawn({
            let shared = shared.clone();
            async move { shared.target.flush().await }
        });
        rt::sleep(Nanos::from_millis(500)).await;
        shared.target.cached_writes.set(2);
        flushing.await.unwrap();
        assert!(shared.target.is_unflushed());
        shared.target.flush().await.unwrap();
        assert!(!shared.target.is_unflushed());
    });
}
