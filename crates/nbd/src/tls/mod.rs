//! TLS 1.3 for both sides: keys and certificates enter; rustls configurations and sessions leave.
//!
//! With a client CA, a connection without a certificate of it ends before its first option. The
//! allow-list sees an identity only after signature, dates and proof of ownership were verified.
//! Sessions are not resumed, so every connection proves its identity.

pub(crate) mod allow;
mod config;
mod error;
mod identity;
mod session;

pub use allow::AllowList;
pub use config::{ClientTls, TlsConfig, TlsFiles};
pub use error::TlsError;
pub(crate) use identity::identity_of;
pub(crate) use session::Session;
pub use session::SessionError;
