//! TLS 1.3 for both sides: keys and certificates in, rustls configurations out.
//!
//! What always holds: a server with a [`TlsConfig`] says nothing about its exports before TLS;
//! with a client CA, a connection without a certificate of it ends before the first option; the
//! identity that the allow-list sees comes from a certificate whose signature, dates and proof of
//! ownership were verified. Sessions are not resumed: every connection proves itself.

mod allow;
mod identity;
mod session;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_rt as rt;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub use allow::AllowList;
#[cfg(test)]
pub(crate) use allow::matches;
pub(crate) use identity::identity_of;
pub(crate) use session::Session;

/// Why TLS cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// A file cannot be read.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
    /// There is no certificate, or none that can be read.
    Certificate(String),
    /// There is no private key, or none that fits the certificate.
    Key(String),
    /// The allow-list cannot be read, or makes no sense here.
    AllowList(String),
    /// The name of the server is neither a host name nor an address.
    ServerName(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Certificate(why) => write!(f, "TLS certificate: {why}"),
            Self::Key(why) => write!(f, "TLS key: {why}"),
            Self::AllowList(why) => write!(f, "allow-list: {why}"),
            Self::ServerName(name) => {
                write!(f, "'{name}' is no name that a certificate could have; use tls-hostname=")
            }
        }
    }
}

impl std::error::Error for TlsError {}

/// Where the files of a server are, all of them PEM but the last, which is TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its CA.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The CAs whose clients may come in; without it everybody may.
    pub client_ca: Option<PathBuf>,
    /// See [`AllowList`]; needs `client_ca`.
    pub allow: Option<PathBuf>,
}

/// What a server needs for TLS.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
    asks_clients: bool,
    allow: Option<AllowList>,
}

impl TlsConfig {
    /// A server with these, PEM all of them. With `client_ca` clients need a certificate of it.
    ///
    /// # Errors
    /// What is not there, or does not fit together.
    pub fn from_pem(cert: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::Key(e.to_string()))?;
        let chain = certificates(cert)?;
        let provider = provider();
        let builder = ServerConfig::builder_with_details(provider.clone(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3");
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider)
                    .build()
                    .map_err(|e| TlsError::Certificate(e.to_string()))?,
            ),
        };
        let mut server =
            builder.with_single_cert(chain, key).map_err(|e| TlsError::Key(e.to_string()))?;
        server.send_tls13_tickets = 0;
        Ok(Self { server: Arc::new(server), asks_clients: client_ca.is_some(), allow: None })
    }

    /// Only what `allow` allows.
    ///
    /// # Errors
    /// Clients need no certificate, so that the list could never tell who they are.
    pub fn with_allow_list(mut self, allow: AllowList) -> Result<Self, TlsError> {
        if !self.asks_clients {
            let why = "it needs a client CA, which is what proves who a client is";
            return Err(TlsError::AllowList(why.into()));
        }
        self.allow = Some(allow);
        Ok(self)
    }

    /// The same from files.
    ///
    /// # Errors
    /// As [`TlsConfig::from_pem`], and files that cannot be read.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let ca = files.client_ca.as_deref().map(read).transpose()?;
        let config = Self::from_pem(&read(&files.cert)?, &read(&files.key)?, ca.as_deref())?;
        let Some(path) = &files.allow else { return Ok(config) };
        let text = String::from_utf8(read(path)?)
            .map_err(|e| TlsError::File { path: path.clone(), error: e.to_string() })?;
        let list = AllowList::parse(&text).map_err(|e| match e {
            TlsError::AllowList(why) => TlsError::File { path: path.clone(), error: why },
            other => other,
        })?;
        config.with_allow_list(list)
    }

    pub(crate) fn connection(&self) -> Result<rustls::Connection, rustls::Error> {
        rustls::ServerConnection::new(self.server.clone()).map(rustls::Connection::Server)
    }

    /// Whether a client that proved to be `identity` may open `export`.
    pub(crate) fn allows(&self, identity: Option<&str>, export: &str) -> bool {
        self.allow.as_ref().is_none_or(|list| list.allows(identity, export))
    }
}

/// What a client needs for TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Trusts servers with certificates of `ca`, and shows `own` (certificates and key) when it
    /// is asked to. PEM all of them.
    ///
    /// # Errors
    /// What is not there, or does not fit together.
    pub fn from_pem(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_root_certificates(roots(ca)?);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|e| TlsError::Key(e.to_string()))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, key)
                    .map_err(|e| TlsError::Key(e.to_string()))?
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// From a folder with the names that other NBD clients use too: `ca-cert.pem`, and
    /// `client-cert.pem` with `client-key.pem` when they are there.
    ///
    /// # Errors
    /// As [`ClientTls::from_pem`], and files that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, TlsError> {
        let ca = read(&folder.join("ca-cert.pem"))?;
        let (cert, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
        if !cert.exists() && !key.exists() {
            return Self::from_pem(&ca, None);
        }
        Self::from_pem(&ca, Some((&read(&cert)?, &read(&key)?)))
    }

    /// A connection to a server that must prove to be `host`.
    pub(crate) fn connection(&self, host: &str) -> Result<rustls::Connection, TlsError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::ServerName(crate::message::bounded(host, 255).to_owned()))?;
        let made = rustls::ClientConnection::new(self.config.clone(), name);
        made.map(rustls::Connection::Client).map_err(|e| TlsError::Certificate(e.to_string()))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The runtime's clock, which is virtual under simulation.
#[derive(Debug)]
struct Clock;

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(rt::wall_clock())))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(TlsError::Certificate("there is none in the PEM".into())),
        Ok(all) => Ok(all),
        Err(e) => Err(TlsError::Certificate(e.to_string())),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate).map_err(|e| TlsError::Certificate(e.to_string()))?;
    }
    Ok(store)
}

#[allow(clippy::disallowed_methods, reason = "keys are read once, before anything is served")]
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| TlsError::File { path: path.to_owned(), error: e.to_string() })
}
