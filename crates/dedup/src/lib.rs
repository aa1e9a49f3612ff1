#![doc = include_str!("../README.md")]

mod fingerprint;
mod index;
mod lanes;
mod references;

pub use fingerprint::{Fingerprint, FingerprintKey};
pub use index::{Index, SLOT_BYTES};
pub use references::References;
