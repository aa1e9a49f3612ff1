//! Byte streams: Unix and TCP sockets over io_uring, and pairs in memory for simulation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use forebay_units::Nanos;
use io_uring::{opcode, types};

use crate::sync::Notify;
use crate::{sys, uring};

mod listener;

pub use listener::Listener;

/// How long a connection over TCP may take to be made.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Bytes that may be lent to the kernel: they stay where they are while the value is owned.
///
/// # Safety
/// The bytes that the value dereferences to must stay valid, and in place, until the value is
/// dropped; moving the value must not move them.
pub unsafe trait StableBuf: Deref<Target = [u8]> + Unpin + 'static {}

// SAFETY: a vector's bytes are on the heap and stay there while the vector is not changed.
unsafe impl StableBuf for Vec<u8> {}

/// A connected byte stream. Shared by `&self`: one task may receive while another sends.
pub struct Stream {
    kind: Kind,
    peer: String,
    /// The peer's address, of an accepted TCP connection.
    peer_ip: Option<IpAddr>,
    /// The peer's user, of an accepted TCP connection within this machine.
    tcp_uid: Option<u32>,
    /// Bytes that have gone through the stream in both directions.
    moved_bytes: Cell<u64>,
}

enum Kind {
    Socket(OwnedFd),
    Pair { incoming: Rc<Pipe>, outgoing: Rc<Pipe> },
}

/// One direction of an in-memory pair.
struct Pipe {
    bytes: RefCell<VecDeque<u8>>,
    closed: Cell<bool>,
    changed: Rc<Notify>,
}

/// The largest receive that is asked of the kernel at once.
const MAX_RECEIVE_BYTES: usize = 1 << 30;
/// The largest piece for which the kernel waits: what has arrived of it shows in
/// [`Stream::moved_bytes`] only when it is whole.
const MAX_WAIT_ALL_BYTES: usize = 256 << 10;
/// The largest send that is asked of the kernel at once: what a slow peer has taken of it shows in
/// [`Stream::moved_bytes`] only when it has ended.
const MAX_SEND_BYTES: usize = 1 << 20;

const PIPE_BYTES: usize = 256 << 10;

impl Pipe {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            bytes: RefCell::new(VecDeque::new()),
            closed: Cell::new(false),
            changed: Notify::new(),
        })
    }

    fn close(&self) {
        self.closed.set(true);
        self.changed.notify_all();
    }
}

/// Two connected in-memory streams. Each transfer takes a random virtual time and may be split
/// anywhere, as a socket may do.
#[must_use]
pub fn pair() -> (Stream, Stream) {
    let (a, b) = (Pipe::new(), Pipe::new());
    let left = Kind::Pair { incoming: a.clone(), outgoing: b.clone() };
    let right = Kind::Pair { incoming: b, outgoing: a };
    (Stream::new(left, "memory".into()), Stream::new(right, "memory".into()))
}

impl Stream {
    fn new(kind: Kind, peer: String) -> Self {
        Self { kind, peer, peer_ip: None, tcp_uid: None, moved_bytes: Cell::new(0) }
    }

    /// The other side's name, for messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Connects to the Unix socket at `path`.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        let fd = sys::unix_socket()?;
        let (address, len) = unix_address(path)?;
        let kept = Box::new(address);
        let entry =
            opcode::Connect::new(types::Fd(fd.as_raw_fd()), std::ptr::from_ref(&*kept).cast(), len);
        // SAFETY: the entry points into the box, which is kept.
        let (outcome, _) = unsafe { uring::submit(entry.build(), kept) }.await;
        outcome?;
        Ok(Self::new(Kind::Socket(fd), path.display().to_string()))
    }

    /// Connects to `address` over TCP, without delay of small packets. A host that does not answer
    /// keeps only this future waiting, for some seconds.
    pub async fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let connect = move || std::net::TcpStream::connect_timeout(&address, CONNECT_TIMEOUT);
        let stream = crate::aside(connect).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(Kind::Socket(stream.into()), address.to_string()))
    }

    /// Receives into `buf` from `start` on, whatever is there, at least one byte; 0 is the end.
    pub async fn recv<B: StableBuf + DerefMut>(
        &self,
        buf: B,
        start: usize,
    ) -> (io::Result<usize>, B) {
        self.receive(buf, start, MAX_RECEIVE_BYTES, 0).await
    }

    /// As [`Stream::recv`], but at most `most` bytes.
    pub async fn recv_most<B: StableBuf + DerefMut>(
        &self,
        buf: B,
        start: usize,
        most: usize,
    ) -> (io::Result<usize>, B) {
        self.receive(buf, start, most.min(MAX_RECEIVE_BYTES), 0).await
    }

    /// At most `most` bytes into `buf` from `start` on. `flags` are those of recv(2).
    async fn receive<B: StableBuf + DerefMut>(
        &self,
        mut buf: B,
        start: usize,
        most: usize,
        flags: i32,
    ) -> (io::Result<usize>, B) {
        assert!(start < buf.len(), "receiving into nothing");
        match &self.kind {
            Kind::Socket(fd) => {
                let free = &mut buf[start..];
                let len = free.len().min(most) as u32;
                let target = types::Fd(fd.as_raw_fd());
                let entry = opcode::Recv::new(target, free.as_mut_ptr(), len).flags(flags).build();
                // SAFETY: the entry points into `buf`, which is kept and stable.
                let (outcome, buf) = unsafe { uring::submit_first(entry, buf) }.await;
                if let Ok(received) = outcome {
                    self.count(received as usize);
                }
                (outcome.map(|n| n as usize), buf)
            }
            Kind::Pair { incoming, .. } => {
                jitter().await;
                incoming
                    .changed
                    .until(|| !incoming.bytes.borrow().is_empty() || incoming.closed.get())
                    .await;
                let mut bytes = incoming.bytes.borrow_mut();
                let most = bytes.len().min(buf.len() - start).min(most);
                let take = if most > 1 {
                    most - crate::random_below(most as u64 / 8 + 1) as usize
                } else {
                    most
                };
                let memory = &mut buf[start..start + take];
                let (front, back) = bytes.as_slices();
                let cut = front.len().min(take);
                memory[..cut].copy_from_slice(&front[..cut]);
                memory[cut..].copy_from_slice(&back[..take - cut]);
                bytes.drain(..take);
                drop(bytes);
                self.count(take);
                incoming.changed.notify_all();
                (Ok(take), buf)
            }
        }
    }

    /// Fills `buf` from `start` to its end. An end of the stream before that is `UnexpectedEof`.
    /// The kernel waits for the rest of a piece by itself, which takes no turn of the runtime.
    pub async fn recv_exact<B: StableBuf + DerefMut>(
        &self,
        mut buf: B,
        start: usize,
    ) -> (io::Result<()>, B) {
        let mut at = start;
        while at < buf.len() {
            let (outcome, back) =
                self.receive(buf, at, MAX_WAIT_ALL_BYTES, libc::MSG_WAITALL).await;
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
    pub async fn send_all<B: StableBuf>(&self, mut buf: B) -> (io::Result<()>, B) {
        let mut at = 0;
        while at < buf.len() {
            match &self.kind {
                Kind::Socket(fd) => {
                    let rest = &buf[at..buf.len().min(at + MAX_SEND_BYTES)];
                    // Mostly the socket has room, and then a plain call costs less than a
                    // submission and the completion that would end the next wait early.
                    let sent = sys::send_now(fd, rest);
                    if sent > 0 {
                        at += sent;
                        self.count(sent);
                        continue;
                    }
                    let target = types::Fd(fd.as_raw_fd());
                    let entry = opcode::Send::new(target, rest.as_ptr(), rest.len() as u32)
                        .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                        .build();
                    // SAFETY: the entry points into `buf`, which is kept and stable.
                    let (outcome, back) = unsafe { uring::submit(entry, buf) }.await;
                    buf = back;
                    match outcome {
                        Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                        Ok(n) => {
                            at += n as usize;
                            self.count(n as usize);
                        }
                        Err(e) => return (Err(e), buf),
                    }
                }
                Kind::Pair { outgoing, .. } => {
                    jitter().await;
                    let full = || outgoing.bytes.borrow().len() >= PIPE_BYTES;
                    outgoing.changed.until(|| !full() || outgoing.closed.get()).await;
                    if outgoing.closed.get() {
                        return (Err(io::ErrorKind::BrokenPipe.into()), buf);
                    }
                    let room = PIPE_BYTES - outgoing.bytes.borrow().len();
                    let take = room.min(buf.len() - at);
                    outgoing.bytes.borrow_mut().extend(&buf[at..at + take]);
                    at += take;
                    self.count(take);
                    outgoing.changed.notify_all();
                }
            }
        }
        (Ok(()), buf)
    }

    /// Sends as much of `bytes` as the socket takes now, without waiting, and returns how much
    /// that was. It is 0 also when the stream has failed; the next [`Stream::send_all`] returns
    /// that error. Streams in memory take nothing this way.
    pub fn try_send(&self, bytes: &[u8]) -> usize {
        match &self.kind {
            Kind::Socket(fd) => {
                let sent = sys::send_now(fd, bytes);
                self.count(sent);
                sent
            }
            Kind::Pair { .. } => 0,
        }
    }

    /// Waits until there is something to receive, or the end of the stream. Sockets only.
    pub async fn readable(&self) -> io::Result<()> {
        self.poll(libc::POLLIN).await
    }

    /// Waits until the socket takes a short message without waiting. Sockets only.
    pub async fn writable(&self) -> io::Result<()> {
        self.poll(libc::POLLOUT).await
    }

    async fn poll(&self, events: i16) -> io::Result<()> {
        let entry = opcode::PollAdd::new(types::Fd(self.socket()?.as_raw_fd()), events as u32);
        // SAFETY: the entry has no pointers.
        let (outcome, ()) = unsafe { uring::submit(entry.build(), ()) }.await;
        outcome.map(|_| ())
    }

    /// Whether nothing more will come: the other side, or this one, has ended that direction. What
    /// was sent before may still be received.
    pub fn has_hung_up(&self) -> bool {
        match &self.kind {
            Kind::Socket(fd) => sys::has_hung_up(fd),
            Kind::Pair { incoming, .. } => incoming.closed.get(),
        }
    }

    /// Copies what has arrived to the start of `bytes` and leaves it in the socket; does not wait.
    /// Returns how much that is; 0 is the end of the stream. Sockets only.
    pub fn peek(&self, bytes: &mut [u8]) -> io::Result<usize> {
        sys::peek_now(self.socket()?, bytes)
    }

    /// Takes what has arrived, and the socket that was sent with it; does not wait. Sockets only.
    pub fn receive_socket(&self, bytes: &mut [u8]) -> io::Result<(usize, Option<Self>)> {
        let (got, fd) = sys::receive_file(self.socket()?, bytes)?;
        let stream = |fd| Self::new(Kind::Socket(fd), format!("second socket of {}", self.peer));
        Ok((got, fd.map(stream)))
    }

    /// Bytes that have arrived and were not received. Sockets only.
    pub fn arrived_bytes(&self) -> io::Result<usize> {
        sys::arrived_bytes(self.socket()?)
    }

    /// A second stream on the same socket, for a task that goes on when this one is dropped.
    /// Sockets only.
    pub fn second(&self) -> io::Result<Self> {
        let kind = Kind::Socket(self.socket()?.try_clone()?);
        let mut second = Self::new(kind, self.peer.clone());
        (second.peer_ip, second.tcp_uid) = (self.peer_ip, self.tcp_uid);
        Ok(second)
    }

    /// A second descriptor of the socket, for a library that receives by itself. Sockets only.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket()?.try_clone()
    }

    fn socket(&self) -> io::Result<&OwnedFd> {
        match &self.kind {
            Kind::Socket(fd) => Ok(fd),
            Kind::Pair { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn count(&self, bytes: usize) {
        self.moved_bytes.set(self.moved_bytes.get() + bytes as u64);
    }

    /// Bytes that this side has sent and received: a peer that makes progress raises it.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.get()
    }

    /// Ends both directions: tasks that wait on the stream wake up, on this side and the other.
    pub fn shutdown(&self) {
        match &self.kind {
            Kind::Socket(fd) => sys::shutdown(fd, Shutdown::Both),
            Kind::Pair { incoming, outgoing } => {
                incoming.close();
                outgoing.close();
            }
        }
    }

    /// Ends the receiving direction: what has already arrived can still be received, then comes
    /// the end of the stream. What is being sent is not disturbed.
    pub fn shutdown_receive(&self) {
        match &self.kind {
            Kind::Socket(fd) => sys::shutdown(fd, Shutdown::Read),
            Kind::Pair { incoming, .. } => incoming.close(),
        }
    }

    /// The uid of the process on the other side of a Unix socket, or of an accepted TCP connection
    /// within this machine; `None` for other streams.
    #[must_use]
    pub fn peer_uid(&self) -> Option<u32> {
        let Kind::Socket(fd) = &self.kind else { return None };
        self.tcp_uid.or_else(|| sys::peer_process(fd).map(|process| process.uid))
    }

    /// The peer's address, of an accepted TCP connection.
    #[must_use]
    pub fn peer_ip(&self) -> Option<IpAddr> {
        self.peer_ip
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Kind::Pair { incoming, outgoing } = &self.kind {
            incoming.close();
            outgoing.close();
        }
    }
}

async fn jitter() {
    crate::sleep(Nanos(1_000 + crate::random_below(9_000))).await;
}

/// The addresses of `host` (a name or a literal), with `port`. Blocks while names are looked up:
/// for clients, at their start.
pub fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    use std::net::ToSocketAddrs;
    Ok((host, port).to_socket_addrs()?.collect())
}

fn unix_address(path: &Path) -> io::Result<(libc::sockaddr_un, u32)> {
    use std::os::unix::ffi::OsStrExt;
    let mut address =
        libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("socket path {} is longer than 107 bytes", path.display()),
        ));
    }
    for (slot, byte) in address.sun_path.iter_mut().zip(bytes) {
        *slot = *byte as libc::c_char;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as u32))
}

#[cfg(test)]
mod tests;
