//! Power cuts: records that describe themselves, what a cut left of them, and what that proves.
//!
//! What enters: a device, a plan, a witness that keeps acknowledgements elsewhere. What leaves:
//! records on the device, findings about them, a bound on the probability of loss. What always
//! holds: a record counts as durable only if the device said so. Who calls: the commands.

mod bound;
mod layout;
mod ledger;
mod load;
mod sector;
mod verify;

pub use bound::{LossBound, loss_bound};
pub use layout::{CutPlan, CutSync};
pub use ledger::{Cycle, Entry, Ledger, Message, Reply, Tally};
pub use load::{CutLoad, LoadEnd, Witness, WitnessFuture, WitnessLost, write_records};
pub use verify::{CutFindings, Damage, Loss, verify_records};
