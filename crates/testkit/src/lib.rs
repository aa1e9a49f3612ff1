#![doc = include_str!("../README.md")]

mod probe;
mod shelf;

pub use probe::{Answer, Command, Decision, Probe, Script};
pub use shelf::Shelf;
