#![doc = include_str!("../README.md")]

pub mod checksum;
pub mod config;
mod cursor;
pub mod footer;
pub mod journal;
pub mod label;
pub mod log_frame;
pub mod map_record;
mod ranges;
pub mod superblock;
mod varint;

pub use cursor::{Decoder, Encoder, FormatError};

#[cfg(test)]
mod tests;
