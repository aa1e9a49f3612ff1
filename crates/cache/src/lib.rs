#![doc = include_str!("../README.md")]

mod device_index;
mod memory;
mod policy;

pub use device_index::{DeviceIndex, Ghosts, INDEX_ENTRY_BYTES, Indexed};
pub use memory::{BlockKey, CacheCounts, Kept, MemoryCache};
pub use policy::{Policy, Replacement, UnknownPolicyName};
