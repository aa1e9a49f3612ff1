//! Layouts of groups of data devices.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a group of data devices distributes its data.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Striped, no redundancy.
    #[default]
    Raid0,
    /// Every member holds everything.
    Mirror,
    /// One parity column.
    Raidz1,
    /// Two parity columns.
    Raidz2,
    /// Three parity columns.
    Raidz3,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 5] =
        [Self::Raid0, Self::Mirror, Self::Raidz1, Self::Raidz2, Self::Raidz3];

    /// The word on media, in listings and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raid0 => "raid0",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
        }
    }

    /// The layout with this word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == word)
    }

    /// Columns of a row that are not data, for a group of `members`: as many columns may be
    /// missing.
    #[must_use]
    pub const fn parity_columns(self, members: usize) -> usize {
        match self {
            Self::Raid0 => 0,
            Self::Mirror => members.saturating_sub(1),
            Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
        }
    }

    /// Columns of a row that hold different data, for a group of `members`; 0 for too few members.
    #[must_use]
    pub const fn data_columns(self, members: usize) -> usize {
        members.saturating_sub(self.parity_columns(members))
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
