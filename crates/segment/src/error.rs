//! Errors of segments.

use std::fmt;

use forebay_array::ArrayError;
use forebay_device::{Cause, DeviceError, ErrorKind, Operation};
use forebay_format::FormatError;
use forebay_units::{BLOCK_BYTES, BlockAddr, Lba, SegmentId, VolumeId};

/// An error of a segment's reader or writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// Too few segments are free.
    NoSpace,
    /// A block of a volume cannot be read.
    Block {
        /// The volume.
        volume: VolumeId,
        /// The block.
        lba: Lba,
        /// Its address.
        addr: BlockAddr,
        /// Why.
        fault: BlockFault,
    },
    /// The footer of a segment cannot be read.
    Footer {
        /// The segment.
        segment: SegmentId,
        /// Why.
        fault: FooterFault,
    },
    /// The map journal cannot be read.
    Journal {
        /// Sequence number of the first frame that cannot be read.
        seq: u64,
        /// Its address.
        addr: BlockAddr,
        /// Its location on the devices that are present.
        location: Option<RowLocation>,
        /// Why.
        fault: JournalFault,
    },
}

/// The location of a row on the devices of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLocation {
    /// Names of the devices.
    pub device_names: Vec<String>,
    /// Offset of the row on each of them, in bytes.
    pub offset_bytes: u64,
}

/// Why a block cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockFault {
    /// The array has no version of it.
    Unreadable(ArrayError),
    /// No version of it matches its checksum.
    Checksum,
    /// Its checksum is in the footer, and the footer does not cover it.
    PastFooter,
}

/// Why a footer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FooterFault {
    /// The array cannot read it.
    Unreadable(ArrayError),
    /// No version of a page matches its checksum.
    Page {
        /// Number of the page, counted from the segment's end.
        page: u32,
    },
    /// The first page gives an impossible number of pages.
    PageCount,
    /// The pages are not a footer.
    Format(FormatError),
}

/// Why a frame of the map journal cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalFault {
    /// The array cannot read it.
    Unreadable(ArrayError),
    /// The bytes are not a frame, or its checksum is wrong.
    Format(FormatError),
    /// The frame has another sequence number, or belongs to another pool.
    OtherFrame {
        /// The frame's sequence number.
        seq: u64,
        /// The frame's pool.
        pool: u64,
    },
    /// The frame does not follow the one before it.
    NotLinked,
    /// The last frame is not the one that the root names.
    WrongEnd,
    /// The frame ends past its segment.
    PastSegment,
    /// A jump's payload has a wrong length.
    JumpLength,
    /// A jump names a segment outside of the pool.
    JumpTarget {
        /// That segment.
        segment: SegmentId,
    },
    /// The frame is wrong as read, and no copy or parity repairs it.
    Unrepairable(Box<JournalFault>),
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace => write!(f, "no space left"),
            Self::Block { volume, lba, addr, fault } => {
                write!(f, "block {lba} of volume {volume} at {addr}: {fault}")
            }
            Self::Footer { segment, fault } => write!(f, "footer of segment {segment}: {fault}"),
            Self::Journal { seq, addr, location, fault } => {
                write!(f, "map journal frame {seq} at {addr}")?;
                if let Some(RowLocation { device_names, offset_bytes }) = location {
                    write!(f, " (offset {offset_bytes} of {})", device_names.join(", "))?;
                }
                write!(f, ": {fault}")
            }
        }
    }
}

impl fmt::Display for BlockFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Checksum => write!(f, "checksum mismatch, and no copy or parity repairs it"),
            Self::PastFooter => write!(f, "the segment's footer does not reach it"),
        }
    }
}

impl fmt::Display for FooterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Page { page } => {
                write!(f, "page {page} of it is wrong, and no copy or parity repairs it")
            }
            Self::PageCount => write!(f, "its first page gives an impossible number of pages"),
            Self::Format(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for JournalFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "{error}"),
            Self::Format(error) => write!(f, "{error}"),
            Self::OtherFrame { seq, pool } => write!(f, "found frame {seq} of pool {pool:x}"),
            Self::NotLinked => write!(f, "it does not follow the frame before it"),
            Self::WrongEnd => write!(f, "the frame before is not the one the root names"),
            Self::PastSegment => write!(f, "it ends past its segment"),
            Self::JumpLength => write!(f, "a jump of a wrong length"),
            Self::JumpTarget { segment } => {
                write!(f, "it jumps to segment {segment}, outside of the pool")
            }
            Self::Unrepairable(fault) => write!(f, "{fault}; no copy or parity repairs it"),
        }
    }
}

impl std::error::Error for SegmentError {}

impl From<ArrayError> for JournalFault {
    fn from(error: ArrayError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<FormatError> for JournalFault {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

/// The kind of error that a client of a volume sees.
impl From<&SegmentError> for ErrorKind {
    fn from(error: &SegmentError) -> Self {
        match error {
            SegmentError::NoSpace => Self::NoSpace,
            _ => Self::Corrupt { cause: Cause::new(error.clone()) },
        }
    }
}

impl From<SegmentError> for DeviceError {
    fn from(error: SegmentError) -> Self {
        let kind = ErrorKind::from(&error);
        let (operation, offset_bytes, len_bytes) = match error {
            SegmentError::NoSpace => (Operation::Write, 0, 0),
            SegmentError::Block { lba, .. } => (Operation::Read, lba.0 * BLOCK_BYTES, BLOCK_BYTES),
            _ => (Operation::Read, 0, 0),
        };
        DeviceError::new("pool", operation, offset_bytes, len_bytes, kind)
    }
}
