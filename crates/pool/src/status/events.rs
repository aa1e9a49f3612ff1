//! Events: what happened to a pool's devices, its log and its map journal, for the operator.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;

use forebay_array::{ArrayError, MemberState};
use forebay_device::DeviceError;
use forebay_intent_log::LogError;
use forebay_units::{BlockAddr, SegmentId};
use serde::{Deserialize, Serialize};

use crate::label_check::LabelFault;
use crate::labels::LabelError;

/// Events that are kept.
const MAX_KEPT: usize = 100;

/// Something that happened. Devices are paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// A data device changed its state.
    StateChanged {
        /// The device.
        device: String,
        /// Its state before.
        from: MemberState,
        /// Its state now.
        to: MemberState,
        /// The failure that caused the change.
        cause: Option<DeviceError>,
    },
    /// A data device failed a read.
    ReadFailed(DeviceError),
    /// A data device held wrong data, which was rewritten.
    Repaired {
        /// The device.
        device: String,
        /// The first block; of the row, when it is parity.
        addr: BlockAddr,
        /// Bytes rewritten.
        len_bytes: u64,
    },
    /// A data device was taken out because many of its reads failed.
    TakenOut {
        /// The device.
        device: String,
    },
    /// Many reads of a data device fail, and the pool needs it.
    StillNeeded {
        /// The device.
        device: String,
        /// Why it stays in use.
        error: ArrayError,
    },
    /// Many places of a data device were repaired.
    ManyRepairs {
        /// The device.
        device: String,
    },
    /// A data device that holds a part of the log failed.
    LogMemberFailed {
        /// The device.
        device: String,
        /// The failure.
        error: LabelError,
    },
    /// A log device failed and was taken out of use.
    LogDeviceFailed {
        /// The device.
        device: String,
        /// The failure.
        error: LabelError,
    },
    /// The log could not be started anew. The next group tries again.
    LogNotStarted(LogError),
    /// A scrub could not read a row of a segment.
    ScrubFailed(ArrayError),
    /// A resilver could not rebuild a segment.
    ResilverFailed(ArrayError),
    /// The label of a device is damaged. It is written anew with the next root, unless the device
    /// became smaller or another pool's.
    LabelDamaged {
        /// The device.
        device: String,
        /// What is wrong with it.
        fault: LabelFault,
    },
    /// A segment of the map journal is damaged.
    JournalDamaged {
        /// The segment.
        segment: SegmentId,
    },
    /// The damaged map journal could not be written anew, because too few segments are free.
    JournalNotRenewed,
    /// What the import found.
    Import(ImportRemark),
}

/// What an import found in the log. Errors are in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportRemark {
    /// Records of groups after the older root that the import went back to were left out.
    RecordsLeftOut {
        /// How many.
        records: u64,
    },
    /// A frame on one side was damaged, and another side had it.
    SideDamaged {
        /// The device.
        device: String,
        /// Where the frame is.
        offset_bytes: u64,
        /// What is wrong with it.
        fault: String,
    },
    /// The last frame was being written when the pool stopped.
    TornTail {
        /// The number of the frame.
        frame: u64,
    },
    /// Acknowledged writes are lost, and the operator accepted that.
    LossAccepted {
        /// What is lost.
        loss: String,
    },
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateChanged { device, from, to, cause: None } => {
                write!(f, "{device} went from {from} to {to}")
            }
            Self::StateChanged { device, from, to, cause: Some(cause) } => {
                write!(f, "{device} went from {from} to {to}: {cause}")
            }
            Self::ReadFailed(error) => write!(f, "{error}"),
            Self::Repaired { device, addr, len_bytes } => {
                write!(f, "{device}: repaired {len_bytes} bytes at {addr}")
            }
            Self::TakenOut { device } => {
                write!(f, "{device} was taken out, because many of its reads failed")
            }
            Self::StillNeeded { device, error } => {
                write!(f, "{device} fails many reads and is still needed: {error}")
            }
            Self::ManyRepairs { device } => {
                write!(f, "{device} was repaired in many places; see if it is well")
            }
            Self::LogMemberFailed { device, error } => write!(f, "{device} failed: {error}"),
            Self::LogDeviceFailed { device, error } => {
                write!(f, "log device {device} failed: {error}")
            }
            Self::LogNotStarted(error) => write!(f, "{error}"),
            Self::ScrubFailed(error) | Self::ResilverFailed(error) => write!(f, "{error}"),
            Self::LabelDamaged { device, fault } => write!(f, "{device}: {fault}"),
            Self::JournalDamaged { segment } => {
                write!(f, "segment {segment} of the map journal is damaged")
            }
            Self::JournalNotRenewed => f.write_str(
                "the map journal is damaged and could not be written anew: too few segments are \
                 free",
            ),
            Self::Import(remark) => write!(f, "{remark}"),
        }
    }
}

impl fmt::Display for ImportRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordsLeftOut { records } => write!(
                f,
                "went back to an older root: {records} log records of later groups were left out"
            ),
            Self::SideDamaged { device, offset_bytes, fault } => write!(
                f,
                "log device {device} at offset {offset_bytes}: {fault}; another side had it"
            ),
            Self::TornTail { frame } => write!(
                f,
                "log frame {frame} was being written when the pool stopped; nobody was told that \
                 it was durable"
            ),
            Self::LossAccepted { loss } => write!(f, "accepted: {loss}"),
        }
    }
}

/// The last events, oldest first.
#[derive(Default)]
pub(crate) struct EventLog {
    kept: RefCell<VecDeque<PoolEvent>>,
}

impl EventLog {
    /// Adds an event.
    pub fn push(&self, event: PoolEvent) {
        let mut kept = self.kept.borrow_mut();
        kept.push_back(event);
        let extra = kept.len().saturating_sub(MAX_KEPT);
        kept.drain(..extra);
    }

    /// The newest event.
    pub fn last(&self) -> Option<PoolEvent> {
        self.kept.borrow().back().cloned()
    }

    /// All that are kept.
    pub fn all(&self) -> Vec<PoolEvent> {
        self.kept.borrow().iter().cloned().collect()
    }
}
