//! Storage devices as pure state machines in virtual time: flash SSDs, DRAM SSDs and disks.
//!
//! What enters: a [`DeviceSpec`], a seed, and requests stamped with the caller's clock.
//! What leaves: for each request, when it completes; after a power cut, which bytes are gone.
//! What always holds: no I/O, no clock and no chance of its own - the same spec, seed and requests
//! give the same answers on any machine; time never runs backwards; contents stay with the caller.
//! Who calls me: `lab`, which drives models with workloads, and `sim`, which puts one under a
//! simulated block device.

mod chance;
mod compress;
mod disk;
mod dram;
mod ftl;
mod link;
mod model;
mod ranges;
mod spec;
mod ssd;
mod stats;

pub use chance::Chance;
pub use disk::Disk;
pub use dram::{DramSsd, DramState};
pub use ftl::{Ftl, FtlConfig, FtlCounters, Media, Origin, WearSpread, WornOut};
pub use link::Hba;
pub use model::{
    Completion, Content, CutReport, Damage, Fate, Identity, Model, PowerOn, Request, RequestError,
    RequestKind, Status, WriteId,
};
pub use spec::*;
pub use ssd::Ssd;
pub use stats::Stats;

/// Builds whichever device a description describes, new and switched on at time 0.
///
/// # Errors
/// [`SpecError`] naming the first field that no device could have.
pub fn build(spec: &DeviceSpec, seed: u64) -> Result<Box<dyn Model>, SpecError> {
    Ok(match &spec.media {
        MediaSpec::Flash(_) => Box::new(Ssd::new(spec, seed)?),
        MediaSpec::Dram(_) => Box::new(DramSsd::new(spec, seed)?),
        MediaSpec::Disk(_) => Box::new(Disk::new(spec, seed)?),
    })
}
