#![doc = include_str!("../README.md")]

pub mod cache_device;
pub mod checksum;
pub mod config;
mod cursor;
pub mod dram;
mod error;
pub mod fingerprints;
pub mod footer;
pub mod journal;
pub mod label;
pub mod log_frame;
pub mod map_record;
pub mod objects;
pub mod packed;
mod ranges;
pub mod receiving;
pub mod snapshot;
pub mod stream;
pub mod superblock;
mod varint;

pub use cursor::{Decoder, Encoder};
pub use error::{FooterFlaw, FormatError, FormatFlaw, LogFlaw, MapFlaw};

#[cfg(test)]
mod tests;
