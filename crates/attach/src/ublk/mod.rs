//! Volumes as block devices by the kernel's ublk driver, whose requests come over io_uring.
//!
//! `control` makes devices and gives them to servers, `front` serves one, `registry` knows which
//! volume a device is. A device outlives its server: the next one gets the requests that were not
//! answered.

mod abi;
mod control;
mod front;
mod registry;

pub use abi::DeviceState;
pub use control::{Control, NewDevice};
pub use front::{CharacterDevice, Front};
pub use registry::{Known, Registry};
