//! Allow-list: the exports that each certificate's owner may open.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Identities, and the exports that each may see and open. Other identities may open nothing.
///
/// As TOML: `[allow]`, then lines such as `"backup-host" = ["tank/backup-*", "tank/vm/**"]`.
/// In a pattern, `?` matches one character and `*` any number of characters, but no `/`. `**`
/// matches any number of any characters. Every other character matches itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    allow: BTreeMap<String, Vec<String>>,
}

impl AllowList {
    /// Identities with the patterns of their exports.
    #[must_use]
    pub fn new(allow: BTreeMap<String, Vec<String>>) -> Self {
        Self { allow }
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// The text is not TOML of this shape.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Whether `identity` may open `export`.
    #[must_use]
    pub fn allows(&self, identity: Option<&str>, export: &str) -> bool {
        let patterns = identity.and_then(|identity| self.allow.get(identity));
        patterns.is_some_and(|all| all.iter().any(|pattern| matches(pattern, export)))
    }
}

/// Whether `pattern` matches all of `text`. Clients choose the names, so the time is at most
/// proportional to the product of the two lengths; backtracking has no such bound.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    // `matched[n]`: the pattern so far matches the first `n` characters.
    let mut matched = vec![false; text.len() + 1];
    matched[0] = true;
    let mut rest = pattern.chars().peekable();
    while let Some(mark) = rest.next() {
        if mark == '*' {
            let crosses = rest.next_if_eq(&'*').is_some();
            for at in 0..text.len() {
                matched[at + 1] |= matched[at] && (crosses || text[at] != '/');
            }
            continue;
        }
        for at in (0..text.len()).rev() {
            let same = if mark == '?' { text[at] != '/' } else { text[at] == mark };
            matched[at + 1] = matched[at] && same;
        }
        matched[0] = false;
    }
    matched[text.len()]
}
