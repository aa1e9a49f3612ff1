//! Codes and hints for refused traces, and for the device that a trace is replayed to.

use std::io;

use forebay_device::{DeviceError, ErrorKind};
use forebay_trace::{Format, TraceError};

use super::Explain;
use crate::failure::ErrorCode;

impl Explain for TraceError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Io(error) => ErrorCode::of_io(error),
            _ => ErrorCode::Trace,
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::UnknownFormat | Self::NotThisFormat { .. } => {
                let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
                format!("--format takes one of {}", names.join(", "))
            }
            Self::Compression { program: "zip" } => {
                "unzip -p FILE | forebay trace COMMAND -".to_owned()
            }
            Self::Compression { program } => {
                format!("{program} -dc FILE | forebay trace COMMAND -")
            }
            Self::Archive => "tar -xOf FILE | forebay trace COMMAND -".to_owned(),
            Self::Version { .. } => "a newer forebay reads it".to_owned(),
            Self::Empty | Self::Io(_) => String::new(),
        }
    }
}

impl Explain for DeviceError {
    fn code(&self) -> ErrorCode {
        match self.kind {
            ErrorKind::Busy | ErrorKind::Os { errno: libc::EBUSY } => ErrorCode::DeviceInUse,
            ErrorKind::NoSpace => ErrorCode::NoSpace,
            ErrorKind::ReadOnly => ErrorCode::PermissionDenied,
            ErrorKind::Os { errno } => ErrorCode::of_io(&io::Error::from_raw_os_error(errno)),
            _ => ErrorCode::Io,
        }
    }

    fn hint(&self) -> String {
        match self.code() {
            ErrorCode::DeviceInUse => "unmount it, or close the pool that it is part of".to_owned(),
            _ => String::new(),
        }
    }
}
