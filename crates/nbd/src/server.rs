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

use crate::account::Account;
use crate::connection::{Client, Denial, Ending, ServerState, serve_connection};
use crate::exports::Exports;
use crate::limits::Limits;
use crate::shares::RESERVED_PART;
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
    /// Connections closed at once because there were too many, or too many of the client's account.
    pub refused: u64,
    /// Connections whose client broke no protocol, and was not served.
    pub denied: Denials,
    /// Connections that ended because the client broke the protocol.
    pub protocol_errors: u64,
    /// Connections whose client vanished within a message, or whose stream failed.
    pub lost: u64,
    /// Connections that ended because the client exceeded a deadline.
    pub timed_out: u64,
    /// Connections that ended because others waited for memory that the client worked on too
    /// slowly.
    pub evicted: u64,
}

/// Connections whose clients broke no protocol, and were not served, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// There is no export of the name that the client asked for, or it may not open it.
    pub export: u64,
    /// The client did not start TLS.
    pub not_encrypted: u64,
    /// The client's certificate has expired, or is not valid yet.
    pub certificate_out_of_time: u64,
    /// The client showed no certificate, or one that is not accepted.
    pub certificate: u64,
    /// The client has no version or cipher of TLS that the server has.
    pub tls_version: u64,
    /// The client ended TLS, mostly because it does not trust the server's certificate.
    pub by_client: u64,
}

impl Denials {
    fn count(&mut self, denial: Denial) {
        *match denial {
            Denial::Export => &mut self.export,
            Denial::NotEncrypted => &mut self.not_encrypted,
            Denial::CertificateOutOfTime => &mut self.certificate_out_of_time,
            Denial::Certificate => &mut self.certificate,
            Denial::TlsVersion => &mut self.tls_version,
            Denial::ByClient => &mut self.by_client,
        } += 1;
    }
}

/// Connections that the server ended because of what their clients did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offenses {
    /// See [`Counts::refused`].
    pub refused: u64,
    /// See [`Counts::denied`].
    pub denied: Denials,
    /// See [`Counts::protocol_errors`].
    pub protocol_errors: u64,
    /// See [`Counts::timed_out`].
    pub timed_out: u64,
    /// See [`Counts::evicted`].
    pub evicted: u64,
    /// See [`Counts::lost`]. The client may be innocent, and the network or the server at fault.
    pub lost: u64,
}

/// Accounts whose offenses are kept until they are reported; those of further accounts are only in
/// [`Counts`].
const OFFENDERS_MAX: usize = 64;
/// Delay before the next connection is accepted after one was refused. A client that connects
/// without a pause then takes little of the server's time.
const REFUSAL_DELAY: Nanos = Nanos::from_millis(1);

/// Serves NBD clients on any number of listeners.
pub struct Server {
    exports: Rc<dyn Exports>,
    state: Rc<ServerState>,
    listeners: RefCell<Vec<Rc<Listener>>>,
    streams: RefCell<BTreeMap<u64, Rc<Stream>>>,
    accepting: Cell<usize>,
    counts: Cell<Counts>,
    offenders: RefCell<BTreeMap<Account, Offenses>>,
    /// Open connections by account.
    open: RefCell<BTreeMap<Account, usize>>,
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
            offenders: RefCell::default(),
            open: RefCell::default(),
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
                    if !self.adopt(stream) {
                        rt::sleep(REFUSAL_DELAY).await;
                    }
                }
                Err(_) if self.state.is_stopping.get() => break,
                // The likely cause is a lack of descriptors: other connections must end first.
                Err(_) => rt::sleep(ACCEPT_RETRY_INTERVAL).await,
            }
        }
        self.accepting.set(self.accepting.get() - 1);
        self.changed.notify_all();
    }

    /// Serves `stream`; returns false if the server is full or stopping, or if the account of its
    /// peer has too many connections.
    pub fn adopt(self: &Rc<Self>, stream: Stream) -> bool {
        let account = Account::of(&stream);
        self.adopt_for(account, stream)
    }

    /// Serves `stream`, which the owner gives to the kernel of this machine: without TLS, for every
    /// export. Returns false if the server is full or stopping.
    pub fn adopt_for_kernel(self: &Rc<Self>, stream: Stream) -> bool {
        self.adopt_client(Client { account: Account::Owner, is_kernel: true }, stream)
    }

    pub(crate) fn adopt_for(self: &Rc<Self>, account: Account, stream: Stream) -> bool {
        self.adopt_client(Client { account, is_kernel: false }, stream)
    }

    fn adopt_client(self: &Rc<Self>, client: Client, stream: Stream) -> bool {
        let account = client.account.clone();
        if self.state.is_stopping.get() || !self.has_room_for(&account) {
            self.count(&account, |counts, offenses| {
                counts.refused += 1;
                offenses.refused += 1;
            });
            return false;
        }
        self.count(&account, |counts, _| counts.accepted += 1);
        *self.open.borrow_mut().entry(account.clone()).or_default() += 1;
        let id = self.counts.get().accepted;
        let stream = Rc::new(stream);
        self.streams.borrow_mut().insert(id, stream.clone());
        let server = self.clone();
        rt::spawn(async move {
            let (exports, state) = (server.exports.clone(), server.state.clone());
            let ending = serve_connection(stream, client, exports, state).await;
            server.streams.borrow_mut().remove(&id);
            server.release_place(&account);
            server.note_ending(&account, ending);
            server.changed.notify_all();
        });
        true
    }

    /// Whether `account` may have one more connection. The owner may have all that are free. Others
    /// leave a part to the owner, and each account leaves half of what it has to the next one.
    fn has_room_for(&self, account: &Account) -> bool {
        let open = self.open.borrow();
        let of = |account| open.get(account).copied().unwrap_or(0);
        let mut free = self.state.limits.connections_max.saturating_sub(open.values().sum());
        if *account == Account::Owner {
            return free > 0;
        }
        let reserved = self.state.limits.connections_max / RESERVED_PART as usize;
        free = free.saturating_sub(reserved.saturating_sub(of(&Account::Owner)));
        free > 0 && of(account) < 2 * (free - 1) + usize::from(open.is_empty())
    }

    fn release_place(&self, account: &Account) {
        let mut open = self.open.borrow_mut();
        if let Some(count) = open.get_mut(account) {
            *count -= 1;
            if *count == 0 {
                open.remove(account);
            }
        }
    }

    fn note_ending(&self, account: &Account, ending: Ending) {
        self.count(account, |counts, offenses| match ending {
            Ending::Disconnected | Ending::Stopped => {}
            Ending::Lost => {
                counts.lost += 1;
                offenses.lost += 1;
            }
            Ending::Denied(denial) => {
                counts.denied.count(denial);
                offenses.denied.count(denial);
            }
            Ending::ProtocolError => {
                counts.protocol_errors += 1;
                offenses.protocol_errors += 1;
            }
            Ending::TimedOut => {
                counts.timed_out += 1;
                offenses.timed_out += 1;
            }
            Ending::Evicted => {
                counts.evicted += 1;
                offenses.evicted += 1;
            }
        });
    }

    fn count(&self, account: &Account, change: impl FnOnce(&mut Counts, &mut Offenses)) {
        let (mut counts, mut offenders) = (self.counts.get(), self.offenders.borrow_mut());
        let mut offenses = offenders.get(account).copied().unwrap_or_default();
        change(&mut counts, &mut offenses);
        self.counts.set(counts);
        let is_known = offenders.contains_key(account);
        if offenses != Offenses::default() && (is_known || offenders.len() < OFFENDERS_MAX) {
            offenders.insert(account.clone(), offenses);
        }
    }

    /// Offenses by account since the last call.
    pub fn take_offenses(&self) -> BTreeMap<Account, Offenses> {
        self.offenders.take()
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
        self.state.memory.used_bytes()
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
