//! The byte stream of a connection: plain text first, TLS after [`Channel::wrap`].

use std::cell::OnceCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use forebay_rt::net::{StableBuf, Stream};

use crate::tls::Session;

/// A stream with the calls of [`Stream`], which go through TLS after [`Channel::wrap`].
pub(crate) struct Channel {
    stream: Rc<Stream>,
    session: OnceCell<Session>,
}

impl Channel {
    /// A channel in plain text.
    pub(crate) fn new(stream: Rc<Stream>) -> Rc<Self> {
        Rc::new(Self { stream, session: OnceCell::new() })
    }

    /// Runs the TLS handshake of `connection`, and uses TLS from here on. No other task may use
    /// the channel during the call.
    pub(crate) async fn wrap(&self, connection: rustls::Connection) -> io::Result<()> {
        let session = Session::handshake(connection, &self.stream).await?;
        let fresh = self.session.set(session).is_ok();
        assert!(fresh, "the channel uses TLS already");
        Ok(())
    }

    /// The TLS session; `None` in plain text.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.get()
    }

    /// Receives at least one byte into `buf`, from `start` on; 0 means the end of the stream.
    #[inline]
    pub(crate) async fn recv<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        buf: B,
        start: usize,
    ) -> (io::Result<usize>, B) {
        self.recv_most(buf, start, usize::MAX).await
    }

    /// As [`Channel::recv`], but at most `most` bytes; in TLS what a record has.
    #[inline]
    pub(crate) async fn recv_most<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        buf: B,
        start: usize,
        most: usize,
    ) -> (io::Result<usize>, B) {
        match self.session.get() {
            None => self.stream.recv_most(buf, start, most).await,
            Some(session) => session.recv(&self.stream, buf, start).await,
        }
    }

    /// Fills `buf` from `start` to its end; `UnexpectedEof` if the stream ends before that.
    pub(crate) async fn recv_exact<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        mut buf: B,
        start: usize,
    ) -> (io::Result<()>, B) {
        if self.session.get().is_none() {
            return self.stream.recv_exact(buf, start).await;
        }
        let mut at = start;
        while at < buf.len() {
            let (outcome, back) = self.recv(buf, at).await;
            buf = back;
            match outcome {
                Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), buf),
                Ok(n) => at += n,
                Err(e) => return (Err(e), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Sends all of `buf`, and returns it.
    #[inline]
    pub(crate) async fn send_all<B: StableBuf + Deref<Target = [u8]>>(
        &self,
        buf: B,
    ) -> (io::Result<()>, B) {
        match self.session.get() {
            None => self.stream.send_all(buf).await,
            Some(session) => (session.send(&self.stream, &buf).await, buf),
        }
    }

    /// Sends what the stream takes without waiting, and returns the number of bytes. In TLS this
    /// is 0, because an encrypted record must be sent whole.
    #[inline]
    pub(crate) fn try_send(&self, bytes: &[u8]) -> usize {
        match self.session.get() {
            None => self.stream.try_send(bytes),
            Some(_) => 0,
        }
    }

    /// Ends the sending direction: TLS sends its close alert, plain text sends nothing.
    pub(crate) async fn finish(&self) -> io::Result<()> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.send_close(&self.stream).await,
        }
    }

    /// Ends both directions.
    pub(crate) fn shutdown(&self) {
        self.stream.shutdown();
    }
}
