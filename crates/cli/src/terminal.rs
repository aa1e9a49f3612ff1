//! Terminal output: lines, and a live line at the bottom that is rewritten.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use forebay_rt::Either;
use forebay_units::{Nanos, format_bytes};

use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::log;

/// Prints `text` as it is. When the reader has closed the pipe (`| head`), the command ends
/// without a message.
pub fn print(text: &str) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let written = forebay_rt::sys::stdout().map(|out| out.lock()).and_then(|mut out| {
        out.write_all(text.as_bytes())?;
        out.flush()
    });
    match written {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
            Err(Failure::new(ErrorCode::OutputClosed, ""))
        }
        Err(e) => Err(Failure::io("standard output", &e)),
    }
}

/// How the terminal gets its page and its mode back, while a command has them.
static TAKEN: Mutex<Option<fn()>> = Mutex::new(None);

/// A command has the terminal's page or mode: `restore` gives them back.
pub fn taken(restore: fn()) {
    *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(restore);
}

/// Gives the terminal back, if a command has it. A process that ends at once calls it too.
pub fn give_back() {
    let restore = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(restore) = restore {
        restore();
    }
}

/// Columns of `terminal`; 80 when they are unknown.
#[must_use]
pub fn columns(terminal: impl AsFd) -> usize {
    forebay_rt::sys::terminal_columns(terminal.as_fd()).unwrap_or(80)
}

/// Runs `work`. When it takes longer than two seconds, a terminal on standard error shows `what`
/// and for how long it has run; with `own_bytes` also what this process has written meanwhile.
pub async fn with_waiting_line<T>(what: &str, own_bytes: bool, work: impl Future<Output = T>) -> T {
    const QUIET_FOR: Nanos = Nanos::from_secs(2);
    const REDRAW_INTERVAL: Nanos = Nanos::from_millis(500);
    let mut work = std::pin::pin!(work);
    let (begun, begun_bytes) = (forebay_rt::now(), written_bytes());
    let screen = Screen::stderr();
    let mut wait = QUIET_FOR;
    loop {
        let tick = std::pin::pin!(forebay_rt::sleep(wait));
        if let Either::Left((out, _)) = forebay_rt::select(work.as_mut(), tick).await {
            screen.clear();
            return out;
        }
        wait = REDRAW_INTERVAL;
        let secs = forebay_rt::now().since(begun).0 / 1_000_000_000;
        let mut line = format!("{what}: {}", crate::clock::duration(secs));
        if let (true, Some(before), Some(now)) = (own_bytes, begun_bytes, written_bytes()) {
            let done = format_bytes(now.saturating_sub(before));
            line.push_str(&format!(", {done} written"));
        }
        screen.show(&line);
    }
}

/// Bytes that this process has written to storage, as the kernel counts; `None` where that is
/// hidden.
#[must_use]
pub fn written_bytes() -> Option<u64> {
    let mut text = String::new();
    let file = files::open_to_read("/proc/self/io").ok()?;
    file.take(4096).read_to_string(&mut text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?.trim().parse().ok()
}

/// An output with lines, and below them a live line when it is a terminal.
pub struct Screen {
    live: RefCell<String>,
    is_terminal: bool,
    to_stderr: bool,
}

impl Screen {
    /// On standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self { live: RefCell::default(), is_terminal, to_stderr: false }
    }

    /// On standard error, for the progress of commands whose output programs read.
    #[must_use]
    pub fn stderr() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { live: RefCell::default(), is_terminal, to_stderr: true }
    }

    /// Whether the live line is shown.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Columns that a live line may have.
    #[must_use]
    pub fn width(&self) -> usize {
        let columns = if self.to_stderr { columns(io::stderr()) } else { columns(io::stdout()) };
        columns.saturating_sub(1)
    }

    fn write(&self, text: &str) {
        if log::is_held(self.to_stderr, text) {
            return;
        }
        // A server goes on when nothing reads its output any more.
        let _ = if self.to_stderr {
            let mut out = io::stderr().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }

    /// Prints a line that stays: of a server's log, when this is the standard output of one.
    pub fn say(&self, line: &str) {
        let line = if self.to_stderr { line.to_owned() } else { log::output_line(line) };
        let live = self.live.borrow();
        if live.is_empty() {
            self.write(&format!("{line}\n"));
        } else {
            self.write(&format!("\r\x1b[K{line}\n{live}"));
        }
    }

    /// Rewrites the live line, cut to the terminal's width.
    pub fn show(&self, line: &str) {
        if !self.is_terminal {
            return;
        }
        let cut: String = line.chars().take(self.width()).collect();
        self.write(&format!("\r\x1b[K{cut}"));
        *self.live.borrow_mut() = cut;
    }

    /// Removes the live line.
    pub fn clear(&self) {
        if !self.live.take().is_empty() {
            self.write("\r\x1b[K");
        }
    }
}
