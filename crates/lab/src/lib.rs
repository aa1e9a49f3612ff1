#![doc = include_str!("../README.md")]

pub mod bench;
pub mod catalogue;
pub mod cut;
mod drive;
mod error;
mod experiments;
mod files;
mod hash;
pub mod hybrid;
pub mod load;
pub mod logs;
pub mod mirror;
mod operations;
pub mod outages;
mod output_file;
pub mod queues;
pub mod recorded;
pub mod responses;
mod sensitivity;
pub mod shared;
mod shrink;
pub mod simulate;
mod sparse_disk;
pub mod sweep;
pub mod task;
pub mod timeline;
pub mod wear;
pub mod zil;

pub use error::{ArgumentError, FileAction, GridError, LabError};
pub use files::is_same_file;
pub use output_file::OutputFile;
