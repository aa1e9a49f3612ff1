//! The receiving side of a connection.
//!
//! Bytes of a [`Channel`] enter; messages and payloads leave. One system call brings many small
//! messages into one large buffer, and a large payload goes straight into its own buffer. The
//! server's connection and the client call it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use forebay_device::IoBuf;

use crate::channel::Channel;

/// A payload longer than this is received into its own buffer, without a copy.
const IN_PLACE_BYTES: usize = 32 << 10;

pub(crate) struct Inbox {
    channel: Rc<Channel>,
    /// `None` only while the kernel has it.
    buf: Option<IoBuf>,
    start: usize,
    end: usize,
    /// The number of the message of which a part has arrived; 0 between messages.
    partial: Rc<Cell<u64>>,
    messages: u64,
}

impl Inbox {
    /// Receives from `channel`. The watchdog reads in `partial` which message is incomplete.
    pub(crate) fn new(channel: Rc<Channel>, buffer_bytes: usize, partial: Rc<Cell<u64>>) -> Self {
        let buf = Some(IoBuf::recycled(buffer_bytes));
        Self { channel, buf, start: 0, end: 0, partial, messages: 0 }
    }

    /// The bytes that have arrived and are not consumed.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf.as_ref().expect("no receive is running")[self.start..self.end]
    }

    /// Drops the first `len` bytes.
    #[inline]
    pub(crate) fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.start);
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Begins the next message, for which the watchdog starts its clock again.
    #[inline]
    pub(crate) fn begin_message(&mut self) {
        self.messages += 1;
    }

    /// Waits until `len` bytes have arrived (at most the buffer's size). `Ok(false)` means that the
    /// stream ended before that.
    pub(crate) async fn fill(&mut self, len: usize, mid_message: bool) -> io::Result<bool> {
        while self.end - self.start < len {
            if mid_message || self.start != self.end {
                self.partial.set(self.messages);
            }
            let got = self.receive_some(len).await;
            self.partial.set(0);
            if got? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn receive_some(&mut self, len: usize) -> io::Result<usize> {
        let mut buf = self.buf.take().expect("no receive is running");
        debug_assert!(len <= buf.len(), "a message larger than the buffer");
        if self.start > 0 && buf.len() - self.start < len.max(IN_PLACE_BYTES) {
            buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let (outcome, buf) = self.channel.recv(buf, self.end).await;
        self.buf = Some(buf);
        let got = outcome?;
        self.end += got;
        Ok(got)
    }

    /// Fills `into` with the next bytes. `Ok(None)` means that the stream ended before that; the
    /// bytes that came are discarded.
    pub(crate) async fn take(&mut self, into: IoBuf) -> io::Result<Option<IoBuf>> {
        let len = into.len();
        if self.end - self.start < len && len <= IN_PLACE_BYTES && !self.fill(len, true).await? {
            return Ok(None);
        }
        self.take_at(into, 0, len).await
    }

    /// Puts the next `len` bytes at `at` of `into`. `Ok(None)` as in [`Inbox::take`].
    pub(crate) async fn take_at(
        &mut self,
        mut into: IoBuf,
        mut at: usize,
        len: usize,
    ) -> io::Result<Option<IoBuf>> {
        let end = at + len;
        loop {
            let here = (end - at).min(self.end - self.start);
            into[at..at + here].copy_from_slice(&self.bytes()[..here]);
            self.consume(here);
            at += here;
            if at == end {
                return Ok(Some(into));
            }
            if end == into.len() && end - at > IN_PLACE_BYTES {
                break;
            }
            if !self.fill(1, true).await? {
                return Ok(None);
            }
        }
        self.partial.set(self.messages);
        let (outcome, into) = self.channel.recv_exact(into, at).await;
        self.partial.set(0);
        match outcome {
            Ok(()) => Ok(Some(into)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Discards the next `len` bytes. `Ok(false)` means that the stream ended before that.
    pub(crate) async fn skip(&mut self, mut len: u64) -> io::Result<bool> {
        while len > 0 {
            if self.start == self.end && !self.fill(1, true).await? {
                return Ok(false);
            }
            let here = (self.end - self.start).min(usize::try_from(len).unwrap_or(usize::MAX));
            self.consume(here);
            len -= here as u64;
        }
        Ok(true)
    }
}
