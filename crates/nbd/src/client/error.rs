//! Errors of the client: why a connection cannot be opened, and why a request fails.

use std::fmt;
use std::io;
use std::rc::Rc;

use crate::tls::{SessionError, TlsError};
use crate::uri::UriError;
use crate::wire::{WireError, reply};

/// Why a connection cannot be opened.
#[derive(Debug)]
pub enum ClientError {
    /// The URI is malformed.
    Uri(UriError),
    /// The server cannot be reached.
    Connect {
        /// The URI of the export.
        address: String,
        /// Why it cannot be reached.
        error: io::Error,
    },
    /// The connection was lost during the handshake.
    Lost(io::Error),
    /// The server broke the protocol during the handshake.
    Protocol(NegotiationError),
    /// The client's TLS cannot be set up.
    TlsSetup(TlsError),
    /// An `nbds` URI has no `tls-certificates` parameter.
    NoTlsCertificates,
    /// The server does not start TLS.
    TlsRefused(OptionError),
    /// The TLS handshake failed.
    TlsSession(SessionError),
    /// The server does not serve this export.
    Refused {
        /// The export.
        export: String,
        /// The server's error.
        error: OptionError,
    },
}

/// An error reply of a server to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    /// Which of [`crate::wire::reply`].
    pub kind: u32,
    /// The server's text; may be empty.
    pub text: String,
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            _ if !self.text.is_empty() => &self.text,
            reply::ERR_UNSUP => "it does not support this",
            reply::ERR_POLICY => "this client may not open it",
            reply::ERR_UNKNOWN => "there is no such export",
            reply::ERR_SHUTDOWN => "it is shutting down",
            reply::ERR_BLOCK_SIZE_REQD => "the client must ask for block sizes",
            kind => return write!(f, "error {} without a text", kind & 0xffff),
        })
    }
}

/// How a server broke the protocol during the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegotiationError {
    /// A message cannot be decoded.
    Wire(WireError),
    /// The server does not use the fixed newstyle handshake.
    NotFixedNewstyle,
    /// A reply answers another option than the last one.
    WrongOption {
        /// The last option.
        expected: u32,
        /// The option of the reply.
        found: u32,
    },
    /// A reply is longer than this client accepts.
    ReplyTooLong {
        /// Bytes of the reply.
        len_bytes: u32,
    },
    /// The reply to `STARTTLS` is neither an acknowledgment nor an error.
    UnexpectedStartTlsReply,
    /// Plain text follows the reply to `STARTTLS`.
    PlainTextAfterStartTls,
    /// The replies to `GO` lack the size of the export.
    NoExportSize,
    /// Bytes follow the handshake, and nothing was asked.
    DataAfterHandshake,
}

impl fmt::Display for NegotiationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(e) => e.fmt(f),
            Self::NotFixedNewstyle => f.write_str("it does not use the fixed newstyle handshake"),
            Self::WrongOption { expected, found } => {
                write!(f, "a reply to option {found}, expected one to option {expected}")
            }
            Self::ReplyTooLong { len_bytes } => write!(f, "an option reply of {len_bytes} bytes"),
            Self::UnexpectedStartTlsReply => f.write_str("an unexpected reply to STARTTLS"),
            Self::PlainTextAfterStartTls => f.write_str("plain text after STARTTLS"),
            Self::NoExportSize => f.write_str("a reply to GO without the size of the export"),
            Self::DataAfterHandshake => f.write_str("data after the handshake"),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NO_TLS: &str = "no TLS with this server";
        match self {
            Self::Uri(e) => e.fmt(f),
            Self::Connect { address, error } => {
                write!(f, "cannot connect to {address}: {error}; is the server running?")
            }
            Self::Lost(e) => write!(f, "the connection was lost during the handshake: {e}"),
            Self::Protocol(e) => write!(f, "the server broke the NBD protocol: {e}"),
            Self::TlsSetup(e) => write!(f, "{NO_TLS}: {e}"),
            Self::NoTlsCertificates => {
                write!(f, "{NO_TLS}: the URI lacks ?tls-certificates=FOLDER, with ca-cert.pem")
            }
            Self::TlsRefused(e) => write!(f, "{NO_TLS}: {e}"),
            Self::TlsSession(e) => write!(f, "{NO_TLS}: {e}"),
            Self::Refused { export, error } if error.kind == reply::ERR_TLS_REQD => {
                write!(f, "the server requires TLS for export '{export}': write nbds:// (or ")?;
                f.write_str("nbds+unix://) and ?tls-certificates=FOLDER")
            }
            Self::Refused { export, error } => {
                write!(f, "the server refuses export '{export}': {error}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

impl ClientError {
    /// The loss of a connection during the handshake. TLS reports a bad certificate in an alert,
    /// which may arrive after the TLS handshake.
    pub(super) fn lost(e: io::Error) -> Self {
        match SessionError::from_io(e) {
            Ok(e) => Self::TlsSession(e),
            Err(e) => Self::Lost(e),
        }
    }
}

impl From<WireError> for ClientError {
    fn from(e: WireError) -> Self {
        Self::Protocol(NegotiationError::Wire(e))
    }
}

impl From<NegotiationError> for ClientError {
    fn from(e: NegotiationError) -> Self {
        Self::Protocol(e)
    }
}

impl From<TlsError> for ClientError {
    fn from(e: TlsError) -> Self {
        Self::TlsSetup(e)
    }
}

impl From<UriError> for ClientError {
    fn from(e: UriError) -> Self {
        Self::Uri(e)
    }
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub enum RequestError {
    /// The server answered with an error.
    Server {
        /// Which of [`crate::wire::errno`].
        error: u32,
        /// The server's text; may be empty.
        text: String,
    },
    /// The reply to a read lacks a part of the data, or has a part twice.
    WrongLength(WrongLength),
    /// The connection was lost before the reply: the request may or may not have had its effect.
    Lost(Rc<ConnectionLoss>),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { error, text } if text.is_empty() => {
                write!(f, "the server answered error {error}")
            }
            Self::Server { error, text } => write!(f, "the server answered error {error}: {text}"),
            Self::WrongLength(e) => e.fmt(f),
            Self::Lost(loss) => write!(f, "the connection was lost: {loss}"),
        }
    }
}

impl std::error::Error for RequestError {}

/// The reply to a read with the wrong amount of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLength {
    /// Bytes that the request asked for.
    pub expected_bytes: u64,
    /// Bytes in the reply.
    pub found_bytes: u64,
}

impl fmt::Display for WrongLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server sent {} of {} bytes", self.found_bytes, self.expected_bytes)
    }
}

impl std::error::Error for WrongLength {}

impl From<WrongLength> for RequestError {
    fn from(e: WrongLength) -> Self {
        Self::WrongLength(e)
    }
}

/// Why a connection was lost after its handshake.
#[derive(Debug)]
pub enum ConnectionLoss {
    /// The server closed it.
    Closed,
    /// This client closed it: a reply was not waited for any longer.
    Abandoned,
    /// Receiving failed.
    Receive(io::Error),
    /// Sending failed.
    Send(io::Error),
    /// A message of the server cannot be decoded.
    Wire(WireError),
    /// A reply has the cookie of no request.
    UnknownCookie,
    /// A simple reply answers a read, though replies are structured.
    SimpleReplyToRead,
    /// A chunk without read data is longer than this client accepts.
    ChunkTooLong {
        /// Bytes of the chunk.
        len_bytes: u32,
    },
    /// The kind of a chunk is unknown.
    UnknownChunk {
        /// The kind.
        kind: u16,
    },
    /// A data chunk has no data.
    EmptyChunk,
    /// A chunk has data, and its request is not a read.
    UnexpectedData,
    /// A chunk has data outside the range of its request.
    DataOutsideRange,
}

impl fmt::Display for ConnectionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the server closed it"),
            Self::Abandoned => f.write_str("it was closed, because a reply did not come in time"),
            Self::Receive(e) => e.fmt(f),
            Self::Send(e) => write!(f, "a request could not be sent: {e}"),
            Self::Wire(e) => e.fmt(f),
            Self::UnknownCookie => f.write_str("a reply without a request"),
            Self::SimpleReplyToRead => f.write_str("a simple reply to a read"),
            Self::ChunkTooLong { len_bytes } => write!(f, "a reply chunk of {len_bytes} bytes"),
            Self::UnknownChunk { kind } => write!(f, "a reply chunk of unknown kind {kind}"),
            Self::EmptyChunk => f.write_str("a data chunk without data"),
            Self::UnexpectedData => f.write_str("data for a request that reads nothing"),
            Self::DataOutsideRange => f.write_str("data outside the range of the request"),
        }
    }
}

impl std::error::Error for ConnectionLoss {}

impl From<WireError> for ConnectionLoss {
    fn from(e: WireError) -> Self {
        Self::Wire(e)
    }
}
