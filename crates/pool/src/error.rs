//! Errors of a pool: one enum for each family of operations, and [`PoolError`] above them.
//!
//! What always holds: `Display` is one line that says what is wrong, with devices, offsets,
//! expected and found values. It names no command: the command line adds the one that helps.

use std::fmt;

use crate::admin::error::{AdminError, CloseError, VolumeError};
use crate::commit::error::CommitError;
use crate::import::error::ImportError;
use crate::resume::ResumeError;
use crate::scrub::error::ScrubError;
use crate::transfer::error::TransferError;
use crate::widens::widens;

/// An error of any operation on a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolError {
    /// The pool was not imported.
    Import(ImportError),
    /// A command on the pool or its devices failed.
    Admin(AdminError),
    /// A command on a volume failed.
    Volume(VolumeError),
    /// The pool was not exported, destroyed or ended well.
    Close(CloseError),
    /// Nothing could be committed.
    Commit(CommitError),
    /// A scrub was not started or ended.
    Scrub(ScrubError),
    /// A suspended pool did not go on.
    Resume(ResumeError),
    /// A volume was not sent or received.
    Transfer(TransferError),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(error) => write!(f, "{error}"),
            Self::Admin(error) => write!(f, "{error}"),
            Self::Volume(error) => write!(f, "{error}"),
            Self::Close(error) => write!(f, "{error}"),
            Self::Commit(error) => write!(f, "{error}"),
            Self::Scrub(error) => write!(f, "{error}"),
            Self::Resume(error) => write!(f, "{error}"),
            Self::Transfer(error) => write!(f, "{error}"),
        }
    }
}

widens!(PoolError: Import(ImportError), Admin(AdminError), Volume(VolumeError),
    Close(CloseError), Commit(CommitError), Scrub(ScrubError), Resume(ResumeError),
    Transfer(TransferError));
