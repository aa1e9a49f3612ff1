#![doc = include_str!("../README.md")]
#![allow(clippy::disallowed_methods)] // an offline tool: wall time, processes, its own files

pub mod compile;
pub mod edit;
pub mod finder;
mod operators;
pub mod patches;
pub mod probes;
mod process;
pub mod results;
pub mod session;
pub mod subject;
pub mod switch;
pub mod tree;
mod values;

#[cfg(test)]
mod patch_tests;
#[cfg(test)]
mod tests;
