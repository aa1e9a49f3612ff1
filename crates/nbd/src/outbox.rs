//! The sending side of a connection, of server and client.
//!
//! Messages enter in any number of tasks; one task sends them, in order, as one stream. Messages
//! that are pushed during a send leave together in the next one. The charge of a message returns to
//! the release function once the message was sent or dropped.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_device::IoBytes;

use crate::channel::Channel;

/// A payload up to this length is copied behind its header, which is cheaper than a second send.
const MAX_COPIED_BYTES: usize = 32 << 10;
/// A buffer of copied bytes is closed at this length, so that no vector grows without a bound.
const BUFFER_BYTES: usize = 512 << 10;
/// This many queued bytes are sent before the sending task has its turn. The peer works on them
/// while this side makes the rest.
const EAGER_SEND_BYTES: usize = 32 << 10;

/// Bytes of one send.
enum SendBuffer {
    /// Headers and copied payloads.
    Copied(Vec<u8>),
    /// One payload.
    Payload(IoBytes),
}

#[derive(Default)]
struct Queue {
    buffers: VecDeque<SendBuffer>,
    /// Copied bytes behind all buffers.
    tail: Vec<u8>,
    charge_bytes: u64,
    /// The memory of an earlier tail, for the next one.
    spare: Vec<u8>,
}

/// Called with the charge of messages that were sent, or dropped after a failed send.
type Release = Box<dyn Fn(u64)>;

/// The queue of one connection, and what its sending task needs.
pub(crate) struct Outbox {
    channel: Rc<Channel>,
    queue: RefCell<Queue>,
    waker: RefCell<Option<Waker>>,
    is_closed: Cell<bool>,
    /// A send has failed.
    is_broken: Cell<bool>,
    /// The number of the batch that is being sent; 0 when none is.
    sending: Cell<u64>,
    /// The stream has taken less than a push offered since the last batch.
    stream_is_full: Cell<bool>,
    /// The charge of messages that were pushed and neither sent nor dropped.
    held_bytes: Cell<u64>,
    /// The charge of all messages that were sent.
    taken_bytes: Cell<u64>,
    release: Release,
}

impl Outbox {
    pub(crate) fn new(channel: Rc<Channel>, release: Release) -> Self {
        Self {
            channel,
            queue: RefCell::default(),
            waker: RefCell::default(),
            is_closed: Cell::new(false),
            is_broken: Cell::new(false),
            sending: Cell::new(0),
            stream_is_full: Cell::new(false),
            held_bytes: Cell::new(0),
            taken_bytes: Cell::new(0),
            release,
        }
    }

    /// Whether a send has failed: nothing reaches the peer any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// The charge of messages that the peer has not taken yet.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes.get()
    }

    /// The charge of all messages that the peer has taken so far.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes.get()
    }

    fn hold(&self, charge_bytes: u64) {
        self.held_bytes.set(self.held_bytes.get() + charge_bytes);
    }

    fn let_go(&self, charge_bytes: u64) {
        self.held_bytes.set(self.held_bytes.get() - charge_bytes);
        self.taken_bytes.set(self.taken_bytes.get() + charge_bytes);
        (self.release)(charge_bytes);
    }

    /// Queues a message and its payload. `charge_bytes` returns through the release function.
    #[inline]
    pub(crate) fn push(&self, head: &[u8], payload: Option<&[u8]>, charge_bytes: u64) {
        if self.is_broken.get() {
            return (self.release)(charge_bytes);
        }
        let mut queue = self.queue.borrow_mut();
        queue.tail.extend_from_slice(head);
        if let Some(payload) = payload {
            queue.tail.extend_from_slice(payload);
        }
        queue.charge_bytes += charge_bytes;
        self.hold(charge_bytes);
        if queue.tail.len() >= EAGER_SEND_BYTES && queue.buffers.is_empty() && self.may_send_now() {
            let sent = self.channel.try_send(&queue.tail);
            if sent == queue.tail.len() {
                queue.tail.clear();
                let charge_bytes = std::mem::take(&mut queue.charge_bytes);
                drop(queue);
                return self.let_go(charge_bytes);
            }
            queue.tail.drain(..sent);
            self.stream_is_full.set(true);
        }
        if queue.tail.len() >= BUFFER_BYTES {
            queue.seal();
        }
        drop(queue);
        self.wake();
    }

    /// Whether no earlier bytes must be sent first.
    fn may_send_now(&self) -> bool {
        self.sending.get() == 0 && !self.stream_is_full.get()
    }

    /// Queues a message and its payload, which is not copied when it is long.
    pub(crate) fn push_large(&self, head: &[u8], payload: IoBytes, charge_bytes: u64) {
        if payload.len() <= MAX_COPIED_BYTES {
            return self.push(head, Some(&payload), charge_bytes);
        }
        if self.is_broken.get() {
            return (self.release)(charge_bytes);
        }
        let mut queue = self.queue.borrow_mut();
        queue.tail.extend_from_slice(head);
        queue.seal();
        queue.buffers.push_back(SendBuffer::Payload(payload));
        queue.charge_bytes += charge_bytes;
        self.hold(charge_bytes);
        drop(queue);
        self.wake();
    }

    /// Whether a payload of this length is copied by [`Outbox::push_large`].
    pub(crate) fn copies_payload(len_bytes: usize) -> bool {
        len_bytes <= MAX_COPIED_BYTES
    }

    #[inline]
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Ends the queue: [`Outbox::run`] returns when it is empty. No push may follow.
    pub(crate) fn close(&self) {
        self.is_closed.set(true);
        self.wake();
    }

    /// The number of the batch that is being sent; 0 when none is.
    pub(crate) fn sending(&self) -> u64 {
        self.sending.get()
    }

    /// Sends until [`Outbox::close`], or until a send fails. After a failure the queue is dropped,
    /// and the stream is shut down so that the receiving side ends too.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut batch = 0;
        loop {
            let waiting = poll_fn(|cx| {
                let queue = self.queue.borrow();
                if !queue.tail.is_empty() || !queue.buffers.is_empty() {
                    return Poll::Ready(true);
                }
                if self.is_closed.get() {
                    return Poll::Ready(false);
                }
                let mut waker = self.waker.borrow_mut();
                match &*waker {
                    Some(known) if known.will_wake(cx.waker()) => {}
                    _ => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            });
            let more = waiting.await;
            batch += 1;
            self.sending.set(batch);
            let outcome = if more { self.send_batch().await } else { self.channel.finish().await };
            self.sending.set(0);
            self.stream_is_full.set(false);
            if !more {
                // Every reply was sent; a failure to announce the end changes nothing.
                return Ok(());
            }
            if let Err(e) = outcome {
                self.is_broken.set(true);
                let dropped = std::mem::take(&mut *self.queue.borrow_mut());
                self.let_go(dropped.charge_bytes);
                self.channel.shutdown();
                return Err(e);
            }
        }
    }

    async fn send_batch(&self) -> io::Result<()> {
        let (mut buffers, tail, charge_bytes) = {
            let mut queue = self.queue.borrow_mut();
            let spare = std::mem::take(&mut queue.spare);
            let tail = std::mem::replace(&mut queue.tail, spare);
            (std::mem::take(&mut queue.buffers), tail, std::mem::take(&mut queue.charge_bytes))
        };
        let mut outcome = Ok(());
        while let Some(buffer) = buffers.pop_front() {
            if outcome.is_ok() {
                outcome = match buffer {
                    SendBuffer::Copied(bytes) => self.channel.send_all(bytes).await.0,
                    SendBuffer::Payload(bytes) => self.channel.send_all(bytes).await.0,
                };
            }
        }
        if outcome.is_ok() && !tail.is_empty() {
            let (sent, mut tail) = self.channel.send_all(tail).await;
            outcome = sent;
            // The two vectors take turns; an idle connection does not keep a large one.
            if tail.capacity() <= BUFFER_BYTES * 2 {
                tail.clear();
                self.queue.borrow_mut().spare = tail;
            }
        }
        self.let_go(charge_bytes);
        outcome
    }
}

impl Queue {
    fn seal(&mut self) {
        let bytes = std::mem::take(&mut self.tail);
        self.buffers.push_back(SendBuffer::Copied(bytes));
    }
}
