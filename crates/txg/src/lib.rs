#![doc = include_str!("../README.md")]

mod extents;
mod groups;
mod throttle;

pub use extents::{Content, ExtentMap, OverlayExtent};
pub use groups::{DirtySet, Groups};
pub use throttle::{Demand, Held, Permit, Throttle};

#[cfg(test)]
mod tests;
