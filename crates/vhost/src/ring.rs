//! One queue of a guest: what it offers is taken, performed, and put into the used ring.
//!
//! What enters: addresses of the ring, doorbells, a guest's descriptors. What leaves: used
//! descriptors, and rings of the guest's bell. What always holds: a request that was taken is
//! answered once, or recorded as being in flight; a ring that makes no sense ends its connection.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::rc::Rc;
use std::task::{Context, Waker};

use forebay_rt as rt;
use forebay_rt::doorbell;
use forebay_rt::sync::{Notify, Semaphore};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

use crate::inflight::{Inflight, QueueRecord};
use crate::limits::QUEUE_SIZE_MAX;
use crate::memory::Memory;
use crate::request::{Answer, Broken, Request, Target};
use crate::server::Event;

/// What the rings of a connection share.
pub(crate) struct Shared {
    pub(crate) target: Target,
    /// Why the connection must end.
    pub(crate) broken: Cell<Option<Broken>>,
    pub(crate) changed: Rc<Notify>,
    /// Requests that were taken and not answered.
    pub(crate) in_flight: Cell<usize>,
    /// Tasks that take requests.
    pub(crate) takers: Cell<usize>,
    /// Takers end, and requests that were taken are finished.
    pub(crate) is_paused: Cell<bool>,
    pub(crate) connection_bytes: Rc<Semaphore>,
    pub(crate) total_bytes: Rc<Semaphore>,
    /// Numbers of requests, in the order in which they were taken.
    pub(crate) taken: Cell<u64>,
    /// The server is stopping.
    pub(crate) is_stopping: Rc<Cell<bool>>,
    /// This run of the server.
    pub(crate) run: u64,
    /// The disk's name.
    pub(crate) name: String,
    /// What the operator should know.
    pub(crate) events: Rc<RefCell<Vec<Event>>>,
    pub(crate) inflight: RefCell<Option<Rc<Inflight>>>,
}

impl Shared {
    pub(crate) fn break_off(&self, reason: Broken) {
        if self.broken.get().is_none() {
            self.broken.set(Some(reason));
        }
        self.changed.notify_all();
    }

    /// Notes in the front end's memory whether a crash would lose writes that have completed.
    pub(crate) fn note_unflushed(&self) {
        if let Some(inflight) = &*self.inflight.borrow() {
            if !self.target.must_fail_flush.get() {
                inflight.set_unflushed(if self.target.is_unflushed() { self.run } else { 0 });
            }
        }
    }
}

/// The addresses of a ring in the front end's process.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// One queue.
pub(crate) struct Ring {
    pub(crate) index: u16,
    shared: Rc<Shared>,
    queue: RefCell<Queue>,
    pub(crate) size: Cell<u16>,
    pub(crate) addresses: Cell<Option<Addresses>>,
    /// The next entry of the available ring.
    pub(crate) base: Cell<u16>,
    pub(crate) is_enabled: Cell<bool>,
    /// A kick has been handed over since the last stop.
    pub(crate) is_started: Cell<bool>,
    /// The record of requests in flight was taken over since the last stop.
    is_resumed: Cell<bool>,
    pub(crate) kick: RefCell<Option<Rc<File>>>,
    call: RefCell<Option<Rc<File>>>,
    record: RefCell<Option<QueueRecord>>,
    /// The guest's bell is about to be rung.
    is_ringing: Cell<bool>,
}

impl Ring {
    pub(crate) fn new(index: u16, shared: Rc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            index,
            shared,
            queue: RefCell::new(Queue::new(QUEUE_SIZE_MAX).expect("a power of two")),
            size: Cell::new(QUEUE_SIZE_MAX),
            addresses: Cell::new(None),
            base: Cell::new(0),
            is_enabled: Cell::new(false),
            is_started: Cell::new(false),
            is_resumed: Cell::new(false),
            kick: RefCell::default(),
            call: RefCell::default(),
            record: RefCell::default(),
            is_ringing: Cell::new(false),
        })
    }

    /// Forgets all that the front end has said. No request may be in flight.
    pub(crate) fn reset(&self) {
        self.addresses.set(None);
        self.base.set(0);
        self.size.set(QUEUE_SIZE_MAX);
        self.is_enabled.set(false);
        self.kick.take();
        self.call.take();
        self.stop();
    }

    /// Ends the ring until a kick is handed over again.
    pub(crate) fn stop(&self) {
        self.is_started.set(false);
        self.is_resumed.set(false);
        self.record.take();
    }

    /// Starts to take requests if the front end has said all that is needed.
    pub(crate) fn start(self: &Rc<Self>, memory: &Rc<Memory>, has_event_index: bool) {
        let (Some(addresses), true, true) =
            (self.addresses.get(), self.is_enabled.get(), self.is_started.get())
        else {
            return;
        };
        let shared = self.shared.clone();
        let outcome = self.set_up(addresses, memory, has_event_index);
        let again = match outcome.and_then(|()| self.resume()) {
            Ok(again) => again,
            Err(reason) => return shared.break_off(reason),
        };
        shared.takers.set(shared.takers.get() + 1);
        let (ring, memory) = (self.clone(), memory.clone());
        rt::spawn_detached(Box::pin(async move {
            if let Err(reason) = ring.take_all(&memory, again).await {
                ring.shared.break_off(reason);
            }
            ring.base.set(ring.queue.borrow().next_avail());
            ring.shared.takers.set(ring.shared.takers.get() - 1);
            ring.shared.changed.notify_all();
        }));
    }

    fn set_up(
        &self,
        addresses: Addresses,
        memory: &Memory,
        has_event_index: bool,
    ) -> Result<(), Broken> {
        let at = |front| memory.guest_address(front).ok_or("a ring outside of the memory");
        let bad = |_| "a ring with addresses or a size that make no sense";
        let mut queue = self.queue.borrow_mut();
        queue.reset();
        queue.try_set_size(self.size.get()).map_err(bad)?;
        queue.try_set_desc_table_address(at(addresses.descriptors)?).map_err(bad)?;
        queue.try_set_avail_ring_address(at(addresses.available)?).map_err(bad)?;
        queue.try_set_used_ring_address(at(addresses.used)?).map_err(bad)?;
        queue.set_event_idx(has_event_index);
        queue.set_next_avail(self.base.get());
        queue.set_ready(true);
        if !queue.is_valid(memory.mapped()) {
            return Err("a ring outside of the memory");
        }
        let used = queue.used_idx(memory.mapped(), std::sync::atomic::Ordering::Acquire);
        queue.set_next_used(used.map_err(|_| "a ring outside of the memory")?.0);
        Ok(())
    }

    /// Takes over what an earlier connection or run has left: the heads to perform again.
    fn resume(&self) -> Result<Vec<u16>, Broken> {
        let inflight = self.shared.inflight.borrow().clone();
        let Some(inflight) = inflight else { return Ok(Vec::new()) };
        if self.is_resumed.replace(true) {
            return Ok(Vec::new());
        }
        let record = inflight.queue(self.index, self.size.get());
        let record = record.ok_or("a queue that the record of requests in flight lacks")?;
        let mut queue = self.queue.borrow_mut();
        let used = queue.next_used();
        let again =
            record.take_over(used).map_err(|_| "a record of requests that is of another queue")?;
        if let Some(again) = &again {
            // Not the front end's base: it read the used ring when the connection ended, and
            // requests may have been answered after that.
            queue.set_next_avail(used.wrapping_add(again.len() as u16));
        }
        *self.record.borrow_mut() = Some(record);
        Ok(again.unwrap_or_default())
    }

    /// Takes requests until the connection pauses or ends.
    async fn take_all(self: &Rc<Self>, memory: &Rc<Memory>, again: Vec<u16>) -> Result<(), Broken> {
        for head in again {
            let chain = self.chain_at(memory, head)?;
            self.take(memory, head, chain).await?;
        }
        loop {
            self.queue
                .borrow_mut()
                .disable_notification(memory.mapped())
                .map_err(|_| "a ring outside of the memory")?;
            while let Some((head, request)) = self.next(memory)? {
                self.take(memory, head, request).await?;
                if self.is_over() {
                    return Ok(());
                }
            }
            let more = self.queue.borrow_mut().enable_notification(memory.mapped());
            if self.is_over() {
                return Ok(());
            }
            if more.map_err(|_| "a ring outside of the memory")? {
                // Other tasks run in between, however much a guest has to ask.
                rt::yield_now().await;
                continue;
            }
            let Some(kick) = self.kick.borrow().clone() else { return Ok(()) };
            let over = std::pin::pin!(self.shared.changed.until(|| self.is_over()));
            let kicked = std::pin::pin!(doorbell::wait(kick));
            match rt::select(kicked, over).await {
                rt::Either::Left((Ok(()), _)) => {}
                rt::Either::Left((Err(_), _)) => return Err("a kick that is no eventfd"),
                rt::Either::Right(_) => return Ok(()),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.shared.is_paused.get() || self.shared.broken.get().is_some()
    }

    /// The next request of the available ring.
    fn next(&self, memory: &Memory) -> Result<Option<(u16, Request)>, Broken> {
        let mut queue = self.queue.borrow_mut();
        let chain = {
            let mut available =
                queue.iter(memory.mapped()).map_err(|_| "an available ring with a wild index")?;
            available.next()
        };
        let Some(chain) = chain else { return Ok(None) };
        let head = chain.head_index();
        if head >= self.size.get() {
            return Err("an available ring with a wild descriptor");
        }
        Ok(Some((head, Request::parse(chain, memory)?)))
    }

    /// The request at `head`, which the unread part of the available ring does not have any more.
    fn chain_at(&self, memory: &Memory, head: u16) -> Result<Request, Broken> {
        let bad = |_| "a record of requests in flight that makes no sense";
        let mut one = Queue::new(QUEUE_SIZE_MAX).map_err(bad)?;
        one.try_set_size(self.size.get()).map_err(bad)?;
        let descriptors = GuestAddress(self.queue.borrow().desc_table());
        one.try_set_desc_table_address(descriptors).map_err(bad)?;
        let available = memory.ring_of_one(head).map_err(|_| "no memory to work in")?;
        one.try_set_avail_ring_address(available).map_err(bad)?;
        one.set_ready(true);
        let chain = one.pop_descriptor_chain(memory.mapped());
        Request::parse(chain.ok_or("a record of requests without a request")?, memory)
    }

    /// Waits for room, and starts the request. Its first poll happens here, so that a request
    /// without a wait needs no task.
    async fn take(
        self: &Rc<Self>,
        memory: &Rc<Memory>,
        head: u16,
        request: Request,
    ) -> Result<(), Broken> {
        let shared = &self.shared;
        let number = shared.taken.get();
        shared.taken.set(number + 1);
        if let Some(record) = &*self.record.borrow() {
            record.taken(head, number);
        }
        shared.in_flight.set(shared.in_flight.get() + 1);
        let charge = request.charge_bytes(&shared.target);
        let own = shared.connection_bytes.acquire(charge).await;
        let of_all = shared.total_bytes.acquire(charge).await;
        let (ring, memory) = (self.clone(), memory.clone());
        let mut running = Box::pin(async move {
            let answer = request.perform(&ring.shared.target, &memory).await;
            ring.shared.note_unflushed();
            let outcome = match ring.shared.broken.get() {
                None if ring.is_left_to_next(&answer) => Ok(()),
                None => {
                    request.answer(&answer, &memory).and_then(|len| ring.put(&memory, head, len))
                }
                Some(_) => Ok(()),
            };
            drop((own, of_all));
            if let Err(reason) = outcome {
                ring.shared.break_off(reason);
            }
            let left = ring.shared.in_flight.get() - 1;
            ring.shared.in_flight.set(left);
            if left == 0 && ring.shared.is_paused.get() {
                ring.shared.changed.notify_all();
            }
        });
        if running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            rt::spawn_detached(running);
        }
        Ok(())
    }

    /// Whether a request has failed because the server ends. The next server finds it in the record
    /// of requests in flight, if the front end keeps one.
    fn is_left_to_next(&self, answer: &Answer) -> bool {
        answer.is_failure() && self.shared.is_stopping.get() && self.record.borrow().is_some()
    }

    /// Puts an answer into the used ring, and rings for the guest after this turn.
    fn put(self: &Rc<Self>, memory: &Rc<Memory>, head: u16, len: u32) -> Result<(), Broken> {
        let record = self.record.borrow();
        let of_record = self.shared.inflight.borrow();
        if memory.is_lost() || of_record.as_ref().is_some_and(|inflight| inflight.is_lost()) {
            return Err("the front end has taken shared memory away");
        }
        if let Some(record) = &*record {
            record.answering(head);
        }
        let mut queue = self.queue.borrow_mut();
        queue
            .add_used(memory.mapped(), head, len)
            .map_err(|_| "a used ring outside of the memory")?;
        if let Some(record) = &*record {
            record.answered(head, queue.next_used());
        }
        if !self.is_ringing.replace(true) {
            let (ring, memory) = (self.clone(), memory.clone());
            rt::spawn_detached(Box::pin(async move { ring.notify(&memory).await }));
        }
        Ok(())
    }

    /// Takes the guest's bell. Where a record is kept, it is rung: the front end may have dropped
    /// the bell of an earlier connection before an answer of that one rang it.
    pub(crate) fn set_call(&self, call: Option<Rc<File>>) {
        if self.shared.inflight.borrow().is_some() {
            if let Some(call) = call.clone() {
                rt::spawn_detached(Box::pin(doorbell::ring(call)));
            }
        }
        *self.call.borrow_mut() = call;
    }

    async fn notify(&self, memory: &Memory) {
        self.is_ringing.set(false);
        let wanted = self.queue.borrow_mut().needs_notification(memory.mapped());
        let call = self.call.borrow().clone();
        if let (true, Some(call)) = (wanted.unwrap_or(true), call) {
            doorbell::ring(call).await;
        }
    }
}
