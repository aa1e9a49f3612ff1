//! Messages on standard error and standard output: plain for commands, with time and level for
//! servers, with the prefixes of sd-daemon(3) when systemd's journal reads them.
//!
//! What enters: a level and a message. What leaves: one line. What always holds: a line under the
//! journal has no time, for the journal adds its own; control characters are escaped.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::{log_time, now_secs};
use crate::escape::visible;

/// Lines that wait for the end of a full screen at most: of more, the first ones matter most.
const MAX_HELD: usize = 1000;

/// How much a message matters; the numbers are syslog's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed.
    Error = 3,
    /// Something is wrong, and the process goes on.
    Warning = 4,
    /// Something that the operator should know.
    Notice = 5,
    /// What a server does when all is well.
    Info = 6,
}

impl Level {
    /// The word in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
            Level::Info => "info",
        }
    }
}

/// Lines that wait for the end of a full screen, as `true` for standard error; `None` when lines
/// are written at once.
static HELD: Mutex<Option<Vec<(bool, String)>>> = Mutex::new(None);

/// From now on lines wait: a full screen stands on the terminal.
pub fn hold() {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
}

/// Writes the lines that have waited, and from now on all others at once.
pub fn release() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    for (is_error, text) in held.into_iter().flatten() {
        let _ = match is_error {
            true => io::stderr().lock().write_all(text.as_bytes()),
            false => io::stdout().lock().write_all(text.as_bytes()),
        };
    }
}

/// Whether `text` waits, for standard error or standard output.
pub fn is_held(is_error: bool, text: &str) -> bool {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(held) = held.as_mut() else { return false };
    if held.len() < MAX_HELD {
        held.push((is_error, text.to_owned()));
    }
    true
}

/// Set once this process is a server: its messages are a log then, with time and level.
static IS_SERVER: AtomicBool = AtomicBool::new(false);

/// From now on messages are lines of a server's log.
pub fn become_server() {
    IS_SERVER.store(true, Ordering::Relaxed);
}

/// Reports a failure on standard error.
pub fn error(message: &str) {
    report(Level::Error, message);
}

/// Reports something that is wrong on standard error.
pub fn warning(message: &str) {
    report(Level::Warning, message);
}

/// Reports something that the operator should know on standard error.
pub fn notice(message: &str) {
    report(Level::Notice, message);
}

/// Reports `message` on standard error.
pub fn report(level: Level, message: &str) {
    if message.is_empty() {
        return;
    }
    let style = match Style::of(io::stderr().as_fd(), io::stderr().is_terminal()) {
        Style::Plain => Style::Command,
        other => other,
    };
    let line = style.line(level, &visible(message));
    let text = format!("{line}\n");
    if !is_held(true, &text) {
        // The process goes on when nothing reads its messages any more.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// A line of a server on standard output: with time and level unless it is a terminal.
#[must_use]
pub fn output_line(message: &str) -> String {
    if message.is_empty() {
        return String::new();
    }
    Style::of(io::stdout().as_fd(), io::stdout().is_terminal()).line(Level::Info, message)
}

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// The message alone.
    Plain,
    /// The message of a command on standard error.
    Command,
    /// Time, level and message.
    Log,
    /// Level as sd-daemon(3) wants it, and the message.
    Journal,
}

impl Style {
    fn of(stream: BorrowedFd<'_>, is_terminal: bool) -> Self {
        let journal = std::env::var("JOURNAL_STREAM").ok();
        if is_journal(journal.as_deref(), identity(stream)) {
            return Style::Journal;
        }
        match IS_SERVER.load(Ordering::Relaxed) && !is_terminal {
            true => Style::Log,
            false => Style::Plain,
        }
    }

    fn line(self, level: Level, message: &str) -> String {
        match (self, level) {
            (Style::Plain, _) => message.to_owned(),
            (Style::Command, Level::Warning) => format!("forebay: warning: {message}"),
            (Style::Command, _) => format!("forebay: {message}"),
            (Style::Log, _) => format!("{} {}: {message}", log_time(now_secs()), level.as_str()),
            (Style::Journal, _) => format!("<{}>{message}", level as u8),
        }
    }
}

/// Whether the stream with this device and inode is the one that `JOURNAL_STREAM` names.
fn is_journal(variable: Option<&str>, stream: Option<(u64, u64)>) -> bool {
    let named = variable.and_then(|text| text.split_once(':'));
    let named = named.and_then(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?)));
    named.is_some() && named == stream
}

/// Whether systemd's journal reads what this process reports.
#[must_use]
pub fn is_journaled() -> bool {
    Style::of(io::stderr().as_fd(), io::stderr().is_terminal()) == Style::Journal
}

/// Device and inode of what is behind `stream`.
fn identity(stream: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let meta = File::from(stream.try_clone_to_owned().ok()?).metadata().ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
mod tests;
