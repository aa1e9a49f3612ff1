//! State of the server's connections: what all of them share, and what the requests of one share.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::Device;
use forebay_rt::sync::{Notify, Semaphore};

use crate::channel::Channel;
use crate::exports::ExportHandle;
use crate::handshake::Agreement;
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::tls::TlsConfig;

/// State that all connections of one server share.
pub(crate) struct ServerState {
    pub(crate) limits: Limits,
    /// The TLS that every client must start; `None` means plain text.
    pub(crate) tls: Option<TlsConfig>,
    /// Bytes that all connections together may still take.
    pub(crate) memory: Rc<Semaphore>,
    pub(crate) is_stopping: Cell<bool>,
}

impl ServerState {
    pub(crate) fn new(limits: Limits, tls: Option<TlsConfig>) -> Rc<Self> {
        let limits = limits.with_minimums();
        let memory = Semaphore::new(limits.total_bytes_max);
        Rc::new(Self { limits, tls, memory, is_stopping: Cell::new(false) })
    }
}

/// State that the requests of one connection share.
pub(super) struct Connection {
    pub(super) server: Rc<ServerState>,
    pub(super) device: Device,
    pub(super) read_only: bool,
    pub(super) agreement: Agreement,
    pub(super) outbox: Outbox,
    pub(super) budget: Rc<MemoryBudget>,
    pub(super) in_flight: Cell<usize>,
    pub(super) became_idle: Notify,
    // The last field, so that the owner's hold outlives every use of the device.
    pub(super) handle: ExportHandle,
}

impl Connection {
    pub(super) fn new(
        server: Rc<ServerState>,
        channel: Rc<Channel>,
        agreement: Agreement,
        handle: ExportHandle,
    ) -> Rc<Self> {
        let budget = Rc::new(MemoryBudget {
            connection: Semaphore::new(server.limits.connection_bytes_max),
            server: server.memory.clone(),
            taken_bytes: Cell::new(0),
        });
        let release = Box::new({
            let budget = budget.clone();
            move |bytes| budget.give_back(bytes)
        });
        Rc::new(Self {
            device: handle.device.clone(),
            read_only: handle.refuses_writes(),
            agreement,
            outbox: Outbox::new(channel, release),
            budget,
            in_flight: Cell::new(0),
            became_idle: Notify::default(),
            server,
            handle,
        })
    }

    /// Waits until no request is in flight.
    pub(super) async fn drained(&self) {
        self.became_idle.until(|| self.in_flight.get() == 0).await;
    }
}

/// Bytes that one connection has taken from its own limit and from the server's.
pub(super) struct MemoryBudget {
    connection: Rc<Semaphore>,
    server: Rc<Semaphore>,
    taken_bytes: Cell<u64>,
}

impl MemoryBudget {
    /// Takes `bytes`; waits until other requests have returned enough.
    #[inline]
    pub(super) async fn take(&self, bytes: u64) {
        match self.connection.try_acquire(bytes) {
            Some(permit) => permit.forget(),
            None => self.connection.acquire(bytes).await.expect("never closed").forget(),
        };
        // If the caller abandons this wait, the first permit is lost with its connection only.
        match self.server.try_acquire(bytes) {
            Some(permit) => permit.forget(),
            None => self.server.acquire(bytes).await.expect("never closed").forget(),
        };
        self.taken_bytes.set(self.taken_bytes.get() + bytes);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.taken_bytes.set(self.taken_bytes.get() - bytes);
        self.connection.release(bytes);
        self.server.release(bytes);
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.server.release(self.taken_bytes.get());
    }
}
