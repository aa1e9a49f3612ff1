//! Listening sockets.

use std::cell::Cell;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use io_uring::{opcode, types};

use super::{Kind, Stream};
use crate::sync::Notify;
use crate::{Either, sys, uring};

/// A listening socket. Dropping a Unix listener that this process has bound removes its path.
pub struct Listener {
    fd: OwnedFd,
    /// The path to remove.
    path: Option<PathBuf>,
    is_unix: bool,
    address: String,
    /// Of a socket that another process listens on too: it must not be shut down.
    shared: Option<Shared>,
}

/// How a task that waits for a connection learns of the end.
struct Shared {
    is_over: Cell<bool>,
    changed: Rc<Notify>,
}

impl Listener {
    /// Listens on `path`, with the file mode `mode` (octal, such as 0o600). A socket file that no
    /// process listens on any more is replaced; a live one is `AddrInUse`.
    pub fn bind_unix(path: &Path, mode: u32) -> io::Result<Self> {
        if path.exists() {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let address = format!("unix:{}", path.display());
        let path = Some(path.to_path_buf());
        Ok(Self { fd: listener.into(), path, is_unix: true, address, shared: None })
    }

    /// Listens on a TCP address.
    pub fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        let address = format!("tcp:{bound}");
        Ok(Self { fd: listener.into(), path: None, is_unix: false, address, shared: None })
    }

    /// A listening socket that a service manager has opened and keeps. Clients that connect after
    /// [`Listener::shutdown`] wait for the next process that gets it.
    pub fn inherited(fd: OwnedFd) -> io::Result<Self> {
        if !sys::is_listening(&fd)? {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no listening socket"));
        }
        let (fd, address) = match std::net::TcpListener::from(fd.try_clone()?).local_addr() {
            Ok(bound) => (fd, format!("tcp:{bound}")),
            Err(_) => {
                let listener = std::os::unix::net::UnixListener::from(fd);
                let bound = listener.local_addr()?;
                let path = bound.as_pathname().unwrap_or(Path::new("(without a path)"));
                let address = format!("unix:{}", path.display());
                (listener.into(), address)
            }
        };
        // Another process may take the connection that this one was told of.
        std::net::TcpListener::from(fd.try_clone()?).set_nonblocking(true)?;
        let shared = Shared { is_over: Cell::new(false), changed: Notify::new() };
        let is_unix = address.starts_with("unix:");
        Ok(Self { fd, path: None, is_unix, address, shared: Some(shared) })
    }

    /// `unix:PATH` or `tcp:HOST:PORT` with the port that was really taken.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends the listening: connections are refused from now on, and a waiting
    /// [`Listener::accept`] returns an error.
    pub fn shutdown(&self) {
        match &self.shared {
            Some(shared) => {
                shared.is_over.set(true);
                shared.changed.notify_all();
            }
            // On Linux this wakes accept.
            None => sys::shutdown(&self.fd, Shutdown::Both),
        }
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        match &self.shared {
            None => self.accept_own().await.map(|fd| self.stream_of(fd)),
            Some(shared) => self.accept_shared(shared).await.map(|fd| self.stream_of(fd)),
        }
    }

    async fn accept_own(&self) -> io::Result<OwnedFd> {
        let entry = opcode::Accept::new(
            types::Fd(self.fd.as_raw_fd()),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
        .flags(libc::SOCK_CLOEXEC)
        .build();
        // SAFETY: the entry has no pointers but null ones.
        let (outcome, ()) = unsafe { uring::submit(entry, ()) }.await;
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(outcome? as i32) })
    }

    /// Waits without taking a connection: what is not taken before the end stays with the socket.
    async fn accept_shared(&self, shared: &Shared) -> io::Result<OwnedFd> {
        loop {
            let readable = libc::POLLIN as u32;
            let entry = opcode::PollAdd::new(types::Fd(self.fd.as_raw_fd()), readable).build();
            // SAFETY: the entry has no pointers.
            let poll = unsafe { uring::submit(entry, ()) };
            let over = std::pin::pin!(shared.changed.until(|| shared.is_over.get()));
            match crate::select(over, poll).await {
                Either::Left(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                Either::Right(((outcome, ()), _)) => outcome?,
            };
            match sys::accept_now(&self.fd) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn stream_of(&self, fd: OwnedFd) -> Stream {
        if !self.is_unix {
            set_tcp_options(&fd);
        }
        let process = || sys::peer_process(&fd).filter(|process| self.is_unix && process.pid > 0);
        let ends = self.ends_of(&fd);
        let peer = match ends {
            Some((_, address)) => address.to_string(),
            None => match process() {
                Some(process) => format!("process {}", process.pid),
                None => format!("client of {}", self.address),
            },
        };
        let mut stream = Stream::new(Kind::Socket(fd), peer);
        if let Some((local, address)) = ends {
            stream.peer_ip = Some(address.ip().to_canonical());
            stream.tcp_uid = sys::loopback_peer_uid(local, address);
        }
        stream
    }

    /// The addresses of both sides, where there are any and it is still connected.
    fn ends_of(&self, fd: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
        if self.is_unix {
            return None;
        }
        let stream = std::net::TcpStream::from(fd.try_clone().ok()?);
        Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Without TCP_NODELAY small replies wait for an acknowledgment. Without keepalive a peer that lost
/// its power keeps its connection for ever. An option that cannot be set costs only that.
fn set_tcp_options(socket: &OwnedFd) {
    for (level, name, value) in [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6),
    ] {
        let _ = sys::set_socket_option(socket, level, name, value);
    }
}
