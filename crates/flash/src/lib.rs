#![doc = include_str!("../README.md")]

mod busy;
mod calendar;
mod chance;
mod compress;
mod disk;
mod dram;
mod ftl;
mod link;
mod model;
mod prefetch;
mod ranges;
mod spec;
mod ssd;
mod stats;
mod zoned;

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
pub use zoned::{ZoneRefusal, ZoneState, ZonedSsd};

/// Builds whichever device a description describes, new and switched on at time 0.
///
/// # Errors
/// [`SpecError`] naming the first field that no device could have.
pub fn build(spec: &DeviceSpec, seed: u64) -> Result<Box<dyn Model>, SpecError> {
    Ok(match &spec.media {
        MediaSpec::Flash(flash) if flash.zones.is_some() => Box::new(ZonedSsd::new(spec, seed)?),
        MediaSpec::Flash(_) => Box::new(Ssd::new(spec, seed)?),
        MediaSpec::Dram(_) => Box::new(DramSsd::new(spec, seed)?),
        MediaSpec::Disk(_) => Box::new(Disk::new(spec, seed)?),
    })
}
