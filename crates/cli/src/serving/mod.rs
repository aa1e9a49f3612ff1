//! The serving process: listeners, the control socket, the live line, and a clean end.
//!
//! What enters: pools to serve, addresses to listen on, signals.
//! What leaves: one line for each listener, a ready line, a live line on a terminal.
//! What always holds: nothing but loopback and sockets in the owner's folder unless it was asked
//! for; no plain text on other addresses unless that was asked for too; on the first signal requests in flight are answered and pools exported; on the second
//! the process ends at once, and loses nothing that was acknowledged.
//! Who calls me: `forebay serve` and `forebay up`.

mod hints;
mod live;
mod watch;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;

use forebay_nbd::{Limits, Server, TlsConfig, TlsFiles};
use forebay_rt::net::Listener;
use forebay_units::Nanos;

use crate::args::{ListenAddress, SecurityArgs};
use crate::control::serve_control;
use crate::failure::{Failure, report};
use crate::pools::PoolSet;
use crate::signals::Stop;
use crate::state::{StateDir, own_uid};
use crate::terminal::Screen;

pub use hints::{connect_hints, nbd_uri};
pub use live::live_line;

/// The port that NBD has by convention.
const NBD_PORT: u16 = 10809;
/// How long clients may take to receive the replies of their last requests.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// What the kernel takes as the path of a Unix socket.
const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Between two live lines.
const LIVE_EVERY: Nanos = Nanos::from_secs(1);

/// A set of pools that is being served.
pub struct Serving {
    /// The pools.
    pub set: Rc<PoolSet>,
    /// Where messages go.
    pub screen: Rc<Screen>,
    server: Rc<Server>,
    stop: Rc<Stop>,
    plaintext: bool,
}

impl Serving {
    /// Opens the control socket: from now on commands access `set` here.
    pub fn new(set: Rc<PoolSet>, state: &StateDir, stop: Rc<Stop>) -> Result<Self, Failure> {
        let path = state.control_socket(std::process::id());
        if path.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
            return Err(Failure::new(format!(
                "control socket {}: {}; set FOREBAY_STATE_DIR to a shorter path",
                path.display(),
                long_path(&path)
            )));
        }
        let listener = Listener::bind_unix(&path, 0o600)
            .map_err(|e| Failure::new(format!("control socket {}: {e}", path.display())))?;
        forebay_rt::spawn(serve_control(listener, set.clone(), own_uid()));
        let server = Server::new(set.clone(), Limits::default());
        Ok(Self { set, screen: Rc::new(Screen::stdout()), server, stop, plaintext: false })
    }

    /// The same, secured as `args` say. To be called before [`Serving::listen`].
    pub fn secured(mut self, args: &SecurityArgs) -> Result<Self, Failure> {
        self.plaintext = args.plaintext;
        let (Some(cert), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) else {
            return Ok(self);
        };
        let (client_ca, allow) = (args.tls_ca.clone(), args.tls_allow.clone());
        let config = TlsConfig::read(&TlsFiles { cert, key, client_ca, allow })
            .map_err(|e| Failure::new(e.to_string()))?;
        self.server = Server::with_tls(self.set.clone(), Limits::default(), config);
        Ok(self)
    }

    /// Whether clients must come in TLS.
    #[must_use]
    pub fn demands_tls(&self) -> bool {
        self.server.requires_tls()
    }

    /// Listens on `asked`, or on the default addresses when none is. Says where.
    pub fn listen(
        &self,
        asked: &[ListenAddress],
        state: &StateDir,
    ) -> Result<Vec<String>, Failure> {
        let mut listeners = Vec::new();
        let tls = self.demands_tls();
        for address in asked {
            refuse_exposed(address, tls, self.plaintext)?;
        }
        for address in asked {
            if address.is_exposed() && !tls {
                report(&format!(
                    "warning: {address} can be reached from other machines, and neither \
                     encrypts nor asks who is there; use it on trusted networks only"
                ));
            }
            listeners.push(self.bind(address).map_err(|e| cannot_listen(address, &e))?);
        }
        if asked.is_empty() {
            listeners = self.listen_default(state)?;
        }
        for address in &listeners {
            self.screen.say(&format!("listening on {address}"));
        }
        self.set.announce(listeners.clone());
        Ok(listeners)
    }

    fn bind(&self, address: &ListenAddress) -> io::Result<String> {
        match address {
            ListenAddress::Unix(path) => {
                refuse_other_files(path)?;
                self.server.listen_unix(&std::path::absolute(path)?, 0o600)
            }
            ListenAddress::Tcp(address) => self.server.listen_tcp(*address),
        }
    }

    /// A Unix socket in the state folder, and loopback. When the latter is taken, the former will
    /// do; when the former is taken by another server, this one needs a name of its own.
    fn listen_default(&self, state: &StateDir) -> Result<Vec<String>, Failure> {
        let shared = ListenAddress::Unix(state.nbd_socket());
        let own = format!("nbd-{}.sock", std::process::id());
        let own = ListenAddress::Unix(state.path().join(own));
        let first = match self.bind(&shared) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                self.bind(&own).map_err(|e| cannot_listen(&own, &e))?
            }
            other => other.map_err(|e| cannot_listen(&shared, &e))?,
        };
        let mut listeners = vec![first];
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, NBD_PORT));
        let loopback = ListenAddress::Tcp(loopback);
        match self.bind(&loopback) {
            Ok(address) => listeners.push(address),
            Err(e) => report(&format!(
                "warning: {loopback} is not available ({e}); serving on the Unix socket only"
            )),
        }
        Ok(listeners)
    }

    /// Fails when one of the addresses `asked` for is taken, or may not be used: before pools are
    /// made and opened for nothing.
    pub async fn check_free(&self, asked: &[ListenAddress]) -> Result<(), Failure> {
        for address in asked {
            refuse_exposed(address, self.demands_tls(), self.plaintext)?;
            try_address(address).await.map_err(|e| cannot_listen(address, &e))?;
        }
        Ok(())
    }

    /// Serves until a signal comes, then ends cleanly. Says when the health of a pool changes, and when
    /// clients are sent away.
    pub async fn run(self) -> Result<(), Failure> {
        let mut live = live::Live::new();
        let mut watch = watch::Watch::default();
        while self.stop.unless_asked(forebay_rt::sleep(LIVE_EVERY)).await.is_some() {
            for line in watch.look(&self.set.pools()) {
                self.screen.clear();
                report(&line);
            }
            let most = Limits::default().connections_max;
            if let Some(line) = watch.clients(self.server.counts(), most, forebay_rt::now()) {
                self.screen.clear();
                report(&line);
            }
            if self.screen.is_terminal() {
                let width = self.screen.width();
                self.screen.show(&live.next(&self.set, self.server.connections(), width));
            }
        }
        self.screen.clear();
        self.end().await
    }

    /// Ends cleanly: answers what is in flight, exports the pools.
    pub async fn end(self) -> Result<(), Failure> {
        self.screen.say(&format!(
            "stopping ({}): answering what is in flight, then exporting (Ctrl-C: at once)",
            self.stop.by()
        ));
        self.server.stop(PATIENCE).await;
        self.set.close().await?;
        self.screen.say("stopped: everything is on the devices");
        Ok(())
    }
}

/// A socket may replace a dead socket, never a file of another kind.
fn refuse_other_files(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "a file that is no socket is there already; name another path",
        )),
        _ => Ok(()),
    }
}

/// Whether `address` could be listened on now. Leaves nothing behind.
async fn try_address(address: &ListenAddress) -> io::Result<()> {
    match address {
        ListenAddress::Unix(path) => {
            refuse_other_files(path)?;
            let path = std::path::absolute(path)?;
            if path.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, long_path(&path)));
            }
            if let Some(folder) = path.parent() {
                std::fs::metadata(folder)?;
            }
            match forebay_rt::net::Stream::connect_unix(&path).await {
                Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
                // Nobody answers there.
                Err(_) => Ok(()),
            }
        }
        // Bound as servers are: a port whose last owner has just ended is free.
        ListenAddress::Tcp(address) => std::net::TcpListener::bind(address).map(|_| ()),
    }
}

fn long_path(path: &Path) -> String {
    format!(
        "its path has {} bytes, and a socket's may have {SOCKET_PATH_MAX_BYTES}",
        path.as_os_str().len()
    )
}

/// What other machines can access must be encrypted, unless somebody said that he knows better.
fn refuse_exposed(address: &ListenAddress, tls: bool, plaintext: bool) -> Result<(), Failure> {
    if tls || plaintext || !address.is_exposed() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{address} can be reached from other machines, and without TLS everybody there may read \
         and write every volume; give --tls-cert and --tls-key (and --tls-ca), or --plaintext on a \
         network where everybody is trusted"
    )))
}

fn cannot_listen(address: &ListenAddress, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "another server has it; use --listen with another address",
        io::ErrorKind::PermissionDenied => "choose an address that you may use, with --listen",
        _ => "choose another address with --listen",
    };
    Failure::new(format!("cannot listen on {address} ({error}): {hint}"))
}

#[cfg(test)]
mod tests;
