#![doc = include_str!("../README.md")]

mod devices;
mod error;
mod files;
mod identity;
mod kernel;
mod nbd;
mod netlink;
pub mod ublk;
mod uses;

pub use devices::{Attached, Driver, System};
pub use error::{AttachError, MessageError};
pub use identity::{Identity, Volume};
pub use kernel::{Connect, Kernel};
pub use uses::Use;

#[cfg(test)]
mod tests;
