//! One TLS connection over a stream: moves bytes between rustls and the stream.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Read, Write};
use std::ops::DerefMut;

use forebay_rt::net::{StableBuf, Stream};
use forebay_rt::sync::Mutex;

use super::ClientTls;

/// Ciphertext that one receive brings at most.
const MAX_RECEIVE_BYTES: usize = 64 << 10;
/// Plain text that is encrypted for one send.
const MAX_SEND_BYTES: usize = 128 << 10;

/// An established TLS connection. One task may receive while others send.
pub(crate) struct Session {
    connection: RefCell<rustls::Connection>,
    arrived: RefCell<Arrived>,
    /// Held by the task that sends, so that records are sent in the order in which rustls made
    /// them. Its content is the buffer of that send.
    send_buffer: Mutex<Vec<u8>>,
}

/// Ciphertext that rustls has not read yet.
struct Arrived {
    /// `None` while a receive is running.
    bytes: Option<Vec<u8>>,
    start: usize,
    end: usize,
}

/// TLS that failed, as the content of an [`io::Error`] of kind `InvalidData`.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionError {
    /// rustls refused the peer's messages or certificate, or the peer sent an alert.
    Rustls(rustls::Error),
    /// The peer sent data after its close alert.
    DataAfterClose,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rustls(e) => write!(f, "TLS: {e}"),
            Self::DataAfterClose => f.write_str("TLS: data after the end"),
        }
    }
}

impl std::error::Error for SessionError {}

impl From<SessionError> for io::Error {
    fn from(e: SessionError) -> Self {
        Self::new(io::ErrorKind::InvalidData, e)
    }
}

impl SessionError {
    /// The TLS failure that `e` carries; `e` itself when the stream has failed.
    pub(crate) fn from_io(e: io::Error) -> Result<Self, io::Error> {
        e.downcast::<Self>()
    }
}

impl ClientTls {
    /// Sends `request` over `stream` to a server that must prove the name `host`, and receives the
    /// first line of its answer, `answer_max_bytes` at most: for messages of other protocols.
    pub async fn exchange(
        &self,
        host: &str,
        stream: &Stream,
        request: &[u8],
        answer_max_bytes: usize,
    ) -> io::Result<Vec<u8>> {
        let connection = self.connection(host).map_err(io::Error::other)?;
        let session = Session::handshake(connection, stream).await?;
        session.send(stream, request).await?;
        let mut buf = vec![0; answer_max_bytes];
        let mut len = 0;
        while len < buf.len() && !buf[..len].contains(&b'\n') {
            let (received, back) = session.recv(stream, buf, len).await;
            buf = back;
            match received? {
                0 => break,
                bytes => len += bytes,
            }
        }
        buf.truncate(len);
        Ok(buf)
    }
}

impl Session {
    /// Runs the TLS handshake. It may wait for the peer without a bound; the caller has a deadline.
    pub(crate) async fn handshake(
        mut connection: rustls::Connection,
        stream: &Stream,
    ) -> io::Result<Self> {
        // Each write is sent before the next one, so that the buffer needs no bound.
        connection.set_buffer_limit(None);
        let arrived = Arrived { bytes: Some(vec![0; MAX_RECEIVE_BYTES]), start: 0, end: 0 };
        let session = Self {
            connection: RefCell::new(connection),
            arrived: RefCell::new(arrived),
            send_buffer: Mutex::new(Vec::new()),
        };
        loop {
            session.send_records(stream).await?;
            if !session.connection.borrow().is_handshaking() {
                return Ok(session);
            }
            let outcome = match session.receive_ciphertext(stream).await? {
                false => return Err(io::ErrorKind::UnexpectedEof.into()),
                true => session.feed(),
            };
            if let Err(e) = outcome {
                // This sends the alert that says why; a failure to send it changes nothing.
                let _ = session.send_records(stream).await;
                return Err(e);
            }
        }
    }

    /// The certificate, in DER, that the peer has proved to own; `None` if it showed none.
    pub(crate) fn peer_certificate(&self) -> Option<Vec<u8>> {
        let connection = self.connection.borrow();
        Some(connection.peer_certificates()?.first()?.to_vec())
    }

    /// Receives as [`Stream::recv`] does. The end of the stream counts as the end even without a
    /// close alert: NBD messages carry their lengths, so a truncated one is always detected.
    pub(crate) async fn recv<B: StableBuf + DerefMut<Target = [u8]>>(
        &self,
        stream: &Stream,
        mut buf: B,
        start: usize,
    ) -> (io::Result<usize>, B) {
        assert!(start < buf.len(), "receiving into nothing");
        let mut at = start;
        loop {
            let read = self.connection.borrow_mut().reader().read(&mut buf[at..]);
            match read {
                Ok(0) => return (Ok(at - start), buf),
                Ok(n) => at += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if self.has_ciphertext() {
                        if let Err(e) = self.feed() {
                            return (Err(e), buf);
                        }
                        continue;
                    }
                    if at > start {
                        return (Ok(at - start), buf);
                    }
                    match self.receive_ciphertext(stream).await {
                        Ok(true) => {}
                        Ok(false) => return (Ok(0), buf),
                        Err(e) => return (Err(e), buf),
                    }
                }
                Err(e) => return (Err(e), buf),
            }
            if at == buf.len() {
                return (Ok(at - start), buf);
            }
        }
    }

    /// Sends all of `bytes`.
    pub(crate) async fn send(&self, stream: &Stream, bytes: &[u8]) -> io::Result<()> {
        let mut out = self.send_buffer.lock().await;
        for part in bytes.chunks(MAX_SEND_BYTES) {
            self.connection.borrow_mut().writer().write_all(part)?;
            self.send_locked(stream, &mut out).await?;
        }
        Ok(())
    }

    /// Sends the close alert.
    pub(crate) async fn send_close(&self, stream: &Stream) -> io::Result<()> {
        self.connection.borrow_mut().send_close_notify();
        self.send_records(stream).await
    }

    /// Sends the records that rustls has made by itself.
    async fn send_records(&self, stream: &Stream) -> io::Result<()> {
        let mut out = self.send_buffer.lock().await;
        self.send_locked(stream, &mut out).await
    }

    async fn send_locked(&self, stream: &Stream, out: &mut Vec<u8>) -> io::Result<()> {
        out.clear();
        {
            let mut connection = self.connection.borrow_mut();
            while connection.wants_write() {
                connection.write_tls(out)?;
            }
        }
        if out.is_empty() {
            return Ok(());
        }
        let (sent, back) = stream.send_all(std::mem::take(out)).await;
        *out = back;
        sent
    }

    fn has_ciphertext(&self) -> bool {
        let arrived = self.arrived.borrow();
        arrived.start < arrived.end
    }

    /// Waits for more ciphertext; `false` at the end of the stream.
    async fn receive_ciphertext(&self, stream: &Stream) -> io::Result<bool> {
        if self.has_ciphertext() {
            return Ok(true);
        }
        let bytes = self.arrived.borrow_mut().bytes.take().expect("one task receives");
        let (outcome, bytes) = stream.recv(bytes, 0).await;
        let mut arrived = self.arrived.borrow_mut();
        (arrived.start, arrived.end) = (0, *outcome.as_ref().unwrap_or(&0));
        arrived.bytes = Some(bytes);
        Ok(outcome? > 0)
    }

    /// Gives rustls some of the ciphertext. The caller has read all plain text before, which
    /// bounds the memory.
    fn feed(&self) -> io::Result<()> {
        let mut connection = self.connection.borrow_mut();
        let mut arrived = self.arrived.borrow_mut();
        let Arrived { bytes, start, end } = &mut *arrived;
        let bytes = bytes.as_deref().expect("no receive is running");
        let taken = connection.read_tls(&mut &bytes[*start..*end])?;
        *start += taken;
        connection.process_new_packets().map_err(SessionError::Rustls)?;
        if taken == 0 {
            return Err(SessionError::DataAfterClose.into());
        }
        Ok(())
    }
}
