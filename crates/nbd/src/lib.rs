//! NBD, both sides: a server over block devices, a client that is one, and a load generator.
//!
//! What enters: connected streams, and [`Exports`] that turn names into devices.
//! What leaves: calls of the block device trait, and replies as they complete.
//! What always holds: no bytes of a client make it panic; a client that breaks the protocol loses
//! its own connection and nothing else; a partly received write never reaches a device; memory is
//! bounded by [`Limits`]; a reply leaves only after the device's call has completed, so that the
//! device's flush covers every command that a client has seen completed, on any connection.
//! Who calls me: the binary (to serve volumes), the lab and the tests (as clients).

pub mod bench;
mod channel;
pub mod client;
mod connection;
mod exports;
pub mod handshake;
mod inbox;
mod latency;
mod limits;
pub mod message;
mod outbox;
mod perform;
mod server;
pub mod tls;
pub mod uri;
pub mod wire;

pub use client::{Client, ClientError, RequestError};
pub use connection::{Ending, serve_connection};
pub use exports::{Cut, ExportEntry, ExportHandle, Exports, FixedExports, Peer};
pub use handshake::Refusal;
pub use latency::Latencies;
pub use limits::Limits;
pub use server::{Counts, Server};
pub use tls::{AllowList, ClientTls, TlsConfig, TlsError, TlsFiles};

#[cfg(test)]
mod tests;
