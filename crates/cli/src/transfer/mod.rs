//! Transfers: streams of volumes between a pool and standard input or output, in frames on the
//! control socket (`docs/control.md`) or in this process. At most a few records are in memory, the
//! end of a client ends its transfer, and no pool is closed while a transfer uses it. Who calls:
//! `crate::pools` as the server, `crate::pool_access` as the client.

mod frames;
mod open;
mod remote;
mod serve;

pub use open::Transfers;
pub use remote::{RemoteReceive, RemoteSend};
pub use serve::{Incoming, Outgoing, serve_receive, serve_send};
