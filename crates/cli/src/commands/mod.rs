//! Commands: one file for each group of verbs.
//!
//! What enters: parsed arguments, and access to pools. What leaves: an [`Outcome`] with the text
//! for standard output. What always holds: a pool that was opened for a command is closed before
//! its text is printed. Who calls: `crate::run`.

mod attach;
mod bench;
mod doctor;
mod events;
mod import;
mod iostat;
mod late_pools;
mod log_target;
mod outcome;
mod output;
mod pages;
mod pool;
mod qualify;
mod report;
mod requests;
mod scan;
mod serve;
mod snapshot;
mod status;
mod top;
mod trace;
mod transfer;
mod up;
mod volume;
mod witness;

pub use attach::{attach, detach};
pub use bench::bench_nbd;
pub use doctor::{doctor, doctor_without_pools};
pub use log_target::log_target;
pub use outcome::Outcome;
pub use pages::man;
pub use pool::pool;
pub use qualify::{disk_folder, drive_health, qualify};
pub use report::report;
pub use serve::{check_service, serve, standby};
pub use top::top;
pub use trace::{record_pool, trace};
pub use up::up;
pub use volume::volume;
pub use witness::witness;

use crate::failure::Failure;

/// The refusal of `--scale` beside a device that is not of the catalogue.
fn scale_refusal(target: &str) -> Failure {
    Failure::usage(format!("--scale belongs to sim:NAME, and {target} has a size of its own"))
}
