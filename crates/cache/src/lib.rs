#![doc = include_str!("../README.md")]

mod memory;
mod policy;

pub use memory::{BlockKey, CacheCounts, Kept, MemoryCache};
pub use policy::{Policy, Replacement, UnknownPolicyName};
