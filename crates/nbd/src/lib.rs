#![doc = include_str!("../README.md")]

mod account;
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
mod server;
mod shares;
pub mod tls;
pub mod uri;
pub mod wire;

pub use account::Account;
pub use client::{Client, ClientError, Handshaken, RequestError, WrongLength};
pub use exports::{
    BitmapRun, Bitmaps, ExportEntry, ExportHandle, Exports, FixedExports, Peer, Revocation,
};
pub use handshake::Refusal;
pub use limits::Limits;
pub use server::{Counts, Denials, Offenses, Server};
pub use tls::{AllowList, ClientTls, TlsConfig, TlsError, TlsFiles};

#[cfg(test)]
mod tests;
