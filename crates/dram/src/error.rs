//! Errors of log devices in memory.

use std::fmt;
use std::io;

use forebay_format::FormatError;

/// Why a log device in memory cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DramError {
    /// Its header cannot be read.
    Header(FormatError),
    /// The backup device is smaller than the image.
    TooSmall {
        /// Bytes that the header and the image take.
        needed_bytes: u64,
    },
    /// What was not saved is gone: the power failed, or the memory was removed.
    MemoryLost {
        /// Path of the memory.
        memory: String,
        /// What is there instead.
        found: FoundMemory,
    },
    /// No power supply has the name that the header gives.
    NoSupply {
        /// The name.
        name: String,
    },
    /// The memory was persistent, and is not now.
    NotPersistent {
        /// Its path.
        memory: String,
    },
}

/// What there is at the path of a memory that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundMemory {
    /// Nothing can be opened there.
    Nothing(io::ErrorKind),
    /// Another memory.
    Other,
}

impl fmt::Display for DramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(error) => write!(f, "{}: {}", error.what, error.flaw),
            Self::TooSmall { needed_bytes } => {
                write!(f, "the backup device is smaller than the {needed_bytes} bytes of the image")
            }
            Self::MemoryLost { memory, found } => {
                write!(f, "SAVE_FAILED: the log was in memory ({memory}) and was not saved; ")?;
                match found {
                    FoundMemory::Nothing(kind) => write!(f, "now there is none ({kind})"),
                    FoundMemory::Other => f.write_str("another memory is there now"),
                }
            }
            Self::NoSupply { name } => write!(f, "'{name}' is no power supply (NAME@HOST)"),
            Self::NotPersistent { memory } => {
                write!(f, "{memory} is not persistent memory any more (no DAX)")
            }
        }
    }
}

impl std::error::Error for DramError {}
