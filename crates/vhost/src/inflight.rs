//! Requests in flight, in memory that the front end keeps while the server is away.
//!
//! The vhost-user specification fixes the part of each queue. Behind the queues stands a part of
//! our own: which run of the server has completed writes that no flush has covered. Another run
//! cannot make them durable, so it fails the next flush instead of promising what is lost.

use std::fs::File;
use std::io;
use std::rc::Rc;

use forebay_rt::MappingGuard;
use forebay_rt::sys::memory_file;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::limits::{QUEUE_SIZE_MAX, QUEUES_MAX};
use crate::memory::invalid;

const QUEUE_HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const TRAILER_BYTES: usize = 64;
const VERSION: u16 = 1;

const VERSION_AT: usize = 8;
const SIZE_AT: usize = 10;
const LAST_AT: usize = 12;
const USED_AT: usize = 14;
/// Within our own part.
const CHOICE_AT: usize = 8;
const WRITE_BACK: u8 = 1;
const WRITE_THROUGH: u8 = 2;
/// Within an entry.
const COUNTER_AT: usize = 8;

/// The memory of all queues of a connection.
pub(crate) struct Inflight {
    guard: MappingGuard,
    mapping: MmapRegion<()>,
    queues: u16,
    queue_size: u16,
}

impl Inflight {
    /// Bytes for `queues` queues of `queue_size` entries.
    fn len_bytes(queues: u16, queue_size: u16) -> usize {
        usize::from(queues) * Self::queue_bytes(queue_size) + TRAILER_BYTES
    }

    fn queue_bytes(queue_size: u16) -> usize {
        (QUEUE_HEADER_BYTES + ENTRY_BYTES * usize::from(queue_size)).next_multiple_of(64)
    }

    /// New memory, with its file for the front end.
    pub(crate) fn create(queues: u16, queue_size: u16) -> io::Result<(File, u64)> {
        check_shape(queues, queue_size)?;
        let len = Self::len_bytes(queues, queue_size) as u64;
        Ok((memory_file(c"forebay-inflight", len)?, len))
    }

    /// Maps memory that a front end has kept, or has just got.
    pub(crate) fn map(
        file: File,
        offset: u64,
        len: u64,
        (queues, queue_size): (u16, u16),
    ) -> io::Result<Rc<Self>> {
        check_shape(queues, queue_size)?;
        let needed = Self::len_bytes(queues, queue_size);
        if len < needed as u64 {
            return Err(invalid("the memory for requests in flight is too short"));
        }
        let page = 4096;
        let place = FileOffset::new(file, offset);
        let mapping: MmapRegion<()> =
            MmapRegion::from_file(place, needed).map_err(io::Error::other)?;
        let whole = needed.next_multiple_of(page);
        // SAFETY: the mapping is new, its last page is whole, and the guard is dropped before it.
        let guard = unsafe { MappingGuard::new(mapping.as_ptr(), whole) }?;
        Ok(Rc::new(Self { guard, mapping, queues, queue_size }))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// The part of queue `index`, if it has one for a queue of `size` entries.
    pub(crate) fn queue(self: &Rc<Self>, index: u16, size: u16) -> Option<QueueRecord> {
        if index >= self.queues || size > self.queue_size {
            return None;
        }
        let start = usize::from(index) * Self::queue_bytes(self.queue_size);
        Some(QueueRecord { memory: self.clone(), start, size: self.queue_size })
    }

    /// Notes that run `run` of the server has completed writes that no flush has covered; 0: none.
    pub(crate) fn set_unflushed(&self, run: u64) {
        self.put(self.trailer(), run);
    }

    /// The run that [`Inflight::set_unflushed`] noted.
    pub(crate) fn unflushed(&self) -> u64 {
        self.get(self.trailer())
    }

    /// Keeps the guest's choice of a write cache, which no front end tells a second time.
    pub(crate) fn set_write_cache(&self, has_write_cache: bool) {
        let choice = if has_write_cache { WRITE_BACK } else { WRITE_THROUGH };
        self.put(self.trailer() + CHOICE_AT, choice);
    }

    /// The choice that [`Inflight::set_write_cache`] kept.
    pub(crate) fn write_cache(&self) -> Option<bool> {
        match self.get::<u8>(self.trailer() + CHOICE_AT) {
            WRITE_BACK => Some(true),
            WRITE_THROUGH => Some(false),
            _ => None,
        }
    }

    fn trailer(&self) -> usize {
        Self::len_bytes(self.queues, self.queue_size) - TRAILER_BYTES
    }

    fn get<T: vm_memory::ByteValued>(&self, at: usize) -> T {
        self.mapping.get_ref::<T>(at).expect("within the mapping").load()
    }

    fn put<T: vm_memory::ByteValued>(&self, at: usize, value: T) {
        self.mapping.get_ref::<T>(at).expect("within the mapping").store(value);
    }
}

fn check_shape(queues: u16, queue_size: u16) -> io::Result<()> {
    let fits = (1..=QUEUES_MAX).contains(&queues) && (1..=QUEUE_SIZE_MAX).contains(&queue_size);
    if fits { Ok(()) } else { Err(invalid("more queues, or larger ones, than are offered")) }
}

/// The part of one queue.
pub(crate) struct QueueRecord {
    memory: Rc<Inflight>,
    start: usize,
    size: u16,
}

impl QueueRecord {
    /// Takes over what an earlier run has left. `used`: the index of the used ring. Returns the
    /// heads of requests that were taken and not answered, the oldest first; `None` when the
    /// record is new.
    pub(crate) fn take_over(&self, used: u16) -> io::Result<Option<Vec<u16>>> {
        if self.get::<u16>(VERSION_AT) != VERSION {
            self.put(VERSION_AT, VERSION);
            self.put(SIZE_AT, self.size);
            self.put(USED_AT, used);
            return Ok(None);
        }
        if self.get::<u16>(SIZE_AT) != self.size {
            return Err(invalid("the record of requests in flight is of another queue"));
        }
        // The earlier run died between its answer and its note of it.
        if self.get::<u16>(USED_AT) != used {
            self.set_in_flight(self.get::<u16>(LAST_AT).min(self.size - 1), false);
            self.put(USED_AT, used);
        }
        let heads = (0..self.size).filter(|head| self.get::<u8>(self.entry(*head)) == 1);
        let mut heads: Vec<(u64, u16)> =
            heads.map(|head| (self.get(self.entry(head) + COUNTER_AT), head)).collect();
        heads.sort_unstable();
        Ok(Some(heads.into_iter().map(|(_, head)| head).collect()))
    }

    /// Notes that the request at `head` was taken as number `counter`.
    pub(crate) fn taken(&self, head: u16, counter: u64) {
        if head < self.size {
            self.put(self.entry(head) + COUNTER_AT, counter);
            self.set_in_flight(head, true);
        }
    }

    /// To be called before the answer to `head` shows in the used ring.
    pub(crate) fn answering(&self, head: u16) {
        self.put(LAST_AT, head);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// To be called when the used ring's index is `used`, the answer to `head` included.
    pub(crate) fn answered(&self, head: u16, used: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if head < self.size {
            self.set_in_flight(head, false);
        }
        self.put(USED_AT, used);
    }

    fn set_in_flight(&self, head: u16, is_in_flight: bool) {
        self.put(self.entry(head), u8::from(is_in_flight));
    }

    /// Relative to the queue's part.
    fn entry(&self, head: u16) -> usize {
        QUEUE_HEADER_BYTES + ENTRY_BYTES * usize::from(head)
    }

    fn get<T: vm_memory::ByteValued>(&self, at: usize) -> T {
        self.memory.get(self.start + at)
    }

    fn put<T: vm_memory::ByteValued>(&self, at: usize, value: T) {
        self.memory.put(self.start + at, value);
    }
}
