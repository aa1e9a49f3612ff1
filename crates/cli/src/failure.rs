//! Why a command failed: one line that says what to do, and an exit code.

use crate::escape::visible;

/// A failure to report as `forebay: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One line; empty when everything was said already.
    pub message: String,
    /// Exit code: 1, or 2 for wrong usage.
    pub code: u8,
}

impl Failure {
    /// Something could not be done.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    /// The command line makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// Exit code 1, with nothing more to say.
    #[must_use]
    pub fn silent() -> Self {
        Self { message: String::new(), code: 1 }
    }
}

impl From<forebay_pool::PoolError> for Failure {
    fn from(error: forebay_pool::PoolError) -> Self {
        Self::new(error.message)
    }
}

/// Prints `forebay: MESSAGE` on standard error, on one line.
pub fn report(message: &str) {
    if !message.is_empty() {
        eprintln!("forebay: {}", visible(&one_line(message)));
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
