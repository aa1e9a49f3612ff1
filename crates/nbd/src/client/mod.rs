//! The client: one connection, any number of requests in flight, and a block device on top.
//!
//! A URI or a stream enters; a [`Client`] leaves. Its requests return what the server answered, or
//! a [`RequestError`]. A server that breaks the protocol makes every request fail, and never
//! causes a panic. The load generator and the tests call it.

mod connect;
mod core;
mod device;
mod error;
mod negotiate;
mod pending;
mod replies;
mod requests;

pub use connect::Handshaken;
pub use error::{
    ClientError, ConnectionLoss, NegotiationError, OptionError, RequestError, WrongLength,
};
pub use requests::Client;
