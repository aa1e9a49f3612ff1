#![doc = include_str!("../README.md")]

mod attempts;
mod chain;
mod device;
mod extents;
mod pending;
mod requests;
mod state;
mod store;

use forebay_device::{Cause, DeviceError, ErrorKind, Operation};

pub use device::ObjectDevice;
pub use store::{Answer, Store, StoreError};

/// The error of a device whose store has failed.
fn failed(
    device: &str,
    operation: Operation,
    offset_bytes: u64,
    len_bytes: u64,
    error: StoreError,
) -> DeviceError {
    let kind = match error {
        StoreError::Lost { object } if len_bytes > 0 => {
            ErrorKind::LostObject { object, offset_bytes, len_bytes }
        }
        other => ErrorKind::Layer(Cause::new(other)),
    };
    DeviceError::new(device, operation, offset_bytes, len_bytes, kind)
}
