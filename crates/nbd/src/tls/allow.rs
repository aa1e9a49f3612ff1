//! Which exports the owner of which certificate may open.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::TlsError;

/// Identities, and the exports that each may see and open. Who is not in it gets nothing.
///
/// As TOML: `[allow]`, then lines such as `"backup-host" = ["tank/backup-*", "tank/vm/**"]`.
/// In a pattern `?` is one character and `*` any number of them, neither of them a `/`; `**` is
/// any number of any characters. Everything else is itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowList {
    allow: BTreeMap<String, Vec<String>>,
}

impl AllowList {
    /// Nobody may do anything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also allows `identity` the exports that match `pattern`.
    #[must_use]
    pub fn with(mut self, identity: &str, pattern: &str) -> Self {
        self.allow.entry(identity.to_owned()).or_default().push(pattern.to_owned());
        self
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// Text that is not TOML of this shape, and where.
    pub fn parse(text: &str) -> Result<Self, TlsError> {
        toml::from_str(text).map_err(|e| TlsError::AllowList(e.to_string()))
    }

    /// Whether `identity` may open `export`.
    #[must_use]
    pub fn allows(&self, identity: Option<&str>, export: &str) -> bool {
        let patterns = identity.and_then(|identity| self.allow.get(identity));
        patterns.is_some_and(|all| all.iter().any(|pattern| matches(pattern, export)))
    }
}

/// Whether `pattern` covers `text`, in time proportional to the product of their lengths: names
/// come from clients, and backtracking could be made to take for ever.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    // Which beginnings of the text are covered by the pattern so far.
    let mut covered = vec![false; text.len() + 1];
    covered[0] = true;
    let mut rest = pattern.chars().peekable();
    while let Some(mark) = rest.next() {
        if mark == '*' {
            let crosses = rest.next_if_eq(&'*').is_some();
            for at in 0..text.len() {
                covered[at + 1] |= covered[at] && (crosses || text[at] != '/');
            }
            continue;
        }
        for at in (0..text.len()).rev() {
            let same = if mark == '?' { text[at] != '/' } else { text[at] == mark };
            covered[at + 1] = covered[at] && same;
        }
        covered[0] = false;
    }
    covered[text.len()]
}
