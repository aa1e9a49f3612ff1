//! TLS 1.3 for both sides.
//!
//! Keys and certificates enter; rustls configurations and sessions leave. The server and the
//! client call it.
//!
//! A server with a [`TlsConfig`] says nothing about its exports before TLS. With a client CA, a
//! connection without a certificate of that CA ends before its first option. The allow-list sees
//! the identity of a certificate only after its signature, dates and proof of ownership were
//! verified. Sessions are not resumed, so every connection proves its identity.

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
