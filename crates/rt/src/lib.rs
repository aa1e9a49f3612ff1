#![doc = include_str!("../README.md")]

mod busy_poll;
mod compute;
pub mod doorbell;
mod executor;
mod mapping_guard;
pub mod net;
mod polls;
mod ring;
pub mod signal;
mod slice;
pub mod sync;
pub mod sys;
mod time;
mod timer;
pub mod uring;
mod worker;

pub use compute::{aside, close_aside, compute};
pub use executor::{
    JoinHandle, Runtime, halt, is_simulated, model_work, spawn, spawn_detached, yield_now,
};
pub use futures_channel::{mpsc, oneshot};
pub use futures_util::future::{Either, join, join_all, select};
pub use futures_util::stream::{FuturesUnordered, StreamExt};
pub use mapping_guard::MappingGuard;
pub use polls::{LongPolls, long_polls};
pub use slice::Slices;
pub use time::{
    Elapsed, now, now_with_suspension, sleep, sleep_until, stand_still, suspend, timeout,
    timeout_while_running, wall_clock,
};
pub use worker::Worker;

/// A random number from the runtime's generator, which the simulation's seed or the kernel seeds.
#[must_use]
pub fn random_u64() -> u64 {
    executor::with(|inner| inner.random_u64())
}

/// A random number below `bound` (which must not be 0).
#[must_use]
pub fn random_below(bound: u64) -> u64 {
    ((u128::from(random_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests;
