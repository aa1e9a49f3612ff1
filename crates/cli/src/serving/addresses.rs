//! Whether an address can be listened on.

use std::io;
use std::path::Path;

use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_units::Nanos;

use super::{SOCKET_PATH_MAX_BYTES, long_path};
use crate::args::ListenAddress;

/// How long the listener of a killed process may live on: the kernel takes down an io_uring, and
/// the sockets that it uses, after the process is gone.
const DYING_LISTENER: Nanos = Nanos::from_secs(2);
/// Between two looks at such a listener.
const LOOK_AGAIN: Nanos = Nanos::from_millis(20);

/// Waits until `address` can be listened on. Fails at once when a server greets there, and after
/// [`DYING_LISTENER`] when something is there that does not.
pub(super) async fn until_free(address: &ListenAddress) -> io::Result<()> {
    let last = rt::now() + DYING_LISTENER;
    loop {
        let taken = match try_address(address).await {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => e,
            other => return other,
        };
        let left = last.since(rt::now());
        if left == Nanos::ZERO || greets(address, left).await {
            return Err(taken);
        }
        rt::sleep(LOOK_AGAIN).await;
    }
}

/// Whether a server greets at `address`, as every NBD server does. The listener of a dead process
/// takes a connection too, and resets it when it goes.
async fn greets(address: &ListenAddress, patience: Nanos) -> bool {
    let greeting = async {
        let stream = match address {
            ListenAddress::Unix(path) => Stream::connect_unix(&std::path::absolute(path)?).await?,
            ListenAddress::Tcp(address) => Stream::connect_tcp(*address).await?,
        };
        let (received, _) = stream.recv(vec![0; 64], 0).await;
        received
    };
    matches!(rt::timeout(patience, Box::pin(greeting)).await, Ok(Ok(bytes)) if bytes > 0)
}

/// Fails when a file that is not a socket is at `path`: a socket may replace a dead socket only.
pub(super) fn refuse_other_files(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is not a socket is there already; name another path",
        )),
        _ => Ok(()),
    }
}

/// Fails when the path of a socket is longer than the kernel takes.
pub fn refuse_long(address: &ListenAddress) -> io::Result<()> {
    match address {
        ListenAddress::Tcp(_) => Ok(()),
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(path)?;
            match path.as_os_str().len() {
                len if len > SOCKET_PATH_MAX_BYTES => {
                    Err(io::Error::new(io::ErrorKind::InvalidInput, long_path(&path)))
                }
                _ => Ok(()),
            }
        }
    }
}

/// Fails when `address` cannot be listened on now. Leaves nothing behind.
async fn try_address(address: &ListenAddress) -> io::Result<()> {
    match address {
        ListenAddress::Unix(path) => {
            refuse_other_files(path)?;
            refuse_long(address)?;
            let path = std::path::absolute(path)?;
            if let Some(folder) = path.parent() {
                std::fs::metadata(folder)?;
            }
            match forebay_rt::net::Stream::connect_unix(&path).await {
                Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
                // No server answers there.
                Err(_) => Ok(()),
            }
        }
        // Bound as the server binds it: a port whose last owner has just ended is free.
        ListenAddress::Tcp(address) => std::net::TcpListener::bind(address).map(|_| ()),
    }
}
