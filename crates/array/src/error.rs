//! What can go wrong in an array, for the operator and for the rooms above.

use std::fmt;

use forebay_device::DeviceError;
use forebay_units::{BlockAddr, DeviceId, SegmentId};

use crate::geometry::{GeometryError, Layout};
use crate::member::MemberState;

/// An error of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayError {
    /// The shape of a group cannot be used.
    Geometry(GeometryError),
    /// No group owns the segment: the address is wrong, or a group is missing from the pool.
    NoSuchSegment {
        /// The segment.
        segment: SegmentId,
    },
    /// No member has this id.
    NoSuchDevice {
        /// The id.
        device: DeviceId,
    },
    /// A member with this id is here already.
    DeviceInUse {
        /// The id.
        device: DeviceId,
    },
    /// A range ends past its segment.
    OutOfRange {
        /// The segment.
        segment: SegmentId,
        /// First block (or row) asked for.
        first: u32,
        /// How many.
        count: u32,
        /// How many the segment has.
        limit: u32,
    },
    /// Too many columns are missing, outdated or unreadable: the data cannot be had now.
    Unreadable {
        /// Where the range starts.
        addr: BlockAddr,
        /// Blocks asked for.
        blocks: u32,
        /// Columns that could be read.
        have: usize,
        /// Columns needed.
        need: usize,
        /// What the devices said, when they said something.
        causes: Vec<DeviceError>,
    },
    /// Too few members can be written to; nothing was written. Choose a segment of another group,
    /// or bring devices back.
    NotWritable {
        /// The segment.
        segment: SegmentId,
        /// Columns that could be written.
        have: usize,
        /// Columns needed.
        need: usize,
    },
    /// A write failed on more members than the layout can miss. What the segment got since the
    /// last good flush may be gone: put it elsewhere.
    SegmentLost {
        /// The segment.
        segment: SegmentId,
        /// What the devices said.
        causes: Vec<DeviceError>,
    },
    /// After flushing, these segments miss more columns than the layout can. What they got since
    /// the last good flush may be gone: put it elsewhere, reset the segments, and flush again.
    FlushLost {
        /// The segments.
        segments: Vec<SegmentId>,
        /// What the devices said.
        causes: Vec<DeviceError>,
    },
    /// Without this device some data could not be read any more.
    WouldLose {
        /// The device.
        device: DeviceId,
        /// A segment that would be lost (the first one).
        segment: SegmentId,
    },
    /// A device is too small for its column.
    TooSmall {
        /// The device.
        device: DeviceId,
        /// Its size.
        size_bytes: u64,
        /// The size needed.
        needed_bytes: u64,
    },
    /// The group cannot have more members.
    Full {
        /// The device that was to be added.
        device: DeviceId,
    },
    /// This needs a mirror (or a single device).
    NotMirror {
        /// The device named.
        device: DeviceId,
        /// The layout it is part of.
        layout: Layout,
    },
    /// The device is in a state in which this makes no sense.
    WrongState {
        /// The device.
        device: DeviceId,
        /// Its state.
        state: MemberState,
    },
    /// There is no open device behind the member.
    NotOpen {
        /// The device.
        device: DeviceId,
    },
}

impl fmt::Display for ArrayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Geometry(error) => write!(f, "{error}"),
            Self::NoSuchSegment { segment } => {
                write!(f, "segment {segment} belongs to no group: is a group missing?")
            }
            Self::NoSuchDevice { device } => write!(f, "the pool has no device {device}"),
            Self::DeviceInUse { device } => write!(f, "device {device} is in the pool already"),
            Self::OutOfRange { segment, first, count, limit } => write!(
                f,
                "segment {segment}: {count} from {first} on end past the {limit} that it has"
            ),
            Self::Unreadable { addr, blocks, have, need, causes } => {
                write!(
                    f,
                    "{addr}: {blocks} blocks cannot be read: {have} good columns are at hand, \
                     {need} are needed; bring devices back"
                )?;
                list(f, causes)
            }
            Self::NotWritable { segment, have, need } => write!(
                f,
                "segment {segment}: {have} devices can be written, {need} are needed; bring \
                 devices back or replace them"
            ),
            Self::SegmentLost { segment, causes } => {
                write!(f, "segment {segment}: writes failed on more devices than may be missing")?;
                list(f, causes)
            }
            Self::FlushLost { segments, causes } => {
                write!(f, "flush: segments")?;
                for segment in segments.iter().take(8) {
                    write!(f, " {segment}")?;
                }
                if segments.len() > 8 {
                    write!(f, " and {} more", segments.len() - 8)?;
                }
                write!(f, " miss more columns than may be missing")?;
                list(f, causes)
            }
            Self::WouldLose { device, segment } => write!(
                f,
                "device {device} is needed: without it segment {segment} (and perhaps others) \
                 could not be read; let rebuilding finish, or bring other devices back first"
            ),
            Self::TooSmall { device, size_bytes, needed_bytes } => write!(
                f,
                "device {device} has {size_bytes} bytes, {needed_bytes} are needed: use a larger one"
            ),
            Self::Full { device } => {
                write!(f, "device {device} cannot be added: the group has all it can have")
            }
            Self::NotMirror { device, layout } => write!(
                f,
                "device {device} is part of a {layout}: only mirrors and single devices can do this"
            ),
            Self::WrongState { device, state } => write!(f, "device {device} is {state}"),
            Self::NotOpen { device } => write!(f, "device {device} is not open"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, causes: &[DeviceError]) -> fmt::Result {
    for cause in causes {
        write!(f, "; {cause}")?;
    }
    Ok(())
}

impl std::error::Error for ArrayError {}

impl From<GeometryError> for ArrayError {
    fn from(error: GeometryError) -> Self {
        Self::Geometry(error)
    }
}
