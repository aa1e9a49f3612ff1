//! Arguments of `forebay up` and `forebay serve`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::Args;

use forebay_units::parse_bytes;

use crate::failure::Failure;

/// Arguments of `forebay up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Folder of the files; created when it is missing.
    #[arg(long, value_name = "DIR", default_value = "./forebay-data")]
    pub dir: PathBuf,
    /// Size of the volume when it is created [default: 8G].
    #[arg(long = "size", value_name = "SIZE", value_parser = parse_bytes,
        allow_hyphen_values = true)]
    pub size_bytes: Option<u64>,
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given several times.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Vec<ListenAddress>,
    /// Show a full screen of what the pool does, as 'forebay top'; q returns to lines.
    #[arg(long)]
    pub view: bool,
    /// The web page.
    #[command(flatten)]
    pub web: WebArgs,
    /// TLS.
    #[command(flatten)]
    pub security: SecurityArgs,
}

/// Where the web page is shown, and to whom.
#[derive(Args, Clone, Debug, Default)]
pub struct WebArgs {
    /// Where to show a web page of the pools, as in 127.0.0.1:8426.
    #[arg(long = "web", value_name = "HOST:PORT")]
    pub address: Option<SocketAddr>,
    /// The token that readers of the page need: the first line of this file. Addresses that other
    /// machines can reach require one.
    #[arg(long = "web-token", value_name = "FILE")]
    pub token: Option<PathBuf>,
}

/// Encryption and authentication of NBD clients.
#[derive(Args, Clone, Debug, Default)]
pub struct SecurityArgs {
    /// Require TLS of every client, with this certificate and its chain (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of one of these CAs (PEM).
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// Exports that each client may open (TOML; clients are named by their certificates).
    #[arg(long, value_name = "FILE")]
    pub tls_allow: Option<PathBuf>,
    /// Listen without TLS even on addresses that other machines can reach.
    #[arg(long, conflicts_with = "tls_cert")]
    pub plaintext: bool,
}

impl SecurityArgs {
    /// Replaces what `other` names by what it says.
    pub fn override_with(&mut self, other: &Self) {
        let file = |ours: &mut Option<PathBuf>, theirs: &Option<PathBuf>| {
            if theirs.is_some() {
                ours.clone_from(theirs);
            }
        };
        file(&mut self.tls_cert, &other.tls_cert);
        file(&mut self.tls_key, &other.tls_key);
        file(&mut self.tls_ca, &other.tls_ca);
        file(&mut self.tls_allow, &other.tls_allow);
        self.plaintext |= other.plaintext;
    }

    /// Fails when one option lacks another that it needs, or when two exclude each other.
    /// `has_list`: clients are listed in a configuration file.
    pub fn check(&self, has_list: bool) -> Result<(), Failure> {
        let lacks = |what: &str, other: &str| {
            Err(Failure::usage(format!("{what} needs {other}")).with_hint(format!("give {other}")))
        };
        match self {
            Self { tls_cert: Some(_), tls_key: None, .. } => lacks("--tls-cert", "--tls-key"),
            Self { tls_cert: None, tls_key: Some(_), .. } => lacks("--tls-key", "--tls-cert"),
            Self { tls_cert: None, tls_ca: Some(_), .. } => lacks("--tls-ca", "--tls-cert"),
            Self { tls_ca: None, tls_allow: Some(_), .. } => lacks("--tls-allow", "--tls-ca"),
            Self { tls_ca: None, .. } if has_list => lacks("a list of clients", "--tls-ca"),
            Self { tls_cert: Some(_), plaintext: true, .. } => {
                Err(Failure::usage("plain text and TLS exclude each other")
                    .with_hint("leave out --plaintext, or certificate and key"))
            }
            _ => Ok(()),
        }
    }
}

/// Arguments of `forebay serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Read listeners, TLS, limits and pools from this file (TOML); options win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the file (/etc/forebay/forebay.toml unless --config names another), and end.
    #[arg(long)]
    pub check: bool,
    /// With --check: print the settings that would hold, as versioned JSON.
    #[arg(long, requires = "check")]
    pub json: bool,
    /// Look for the pools in this folder (or on this device), not among the known ones.
    #[arg(short = 'd', value_name = "DIR|DEV")]
    pub dirs: Vec<PathBuf>,
    /// Where to listen: unix:PATH or tcp:HOST:PORT; may be given several times.
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub listen: Vec<ListenAddress>,
    /// Where to answer scrapes of Prometheus and its like, as in 127.0.0.1:9816.
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics: Option<SocketAddr>,
    /// The web page.
    #[command(flatten)]
    pub web: WebArgs,
    /// Serve virtual machines too: a vhost-user-blk socket DIR/POOL/VOLUME.sock for each volume.
    #[arg(long, value_name = "DIR")]
    pub vhost_user: Option<PathBuf>,
    /// TLS.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// The pools. Without a name, 'forebay serve' serves all known ones.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
}

/// Arguments of `forebay standby`.
#[derive(Args, Debug)]
pub struct StandbyArgs {
    /// Take the pool from a machine that is silent and did not export it. Without this the standby
    /// waits until that machine exports it.
    #[arg(long)]
    pub take_over: bool,
    /// As for serving.
    #[command(flatten)]
    pub serve: ServeArgs,
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
    /// Whether other machines can reach it.
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
