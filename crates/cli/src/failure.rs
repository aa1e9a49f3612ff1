//! Failure of a command: a stable code for programs, a sentence and a hint for the operator.
//!
//! What enters: errors of the crates below, by [`crate::explain`], and refusals of this crate.
//! What leaves: one line on standard error, the JSON of `--json`, the error of the control socket,
//! and the exit code. What always holds: the message is one line. Who calls: every command.

use std::fmt::Display;
use std::io;

use serde::{Deserialize, Serialize};

/// What went wrong, for programs: `docs/control.md` lists the codes. A code never changes its
/// meaning, and a new kind of failure gets a new code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The kernel cannot attach a volume, or take it away.
    Attach,
    /// The load of `forebay bench` could not be run.
    Bench,
    /// An address cannot be listened on.
    CannotListen,
    /// Another process, or a pool, has the device.
    DeviceInUse,
    /// One device is named twice.
    DeviceNamedTwice,
    /// There is no such device, or the devices of a pool are missing.
    DeviceNotFound,
    /// The device is too small, or is neither a file nor a block device.
    DeviceUnusable,
    /// The operator interrupted the command.
    Interrupted,
    /// A file or the terminal failed.
    Io,
    /// The kernel does not offer io_uring.
    IoUring,
    /// A file system or a pool is full.
    NoSpace,
    /// Standard output was closed before everything was printed.
    OutputClosed,
    /// The user may not open a file or device.
    PermissionDenied,
    /// Several pools have this name.
    PoolAmbiguous,
    /// Clients are connected to the pool or volume.
    PoolBusy,
    /// Any other refusal of a pool.
    PoolError,
    /// A pool of this name is known, or imported already.
    PoolExists,
    /// No pool of this name is known or was found.
    PoolNotFound,
    /// Another machine used the pool last and did not export it; it is silent now.
    PoolNotExported,
    /// The request needs a server that serves the pool.
    PoolNotServed,
    /// A server serves the pool already.
    PoolServed,
    /// The pool cannot be opened.
    PoolUnavailable,
    /// The property cannot be set.
    PropertyReadOnly,
    /// There is no such property.
    PropertyUnknown,
    /// The two sides of the control socket do not understand each other.
    Protocol,
    /// A qualification cannot be begun, taken up again, or read.
    Qualify,
    /// The server is about to end.
    ServerStopping,
    /// The server does not answer.
    ServerUnreachable,
    /// The configuration file of a server is missing or wrong.
    ServiceConfig,
    /// The experiment of `forebay simulate` failed.
    Simulation,
    /// The state folder cannot be used.
    StateFolder,
    /// A send stream is damaged, cut short, or something else.
    Stream,
    /// The certificate, key or list of clients cannot be used.
    TlsConfig,
    /// More devices than a group may have.
    TooManyDevices,
    /// The source is no trace that can be read.
    Trace,
    /// A scrub or resilver found blocks that it could not repair.
    Unrepairable,
    /// The command line is wrong.
    Usage,
    /// No volume has this name.
    VolumeNotFound,
    /// A volume cannot have this size.
    VolumeSize,
}

impl ErrorCode {
    /// The code of an error of the operating system.
    #[must_use]
    pub fn of_io(error: &io::Error) -> Self {
        use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull};
        match error.kind() {
            NotFound => Self::DeviceNotFound,
            PermissionDenied | ReadOnlyFilesystem => Self::PermissionDenied,
            StorageFull => Self::NoSpace,
            _ => Self::Io,
        }
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// What is wrong, in one line.
    pub message: String,
    /// What helps, mostly a command; empty when nothing more can be said.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(code: ErrorCode, message: impl Display) -> Self {
        Self { code, message: one_line(&message.to_string()), hint: String::new() }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Display) -> Self {
        Self::new(ErrorCode::Usage, message)
    }

    /// `error` of the operating system on `what`: a path, mostly.
    pub fn io(what: impl Display, error: &io::Error) -> Self {
        Self::new(ErrorCode::of_io(error), format!("{what}: {error}"))
    }

    /// The same failure with what helps.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// The exit code of a process that ends with it: 2 for wrong usage, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.code == ErrorCode::Usage { 2 } else { 1 }
    }

    /// The message, and the hint behind it.
    #[must_use]
    pub fn line(&self) -> String {
        match (self.message.is_empty(), self.hint.is_empty()) {
            (_, true) => self.message.clone(),
            (true, _) => self.hint.clone(),
            _ => format!("{}; {}", self.message, self.hint),
        }
    }
}

/// The message on one line, without the numbers that the system's errors have beside their words.
fn one_line(message: &str) -> String {
    const NUMBER: &str = " (os error ";
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    while let Some(at) = line.find(NUMBER) {
        let Some(len) = line[at..].find(')') else { break };
        line.replace_range(at..=at + len, "");
    }
    line
}

#[cfg(test)]
mod tests;
