#![doc = include_str!("../README.md")]

mod claim;
mod error;
mod fence;
mod heartbeat;
mod monitor;
mod poller;
mod reservation;
mod timing;

pub use claim::{Claim, LabeledDevice, check_activity, is_claimed, is_reserved};
pub use error::MultihostError;
pub use fence::Fence;
pub use heartbeat::{Owner, leave_heartbeat, read_heartbeat, write_heartbeat};
pub use monitor::{Monitor, Verdict};
pub use poller::PollMode;
pub use timing::{
    ACTIVITY_CHECK_DURATION, HEARTBEAT_INTERVAL, HEARTBEAT_VALID_FOR, RETRY_INTERVAL,
    STORE_HEARTBEAT_INTERVAL,
};
