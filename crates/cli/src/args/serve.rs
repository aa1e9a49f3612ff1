//! `forebay up` and `forebay serve`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;

use super::values::parse_size;

/// Arguments of `forebay up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Folder of the files; made when missing.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data")]
    pub dir: PathBuf,
    /// Size of the volume, when it is made [default: 8G].
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_size,
        allow_hyphen_values = true)]
    pub size_bytes: Option<u64>,
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given several times.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Vec<ListenAddress>,
    /// TLS, or knowingly none.
    #[command(flatten)]
    pub security: SecurityArgs,
}

/// How clients of the NBD listeners are told apart, and kept from others.
#[derive(Args, Clone, Debug, Default)]
pub struct SecurityArgs {
    /// Demand TLS from every client, with this certificate (PEM, and those above it).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Let only clients in that have a certificate of one of these CAs (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_ca: Option<PathBuf>,
    /// Which exports which client may open (TOML; the clients' names are in their certificates).
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    pub tls_allow: Option<PathBuf>,
    /// Listen without TLS even where other machines can connect.
    #[arg(long, conflicts_with = "tls_cert")]
    pub plaintext: bool,
}

/// Arguments of `forebay serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Look for the pools in this folder (or at this device), not among the known ones.
    #[arg(short = 'd', value_name = "DIR|DEV")]
    pub dirs: Vec<PathBuf>,
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given several times.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Vec<ListenAddress>,
    /// TLS, or knowingly none.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// The pools; all known ones when none is named.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

impl ListenAddress {
    /// Whether anybody but this machine can access it.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        matches!(self, ListenAddress::Tcp(address) if !address.ip().is_loopback())
    }
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Reads `unix:PATH` or `tcp:HOST:PORT`.
pub fn listen_address(text: &str) -> Result<ListenAddress, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        if path.is_empty() {
            return Err("a path must follow unix:".to_owned());
        }
        return Ok(ListenAddress::Unix(PathBuf::from(path)));
    }
    let Some(host_port) = text.strip_prefix("tcp:") else {
        return Err("write unix:PATH or tcp:HOST:PORT, for example tcp:127.0.0.1:10809".to_owned());
    };
    let mut found = host_port
        .to_socket_addrs()
        .map_err(|e| format!("{e}; write tcp:HOST:PORT, for example tcp:127.0.0.1:10809"))?;
    found.next().map(ListenAddress::Tcp).ok_or_else(|| format!("{host_port} has no address"))
}
