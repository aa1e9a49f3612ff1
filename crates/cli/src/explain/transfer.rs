//! Codes and hints for errors of sending and receiving.

use forebay_device::ErrorKind;
use forebay_pool::{TransferError, VolumeError};

use super::pool::{commit_hint, volume_code, volume_hint};
use crate::failure::ErrorCode;

pub(super) fn code(error: &TransferError) -> ErrorCode {
    match error {
        TransferError::Stream(_) => ErrorCode::Stream,
        TransferError::Volume(error) => volume_code(error),
        TransferError::NoSource { .. } | TransferError::NotOlder { .. } => {
            ErrorCode::VolumeNotFound
        }
        TransferError::Token => ErrorCode::Usage,
        _ => ErrorCode::PoolError,
    }
}

pub(super) fn hint(error: &TransferError) -> String {
    match error {
        TransferError::Volume(VolumeError::Exists { .. }) => {
            "receive into a new volume, or send what changed since a snapshot that both have (-i)"
                .to_owned()
        }
        TransferError::Volume(error) => volume_hint(error),
        TransferError::Commit(error) => commit_hint(error),
        TransferError::OtherBase { .. } => {
            "send what changed since that one, or roll back to the stream's base first".to_owned()
        }
        TransferError::Modified { .. } => "use -F to take it back to that snapshot".to_owned(),
        TransferError::PartlyReceived { name } | TransferError::OtherPlace { name, .. } => format!(
            "'forebay volume get receive_resume_token {name}' shows how it goes on, 'forebay \
             volume receive -A {name}' gives it up"
        ),
        TransferError::NothingToResume { .. } => "send it without -t".to_owned(),
        TransferError::OtherSource { .. } => "name the snapshot that the token is of".to_owned(),
        TransferError::NotOlder { .. } => {
            "'forebay volume list -t snapshot' shows the snapshots, oldest first".to_owned()
        }
        // The device is the volume: the pool is full, not what its devices lie on.
        TransferError::Device(error) if error.kind == ErrorKind::NoSpace => {
            "add devices, or destroy or trim what is not needed".to_owned()
        }
        TransferError::Stream(_)
        | TransferError::Device(_)
        | TransferError::Gone { .. }
        | TransferError::Token
        | TransferError::NoSource { .. } => String::new(),
    }
}
