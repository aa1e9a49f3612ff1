//! What can go wrong with the log, for the operator.

use std::fmt;

use forebay_device::DeviceError;
use forebay_format::FormatError;
use forebay_units::FrameSeq;

/// Errors of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogError {
    /// A figure of the configuration is out of range.
    BadConfig {
        /// Which, and what to give instead.
        detail: String,
    },
    /// A record's lengths do not agree; nothing of its append was taken.
    BadRecord {
        /// What is wrong with it.
        detail: String,
    },
    /// The log was closed; what was not acknowledged may or may not be durable.
    Closed,
    /// The log cannot take a new configuration yet.
    NotQuiet {
        /// What must happen first.
        detail: String,
    },
    /// The superblock's state does not fit the rings.
    StateMismatch {
        /// What was expected and found.
        detail: String,
    },
    /// The state's bytes are bad.
    Format(FormatError),
    /// Frames that passed their checksum contradict each other.
    Inconsistent {
        /// The frame.
        seq: FrameSeq,
        /// What was expected and found.
        detail: String,
    },
    /// A device failed in a way that leaves no other way on.
    Device(DeviceError),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::BadConfig { detail } => write!(f, "log: {detail}"),
            LogError::BadRecord { detail } => write!(f, "log: refused a record: {detail}"),
            LogError::Closed => write!(f, "log: closed before the write was durable"),
            LogError::NotQuiet { detail } => write!(f, "log: not quiet yet: {detail}"),
            LogError::StateMismatch { detail } => {
                write!(f, "log: the superblock's log state does not fit: {detail}")
            }
            LogError::Format(error) => write!(f, "log: {error}"),
            LogError::Inconsistent { seq, detail } => write!(
                f,
                "log: frame {seq} is intact but makes no sense: {detail}; accept the loss of what \
                 follows it, or keep the devices for study"
            ),
            LogError::Device(error) => write!(f, "log: {error}"),
        }
    }
}

impl std::error::Error for LogError {}

impl From<FormatError> for LogError {
    fn from(error: FormatError) -> Self {
        LogError::Format(error)
    }
}

impl From<DeviceError> for LogError {
    fn from(error: DeviceError) -> Self {
        LogError::Device(error)
    }
}
