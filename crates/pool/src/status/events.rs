//! Events: what happened to a pool's devices, its log, its map journal and its scans, for the
//! operator.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;

use forebay_array::{ArrayError, MemberState};
use forebay_device::{DeviceError, DramChange};
use forebay_format::config::{ScanKind, ScanPhase};
use forebay_intent_log::LogError;
use forebay_rt as rt;
use forebay_units::{BlockAddr, SegmentId, format_bytes};
use serde::{Deserialize, Serialize};

use crate::admin::error::{AdminError, VolumeError};
use crate::cache_devices::CacheFault;
use crate::commit::error::SuspendReason;
use crate::label_check::LabelFault;
use crate::labels::LabelError;
use crate::status::FailingRequestStatus;
use crate::status::objects::tell_of_store;

/// Events that are kept.
const MAX_KEPT: usize = 256;

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
    /// A data device should be out of use, and the pool needs it: many of its reads fail, or its
    /// label is another pool's.
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
    /// A snapshot that was due by a schedule was not taken.
    SnapshotNotTaken {
        /// `POOL/VOL`.
        volume: String,
        /// Why.
        error: VolumeError,
    },
    /// What an interrupted stream has brought could not be undone.
    StreamNotUndone {
        /// `POOL/VOL`.
        volume: String,
        /// Why.
        error: VolumeError,
    },
    /// A log device on another host is back, and in use.
    LogDeviceReturned {
        /// The device.
        device: String,
    },
    /// A log device on another host is back, and cannot be used.
    LogDeviceRefused {
        /// The device.
        device: String,
        /// Why.
        error: Box<AdminError>,
    },
    /// A log device in memory changed its state.
    LogMemoryChanged {
        /// The device.
        device: String,
        /// The change.
        change: DramChange,
    },
    /// A cache device was given up: reads go to the main store.
    CacheDeviceFailed {
        /// The device.
        device: String,
        /// What is wrong with it.
        fault: CacheFault,
    },
    /// The object store of a data device answers no request.
    StoreSilent {
        /// The device.
        device: String,
        /// What the last request failed with; none if none did.
        error: Option<String>,
        /// For how many seconds durable writes go on at the present rate; none: no end is known.
        lasts_secs: Option<u64>,
    },
    /// It answers again.
    StoreAnswers {
        /// The device.
        device: String,
    },
    /// Durable writes will wait soon, because memory or the log is nearly full and the object store
    /// is away.
    OutageReserveLow {
        /// For how many seconds they go on at the present rate.
        lasts_secs: u64,
    },
    /// A request to the object store fails again and again while others are answered.
    StoreRequestFails {
        /// The device.
        device: String,
        /// The request.
        failing: FailingRequestStatus,
    },
    /// A spare, or an empty device at the same path, takes the place of a failed device.
    SpareTaken {
        /// The failed device.
        device: String,
        /// What takes its place.
        by: String,
    },
    /// It could not.
    SpareNotTaken {
        /// The failed device.
        device: String,
        /// What was to take its place.
        by: String,
        /// Why it does not.
        error: Box<AdminError>,
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
    /// So little memory is free that writes which may make the map longer are refused.
    MemoryShort {
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// What the import found.
    Import(ImportRemark),
    /// A scrub or a resilver has begun.
    ScanBegan(ScanKind),
    /// A scrub or a resilver has ended.
    ScanEnded {
        /// What it was for.
        kind: ScanKind,
        /// How it ended.
        phase: ScanPhase,
        /// Bytes repaired.
        repaired_bytes: u64,
        /// Blocks that could not be repaired.
        errors: u64,
    },
    /// The pool takes no more writes.
    Suspended(SuspendReason),
}

macro_rules! event_kinds {
    ($($kind:ident $name:literal,)*) => {
        /// The kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[allow(missing_docs)] // each has the name of its event
        pub enum EventKind {
            $(#[serde(rename = $name)] $kind,)*
        }

        impl EventKind {
            /// The word in listings.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}
event_kinds! {
    StateChanged "state-changed",
    ReadFailed "read-failed",
    Repaired "repaired",
    TakenOut "taken-out",
    StillNeeded "still-needed",
    ManyRepairs "many-repairs",
    LogMemberFailed "log-member-failed",
    LogDeviceFailed "log-device-failed",
    LogDeviceReturned "log-device-returned",
    LogDeviceRefused "log-device-refused",
    LogMemoryChanged "log-memory-changed",
    CacheDeviceFailed "cache-device-failed",
    StoreSilent "store-silent",
    StoreAnswers "store-answers",
    OutageReserveLow "outage-reserve-low",
    StoreRequestFails "store-request-fails",
    SpareTaken "spare-taken",
    SpareNotTaken "spare-not-taken",
    LogNotStarted "log-not-started",
    ScrubFailed "scrub-failed",
    ResilverFailed "resilver-failed",
    LabelDamaged "label-damaged",
    JournalDamaged "journal-damaged",
    JournalNotRenewed "journal-not-renewed",
    MemoryShort "memory-short",
    SnapshotNotTaken "snapshot-not-taken",
    StreamNotUndone "stream-not-undone",
    Import "import",
    ScanBegan "scan-began",
    ScanEnded "scan-ended",
    Suspended "suspended",
}

/// An event as listings and hooks get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// The pool.
    pub pool: String,
    /// Its id.
    pub guid: u64,
    /// Counts up from 1 since the import.
    pub sequence: u64,
    /// Seconds since 1970 when it happened.
    pub time_secs: u64,
    /// What it is.
    pub event: EventKind,
    /// The path of the device that it is about.
    pub device: Option<String>,
    /// All of it in a sentence.
    pub text: String,
}

impl PoolEvent {
    fn kind(&self) -> EventKind {
        match self {
            Self::StateChanged { .. } => EventKind::StateChanged,
            Self::ReadFailed(_) => EventKind::ReadFailed,
            Self::Repaired { .. } => EventKind::Repaired,
            Self::TakenOut { .. } => EventKind::TakenOut,
            Self::StillNeeded { .. } => EventKind::StillNeeded,
            Self::ManyRepairs { .. } => EventKind::ManyRepairs,
            Self::LogMemberFailed { .. } => EventKind::LogMemberFailed,
            Self::LogDeviceFailed { .. } => EventKind::LogDeviceFailed,
            Self::LogDeviceReturned { .. } => EventKind::LogDeviceReturned,
            Self::LogDeviceRefused { .. } => EventKind::LogDeviceRefused,
            Self::LogMemoryChanged { .. } => EventKind::LogMemoryChanged,
            Self::CacheDeviceFailed { .. } => EventKind::CacheDeviceFailed,
            Self::StoreSilent { .. } => EventKind::StoreSilent,
            Self::StoreAnswers { .. } => EventKind::StoreAnswers,
            Self::OutageReserveLow { .. } => EventKind::OutageReserveLow,
            Self::StoreRequestFails { .. } => EventKind::StoreRequestFails,
            Self::SpareTaken { .. } => EventKind::SpareTaken,
            Self::SpareNotTaken { .. } => EventKind::SpareNotTaken,
            Self::LogNotStarted(_) => EventKind::LogNotStarted,
            Self::ScrubFailed(_) => EventKind::ScrubFailed,
            Self::ResilverFailed(_) => EventKind::ResilverFailed,
            Self::LabelDamaged { .. } => EventKind::LabelDamaged,
            Self::JournalDamaged { .. } => EventKind::JournalDamaged,
            Self::JournalNotRenewed => EventKind::JournalNotRenewed,
            Self::MemoryShort { .. } => EventKind::MemoryShort,
            Self::SnapshotNotTaken { .. } => EventKind::SnapshotNotTaken,
            Self::StreamNotUndone { .. } => EventKind::StreamNotUndone,
            Self::Import(_) => EventKind::Import,
            Self::ScanBegan(_) => EventKind::ScanBegan,
            Self::ScanEnded { .. } => EventKind::ScanEnded,
            Self::Suspended(_) => EventKind::Suspended,
        }
    }

    fn device(&self) -> Option<&str> {
        match self {
            Self::StateChanged { device, .. }
            | Self::Repaired { device, .. }
            | Self::TakenOut { device }
            | Self::StillNeeded { device, .. }
            | Self::ManyRepairs { device }
            | Self::LogMemberFailed { device, .. }
            | Self::LogDeviceFailed { device, .. }
            | Self::LogDeviceReturned { device }
            | Self::LogDeviceRefused { device, .. }
            | Self::LogMemoryChanged { device, .. }
            | Self::CacheDeviceFailed { device, .. }
            | Self::StoreSilent { device, .. }
            | Self::StoreAnswers { device }
            | Self::StoreRequestFails { device, .. }
            | Self::SpareTaken { device, .. }
            | Self::SpareNotTaken { device, .. }
            | Self::LabelDamaged { device, .. }
            | Self::Import(ImportRemark::SideDamaged { device, .. }) => Some(device),
            Self::ReadFailed(error) => Some(&error.device),
            Self::LogNotStarted(_)
            | Self::ScrubFailed(_)
            | Self::ResilverFailed(_)
            | Self::JournalDamaged { .. }
            | Self::JournalNotRenewed
            | Self::MemoryShort { .. }
            | Self::OutageReserveLow { .. }
            | Self::SnapshotNotTaken { .. }
            | Self::StreamNotUndone { .. }
            | Self::Import(_)
            | Self::ScanBegan(_)
            | Self::ScanEnded { .. }
            | Self::Suspended(_) => None,
        }
    }

    /// Whether it says nothing about why a device that the pool needs is out of use.
    fn is_beside(&self) -> bool {
        matches!(
            self,
            Self::ScanBegan(_)
                | Self::ScanEnded { .. }
                | Self::CacheDeviceFailed { .. }
                | Self::LogDeviceReturned { .. }
                | Self::SnapshotNotTaken { .. }
                | Self::StreamNotUndone { .. }
                | Self::LogMemoryChanged { .. }
                | Self::StoreSilent { .. }
                | Self::StoreAnswers { .. }
                | Self::OutageReserveLow { .. }
                | Self::StoreRequestFails { .. }
                | Self::MemoryShort { .. }
                | Self::Import(_)
        )
    }
}

/// What an import found in the log. Errors are in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportRemark {
    /// Frames that were written after newer roots than the one that the import went back to were
    /// left out.
    FramesLeftOut {
        /// The first of them.
        frame: u64,
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

fn refused(f: &mut fmt::Formatter<'_>, device: &str, error: &AdminError) -> fmt::Result {
    write!(f, "log device {device} answers again, and is not taken back: {error}")
}

fn not_taken(f: &mut fmt::Formatter<'_>, volume: &str, error: &VolumeError) -> fmt::Result {
    write!(f, "no snapshot of {volume} was taken by its schedule: {error}")
}

fn not_undone(f: &mut fmt::Formatter<'_>, volume: &str, error: &VolumeError) -> fmt::Result {
    write!(f, "an interrupted stream of {volume} could not be undone yet: {error}")
}

fn end_of_scan(phase: ScanPhase) -> &'static str {
    match phase {
        ScanPhase::Completed => "is complete",
        ScanPhase::Paused => "is paused",
        ScanPhase::InProgress | ScanPhase::Stopped => "was stopped",
    }
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StateChanged { device, from, to, cause } => {
                write!(f, "{device} went from {from} to {to}")?;
                cause.iter().try_for_each(|cause| write!(f, ": {cause}"))
            }
            Self::ReadFailed(error) => write!(f, "{error}"),
            Self::Repaired { device, addr, len_bytes } => {
                write!(f, "{device}: repaired {len_bytes} bytes at {addr}")
            }
            Self::TakenOut { device } => {
                write!(f, "{device} was taken out, because many of its reads failed")
            }
            Self::StillNeeded { device, error } => {
                write!(f, "{device} should be out of use and is still needed: {error}")
            }
            Self::ManyRepairs { device } => {
                write!(f, "{device} was repaired in many places; see if it is well")
            }
            Self::LogMemberFailed { device, error } => write!(f, "{device} failed: {error}"),
            Self::LogDeviceFailed { device, error } => {
                write!(f, "log device {device} failed: {error}")
            }
            Self::SnapshotNotTaken { volume, error } => not_taken(f, volume, error),
            Self::StreamNotUndone { volume, error } => not_undone(f, volume, error),
            Self::LogDeviceReturned { device } => write!(f, "log device {device} is back"),
            Self::LogDeviceRefused { device, error } => refused(f, device, error),
            Self::LogMemoryChanged { device, change } => {
                write!(f, "log device {device} went {change}")
            }
            Self::CacheDeviceFailed { device, fault } => {
                write!(f, "cache device {device} is no longer used: {fault}")
            }
            Self::StoreSilent { .. }
            | Self::StoreAnswers { .. }
            | Self::OutageReserveLow { .. }
            | Self::StoreRequestFails { .. } => tell_of_store(f, self),
            Self::SpareTaken { device, by } if device == by => {
                write!(f, "a new device is at {by} and replaces the failed one")
            }
            Self::SpareTaken { device, by } => {
                write!(f, "spare {by} takes the place of {device}, which failed")
            }
            Self::SpareNotTaken { device, by, error } => {
                write!(f, "{by} does not take the place of {device}: {error}")
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
            Self::MemoryShort { free_bytes } => write!(
                f,
                "{} of memory are free: writes of new blocks are refused until there is more",
                format_bytes(*free_bytes)
            ),
            Self::Import(remark) => write!(f, "{remark}"),
            Self::ScanBegan(kind) => write!(f, "a {} has begun", kind.as_str()),
            Self::ScanEnded { kind, phase, repaired_bytes, errors } => {
                let (kind, end) = (kind.as_str(), end_of_scan(*phase));
                write!(f, "a {kind} {end}: {repaired_bytes} bytes repaired, {errors} errors")
            }
            Self::Suspended(reason) => write!(f, "the pool is suspended: {reason}"),
        }
    }
}

impl fmt::Display for ImportRemark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FramesLeftOut { frame } => write!(
                f,
                "went back to an older root: log frames from {frame} on, which were written after \
                 newer roots, were left out"
            ),
            Self::SideDamaged { device, offset_bytes, fault } => write!(
                f,
                "log device {device} at offset {offset_bytes}: {fault}; another side had it"
            ),
            Self::TornTail { frame } => write!(
                f,
                "log frame {frame} was being written when the pool stopped, and was not \
                 acknowledged"
            ),
            Self::LossAccepted { loss } => write!(f, "accepted: {loss}"),
        }
    }
}

/// An event with its number and its time.
struct Kept {
    sequence: u64,
    time_secs: u64,
    event: PoolEvent,
}

/// The last events, oldest first.
#[derive(Default)]
pub(crate) struct EventLog {
    kept: RefCell<VecDeque<Kept>>,
    /// Events so far.
    count: Cell<u64>,
}

impl EventLog {
    /// Adds an event.
    pub fn push(&self, event: PoolEvent) {
        let (sequence, time_secs) = (self.count.get() + 1, rt::wall_clock());
        self.count.set(sequence);
        let mut kept = self.kept.borrow_mut();
        kept.push_back(Kept { sequence, time_secs, event });
        let extra = kept.len().saturating_sub(MAX_KEPT);
        kept.drain(..extra);
    }

    /// Puts the events of the pool that this one follows before its own. Numbers go on.
    pub fn go_on(&self, before: &Self) {
        let mut kept = std::mem::take(&mut *before.kept.borrow_mut());
        let offset = before.count.get();
        let mine = std::mem::take(&mut *self.kept.borrow_mut());
        kept.extend(mine.into_iter().map(|own| Kept { sequence: own.sequence + offset, ..own }));
        let extra = kept.len().saturating_sub(MAX_KEPT);
        kept.drain(..extra);
        *self.kept.borrow_mut() = kept;
        self.count.set(self.count.get() + offset);
    }

    /// The newest event that may say why a device is out of use.
    pub fn last(&self) -> Option<PoolEvent> {
        let kept = self.kept.borrow();
        kept.iter().rev().map(|kept| &kept.event).find(|event| !event.is_beside()).cloned()
    }

    /// All that are kept.
    pub fn all(&self) -> Vec<PoolEvent> {
        self.kept.borrow().iter().map(|kept| kept.event.clone()).collect()
    }

    /// Those with numbers above `sequence`, of the pool with this name and id.
    pub fn after(&self, sequence: u64, pool: &str, guid: u64) -> Vec<EventRecord> {
        let kept = self.kept.borrow();
        let new = kept.iter().filter(|kept| kept.sequence > sequence);
        let record = |kept: &Kept| EventRecord {
            pool: pool.to_owned(),
            guid,
            sequence: kept.sequence,
            time_secs: kept.time_secs,
            event: kept.event.kind(),
            device: kept.event.device().map(str::to_owned),
            text: kept.event.to_string(),
        };
        new.map(record).collect()
    }
}

#[cfg(test)]
mod tests;
