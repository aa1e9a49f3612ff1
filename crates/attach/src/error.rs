//! What can go wrong between this process and the kernel.

use std::fmt;
use std::io;

/// A call of the kernel's NBD client failed.
#[derive(Debug)]
pub enum AttachError {
    /// The kernel has no NBD client, or it is not loaded.
    NoClient,
    /// The kernel has no ublk driver, or it is not loaded.
    NoUblk,
    /// The ublk driver cannot be asked: it listens on io_uring alone.
    NoRing(io::Error),
    /// This process has no right to configure devices.
    NotPermitted,
    /// The kernel refused a request.
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its reason.
        error: io::Error,
    },
    /// There is no way to ask the kernel.
    NoNetlink(io::Error),
    /// The kernel's answer makes no sense.
    Message(MessageError),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClient => f.write_str("the kernel's NBD client (module nbd) is not loaded"),
            Self::NoUblk => f.write_str("the kernel's ublk driver (module ublk_drv) is not loaded"),
            Self::NoRing(error) => {
                write!(f, "the ublk driver cannot be asked by io_uring: {error}")
            }
            Self::NotPermitted => {
                f.write_str("the kernel lets only root configure block devices (CAP_SYS_ADMIN)")
            }
            Self::Refused { what, error } => write!(f, "the kernel refused to {what}: {error}"),
            Self::NoNetlink(error) => write!(f, "the kernel cannot be asked by netlink: {error}"),
            Self::Message(error) => write!(f, "the kernel's answer: {error}"),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<MessageError> for AttachError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

/// A message of the kernel that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// It ends before its end.
    TooShort {
        /// What was being read.
        what: &'static str,
        /// Bytes that it needs.
        expected: usize,
        /// Bytes that were there.
        found: usize,
    },
    /// It lacks something.
    Missing {
        /// What it lacks.
        what: &'static str,
    },
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { what, expected, found } => {
                write!(f, "{what} has {found} bytes instead of {expected}")
            }
            Self::Missing { what } => write!(f, "there is no {what} in it"),
        }
    }
}
