//! Errors of multihost protection.

use std::fmt;

use forebay_device::ReservationKey;

/// Why a pool must not be imported, or must not be written to any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultihostError {
    /// The heartbeat on a device changes: another machine has imported the pool.
    InUse {
        /// The device's path.
        device: String,
    },
    /// Another owner's heartbeat was found, or its reservation.
    Lost,
    /// Before a claim: the heartbeat of an owner that may not be replaced. It claims the pool now,
    /// or its heartbeat could not be read before.
    UnknownOwner,
    /// A request of an earlier process of this machine changed the device after it was read.
    Overtaken {
        /// The device's path.
        device: String,
    },
    /// An initiator has reserved a device whose key is no owner's of the pool.
    Reserved {
        /// The device's path.
        device: String,
        /// The key.
        holder: ReservationKey,
    },
}

impl fmt::Display for MultihostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { device } => write!(
                f,
                "the heartbeat on {device} changes: another machine has imported the pool"
            ),
            Self::Lost | Self::UnknownOwner => f.write_str("another process has imported the pool"),
            Self::Overtaken { device } => {
                write!(f, "a request of an earlier process of this machine reached {device} late")
            }
            Self::Reserved { device, holder } => {
                write!(f, "another machine has reserved {device} with key {holder}")
            }
        }
    }
}

impl std::error::Error for MultihostError {}
