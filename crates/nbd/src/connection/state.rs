//! State of the server's connections: what all of them share, and what the requests of one share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use forebay_device::Device;
use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_rt::sync::Notify;

use super::ending::Ending;
use super::progress::{Progress, RATE_INTERVAL, slowest};
use crate::account::Account;
use crate::channel::Channel;
use crate::exports::ExportHandle;
use crate::handshake::Agreement;
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::shares::{Ledger, Share};
use crate::tls::TlsConfig;

/// Longest read or write of the kernel's NBD client.
const KERNEL_REQUEST_MAX_BYTES: u32 = 32 << 20;

/// State that all connections of one server share.
pub(crate) struct ServerState {
    pub(crate) limits: Limits,
    /// The TLS that every client must start; `None` means plain text.
    pub(crate) tls: Option<TlsConfig>,
    /// Bytes that connections hold.
    pub(crate) memory: Rc<Ledger>,
    pub(crate) is_stopping: Cell<bool>,
    /// Connections in transmission, by number. (They hold this state in turn.)
    clients: RefCell<BTreeMap<u64, Weak<Connection>>>,
    next_client: Cell<u64>,
}

impl ServerState {
    pub(crate) fn new(limits: Limits, tls: Option<TlsConfig>) -> Rc<Self> {
        let limits = limits.with_minimums();
        Rc::new(Self {
            limits,
            tls,
            memory: Ledger::new(limits.total_bytes_max, limits.connections_max),
            is_stopping: Cell::new(false),
            clients: RefCell::default(),
            next_client: Cell::new(0),
        })
    }

    /// Adds a connection to those that may be evicted; returns its number.
    pub(super) fn add(&self, connection: &Rc<Connection>) -> u64 {
        let id = self.next_client.get();
        self.next_client.set(id + 1);
        self.clients.borrow_mut().insert(id, Rc::downgrade(connection));
        id
    }

    pub(super) fn remove(&self, id: u64) {
        self.clients.borrow_mut().remove(&id);
    }

    /// Makes room for a request that waits for memory: disconnects the slow client that holds the
    /// most. An account that holds less than the account of `waiting` loses none.
    fn evict_slowest(&self, waiting: &Account) {
        let least_bytes = self.memory.used_by(waiting);
        let clients = self.clients.borrow();
        let may_go = |client: &Rc<Connection>| {
            self.memory.used_by(&client.account) >= least_bytes && !client.progress.is_evicted()
        };
        let observed = clients.values().filter_map(Weak::upgrade).filter(may_go);
        let victim = slowest(observed, self.limits.slow_drain, rt::now());
        if let Some(victim) = victim {
            victim.progress.evict();
            victim.stream.shutdown();
        }
    }
}

/// Whose connection it is.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// What it uses counts to this.
    pub(crate) account: Account,
    /// See [`crate::Peer::is_kernel`].
    pub(crate) is_kernel: bool,
}

/// State that the requests of one connection share.
pub(super) struct Connection {
    pub(super) server: Rc<ServerState>,
    pub(super) account: Account,
    pub(super) stream: Rc<Stream>,
    pub(super) device: Device,
    pub(super) read_only: bool,
    /// See [`crate::Peer::is_kernel`].
    pub(super) is_kernel: bool,
    pub(super) agreement: Agreement,
    pub(super) outbox: Outbox,
    pub(super) progress: Progress,
    share: Rc<Share>,
    /// The charge of a write whose data are being received.
    pub(super) receiving_bytes: Cell<u64>,
    /// The charge of reads that the device performs.
    pub(super) reading_bytes: Cell<u64>,
    replies_taken: Rc<Notify>,
    pub(super) in_flight: Cell<usize>,
    pub(super) became_idle: Notify,
    // The last field, so that the owner's hold outlives every use of the device.
    pub(super) handle: ExportHandle,
}

impl Connection {
    /// Whether the server ends, or the owner has taken the export from its clients.
    pub(super) fn is_ending(&self) -> bool {
        let revocation = self.handle.revocation.as_ref();
        self.server.is_stopping.get() || revocation.is_some_and(|switch| switch.is_revoked())
    }

    pub(super) fn new(
        server: Rc<ServerState>,
        Client { account, is_kernel }: Client,
        stream: Rc<Stream>,
        channel: Rc<Channel>,
        agreement: Agreement,
        handle: ExportHandle,
    ) -> Rc<Self> {
        let max_bytes = server.limits.connection_bytes_max;
        let share = Rc::new(Share::new(&server.memory, &account, &agreement.name, max_bytes));
        let replies_taken = Notify::new();
        let release = Box::new({
            let (share, replies_taken) = (share.clone(), replies_taken.clone());
            move |bytes| {
                share.give_back(bytes);
                replies_taken.notify_all();
            }
        });
        Rc::new(Self {
            device: handle.device.clone(),
            read_only: handle.refuses_writes(),
            is_kernel,
            account,
            stream,
            agreement,
            outbox: Outbox::new(channel, release),
            progress: Progress::default(),
            share,
            receiving_bytes: Cell::new(0),
            reading_bytes: Cell::new(0),
            replies_taken,
            in_flight: Cell::new(0),
            became_idle: Notify::default(),
            server,
            handle,
        })
    }

    /// Longest read or write, in bytes. The limit is for other clients: the kernel does not ask for
    /// it, and a refusal would be an error of the disk.
    #[inline]
    pub(super) fn request_max_bytes(&self) -> u32 {
        let limit = self.server.limits.request_max_bytes;
        if self.is_kernel { limit.max(KERNEL_REQUEST_MAX_BYTES) } else { limit }
    }

    /// Waits until no request is in flight.
    pub(super) async fn drained(&self) {
        self.became_idle.until(|| self.in_flight.get() == 0).await;
    }

    /// Whether no reply can reach the client any more.
    fn is_over(&self) -> bool {
        self.progress.is_evicted() || self.outbox.is_broken()
    }

    /// Takes memory for a request. While there is none, slow clients that hold memory are
    /// disconnected. Fails when the connection itself is over.
    #[inline]
    pub(super) async fn take_memory(&self, bytes: u64) -> Result<(), Ending> {
        if self.is_over() {
            return Err(Ending::Lost);
        }
        if self.share.try_take(bytes) {
            return Ok(());
        }
        let mut waiting = std::pin::pin!(self.share.take(bytes));
        while rt::timeout(RATE_INTERVAL, waiting.as_mut()).await.is_err() {
            if self.is_over() {
                return Err(Ending::Lost);
            }
            // A client that has work of its own to do first takes nothing from others.
            if self.owed_bytes() == 0 {
                self.server.evict_slowest(&self.account);
            }
        }
        Ok(())
    }

    /// Gives back memory that was taken.
    pub(super) fn give_back_memory(&self, bytes: u64) {
        self.share.give_back(bytes);
    }

    /// Waits until a read with this charge may begin: data are read only for a client that takes
    /// its replies. `reading_bytes` then has the charge.
    #[inline]
    pub(super) async fn admit_read(&self, charge_bytes: u64) {
        let limits = &self.server.limits;
        let may_begin = || {
            let untaken = self.reading_bytes.get() + self.outbox.held_bytes();
            let proven = self.outbox.taken_bytes().min(limits.connection_bytes_max);
            untaken == 0 || untaken + charge_bytes <= proven.max(limits.reply_window_bytes)
        };
        if !may_begin() {
            self.replies_taken.until(may_begin).await;
        }
        self.reading_bytes.set(self.reading_bytes.get() + charge_bytes);
    }

    /// Bytes of memory that wait for the client: it must take replies, or send the rest of a write.
    pub(super) fn owed_bytes(&self) -> u64 {
        self.outbox.held_bytes() + self.receiving_bytes.get()
    }
}
