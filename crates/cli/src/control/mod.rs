//! Control socket: requests of commands to the process that serves a pool. `docs/control.md`
//! describes the bytes.
//!
//! What enters: requests from commands of the same user (or root), over a Unix socket.
//! What leaves: replies, one for each request, in order.
//! What always holds: a length is checked before memory is taken for it; a peer of another user
//! gets no reply; a broken request ends its own connection only.
//! Who calls: `crate::pool_access` as the client, `crate::serving` as the server.

mod client;
mod message;
mod server;
mod wire;

pub use client::Link;
pub use message::{
    Action, Hello, PROTOCOL_VERSION, Reply, Request, Response, Sample, StatusReport,
};
pub use server::{Connections, Handler, serve_control};
pub use wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};

#[cfg(test)]
mod tests;
