//! Errors of scrubs.

use std::fmt;

use crate::commit::error::CommitError;
use crate::widens::widens;

/// Why a scrub was not started, paused or stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScrubError {
    /// The pool is suspended or closing.
    NotRunning {
        /// The pool.
        pool: String,
        /// Why.
        error: CommitError,
    },
    /// A scrub or resilver runs.
    InProgress {
        /// The pool.
        pool: String,
    },
    /// No scrub runs.
    NotInProgress {
        /// The pool.
        pool: String,
    },
}

impl fmt::Display for ScrubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning { pool, error } => {
                write!(f, "pool '{pool}' cannot be scrubbed: {error}")
            }
            Self::InProgress { pool } => write!(f, "pool '{pool}' is being scanned"),
            Self::NotInProgress { pool } => write!(f, "pool '{pool}' is not being scrubbed"),
        }
    }
}

widens!(ScrubError:);
