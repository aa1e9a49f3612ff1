//! The command's side of the control socket.

use std::path::Path;

use forebay_nbd::Handshaken;
use forebay_rt::net::Stream;
use forebay_units::Nanos;

use super::message::{Action, Hello, PROTOCOL_VERSION, Reply, Request, Response};
use super::wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};
use crate::failure::{ErrorCode, Failure};

/// How long a server may take to answer hello. A server that is not stuck answers at once.
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(20);

/// A connection to a serving process.
pub struct Link {
    stream: Stream,
    /// What the server is and serves.
    pub hello: Hello,
}

impl Link {
    /// Connects to the control socket at `path`; `None` when its server has ended.
    pub async fn connect(path: &Path) -> Result<Option<Self>, Failure> {
        let shown = path.display();
        let stream = match Stream::connect_unix(path).await {
            Ok(stream) => stream,
            Err(e) => match e.raw_os_error() {
                Some(libc::ECONNREFUSED | libc::ENOENT | libc::ECONNRESET) => return Ok(None),
                _ => return Err(unreachable(format!("control socket {shown}: {e}"))),
            },
        };
        match forebay_rt::timeout(HELLO_TIMEOUT, Self::greet(stream)).await {
            Ok(Ok(link)) => Ok(Some(link)),
            // The server ended while this command connected.
            Ok(Err(WireError::Closed)) => Ok(None),
            Ok(Err(WireError::Io(e))) if e.raw_os_error() == Some(libc::ECONNRESET) => Ok(None),
            Ok(Err(WireError::Io(e))) if e.raw_os_error() == Some(libc::EPIPE) => Ok(None),
            Ok(Err(e)) => Err(unreachable(format!("control socket {shown}: {e}"))),
            Err(forebay_rt::Elapsed) => {
                Err(unreachable(format!("the server at {shown} does not answer"))
                    .with_hint("if it is stuck, end it and try again"))
            }
        }
    }

    /// Sends hello on a new connection.
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
            Response::Ok(_) => Err(unexpected("it did not answer hello")),
            Response::Error(failure) => Err(unexpected(&failure.line())),
        }
    }

    /// Sends `request`, and waits for the reply.
    pub async fn ask(&self, request: &Request) -> Result<Reply, Failure> {
        let lost = |e: WireError| match e {
            WireError::Length { .. } => {
                Failure::new(ErrorCode::Protocol, format!("the request was not sent: {e}"))
            }
            _ => self.ended(&e),
        };
        send(&self.stream, request, REQUEST_MAX_BYTES).await.map_err(lost)?;
        match self.answer().await.map_err(lost)? {
            Response::Ok(reply) => Ok(reply),
            Response::Error(failure) => Err(failure),
        }
    }

    /// The server's next answer.
    pub async fn answer(&self) -> Result<Response, WireError> {
        receive::<Response>(&self.stream, REPLY_MAX_BYTES).await
    }

    /// The socket.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The failure of a server that went away.
    #[must_use]
    pub fn ended(&self, error: &WireError) -> Failure {
        let pid = self.hello.pid;
        unreachable(format!("the server (process {pid}) ended before it answered ({error})"))
            .with_hint("look at 'forebay pool status' before you try again")
    }

    /// Makes the connection one of the kernel's NBD client, with `volume` open.
    pub async fn into_nbd(self, volume: &str) -> Result<Handshaken, Failure> {
        let pid = self.hello.pid;
        let opening = Box::pin(async move {
            let (version, pool, typed) = (PROTOCOL_VERSION, String::new(), String::new());
            self.ask(&Request { version, pool, typed, action: Action::Nbd }).await?;
            let opened = Handshaken::over(self.stream, volume).await;
            opened.map_err(|e| {
                unreachable(format!("the server (process {pid}), for '{volume}': {e}"))
            })
        });
        forebay_rt::timeout(HELLO_TIMEOUT, opening).await.unwrap_or_else(|forebay_rt::Elapsed| {
            Err(unreachable(format!("the server (process {pid}) does not answer"))
                .with_hint("if it is stuck, end it and try again"))
        })
    }
}

fn unreachable(message: String) -> Failure {
    Failure::new(ErrorCode::ServerUnreachable, message)
}

fn unexpected(what: &str) -> WireError {
    WireError::Io(std::io::Error::other(what.to_owned()))
}
