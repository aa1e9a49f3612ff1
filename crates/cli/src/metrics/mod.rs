//! Metrics of a serving process for Prometheus and its like (`serve --metrics`).
//!
//! What enters: the pools at the moment of a scrape. What leaves: text. What always holds: nothing
//! here changes a pool. Who calls: the serving process. Look first at `collect.rs`.

mod collect;
mod drives;
mod exposition;
mod objects;
mod protobuf;
mod server;

pub use collect::metrics;
pub use server::{Source, metrics_site};
