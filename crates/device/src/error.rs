//! Device errors: which device, which operation, where, why.

use std::error::Error;
use std::fmt;

use crate::cause::Cause;

/// An operation of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Opening it.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing its cache.
    Flush,
    /// Discarding.
    Discard,
    /// Zeroing.
    WriteZeroes,
    /// Asking for the allocation of a range.
    Allocation,
    /// Asking whether it is still there.
    Check,
    /// Reading or changing its reservations.
    Reservation,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
            Operation::WriteZeroes => "write zeroes",
            Operation::Allocation => "block status",
            Operation::Check => "check",
            Operation::Reservation => "reservation",
        })
    }
}

/// Why a write fence is shut for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceLoss {
    /// Another owner's heartbeat was found, or its reservation.
    TakenOver,
    /// The pool has stopped in this process; its heartbeat has ended.
    Ended,
}

impl fmt::Display for FenceLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TakenOver => "another process has imported the pool",
            Self::Ended => "the pool has stopped in this process",
        })
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The kernel returned an error.
    Os {
        /// The errno.
        errno: i32,
    },
    /// The device transferred fewer bytes than asked for, and reported no error.
    Short {
        /// How many bytes it transferred.
        got_bytes: u64,
    },
    /// The range ends past the device.
    OutOfRange {
        /// The device's size.
        size_bytes: u64,
    },
    /// Offset or length is not a multiple of the block size.
    Misaligned {
        /// The block size.
        block_bytes: u32,
    },
    /// No space left for new data.
    NoSpace,
    /// The data fails its checksum, and no copy or parity could repair it.
    Corrupt {
        /// What was expected and found.
        cause: Cause,
    },
    /// The medium has lost data, and the device says so.
    Unreadable {
        /// Where the first lost bytes begin.
        offset_bytes: u64,
        /// How many there are.
        len_bytes: u64,
    },
    /// The object store has lost an object that has these bytes.
    LostObject {
        /// The object's name.
        object: String,
        /// Where its first bytes that were asked for begin.
        offset_bytes: u64,
        /// How many there are.
        len_bytes: u64,
    },
    /// The medium is worn out and takes no more writes.
    WornOut,
    /// The device is gone, or was failed.
    Gone,
    /// What was written last, and acknowledged, is not there.
    Forgotten,
    /// The file was deleted. What is on it is gone when this process closes it.
    Deleted,
    /// The write fence no longer proves that this process owns the device.
    FenceLost(FenceLoss),
    /// Another machine has reserved the device, or this machine is not registered with it any more.
    ReservationConflict,
    /// Another client has written to the device since this one opened it.
    Overtaken,
    /// The server of this device answered with an error that has no variant of its own.
    Server {
        /// The server's errno.
        errno: u32,
        /// The server's text.
        text: String,
    },
    /// The device did not answer in time, and gets no more commands. The command may still happen.
    TimedOut {
        /// How long the command was waited for.
        after_secs: u64,
    },
    /// The device is in use by another process.
    Busy,
    /// Writes are refused.
    ReadOnly,
    /// The device cannot do this.
    Unsupported,
    /// The path leads neither to a file nor to a block device.
    NotADevice,
    /// An error of the standard library, without an errno.
    Io(std::io::ErrorKind),
    /// A layer of the device failed, for a reason of its own.
    Layer(Cause),
}

/// A failed operation: which device, what, where, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// Name of the device.
    pub device: String,
    /// The operation.
    pub operation: Operation,
    /// Start of its range.
    pub offset_bytes: u64,
    /// Length of its range; 0 for operations without one.
    pub len_bytes: u64,
    /// Why it failed.
    pub kind: ErrorKind,
}

impl DeviceError {
    /// An error of `device`.
    #[must_use]
    pub fn new(
        device: &str,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        kind: ErrorKind,
    ) -> Self {
        Self { device: device.to_owned(), operation, offset_bytes, len_bytes, kind }
    }

    /// An error that the kernel returned.
    #[must_use]
    pub fn os(
        device: &str,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
        error: &std::io::Error,
    ) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::ENOSPC) => ErrorKind::NoSpace,
            Some(libc::ENODEV | libc::ENXIO) => ErrorKind::Gone,
            Some(libc::EBADE) => ErrorKind::ReservationConflict,
            Some(libc::EBUSY | libc::EWOULDBLOCK) => ErrorKind::Busy,
            Some(errno) => ErrorKind::Os { errno },
            None => ErrorKind::Io(error.kind()),
        };
        Self::new(device, operation, offset_bytes, len_bytes, kind)
    }

    /// The errno that a client of a block protocol should see.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::OutOfRange { .. } | ErrorKind::Misaligned { .. } => libc::EINVAL,
            ErrorKind::ReadOnly => libc::EPERM,
            ErrorKind::Unsupported => libc::EOPNOTSUPP,
            _ => libc::EIO,
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, operation, offset_bytes, len_bytes, kind } = self;
        write!(f, "{device}: {operation}")?;
        if *len_bytes > 0 {
            write!(f, " of {len_bytes} bytes at offset {offset_bytes}")?;
        }
        match kind {
            ErrorKind::Os { errno } => {
                write!(f, ": {}", std::io::Error::from_raw_os_error(*errno))
            }
            ErrorKind::Short { got_bytes } => {
                write!(f, ": only {got_bytes} bytes came; is the device smaller than it was?")
            }
            ErrorKind::OutOfRange { size_bytes } => {
                write!(f, ": the range ends past the device's {size_bytes} bytes")
            }
            ErrorKind::Misaligned { block_bytes } => {
                write!(f, ": offset and length must be multiples of {block_bytes} bytes")
            }
            ErrorKind::NoSpace => write!(f, ": no space left"),
            ErrorKind::Corrupt { cause } => write!(f, ": {cause}"),
            ErrorKind::Unreadable { offset_bytes, len_bytes } => {
                write!(f, ": {len_bytes} bytes at offset {offset_bytes} cannot be read")
            }
            ErrorKind::LostObject { object, offset_bytes, len_bytes } => write!(
                f,
                ": the store has lost the object '{object}', which has {len_bytes} bytes at offset \
                 {offset_bytes}"
            ),
            ErrorKind::WornOut => {
                write!(f, ": the flash is worn out and takes no more writes; replace the device")
            }
            ErrorKind::Gone => write!(f, ": the device is gone or was failed"),
            ErrorKind::Forgotten => {
                write!(f, ": what was written there last, and acknowledged, is not there")
            }
            ErrorKind::Deleted => {
                write!(f, ": the file was deleted, and is gone when this process closes it")
            }
            ErrorKind::FenceLost(loss) => write!(f, ": {loss}"),
            ErrorKind::Overtaken => f.write_str(": another client has written to it meanwhile"),
            ErrorKind::ReservationConflict => {
                write!(f, ": another machine has reserved the device")
            }
            ErrorKind::Server { errno, text } => {
                write!(f, ": the server answered error {errno}: {text}")
            }
            ErrorKind::TimedOut { after_secs } => {
                write!(f, ": no answer for {after_secs} s; the device gets no more commands")
            }
            ErrorKind::Busy => write!(f, ": the device is in use by another process"),
            ErrorKind::ReadOnly => write!(f, ": the device is read-only"),
            ErrorKind::Unsupported => write!(f, ": not supported by this device"),
            ErrorKind::NotADevice => write!(f, ": neither a file nor a block device"),
            ErrorKind::Io(kind) => write!(f, ": {kind}"),
            ErrorKind::Layer(cause) => write!(f, ": {cause}"),
        }
    }
}

impl Error for DeviceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.kind {
            ErrorKind::Corrupt { cause } | ErrorKind::Layer(cause) => Some(cause.error()),
            _ => None,
        }
    }
}
