//! Disks that fail the way disks fail, in virtual time.
//!
//! What enters: block commands of the engine, a seed, and a plan of what goes wrong and when.
//! What leaves: completions in an order that the seed decides, and after a power cut the state
//! that a real disk could have been left in.
//! What always holds: a [`SimDisk`] never completes inline, keeps the durability contract of
//! `forebay_device::BlockDevice` to the letter and not one promise more; every choice follows from
//! a [`Seed`] by label, so that a new consumer of chance does not shift the old ones.
//! Who calls me: the proof harness, the lab, tests of the rooms above `device`.
//!
//! The state of a disk lives outside of any runtime. A crash is: the [`World`]'s plan cuts the
//! power, the runtime is dropped with all its tasks, [`World::draw_crash_outcome`] decides the fate of what no
//! flush had covered, [`World::power_on`], and the same disks serve a new runtime.
//!
//! A [`FlashDisk`] is the same over a device model of `flash`: its times, its wear and its own ways
//! of losing data, instead of a latency distribution and the contract's worst.
//!
//! The layers in [`faults`] wrap any device, real ones too: they use only the device trait and the
//! runtime's clock.

mod disk;
pub mod faults;
mod flash_disk;
mod latency;
mod media;
mod seed;
mod world;

pub use disk::{DiscardReads, DiskConfig, SimDisk};
pub use flash_disk::FlashDisk;
pub use latency::{Latency, LatencyModel};
pub use media::Media;
pub use seed::{Rng, Seed};
pub use world::{CommandStats, CrashPoint, Fate, Step, Unflushed, World, WorldImage, random_fates};

/// What a torn write tears into.
pub const SECTOR_LEN: usize = forebay_units::SECTOR_BYTES as usize;

#[cfg(test)]
mod tests;
