//! Errors and remarks: why a source is refused, and what was left of one that was read.

use std::fmt;
use std::io;

use crate::detect::Format;

/// Why no event can be read from a source.
#[derive(Debug)]
pub enum TraceError {
    /// The source has no bytes.
    Empty,
    /// No reader knows what these bytes are.
    UnknownFormat,
    /// Compressed by a program whose output is not read here.
    Compression {
        /// The program that unpacks it.
        program: &'static str,
    },
    /// An archive of several files.
    Archive,
    /// The beginning is not that of the format which was asked for.
    NotThisFormat {
        /// What was asked for.
        format: Format,
    },
    /// The compact format in a version that is newer than this program.
    Version {
        /// The version of the file.
        found: u16,
    },
    /// The source cannot be read at all.
    Io(io::Error),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the source is empty"),
            Self::UnknownFormat => write!(f, "the format of the trace is not known"),
            Self::Compression { program } => write!(f, "the trace is compressed by {program}"),
            Self::Archive => write!(f, "the source is a tar archive, not a trace"),
            Self::NotThisFormat { format } => {
                write!(f, "the source does not begin like a trace of format {format}")
            }
            Self::Version { found } => {
                write!(f, "the trace has version {found} of the format, which is newer")
            }
            Self::Io(e) => write!(f, "the source cannot be read: {e}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// Why reading stopped before the end that the source should have. What was read before is good.
#[derive(Debug)]
pub enum Rest {
    /// The source ends within a record.
    Truncated {
        /// Where the record begins, in bytes of the unpacked source.
        offset: u64,
    },
    /// What stands there is no record.
    Corrupt {
        /// Where, in bytes of the unpacked source.
        offset: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// Reading or unpacking failed.
    Io {
        /// Where, in bytes of the unpacked source.
        offset: u64,
        /// Why.
        error: io::Error,
    },
}

impl Rest {
    /// A failure to read the record that begins at `offset`.
    pub(crate) fn of_io(error: io::Error, offset: u64) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated { offset },
            _ => Self::Io { offset, error },
        }
    }

    pub(crate) fn corrupt(offset: u64, damage: Damage) -> Self {
        Self::Corrupt { offset, damage }
    }
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The record's magic number is another.
    Magic {
        /// What stands there.
        found: u32,
    },
    /// A length that no record has.
    Length {
        /// What stands there.
        found: u64,
    },
    /// The checksum differs.
    Checksum,
    /// A field with a value that does not exist.
    Field,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found } => write!(f, "magic number {found:#010x} is no record's"),
            Self::Length { found } => write!(f, "a record cannot be {found} long"),
            Self::Checksum => write!(f, "the checksum differs"),
            Self::Field => write!(f, "a field has a value that does not exist"),
        }
    }
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { offset } => {
                write!(f, "the source ends within the record at byte {offset}")
            }
            Self::Corrupt { offset, damage } => {
                write!(f, "the source is damaged at byte {offset}: {damage}")
            }
            Self::Io { offset, error } => write!(f, "reading failed at byte {offset}: {error}"),
        }
    }
}

/// Lines of a text that no reader understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkippedLines {
    /// How many.
    pub count: u64,
    /// The number of the first, from 1; 0 when there is none.
    pub first: u64,
}

/// What there is to say about a source beside its events.
#[derive(Debug, Default)]
pub struct Remarks {
    /// Lines that were not understood. Headings and comments do not count.
    pub skipped: SkippedLines,
    /// Why reading stopped early; `None` when the source was read to its end.
    pub rest: Option<Rest>,
}

impl Remarks {
    /// Whether every byte of the source was understood.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.rest.is_none() && self.skipped.count == 0
    }
}

impl fmt::Display for Remarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rest) = &self.rest {
            write!(f, "{rest}")?;
        }
        let SkippedLines { count, first } = self.skipped;
        let separator = if self.rest.is_some() { "; " } else { "" };
        match count {
            0 => Ok(()),
            1 => write!(f, "{separator}line {first} was not understood"),
            _ => write!(f, "{separator}{count} lines were not understood, the first is {first}"),
        }
    }
}
