//! Text that is safe on a terminal.

/// `text` with what would move the cursor, or pass for another column or line, written as an
/// escape: names of files may hold anything.
#[must_use]
pub fn visible(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}
