//! Errors of the log.

use std::fmt;

use forebay_format::FormatError;
use forebay_format::log_frame::{LogState, MAX_FRAME_BYTES, MAX_RINGS, MIN_RING_BYTES};
use forebay_units::{BLOCK_BYTES, DeviceId, FrameSeq, Lba, TxgId, VolumeId};

/// An error of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A value of the configuration is out of range.
    Config(ConfigError),
    /// The log refused a record; it took nothing of that append.
    BadRecord {
        /// The record's volume.
        volume: VolumeId,
        /// The record's first block.
        lba: Lba,
        /// The record's blocks.
        blocks: u32,
        /// Why.
        error: RecordError,
    },
    /// The log was closed; unacknowledged writes may or may not be durable.
    Closed,
    /// The log cannot take new rings yet.
    NotQuiet(NotQuiet),
    /// The superblock's state is not that of an empty log on these rings.
    NotEmpty {
        /// The empty log's state.
        expected: Box<LogState>,
        /// The superblock's state.
        found: Box<LogState>,
    },
    /// The epoch of a new state is not higher than every epoch in use.
    StaleEpoch {
        /// The epoch in use.
        used: u32,
        /// The new state's epoch.
        found: u32,
    },
    /// A ring has another length than the superblock says.
    RingLength {
        /// The ring.
        ring: u8,
        /// The superblock's length, in bytes.
        expected_bytes: u64,
        /// The ring's length, in bytes.
        found_bytes: u64,
    },
    /// The state's bytes are bad.
    Format(FormatError),
    /// A frame passed its checksum but contradicts the frames before it.
    Inconsistent {
        /// The frame.
        seq: FrameSeq,
        /// The volume of the contradicting record.
        volume: VolumeId,
        /// The first block of that record.
        lba: Lba,
        /// The contradiction.
        error: SplitError,
    },
}

/// A value of the configuration that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The limit of a frame's length.
    FrameLimit {
        /// The limit, in bytes.
        max_frame_bytes: u32,
    },
    /// The number of frames in flight.
    FramesInFlight {
        /// That number.
        frames: usize,
    },
    /// The share of space at which the log reports pressure.
    Pressure {
        /// The share, in percent.
        percent: u8,
    },
    /// A ring's index.
    RingIndex {
        /// The index.
        ring: u8,
    },
    /// A ring's length.
    RingLength {
        /// The ring.
        ring: u8,
        /// Its length, in bytes.
        len_bytes: u64,
    },
    /// A ring without a side.
    NoSide {
        /// The ring.
        ring: u8,
    },
    /// A side that does not fit on its device, or does not start at a multiple of 4096.
    SideRange {
        /// The ring.
        ring: u8,
        /// The device's name.
        device_name: String,
        /// Where the side starts on the device, in bytes.
        start_bytes: u64,
        /// The ring's length, in bytes.
        len_bytes: u64,
        /// The device's size, in bytes.
        size_bytes: u64,
    },
    /// Two rings with one index.
    DuplicateRing {
        /// The index.
        ring: u8,
    },
}

/// Why the log refuses a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The data are not as long as the record's range.
    DataLength {
        /// Bytes that the range has.
        expected_bytes: u64,
        /// Bytes of data.
        found_bytes: u64,
    },
    /// A buffer of the data is not whole blocks.
    PartLength {
        /// Bytes of the buffer.
        part_bytes: u64,
    },
    /// The range is empty or ends past the last block of any volume.
    Range,
    /// The record's group is committed already.
    Committed {
        /// The group.
        txg: TxgId,
    },
}

/// Why the log cannot take new rings yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotQuiet {
    /// The log runs.
    Running,
    /// Frames hold records of a group that is not released.
    Unreleased {
        /// The newest group in the frames.
        held: TxgId,
        /// The newest released group.
        released: TxgId,
    },
    /// A device of the new rings has failed since the log was configured.
    DeviceFailed {
        /// The device.
        device: DeviceId,
    },
}

/// How the parts of a write that is split over several frames contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// A last part follows no other part.
    NoBeginning,
    /// Another write follows before the last part.
    NoEnd,
    /// A part does not continue the one before it.
    Gap,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => write!(f, "log: {error}"),
            Self::BadRecord { volume, lba, blocks, error } => write!(
                f,
                "log: refused a record of volume {volume}, {blocks} blocks at {lba}: {error}"
            ),
            Self::Closed => write!(f, "log: closed before the write was durable"),
            Self::NotQuiet(why) => write!(f, "log: not quiet yet: {why}"),
            Self::NotEmpty { expected, found } => write!(
                f,
                "log: the superblock's log state does not fit: {found:?} is not the empty log \
                 {expected:?}"
            ),
            Self::StaleEpoch { used, found } => write!(
                f,
                "log: the superblock's log state does not fit: epoch {found} is not above {used}"
            ),
            Self::RingLength { ring, expected_bytes, found_bytes } => write!(
                f,
                "log: the superblock's log state does not fit: ring {ring} has {found_bytes} \
                 bytes, the superblock says {expected_bytes}"
            ),
            Self::Format(error) => write!(f, "log: {error}"),
            Self::Inconsistent { seq, volume, lba, error } => write!(
                f,
                "log: frame {seq} is intact but makes no sense: {error} (volume {volume}, block \
                 {lba})"
            ),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FrameLimit { max_frame_bytes } => write!(
                f,
                "frames of {max_frame_bytes} bytes: must be a multiple of {BLOCK_BYTES} from {} \
                 to {MAX_FRAME_BYTES}",
                2 * BLOCK_BYTES
            ),
            Self::FramesInFlight { frames } => {
                write!(f, "{frames} frames in flight: must be 1 to {MAX_FRAMES_IN_FLIGHT}")
            }
            Self::Pressure { percent } => {
                write!(f, "pressure at {percent} %: must be 1 to 100")
            }
            Self::RingIndex { ring } => {
                write!(f, "ring {ring}: a log has at most {MAX_RINGS} rings")
            }
            Self::RingLength { ring, len_bytes } => write!(
                f,
                "ring {ring}: {len_bytes} bytes: must be a multiple of {BLOCK_BYTES}, at least \
                 {MIN_RING_BYTES}, below 16 TiB"
            ),
            Self::NoSide { ring } => write!(f, "ring {ring}: no device is left"),
            Self::SideRange { ring, device_name, start_bytes, len_bytes, size_bytes } => write!(
                f,
                "ring {ring}: {len_bytes} bytes from {start_bytes} on do not fit on {device_name} \
                 ({size_bytes} bytes, in units of {BLOCK_BYTES})"
            ),
            Self::DuplicateRing { ring } => write!(f, "ring {ring} is given twice"),
        }
    }
}

/// Most frames that may be in flight on each ring.
pub(crate) const MAX_FRAMES_IN_FLIGHT: usize = 1024;

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataLength { expected_bytes, found_bytes } => {
                write!(f, "{expected_bytes} bytes of data expected, {found_bytes} found")
            }
            Self::PartLength { part_bytes } => {
                write!(f, "a buffer of {part_bytes} bytes is not whole blocks")
            }
            Self::Range => write!(f, "the range is empty or past any volume"),
            Self::Committed { txg } => write!(f, "group {txg} is committed already"),
        }
    }
}

impl fmt::Display for NotQuiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => write!(f, "the log is running"),
            Self::Unreleased { held, released } => {
                write!(f, "frames hold records of group {held}, but only {released} is released")
            }
            Self::DeviceFailed { device } => write!(f, "device {device} has failed"),
        }
    }
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBeginning => "the end of a split write has no beginning",
            Self::NoEnd => "a split write was never ended",
            Self::Gap => "a part of a split write does not follow the one before",
        })
    }
}

impl std::error::Error for LogError {}
impl std::error::Error for ConfigError {}

impl From<FormatError> for LogError {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<ConfigError> for LogError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<NotQuiet> for LogError {
    fn from(error: NotQuiet) -> Self {
        Self::NotQuiet(error)
    }
}
