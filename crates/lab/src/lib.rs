//! The device lab: known devices, workloads in virtual time, experiments, sweeps.
//!
//! What enters: a device by name or file, an experiment by name, a seed.
//! What leaves: results ([`forebay_report::Results`]), the same bytes for the same request on any
//! machine, and the files that hold them.
//! What always holds: every figure comes from a run of a model or from a page of the catalogue that
//! says where it is from; a request that makes no sense is answered in one line; time inside an
//! experiment is virtual.
//! Who calls me: the `forebay` binary (`forebay simulate`).

pub mod bench;
pub mod catalogue;
pub mod cut;
mod drive;
mod error;
mod experiments;
mod files;
mod hash;
pub mod load;
pub mod mirror;
pub mod shared;
mod shrink;
pub mod simulate;
pub mod sweep;
pub mod task;
pub mod timeline;
pub mod wear;
pub mod zil;

pub use error::LabError;
