#![doc = include_str!("../README.md")]

#[cfg(feature = "module")]
mod module;
pub mod player;
pub mod tasks;
