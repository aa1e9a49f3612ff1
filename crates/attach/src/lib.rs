#![doc = include_str!("../README.md")]

mod devices;
mod error;
mod identity;
mod kernel;
mod nbd;
mod netlink;
mod uses;

pub use devices::{Attached, System};
pub use error::{AttachError, MessageError};
pub use identity::{Identity, Volume};
pub use kernel::{Connect, Kernel};
pub use uses::Use;

#[cfg(test)]
mod tests;
