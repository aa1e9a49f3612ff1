//! The byte stream of a connection, plain at first and in TLS when both sides agreed on it.

use std::cell::OnceCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use forebay_rt::net::{StableBuf, Stream};

use crate::tls::Session;

/// Same calls as [`Stream`], and once [`Channel::wrap`] was called all of them go through TLS.
pub(crate) struct Channel {
    stream: Rc<Stream>,
    session: OnceCell<Session>,
}

impl Channel {
    /// In plain text.
    pub(crate) fn new(stream: Rc<Stream>) -> Rc<Self> {
        Rc::new(Self { stream, session: OnceCell::new() })
    }

    /// Shakes hands over `connection`, and speaks TLS from here on. Nothing else may be using the
    /// channel meanwhile.
    pub(crate) async fn wrap(&self, connection: rustls::Connection) -> io::Result<()> {
        let session = Session::shake_hands(connection, &self.stream).await?;
        let fresh = self.session.set(session).is_ok();
        assert!(fresh, "TLS inside of TLS");
        Ok(())
    }

    /// The TLS session, when there is one.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.get()
    }

    /// Receives into `buf` from `start` on, whatever is there, at least one byte; 0 is the end.
    #[inline]
    pub(crate) async fn recv<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        buf: B,
        start: usize,
    ) -> (io::Result<usize>, B) {
        match self.session.get() {
            None => self.stream.recv(buf, start).await,
            Some(session) => session.recv(&self.stream, buf, start).await,
        }
    }

    /// Fills `buf` from `start` to its end. An end of the stream before that is `UnexpectedEof`.
    pub(crate) async fn recv_exact<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        mut buf: B,
        start: usize,
    ) -> (io::Result<()>, B) {
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

    /// Sends all of `buf`, and gives it back.
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

    /// Sends what the stream takes at once, and says how many bytes that was. In TLS none: what is
    /// encrypted must be sent whole.
    #[inline]
    pub(crate) fn try_send(&self, bytes: &[u8]) -> usize {
        match self.session.get() {
            None => self.stream.try_send(bytes),
            Some(_) => 0,
        }
    }

    /// Nothing more will be sent: says so where TLS has a word for it.
    pub(crate) async fn finish(&self) -> io::Result<()> {
        match self.session.get() {
            None => Ok(()),
            Some(session) => session.say_goodbye(&self.stream).await,
        }
    }

    /// Ends both directions.
    pub(crate) fn shutdown(&self) {
        self.stream.shutdown();
    }
}
