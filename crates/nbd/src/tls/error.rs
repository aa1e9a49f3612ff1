//! Errors of setting up TLS.

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustls::pki_types::pem;
use rustls::server::VerifierBuilderError;

/// Why TLS cannot be set up.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be read.
    File {
        /// The file.
        path: PathBuf,
        /// The error of reading it.
        error: io::Error,
    },
    /// A file holds something else than it should.
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<TlsError>,
    },
    /// The PEM has no certificate.
    NoCertificate,
    /// The PEM of the certificates is malformed.
    CertificatePem(pem::Error),
    /// A certificate cannot be used.
    Certificate(rustls::Error),
    /// The certificates of the client CA cannot be used.
    ClientCa(VerifierBuilderError),
    /// The PEM has no private key, or is malformed.
    KeyPem(pem::Error),
    /// The private key does not fit the certificate.
    Key(rustls::Error),
    /// The allow-list is malformed.
    AllowListSyntax {
        /// The file of the list.
        path: PathBuf,
        /// What is wrong, and where.
        error: toml::de::Error,
    },
    /// There is an allow-list, but no client CA that proves the identity of clients.
    AllowListWithoutClientCa,
    /// The name of the server is neither a host name nor an address.
    ServerName(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::InFile { path, error } => write!(f, "{}: {error}", path.display()),
            Self::NoCertificate => f.write_str("TLS certificate: the PEM has none"),
            Self::CertificatePem(e) => write!(f, "TLS certificate: {e}"),
            Self::Certificate(e) => write!(f, "TLS certificate: {e}"),
            Self::ClientCa(e) => write!(f, "TLS client CA: {e}"),
            Self::KeyPem(e) => write!(f, "TLS key: {e}"),
            Self::Key(e) => write!(f, "TLS key: {e}"),
            Self::AllowListSyntax { path, error } => write!(f, "{}: {error}", path.display()),
            Self::AllowListWithoutClientCa => f.write_str(
                "allow-list: it needs a client CA, which proves the identity of clients",
            ),
            Self::ServerName(name) => {
                write!(f, "'{name}' cannot be the name in a certificate; use tls-hostname=")
            }
        }
    }
}

impl std::error::Error for TlsError {}
