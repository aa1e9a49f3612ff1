//! Errors of sending and receiving.

use std::fmt;

use forebay_device::DeviceError;
use forebay_format::stream::StreamError;

use crate::admin::error::{NameError, VolumeError};
use crate::commit::error::CommitError;
use crate::widens::widens;

/// Why a volume was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The stream cannot be read.
    Stream(StreamError),
    /// A command on a volume was refused.
    Volume(VolumeError),
    /// Data could not be read or written.
    Device(DeviceError),
    /// Nothing could be committed.
    Commit(CommitError),
    /// The newest snapshot of the volume is not the one that the stream goes on from.
    OtherBase {
        /// `POOL/VOL`.
        name: String,
        /// The base by its name where the stream was made.
        base: String,
        /// The newest snapshot here.
        newest: Option<String>,
    },
    /// The volume was changed since its newest snapshot.
    Modified {
        /// `POOL/VOL@SNAP`.
        base: String,
    },
    /// The stream begins anew, and the volume has a part of one already.
    PartlyReceived {
        /// `POOL/VOL`.
        name: String,
    },
    /// The stream goes on where no stream of the volume was interrupted.
    NothingToResume {
        /// `POOL/VOL`.
        name: String,
    },
    /// The stream goes on with another snapshot, or at another place.
    OtherPlace {
        /// `POOL/VOL`.
        name: String,
        /// Where the stream goes on.
        found_bytes: u64,
        /// Where it has to.
        due_bytes: u64,
    },
    /// A snapshot was destroyed while it was sent.
    Gone {
        /// `POOL/VOL@SNAP`.
        name: String,
    },
    /// The base is no older snapshot of the same volume.
    NotOlder {
        /// The base.
        base: String,
        /// The snapshot.
        name: String,
    },
    /// A word is no resume token.
    Token,
    /// There is no snapshot with the identity that a token has.
    NoSource {
        /// `POOL/VOL@SNAP` as it was.
        name: String,
    },
    /// The snapshot is not the one of the token.
    OtherSource {
        /// `POOL/VOL@SNAP`.
        name: String,
    },
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(error) => write!(f, "the stream cannot be received: {error}"),
            Self::Volume(error) => write!(f, "{error}"),
            Self::Device(error) => write!(f, "{error}"),
            Self::Commit(error) => write!(f, "{error}"),
            Self::OtherBase { name, base, newest: Some(newest) } => write!(
                f,
                "the stream goes on from '@{base}', and the newest snapshot of '{name}' is \
                 another one: '@{newest}'"
            ),
            Self::OtherBase { name, base, newest: None } => {
                write!(f, "the stream goes on from '@{base}', and '{name}' has no snapshot")
            }
            Self::Modified { base } => {
                write!(f, "the volume was changed since its newest snapshot '{base}'")
            }
            Self::PartlyReceived { name } => {
                write!(f, "'{name}' has a part of an interrupted stream, and this one begins anew")
            }
            Self::NothingToResume { name } => write!(
                f,
                "the stream goes on after an interruption, and no stream of '{name}' was \
                 interrupted"
            ),
            Self::OtherPlace { name, found_bytes, due_bytes } if found_bytes == due_bytes => {
                write!(f, "the stream has another snapshot than the part that '{name}' has")
            }
            Self::OtherPlace { name, found_bytes, due_bytes } => write!(
                f,
                "the stream goes on at byte {found_bytes}, and '{name}' needs what follows byte \
                 {due_bytes}"
            ),
            Self::Gone { name } => write!(f, "snapshot '{name}' was destroyed meanwhile"),
            Self::NotOlder { base, name } => {
                write!(f, "'{base}' is no older snapshot of the volume of '{name}'")
            }
            Self::Token => f.write_str("this is no resume token, or it was not copied whole"),
            Self::NoSource { name } => {
                write!(f, "the snapshot of the token is not here any more (it was '{name}')")
            }
            Self::OtherSource { name } => {
                write!(f, "'{name}' is not the snapshot of the token")
            }
        }
    }
}

widens!(TransferError: Stream(StreamError), Volume(VolumeError), Device(DeviceError),
    Commit(CommitError));

impl From<NameError> for TransferError {
    fn from(error: NameError) -> Self {
        Self::Volume(error.into())
    }
}
