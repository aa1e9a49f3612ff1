//! Fault layers: each wraps one block device and breaks chosen commands.
//!
//! What always holds: a layer does nothing until it is armed, and counts its strikes. A fault names
//! its commands, bytes and seeds, so a record of the calls replays it. The proof harness and tests
//! keep a clone of a layer's `Rc` to arm it while the pool uses it.

mod errors;
mod rot;
mod rules;
mod stack;
mod timing;
mod writes;

pub use errors::{Effect, Errors, Failure, FlushErrors, Gone, NoSpace, ReadOnly};
pub use rot::BitRot;
pub use rules::{Ops, Trigger};
pub use stack::{Fault, FaultCounts, Stack};
pub use timing::{Hung, Late, LyingFlush, Slow};
pub use writes::{LostWrites, Misdirected, Tear, TornWrites};

#[cfg(test)]
mod tests;
