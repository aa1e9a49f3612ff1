//! Control socket: requests of commands to the process that serves a pool (`docs/control.md`).
//!
//! What always holds: replies leave in the order of requests. A length is checked before memory is
//! taken for it. A peer of another user gets no reply. A broken request ends its own connection
//! only. Who calls: `crate::pool_access` as the client, `crate::serving` as the server.

mod client;
mod message;
mod server;
mod wire;

pub use client::Link;
pub use message::{
    Action, Hello, PROTOCOL_VERSION, ReceivedStream, Reply, Request, Response, Sample, SendSize,
    StatusReport,
};
pub use server::{Connections, Handler, KernelFront, serve_control};
pub use wire::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, WireError, receive, send};

#[cfg(test)]
mod tests;
