#![doc = include_str!("../README.md")]

mod bucket;
mod crash;
mod disk;
mod disk_state;
pub mod faults;
mod flash_disk;
mod host;
mod initiators;
mod latency;
mod media;
mod seed;
mod world;

pub use bucket::{Bucket, BucketClient, BucketConfig};
pub use crash::{CrashPoint, Fate, Unflushed, random_fates};
pub use disk::{DiscardReads, DiskConfig, SimDisk};
pub use flash_disk::FlashDisk;
pub use host::{SimHost, Supply};
pub use initiators::SharedDisk;
pub use latency::{Latency, LatencyModel};
pub use media::Media;
pub use seed::{Rng, Seed};
pub use world::{CommandStats, HeldChange, Step, World, WorldImage};

/// The unit in which writes are torn.
pub const SECTOR_LEN: usize = forebay_units::SECTOR_BYTES as usize;

#[cfg(test)]
mod tests;
