//! What can go wrong, and with which exit code.

/// An error of the lab. Its text is one line that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabError {
    /// The request cannot be met as put: unknown device, impossible geometry, negative time. Exit 2.
    Usage(String),
    /// It could be met, but the machine did not let us: a file that cannot be written. Exit 1.
    Failed(String),
}

impl LabError {
    /// A request that cannot be met.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(one_line(&text.into()))
    }

    /// A failure of the machine.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(one_line(&text.into()))
    }

    /// The exit code a program ends with.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
        }
    }
}

/// Parsers answer with excerpts over several lines; an operator's log wants one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl std::fmt::Display for LabError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for LabError {}

impl From<forebay_flash::SpecError> for LabError {
    fn from(error: forebay_flash::SpecError) -> Self {
        Self::usage(error.to_string())
    }
}
