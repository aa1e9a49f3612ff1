//! Synchronous clients of many datasets on one log device.
//!
//! The log is Forebay's own, run as it is in a pool over simulated devices; or a model of the ZFS
//! intent log, which keeps a chain of blocks for each dataset.

use crate::LabError;
use crate::responses::Percentiles;
use forebay_flash::{Chance, DeviceSpec};
use serde::{Deserialize, Serialize};

mod chain;
mod chains;
mod pattern;
mod stream;

pub use pattern::{Pattern, Seeks};

/// Which log the clients write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLayout {
    /// A chain for each dataset, modelled.
    Chains(ChainRules),
    /// Forebay's intent log: one stream for all volumes. The product's own code runs.
    Stream,
}

/// How a chain uses its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChainRules {
    /// OpenZFS 2.1: only the used part of a block is written, and four allocators share the device,
    /// each with its own metaslab; a dataset belongs to one of them.
    OpenZfs21,
    /// ZFS of 2010: blocks are written whole, from one metaslab.
    WholeBlocks,
}

impl ChainRules {
    /// Allocators that share the log device.
    fn allocators(self) -> usize {
        match self {
            Self::OpenZfs21 => 4,
            Self::WholeBlocks => 1,
        }
    }
}

/// One load on one log device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zil {
    /// The log device at full size.
    pub device: DeviceSpec,
    /// How many times smaller its model is; 0: as small as stays faithful.
    #[serde(default)]
    pub scale: u32,
    /// Seed of device and clients.
    #[serde(default)]
    pub seed: u64,
    /// Datasets, one synchronous client each.
    pub datasets: u32,
    /// Which log they write to.
    pub layout: LogLayout,
    /// Mean time a client thinks between commits, in microseconds.
    pub think_us: f64,
    /// Commits that are counted.
    pub commits: u64,
}

/// What the clients and the device saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ZilOutcome {
    /// Commits a second, over all datasets.
    pub commits_s: f64,
    /// Mean time from commit to its completion, in milliseconds.
    pub mean_ms: f64,
    /// How long commits took.
    pub commits: Percentiles,
    /// Bytes written to the device for each byte committed.
    pub overhead: f64,
    /// Media bytes for each byte written to the device.
    pub amplification: f64,
    /// The writes at the device.
    pub pattern: Pattern,
}

/// Datasets of one run.
const MAX_DATASETS: u32 = 1_000;
/// Bytes of each client's file or volume, which is written from front to end again and again.
const FILE_BYTES: u64 = 64 << 20;
/// The largest write of a client.
const MAX_WRITE_BYTES: u64 = 128 << 10;
/// Sizes of the clients' writes and their shares in percent: the load under which the log device of
/// OpenZFS was recorded.
const SIZES: [(u64, f64); 6] = [
    (4 << 10, 70.0),
    (8 << 10, 10.0),
    (16 << 10, 8.0),
    (32 << 10, 5.0),
    (64 << 10, 4.0),
    (MAX_WRITE_BYTES, 3.0),
];

/// A synchronous client: the same sizes and pauses whatever the log.
#[derive(Clone, Debug)]
struct Client {
    chance: Chance,
    think_us: f64,
}

impl Client {
    fn new(zil: &Zil, dataset: u32) -> Self {
        let seed = crate::hash::mix(zil.seed.wrapping_add(u64::from(dataset)));
        Self { chance: Chance::derive(seed, "client"), think_us: zil.think_us }
    }

    /// A pause from 0 to twice the mean.
    fn think_ns(&mut self) -> u64 {
        (self.chance.unit() * 2.0 * self.think_us * 1e3) as u64
    }

    /// Bytes of the next write.
    fn len_bytes(&mut self) -> u64 {
        let mut percent = self.chance.unit() * 100.0;
        for (bytes, share) in SIZES {
            if percent < share {
                return bytes;
            }
            percent -= share;
        }
        MAX_WRITE_BYTES
    }
}

impl Zil {
    fn check(&self) -> Result<(), LabError> {
        self.device.check()?;
        if !(1..=MAX_DATASETS).contains(&self.datasets) {
            return Err(LabError::field("zil", "datasets", self.datasets, "from 1 to 1,000"));
        }
        if self.commits == 0 {
            return Err(LabError::field("zil", "commits", self.commits, "at least 1"));
        }
        if !(0.0..=1e9).contains(&self.think_us) {
            return Err(LabError::field("zil", "think_us", self.think_us, "from 0 to 1e9"));
        }
        Ok(())
    }

    /// Runs it.
    pub fn run(&self) -> Result<ZilOutcome, LabError> {
        self.check()?;
        match self.layout {
            LogLayout::Chains(rules) => chains::run(self, rules),
            LogLayout::Stream => stream::run(self),
        }
    }
}

#[cfg(test)]
mod tests;
