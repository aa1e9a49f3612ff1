#![doc = include_str!("../README.md")]

pub mod args;
mod clock;
pub mod commands;
pub mod completion;
pub mod control;
pub mod devices;
mod escape;
pub mod explain;
pub mod failure;
pub mod fault_reason;
mod files;
pub mod leases;
pub mod log;
pub mod members;
mod memory;
pub mod pool_access;
pub mod pools;
pub mod properties;
pub mod render;
pub mod run;
pub mod serving;
pub mod signals;
pub mod state;
pub mod state_writer;
pub mod terminal;
pub mod vdevs;
