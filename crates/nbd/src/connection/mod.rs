//! One connection of the server: handshake, then requests that run side by side.
//!
//! The receiving loop takes requests apart and starts them; each answers into the outbox when it
//! is done; one task sends. A flush needs no barrier here: whatever was replied to had completed
//! on the device before, and the device's flush covers what has completed, from any connection.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Waker};

use forebay_device::{Device, IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_rt::net::Stream;
use forebay_rt::sync::{Notify, Semaphore};
use forebay_units::Nanos;

use crate::channel::Channel;
use crate::exports::{Cut, ExportHandle, Exports, Peer};
use crate::handshake::{Agreement, ExportFacts, Handshake, Lookup, Refusal, Step};
use crate::inbox::Inbox;
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::perform;
use crate::tls::{TlsConfig, identity_of};
use crate::wire::{REQUEST_BYTES, Request, command, errno};

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client said goodbye, or left between two requests.
    Left,
    /// The server is stopping: what was in flight has been answered.
    Stopped,
    /// The client broke the protocol, as told.
    Broke(String),
    /// The client vanished in the middle of something, or the stream failed.
    Vanished(String),
    /// The client took longer than it may.
    TooSlow(&'static str),
}

/// What the connections of one server share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    /// Demanded of everybody when it is there.
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) total: Rc<Semaphore>,
    pub(crate) stopping: Cell<bool>,
}

impl Shared {
    pub(crate) fn new(limits: Limits, tls: Option<TlsConfig>) -> Rc<Self> {
        let limits = limits.sane();
        let total = Semaphore::new(limits.total_bytes_max);
        Rc::new(Self { limits, tls, total, stopping: Cell::new(false) })
    }
}

/// What the requests of one connection share.
pub(crate) struct Connection {
    pub(crate) shared: Rc<Shared>,
    pub(crate) device: Device,
    pub(crate) read_only: bool,
    pub(crate) agreement: Agreement,
    pub(crate) outbox: Outbox,
    budget: Rc<Budget>,
    in_flight: Cell<usize>,
    idle: Notify,
    // Last, so that the hold outlives what uses the device.
    handle: ExportHandle,
}

/// Bytes that this connection has taken out of both allowances.
struct Budget {
    own: Rc<Semaphore>,
    total: Rc<Semaphore>,
    taken_bytes: Cell<u64>,
}

impl Budget {
    /// Takes `bytes`, waiting for others to give back what they hold.
    #[inline]
    async fn take(&self, bytes: u64) {
        match self.own.try_acquire(bytes) {
            Some(permit) => permit.forget(),
            None => self.own.acquire(bytes).await.forget(),
        };
        // Should the wait for the second be given up, the first dies with the connection.
        match self.total.try_acquire(bytes) {
            Some(permit) => permit.forget(),
            None => self.total.acquire(bytes).await.forget(),
        };
        self.taken_bytes.set(self.taken_bytes.get() + bytes);
    }

    fn give_back(&self, bytes: u64) {
        self.taken_bytes.set(self.taken_bytes.get() - bytes);
        self.own.release(bytes);
        self.total.release(bytes);
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.total.release(self.taken_bytes.get());
    }
}

/// Serves one client from greeting to end. Never fails: how it ended is what it returns.
pub async fn serve_connection(stream: Stream, exports: Rc<dyn Exports>, limits: Limits) -> Ending {
    serve(Rc::new(stream), exports, Shared::new(limits, None)).await
}

pub(crate) async fn serve(
    stream: Rc<Stream>,
    exports: Rc<dyn Exports>,
    shared: Rc<Shared>,
) -> Ending {
    let limits = shared.limits;
    let partial = Rc::new(Cell::new(0));
    let channel = Channel::new(stream.clone());
    let mut inbox = Inbox::new(channel.clone(), limits.receive_buffer_bytes, partial.clone());
    let shaking = shake_hands(&stream, &channel, &mut inbox, &*exports, &shared);
    let agreed = match rt::timeout(limits.handshake_deadline, shaking).await {
        Ok(Ok(agreed)) => agreed,
        Ok(Err(ending)) => {
            stream.shutdown();
            return ending;
        }
        Err(rt::Elapsed) => {
            stream.shutdown();
            return Ending::TooSlow("the handshake took too long");
        }
    };
    let (agreement, handle) = agreed;
    let budget = Rc::new(Budget {
        own: Semaphore::new(limits.connection_bytes_max),
        total: shared.total.clone(),
        taken_bytes: Cell::new(0),
    });
    let release = Box::new({
        let budget = budget.clone();
        move |bytes| budget.give_back(bytes)
    });
    let connection = Rc::new(Connection {
        device: handle.device.clone(),
        read_only: handle.is_read_only(),
        agreement,
        outbox: Outbox::new(channel, release),
        budget,
        in_flight: Cell::new(0),
        idle: Notify::default(),
        shared,
        handle,
    });
    let sender = rt::spawn({
        let connection = connection.clone();
        async move { connection.outbox.run().await }
    });
    let watch = Rc::new(Watch::default());
    rt::spawn(watch_pace(connection.clone(), stream.clone(), partial, watch.clone()));
    if let Some(cut) = connection.handle.cut.clone() {
        rt::spawn(watch_cut(cut, stream.clone(), watch.clone()));
    }

    let mut ending = receive(&connection, &mut inbox).await;
    drop(inbox);
    connection.idle.until(|| connection.in_flight.get() == 0).await;
    connection.outbox.close();
    let sent = sender.await;
    watch.done.set(true);
    watch.changed.notify_all();
    stream.shutdown();
    if let Some(why) = watch.killed.get() {
        ending = Ending::TooSlow(why);
    } else if let (Err(e), Ending::Left | Ending::Stopped) = (sent, &ending) {
        ending = Ending::Vanished(format!("a reply could not be sent: {e}"));
    }
    ending
}

struct Opener<'a> {
    exports: &'a dyn Exports,
    peer: Peer,
    shared: &'a Shared,
    opened: Option<ExportHandle>,
}

impl Opener<'_> {
    fn allows(&self, export: &str) -> bool {
        let tls = self.shared.tls.as_ref();
        tls.is_none_or(|tls| tls.allows(self.peer.identity.as_deref(), export))
    }
}

impl Lookup for Opener<'_> {
    fn list(&mut self) -> Vec<(String, String)> {
        let entries = self.exports.list(&self.peer).into_iter();
        entries
            .filter(|entry| self.allows(&entry.name))
            .map(|entry| (entry.name, entry.description))
            .collect()
    }

    fn open(&mut self, name: &str) -> Result<ExportFacts, Refusal> {
        self.opened = None;
        if self.shared.stopping.get() {
            return Err(Refusal::ShuttingDown);
        }
        // Before anything is looked up: the answer must not tell what exists.
        if !self.allows(name) {
            return Err(Refusal::Denied);
        }
        let handle = self.exports.open(name, &self.peer)?;
        let facts = handle.facts(&self.shared.limits);
        self.opened = Some(handle);
        Ok(facts)
    }
}

async fn shake_hands(
    stream: &Stream,
    channel: &Channel,
    inbox: &mut Inbox,
    exports: &dyn Exports,
    shared: &Shared,
) -> Result<(Agreement, ExportHandle), Ending> {
    let peer = Peer { address: stream.peer().to_owned(), uid: stream.peer_uid(), identity: None };
    let mut lookup = Opener { exports, peer, shared, opened: None };
    let mut out = Vec::new();
    let mut handshake = match shared.tls {
        None => Handshake::new(shared.limits.options_max, &mut out),
        Some(_) => Handshake::demanding_tls(shared.limits.options_max, &mut out),
    };
    loop {
        let step = handshake.advance(inbox.bytes(), &mut lookup, &mut out);
        let waits = !matches!(step, Ok(Step::More(_)));
        if waits && !out.is_empty() {
            let (sent, back) = channel.send_all(std::mem::take(&mut out)).await;
            out = back;
            out.clear();
            // Who says goodbye need not wait for the answer.
            if !matches!(step, Ok(Step::Ended(_))) {
                sent.map_err(|e| Ending::Vanished(e.to_string()))?;
            }
        }
        match step {
            Ok(Step::Need(len)) => {
                inbox.begin_message();
                match inbox.fill(len, false).await {
                    Ok(true) => {}
                    Ok(false) if shared.stopping.get() => return Err(Ending::Stopped),
                    Ok(false) if inbox.bytes().is_empty() => return Err(Ending::Left),
                    Ok(false) => return Err(Ending::Vanished("during the handshake".into())),
                    Err(e) => return Err(Ending::Vanished(e.to_string())),
                }
            }
            Ok(Step::More(consumed)) => inbox.consume(consumed),
            Ok(Step::StartTls(consumed)) => {
                inbox.consume(consumed);
                // A good client waits for the answer. What somebody on the way put in before it
                // would else pass for a part of the encrypted conversation.
                if !inbox.bytes().is_empty() {
                    return Err(Ending::Broke("bytes in plain text after STARTTLS".into()));
                }
                let config = shared.tls.as_ref().expect("only then TLS is demanded");
                lookup.peer.identity = start_tls(channel, config).await?;
            }
            Ok(Step::Ended(_)) => return Err(Ending::Left),
            Ok(Step::Transmit(consumed, agreement)) => {
                inbox.consume(consumed);
                let handle = lookup.opened.take().expect("the last lookup opened it");
                return Ok((agreement, handle));
            }
            Err(e) => return Err(Ending::Broke(e.to_string())),
        }
    }
}

/// Shakes hands; the name that the client's certificate proves, when it has shown one.
async fn start_tls(channel: &Channel, config: &TlsConfig) -> Result<Option<String>, Ending> {
    let told = |e: io::Error| match e.kind() {
        io::ErrorKind::InvalidData => Ending::Broke(e.to_string()),
        _ => Ending::Vanished(format!("during the TLS handshake: {e}")),
    };
    let connection = config.connection().map_err(|e| Ending::Broke(e.to_string()))?;
    channel.wrap(connection).await.map_err(told)?;
    let certificate = channel.session().and_then(|session| session.peer_certificate());
    let identity = certificate.map(|der| identity_of(&der)).transpose().map_err(Ending::Broke)?;
    Ok(identity.flatten())
}

/// Takes requests until the client leaves or breaks a rule.
async fn receive(connection: &Rc<Connection>, inbox: &mut Inbox) -> Ending {
    let vanished = |e: io::Error| Ending::Vanished(e.to_string());
    let mid_request = || Ending::Vanished("in the middle of a request".into());
    loop {
        inbox.begin_message();
        if inbox.bytes().len() < REQUEST_BYTES {
            match inbox.fill(REQUEST_BYTES, false).await {
                Ok(true) => {}
                Ok(false) if connection.shared.stopping.get() => return Ending::Stopped,
                Ok(false) if inbox.bytes().is_empty() => return Ending::Left,
                Ok(false) => return mid_request(),
                Err(e) => return vanished(e),
            }
        }
        let request = match Request::decode(inbox.bytes()) {
            Ok(request) => request,
            Err(e) => return Ending::Broke(e.to_string()),
        };
        inbox.consume(REQUEST_BYTES);
        if request.command == command::DISC {
            return Ending::Left;
        }
        let payload_bytes =
            if request.command == command::WRITE { u64::from(request.len_bytes) } else { 0 };
        let limits = &connection.shared.limits;
        // A little too much is refused politely; as much as nobody may send is not even read.
        if payload_bytes > 2 * u64::from(limits.request_max_bytes) {
            return Ending::Broke(format!("a write of {payload_bytes} bytes"));
        }
        let verdict = if connection.shared.stopping.get() {
            Err(perform::refuse(errno::ESHUTDOWN, "the server is shutting down"))
        } else {
            perform::check(connection, &request)
        };
        let charge_bytes = match verdict {
            Ok(()) => perform::charge_bytes(&request, limits),
            Err(_) => perform::BASE_CHARGE_BYTES,
        };
        connection.budget.take(charge_bytes).await;
        if let Err(refusal) = verdict {
            // Some clients take an answer before they have sent everything for a broken server.
            let skipped = inbox.skip(payload_bytes).await;
            perform::answer_refusal(connection, &request, &refusal, charge_bytes);
            match skipped {
                Ok(true) => continue,
                Ok(false) => return mid_request(),
                Err(e) => return vanished(e),
            }
        }
        let mut payload = None;
        if request.command == command::WRITE {
            let into = IoBuf::recycled(request.len_bytes as usize);
            match inbox.take(into).await {
                Ok(Some(whole)) => payload = Some(whole.freeze()),
                Ok(None) => {
                    connection.budget.give_back(charge_bytes);
                    return mid_request();
                }
                Err(e) => {
                    connection.budget.give_back(charge_bytes);
                    return vanished(e);
                }
            }
        }
        start(connection, request, payload, charge_bytes);
    }
}

/// Starts a request. It is polled once here: one that needs no waiting costs no task.
#[inline]
fn start(
    connection: &Rc<Connection>,
    request: Request,
    payload: Option<IoBytes>,
    charge_bytes: u64,
) {
    connection.in_flight.set(connection.in_flight.get() + 1);
    let running = connection.clone();
    let mut future = Box::pin(async move {
        perform::perform(&running, &request, payload, charge_bytes).await;
        let left = running.in_flight.get() - 1;
        running.in_flight.set(left);
        if left == 0 {
            running.idle.notify_all();
        }
    });
    if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        rt::spawn_detached(future);
    }
}

#[derive(Default)]
struct Watch {
    done: Cell<bool>,
    changed: Notify,
    killed: Cell<Option<&'static str>>,
}

/// Ends a connection whose export is taken away: no further requests, and in a while no waiting
/// for a client that does not take its last replies.
async fn watch_cut(cut: Rc<Cut>, stream: Rc<Stream>, watch: Rc<Watch>) {
    const PATIENCE: Nanos = Nanos::from_secs(5);
    let over = Box::pin(watch.changed.until(|| watch.done.get()));
    if let rt::Either::Right(_) = rt::select(Box::pin(cut.made()), over).await {
        return;
    }
    stream.shutdown_receive();
    if rt::timeout(PATIENCE, watch.changed.until(|| watch.done.get())).await.is_err() {
        stream.shutdown();
    }
}

/// Ends a connection whose client stands still in the middle of a request, or lets others wait
/// for the memory of replies that it does not take. Looks twice per deadline, so that the way of
/// the requests themselves needs no timers.
async fn watch_pace(
    connection: Rc<Connection>,
    stream: Rc<Stream>,
    partial: Rc<Cell<u64>>,
    watch: Rc<Watch>,
) {
    let half = Nanos(connection.shared.limits.stall_deadline.0 / 2 + 1);
    let mut seen = (0, 0);
    let mut same = (0, 0);
    while !watch.done.get() {
        if rt::timeout(half, watch.changed.notified()).await.is_ok() {
            continue;
        }
        let now = (partial.get(), connection.outbox.sending());
        same.0 = if now.0 != 0 && now.0 == seen.0 { same.0 + 1 } else { 0 };
        same.1 = if now.1 != 0 && now.1 == seen.1 { same.1 + 1 } else { 0 };
        seen = now;
        let blocks_others = connection.shared.total.has_waiters();
        let why = match same {
            (2.., _) => "a request took too long to arrive",
            (_, 2..) if blocks_others => "replies were not taken while others wait for memory",
            _ => continue,
        };
        watch.killed.set(Some(why));
        stream.shutdown();
        return;
    }
}
