//! Outcome of a command: its text, and whether every pool could be asked.

/// What a command leaves for the process to print and to exit with.
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// Whether every pool could be asked; if not, the exit code is 1.
    pub complete: bool,
}

impl Outcome {
    /// A text, and every pool was asked.
    #[must_use]
    pub fn text(text: String) -> Self {
        Self { text, complete: true }
    }

    /// No text, and every pool was asked.
    #[must_use]
    pub fn done() -> Self {
        Self::text(String::new())
    }
}
