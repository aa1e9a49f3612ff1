#![doc = include_str!("../README.md")]

mod conditions;
mod content;
mod detect;
mod health;
mod job;
mod latency;
mod line;
mod matrix;
mod page;
mod part;
mod plan;
pub mod power_cut;
mod procedure;
mod purge;
mod purpose;
mod record;
mod run;
mod steady;
mod verdict;

pub use conditions::{Conditions, Protection, TargetKind, WriteCache};
pub use content::Content;
pub use detect::{Detector, Finding, Sign, findings};
pub use health::{Amplification, Counted, Health, Reading};
pub use job::{Ended, Job, Measured, Sample, Sync};
pub use latency::Latency;
pub use matrix::{MixCell, PtsTest, pts_steadiness};
pub use page::{comparison, results};
pub use part::Part;
pub use plan::{MIN_SPAN_BYTES, Pattern, Plan, PlanError, PlanFor, Profile, Step, StepKind};
pub use procedure::{Procedure, Stage};
pub use purge::{
    Purge, PurgeRefusal, Sanitize, SanitizeState, may_format, may_sanitize, may_secure_erase,
    namespaces, sanitize_state,
};
pub use purpose::{Figure, Purpose, Threshold};
pub use record::{LogDamage, Qualification, Record, encode, read_log};
pub use run::{Observer, Outcome, Power, Progress, Traffic, run_step};
pub use steady::{Round, Steadiness, WINDOW_ROUNDS, steadiness};
pub use verdict::{Answer, Reason, Verdict, verdict};

#[cfg(test)]
mod tests;
