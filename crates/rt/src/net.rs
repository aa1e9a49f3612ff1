//! Byte streams: Unix and TCP sockets over io_uring, and pairs in memory for simulation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_units::Nanos;
use io_uring::{opcode, types};

use crate::sync::Notify;
use crate::uring;

/// Memory that may be lent to the kernel: stable while it is owned, wherever the owner moves.
///
/// # Safety
/// `stable_ptr` must stay valid for `stable_len` bytes until the value is dropped, and moving the
/// value must not move the memory.
pub unsafe trait StableBuf: Unpin + 'static {
    /// Start of the memory.
    fn stable_ptr(&mut self) -> *mut u8;
    /// Its length in bytes.
    fn stable_len(&self) -> usize;
}

unsafe impl StableBuf for Vec<u8> {
    fn stable_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn stable_len(&self) -> usize {
        self.len()
    }
}

/// A connected byte stream. Shared by `&self`: one task may receive while another sends.
pub struct Stream {
    kind: Kind,
    peer: String,
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
    (Stream { kind: left, peer: "memory".into() }, Stream { kind: right, peer: "memory".into() })
}

impl Stream {
    /// Who is on the other side, for messages.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Connects to the Unix socket at `path`.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        let fd = socket(libc::AF_UNIX)?;
        let (address, len) = unix_address(path)?;
        let kept = Box::new(address);
        let entry =
            opcode::Connect::new(types::Fd(fd.as_raw_fd()), std::ptr::from_ref(&*kept).cast(), len);
        let (outcome, _) = unsafe { uring::submit(entry.build(), kept) }.await;
        outcome?;
        Ok(Self { kind: Kind::Socket(fd), peer: path.display().to_string() })
    }

    /// Connects to `address` over TCP, without delay of small packets.
    pub async fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        // The blocking connect of the standard library: only clients call this, at their start.
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let fd = unsafe { OwnedFd::from_raw_fd(stream.into_raw_fd()) };
        Ok(Self { kind: Kind::Socket(fd), peer: address.to_string() })
    }

    /// Receives into `buf` from `start` on, whatever is there, at least one byte; 0 is the end.
    pub async fn recv<B: StableBuf>(&self, mut buf: B, start: usize) -> (io::Result<usize>, B) {
        assert!(start < buf.stable_len(), "receiving into nothing");
        match &self.kind {
            Kind::Socket(fd) => {
                let ptr = unsafe { buf.stable_ptr().add(start) };
                let len = (buf.stable_len() - start).min(1 << 30) as u32;
                let entry = opcode::Recv::new(types::Fd(fd.as_raw_fd()), ptr, len).build();
                let (outcome, buf) = unsafe { uring::submit_first(entry, buf) }.await;
                (outcome.map(|n| n as usize), buf)
            }
            Kind::Pair { incoming, .. } => {
                jitter().await;
                incoming
                    .changed
                    .until(|| !incoming.bytes.borrow().is_empty() || incoming.closed.get())
                    .await;
                let mut bytes = incoming.bytes.borrow_mut();
                let room = buf.stable_len() - start;
                let most = bytes.len().min(room);
                let take = if most > 1 {
                    most - crate::random_below(most as u64 / 8 + 1) as usize
                } else {
                    most
                };
                let memory =
                    unsafe { std::slice::from_raw_parts_mut(buf.stable_ptr().add(start), take) };
                let (front, back) = bytes.as_slices();
                let cut = front.len().min(take);
                memory[..cut].copy_from_slice(&front[..cut]);
                memory[cut..].copy_from_slice(&back[..take - cut]);
                bytes.drain(..take);
                drop(bytes);
                incoming.changed.notify_all();
                (Ok(take), buf)
            }
        }
    }

    /// Fills `buf` from `start` to its end. An end of the stream before that is `UnexpectedEof`.
    pub async fn recv_exact<B: StableBuf>(&self, mut buf: B, start: usize) -> (io::Result<()>, B) {
        let mut at = start;
        while at < buf.stable_len() {
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
    pub async fn send_all<B: StableBuf>(&self, mut buf: B) -> (io::Result<()>, B) {
        let mut at = 0;
        while at < buf.stable_len() {
            match &self.kind {
                Kind::Socket(fd) => {
                    let ptr = unsafe { buf.stable_ptr().add(at) };
                    let len = (buf.stable_len() - at).min(1 << 30) as u32;
                    // Mostly the socket has room, and then a plain call costs less than a
                    // submission and the completion that would end the next wait early.
                    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
                    let sent =
                        unsafe { libc::send(fd.as_raw_fd(), ptr.cast(), len as usize, flags) };
                    if sent > 0 {
                        at += sent as usize;
                        continue;
                    }
                    let entry = opcode::Send::new(types::Fd(fd.as_raw_fd()), ptr, len)
                        .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                        .build();
                    let (outcome, back) = unsafe { uring::submit(entry, buf) }.await;
                    buf = back;
                    match outcome {
                        Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                        Ok(n) => at += n as usize,
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
                    let take = room.min(buf.stable_len() - at);
                    let memory =
                        unsafe { std::slice::from_raw_parts(buf.stable_ptr().add(at), take) };
                    outgoing.bytes.borrow_mut().extend(memory);
                    at += take;
                    outgoing.changed.notify_all();
                }
            }
        }
        (Ok(()), buf)
    }

    /// Sends as much of `bytes` as the socket takes now, without waiting, and says how much that
    /// was: nothing too when the stream has failed, which the next [`Stream::send_all`] tells.
    /// Streams in memory take nothing this way.
    pub fn try_send(&self, bytes: &[u8]) -> usize {
        let Kind::Socket(fd) = &self.kind else { return 0 };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        usize::try_from(sent).unwrap_or(0)
    }

    /// Ends both directions: whoever waits on the stream, here or there, wakes up.
    pub fn shutdown(&self) {
        match &self.kind {
            Kind::Socket(fd) => {
                // Fails only when the peer was faster, which is what is wanted.
                let _ = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
            }
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
            Kind::Socket(fd) => {
                // Fails only when the peer was faster, which is what is wanted.
                let _ = unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RD) };
            }
            Kind::Pair { incoming, .. } => incoming.close(),
        }
    }

    /// The uid of the process on the other side of a Unix socket; `None` for other streams.
    #[must_use]
    pub fn peer_uid(&self) -> Option<u32> {
        let Kind::Socket(fd) = &self.kind else { return None };
        credentials(fd).map(|cred| cred.uid)
    }
}

/// Who is on the other side of a Unix socket.
fn credentials(fd: &OwnedFd) -> Option<libc::ucred> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as u32;
    let outcome = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut cred).cast(),
            &raw mut len,
        )
    };
    (outcome == 0 && cred.uid != u32::MAX).then_some(cred)
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

/// A listening socket. Dropping a Unix listener removes its path.
pub struct Listener {
    fd: OwnedFd,
    path: Option<PathBuf>,
    address: String,
}

impl Listener {
    /// Listens on `path`, readable and writable by `mode` (octal, such as 0o600). A socket file
    /// that nobody answers on any more is replaced; a live one is `AddrInUse`.
    pub fn bind_unix(path: &Path, mode: u32) -> io::Result<Self> {
        if path.exists() {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let fd = unsafe { OwnedFd::from_raw_fd(listener.into_raw_fd()) };
        Ok(Self { fd, path: Some(path.to_path_buf()), address: format!("unix:{}", path.display()) })
    }

    /// Listens on a TCP address.
    pub fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        let fd = unsafe { OwnedFd::from_raw_fd(listener.into_raw_fd()) };
        Ok(Self { fd, path: None, address: format!("tcp:{bound}") })
    }

    /// `unix:PATH` or `tcp:HOST:PORT` with the port that was really taken.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends the listening: connections are refused from here on, and whoever waits in
    /// [`Listener::accept`] gets an error.
    pub fn shutdown(&self) {
        // On Linux this wakes accept; it fails only when it was done before.
        let _ = unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        let entry = opcode::Accept::new(
            types::Fd(self.fd.as_raw_fd()),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
        .flags(libc::SOCK_CLOEXEC)
        .build();
        let (outcome, ()) = unsafe { uring::submit(entry, ()) }.await;
        let fd = unsafe { OwnedFd::from_raw_fd(outcome? as i32) };
        if self.path.is_none() {
            // Without the first, small replies wait for an acknowledgement. Without the others, a
            // peer that lost its power keeps its connection for ever. Failing costs only that.
            let set = |level, name, value: libc::c_int| {
                let len = size_of::<libc::c_int>() as u32;
                let value = (&raw const value).cast();
                let _ = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, len) };
            };
            set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
            set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60);
            set(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10);
            set(libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6);
        }
        let process = || credentials(&fd).filter(|cred| self.path.is_some() && cred.pid > 0);
        let peer = match self.peer_of(&fd) {
            Some(address) => address.to_string(),
            None => match process() {
                Some(cred) => format!("process {}", cred.pid),
                None => format!("client of {}", self.address),
            },
        };
        Ok(Stream { kind: Kind::Socket(fd), peer })
    }

    /// The other side's address, where there is one and it is still connected.
    fn peer_of(&self, fd: &OwnedFd) -> Option<SocketAddr> {
        if self.path.is_some() {
            return None;
        }
        std::net::TcpStream::from(fd.try_clone().ok()?).peer_addr().ok()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn unix_address(path: &Path) -> io::Result<(libc::sockaddr_un, u32)> {
    use std::os::unix::ffi::OsStrExt;
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
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
