//! Listeners, and the connections that came through them.

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

use crate::connection::{Ending, Shared, serve};
use crate::exports::Exports;
use crate::limits::Limits;
use crate::tls::TlsConfig;

/// What a server has seen since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    /// Connections that ended because the client broke the protocol.
    pub broke: u64,
    /// Connections that ended in the middle of something.
    pub vanished: u64,
    /// Connections that ended because the client was too slow.
    pub too_slow: u64,
}

/// Serves NBD clients on any number of listeners.
pub struct Server {
    exports: Rc<dyn Exports>,
    shared: Rc<Shared>,
    listeners: RefCell<Vec<Rc<Listener>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    accepting: Cell<usize>,
    counts: Cell<Counts>,
    changed: Notify,
}

impl Server {
    /// A server of `exports` that listens nowhere yet.
    #[must_use]
    pub fn new(exports: Rc<dyn Exports>, limits: Limits) -> Rc<Self> {
        Self::make(exports, limits, None)
    }

    /// The same, but every client, whichever way it comes, must start TLS before anything else.
    #[must_use]
    pub fn with_tls(exports: Rc<dyn Exports>, limits: Limits, tls: TlsConfig) -> Rc<Self> {
        Self::make(exports, limits, Some(tls))
    }

    fn make(exports: Rc<dyn Exports>, limits: Limits, tls: Option<TlsConfig>) -> Rc<Self> {
        Rc::new(Self {
            exports,
            shared: Shared::new(limits, tls),
            listeners: RefCell::default(),
            streams: RefCell::default(),
            accepting: Cell::new(0),
            counts: Cell::default(),
            changed: Notify::default(),
        })
    }

    /// Listens on a Unix socket that only processes with rights by `mode` (such as 0o600) reach.
    pub fn listen_unix(self: &Rc<Self>, path: &Path, mode: u32) -> io::Result<String> {
        Ok(self.listen(Listener::bind_unix(path, mode)?))
    }

    /// Whether clients must start TLS.
    #[must_use]
    pub fn demands_tls(&self) -> bool {
        self.shared.tls.is_some()
    }

    /// Listens on a TCP address. Without TLS ([`Server::with_tls`]) whoever reaches it may do
    /// everything: loopback, or networks where everybody is trusted.
    pub fn listen_tcp(self: &Rc<Self>, address: SocketAddr) -> io::Result<String> {
        Ok(self.listen(Listener::bind_tcp(address)?))
    }

    /// Accepts from `listener` until [`Server::stop`]; its address as text.
    pub fn listen(self: &Rc<Self>, listener: Listener) -> String {
        let address = listener.address().to_owned();
        let listener = Rc::new(listener);
        self.listeners.borrow_mut().push(listener.clone());
        self.accepting.set(self.accepting.get() + 1);
        rt::spawn(self.clone().accept_all(listener));
        address
    }

    async fn accept_all(self: Rc<Self>, listener: Rc<Listener>) {
        while !self.shared.stopping.get() {
            match listener.accept().await {
                Ok(stream) => {
                    self.adopt(stream);
                }
                Err(_) if self.shared.stopping.get() => break,
                // Out of descriptors, most likely: others must end first.
                Err(_) => rt::sleep(Nanos::from_millis(100)).await,
            }
        }
        self.accepting.set(self.accepting.get() - 1);
        self.changed.notify_all();
    }

    /// Serves a stream that came from elsewhere than a listener. Whether there was room for it.
    pub fn adopt(self: &Rc<Self>, stream: Stream) -> bool {
        let full = self.streams.borrow().len() >= self.shared.limits.connections_max;
        if full || self.shared.stopping.get() {
            self.count(|counts| counts.refused += 1);
            return false;
        }
        self.count(|counts| counts.accepted += 1);
        let id = self.counts.get().accepted;
        let stream = Rc::new(stream);
        self.streams.borrow_mut().insert(id, stream.clone());
        let server = self.clone();
        rt::spawn(async move {
            let ending = serve(stream, server.exports.clone(), server.shared.clone()).await;
            server.streams.borrow_mut().remove(&id);
            server.count(|counts| match ending {
                Ending::Left | Ending::Stopped => {}
                Ending::Broke(_) => counts.broke += 1,
                Ending::Vanished(_) => counts.vanished += 1,
                Ending::TooSlow(_) => counts.too_slow += 1,
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

    /// What it has seen.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Bytes of requests and replies that are in memory for all connections together.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.shared.limits.total_bytes_max - self.shared.total.available()
    }

    /// Stops: no new connections, requests that have arrived and not begun are answered
    /// `ESHUTDOWN`, those in flight are finished and answered, then connections close. Clients
    /// that do not take their replies are cut off after `patience`; connections whose device has
    /// not answered after as long again are given up. Returns how many those are, 0 mostly.
    pub async fn stop(&self, patience: Nanos) -> usize {
        self.shared.stopping.set(true);
        for listener in self.listeners.take() {
            listener.shutdown();
        }
        for stream in self.streams.borrow().values() {
            stream.shutdown_receive();
        }
        let over = || self.accepting.get() == 0 && self.streams.borrow().is_empty();
        if rt::timeout(patience, self.changed.until(over)).await.is_err() {
            for stream in self.streams.borrow().values() {
                stream.shutdown();
            }
            // Cutting off takes a turn or two even when nobody is patient.
            let grace = patience.max(Nanos::from_millis(100));
            let _ = rt::timeout(grace, self.changed.until(over)).await;
        }
        self.connections()
    }
}
