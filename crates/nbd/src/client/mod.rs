//! A client: one connection, any number of requests in flight, and a block device on top.

mod device;
mod greet;
mod pending;
mod replies;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_rt as rt;
use forebay_rt::net::{Stream, resolve};

use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::message::{BlockSizes, Extent};
use crate::outbox::Outbox;
use crate::tls::{ClientTls, TlsError};
use crate::uri::{Place, Uri, UriError};
use crate::wire::{Request, WireError, command, command_flag, reply, transmission_flag};
use pending::{Pending, Wait};

const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// What a read or write may be when the server does not say.
const DEFAULT_MAX_BYTES: u32 = 32 << 20;

/// Why there is no connection.
#[derive(Debug)]
pub enum ClientError {
    /// The URI cannot be read.
    Uri(UriError),
    /// Nobody answers there.
    Connect {
        /// Where.
        address: String,
        /// Why.
        error: io::Error,
    },
    /// The connection broke during the handshake.
    Lost(io::Error),
    /// The server said something that is not NBD.
    Protocol(String),
    /// TLS was wanted and could not be had.
    Tls(String),
    /// The server does not serve this export.
    Refused {
        /// The export.
        export: String,
        /// Which of [`crate::wire::reply`].
        kind: u32,
        /// The server's words.
        text: String,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri(e) => e.fmt(f),
            Self::Connect { address, error } => {
                write!(f, "cannot connect to {address}: {error}; is the server running?")
            }
            Self::Lost(e) => write!(f, "the connection was lost during the handshake: {e}"),
            Self::Protocol(what) => write!(f, "the server does not speak NBD as expected: {what}"),
            Self::Tls(why) => write!(f, "no TLS with this server: {why}"),
            Self::Refused { export, kind: reply::ERR_TLS_REQD, .. } => {
                write!(f, "the server demands TLS for export '{export}': write nbds:// (or ")?;
                f.write_str("nbds+unix://) and ?tls-certificates=FOLDER")
            }
            Self::Refused { export, kind, text } => {
                write!(f, "the server refuses export '{export}': {}", reason(*kind, text))
            }
        }
    }
}

/// Why a server refuses: in its own words, or what its number means.
fn reason(kind: u32, text: &str) -> String {
    let meaning = match kind {
        _ if !text.is_empty() => text,
        reply::ERR_UNSUP => "it does not know how",
        reply::ERR_POLICY => "it is not for this client",
        reply::ERR_UNKNOWN => "there is no such export",
        reply::ERR_SHUTDOWN => "it is shutting down",
        reply::ERR_BLOCK_SIZE_REQD => "it wants to be asked for block sizes",
        _ => return format!("it says nothing but error {}", kind & 0xffff),
    };
    meaning.to_owned()
}

impl std::error::Error for ClientError {}

impl From<WireError> for ClientError {
    fn from(e: WireError) -> Self {
        Self::Protocol(e.to_string())
    }
}

impl From<TlsError> for ClientError {
    fn from(e: TlsError) -> Self {
        Self::Tls(e.to_string())
    }
}

impl From<UriError> for ClientError {
    fn from(e: UriError) -> Self {
        Self::Uri(e)
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The server answered with this [`crate::wire::errno`].
    Server {
        /// The number.
        error: u32,
        /// The server's words, if it had any.
        text: String,
    },
    /// The connection ended before the answer came: whether the request had its effect is not
    /// known.
    Lost(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { error, text } => write!(f, "the server answered error {error} {text}"),
            Self::Lost(why) => write!(f, "the connection was lost: {why}"),
        }
    }
}

impl std::error::Error for RequestError {}

/// A connection to one export. Requests may be made from many tasks at once; they are in flight
/// together, and there is no order between them. Dropping it disconnects.
pub struct Client {
    core: Rc<Core>,
}

/// What the client shares with its two tasks.
struct Core {
    name: String,
    facts: greet::Facts,
    channel: Rc<Channel>,
    outbox: Outbox,
    pending: RefCell<Pending>,
    lost: RefCell<Option<String>>,
    sender_done: Cell<bool>,
    changed: rt::sync::Notify,
}

impl Client {
    /// Connects to `uri` and opens its export.
    pub async fn connect(uri: &str) -> Result<Self, ClientError> {
        let uri = Uri::parse(uri)?;
        let tls = match &uri.tls {
            None => None,
            Some(tls) => {
                let Some(folder) = &tls.certificates else {
                    let why = "the URI does not say ?tls-certificates=FOLDER, with ca-cert.pem";
                    return Err(ClientError::Tls(why.into()));
                };
                let host = match (&tls.hostname, &uri.place) {
                    (Some(name), _) => name,
                    (None, Place::Tcp { host, .. }) => host,
                    (None, Place::Unix(_)) => "localhost",
                };
                Some(ClientTls::read(folder)?.connection(host)?)
            }
        };
        let stream = match &uri.place {
            Place::Unix(path) => Stream::connect_unix(path).await,
            Place::Tcp { host, port } => connect_any(host, *port).await,
        };
        let stream =
            stream.map_err(|error| ClientError::Connect { address: uri.to_string(), error })?;
        Self::open(stream, &uri.export, &uri.to_string(), true, tls).await
    }

    /// Opens `export` over a stream that is connected already. `name` is for messages.
    pub async fn over(stream: Stream, export: &str, name: &str) -> Result<Self, ClientError> {
        Self::open(stream, export, name, true, None).await
    }

    /// The same in TLS, with a server that proves to be `host`.
    pub async fn over_tls(
        stream: Stream,
        export: &str,
        name: &str,
        tls: &ClientTls,
        host: &str,
    ) -> Result<Self, ClientError> {
        Self::open(stream, export, name, true, Some(tls.connection(host)?)).await
    }

    /// The same without structured replies, as old clients do.
    pub async fn over_simple(
        stream: Stream,
        export: &str,
        name: &str,
    ) -> Result<Self, ClientError> {
        Self::open(stream, export, name, false, None).await
    }

    async fn open(
        stream: Stream,
        export: &str,
        name: &str,
        structured: bool,
        tls: Option<rustls::Connection>,
    ) -> Result<Self, ClientError> {
        let channel = Channel::new(Rc::new(stream));
        let mut inbox = Inbox::new(channel.clone(), RECEIVE_BUFFER_BYTES, Rc::default());
        let facts = greet::greet(&channel, &mut inbox, export, structured, tls).await?;
        let core = Rc::new(Core {
            name: name.to_owned(),
            facts,
            outbox: Outbox::new(channel.clone(), Box::new(|_| {})),
            channel,
            pending: RefCell::default(),
            lost: RefCell::default(),
            sender_done: Cell::new(false),
            changed: rt::sync::Notify::default(),
        });
        rt::spawn_detached(Box::pin({
            let core = core.clone();
            async move {
                match core.outbox.run().await {
                    // The goodbye has left: the receiving task ends too.
                    Ok(()) => core.channel.shutdown(),
                    Err(e) => core.lose(&format!("a request could not be sent: {e}")),
                }
                core.sender_done.set(true);
                core.changed.notify_all();
            }
        }));
        rt::spawn_detached(Box::pin(replies::receive(core.clone(), inbox)));
        Ok(Self { core })
    }

    /// Size of the export in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core.facts.size_bytes
    }

    /// [`crate::wire::transmission_flag`]s of the export.
    #[must_use]
    pub fn flags(&self) -> u16 {
        self.core.facts.flags
    }

    /// Block sizes, where the server told them.
    #[must_use]
    pub fn block_sizes(&self) -> Option<BlockSizes> {
        self.core.facts.sizes
    }

    fn max_bytes(&self) -> u32 {
        self.core.facts.sizes.map_or(DEFAULT_MAX_BYTES, |sizes| sizes.max_bytes).max(4096)
    }

    fn can(&self, flag: u16) -> bool {
        self.core.facts.flags & flag != 0
    }

    /// Fills `buf` from `offset_bytes` on; at most the server's maximum block size.
    pub async fn read_once(&self, offset_bytes: u64, buf: IoBuf) -> Result<IoBuf, RequestError> {
        self.read_flagged(offset_bytes, buf, 0).await
    }

    /// The same with [`command_flag`]s.
    pub async fn read_flagged(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
        flags: u16,
    ) -> Result<IoBuf, RequestError> {
        let len = buf.len() as u32;
        let wait = self.submit(command::READ, flags, offset_bytes, len, None, Some(buf));
        let done = wait.await?;
        Ok(done.buf.expect("a read has a buffer"))
    }

    /// Writes `data`; at most the server's maximum block size.
    pub async fn write_once(
        &self,
        offset_bytes: u64,
        data: IoBytes,
        fua: bool,
    ) -> Result<(), RequestError> {
        let len = data.len() as u32;
        self.submit(command::WRITE, fua_flag(fua), offset_bytes, len, Some(data), None)
            .await
            .map(|_| ())
    }

    /// Makes everything durable that any client of the export has seen completed.
    pub async fn flush_once(&self) -> Result<(), RequestError> {
        self.submit(command::FLUSH, 0, 0, 0, None, None).await.map(|_| ())
    }

    /// Says that the range is not needed.
    pub async fn trim(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        fua: bool,
    ) -> Result<(), RequestError> {
        self.submit(command::TRIM, fua_flag(fua), offset_bytes, len_bytes, None, None)
            .await
            .map(|_| ())
    }

    /// Zeroes the range; `flags` are [`command_flag`]s.
    pub async fn zero(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        flags: u16,
    ) -> Result<(), RequestError> {
        self.submit(command::WRITE_ZEROES, flags, offset_bytes, len_bytes, None, None)
            .await
            .map(|_| ())
    }

    /// Says that the range will be read soon.
    pub async fn cache(&self, offset_bytes: u64, len_bytes: u32) -> Result<(), RequestError> {
        self.submit(command::CACHE, 0, offset_bytes, len_bytes, None, None).await.map(|_| ())
    }

    /// What of the range is allocated, as the server says it; only when
    /// [`Client::knows_allocation`].
    pub async fn block_status(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
        flags: u16,
    ) -> Result<Vec<Extent>, RequestError> {
        let wait = self.submit(command::BLOCK_STATUS, flags, offset_bytes, len_bytes, None, None);
        Ok(wait.await?.extents)
    }

    /// Whether block status can be asked.
    #[must_use]
    pub fn knows_allocation(&self) -> bool {
        self.core.facts.allocation_id.is_some()
    }

    /// Sends any request at all, sensible or not, and waits for its answer.
    pub async fn raw(&self, request: Request) -> Result<(), RequestError> {
        let Request { command, flags, offset_bytes, len_bytes, .. } = request;
        self.submit(command, flags, offset_bytes, len_bytes, None, None).await.map(|_| ())
    }

    /// Requests that have not been answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.core.pending.borrow().in_flight()
    }

    fn submit(
        &self,
        command: u16,
        flags: u16,
        offset_bytes: u64,
        len_bytes: u32,
        payload: Option<IoBytes>,
        buf: Option<IoBuf>,
    ) -> Wait {
        let cookie = self.core.pending.borrow_mut().begin(command, offset_bytes, buf);
        let request = Request { flags, command, cookie, offset_bytes, len_bytes };
        match payload {
            Some(payload) => self.core.outbox.push_large(&request.encode(), payload, 0),
            None => self.core.outbox.push(&request.encode(), None, 0),
        }
        Wait::new(self.core.clone(), cookie)
    }

    /// Says goodbye, and waits until that has been sent.
    pub async fn close(self) {
        let core = self.core.clone();
        drop(self);
        core.changed.until(|| core.sender_done.get()).await;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let goodbye =
            Request { flags: 0, command: command::DISC, cookie: 0, offset_bytes: 0, len_bytes: 0 };
        self.core.outbox.push(&goodbye.encode(), None, 0);
        self.core.outbox.close();
    }
}

impl Core {
    /// Fails every request in flight and all that come.
    fn lose(&self, why: &str) {
        self.lost.borrow_mut().get_or_insert_with(|| why.to_owned());
        self.channel.shutdown();
        let wakers = self.pending.borrow_mut().take_wakers();
        for waker in wakers {
            waker.wake();
        }
    }
}

fn fua_flag(fua: bool) -> u16 {
    if fua { command_flag::FUA } else { 0 }
}

async fn connect_any(host: &str, port: u16) -> io::Result<Stream> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in resolve(host, port)? {
        match Stream::connect_tcp(address).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Whether an export keeps what a flush on one connection promises for all.
#[must_use]
pub fn is_multi_conn(client: &Client) -> bool {
    client.can(transmission_flag::CAN_MULTI_CONN)
}
