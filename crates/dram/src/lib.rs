#![doc = include_str!("../README.md")]

mod device;
mod error;
mod host;
mod nut;
mod power;
mod prepare;
mod restore;
mod save;

pub use device::{DramDevice, kind_of};
pub use error::DramError;
pub use forebay_format::dram::{DramKind, DramProtection};
pub use host::{Host, Memory, OpeningMemory, RemovingMemory, ThisMachine};
pub use nut::{NutError, NutSource, UpsName};
pub use power::{PowerReading, PowerSource, READING_MAX_AGE, Reading, judge, needed_runtime_secs};
pub use prepare::{Preparation, prepare_alone, prepare_backup};
