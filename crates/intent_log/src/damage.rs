//! Damage that replay finds on one side of a ring.

use std::fmt;

use forebay_device::DeviceError;
use forebay_format::FormatError;
use forebay_units::{DeviceId, FrameSeq};

/// A location on one side of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideLocation {
    /// Index of the ring.
    pub ring: u8,
    /// The device's id in the pool.
    pub device: DeviceId,
    /// The device's name.
    pub device_name: String,
    /// Offset on the device, in bytes.
    pub offset_bytes: u64,
}

/// A location without the frame that belongs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideDamage {
    /// The location.
    pub location: SideLocation,
    /// What replay found there.
    pub fault: FrameFault,
}

/// Why the bytes at a location are not the frame that belongs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameFault {
    /// The device did not return them.
    Read(DeviceError),
    /// They are not a frame, or its checksum is wrong.
    Format(FormatError),
    /// The frame belongs to another pool or epoch.
    OtherLog {
        /// This pool.
        expected_pool: u64,
        /// This epoch.
        expected_epoch: u32,
        /// The frame's pool.
        found_pool: u64,
        /// The frame's epoch.
        found_epoch: u32,
    },
    /// The frame was written for another ring or offset.
    Misplaced {
        /// The frame's ring.
        found_ring: u8,
        /// The frame's offset in that ring, in bytes.
        found_position_bytes: u64,
    },
    /// The frame is older than the one that belongs there.
    Stale {
        /// The least sequence number that fits.
        expected: FrameSeq,
        /// The frame's sequence number.
        found: FrameSeq,
    },
    /// The frame's header gives a length that does not fit there.
    TooLong {
        /// That length, in bytes.
        len_bytes: u64,
    },
}

impl fmt::Display for FrameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "{error}"),
            Self::Format(error) => write!(f, "{error}"),
            Self::OtherLog { expected_pool, expected_epoch, found_pool, found_epoch } => write!(
                f,
                "log frame: pool {expected_pool:#x} epoch {expected_epoch} expected, \
                 {found_pool:#x} epoch {found_epoch} found"
            ),
            Self::Misplaced { found_ring, found_position_bytes } => write!(
                f,
                "log frame: this is a frame of ring {found_ring} offset {found_position_bytes}, \
                 misplaced"
            ),
            Self::Stale { expected, found } => {
                write!(f, "log frame: old frame {found}, {expected} expected")
            }
            Self::TooLong { len_bytes } => {
                write!(f, "log frame: {len_bytes} bytes do not fit there")
            }
        }
    }
}

impl From<DeviceError> for FrameFault {
    fn from(error: DeviceError) -> Self {
        Self::Read(error)
    }
}

impl From<FormatError> for FrameFault {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}
