//! Proof by simulation that nothing acknowledged is lost.
//!
//! What enters: a subject (anything that makes volumes out of disks) and scenarios, written down
//! or drawn from a seed.
//! What leaves: an outcome with the first violation in words, a digest that is equal for equal
//! runs, and counts of what was visited.
//! What always holds: a scenario leaves nothing to chance; what clients know lives outside of the
//! simulated machine; a run never looks into the subject, only at its disks and its answers.
//! Who calls me: `make prove`, CI, and whoever has a seed to replay.

pub mod admin_workload;
pub mod client;
pub mod corpus;
mod disks;
pub mod exhaustive;
pub mod fault_plan;
pub mod generate;
pub mod history;
pub mod model;
mod panics;
pub mod pool;
pub mod prove;
pub mod reference_pool;
pub mod refusal;
mod run;
pub mod scenario;
pub mod shrink;
mod small_list;
pub mod stamp;
pub mod subject;
pub mod transport;
mod verdict;

pub use run::{Run, run, run_watched};
pub use verdict::{Failure, Kind, Outcome, Tally};

#[cfg(test)]
mod tests;
