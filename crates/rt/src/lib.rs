//! The executor, and the sole owner of time, threads, sockets and chance.
//!
//! What enters: futures, and (in production) io_uring submissions.
//! What leaves: their results, in an order that the seed alone decides under simulation.
//! What always holds: one thread runs all tasks of a runtime; the engine cannot tell which driver
//! is below; dropping a [`Runtime`] drops every task, which is what a crash is.
//! Who calls me: every room that waits for something.
//!
//! [`Runtime::real`] drives io_uring. [`Runtime::simulated`] keeps virtual time: when no task is
//! ready the clock jumps to the next timer, and among ready tasks a seeded generator chooses.

mod compute;
mod executor;
pub mod net;
mod patience;
pub mod signal;
pub mod sync;
mod time;
pub mod uring;

pub use compute::{aside, compute};
pub use executor::{JoinHandle, Runtime, halt, is_simulated, spawn, spawn_detached, yield_now};
pub use futures_channel::{mpsc, oneshot};
pub use futures_util::future::{Either, join, join_all, select};
pub use futures_util::stream::{FuturesUnordered, StreamExt};
pub use time::{
    Elapsed, now, now_with_suspension, sleep, sleep_until, suspend, timeout, wall_clock,
};

/// A random number from the runtime's generator: seeded under simulation, from the kernel else.
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
