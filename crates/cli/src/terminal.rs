//! Standard output: plain lines, and one line at the bottom that is rewritten.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};

use crate::failure::Failure;

/// Prints `text` as it is. When the reader has gone (`| head`), the command ends quietly.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::silent()),
        Err(e) => Err(Failure::new(format!("standard output: {e}"))),
    }
}

/// Columns of the terminal behind `fd`; 80 when it does not say.
#[must_use]
pub fn columns(fd: i32) -> usize {
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    let outcome = unsafe { libc::ioctl(fd, libc::TIOCGWINSZ, &raw mut size) };
    if outcome == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { 80 }
}

/// Lines, and below them a live one when the output is a terminal.
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

    /// On standard error, for progress of commands whose output is for programs.
    #[must_use]
    pub fn stderr() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self { live: RefCell::default(), is_terminal, to_stderr: true }
    }

    /// Whether the live line shows at all.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    fn write(&self, text: &str) {
        // A server does not end because nobody reads its output any more.
        let _ = if self.to_stderr {
            let mut out = io::stderr().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        };
    }

    /// A line that stays.
    pub fn say(&self, line: &str) {
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
        let width = columns(if self.to_stderr { 2 } else { 1 }).saturating_sub(1);
        let cut: String = line.chars().take(width).collect();
        self.write(&format!("\r\x1b[K{cut}"));
        *self.live.borrow_mut() = cut;
    }

    /// Takes the live line away.
    pub fn clear(&self) {
        if !self.live.take().is_empty() {
            self.write("\r\x1b[K");
        }
    }
}
