//! NBD URIs.
//!
//! Text enters, a [`Uri`] leaves: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`,
//! and with TLS `nbds://` and `nbds+unix://`, which take `tls-certificates=FOLDER` and
//! `tls-hostname=NAME` after the `?`. The client calls it.

use std::fmt;
use std::path::PathBuf;

use crate::message::bounded;
use crate::wire::MAX_STRING_BYTES;

/// The TCP port of NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// Bytes of a wrong URI that an error shows.
const MAX_SHOWN_BYTES: usize = 200;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host and its port.
    Tcp {
        /// Name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// The TLS parameters of an `nbds` URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UriTls {
    /// The folder of the client's certificates.
    pub certificates: Option<PathBuf>,
    /// The name that the server must prove, where it is not its host.
    pub hostname: Option<String>,
}

/// A server and one of its exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The server.
    pub address: Address,
    /// The export; may be empty.
    pub export: String,
    /// The TLS parameters; `None` means plain text.
    pub tls: Option<UriTls>,
}

/// Text that is not an NBD URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriError {
    /// The text, cut to a bounded length.
    pub text: String,
    /// What is wrong with it.
    pub flaw: UriFlaw,
}

/// What is wrong with a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriFlaw {
    /// There is no `://`.
    NoScheme,
    /// The scheme is not one of NBD.
    UnknownScheme,
    /// A `%` escape is malformed, or does not give UTF-8.
    BadEscape,
    /// The name of the export is longer than the protocol allows.
    ExportTooLong,
    /// A Unix URI has a host.
    HostBeforePath,
    /// A Unix URI has no `socket` parameter.
    NoSocket,
    /// The `socket` parameter is empty or malformed.
    BadSocket,
    /// A TCP URI has no host.
    NoHost,
    /// An IPv6 address has no closing bracket.
    NoClosingBracket,
    /// The port is not a number up to 65535.
    BadPort,
}

impl fmt::Display for UriFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoScheme => "is not an NBD URI",
            Self::UnknownScheme => "is neither nbd:// nor nbds://, nor one of them with +unix",
            Self::BadEscape => "has a malformed % escape",
            Self::ExportTooLong => "names an export longer than 4096 bytes",
            Self::HostBeforePath => "has a host before its path",
            Self::NoSocket => "has no ?socket=PATH",
            Self::BadSocket => "has a malformed socket path",
            Self::NoHost => "names no host",
            Self::NoClosingBracket => "lacks a closing bracket",
            Self::BadPort => "has a malformed port",
        })
    }
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' {}; write for example nbd+unix:///tank/vol?socket=/run/forebay.sock or \
             nbd://127.0.0.1:10809/tank/vol",
            self.text, self.flaw
        )
    }
}

impl std::error::Error for UriError {}

impl Uri {
    /// Reads a URI.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let error = |flaw| UriError { text: bounded(text, MAX_SHOWN_BYTES).to_owned(), flaw };
        Self::parse_parts(text).map_err(error)
    }

    fn parse_parts(text: &str) -> Result<Self, UriFlaw> {
        let (scheme, rest) = text.split_once("://").ok_or(UriFlaw::NoScheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = unescape(path).ok_or(UriFlaw::BadEscape)?;
        if export.len() > MAX_STRING_BYTES {
            return Err(UriFlaw::ExportTooLong);
        }
        let tls = match scheme {
            "nbds" | "nbds+unix" => Some(UriTls {
                certificates: parameter(query, "tls-certificates")?.map(PathBuf::from),
                hostname: parameter(query, "tls-hostname")?,
            }),
            _ => None,
        };
        let address = match scheme {
            "nbd+unix" | "nbds+unix" => unix_address(authority, query)?,
            "nbd" | "nbds" => tcp_address(authority)?,
            _ => return Err(UriFlaw::UnknownScheme),
        };
        Ok(Self { address, export, tls })
    }
}

/// The value of `name` in `query`, without escapes.
fn parameter(query: &str, name: &str) -> Result<Option<String>, UriFlaw> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
    value.map(|value| unescape(value).ok_or(UriFlaw::BadEscape)).transpose()
}

fn unix_address(authority: &str, query: &str) -> Result<Address, UriFlaw> {
    if !authority.is_empty() {
        return Err(UriFlaw::HostBeforePath);
    }
    let path = parameter(query, "socket").map_err(|_| UriFlaw::BadSocket)?;
    match path.ok_or(UriFlaw::NoSocket)? {
        path if path.is_empty() => Err(UriFlaw::BadSocket),
        path => Ok(Address::Unix(path.into())),
    }
}

fn tcp_address(authority: &str) -> Result<Address, UriFlaw> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(UriFlaw::NoClosingBracket)?;
            (host, rest.strip_prefix(':'))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err(UriFlaw::NoHost);
    }
    let port = match port {
        Some(digits) => digits.parse().map_err(|_| UriFlaw::BadPort)?,
        None => DEFAULT_PORT,
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

/// Replaces % escapes; `None` when one is malformed or the result is not UTF-8.
fn unescape(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nbd = if self.tls.is_some() { "nbds" } else { "nbd" };
        match &self.address {
            Address::Unix(path) => {
                write!(f, "{nbd}+unix:///{}?socket={}", self.export, path.display())
            }
            Address::Tcp { host, port } if host.contains(':') => {
                write!(f, "{nbd}://[{host}]:{port}/{}", self.export)
            }
            Address::Tcp { host, port } => write!(f, "{nbd}://{host}:{port}/{}", self.export),
        }
    }
}
