//! The side of the command.

use std::path::Path;

use forebay_rt::net::Stream;
use forebay_units::Nanos;

use super::message::{Action, Hello, PROTOCOL_VERSION, Reply, Request, Response};
use super::wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};
use crate::failure::Failure;

/// How long a server may take to say who it is. It answers at once unless it is stuck, and a
/// command that waits for ever would not say so.
const HELLO_WITHIN: Nanos = Nanos::from_secs(20);

/// A connection to a serving process.
pub struct Link {
    stream: Stream,
    /// Who it is.
    pub hello: Hello,
}

impl Link {
    /// Connects to the control socket at `path`; `None` when nobody answers there any more.
    pub async fn connect(path: &Path) -> Result<Option<Self>, Failure> {
        let shown = path.display();
        let stream = match Stream::connect_unix(path).await {
            Ok(stream) => stream,
            Err(e) => match e.raw_os_error() {
                Some(libc::ECONNREFUSED | libc::ENOENT | libc::ECONNRESET) => return Ok(None),
                _ => return Err(Failure::new(format!("control socket {shown}: {e}"))),
            },
        };
        match forebay_rt::timeout(HELLO_WITHIN, Self::greet(stream)).await {
            Ok(Ok(link)) => Ok(Some(link)),
            // It was leaving, or being killed, just as we came.
            Ok(Err(WireError::Closed)) => Ok(None),
            Ok(Err(WireError::Io(e))) if e.raw_os_error() == Some(libc::ECONNRESET) => Ok(None),
            Ok(Err(WireError::Io(e))) if e.raw_os_error() == Some(libc::EPIPE) => Ok(None),
            Ok(Err(e)) => Err(Failure::new(format!("control socket {shown}: {e}"))),
            Err(forebay_rt::Elapsed) => Err(Failure::new(format!(
                "the server at {shown} does not answer; if it is stuck, end it and try again"
            ))),
        }
    }

    /// Says hello on a fresh connection.
    pub async fn greet(stream: Stream) -> Result<Self, WireError> {
        let hello = Request {
            version: PROTOCOL_VERSION,
            pool: String::new(),
            typed: String::new(),
            action: Action::Hello,
        };
        send(&stream, &hello, REQUEST_MAX_BYTES).await?;
        match receive::<Response>(&stream, REPLY_MAX_BYTES).await? {
            Response::Ok(Reply::Hello(hello)) => Ok(Self { stream, hello }),
            Response::Ok(_) => Err(unexpected("it did not say who it is")),
            Response::Error(message) => Err(unexpected(&message)),
        }
    }

    /// Asks, and waits for the answer.
    pub async fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        let lost = |e: WireError| match e {
            WireError::Length { .. } => Failure::new(format!("the request was not sent: {e}")),
            _ => Failure::new(format!(
                "the server (process {}) went away before it answered ({e}); look at \
                 'forebay pool status' before you try again",
                self.hello.pid
            )),
        };
        send(&self.stream, request, REQUEST_MAX_BYTES).await.map_err(lost)?;
        match receive::<Response>(&self.stream, REPLY_MAX_BYTES).await.map_err(lost)? {
            Response::Ok(reply) => Ok(reply),
            Response::Error(message) => Err(Failure::new(message)),
        }
    }
}

fn unexpected(what: &str) -> WireError {
    WireError::Io(std::io::Error::other(what.to_owned()))
}
