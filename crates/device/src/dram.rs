//! What a log device in memory shows of itself.

use std::fmt;

use crate::Cause;

/// State of a log device in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DramState {
    /// The memory is ahead of the image, and nothing has been heard of the power yet. Writes wait.
    Disarmed,
    /// The power holds long enough for a save. Writes go to memory.
    Armed,
    /// The memory goes to the backup device. Writes wait.
    Saving,
    /// The image is whole. Writes go to the backup device as well.
    Saved,
    /// The memory could not be saved. Writes fail.
    SaveFailed,
    /// The image goes to the memory. Writes go to the backup device.
    Restoring,
    /// As saved, after a restore.
    Restored,
    /// The operator has given up protection. Writes go to memory.
    Unprotected,
}

impl DramState {
    /// The word in listings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disarmed => "DISARMED",
            Self::Armed => "ARMED",
            Self::Saving => "SAVING",
            Self::Saved => "SAVED",
            Self::SaveFailed => "SAVE_FAILED",
            Self::Restoring => "RESTORING",
            Self::Restored => "RESTORED",
            Self::Unprotected => "UNPROTECTED",
        }
    }
}

/// Why a log device in memory is not armed, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DramReason {
    /// It was just opened.
    Opened,
    /// The pool closes it.
    Closed,
    /// The power supply is not on line.
    NotOnLine {
        /// Its status, as it says it.
        status: String,
    },
    /// The power supply would not hold for long enough.
    ShortRuntime {
        /// For how long it would hold.
        runtime_secs: u64,
        /// For how long it would have to.
        needed_secs: u64,
    },
    /// The power supply does not say for how long it would hold.
    NoRuntime,
    /// The power supply cannot be asked.
    NoAnswer {
        /// Why.
        cause: Cause,
    },
    /// What is known of the power supply is too old.
    Stale,
    /// The backup device failed.
    BackupFailed {
        /// How.
        cause: Cause,
    },
    /// There is no memory to be had.
    NoMemory {
        /// Why.
        cause: Cause,
    },
}

impl fmt::Display for DramReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened => f.write_str("just opened"),
            Self::Closed => f.write_str("closed"),
            Self::NotOnLine { status } => write!(f, "the power supply says '{status}'"),
            Self::ShortRuntime { runtime_secs, needed_secs } => {
                write!(f, "the battery holds for {runtime_secs} s of the {needed_secs} s needed")
            }
            Self::NoRuntime => f.write_str("the power supply reports no battery.runtime"),
            Self::NoAnswer { cause } => write!(f, "the power supply cannot be asked: {cause}"),
            Self::Stale => f.write_str("the last answer of the power supply is too old"),
            Self::BackupFailed { cause } => write!(f, "the backup device failed: {cause}"),
            Self::NoMemory { cause } => write!(f, "no memory: {cause}"),
        }
    }
}

/// A change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DramChange {
    /// The state before.
    pub from: DramState,
    /// The state now.
    pub to: DramState,
    /// Why, unless the state alone says it.
    pub reason: Option<DramReason>,
}

impl fmt::Display for DramChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}", self.from.as_str(), self.to.as_str())?;
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// A log device in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DramStatus {
    /// Its state.
    pub state: DramState,
    /// Why it is not armed.
    pub reason: Option<DramReason>,
    /// Path of the memory.
    pub memory: String,
    /// The power supply that protects it, if one does.
    pub ups: Option<String>,
    /// The memory is persistent.
    pub is_persistent: bool,
    /// It may be used only in a mirror with a side that needs none.
    pub needs_mirror: bool,
    /// It has a backup device.
    pub has_backup: bool,
    /// Bytes of memory that the image lacks.
    pub unsaved_bytes: u64,
    /// What a save of the whole memory takes at most, in seconds.
    pub save_secs: u64,
    /// What the power supply says of itself.
    pub ups_status: Option<String>,
    /// For how long the power supply says that it holds.
    pub runtime_secs: Option<u64>,
}
