//! Errors of commits, and the reasons for which a pool is suspended.

use std::fmt;

use forebay_array::ArrayError;
use forebay_intent_log::LogError;
use forebay_map::MapError;
use forebay_segment::SegmentError;

use crate::labels::LabelError;
use crate::widens::widens;

/// Why nothing could be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitError {
    /// The pool is suspended.
    Suspended(SuspendReason),
    /// The pool is closing.
    Closing,
    /// A label could not be written to enough devices.
    LabelNotWritten {
        /// What was written.
        part: LabelPart,
        /// Devices that took it.
        written: usize,
        /// What the last device said that did not; `None` when no device is left.
        last: Option<Box<LabelError>>,
    },
    /// The map journal is damaged, and too few segments are free to write the map anew.
    JournalDamaged,
    /// The map refused a change: an inconsistency in memory.
    Map(MapError),
    /// The data devices failed.
    Array(ArrayError),
    /// A segment could not be written.
    Segment(Box<SegmentError>),
    /// The log failed.
    Log(LogError),
}

/// What of a label is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelPart {
    /// The pool's configuration.
    Configuration,
    /// A root.
    Root,
}

/// Why a pool takes no more writes. Memory and media may disagree, and an import goes on from the
/// media.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspendReason {
    /// Another process has imported the pool.
    TakenOver,
    /// A commit failed.
    Commit(Box<CommitError>),
    /// Writes could not be appended to the log.
    Log(LogError),
    /// A device failed that holds the log, and the pool cannot do without it.
    LogDevice {
        /// What the device said.
        error: Box<LabelError>,
        /// Why the pool needs it.
        needed: Box<ArrayError>,
    },
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Suspended(reason) => write!(f, "the pool is suspended: {reason}"),
            Self::Closing => write!(f, "the pool is closing"),
            Self::LabelNotWritten { part, written, last } => {
                write!(f, "the {part} could be written to {written} devices: ")?;
                match last {
                    Some(error) => write!(f, "{error}"),
                    None => write!(f, "no device is left"),
                }
            }
            Self::JournalDamaged => {
                write!(f, "the map journal is damaged, and there was no room to write it anew")
            }
            Self::Map(error) => write!(f, "internal: {error}"),
            Self::Array(error) => write!(f, "{error}"),
            Self::Segment(error) => write!(f, "{error}"),
            Self::Log(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for LabelPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configuration => "configuration",
            Self::Root => "root",
        })
    }
}

impl fmt::Display for SuspendReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenOver => write!(f, "another process has imported the pool"),
            Self::Commit(error) => write!(f, "{error}"),
            Self::Log(error) => write!(f, "{error}"),
            Self::LogDevice { error, needed } => write!(f, "{error}, and {needed}"),
        }
    }
}

impl From<CommitError> for SuspendReason {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Suspended(reason) => reason,
            other => Self::Commit(Box::new(other)),
        }
    }
}

widens!(CommitError: Map(MapError), Array(ArrayError), Segment(SegmentError), Log(LogError));
