//! Why a command failed: one line that says what to do, and an exit code.

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
        let line: Vec<&str> = message.split_whitespace().collect();
        eprintln!("forebay: {}", line.join(" "));
    }
}
