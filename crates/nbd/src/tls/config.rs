//! TLS configurations of servers and clients, from PEM files.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_rt as rt;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::allow::AllowList;
use super::error::TlsError;
use super::identity::validity_of;

/// The TLS files of a server: PEM, except the allow-list, which is TOML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and the certificates between it and its CA.
    pub cert: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// The CAs of client certificates; without it, clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The [`AllowList`]; needs `client_ca`.
    pub allow: Option<PathBuf>,
}

/// The TLS configuration of a server.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    server: Arc<ServerConfig>,
    requires_client_certificate: bool,
    valid_secs: RangeInclusive<i64>,
    allow: Option<AllowList>,
}

impl TlsConfig {
    /// Reads certificate, key and client CA from PEM. With `client_ca`, clients need a certificate
    /// of that CA.
    ///
    /// # Errors
    /// A part is missing or malformed, or the key does not fit the certificate.
    pub fn from_pem(cert: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<Self, TlsError> {
        let client_ca = client_ca.map(Pem::of);
        Self::build(&Pem::of(cert), &Pem::of(key), client_ca.as_ref())
    }

    fn build(cert: &Pem, key: &Pem, client_ca: Option<&Pem>) -> Result<Self, TlsError> {
        let (chain, secret) = (cert.certificates()?, key.private_key()?);
        let valid_secs = chain
            .iter()
            .filter_map(|certificate| validity_of(certificate))
            .fold(i64::MIN..=i64::MAX, |all, one| {
                *all.start().max(one.start())..=*all.end().min(one.end())
            });
        let provider = provider();
        let builder = ServerConfig::builder_with_details(provider.clone(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3");
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(ca.roots()?), provider)
                    .build()
                    .map_err(|e| ca.blame(TlsError::ClientCa(e)))?,
            ),
        };
        let made = builder.with_single_cert(chain, secret);
        let mut server = made.map_err(|e| blame_one_of(cert, key, e))?;
        server.send_tls13_tickets = 0;
        let server = Arc::new(server);
        let requires_client_certificate = client_ca.is_some();
        Ok(Self { server, requires_client_certificate, valid_secs, allow: None })
    }

    /// Lets clients open only the exports that `allow` lists for them.
    ///
    /// # Errors
    /// Clients need no certificate, so the server would not know their identity.
    pub fn with_allow_list(mut self, allow: AllowList) -> Result<Self, TlsError> {
        if !self.requires_client_certificate {
            return Err(TlsError::AllowListWithoutClientCa);
        }
        self.allow = Some(allow);
        Ok(self)
    }

    /// Reads the configuration from files.
    ///
    /// # Errors
    /// As [`TlsConfig::from_pem`], or a file cannot be read.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let ca = files.client_ca.as_deref().map(Pem::read).transpose()?;
        let config = Self::build(&Pem::read(&files.cert)?, &Pem::read(&files.key)?, ca.as_ref())?;
        let Some(path) = &files.allow else { return Ok(config) };
        let text = String::from_utf8(read(path)?).map_err(|e| TlsError::File {
            path: path.clone(),
            error: io::Error::new(io::ErrorKind::InvalidData, e),
        })?;
        let list = AllowList::parse(&text)
            .map_err(|error| TlsError::AllowListSyntax { path: path.clone(), error })?;
        config.with_allow_list(list)
    }

    /// When the server's certificate, and those between it and its CA, are valid: seconds since
    /// 1970. At other times clients refuse the server.
    #[must_use]
    pub fn valid_secs(&self) -> RangeInclusive<i64> {
        self.valid_secs.clone()
    }

    pub(crate) fn connection(&self) -> Result<rustls::Connection, rustls::Error> {
        rustls::ServerConnection::new(self.server.clone()).map(rustls::Connection::Server)
    }

    /// Whether a client with the proven `identity` may open `export`.
    pub(crate) fn allows(&self, identity: Option<&str>, export: &str) -> bool {
        self.allow.as_ref().is_none_or(|list| list.allows(identity, export))
    }
}

/// The TLS configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
}

impl ClientTls {
    /// Reads PEM: the client trusts servers with certificates of `ca`, and shows the certificates
    /// and key of `own` to a server that asks for them.
    ///
    /// # Errors
    /// A part is missing or malformed, or the key does not fit the certificate.
    pub fn from_pem(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        Self::build(&Pem::of(ca), own.map(|(cert, key)| (Pem::of(cert), Pem::of(key))))
    }

    fn build(ca: &Pem, own: Option<(Pem, Pem)>) -> Result<Self, TlsError> {
        let builder = ClientConfig::builder_with_details(provider(), Arc::new(Clock))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_root_certificates(ca.roots()?);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let made = builder.with_client_auth_cert(cert.certificates()?, key.private_key()?);
                made.map_err(|e| blame_one_of(&cert, &key, e))?
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// Reads the files in `folder` that other NBD clients use too: `ca-cert.pem`, and
    /// `client-cert.pem` with `client-key.pem` if they exist.
    ///
    /// # Errors
    /// As [`ClientTls::from_pem`], or a file cannot be read.
    pub fn read(folder: &Path) -> Result<Self, TlsError> {
        let ca = Pem::read(&folder.join("ca-cert.pem"))?;
        let (cert, key) = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
        if !cert.exists() && !key.exists() {
            return Self::build(&ca, None);
        }
        Self::build(&ca, Some((Pem::read(&cert)?, Pem::read(&key)?)))
    }

    /// A connection to a server that must prove the name `host`.
    pub(crate) fn connection(&self, host: &str) -> Result<rustls::Connection, TlsError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| TlsError::ServerName(crate::message::bounded(host, 255).to_owned()))?;
        let made = rustls::ClientConnection::new(self.config.clone(), name);
        made.map(rustls::Connection::Client).map_err(TlsError::Certificate)
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

/// The content of a PEM file, and which file that is, if it is known.
struct Pem {
    bytes: Vec<u8>,
    path: Option<PathBuf>,
}

impl Pem {
    fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), path: None }
    }

    fn read(path: &Path) -> Result<Self, TlsError> {
        Ok(Self { bytes: read(path)?, path: Some(path.to_owned()) })
    }

    /// `error` as one of this file.
    fn blame(&self, error: TlsError) -> TlsError {
        match self.path.clone() {
            Some(path) => TlsError::InFile { path, error: Box::new(error) },
            None => error,
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match all {
            Ok(all) if all.is_empty() => Err(self.blame(TlsError::NoCertificate)),
            Ok(all) => Ok(all),
            Err(e) => Err(self.blame(TlsError::CertificatePem(e))),
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&self.bytes);
        key.map_err(|e| self.blame(TlsError::KeyPem(e)))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in self.certificates()? {
            store.add(certificate).map_err(|e| self.blame(TlsError::Certificate(e)))?;
        }
        Ok(store)
    }
}

/// What rustls has against a certificate with its key, as an error of one of them.
fn blame_one_of(cert: &Pem, key: &Pem, error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InvalidCertificate(_) => cert.blame(TlsError::Certificate(error)),
        other => key.blame(TlsError::Key(other)),
    }
}

#[allow(clippy::disallowed_methods, reason = "files are read once, before serving begins")]
fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::TlsConfig;

    #[test]
    fn certificates_of_a_chain_are_valid_together() {
        let key = KeyPair::generate().unwrap();
        let made = |from, to| {
            let mut params = CertificateParams::default();
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
            params.self_signed(&key).unwrap().pem()
        };
        let chain = made(2000, 2030) + &made(1990, 2020);
        let secret = key.serialize_pem();
        let config = TlsConfig::from_pem(chain.as_bytes(), secret.as_bytes(), None).unwrap();
        let year = |year| date_time_ymd(year, 1, 1).unix_timestamp();
        assert_eq!(config.valid_secs(), year(2000)..=year(2020));
    }
}
