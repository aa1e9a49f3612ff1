//! The sending side of a connection: whatever is pushed while a send runs leaves in the next one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_device::IoBytes;

use crate::channel::Channel;

/// Payloads up to this are copied next to their headers: that is cheaper than a send of their own.
const COPIED_BYTES: usize = 32 << 10;
/// Copied bytes are cut into pieces of about this size, so that no vector grows without end.
const PIECE_BYTES: usize = 512 << 10;
/// So many bytes are worth a send of their own before the task that sends has its turn: the other
/// side works on them while this one makes the rest.
const EAGER_BYTES: usize = 32 << 10;

enum Piece {
    Bytes(Vec<u8>),
    Payload(IoBytes),
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Piece>,
    tail: Vec<u8>,
    charge_bytes: u64,
    spare: Vec<u8>,
}

/// Called with the bytes that were charged for what has left, or will never leave.
type Release = Box<dyn Fn(u64)>;

pub(crate) struct Outbox {
    channel: Rc<Channel>,
    queue: RefCell<Queue>,
    waker: RefCell<Option<Waker>>,
    closed: Cell<bool>,
    broken: Cell<bool>,
    /// The number of the batch that is being sent; 0 when none is.
    sending: Cell<u64>,
    /// The stream has taken less than it was offered since the last batch.
    full: Cell<bool>,
    release: Release,
}

impl Outbox {
    pub(crate) fn new(channel: Rc<Channel>, release: Release) -> Self {
        Self {
            channel,
            queue: RefCell::default(),
            waker: RefCell::default(),
            closed: Cell::new(false),
            broken: Cell::new(false),
            sending: Cell::new(0),
            full: Cell::new(false),
            release,
        }
    }

    /// Queues a message and its payload. `charge_bytes` come back through the release function.
    #[inline]
    pub(crate) fn push(&self, head: &[u8], payload: Option<&[u8]>, charge_bytes: u64) {
        if self.broken.get() {
            return (self.release)(charge_bytes);
        }
        let mut queue = self.queue.borrow_mut();
        queue.tail.extend_from_slice(head);
        if let Some(payload) = payload {
            queue.tail.extend_from_slice(payload);
        }
        queue.charge_bytes += charge_bytes;
        if queue.tail.len() >= EAGER_BYTES && queue.pieces.is_empty() && self.may_send_now() {
            let sent = self.channel.try_send(&queue.tail);
            if sent == queue.tail.len() {
                queue.tail.clear();
                let charge_bytes = std::mem::take(&mut queue.charge_bytes);
                drop(queue);
                return (self.release)(charge_bytes);
            }
            queue.tail.drain(..sent);
            self.full.set(true);
        }
        if queue.tail.len() >= PIECE_BYTES {
            queue.seal();
        }
        drop(queue);
        self.wake();
    }

    /// Whether nothing is on its way that must leave first.
    fn may_send_now(&self) -> bool {
        self.sending.get() == 0 && !self.full.get()
    }

    /// Queues a message with a payload that is not copied when it is long.
    pub(crate) fn push_large(&self, head: &[u8], payload: IoBytes, charge_bytes: u64) {
        if payload.len() <= COPIED_BYTES {
            return self.push(head, Some(&payload), charge_bytes);
        }
        if self.broken.get() {
            return (self.release)(charge_bytes);
        }
        let mut queue = self.queue.borrow_mut();
        queue.tail.extend_from_slice(head);
        queue.seal();
        queue.pieces.push_back(Piece::Payload(payload));
        queue.charge_bytes += charge_bytes;
        drop(queue);
        self.wake();
    }

    /// Whether a payload of this length is copied by [`Outbox::push_large`].
    pub(crate) fn copies(len_bytes: usize) -> bool {
        len_bytes <= COPIED_BYTES
    }

    #[inline]
    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Nothing more will be pushed: [`Outbox::run`] ends when the queue is empty.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    /// The number of the batch that is being sent; 0 when none is.
    pub(crate) fn sending(&self) -> u64 {
        self.sending.get()
    }

    /// Sends until [`Outbox::close`], or until a send fails; then everything queued is dropped,
    /// and the stream is shut down so that the receiving side learns of it too.
    pub(crate) async fn run(&self) -> io::Result<()> {
        let mut batch = 0;
        loop {
            let waiting = poll_fn(|cx| {
                let queue = self.queue.borrow();
                if !queue.tail.is_empty() || !queue.pieces.is_empty() {
                    return Poll::Ready(true);
                }
                if self.closed.get() {
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
            self.full.set(false);
            if !more {
                // Every reply has left: whether the peer hears the farewell is its own affair.
                return Ok(());
            }
            if let Err(e) = outcome {
                self.broken.set(true);
                let dropped = std::mem::take(&mut *self.queue.borrow_mut());
                (self.release)(dropped.charge_bytes);
                self.channel.shutdown();
                return Err(e);
            }
        }
    }

    async fn send_batch(&self) -> io::Result<()> {
        let (mut pieces, tail, charge_bytes) = {
            let mut queue = self.queue.borrow_mut();
            let spare = std::mem::take(&mut queue.spare);
            let tail = std::mem::replace(&mut queue.tail, spare);
            (std::mem::take(&mut queue.pieces), tail, std::mem::take(&mut queue.charge_bytes))
        };
        let mut outcome = Ok(());
        while let Some(piece) = pieces.pop_front() {
            if outcome.is_ok() {
                outcome = match piece {
                    Piece::Bytes(bytes) => self.channel.send_all(bytes).await.0,
                    Piece::Payload(bytes) => self.channel.send_all(bytes).await.0,
                };
            }
        }
        if outcome.is_ok() && !tail.is_empty() {
            let (sent, mut tail) = self.channel.send_all(tail).await;
            outcome = sent;
            // One vector goes back and forth; a large one is not kept for an idle connection.
            if tail.capacity() <= PIECE_BYTES * 2 {
                tail.clear();
                self.queue.borrow_mut().spare = tail;
            }
        }
        (self.release)(charge_bytes);
        outcome
    }
}

impl Queue {
    fn seal(&mut self) {
        let bytes = std::mem::take(&mut self.tail);
        self.pieces.push_back(Piece::Bytes(bytes));
    }
}
