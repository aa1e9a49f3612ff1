//! Errors of the array.

use std::fmt;

use forebay_device::DeviceError;
use forebay_units::{BlockAddr, DeviceId, Layout, SegmentId};

use crate::geometry::GeometryError;

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
        /// First block or row of the range.
        first: u32,
        /// Blocks or rows of the range.
        count: u32,
        /// Blocks or rows of the segment.
        limit: u32,
    },
    /// Too many columns are missing, outdated or unreadable.
    Unreadable {
        /// Where the range starts.
        addr: BlockAddr,
        /// Blocks of the range.
        blocks: u32,
        /// Columns that could be read.
        have: usize,
        /// Columns needed.
        need: usize,
        /// The errors of the devices, if any.
        causes: Vec<DeviceError>,
    },
    /// Too few members accept writes; nothing was written.
    NotWritable {
        /// The segment.
        segment: SegmentId,
        /// Columns that accept writes.
        have: usize,
        /// Columns needed.
        need: usize,
        /// What failed on those that cannot.
        causes: Vec<DeviceError>,
    },
    /// Members that hold a segment are missing, and those that could be written have not been
    /// rebuilt from them.
    SourcesMissing {
        /// The first such segment.
        segment: SegmentId,
    },
    /// A write failed on more members than the layout can miss. Data written to the segment since
    /// the last successful flush may be lost: the caller writes them elsewhere.
    SegmentLost {
        /// The segment.
        segment: SegmentId,
        /// The errors of the devices.
        causes: Vec<DeviceError>,
    },
    /// After a flush, these segments lack more columns than the layout can miss. Data written to
    /// them since the last successful flush may be lost. The caller writes these data elsewhere,
    /// resets the segments, and flushes again.
    FlushLost {
        /// The segments.
        segments: Vec<SegmentId>,
        /// The errors of the devices.
        causes: Vec<DeviceError>,
    },
    /// Without this device some data would become unreadable.
    WouldLose {
        /// The device.
        device: DeviceId,
        /// The first segment that would become unreadable.
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
        /// The device to add.
        device: DeviceId,
    },
    /// The operation needs a mirror or a single device.
    NotMirror {
        /// The device.
        device: DeviceId,
        /// The layout of its group.
        layout: Layout,
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
                write!(f, "segment {segment} belongs to no group")
            }
            Self::NoSuchDevice { device } => write!(f, "the pool has no device {device}"),
            Self::DeviceInUse { device } => write!(f, "device {device} is in the pool already"),
            Self::OutOfRange { segment, first, count, limit } => {
                write!(f, "segment {segment}: {count} from {first} on end past its {limit}")
            }
            Self::Unreadable { addr, blocks, have, need, causes } => {
                write!(
                    f,
                    "{addr}: {blocks} blocks cannot be read: {have} good columns are at hand, \
                     {need} are needed"
                )?;
                list(f, causes)
            }
            Self::NotWritable { segment, have, need, causes } => {
                write!(f, "segment {segment}: {have} devices can be written, {need} are needed")?;
                list(f, causes)
            }
            Self::SourcesMissing { segment } => write!(
                f,
                "segment {segment} (and perhaps others) is on no device at hand: devices that are \
                 not rebuilt yet need those that are missing"
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
                 could not be read"
            ),
            Self::TooSmall { device, size_bytes, needed_bytes } => {
                write!(f, "device {device} has {size_bytes} bytes, {needed_bytes} are needed")
            }
            Self::Full { device } => {
                write!(f, "device {device} cannot be added: the group is full")
            }
            Self::NotMirror { device, layout } => write!(
                f,
                "device {device} is part of a {layout}: this needs a mirror or a single device"
            ),
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
