//! One TLS connection over a stream: rustls turns bytes into bytes, and this moves them.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::ops::DerefMut;

use forebay_rt::net::{StableBuf, Stream};
use forebay_rt::sync::Mutex;

/// What one receive of ciphertext can bring.
const RECEIVE_BYTES: usize = 64 << 10;
/// Plain text that is encrypted for one send.
const SEND_BYTES: usize = 128 << 10;

/// An established TLS connection. One task may receive while others send.
pub(crate) struct Session {
    connection: RefCell<rustls::Connection>,
    arrived: RefCell<Arrived>,
    /// Whoever holds it sends; so records leave in the order in which they were made. In it is
    /// the memory that they leave from.
    turn: Mutex<Vec<u8>>,
}

/// Ciphertext that rustls has not taken yet.
#[derive(Default)]
struct Arrived {
    /// `None` only while the kernel has it.
    bytes: Option<Vec<u8>>,
    start: usize,
    end: usize,
}

fn broken(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {e}"))
}

impl Session {
    /// From the first message to the last one of the handshake. It may wait for the peer for
    /// ever: the caller has a deadline.
    pub(crate) async fn shake_hands(
        mut connection: rustls::Connection,
        stream: &Stream,
    ) -> io::Result<Self> {
        // Everything that is written is sent before more is: there is nothing to bound.
        connection.set_buffer_limit(None);
        let arrived = Arrived { bytes: Some(vec![0; RECEIVE_BYTES]), start: 0, end: 0 };
        let session = Self {
            connection: RefCell::new(connection),
            arrived: RefCell::new(arrived),
            turn: Mutex::new(Vec::new()),
        };
        loop {
            session.send_made(stream).await?;
            if !session.connection.borrow().is_handshaking() {
                return Ok(session);
            }
            let outcome = match session.receive_ciphertext(stream).await? {
                false => return Err(io::ErrorKind::UnexpectedEof.into()),
                true => session.feed(),
            };
            if let Err(e) = outcome {
                // The peer may learn why; whether it does changes nothing here.
                let _ = session.send_made(stream).await;
                return Err(e);
            }
        }
    }

    /// The certificate that the peer has proved to own: DER, `None` when it showed none.
    pub(crate) fn peer_certificate(&self) -> Option<Vec<u8>> {
        let connection = self.connection.borrow();
        Some(connection.peer_certificates()?.first()?.to_vec())
    }

    /// As [`Stream::recv`]. The end of the stream is the end whether TLS announced it or not:
    /// NBD's messages know their own lengths, so that one that was cut off is never taken for
    /// whole.
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
        let mut out = self.turn.lock().await;
        for part in bytes.chunks(SEND_BYTES) {
            self.connection.borrow_mut().writer().write_all(part)?;
            self.send_locked(stream, &mut out).await?;
        }
        Ok(())
    }

    /// Announces the end of what is sent.
    pub(crate) async fn say_goodbye(&self, stream: &Stream) -> io::Result<()> {
        self.connection.borrow_mut().send_close_notify();
        self.send_made(stream).await
    }

    /// Sends what rustls has made on its own account.
    async fn send_made(&self, stream: &Stream) -> io::Result<()> {
        let mut out = self.turn.lock().await;
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

    /// Gives rustls some of what has arrived. Plain text must have been taken out before: that is
    /// what bounds the memory.
    fn feed(&self) -> io::Result<()> {
        let mut connection = self.connection.borrow_mut();
        let mut arrived = self.arrived.borrow_mut();
        let Arrived { bytes, start, end } = &mut *arrived;
        let bytes = bytes.as_deref().expect("no receive is running");
        let taken = connection.read_tls(&mut &bytes[*start..*end])?;
        *start += taken;
        connection.process_new_packets().map_err(broken)?;
        if taken == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS: bytes after the end"));
        }
        Ok(())
    }
}
