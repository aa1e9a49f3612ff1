//! The NBD server: listeners and their connections.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};
use forebay_rt::sync::Notify;
use forebay_units::Nanos;

use crate::connection::{Ending, ServerState, serve_connection};
use crate::exports::Exports;
use crate::limits::Limits;
use crate::tls::TlsConfig;

/// Time between two attempts to accept after a failed one.
const ACCEPT_RETRY_INTERVAL: Nanos = Nanos::from_millis(100);
/// Shortest time that [`Server::stop`] waits after it has disconnected clients.
const MIN_ABANDON_DEADLINE: Nanos = Nanos::from_millis(100);

/// Counts of connections since the server was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    /// Connections that ended because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections whose client vanished within a message, or whose stream failed.
    pub lost: u64,
    /// Connections that ended because the client exceeded a deadline.
    pub timed_out: u64,
}

/// Serves NBD clients on any number of listeners.
pub struct Server {
    exports: Rc<dyn Exports>,
    state: Rc<ServerState>,
    listeners: RefCell<Vec<Rc<Listener>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    accepting: Cell<usize>,
    counts: Cell<Counts>,
    changed: Notify,
}

impl Server {
    /// A server of `exports` without a listener.
    #[must_use]
    pub fn new(exports: Rc<dyn Exports>, limits: Limits) -> Rc<Self> {
        Self::make(exports, limits, None)
    }

    /// A server whose clients must start TLS first, on every listener.
    #[must_use]
    pub fn with_tls(exports: Rc<dyn Exports>, limits: Limits, tls: TlsConfig) -> Rc<Self> {
        Self::make(exports, limits, Some(tls))
    }

    fn make(exports: Rc<dyn Exports>, limits: Limits, tls: Option<TlsConfig>) -> Rc<Self> {
        Rc::new(Self {
            exports,
            state: ServerState::new(limits, tls),
            listeners: RefCell::default(),
            streams: RefCell::default(),
            accepting: Cell::new(0),
            counts: Cell::default(),
            changed: Notify::default(),
        })
    }

    /// Listens on a Unix socket with the permissions `mode`, such as 0o600.
    pub fn listen_unix(self: &Rc<Self>, path: &Path, mode: u32) -> io::Result<String> {
        Ok(self.listen(Listener::bind_unix(path, mode)?))
    }

    /// Whether clients must start TLS.
    #[must_use]
    pub fn requires_tls(&self) -> bool {
        self.state.tls.is_some()
    }

    /// Listens on a TCP address. Without TLS ([`Server::with_tls`]) every process that reaches the
    /// address may read and write: use loopback or a trusted network.
    pub fn listen_tcp(self: &Rc<Self>, address: SocketAddr) -> io::Result<String> {
        Ok(self.listen(Listener::bind_tcp(address)?))
    }

    /// Accepts from `listener` until [`Server::stop`]; returns its address as text.
    pub fn listen(self: &Rc<Self>, listener: Listener) -> String {
        let address = listener.address().to_owned();
        let listener = Rc::new(listener);
        self.listeners.borrow_mut().push(listener.clone());
        self.accepting.set(self.accepting.get() + 1);
        rt::spawn(self.clone().accept_all(listener));
        address
    }

    async fn accept_all(self: Rc<Self>, listener: Rc<Listener>) {
        while !self.state.is_stopping.get() {
            match listener.accept().await {
                Ok(stream) => {
                    self.adopt(stream);
                }
                Err(_) if self.state.is_stopping.get() => break,
                // The likely cause is a lack of descriptors: other connections must end first.
                Err(_) => rt::sleep(ACCEPT_RETRY_INTERVAL).await,
            }
        }
        self.accepting.set(self.accepting.get() - 1);
        self.changed.notify_all();
    }

    /// Serves `stream`; returns false if the server is full or stopping.
    pub fn adopt(self: &Rc<Self>, stream: Stream) -> bool {
        let full = self.streams.borrow().len() >= self.state.limits.connections_max;
        if full || self.state.is_stopping.get() {
            self.count(|counts| counts.refused += 1);
            return false;
        }
        self.count(|counts| counts.accepted += 1);
        let id = self.counts.get().accepted;
        let stream = Rc::new(stream);
        self.streams.borrow_mut().insert(id, stream.clone());
        let server = self.clone();
        rt::spawn(async move {
            let (exports, state) = (server.exports.clone(), server.state.clone());
            let ending = serve_connection(stream, exports, state).await;
            server.streams.borrow_mut().remove(&id);
            server.count(|counts| match ending {
                Ending::Disconnected | Ending::Stopped => {}
                Ending::ProtocolError => counts.protocol_errors += 1,
                Ending::Lost => counts.lost += 1,
                Ending::TimedOut => counts.timed_out += 1,
            });
            server.changed.notify_all();
        });
        true
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Counts of connections since the server was made.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Bytes of requests and replies in memory, for all connections together.
    pub(crate) fn bytes_in_flight(&self) -> u64 {
        self.state.limits.total_bytes_max - self.state.memory.available()
    }

    /// Stops the server. It takes no new connections, answers `ESHUTDOWN` to requests that have not
    /// begun, finishes the requests in flight, and closes the connections.
    ///
    /// After `deadline` it disconnects clients that do not take their replies. After the same time
    /// again it abandons connections whose device has not answered, and returns their number.
    pub async fn stop(&self, deadline: Nanos) -> usize {
        self.state.is_stopping.set(true);
        for listener in self.listeners.take() {
            listener.shutdown();
        }
        for stream in self.streams.borrow().values() {
            stream.shutdown_receive();
        }
        let over = || self.accepting.get() == 0 && self.streams.borrow().is_empty();
        if rt::timeout(deadline, self.changed.until(over)).await.is_err() {
            for stream in self.streams.borrow().values() {
                stream.shutdown();
            }
            // A disconnect takes a few turns of the event loop, even with a deadline of 0.
            let abandon_deadline = deadline.max(MIN_ABANDON_DEADLINE);
            let _ = rt::timeout(abandon_deadline, self.changed.until(over)).await;
        }
        let abandoned = self.connections();
        debug_assert!(
            abandoned > 0 || self.bytes_in_flight() == 0,
            "connections ended and left {} bytes of requests",
            self.bytes_in_flight()
        );
        abandoned
    }
}
