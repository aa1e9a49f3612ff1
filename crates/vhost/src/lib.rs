#![doc = include_str!("../README.md")]

mod config;
mod inflight;
mod limits;
mod memory;
mod request;
mod ring;
mod server;
mod session;

pub use limits::Limits;
pub use server::{Disk, Disks, Event, Server};

#[cfg(test)]
mod tests;
