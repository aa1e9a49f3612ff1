//! NBD URIs: `nbd+unix:///EXPORT?socket=PATH` and `nbd://HOST[:PORT]/EXPORT`; and in TLS
//! `nbds+unix://` and `nbds://`, with `tls-certificates=FOLDER` and `tls-hostname=NAME` after `?`.

use std::fmt;
use std::path::PathBuf;

/// The port of NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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

/// What an `nbds` URI says of TLS.
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
    pub place: Place,
    /// The export; may be empty.
    pub export: String,
    /// TLS is demanded, and how.
    pub tls: Option<UriTls>,
}

/// Text that is no such URI, and how one looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriError(String);

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; write for example nbd+unix:///tank/vol?socket=/run/forebay.sock or \
             nbd://127.0.0.1:10809/tank/vol",
            self.0
        )
    }
}

impl std::error::Error for UriError {}

impl Uri {
    /// Reads a URI.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let bad = |why: &str| UriError(format!("'{}' {why}", crate::message::bounded(text, 200)));
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("is not an NBD URI"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(path).ok_or_else(|| bad("has a bad % escape"))?;
        if export.len() > crate::wire::MAX_STRING_BYTES {
            return Err(bad("names an export longer than 4096 bytes"));
        }
        let parameter = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| decode(value))
        };
        let tls = match scheme.starts_with("nbds") {
            false => None,
            true => {
                let bad = || bad("has a bad % escape");
                let certificates = parameter("tls-certificates").map(|v| v.ok_or_else(bad));
                let hostname = parameter("tls-hostname").map(|v| v.ok_or_else(bad));
                let certificates = certificates.transpose()?.map(PathBuf::from);
                Some(UriTls { certificates, hostname: hostname.transpose()? })
            }
        };
        let place = match scheme {
            "nbd+unix" | "nbds+unix" => {
                if !authority.is_empty() {
                    return Err(bad("has a host before its path"));
                }
                let socket = parameter("socket");
                let path = socket.ok_or_else(|| bad("does not say ?socket=PATH"))?;
                let path = path.filter(|path| !path.is_empty());
                Place::Unix(path.ok_or_else(|| bad("has a bad socket path"))?.into())
            }
            "nbd" | "nbds" => {
                let (host, port) = match authority.strip_prefix('[') {
                    Some(rest) => {
                        let (host, rest) = rest.split_once(']').ok_or_else(|| bad("lacks a ]"))?;
                        (host, rest.strip_prefix(':'))
                    }
                    None => match authority.split_once(':') {
                        Some((host, port)) => (host, Some(port)),
                        None => (authority, None),
                    },
                };
                if host.is_empty() {
                    return Err(bad("names no host"));
                }
                let port = match port {
                    Some(digits) => digits.parse().map_err(|_| bad("has a bad port"))?,
                    None => DEFAULT_PORT,
                };
                Place::Tcp { host: host.to_owned(), port }
            }
            _ => return Err(bad("is neither nbd://, nbds:// nor one of them with +unix")),
        };
        Ok(Self { place, export, tls })
    }
}

/// Undoes % escapes; `None` when one is broken or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
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
        match &self.place {
            Place::Unix(path) => {
                write!(f, "{nbd}+unix:///{}?socket={}", self.export, path.display())
            }
            Place::Tcp { host, port } if host.contains(':') => {
                write!(f, "{nbd}://[{host}]:{port}/{}", self.export)
            }
            Place::Tcp { host, port } => write!(f, "{nbd}://{host}:{port}/{}", self.export),
        }
    }
}
