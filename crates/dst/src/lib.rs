#![doc = include_str!("../README.md")]

pub mod admin_workload;
mod administrator;
mod apart;
mod boot;
mod boot_context;
mod client;
mod contest;
pub mod corpus;
pub mod coverage;
mod disks;
pub mod exhaustive;
pub mod fault_plan;
mod figures;
pub mod generate;
mod give_up;
mod history;
mod improper;
mod judgement;
mod leaks;
mod link;
mod log_memory;
mod model;
mod next_owner;
mod object_stores;
mod operator;
mod panics;
pub mod pool;
mod pool_figures;
mod pool_refusal;
mod pool_streams;
pub mod prove;
mod race;
pub mod reference_pool;
mod refusal;
mod remote_log;
mod run;
pub mod scenario;
pub mod shrink;
mod small_list;
mod snapshot_copies;
mod snapshot_jobs;
pub mod stamp;
pub mod subject;
mod succession;
mod transport;
mod verdict;

pub use run::{Run, run, run_watched};
pub use verdict::{Failure, Kind, Outcome, Tally};

#[cfg(test)]
mod tests;
