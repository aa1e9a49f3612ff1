#![doc = include_str!("../README.md")]

mod config;
#[cfg(any(test, feature = "fuzzing"))]
mod guest;
mod inflight;
mod limits;
mod memory;
mod request;
mod ring;
mod server;
mod session;

#[cfg(feature = "fuzzing")]
pub use guest::check_ring;
pub use limits::Limits;
pub use server::{Disk, Disks, Event, Server};

#[cfg(test)]
mod tests;
