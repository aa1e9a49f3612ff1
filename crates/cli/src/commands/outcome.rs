//! What a command leaves when it ends.

/// What a command leaves: text for standard output, and whether all went well.
pub struct Outcome {
    /// For standard output.
    pub text: String,
    /// Whether every pool could be asked.
    pub complete: bool,
}

impl Outcome {
    /// Text, and nothing went wrong.
    #[must_use]
    pub fn text(text: String) -> Self {
        Self { text, complete: true }
    }

    /// Nothing to say.
    #[must_use]
    pub fn done() -> Self {
        Self::text(String::new())
    }
}
