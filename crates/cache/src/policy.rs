//! The policies, each as the paper that introduced it has it.

mod arc;
mod fifo;
mod lists;
mod s3_fifo;
mod sieve;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Which block leaves a full cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Policy {
    /// The least recently used.
    #[serde(rename = "lru")]
    Lru,
    /// The oldest.
    #[serde(rename = "fifo")]
    Fifo,
    /// The oldest that was not used since a hand passed it (SIEVE, NSDI 2024).
    #[serde(rename = "sieve")]
    Sieve,
    /// Adaptive replacement (ARC, FAST 2003, figure 4).
    #[serde(rename = "arc")]
    Arc,
    /// Three queues (S3-FIFO, SOSP 2023, algorithm 1): a small one of a tenth, a main one, and a
    /// ghost as long as the main one; two hits in the small queue lead to the main one.
    #[serde(rename = "s3fifo")]
    S3Fifo,
    /// The same, where one hit leads to the main queue.
    #[serde(rename = "s3fifo-1")]
    S3FifoOne,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 6] =
        [Policy::Lru, Policy::Fifo, Policy::Sieve, Policy::Arc, Policy::S3Fifo, Policy::S3FifoOne];

    /// The name that options and properties take.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Fifo => "fifo",
            Self::Sieve => "sieve",
            Self::Arc => "arc",
            Self::S3Fifo => "s3fifo",
            Self::S3FifoOne => "s3fifo-1",
        }
    }

    /// An empty cache of `capacity` entries, at least one.
    #[must_use]
    pub fn replacement(self, capacity: u64) -> Box<dyn Replacement> {
        let capacity = capacity.max(1);
        match self {
            Self::Lru => Box::new(fifo::Fifo::new(capacity, true)),
            Self::Fifo => Box::new(fifo::Fifo::new(capacity, false)),
            Self::Sieve => Box::new(sieve::Sieve::new(capacity)),
            Self::Arc => Box::new(arc::Arc::new(capacity)),
            Self::S3Fifo => Box::new(s3_fifo::S3Fifo::new(capacity, 2)),
            Self::S3FifoOne => Box::new(s3_fifo::S3Fifo::new(capacity, 1)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No policy has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPolicyName;

impl fmt::Display for UnknownPolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no cache policy has this name")
    }
}

impl std::error::Error for UnknownPolicyName {}

impl FromStr for Policy {
    type Err = UnknownPolicyName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|p| p.name() == name).ok_or(UnknownPolicyName)
    }
}

/// A policy at work on entries, which are numbers below [`Replacement::reserve`]'s. An entry is in
/// the cache, or remembered as a ghost, or neither.
pub trait Replacement {
    /// Lets entries below `entries` occur.
    fn reserve(&mut self, entries: usize);

    /// Touches an entry; whether it was in the cache. A miss admits it. Entries that left the cache
    /// or the ghosts for it are added to `left`; some of them may be back.
    fn access(&mut self, entry: u32, left: &mut Vec<u32>) -> bool;

    /// Takes an entry out of cache and ghosts.
    fn remove(&mut self, entry: u32);

    /// Changes the number of entries in the cache, to at least one. See [`Replacement::access`] for
    /// `left`.
    fn set_capacity(&mut self, capacity: u64, left: &mut Vec<u32>);

    /// Whether the entry is in the cache.
    fn is_resident(&self, entry: u32) -> bool;

    /// Whether the entry is remembered as a ghost.
    fn is_ghost(&self, entry: u32) -> bool;

    /// Number of entries in the cache.
    fn resident(&self) -> u64;
}

#[cfg(test)]
mod tests;
