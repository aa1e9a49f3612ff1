#![doc = include_str!("../README.md")]

mod remote;

pub use remote::RemoteStore;
