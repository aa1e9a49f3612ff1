//! The receiving side of a connection.
//!
//! Bytes of a [`Channel`] enter; messages and payloads leave. One system call brings many small
//! messages into one large buffer; a large payload, and the next one, go straight into their own.
//! The server's connection and the client call it.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use forebay_device::IoBuf;

use crate::channel::Channel;

/// A payload longer than this is received into its own buffer, without a copy.
const IN_PLACE_BYTES: usize = 32 << 10;
/// Bytes that the header of a request with a payload has at most, or of a reply with one.
const HEADER_BYTES: usize = 32;

pub(crate) struct Inbox {
    channel: Rc<Channel>,
    /// `None` only while the kernel has it.
    buf: Option<IoBuf>,
    start: usize,
    end: usize,
    /// Whether the last payload was large, as the next one is then mostly.
    is_large: bool,
    /// The number of the message of which a part has arrived; 0 between messages.
    partial: Rc<Cell<u64>>,
    messages: u64,
}

impl Inbox {
    /// Receives from `channel`. The watchdog reads in `partial` which message is incomplete.
    pub(crate) fn new(channel: Rc<Channel>, buffer_bytes: usize, partial: Rc<Cell<u64>>) -> Self {
        let buf = Some(IoBuf::recycled(buffer_bytes));
        Self { channel, buf, start: 0, end: 0, is_large: false, partial, messages: 0 }
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
            // Of a large payload that follows, nothing more than this has to be copied.
            let most = match self.is_large && !mid_message {
                true => len.max(HEADER_BYTES) - (self.end - self.start),
                false => usize::MAX,
            };
            let got = self.receive_some(len, most).await;
            self.partial.set(0);
            if got? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn receive_some(&mut self, len: usize, most: usize) -> io::Result<usize> {
        let mut buf = self.buf.take().expect("no receive is running");
        debug_assert!(len <= buf.len(), "a message larger than the buffer");
        if self.start > 0 && buf.len() - self.start < len.max(IN_PLACE_BYTES) {
            buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let (outcome, buf) = self.channel.recv_most(buf, self.end, most).await;
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
        self.is_large = len > IN_PLACE_BYTES;
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

#[cfg(test)]
mod tests {
    use forebay_rt::{self as rt, Runtime, net};

    use super::*;

    #[test]
    fn payloads_after_a_large_one_are_not_copied() {
        Runtime::simulated(1).block_on(async {
            const HEADER: usize = 28;
            let (near, far) = net::pair();
            let sizes = [100 << 10, 100 << 10, 64 << 10, 4096, 512, 100 << 10];
            let sending = rt::spawn(async move {
                for (number, size) in sizes.into_iter().enumerate() {
                    far.send_all(vec![0xff; HEADER]).await.0.unwrap();
                    far.send_all(vec![number as u8; size]).await.0.unwrap();
                }
                far
            });
            let mut inbox = Inbox::new(Channel::new(Rc::new(near)), 64 << 10, Rc::default());
            let mut most = Vec::new();
            for (number, size) in sizes.into_iter().enumerate() {
                // All that the pipe takes has arrived by then.
                rt::sleep(forebay_units::Nanos::from_secs(1)).await;
                assert!(inbox.fill(HEADER, false).await.unwrap());
                assert!(inbox.bytes()[..HEADER].iter().all(|byte| *byte == 0xff));
                most.push(inbox.bytes().len());
                inbox.consume(HEADER);
                let payload = inbox.take(IoBuf::zeroed(size)).await.unwrap().unwrap();
                assert!(payload.iter().all(|byte| *byte == number as u8), "{number}");
            }
            drop(sending.await);
            assert!(most[0] > HEADER_BYTES, "{most:?}");
            assert!(most[1..4].iter().all(|bytes| *bytes <= HEADER_BYTES), "{most:?}");
            // After a small one, much at once again.
            assert!(most[4] > 512, "{most:?}");
            assert!(!inbox.fill(1, false).await.unwrap());
        });
    }
}
